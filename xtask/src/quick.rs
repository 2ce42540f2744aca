//! What `cargo xtask test quick` runs of the large steps: the unit tests of the crates that were
//! changed and of those above them, a short run of the simulator, one test of each module with real
//! clients and servers, and all of the modules that were changed, as far as these are quick.

use std::collections::{BTreeMap, BTreeSet};

use crate::{git, nextest};

/// Seeds that the simulator plays.
pub const SEEDS: (&str, &str) = ("QUICKACK_SEEDS", "500");

/// Returns nextest's expression for the unit tests; for those of `all` packages where the longest
/// time is measured.
pub fn unit(all: bool) -> Result<String, String> {
    let mut filter = "binary(simulator)".to_string();
    let packages = if all { packages_of("Cargo.lock").into_iter().collect() } else { changed()? };
    for package in packages {
        filter.push_str(&format!(" or rdeps(={package})"));
    }
    Ok(filter)
}

/// Modules of which a test may take minutes.
const LONG: &[&str] = &[
    "differential::",
    "outage::",
    "peers::clients::",
    "pipelines::clients::",
    "quotas::",
    "redis::busy::",
    "redis::clients::",
    "redis::differential::",
    "redis::large::",
    "rings::",
    "stall::",
];
/// So many tests of changed modules are run: the loop is to take three minutes at most.
const CHANGED_MAX: usize = 60;

/// Returns nextest's expression for the tests with real clients and servers.
pub fn integration() -> Result<String, String> {
    let modules = changed_files(&git::ask)?.iter().filter_map(|file| module_of(file)).collect();
    let names = nextest::list()?;
    let (modules, shared) = with_tests(&names, modules);
    if !shared.is_empty() {
        println!(
            "changed for all who share it: {} (of each module one test is run; `cargo xtask test \
             it` has all)",
            shared.join(" ")
        );
    }
    let (whole, left) = whole_modules(&names, modules);
    if !left.is_empty() {
        println!("one test each, not all: {} (`cargo xtask test it` has all)", left.join(" "));
    }
    let firsts = firsts(&names).map(|name| format!("test(={name})"));
    let whole = whole.iter().map(|module| format!("test(/^{module}/)"));
    Ok(firsts.chain(whole).collect::<Vec<_>>().join(" or "))
}

/// Parts changed modules into those with tests and those that only help others.
fn with_tests(
    names: &BTreeSet<String>,
    modules: BTreeSet<String>,
) -> (BTreeSet<String>, Vec<String>) {
    let has_tests = |module: &String| {
        let start = format!("{module}::");
        names.iter().any(|name| name.starts_with(&start))
    };
    let (with, without): (Vec<String>, Vec<String>) = modules.into_iter().partition(has_tests);
    (with.into_iter().collect(), without)
}

/// Parts changed modules into those that are run whole and those that are not.
fn whole_modules(
    names: &BTreeSet<String>,
    modules: BTreeSet<String>,
) -> (Vec<String>, Vec<String>) {
    let mut room = CHANGED_MAX;
    modules.into_iter().map(|module| format!("{module}::")).partition(|module| {
        let count = names.iter().filter(|name| name.starts_with(module)).count();
        let fits = count <= room
            && !LONG.iter().any(|long| long.starts_with(module) || module.starts_with(long));
        room -= if fits { count } else { 0 };
        fits
    })
}

/// Returns the module of a file of tests with real programs.
fn module_of(file: &str) -> Option<String> {
    let module = file.strip_prefix("crates/quickack/tests/it/")?.strip_suffix(".rs")?;
    Some(module.strip_suffix("/mod").unwrap_or(module).replace('/', "::"))
}

/// The packages with changes since the branch left `main`, committed or not.
fn changed() -> Result<BTreeSet<String>, String> {
    Ok(changed_files(&git::ask)?.iter().flat_map(|file| packages_of(file)).collect())
}

/// If git does not know, everything may have changed: that is an error, and not no change.
fn changed_files(git: &dyn Fn(&[&str]) -> Option<String>) -> Result<BTreeSet<String>, String> {
    const INSTEAD: &str = "so nobody knows what was changed: `cargo xtask test` runs everything";
    let base = MAINS.iter().find_map(|main| git(&["merge-base", "HEAD", main]));
    let base = base.ok_or_else(|| {
        format!("git finds no commit that HEAD shares with {}, {INSTEAD}", MAINS.join(" or "))
    })?;
    let lists = [
        &["diff", "--name-only", base.trim()][..],
        &["ls-files", "--others", "--exclude-standard"],
    ];
    let mut files = BTreeSet::new();
    for list in lists {
        let text = git(list).ok_or_else(|| format!("git {} fails, {INSTEAD}", list.join(" ")))?;
        files.extend(text.lines().map(str::to_string));
    }
    Ok(files)
}

/// A branch has begun at one of these.
const MAINS: [&str; 2] = ["origin/main", "main"];

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
    fn changed_modules_are_run_whole_while_that_is_quick() {
        let names = (0..50).flat_map(|n| [format!("a::{n}"), format!("b::{n}"), format!("c::{n}")]);
        let names = names.take(130).chain(["redis::busy::x".to_string()]).collect();
        let modules = |all: &[&str]| all.iter().map(|one| one.to_string()).collect();
        let (whole, left) = whole_modules(&names, modules(&["a", "b", "redis::busy"]));
        assert_eq!((whole, left), (vec!["a::".into()], vec!["b::".into(), "redis::busy::".into()]));
        // `redis` has them all.
        assert_eq!(whole_modules(&names, modules(&["redis"])).1, ["redis::"]);
    }

    #[test]
    fn what_all_modules_share_is_not_taken_for_one_that_was_run() {
        let names = ["a::x", "ab::x", "b::c::x"].map(str::to_string).into();
        let modules = ["a", "b", "b::harness", "harness", "main"].map(str::to_string).into();
        let (with, without) = with_tests(&names, modules);
        assert_eq!(with.into_iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(without, ["b::harness", "harness", "main"]);
    }

    #[test]
    fn what_git_does_not_know_is_not_taken_for_no_change() {
        // Answers as git does where one of its commands fails.
        let changed = |broken: &str| {
            let git = |words: &[&str]| {
                let line = words.join(" ");
                let answer = match words[0] {
                    "merge-base" => "abc\n",
                    "diff" => "a.rs\nb.rs\n",
                    _ => "new.rs\n",
                };
                (!line.starts_with(broken)).then(|| answer.to_string())
            };
            changed_files(&git)
        };
        let all = Ok(["a.rs", "b.rs", "new.rs"].map(str::to_string).into());
        assert_eq!(changed("nothing"), all);
        assert_eq!(changed("merge-base HEAD origin/main"), all, "there is `main`");
        assert!(changed("merge-base").unwrap_err().contains("origin/main or main, so nobody"));
        assert!(changed("diff").unwrap_err().starts_with("git diff --name-only abc fails"));
        assert!(changed("ls-files").is_err());
    }

    #[test]
    fn one_test_of_each_module_is_chosen() {
        let names = ["a::x", "a::y", "b::c::x", "stall::x", "b::x"];
        let names = names.map(str::to_string).into_iter().collect();
        assert_eq!(firsts(&names).collect::<Vec<_>>(), ["a::x", "b::x", "b::c::x"]);
    }
}
