//! Tests that fail and end, and one that passes.

use std::process::Command;

#[test]
fn d_leaves_a_process_behind() {
    let _ = Command::new("setsid").args(["sleep", "1006"]).spawn();
}

#[test]
fn e_fails() {
    panic!("as it is meant to");
}

#[test]
fn f_passes() {}
