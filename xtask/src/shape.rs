//! How the code hangs together, in numbers: `cargo xtask shape`.
//!
//! It counts in the text, by name, so that two checkouts can be compared: calls between files,
//! circles of files, the largest types and functions, lines. `uses.rs` reads what a file uses.

mod circles;
mod uses;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::source::{Item, Token, items, paths, step, tokens};
use crate::tidy::{self, File};
use crate::{Outcome, root};
use circles::{Graph, circles};

/// The crate whose calls and types are counted too.
const DATA_PLANE: &str = "crates/proxy";

/// The crates that it uses: a method of theirs may be meant by a call.
const BELOW: &[&str] = &["crates/proto", "crates/shard", "crates/cache", "crates/metrics"];

/// Methods that the standard library has as well: a call of one says nothing about a file.
const STD_METHODS: &str = "all and_then any append as_bytes as_mut as_ref as_slice as_str chain \
    clear clone cmp collect contains copied count drain entry enumerate eq expect extend fill \
    filter find first flatten flush fmt fold from get get_mut insert into is_empty iter iter_mut \
    join keys last len lines map max min new next parse peek pop pop_front position push push_back \
    push_str read remove replace resize retain rev skip sort split split_at start_with sum swap \
    take then to_string trim truncate unwrap_or values write zip";

/// A file of a crate's `src`, without its tests.
pub(crate) struct Code<'t> {
    /// The path below `src/`.
    path: &'t str,
    tokens: Vec<Token<'t>>,
}

/// The text of one crate.
#[derive(Default)]
struct Package {
    /// The files of `src` by their paths there, without their tests.
    product: BTreeMap<String, String>,
    lines: usize,
    test_lines: usize,
    /// Lines of files in `src` that are not Rust.
    data_lines: usize,
}

pub fn run(arguments: &[String]) -> Outcome {
    let root = arguments.first().map_or_else(root, PathBuf::from);
    let packages = packages(&root)?;
    let below: Vec<Code<'_>> =
        BELOW.iter().filter_map(|name| packages.get(*name)).flat_map(Package::code).collect();
    for (name, package) in &packages {
        let code: Vec<Code<'_>> = package.code().collect();
        println!("{name}");
        let Package { lines, test_lines, data_lines, .. } = package;
        println!("  lines: {lines} src, {test_lines} tests, {data_lines} other text in src");
        let functions = code.iter().flat_map(|file| {
            items(&file.tokens, "fn").into_iter().map(|item| (item.lines, item.name, file.path))
        });
        if let Some((lines, function, path)) = functions.max() {
            println!("  longest function: {function} in {path}, {lines} lines");
        }
        let uses = uses::uses(&code);
        print_circles("uses", &code, &uses::without_parents(&code, &uses), true);
        let with_parents = circles(code.len(), &uses);
        let sizes: Vec<usize> = with_parents.iter().map(Vec::len).collect();
        println!("    with the uses of parent modules: circles of files: {sizes:?}");
        if name == DATA_PLANE {
            let Calls { graph, ambiguous } = calls(&code, &below);
            print_circles("calls", &code, &graph, false);
            println!("    left out: {ambiguous} calls by names that several files define");
            print_calls_between_modules(&code, &graph);
            print_structs(&code);
        }
    }
    Ok(())
}

/// Reads the crates of a checkout, by their folders.
fn packages(root: &Path) -> Result<BTreeMap<String, Package>, String> {
    let paths = tidy::files(root)?;
    let folders: Vec<&str> =
        paths.iter().filter_map(|path| path.strip_suffix("/Cargo.toml")).collect();
    let mut packages: BTreeMap<String, Package> = BTreeMap::new();
    for path in &paths {
        let owner = folders.iter().find(|folder| path.starts_with(&format!("{folder}/")));
        let Some(folder) = owner else { continue };
        let Some(file) = tidy::read(root, path) else { continue };
        packages.entry(folder.to_string()).or_default().add(&file, &path[folder.len() + 1..]);
    }
    Ok(packages)
}

