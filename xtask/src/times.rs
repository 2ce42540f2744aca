//! The tests and times of the steps in CONTRIBUTING.md, written by the ladder itself:
//! `--write-times`, or `UPDATE_GOLDEN=1` for the tests alone. A step that runs fewer tests than are
//! written there fails the ladder. Of one that runs more, the summary says so.
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
    pub passed: bool,
    pub tests: u64,
    pub took: Duration,
}

impl Column {
    /// Returns the column of a run that begins now.
    pub fn now() -> Result<Column, String> {
        if !is_built() {
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

/// Whether more was compiled than this program, which needs no other crate of ours.
fn is_built() -> bool {
    let built = fs::read_dir(root().join("target/debug/deps")).into_iter().flatten().flatten();
    let mut names = built.map(|file| file.file_name().to_string_lossy().into_owned());
    let is_ours = |name: String| name.starts_with("libproto-") || name.starts_with("proto-");
    names.any(is_ours) || BUILT.iter().any(|path| root().join(path).exists())
}

/// What the steps build.
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

/// Compares the tests of each step with the table. Prints a line for each step that ran more, and
/// returns one for each that ran fewer. With `UPDATE_GOLDEN`, the table gets the numbers instead.
pub fn compare(rows: &[Row]) -> Result<Vec<String>, String> {
    let text = read()?;
    let Different { fewer, more } = different(&text, rows)?;
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        // It is also the variable of other files: what is lost by it is not lost unseen.
        fewer.iter().for_each(|line| println!("fewer: {line}"));
        return write_page(&with_tests(&text, rows)?).map(|()| Vec::new());
    }
    more.iter().for_each(|line| println!("{line}"));
    Ok(fewer)
}

/// Lines about the steps of which the table has another number of tests.
#[derive(Default)]
struct Different {
    /// Tests were lost, or removed.
    fewer: Vec<String>,
    /// Tests are new. As many could be lost before anybody saw it.
    more: Vec<String>,
}

/// A step that has failed may have run none of its tests, and is not compared.
fn different(text: &str, rows: &[Row]) -> Result<Different, String> {
    let lines: Vec<String> = text.lines().map(str::to_string).collect();
    let mut different = Different::default();
    for Row { step, tests, .. } in rows.iter().filter(|row| row.passed) {
        // Steps of the long set have no number.
        let Some(written) = number(&lines, step)? else { continue };
        let ran = format!("{step} ran {tests} tests, and {FILE} has {written}");
        let anew = format!("`UPDATE_GOLDEN=1 cargo xtask test {step}` writes the number anew");
        if *tests < written {
            let line = format!("{ran}; if tests were removed on purpose, {anew}");
            different.fewer.push(line);
        } else if *tests > written {
            let unseen = format!("{} could be lost unseen", tests - written);
            different.more.push(format!("more: {ran}: {unseen}; {anew}"));
        }
    }
    Ok(different)
}

/// Returns the table with the number of tests of each step that has passed, and with their sum.
fn with_tests(text: &str, rows: &[Row]) -> Result<String, String> {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    for Row { step, tests, .. } in rows.iter().filter(|row| row.passed) {
        // Steps of the long set have no number.
        if number(&lines, step)?.is_some() {
            set(&mut lines, step, TESTS, &tests.to_string())?;
        }
    }
    let at = place(&lines, TESTS)?;
    let above = lines.iter().take_while(|line| !line.starts_with(&start("all")));
    let of_steps = above.filter(|line| line.starts_with("| `"));
    let numbers = of_steps.filter_map(|row| cells(row).get(at)?.parse::<u64>().ok());
    let sum: u64 = numbers.sum();
    set(&mut lines, "all", TESTS, &sum.to_string())?;
    Ok(lines.join("\n") + "\n")
}

/// Returns the number of tests that the table has of a step; None if it has none.
fn number(lines: &[String], step: &str) -> Result<Option<u64>, String> {
    let at = place(lines, TESTS)?;
    let row = lines.iter().find(|line| line.starts_with(&start(step)));
    Ok(row.and_then(|row| cells(row).get(at)?.parse().ok()))
}

/// Writes the tests of each step, and the times into a column of the table.
pub fn write(rows: &[Row], all: Duration, column: Column) -> Outcome {
    let mut figures: Vec<Figures> =
        rows.iter().map(|row| (row.step, row.tests, row.took)).collect();
    figures.push(("all", sum(rows), all));
    write_figures(&figures, column)
}

/// Writes the tests and the time of the quick loop.
pub fn write_quick(rows: &[Row], all: Duration, column: Column) -> Outcome {
    write_figures(&[("quick", sum(rows), all)], column)
}

/// A row of the table, its tests and its time.
type Figures = (&'static str, u64, Duration);

fn sum(rows: &[Row]) -> u64 {
    rows.iter().map(|row| row.tests).sum()
}

fn write_figures(figures: &[Figures], column: Column) -> Outcome {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    write_page(&with_times(&read()?, figures, column, processors)?)
}

fn write_page(text: &str) -> Outcome {
    fs::write(page(), text).map_err(|error| format!("{FILE}: {error}"))
}

fn read() -> Result<String, String> {
    fs::read_to_string(page()).map_err(|error| format!("{FILE}: {error}"))
}

fn page() -> PathBuf {
    root().join(FILE)
}

const FILE: &str = "CONTRIBUTING.md";
/// The column with the number of tests.
const TESTS: &str = "tests";

fn with_times(
    text: &str,
    figures: &[Figures],
    column: Column,
    processors: usize,
) -> Result<String, String> {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    for (step, tests, took) in figures {
        set(&mut lines, step, TESTS, &tests.to_string())?;
        set(&mut lines, step, column.word(), &words(*took))?;
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
    let row = lines.iter_mut().find(|line| line.starts_with(&start(step)));
    let row = row.ok_or_else(|| format!("{FILE} has no row for `{step}`"))?;
    let mut cells = cells(row);
    let cell = cells.get_mut(at).ok_or_else(|| format!("the row of `{step}` is too short"))?;
    *cell = text;
    let padded = |cell: &&str| if cell.is_empty() { " ".into() } else { format!(" {cell} ") };
    let cells: Vec<String> = cells.iter().map(padded).collect();
    *row = format!("|{}|", cells.join("|"));
    Ok(())
}

/// Returns how the row of a step begins.
fn start(step: &str) -> String {
    format!("| `{step}` | ")
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
| step | proves | tests | fresh | compiled |
|---|---|---|---|---|
| `fmt` | a | 1 | 9 s | |
| `it` | b, `fmt` | 20 | | 7 s |
| `all` | | 21 | | |
| `soak` | | | | |
* `fresh`: nothing; measured on 8 processors
* `compiled`: all; not measured
rest
";

    fn row(step: &'static str, tests: u64, seconds: u64) -> Row {
        Row { step, passed: true, tests, took: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_run_replaces_its_own_column_and_its_number_of_processors() {
        let seconds = Duration::from_secs;
        let figures =
            [("it", 19, seconds(61)), ("fmt", 1, seconds(600)), ("all", 20, seconds(662))];
        let written = with_times(TABLE, &figures, Column::Compiled, 2).unwrap();
        let expected = "\
| step | proves | tests | fresh | compiled |
|---|---|---|---|---|
| `fmt` | a | 1 | 9 s | 10.0 min |
| `it` | b, `fmt` | 19 | | 61 s |
| `all` | | 20 | | 11.0 min |
| `soak` | | | | |
* `fresh`: nothing; measured on 8 processors
* `compiled`: all; measured on 2 processors
rest
";
        assert_eq!(written, expected);
        let other = [("other", 1, seconds(1))];
        assert!(with_times(TABLE, &other, Column::Fresh, 2).is_err(), "it has no row");
    }

    #[test]
    fn a_step_that_lost_tests_is_named_with_both_numbers() {
        let fewer = |rows: &[Row]| different(TABLE, rows).unwrap().fewer;
        assert!(fewer(&[row("fmt", 1, 0), row("it", 20, 0), row("soak", 0, 0)]).is_empty());
        let lines = fewer(&[row("fmt", 1, 0), row("it", 19, 0)]);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("it ran 19 tests, and CONTRIBUTING.md has 20; "));
        let failed = Row { passed: false, ..row("it", 0, 0) };
        assert!(fewer(&[failed]).is_empty(), "it is named as failed");
        assert!(different("no table\n", &[row("it", 20, 0)]).is_err());
    }

    #[test]
    fn a_step_with_new_tests_passes_and_is_named_until_the_table_has_them() {
        let rows = [row("fmt", 1, 0), row("it", 23, 0), row("soak", 5, 0)];
        let Different { fewer, more } = different(TABLE, &rows).unwrap();
        assert!(fewer.is_empty(), "{fewer:?}");
        assert_eq!(more.len(), 1, "{more:?}");
        assert!(more[0].contains("it ran 23 tests, and CONTRIBUTING.md has 20: 3 could be lost"));
        let written = with_tests(TABLE, &rows).unwrap();
        let expected = TABLE.replace("| 20 | | 7 s", "| 23 | | 7 s").replace("| 21 |", "| 24 |");
        assert_eq!(written, expected, "only the numbers, and their sum");
        assert!(different(&written, &rows).unwrap().more.is_empty());
        let failed = Row { passed: false, ..row("it", 3, 0) };
        assert_eq!(with_tests(TABLE, &[failed]).unwrap(), TABLE);
    }

    #[test]
    fn the_page_has_a_place_for_each_column() {
        for column in [Column::Fresh, Column::Compiled] {
            let figures = ["fmt", "all", "quick"].map(|step| (step, 1, Duration::ZERO));
            assert_eq!(with_times(&read().unwrap(), &figures, column, 2).err(), None);
        }
        let none = ["unit", "it", "four"].map(|step| row(step, 0, 0));
        let lost = different(&read().unwrap(), &none).unwrap().fewer;
        assert_eq!(lost.len(), none.len(), "their numbers are read");
    }
}
