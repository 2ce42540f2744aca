//! The tests that run with any number of workers, which the step `four` runs again with four.
//!
//! A test that wants a number says so in its configuration (`workers: 2`). The others take the
//! number of the environment, and one where that has none: then testkit notes the test's name in a
//! folder. The list that is committed is compared with these names after each run of all tests, so
//! no test leaves `four`, or joins it, unseen.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::{Outcome, root};

/// The folder of the names; see `testkit/src/process/quickack.rs`.
pub const VARIABLE: &str = "QUICKACK_ANY_WORKERS";
const LIST: &str = "crates/quickack/tests/it/golden/any-workers.txt";

/// Makes an empty folder for the names.
pub fn begin() -> Result<String, String> {
    let folder = root().join("target/any-workers");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder.to_string_lossy().into_owned())
}

/// Compares the names with the list, or writes the list anew.
pub fn compare(folder: &str) -> Outcome {
    let entries = fs::read_dir(folder).map_err(|error| format!("{folder}: {error}"))?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Tests that measure milliseconds are run alone, in a step of their own.
    let noted: BTreeSet<String> = names.filter(|name| !name.starts_with("stall::")).collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let text: String = noted.iter().map(|name| format!("{name}\n")).collect();
        return fs::write(list(), text).map_err(|error| format!("{LIST}: {error}"));
    }
    let listed = read()?;
    let missing: Vec<&String> = noted.difference(&listed).collect();
    let gone: Vec<&String> = listed.difference(&noted).collect();
    if missing.is_empty() && gone.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{LIST} lacks {missing:?} and has {gone:?}; \
         `UPDATE_GOLDEN=1 cargo xtask test it` writes it anew"
    ))
}

/// Returns nextest's expression for the tests of the list.
pub fn filter() -> Result<String, String> {
    let tests: Vec<String> = read()?.iter().map(|name| format!("test(={name})")).collect();
    Ok(format!("({})", tests.join(" or ")))
}

fn read() -> Result<BTreeSet<String>, String> {
    let text = fs::read_to_string(list()).map_err(|error| format!("{LIST}: {error}"))?;
    Ok(text.lines().map(str::to_string).collect())
}

fn list() -> PathBuf {
    root().join(LIST)
}