impl Package {
    fn code(&self) -> impl Iterator<Item = Code<'_>> {
        self.product.iter().map(|(path, text)| Code { path, tokens: tokens(text) })
    }

    fn add(&mut self, file: &File, inside: &str) {
        let lines = file.text.lines().count();
        match (inside.strip_prefix("src/"), inside.ends_with(".rs")) {
            (Some(path), true) => {
                let count = file.product_lines().len();
                self.lines += count;
                self.test_lines += lines - count;
                if count > 0 {
                    self.product.insert(path.to_string(), file.product());
                }
            }
            (Some(path), false) if !path.contains("testdata/") => self.data_lines += lines,
            (None, true) => self.test_lines += lines,
            _ => {}
        }
    }
}

/// Calls between the files of a crate, as far as their names say where they go.
struct Calls {
    graph: Graph,
    /// Calls that may go to one of several files.
    ambiguous: usize,
}

/// Counts the calls: `.name(`, `path::name(`, or `name(` of an imported name, if exactly one file
/// of the crate defines a function of that name, and not the file itself. Nor may it be a method of
/// a crate `below`. A method called on `self` is looked for in the file's own module at the top of
/// the crate first: `tidy` sees to it that methods stand beside their type.
fn calls(code: &[Code<'_>], below: &[Code<'_>]) -> Calls {
    let mut definers: HashMap<&str, BTreeSet<usize>> = HashMap::new();
    let mut known: BTreeSet<&str> = ["Self", "self", "super", "crate"].into();
    for (at, file) in code.iter().enumerate() {
        for function in items(&file.tokens, "fn") {
            definers.entry(function.name).or_default().insert(at);
        }
        for keyword in ["struct", "enum", "union", "trait", "type", "mod"] {
            known.extend(items(&file.tokens, keyword).iter().map(|item| item.name));
        }
    }
    let std_methods: BTreeSet<&str> = STD_METHODS.split_whitespace().collect();
    let below: BTreeSet<&str> =
        below.iter().flat_map(|file| items(&file.tokens, "fn")).map(|item| item.name).collect();
    let mut calls = Calls { graph: Graph::new(), ambiguous: 0 };
    for (at, file) in code.iter().enumerate() {
        let paths = paths(&file.tokens);
        let imported: BTreeSet<&str> =
            paths.iter().filter_map(|path| Some(path.import?.0)).collect();
        for (place, pair) in file.tokens.windows(2).enumerate() {
            let name = pair[0].text;
            let Some(files) = definers.get(name).filter(|_| pair[1].text == "(") else { continue };
            let before = |back| place.checked_sub(back).map_or("", |at| file.tokens[at].text);
            let near = files.iter().filter(|to| module(&code[**to]) == module(file));
            let near: Vec<usize> = near.copied().collect();
            let on_self = [before(2), before(1)] == ["self", "."] && !near.is_empty();
            let is_ours = match before(1) {
                "." => on_self || !std_methods.contains(name),
                "::" => known.contains(before(2)),
                word => word != "fn" && imported.contains(name),
            };
            if !is_ours || files.contains(&at) {
                continue;
            }
            let elsewhere = !on_self && before(1) == "." && below.contains(name);
            let files = if on_self { near } else { files.iter().copied().collect() };
            match files[..] {
                [to] if !elsewhere => {
                    calls.graph.entry((at, to)).or_default().push(name.to_string());
                }
                _ => calls.ambiguous += 1,
            }
        }
    }
    calls
}

/// Returns the module at the top of the crate that a file is in.
fn module<'t>(file: &Code<'t>) -> &'t str {
    file.path.split('/').next().unwrap_or_default().trim_end_matches(".rs")
}

