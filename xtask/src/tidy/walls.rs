//! Rules about dependencies: between crates, inside the two large ones, and on the outside world.
//!
//! The tables here are the picture in `ARCHITECTURE.md` in a form that a program can read.

use std::collections::HashSet;

use super::{File, Finding, Tree, without_comment};
use crate::source::{self, inherent_impls, items, tokens};

/// The crates of ours that each crate may use.
const CRATES: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("shard", &[]),
    ("cache", &[]),
    ("metrics", &[]),
    ("http", &[]),
    ("sys", &[]),
    ("proxy", &["proto", "shard", "cache", "metrics"]),
    ("quickack", &["proxy", "proto", "shard", "cache", "metrics", "http", "sys"]),
    ("testkit", &["proxy", "proto", "shard", "cache", "metrics"]),
    ("fuzz", &["testkit", "proxy", "proto", "shard", "cache", "metrics", "http"]),
    ("bench", &["testkit"]),
    ("xtask", &["bench", "testkit"]),
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
        layers: &[&["lib"], &["proxy"], &["client", "server"], &["route"], &["base"], &["bug"]],
    },
    LayeredCrate {
        source: "crates/quickack/src/",
        layers: &[
            &["main"],
            &["cli"],
            &["master"],
            &["worker", "cache_server", "http_server", "log_writer", "resolver"],
            &["address_space", "admin", "event", "stats"],
            &["ipc"],
            &["scoreboard", "config"],
            &["log"],
            &["error", "version"],
        ],
    },
];

/// A half of the data plane: the modules that may not know of each other, nor of `proxy.rs`.
struct Half {
    /// The folder or file with this path and `/` or `.rs` behind it.
    source: &'static str,
    /// The type that owns everything in it. Its fields are private.
    owner: &'static str,
    /// Types that are not named in it.
    strangers: &'static [&'static str],
}

const HALVES: &[Half] = &[
    Half { source: "crates/proxy/src/client", owner: "Clients", strangers: &["Servers", "Proxy"] },
    Half { source: "crates/proxy/src/server", owner: "Servers", strangers: &["Clients", "Proxy"] },
];

/// Crates that take bytes and time and return bytes and actions.
const PURE: &[&str] = &["proto", "shard", "cache", "metrics", "http", "proxy"];

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
        for (file, module, inside) in layered.files(tree) {
            let Some(layer) = layered.layer(module) else {
                findings.push(Finding {
                    place: file.path.clone(),
                    what: format!("module `{module}` is in no layer"),
                    fix: "add it to a layer in LAYERED_CRATES (xtask/src/tidy/walls.rs)",
                });
                continue;
            };
            for path in source::paths(&tokens(&file.product())) {
                let used = top_module(&path.segments, depth(inside)).filter(|used| *used != module);
                let Some(used) = used else { continue };
                if layered.layer(used).is_some_and(|other| other <= layer) {
                    findings.push(Finding {
                        place: file.place(path.line),
                        what: format!("`{module}` uses `{used}`, which is not below it"),
                        fix: "return an outcome and let the layer above decide",
                    });
                }
            }
        }
    }
    findings
}

/// Checks that the methods of a type stand in the module that defines it: in another module they
/// could call what is above that module, and no `use` would show it.
pub(super) fn methods(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for layered in LAYERED_CRATES {
        let files: Vec<_> =
            layered.files(tree).map(|(file, module, _)| (file, module, file.product())).collect();
        let mut types = HashSet::new();
        for (_, module, text) in &files {
            let tokens = tokens(text);
            for keyword in ["struct", "enum", "union"] {
                types.extend(items(&tokens, keyword).iter().map(|item| (*module, item.name)));
            }
        }
        for (file, module, text) in &files {
            for (name, line) in inherent_impls(&tokens(text)) {
                if !types.contains(&(*module, name)) {
                    findings.push(Finding {
                        place: file.place(line),
                        what: format!("methods of `{name}`, which `{module}` does not define"),
                        fix: "put them beside the type, or make them functions of this module",
                    });
                }
            }
        }
    }
    findings
}

/// Checks that neither half of the data plane can call the other, or `proxy.rs`, or be reached
/// into.
pub(super) fn halves(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for half in HALVES {
        let mut owners = 0;
        let in_half = |file: &&File| {
            let inside = file.path.strip_prefix(half.source);
            inside.is_some_and(|inside| inside == ".rs" || inside.starts_with('/'))
        };
        for file in tree.rust().filter(in_half) {
            let tokens = tokens(&file.text);
            let strangers = tokens.iter().filter(|token| half.strangers.contains(&token.text));
            findings.extend(strangers.map(|token| Finding {
                place: file.place(token.line),
                what: format!("`{}` in the half of `{}`", token.text, half.owner),
                fix: "return an outcome; `proxy.rs` makes the calls between the halves",
            }));
            for owner in items(&tokens, "struct")
                .iter()
                .filter(|item| item.name == half.owner && !item.body.is_empty())
            {
                owners += 1;
                let open = owner.body.iter().filter(|token| token.text == "pub");
                findings.extend(open.map(|token| Finding {
                    place: file.place(token.line),
                    what: format!("a field of `{}` that others see", half.owner),
                    fix: "make it private, and give the half a method",
                }));
            }
        }
        if owners != 1 {
            findings.push(Finding {
                place: half.source.to_string(),
                what: format!("{owners} structs `{}` with named fields", half.owner),
                fix: "correct HALVES (xtask/src/tidy/walls.rs)",
            });
        }
    }
    findings
}

