//! The times of the steps in CONTRIBUTING.md, written by the ladder itself: `--write-times`.
//!
//! The table has a column for a fresh clone and one for a run with nothing to compile. Of a run
//! that compiled a part nothing is written: its times are those of no state that has a name.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::{Outcome, root, tidy};

/// A column of the table: what was compiled before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Nothing.
    Fresh,
    /// Everything.
    Compiled,
}

/// Results of one step.
pub struct Row {
    pub step: &'static str,
    pub took: Duration,
}

impl Column {
    /// Returns the column of a run that begins now.
    pub fn now() -> Result<Column, String> {
        if !BUILT.iter().any(|path| root().join(path).exists()) {
            return Ok(Column::Fresh);
        }
        let passed = fs::metadata(mark()).and_then(|mark| mark.modified());
        match passed {
            Ok(passed) if newest_source()? <= passed => Ok(Column::Compiled),
            _ => {
                Err("--write-times is for a clone in which no test was built, or for a run right \
                      after `cargo xtask test` has passed"
                    .into())
            }
        }
    }

    fn word(self) -> &'static str {
        match self {
            Column::Fresh => "fresh",
            Column::Compiled => "compiled",
        }
    }
}

/// What the steps build; without them this program is all that was compiled.
const BUILT: &[&str] = &["target/nextest", "target/seeded", "target/debug/quickack"];

/// A file as old as the beginning of the last run of all steps that passed: no source that is older
/// has to be compiled.
fn mark() -> PathBuf {
    root().join("target/ladder-passed")
}

/// Notes that all steps have passed.
pub fn passed(began: SystemTime) -> Outcome {
    let noted = fs::File::create(mark()).and_then(|file| file.set_modified(began));
    noted.map_err(|error| format!("{}: {error}", mark().display()))
}

/// Returns when the last source was changed, as cargo asks.
fn newest_source() -> Result<SystemTime, String> {
    let files = tidy::files(&root())?;
    let is_source =
        |file: &&String| [".rs", ".toml", ".lock"].iter().any(|end| file.ends_with(end));
    let changed = |file: &String| fs::metadata(root().join(file)).and_then(|it| it.modified()).ok();
    let newest = files.iter().filter(is_source).filter_map(changed).max();
    newest.ok_or_else(|| "there is no source".to_string())
}

/// Writes the time of each step, and `all`, into a column of the table.
pub fn write(rows: &[Row], all: Duration, column: Column) -> Outcome {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let text = with_times(&read()?, rows, all, column, processors)?;
    fs::write(page(), text).map_err(|error| format!("{FILE}: {error}"))
}

fn read() -> Result<String, String> {
    fs::read_to_string(page()).map_err(|error| format!("{FILE}: {error}"))
}

fn page() -> PathBuf {
    root().join(FILE)
}

const FILE: &str = "CONTRIBUTING.md";

fn with_times(
    text: &str,
    rows: &[Row],
    all: Duration,
    column: Column,
    processors: usize,
) -> Result<String, String> {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    let steps = rows.iter().map(|row| (row.step, row.took)).chain([("all", all)]);
    for (step, took) in steps {
        set(&mut lines, step, column.word(), &words(took))?;
    }
    // Each column may be of another machine.
    let start = format!("* `{}`: ", column.word());
    let line = lines.iter_mut().find(|line| line.starts_with(&start));
    let line = line.ok_or_else(|| format!("{FILE} has no line `{start}`"))?;
    let about = line.split_once("; ").map_or(line.as_str(), |(about, _)| about);
    let many = if processors == 1 { "" } else { "s" };
    *line = format!("{about}; measured on {processors} processor{many}");
    Ok(lines.join("\n") + "\n")
}

/// Replaces a cell of the row of a step.
fn set(lines: &mut [String], step: &str, column: &str, text: &str) -> Outcome {
    let at = place(lines, column)?;
    let row = lines.iter_mut().find(|line| line.starts_with(&format!("| `{step}` | ")));
    let row = row.ok_or_else(|| format!("{FILE} has no row for `{step}`"))?;
    let mut cells = cells(row);
    let cell = cells.get_mut(at).ok_or_else(|| format!("the row of `{step}` is too short"))?;
    *cell = text;
    let padded = |cell: &&str| if cell.is_empty() { " ".into() } else { format!(" {cell} ") };
    let cells: Vec<String> = cells.iter().map(padded).collect();
    *row = format!("|{}|", cells.join("|"));
    Ok(())
}

/// Returns the place of a column in the table's rows.
fn place(lines: &[String], column: &str) -> Result<usize, String> {
    let head = lines.iter().find(|line| line.starts_with("| step | "));
    let head = head.ok_or_else(|| format!("{FILE} has no table of steps"))?;
    let place = cells(head).iter().position(|cell| *cell == column);
    place.ok_or_else(|| format!("the table of steps has no column {column}"))
}

fn cells(row: &str) -> Vec<&str> {
    let row = row.trim();
    let inner = row.strip_prefix('|').and_then(|row| row.strip_suffix('|')).unwrap_or(row);
    inner.split('|').map(str::trim).collect()
}

fn words(took: Duration) -> String {
    match took.as_secs_f64().round() as u64 {
        0..=4 => "seconds".to_string(),
        seconds @ 5..=599 => format!("{seconds} s"),
        seconds => format!("{}.{} min", seconds / 60, seconds % 60 / 6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| step | proves | fresh | compiled |
|---|---|---|---|
| `fmt` | a | 9 s | |
| `it` | b, `fmt` | | 7 s |
| `all` | | | |
* `fresh`: nothing; measured on 8 processors
* `compiled`: all; not measured
rest
";

    fn row(step: &'static str, seconds: u64) -> Row {
        Row { step, took: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_run_replaces_its_own_column_and_its_number_of_processors() {
        let (rows, all) = ([row("it", 61), row("fmt", 600)], Duration::from_secs(662));
        let written = with_times(TABLE, &rows, all, Column::Compiled, 2).unwrap();
        let expected = "\
| step | proves | fresh | compiled |
|---|---|---|---|
| `fmt` | a | 9 s | 10.0 min |
| `it` | b, `fmt` | | 61 s |
| `all` | | | 11.0 min |
* `fresh`: nothing; measured on 8 processors
* `compiled`: all; measured on 2 processors
rest
";
        assert_eq!(written, expected);
        let soak = [row("soak", 1)];
        assert!(with_times(TABLE, &soak, all, Column::Fresh, 2).is_err(), "it has no row");
    }

    #[test]
    fn the_page_has_a_place_for_each_column() {
        for column in [Column::Fresh, Column::Compiled] {
            let rows = [row("fmt", 1)];
            assert_eq!(with_times(&read().unwrap(), &rows, Duration::ZERO, column, 2).err(), None);
        }
    }
}