fn print_circles(kind: &str, code: &[Code<'_>], graph: &Graph, with_edges: bool) {
    let circles = circles(code.len(), graph);
    let sizes: Vec<usize> = circles.iter().map(Vec::len).collect();
    let count: usize = graph.values().map(Vec::len).sum();
    println!(
        "  {kind} between files: {count} in {} ways; circles of files: {sizes:?}",
        graph.len()
    );
    for circle in &circles {
        let names: Vec<&str> = circle.iter().map(|file| code[*file].path).collect();
        println!("    circle of {}: {}", circle.len(), names.join(" "));
        let inside = |(from, to): &(usize, usize)| circle.contains(from) && circle.contains(to);
        for ((from, to), names) in graph.iter().filter(|(way, _)| with_edges && inside(way)) {
            let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            let names = Vec::from_iter(names).join(" ");
            println!("      {} -> {}: {names}", code[*from].path, code[*to].path);
        }
    }
}

fn print_calls_between_modules(code: &[Code<'_>], graph: &Graph) {
    let module = |at: usize| module(&code[at]);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for ((from, to), names) in graph.iter().filter(|((from, to), _)| module(*from) != module(*to)) {
        *counts.entry(format!("{} -> {}", module(*from), module(*to))).or_default() += names.len();
    }
    let counts: Vec<String> = counts.iter().map(|(way, count)| format!("{way} {count}")).collect();
    println!("    between modules: {}", counts.join(", "));
}

fn print_structs(code: &[Code<'_>]) {
    let mut structs: Vec<(usize, usize, &str, &str)> = Vec::new();
    for file in code {
        for item in items(&file.tokens, "struct") {
            let (fields, bools) = fields(&item);
            structs.push((fields, bools, item.name, file.path));
        }
    }
    structs.sort_unstable_by(|one, other| other.cmp(one));
    for (fields, bools, name, path) in structs.iter().take(2) {
        println!("  largest struct: {name} in {path}, {fields} fields, {bools} of them bools");
    }
}

/// Counts the fields of a struct, and the bools among them.
fn fields(item: &Item<'_, '_>) -> (usize, usize) {
    let (mut depth, mut fields, mut bools) = (0, 0, 0);
    for (at, token) in item.body.iter().enumerate() {
        depth += step(token.text);
        if token.text == ":" && depth == 1 {
            fields += 1;
            bools += usize::from(item.body.get(at + 1).is_some_and(|next| next.text == "bool"));
        }
    }
    (fields, bools)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn code<'t>(files: &[(&'t str, &'t str)]) -> Vec<Code<'t>> {
        files.iter().map(|(path, text)| Code { path, tokens: tokens(text) }).collect()
    }

    #[test]
    fn a_call_counts_for_the_only_file_that_defines_its_name() {
        let main = code(&[
            (
                "a.rs",
                "use b::b;\nfn a() { b(); x.b(); c::b(1); Self::twice(); own(); }\nfn own() {}",
            ),
            ("b.rs", "fn b() {}\nfn twice() {}\nfn len() {}\nfn take() {}\nfn add() {} mod b;"),
            ("c.rs", "mod c;\nfn twice() { x.len(); mem::take(); b!(); b; /* b() */ b() }"),
            ("d.rs", "fn d() { x.add(); b::add(); }"),
            ("e.rs", "fn e() { self.f(); self.x.f(); self.len(); }"),
            ("e/f.rs", "fn f() {}"),
            ("g.rs", "fn f() {}"),
        ]);
        let below = code(&[("lib.rs", "impl Counter { fn add() {} }")]);
        let Calls { graph, ambiguous } = calls(&main, &below);
        let seen: Vec<_> = graph.iter().map(|(way, names)| (*way, names.join(" "))).collect();
        assert_eq!(
            seen,
            [((0, 1), "b b b".to_string()), ((3, 1), "add".to_string()), ((4, 5), "f".to_string())]
        );
        // `Self::twice` in a.rs, `x.add` in d.rs and `self.x.f` in e.rs.
        assert_eq!(ambiguous, 3);
    }

    #[test]
    fn fields_and_bools_of_a_struct_are_counted() {
        let text = "struct A<B: C> {\n #[d(e)]\n pub a: bool,\n b: Vec<std::f::G>,\n\
            c: [fn(x: bool); 2],\n d: Option<bool>,\n}";
        assert_eq!(fields(&items(&tokens(text), "struct")[0]), (4, 1));
    }
}
