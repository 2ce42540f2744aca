//! The project's rules that no compiler checks: `cargo xtask tidy`.
//!
//! Each rule is one request in [`RULES`]. A rule reads the [`Tree`] and returns findings; each
//! finding has advice. `text.rs` has the rules about one file's text, `walls.rs` those about
//! dependencies, `pages.rs` those about the documents.

mod pages;
mod text;
mod walls;

use std::path::Path;
use std::process::Command;

use crate::{Outcome, root};

/// One violation of a rule, with advice.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// A path, or a path and a line.
    place: String,
    what: String,
    fix: &'static str,
}

/// One rule.
struct Rule {
    name: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

const RULES: &[Rule] = &[
    Rule { name: "opening", check: text::opening },
    Rule { name: "width", check: text::width },
    Rule { name: "length", check: text::length },
    Rule { name: "leftovers", check: text::leftovers },
    Rule { name: "doc tests", check: text::doc_tests },
    Rule { name: "names", check: text::names },
    Rule { name: "purity", check: walls::purity },
    Rule { name: "crates", check: walls::crates },
    Rule { name: "modules", check: walls::modules },
    Rule { name: "methods", check: walls::methods },
    Rule { name: "halves", check: walls::halves },
    Rule { name: "links", check: pages::links },
    Rule { name: "decisions", check: pages::decisions },
    Rule { name: "hazards", check: pages::hazards },
];

/// The project's text files, as git lists them: tracked ones, and new ones that are not ignored.
#[derive(Default)]
struct Tree {
    files: Vec<File>,
    /// Every path, including files that are not text.
    paths: Vec<String>,
    /// The output of `cargo metadata`, as JSON.
    metadata: serde_json::Value,
}

pub struct File {
    pub path: String,
    pub text: String,
}

pub fn run(_: &[String]) -> Outcome {
    let tree = Tree::read()?;
    let mut findings = 0;
    for rule in RULES {
        for finding in (rule.check)(&tree) {
            println!("{}: {}: {}", finding.place, rule.name, finding.what);
            println!("    {}", finding.fix);
            findings += 1;
        }
    }
    if findings == 0 { Ok(()) } else { Err(format!("{findings} findings")) }
}

/// Returns the paths of the files that git lists: the project's, and new ones that it does not
/// ignore.
pub fn files(root: &Path) -> Result<Vec<String>, String> {
    let listed = output(
        Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root),
    )?;
    Ok(listed.split_terminator('\0').map(str::to_string).collect())
}

/// Reads a file, if it is there and is text. A file that was removed and not yet committed is
/// listed but cannot be read.
pub fn read(root: &Path, path: &str) -> Option<File> {
    let text = String::from_utf8(std::fs::read(root.join(path)).ok()?).ok()?;
    Some(File { path: path.to_string(), text })
}

impl Tree {
    fn read() -> Result<Tree, String> {
        let metadata = output(&mut crate::cargo::command(&[
            "metadata",
            "--no-deps",
            "--format-version=1",
            "--locked",
        ]))?;
        let metadata = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
        let mut paths = files(&root())?;
        paths.retain(|path| root().join(path).exists());
        let files = paths.iter().filter_map(|path| read(&root(), path)).collect();
        Ok(Tree { files, paths, metadata })
    }

    fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }
}

impl File {
    /// Returns whether it is a test: tests have their own file or folder.
    fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("tests.rs")
    }

    /// Returns the product's lines with their numbers: without the tests at the end, and none of a
    /// test file.
    pub fn product_lines(&self) -> Vec<(usize, &str)> {
        if self.is_test() {
            return Vec::new();
        }
        let mut lines = Vec::new();
        let mut rest = self.text.lines().enumerate();
        while let Some((at, line)) = rest.next() {
            if line.trim() != "#[cfg(test)]" {
                lines.push((at + 1, line));
                continue;
            }
            // `mod tests;` names another file; `mod tests {` lasts to the end of this one.
            if !rest.next().is_some_and(|(_, next)| next.trim_end().ends_with(';')) {
                break;
            }
        }
        lines
    }

    /// Returns the product's text, with every line at its place.
    pub fn product(&self) -> String {
        let mut text = String::new();
        let mut count = 0;
        for (at, line) in self.product_lines() {
            text.extend(std::iter::repeat_n('\n', at - count - 1));
            text.push_str(line);
            text.push('\n');
            count = at;
        }
        text
    }

    fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.path)
    }
}

/// Returns a line without its comment. A string with two slashes loses its end, which affects no
/// rule.
fn without_comment(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn tree(files: &[(&str, &str)]) -> Tree {
        let files: Vec<File> = files
            .iter()
            .map(|(path, text)| File { path: path.to_string(), text: text.to_string() })
            .collect();
        let paths = files.iter().map(|file| file.path.clone()).collect();
        Tree { files, paths, ..Tree::default() }
    }

    pub(super) fn places(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.place.as_str()).collect()
    }

    #[test]
    fn tests_are_no_product() {
        let text = "a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod more {\n}\n";
        let tree = tree(&[("x.rs", text)]);
        assert_eq!(tree.files[0].product_lines(), [(1, "a"), (4, "b")]);
        assert_eq!(tree.files[0].product(), "a\n\n\nb\n");
    }
}
