//! Tests that fail in ways of which they can say nothing, and one that passes.

use std::process::{Command, abort};

#[test]
fn a_passes() {}

#[test]
fn b_waits_for_ever() {
    let _ = Command::new("sleep").arg("1005").status();
}

#[test]
fn c_aborts() {
    abort();
}