impl LayeredCrate {
    fn layer(&self, module: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.contains(&module))
    }

    /// Lists the files, each with its module at the top of the crate and its path in the crate.
    fn files<'t>(&self, tree: &'t Tree) -> impl Iterator<Item = (&'t File, &'t str, &'t str)> {
        tree.rust().filter_map(|file| {
            let inside = file.path.strip_prefix(self.source)?;
            let module = inside.split('/').next().unwrap_or_default().trim_end_matches(".rs");
            Some((file, module, inside))
        })
    }
}

/// Returns how many modules a file is below the root of its crate.
fn depth(inside: &str) -> usize {
    let folders = inside.matches('/').count();
    if inside.ends_with("mod.rs") { folders } else { folders + 1 }
}

/// Returns the module at the top of the crate that a path of a module this deep leads to, if the
/// path goes by the root.
fn top_module<'t>(segments: &[&'t str], depth: usize) -> Option<&'t str> {
    let ups = segments.iter().take_while(|segment| **segment == "super").count();
    let root = match *segments.first()? {
        "crate" => 1,
        "super" if ups == depth => depth,
        _ => return None,
    };
    segments.get(root).copied()
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
            ("crates/proxy/src/proxy.rs", "use crate::client;\nuse crate::base::limits;\n"),
            (
                "crates/proxy/src/client/a/b.rs",
                "use crate::server::Servers;\nuse crate::client::X;\nuse super::super::route;\n",
            ),
            ("crates/proxy/src/base.rs", "use crate::{\n    Time,\n    route::{a, b},\n};\n"),
            ("crates/proxy/src/base/pool.rs", "fn a() { super::super::client::a(); }\n"),
            ("crates/proxy/src/server/mod.rs", "// crate::proxy\nfn a() { super::proxy::b(); }\n"),
            ("crates/proxy/src/attic.rs", ""),
        ]);
        let found = modules(&tree);
        let expected = [
            "crates/proxy/src/client/a/b.rs:1",
            "crates/proxy/src/base.rs:3",
            "crates/proxy/src/base.rs:3",
            "crates/proxy/src/base/pool.rs:1",
            "crates/proxy/src/server/mod.rs:2",
            "crates/proxy/src/attic.rs",
        ];
        assert_eq!(places(&found), expected);
    }

    #[test]
    fn methods_stand_in_the_module_of_their_type() {
        let servers = "pub struct Servers {}\nenum Body {}\nimpl super::client::Clients {}\n";
        let tree = tree(&[
            ("crates/proxy/src/client.rs", "pub struct Clients {}\nimpl Clients {}\n"),
            ("crates/proxy/src/client/body.rs", "struct Body<'a>(&'a [u8]);\n"),
            ("crates/proxy/src/client/take.rs", "impl Clients {}\nimpl Body<'_> {}\n"),
            ("crates/proxy/src/server.rs", servers),
            ("crates/proxy/src/server/pair.rs", "impl Body {}\nimpl From<A> for Clients {}\n"),
            ("crates/proxy/src/proxy/reply.rs", "impl<'a> Servers {}\n// impl Clients {}\n"),
            ("crates/sys/src/a.rs", "impl Elsewhere {}\n"),
        ]);
        let expected = ["crates/proxy/src/server.rs:3", "crates/proxy/src/proxy/reply.rs:1"];
        assert_eq!(places(&methods(&tree)), expected);
    }

    #[test]
    fn no_half_names_the_other() {
        let tree = tree(&[
            ("crates/proxy/src/client.rs", "//! Not Servers.\nstruct Clients { a: ServersGone }\n"),
            ("crates/proxy/src/client/a.rs", "fn a(servers: &mut crate::Servers) {}\n"),
            ("crates/proxy/src/client/tests.rs", "\nfn b(proxy: Proxy) {}\n"),
            ("crates/proxy/src/server.rs", "struct Servers {\n a: u8,\n}\n"),
            ("crates/proxy/src/server/a.rs", "impl b::Clients {}\nlet a = \"Clients\";\n"),
            ("crates/proxy/src/proxy.rs", "struct Proxy { a: Clients, b: Servers }\n"),
        ]);
        let expected = [
            "crates/proxy/src/client/a.rs:1",
            "crates/proxy/src/client/tests.rs:2",
            "crates/proxy/src/server/a.rs:1",
        ];
        assert_eq!(places(&halves(&tree)), expected);
    }

    #[test]
    fn the_fields_of_a_half_are_private() {
        let clients = "struct Clients {\n a: u8,\n pub b: u8,\n pub(crate) c: [u8; 2],\n}\n\
            pub struct Other { pub a: u8 }\n";
        let tree = tree(&[
            ("crates/proxy/src/client.rs", clients),
            ("crates/proxy/src/server.rs", "pub struct Servers(pub u8);\n"),
        ]);
        let expected = [
            "crates/proxy/src/client.rs:3",
            "crates/proxy/src/client.rs:4",
            "crates/proxy/src/server",
        ];
        assert_eq!(places(&halves(&tree)), expected);
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
