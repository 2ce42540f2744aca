//! Tells the program what it is built from: commit, profile, target and compiler.
//!
//! Only optimised builds ask git for the commit: a build for tests would otherwise be made anew
//! after each commit.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=QUICKACK_COMMIT");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let profile = variable("PROFILE");
    let commit = match (variable("QUICKACK_COMMIT"), profile.as_str()) {
        (commit, _) if !commit.is_empty() => Some(commit),
        (_, "release") => commit_of_git(),
        _ => None,
    };
    let compiler = said(Command::new(variable("RUSTC")).arg("--version"));
    let compiler = compiler.map(|text| text.split(' ').take(2).collect::<Vec<_>>().join(" "));
    let build = [Some(profile), Some(variable("TARGET")), compiler];
    let build: Vec<String> = build.into_iter().flatten().collect();
    println!("cargo::rustc-env=QUICKACK_COMMIT={}", commit.unwrap_or("no commit".into()));
    println!("cargo::rustc-env=QUICKACK_BUILD={}", build.join(", "));
}

/// The commit, marked if files differ from it. A package without a repository has none.
fn commit_of_git() -> Option<String> {
    for name in ["HEAD", "index"] {
        if let Some(path) = said(Command::new("git").args(["rev-parse", "--git-path", name])) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let described = ["describe", "--always", "--dirty", "--exclude=*", "--abbrev=10"];
    said(Command::new("git").args(described)).map(|commit| format!("commit {commit}"))
}

fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_string())
}
