//! `cargo xtask bench`: runs the benchmark, built for release.
//!
//! The generator shares a CPU with the servers, so an unoptimised one would measure itself.

use crate::{Outcome, cargo};

pub fn run(arguments: &[String]) -> Outcome {
    let words = ["run", "--quiet", "--release", "--package", "bench", "--"];
    cargo::run(cargo::command(&words).args(arguments))
}
