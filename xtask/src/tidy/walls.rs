//! Rules about dependencies: between crates, inside the two large ones, and on the outside world.
//!
//! The tables here are the picture in `ARCHITECTURE.md` in a form that a program can read.

use super::{Finding, Tree, without_comment};

/// The crates of ours that each crate may use.
const CRATES: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("shard", &[]),
    ("cache", &[]),
    ("metrics", &[]),
    ("sys", &[]),
    ("proxy", &["proto", "shard", "cache", "metrics"]),
    ("quickack", &["proxy", "proto", "shard", "cache", "metrics", "sys"]),
    ("testkit", &["proxy", "proto", "shard", "cache", "metrics"]),
    ("fuzz", &["testkit", "proxy", "proto", "shard", "cache", "metrics"]),
    ("bench", &[]),
    ("xtask", &["bench"]),
];

/// Crates that only tests may use.
const FOR_TESTS: &[&str] = &["testkit"];

/// A crate whose modules are in layers: a module may use only modules in the layers below its own.
struct LayeredCrate {
    /// The folder that holds its modules.
    source: &'static str,
    layers: &'static [&'static [&'static str]],
}

const LAYERED_CRATES: &[LayeredCrate] = &[
    LayeredCrate {
        source: "crates/proxy/src/",
        layers: &[
            &["lib"],
            &["flow"],
            &["pipelines"],
            &["link", "pool", "timers", "memory"],
            &["batch", "client", "outliers", "conn_key", "script_cache"],
            &["request"],
            &["plan", "fault", "buffer", "id", "random", "room"],
            &["limits", "users"],
            &["bug"],
        ],
    },
    LayeredCrate {
        source: "crates/quickack/src/",
        layers: &[
            &["main"],
            &["cli"],
            &["master"],
            &["worker", "cache_server"],
            &["address_space", "admin", "event", "stats"],
            &["ipc"],
            &["scoreboard", "config"],
            &["log"],
            &["error"],
        ],
    },
];

/// Crates that take bytes and time and return bytes and actions.
const PURE: &[&str] = &["proto", "shard", "cache", "metrics", "proxy"];

/// The modules through which a crate could reach the outside world.
const WORLD: &[&str] = &[
    "std::net",
    "std::fs",
    "std::env",
    "std::thread",
    "std::process",
    "std::time::Instant",
    "SystemTime",
    "Instant::now",
    "thread::sleep",
    "RandomState",
    "println!",
    "eprintln!",
];

/// Checks that dependencies between crates follow the picture.
pub(super) fn crates(tree: &Tree) -> Vec<Finding> {
    let packages = tree.metadata["packages"].as_array().map_or(&[][..], |all| all);
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            findings.push(Finding {
                place: name.to_string(),
                what: "is no crate of the picture".into(),
                fix: "give it a row in CRATES (xtask/src/tidy/walls.rs) and in ARCHITECTURE.md",
            });
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            let in_tests = dependency["kind"] == "dev";
            let fine = allowed.contains(&used) || in_tests && FOR_TESTS.contains(&used);
            if ours.contains(&used) && used != name && !fine {
                findings.push(Finding {
                    place: format!("{name} -> {used}"),
                    what: "an arrow that the picture does not have".into(),
                    fix: "move the code to the side that may use it, or argue the arrow in an ADR",
                });
            }
        }
    }
    findings
}

/// Checks that dependencies between the modules of a crate go down.
pub(super) fn modules(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for layered in LAYERED_CRATES {
        for file in tree.rust() {
            let Some(inside) = file.path.strip_prefix(layered.source) else { continue };
            let module = inside.split('/').next().unwrap_or_default().trim_end_matches(".rs");
            let Some(layer) = layered.layer(module) else {
                findings.push(Finding {
                    place: file.path.clone(),
                    what: format!("module `{module}` is in no layer"),
                    fix: "add it to a layer in LAYERED_CRATES (xtask/src/tidy/walls.rs)",
                });
                continue;
            };
            for (at, line) in file.product_lines() {
                for used in uses(without_comment(line)).filter(|used| *used != module) {
                    if layered.layer(used).is_some_and(|other| other <= layer) {
                        findings.push(Finding {
                            place: file.place(at),
                            what: format!("`{module}` uses `{used}`, which is not below it"),
                            fix: "return an outcome and let the layer above decide",
                        });
                    }
                }
            }
        }
    }
    findings
}

impl LayeredCrate {
    fn layer(&self, module: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.contains(&module))
    }
}

/// Returns the modules that a line names, as `crate::module` or as `crate::{module, module}`.
fn uses(line: &str) -> impl Iterator<Item = &str> {
    line.split("crate::").skip(1).flat_map(|rest| {
        let group = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let names = group.map_or(rest, |(names, _)| names).split(", ");
        names.take(if group.is_some() { usize::MAX } else { 1 }).map(|name| {
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            &name[..end]
        })
    })
}

/// Checks that pure crates have no socket, clock, thread, file, log or randomness, even in their
/// tests.
pub(super) fn purity(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let pure = |name: &&str| file.path.starts_with(&format!("crates/{name}/src/"));
        if !PURE.iter().any(pure) {
            continue;
        }
        for (at, line) in file.product_lines() {
            for word in WORLD.iter().filter(|word| without_comment(line).contains(**word)) {
                findings.push(Finding {
                    place: file.place(at),
                    what: format!("`{word}` in a pure crate"),
                    fix: "take it as an argument, or return an action for the program to do",
                });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::{places, tree};
    use super::*;

    #[test]
    fn a_pure_crate_has_no_clock() {
        let clock = "//! Fine: std::net in a comment.\nlet now = std::time::Instant::now();\n";
        let tree = tree(&[("crates/proxy/src/a.rs", clock), ("crates/sys/src/a.rs", clock)]);
        let findings = purity(&tree);
        assert_eq!(places(&findings)[0], "crates/proxy/src/a.rs:2");
        assert!(findings.iter().all(|finding| finding.place == "crates/proxy/src/a.rs:2"));
    }

    #[test]
    fn a_module_uses_only_what_is_below() {
        let tree = tree(&[
            ("crates/proxy/src/flow.rs", "use crate::link;\nuse crate::limits;\n"),
            (
                "crates/proxy/src/link/mod.rs",
                "use crate::pipelines::Pipelines;\nuse crate::link::X;\n",
            ),
            ("crates/proxy/src/limits.rs", "use crate::{Time, flow};\n"),
            ("crates/proxy/src/attic.rs", ""),
        ]);
        let found = modules(&tree);
        let expected = [
            "crates/proxy/src/link/mod.rs:1",
            "crates/proxy/src/limits.rs:1",
            "crates/proxy/src/attic.rs",
        ];
        assert_eq!(places(&found), expected);
    }

    #[test]
    fn an_arrow_between_crates_needs_a_row() {
        let package = |name: &str, used: &str, kind: &str| {
            let kind = if kind.is_empty() { serde_json::Value::Null } else { kind.into() };
            serde_json::json!({"name": name, "dependencies": [{"name": used, "kind": kind}]})
        };
        let packages = vec![
            package("proto", "proxy", ""),
            package("proxy", "proto", ""),
            package("quickack", "testkit", "dev"),
            package("testkit", "serde", ""),
            package("attic", "proto", ""),
        ];
        let tree =
            Tree { metadata: serde_json::json!({ "packages": packages }), ..Tree::default() };
        assert_eq!(places(&crates(&tree)), ["proto -> proxy", "attic"]);
    }
}
