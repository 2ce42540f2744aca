//! Answers of git about this checkout.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;

use crate::root;

/// Runs git in the workspace; None if it fails.
pub fn ask(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the short name of the commit, and a hash of what was changed since, if anything was.
pub fn state() -> Result<String, String> {
    let commit = ask(&["rev-parse", "--short", "HEAD"]).ok_or("git names no commit")?;
    let [files, lines] = [&["status", "--porcelain"][..], &["diff", "HEAD"]].map(ask);
    let changes = files.zip(lines).ok_or("git names no changes")?;
    if changes.0.is_empty() {
        return Ok(commit.trim().to_string());
    }
    let mut hasher = DefaultHasher::new();
    changes.hash(&mut hasher);
    let new = ask(&["ls-files", "--others", "--exclude-standard"]).unwrap_or_default();
    new.lines().for_each(|file| fs::read(root().join(file)).ok().hash(&mut hasher));
    Ok(format!("{}+{:08x}", commit.trim(), hasher.finish() as u32))
}
