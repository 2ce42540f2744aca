//! Runs one shard through its stages.
//!
//! cargo-mutants distributes the mutants in the order of the source, one to each shard in turn. So
//! every shard is a sample of the whole crate, and the same tree gives the same shards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Stage, Target, folder};
use crate::{Outcome, cargo};

/// A build that takes longer has a mutant that the compiler cannot finish.
const BUILD_TIMEOUT_S: u32 = 300;

/// One change to the source, and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    pub file: String,
    /// The changed line, without its indentation; line numbers would change with every commit.
    pub text: String,
    /// The column of the change, from 1.
    pub column: u64,
    pub change: String,
    pub fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A test failed, or did not end.
    Noticed,
    /// No test failed.
    Survived,
    /// It does not compile.
    Unviable,
}

impl Mutant {
    pub fn survived(&self) -> bool {
        self.fate == Fate::Survived
    }
}

impl Stage {
    /// Returns the targets, which `cargo test` needs for the build too, and `--` with the rest.
    fn targets_and_words(&self) -> (&'static [&'static str], &'static [&'static str]) {
        let at = self.arguments.iter().position(|word| *word == "--");
        self.arguments.split_at(at.unwrap_or(self.arguments.len()))
    }

    fn profile(&self) -> &'static str {
        if self.optimised { "mutants-optimised" } else { "mutants" }
    }
}

/// Returns the mutants of a shard: from its results, if there are any of this state of the tree.
pub fn shard(
    target: &Target,
    (number, of): (u32, u32),
    tree: &Path,
    state: &str,
    fresh: bool,
) -> Result<Vec<Mutant>, String> {
    let results = folder().join("results");
    fs::create_dir_all(&results).map_err(|error| format!("{}: {error}", results.display()))?;
    let file = results.join(format!("{}.{number}-of-{of}.json", target.name));
    if !fresh && let Some(mutants) = load(&file, state) {
        let name = target.name;
        println!("== {name} {number}/{of}: played before, of {state}; --fresh plays it again");
        return Ok(mutants);
    }
    let mutants = stages(target, (number, of), tree)?;
    store(&file, state, &mutants)?;
    Ok(mutants)
}

/// Plays the mutants of a shard, whether they were played before or not.
pub fn stages(
    target: &Target,
    (number, of): (u32, u32),
    tree: &Path,
) -> Result<Vec<Mutant>, String> {
    println!("== {} {number}/{of}", target.name);
    let dealt = ["--shard".into(), format!("{number}/{of}"), "--sharding=round-robin".into()];
    let mut mutants: Vec<(String, Mutant)> = Vec::new();
    for (at, stage) in target.stages.iter().enumerate() {
        let output = folder().join("output");
        // cargo-mutants would keep an existing folder under another name.
        let _ = fs::remove_dir_all(&output);
        if at == 0 {
            mutants = stage_of(target, stage, &dealt, &output, tree)?;
            continue;
        }
        let survivors = mutants.iter().filter(|(_, mutant)| mutant.survived());
        let survivors: BTreeSet<String> = survivors.map(|(name, _)| name.clone()).collect();
        if survivors.is_empty() {
            break;
        }
        pretend_caught(target, &survivors, &output, tree)?;
        let again: BTreeMap<String, Mutant> =
            stage_of(target, stage, &["--iterate".into()], &output, tree)?.into_iter().collect();
        for (name, mutant) in mutants.iter_mut().filter(|(name, _)| survivors.contains(name)) {
            let told = again.get(name).ok_or_else(|| format!("{name}: it was not played"))?;
            mutant.fate = told.fate;
        }
    }
    Ok(mutants.into_iter().map(|(_, mutant)| mutant).collect())
}

/// Pretends that all but these were caught in an earlier run, since `--iterate` leaves those out.
/// There is no other way to select mutants: not all kinds of mutants have names that patterns can
/// match.
fn pretend_caught(
    target: &Target,
    wanted: &BTreeSet<String>,
    output: &Path,
    tree: &Path,
) -> Outcome {
    let mut command = of_tool(target, tree);
    let listed = command.arg("--list").output().map_err(|error| format!("cargo: {error}"))?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let others: Vec<&str> = listed.lines().filter(|name| !wanted.contains(*name)).collect();
    let folder = output.join("mutants.out");
    let write = |name: &str, text: String| fs::write(folder.join(name), text);
    fs::create_dir_all(&folder)
        .and_then(|()| write("caught.txt", others.join("\n") + "\n"))
        .and_then(|()| write("previously_caught.txt", String::new()))
        .and_then(|()| write("unviable.txt", String::new()))
        .map_err(|error| format!("{}: {error}", folder.display()))
}

fn of_tool(target: &Target, tree: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.args(["mutants", "--colors=never", "--package", target.name]);
    command.args(target.files.iter().map(|glob| format!("--file={glob}")));
    command.current_dir(tree).stdin(Stdio::null()).env_remove("CARGO_TARGET_DIR");
    command
}

/// Runs the tests of a stage without a mutant. If they failed for another reason, such as a missing
/// peer, every mutant would count as noticed. cargo-mutants' own baseline is no help: it tests the
/// package that is changed, and a stage may have the tests of another.
fn unchanged(stage: &Stage, tree: &Path) -> Outcome {
    let (targets, words) = stage.targets_and_words();
    let tests = |command: &mut Command| {
        command.args(["test", "--quiet", "--package", stage.package]);
        command.args(["--profile", stage.profile()]).args(targets);
        command.current_dir(tree).stdin(Stdio::null()).env_remove("CARGO_TARGET_DIR");
    };
    println!("== {} {}: without a mutant", stage.package, targets.join(" "));
    let mut build = Command::new("cargo");
    tests(&mut build);
    let mut run = Command::new("timeout");
    run.args([&stage.timeout_s.to_string(), "cargo"]);
    tests(&mut run);
    cargo::run(build.arg("--no-run")).and_then(|()| cargo::run(run.args(words))).map_err(|why| {
        format!("tests of {} fail without a mutant, and so notice nothing: {why}", stage.package)
    })
}

