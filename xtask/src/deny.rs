//! The step `deny`: licenses, sources and duplicates of the dependencies, by cargo-deny and the
//! rules in `deny.toml`. Advisories are left to a release: their list comes over the network.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{Outcome, cargo, peers, root};

const NAME: &str = "cargo-deny";
const CHECKS: &[&str] = &["check", "bans", "licenses", "sources"];

pub fn step() -> Outcome {
    let programs = [root().join(".venv/bin").join(NAME), PathBuf::from(NAME)];
    let here = programs.iter().find(|one| peers::quietly(Command::new(one).arg("--version")));
    let program = here.ok_or_else(|| {
        format!("{NAME} is not here; run `cargo install --locked {NAME}` (RELEASING.md)")
    })?;
    let mut command = Command::new(program);
    cargo::run(command.args(CHECKS).current_dir(root()).stdin(Stdio::null()))
}
