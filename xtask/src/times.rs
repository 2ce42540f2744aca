//! The times of the steps in CONTRIBUTING.md, written by the ladder itself: `--write-times`.

use std::fs;
use std::time::Duration;

use crate::{Outcome, root};

/// Writes the time of each step, and of all of them, into the last column of its row.
pub fn write(times: &[(&str, Duration)]) -> Outcome {
    let file = root().join("CONTRIBUTING.md");
    let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let text = with_times(&text, times)?;
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
}

fn with_times(text: &str, times: &[(&str, Duration)]) -> Result<String, String> {
    let all: Duration = times.iter().map(|(_, took)| *took).sum();
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    for (step, took) in times.iter().chain([&("all", all)]) {
        let row = lines.iter_mut().find(|line| line.starts_with(&format!("| `{step}` | ")));
        let row = row.ok_or_else(|| format!("CONTRIBUTING.md has no row for `{step}`"))?;
        let cells = row.trim_end().trim_end_matches('|').rsplit_once('|');
        let (rest, _) = cells.ok_or_else(|| format!("the row of `{step}` has no column"))?;
        *row = format!("{rest}| {} |", words(*took));
    }
    Ok(lines.join("\n") + "\n")
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

    #[test]
    fn the_last_column_of_a_steps_row_is_replaced() {
        let text = "| `fmt` | a | 9 s |\n| `it` | b, `fmt` | |\n| `all` | | |\nrest\n";
        let times = [("it", Duration::from_millis(61_400)), ("fmt", Duration::from_secs(600))];
        let written = with_times(text, &times).unwrap();
        let expected = "| `fmt` | a | 10.0 min |\n| `it` | b, `fmt` | 61 s |\n\
                        | `all` | | 11.0 min |\nrest\n";
        assert_eq!(written, expected);
        assert!(with_times(text, &[("soak", Duration::ZERO)]).is_err());
    }
}
