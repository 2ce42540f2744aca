//! The files of a crate that each of its files uses, by the paths in it.
//!
//! A path is followed through re-exports to the file that defines what it names. A re-export by
//! itself is no use, unless the file that makes it uses the name as well.

use std::collections::{HashMap, HashSet};

use super::Code;
use super::circles::Graph;
use crate::source::{Path, Token, paths, step};

/// How many re-exports a path may lead through.
const REEXPORTS_MAX: usize = 8;

/// One file as its paths see it.
#[derive(Default)]
struct Module<'t> {
    path: Vec<&'t str>,
    /// The names that it defines outside functions and impls.
    defined: HashSet<&'t str>,
    imports: HashMap<&'t str, Vec<&'t str>>,
}

struct Modules<'t> {
    modules: Vec<Module<'t>>,
    by_path: HashMap<Vec<&'t str>, usize>,
}

pub fn uses(code: &[Code<'_>]) -> Graph {
    let all: Vec<Vec<Path<'_>>> = code.iter().map(|file| paths(&file.tokens)).collect();
    let modules: Vec<Module<'_>> =
        code.iter().zip(&all).map(|(file, paths)| Module::new(file, paths)).collect();
    let by_path =
        modules.iter().enumerate().map(|(at, module)| (module.path.clone(), at)).collect();
    let modules = Modules { modules, by_path };
    let mut graph = Graph::new();
    for (from, (file, paths)) in code.iter().zip(&all).enumerate() {
        for path in paths {
            let is_unused = path.import.is_some_and(|(name, exported)| {
                exported && file.tokens.iter().filter(|token| token.text == name).count() < 2
            });
            if is_unused {
                continue;
            }
            let Some(to) = modules.find(from, &path.segments, REEXPORTS_MAX) else { continue };
            if to != from {
                graph.entry((from, to)).or_default().push(path.segments.join("::"));
            }
        }
    }
    graph
}

/// Leaves out the uses of what stands in a module around the file. A folder and its file are one
/// subject, so these make no knot.
pub fn without_parents(code: &[Code<'_>], graph: &Graph) -> Graph {
    let path = |at: usize| module_path(code[at].path);
    let ways = graph.iter().filter(|((from, to), _)| !path(*from).starts_with(&path(*to)));
    ways.map(|(way, names)| (*way, names.clone())).collect()
}

/// Returns the path of the module that is in a file.
fn module_path(file: &str) -> Vec<&str> {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let path = if ["lib", "main"].contains(&path) { "" } else { path };
    path.split_terminator('/').collect()
}

impl<'t> Module<'t> {
    fn new(file: &Code<'t>, paths: &[Path<'t>]) -> Module<'t> {
        let imports = paths.iter().filter_map(|path| Some((path.import?.0, path.segments.clone())));
        Module {
            path: module_path(file.path),
            defined: defined(&file.tokens),
            imports: imports.collect(),
        }
    }
}

fn defined<'t>(tokens: &[Token<'t>]) -> HashSet<&'t str> {
    let kinds = ["struct", "enum", "union", "trait", "type", "fn", "const", "static", "mod"];
    let (mut depth, mut defined) = (0, HashSet::new());
    for pair in tokens.windows(2) {
        depth += step(pair[0].text);
        if depth == 0 && kinds.contains(&pair[0].text) && pair[1].is_word() {
            defined.insert(pair[1].text);
        }
    }
    defined
}

impl<'t> Modules<'t> {
    /// Returns the file that defines what a path in this file names, if it is in the crate. A path
    /// to a module leads nowhere: the paths that begin with that module say what they use.
    fn find(&self, from: usize, segments: &[&'t str], reexports: usize) -> Option<usize> {
        let (mut path, mut at) = (self.modules[from].path.clone(), from);
        for (place, segment) in segments.iter().enumerate() {
            match *segment {
                "crate" => path.clear(),
                "self" => {}
                "super" => drop(path.pop()?),
                name => path.push(name),
            }
            if let Some(next) = self.by_path.get(&path) {
                at = *next;
                continue;
            }
            let module = &self.modules[at];
            // The first segment may be the name of another crate.
            let here = (place > 0 || module.defined.contains(segment)).then_some(at);
            let import = module.imports.get(segment).filter(|_| reexports > 0);
            let Some(import) = import else { return here };
            let path: Vec<&str> = import.iter().chain(&segments[place + 1..]).copied().collect();
            return self.find(at, &path, reexports - 1).or(here);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::code;
    use super::*;

    #[test]
    fn a_use_leads_to_the_file_that_defines_the_name() {
        let code = code(&[
            ("lib.rs", "mod a;\npub use a::B;\npub struct Time;"),
            ("a.rs", "mod b;\nmod c;\npub use b::B;\nfn a() { c::c() }"),
            ("a/b.rs", "use crate::Time;\nuse std::time;\npub struct B;"),
            (
                "a/c.rs",
                "use super::B;\nuse super::super::a;\npub fn c() { crate::d::D::e(); a::a() }",
            ),
            ("d/mod.rs", "use crate::B;\nuse proto::X;\npub struct D;\nimpl D { fn e(b: B) {} }"),
        ]);
        let uses = uses(&code);
        let ways: Vec<_> = uses.keys().copied().collect();
        assert_eq!(ways, [(1, 3), (2, 0), (3, 1), (3, 2), (3, 4), (4, 2)]);
        let ways: Vec<_> = without_parents(&code, &uses).into_keys().collect();
        assert_eq!(ways, [(1, 3), (3, 2), (3, 4), (4, 2)]);
    }

    #[test]
    fn a_reexport_counts_if_its_file_uses_the_name() {
        let code =
            code(&[("lib.rs", "mod a;\npub use a::A;\nfn b(a: A) {}"), ("a.rs", "pub struct A;")]);
        assert_eq!(uses(&code).into_keys().collect::<Vec<_>>(), [(0, 1)]);
    }
}
