//! Rules about the text of one file.

use super::{Finding, Tree};

/// Every Rust file opens with a sentence that says what is here.
pub(super) fn opening(tree: &Tree) -> Vec<Finding> {
    let closed = tree.rust().filter(|file| !file.text.starts_with("//! "));
    let finding = |file: &super::File| Finding {
        place: file.path.clone(),
        what: "does not open with `//!`".into(),
        fix: "say in the first line what is here, and why it is apart",
    };
    closed.map(finding).collect()
}

pub(super) fn width(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        for (at, line) in file.text.lines().enumerate() {
            let width = line.chars().count();
            if width > WIDTH_MAX {
                findings.push(Finding {
                    place: file.place(at + 1),
                    what: format!("{width} columns"),
                    fix: "break the line: the house width is 100",
                });
            }
        }
    }
    findings
}

/// Tests do not count; a file longer than this is usually two ideas.
pub(super) fn length(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let lines = file.product_lines().len();
        if lines > LINES_MAX {
            findings.push(Finding {
                place: file.path.clone(),
                what: format!("{lines} lines without tests"),
                fix: "part it where its second idea begins",
            });
        }
    }
    findings
}

/// Notes to oneself, and prints for debugging.
pub(super) fn leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        for (at, line) in file.text.lines().enumerate() {
            for word in LEFTOVERS.iter().filter(|word| line.contains(**word)) {
                findings.push(Finding {
                    place: file.place(at + 1),
                    what: format!("`{word}` was left behind"),
                    fix: "do it now, or say what is missing as a plain sentence in the docs",
                });
            }
        }
    }
    findings
}

/// Names under which anything could stand say nothing about what does.
pub(super) fn names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in tree.paths.iter().filter(|path| path.ends_with(".rs")) {
        let stems = path.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part));
        for stem in stems.filter(|stem| NAMES_BANNED.contains(stem)) {
            findings.push(Finding {
                place: path.clone(),
                what: format!("`{stem}` is no name for a room"),
                fix: "name it after what it holds or does",
            });
        }
    }
    findings
}

const WIDTH_MAX: usize = 100;
const LINES_MAX: usize = 500;

/// Joined here, so that this file does not contain them.
const LEFTOVERS: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("db", "g!(")];

const NAMES_BANNED: &[&str] = &[
    "core", "common", "util", "utils", "misc", "manager", "handler", "handlers", "helper",
    "helpers",
];

#[cfg(test)]
mod tests {
    use super::super::tests::{places, tree};
    use super::*;

    #[test]
    fn each_rule_finds_its_fault_and_nothing_else() {
        let wide = format!("//! Fine.\n{}\n", "x".repeat(101));
        let long = format!("//! Fine.\n{}", "x\n".repeat(500));
        let left = format!("//! Fine.\n// {} later\n", concat!("TO", "DO"));
        let tree = tree(&[
            ("fine.rs", "//! Fine.\n"),
            ("bare.rs", "fn main() {}\n"),
            ("wide.rs", &wide),
            ("long.rs", &long),
            ("left.rs", &left),
            ("a/util/b.rs", "//! Fine.\n"),
        ]);
        assert_eq!(places(&opening(&tree)), ["bare.rs"]);
        assert_eq!(places(&width(&tree)), ["wide.rs:2"]);
        assert_eq!(places(&length(&tree)), ["long.rs"]);
        assert_eq!(places(&leftovers(&tree)), ["left.rs:2"]);
        assert_eq!(places(&names(&tree)), ["a/util/b.rs"]);
    }
}
