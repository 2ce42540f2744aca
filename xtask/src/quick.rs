//! What `cargo xtask test quick` runs of the large steps: the unit tests of the crates that were
//! changed and of those above them, a short run of the simulator, and one test of each module with
//! real clients and servers.

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
    let tests: Vec<String> = firsts(&names).map(|name| format!("test(={name})")).collect();
    Ok(tests.join(" or "))
}

/// The packages with changes since the branch left `main`, committed or not.
fn changed() -> BTreeSet<String> {
    let base =
        ["origin/main", "main"].iter().find_map(|main| git::ask(&["merge-base", "HEAD", main]));
    let base = base.unwrap_or_else(|| "HEAD".to_string());
    let files = [
        git::ask(&["diff", "--name-only", base.trim()]),
        git::ask(&["ls-files", "--others", "--exclude-standard"]),
    ];
    files.iter().flatten().flat_map(|text| text.lines()).flat_map(packages_of).collect()
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
    fn one_test_of_each_module_is_chosen() {
        let names = ["a::x", "a::y", "b::c::x", "stall::x", "b::x"];
        let names = names.map(str::to_string).into_iter().collect();
        assert_eq!(firsts(&names).collect::<Vec<_>>(), ["a::x", "b::x", "b::c::x"]);
    }
}
