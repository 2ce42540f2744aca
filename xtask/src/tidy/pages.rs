//! Rules about the documents.

use super::{Finding, Tree};

/// A link inside the project must point to an existing file.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (at, line) in file.text.lines().enumerate() {
            for target in targets(line) {
                if !resolves(tree, &file.path, target) {
                    findings.push(Finding {
                        place: file.place(at + 1),
                        what: format!("nothing stands at `{target}`"),
                        fix: "mend the link; it is read from the folder of its page",
                    });
                }
            }
        }
    }
    findings
}

/// Returns the targets of `](target)` in a line that are files of the project.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split_once(')')?.0;
        let path = target.split_once('#').map_or(target, |(path, _)| path);
        let outside = path.contains("://") || path.starts_with("mailto:");
        (!path.is_empty() && !outside).then_some(path)
    })
}

fn resolves(tree: &Tree, page: &str, target: &str) -> bool {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    let folder = format!("{path}/");
    path.is_empty() || tree.paths.iter().any(|other| *other == path || other.starts_with(&folder))
}

/// The pages in `docs/adr/` are numbered from 0001 without gaps or duplicates.
pub(super) fn decisions(tree: &Tree) -> Vec<Finding> {
    let mut names: Vec<&str> =
        tree.paths.iter().filter_map(|path| path.strip_prefix("docs/adr/")).collect();
    names.sort_unstable();
    let mut findings = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let expected = format!("{:04}-", at + 1);
        if !name.starts_with(&expected) {
            findings.push(Finding {
                place: format!("docs/adr/{name}"),
                what: format!("its number should be {expected}"),
                fix: "give each decision the next free number; never reuse one",
            });
            break;
        }
    }
    findings
}

/// Each test named in the list of hazards must exist.
pub(super) fn hazards(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path == "docs/hazards.md") {
        for (at, line) in file.text.lines().enumerate() {
            for name in line.split('`').skip(1).step_by(2).filter(|name| is_test_name(name)) {
                let head = format!("fn {name}(");
                if !tree.rust().any(|file| file.text.contains(&head)) {
                    findings.push(Finding {
                        place: file.place(at + 1),
                        what: format!("there is no test `{name}`"),
                        fix: "name the test that proves it now, or write it",
                    });
                }
            }
        }
    }
    findings
}

/// Returns whether a name is a sentence in snake case; other words in backticks are shorter.
fn is_test_name(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.matches('_').count() >= 2 && name.chars().all(is_word)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{places, tree};
    use super::*;

    #[test]
    fn a_link_is_read_from_its_page() {
        let page = "[a](b.md) [b](../README.md#top) [c](https://example.org/x) [d](#here)\n\
                    [e](nowhere.md) [f](../../outside.md)\n";
        let tree = tree(&[("docs/a.md", page), ("docs/b.md", ""), ("README.md", "[d](docs/)")]);
        assert_eq!(places(&links(&tree)), ["docs/a.md:2", "docs/a.md:2"]);
    }

    #[test]
    fn a_hazard_names_a_test_that_exists() {
        let page = "| a | `it_is_here` and `item_max` |\n| b | `it_was_here` |\n";
        let tree = tree(&[("docs/hazards.md", page), ("a.rs", "fn it_is_here() {}\n")]);
        assert_eq!(places(&hazards(&tree)), ["docs/hazards.md:2"]);
    }

    #[test]
    fn decisions_are_numbered_without_a_gap() {
        let fine = tree(&[("docs/adr/0001-a.md", ""), ("docs/adr/0002-b.md", "")]);
        assert_eq!(decisions(&fine), []);
        let gap = tree(&[("docs/adr/0001-a.md", ""), ("docs/adr/0003-b.md", "")]);
        assert_eq!(places(&decisions(&gap)), ["docs/adr/0003-b.md"]);
        let twin = tree(&[("docs/adr/0001-a.md", ""), ("docs/adr/0001-b.md", "")]);
        assert_eq!(places(&decisions(&twin)), ["docs/adr/0001-b.md"]);
    }
}
