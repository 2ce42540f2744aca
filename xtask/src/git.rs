//! Answers of git about this checkout.

use std::process::Command;

use crate::root;

/// Runs git in the workspace; None if it fails.
pub fn ask(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the short name of the commit, with `+` if a file was changed since.
pub fn state() -> Result<String, String> {
    let commit = ask(&["rev-parse", "--short", "HEAD"]).ok_or("git names no commit")?;
    let changes = ask(&["status", "--porcelain"]).ok_or("git names no changes")?;
    Ok(format!("{}{}", commit.trim(), if changes.is_empty() { "" } else { "+" }))
}