fn stage_of(
    target: &Target,
    stage: &Stage,
    only: &[String],
    output: &Path,
    tree: &Path,
) -> Result<Vec<(String, Mutant)>, String> {
    unchanged(stage, tree)?;
    let (targets, words) = stage.targets_and_words();
    let mut command = of_tool(target, tree);
    command.args(["--in-place", "--baseline=skip"]).args(only).arg("--output").arg(output);
    command.args(["--profile", stage.profile()]);
    command.args(["--timeout", &stage.timeout_s.to_string()]);
    command.args(["--build-timeout", &BUILD_TIMEOUT_S.to_string()]);
    command.args(["--test-package", stage.package]);
    command.args(targets.iter().map(|word| format!("--cargo-arg={word}")));
    if !words.is_empty() {
        command.arg("--").args(words);
    }
    // It fails for survivors as well, and the results show those.
    command.status().map_err(|error| format!("cargo mutants: {error}"))?;
    read(&output.join("mutants.out/outcomes.json"), tree)
}

fn read(file: &Path, tree: &Path) -> Result<Vec<(String, Mutant)>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let said: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let mut mutants = Vec::new();
    for outcome in said["outcomes"].as_array().into_iter().flatten() {
        let mutant = &outcome["scenario"]["Mutant"];
        let Some(name) = mutant["name"].as_str() else { continue };
        let file = mutant["file"].as_str().unwrap_or_default();
        let (text, column) = place(&tree.join(file), &mutant["span"]["start"])?;
        let fate = match outcome["summary"].as_str() {
            Some("CaughtMutant" | "Timeout") => Fate::Noticed,
            Some("MissedMutant") => Fate::Survived,
            Some("Unviable") => Fate::Unviable,
            other => return Err(format!("{name}: {other:?}")),
        };
        let change = name.splitn(4, ':').nth(3).unwrap_or(name).trim().to_string();
        let mutant = Mutant { file: file.to_string(), text, column, change, fate };
        mutants.push((name.to_string(), mutant));
    }
    Ok(mutants)
}

/// Returns the text of a line, and the column in it.
fn place(file: &Path, start: &Value) -> Result<(String, u64), String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let line = start["line"].as_u64().unwrap_or(1).max(1) as usize;
    let line = text.lines().nth(line - 1).unwrap_or_default();
    let indentation = (line.len() - line.trim_start().len()) as u64;
    let column = start["column"].as_u64().unwrap_or(1).saturating_sub(indentation);
    Ok((line.trim().to_string(), column))
}

fn store(file: &PathBuf, state: &str, mutants: &[Mutant]) -> Outcome {
    let rows: Vec<Value> = mutants
        .iter()
        .map(|Mutant { file, text, column, change, fate }| {
            json!([file, text, column, change, format!("{fate:?}")])
        })
        .collect();
    // Written as a whole or not at all: a shard that was cut off runs again.
    let draft = file.with_extension("draft");
    fs::write(&draft, json!({ "state": state, "mutants": rows }).to_string())
        .and_then(|()| fs::rename(&draft, file))
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns what was stored, if code and tests were the same then.
fn load(file: &Path, state: &str) -> Option<Vec<Mutant>> {
    let stored: Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    if stored["state"] != state {
        return None;
    }
    let word = |row: &Value, at: usize| Some(row[at].as_str()?.to_string());
    let mutant = |row: &Value| {
        let fate = match row[4].as_str()? {
            "Noticed" => Fate::Noticed,
            "Survived" => Fate::Survived,
            _ => Fate::Unviable,
        };
        let column = row[2].as_u64()?;
        Some(Mutant {
            file: word(row, 0)?,
            text: word(row, 1)?,
            column,
            change: word(row, 3)?,
            fate,
        })
    };
    stored["mutants"].as_array()?.iter().map(mutant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_is_loaded_for_the_same_code_and_tests() {
        let folder = tempfile();
        let file = folder.join("some.json");
        assert_eq!(load(&file, "abc"), None, "never played");
        let fates = [Fate::Noticed, Fate::Survived, Fate::Unviable];
        let mutants: Vec<Mutant> = fates
            .iter()
            .map(|fate| Mutant {
                file: "crates/shard/src/hash.rs".to_string(),
                text: "hash ^= 1;".to_string(),
                column: 6,
                change: "replace ^= with |= in hash".to_string(),
                fate: *fate,
            })
            .collect();
        store(&file, "abc", &mutants).unwrap();
        assert_eq!(load(&file, "abc"), Some(mutants));
        assert_eq!(load(&file, "abc+01234567"), None, "something was changed since");
        fs::write(&file, "[[").unwrap();
        assert_eq!(load(&file, "abc"), None, "half a file");
        fs::write(&file, "[[\"a.rs\",\"a\",1,\"b\",\"Noticed\"]]").unwrap();
        assert_eq!(load(&file, "abc"), None, "nobody knows of which commit");
        fs::remove_dir_all(folder).unwrap();
    }

    fn tempfile() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("mutants-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }
}
