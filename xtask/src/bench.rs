//! `cargo xtask bench`: hands over to the benchmark, built for release.
//!
//! The generator shares a CPU with the servers, so an unoptimised one would measure itself.

use std::process::{Command, ExitCode};

pub fn run(args: &[String]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--package", "bench", "--"])
        .args(args)
        .status();
    match status {
        Ok(status) => ExitCode::from(status.code().map_or(2, |code| code as u8)),
        Err(error) => {
            eprintln!("xtask: cannot start cargo: {error}");
            ExitCode::from(2)
        }
    }
}
