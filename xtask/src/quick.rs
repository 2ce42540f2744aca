//! What `cargo xtask test quick` runs of the large steps: the unit tests of the crates that were
//! changed and of those above them, a short run of the simulator, one test of each module with real
//! clients and servers, and all of the modules that were changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::{git, nextest};

/// Seeds that the simulator plays.
pub const SEEDS: (&str, &str) = ("QUICKACK_SEEDS", "500");

/// Returns nextest's expression for the unit tests; for those of `all` packages where the longest
/// time is measured.
pub fn unit(all: bool) -> String {
    let mut filter = "binary(simulator)".to_string();
    let packages = if all { packages_of("Cargo.lock").into_iter().collect() } else { changed() };
    for package in packages {
        filter.push_str(&format!(" or rdeps(={package})"));
    }
    filter
}

/// Returns nextest's expression for the tests with real clients and servers.
pub fn integration() -> Result<String, String> {
    let names = nextest::list()?;
    let firsts = firsts(&names).map(|name| format!("test(={name})"));
    let changed = changed_files().into_iter().filter_map(|file| module_of(&file));
    let changed = changed.map(|module| format!("(test(/^{module}::/) and not test(/^stall::/))"));
    Ok(firsts.chain(changed).collect::<Vec<_>>().join(" or "))
}

/// Returns the module of a file of tests with real programs.
fn module_of(file: &str) -> Option<String> {
    let module = file.strip_prefix("crates/quickack/tests/it/")?.strip_suffix(".rs")?;
    Some(module.strip_suffix("/mod").unwrap_or(module).replace('/', "::"))
}

/// The packages with changes since the branch left `main`, committed or not.
fn changed() -> BTreeSet<String> {
    changed_files().iter().flat_map(|file| packages_of(file)).collect()
}

fn changed_files() -> BTreeSet<String> {
    let base =
        ["origin/main", "main"].iter().find_map(|main| git::ask(&["merge-base", "HEAD", main]));
    let base = base.unwrap_or_else(|| "HEAD".to_string());
    let files = [
        git::ask(&["diff", "--name-only", base.trim()]),
        git::ask(&["ls-files", "--others", "--exclude-standard"]),
    ];
    files.iter().flatten().flat_map(|text| text.lines()).map(str::to_string).collect()
}

/// Returns the packages that a file belongs to; what is the workspace's belongs to all.
fn packages_of(file: &str) -> Vec<String> {
    const ABOVE_ALL: &[&str] = &["sys", "proto", "shard", "cache", "metrics", "http"];
    let mut folders = file.split('/');
    match (folders.next(), folders.next(), folders.next()) {
        (Some("crates"), Some(package), Some(_)) => vec![package.to_string()],
        (Some(package @ ("testkit" | "fuzz" | "bench" | "xtask")), Some(_), _) => {
            vec![package.to_string()]
        }
        (Some("Cargo.lock" | "Cargo.toml" | "rust-toolchain.toml"), None, _)
        | (Some(".cargo"), Some(_), _) => {
            ABOVE_ALL.iter().map(|package| package.to_string()).collect()
        }
        // The program's tests compare the reference pages with the program.
        (Some("docs"), Some(_), _) => vec!["quickack".to_string()],
        (Some(".config" | ".ci"), Some(_), _) | (Some("CONTRIBUTING.md"), None, _) => {
            vec!["xtask".to_string()]
        }
        _ => Vec::new(),
    }
}

/// Returns the first test of each module.
fn firsts(names: &BTreeSet<String>) -> impl Iterator<Item = &String> {
    let mut firsts = BTreeMap::new();
    for name in names {
        let module = name.rsplit_once("::").map_or("", |(module, _)| module);
        firsts.entry(module).or_insert(name);
    }
    firsts.into_iter().filter(|(module, _)| !module.starts_with("stall")).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_its_package() {
        assert_eq!(packages_of("crates/proxy/src/lib.rs"), ["proxy"]);
        assert_eq!(packages_of("testkit/src/lib.rs"), ["testkit"]);
        assert!(packages_of("Cargo.lock").contains(&"sys".to_string()));
        assert!(packages_of(".cargo/config.toml").contains(&"sys".to_string()));
        assert_eq!(packages_of("docs/reference/errors.md"), ["quickack"]);
        assert_eq!(packages_of(".config/nextest.toml"), ["xtask"]);
        assert!(packages_of("README.md").is_empty());
    }

    #[test]
    fn a_file_of_tests_is_a_module() {
        let module = |file: &str| module_of(&format!("crates/quickack/tests/it/{file}"));
        assert_eq!(module("redis/busy.rs").as_deref(), Some("redis::busy"));
        assert_eq!(module("redis/mod.rs").as_deref(), Some("redis"));
        assert_eq!(module("golden/any-workers.txt"), None);
        assert_eq!(module_of("crates/quickack/src/main.rs"), None);
    }

    #[test]
    fn one_test_of_each_module_is_chosen() {
        let names = ["a::x", "a::y", "b::c::x", "stall::x", "b::x"];
        let names = names.map(str::to_string).into_iter().collect();
        assert_eq!(firsts(&names).collect::<Vec<_>>(), ["a::x", "b::x", "b::c::x"]);
    }
}
