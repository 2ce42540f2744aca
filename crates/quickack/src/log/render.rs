//! Renders an entry as a line.
//!
//! ```text
//!   stderr   quickack: server one of pool alpha is down
//!   a file   2026-01-31T12:00:00.000123Z warning worker 3 (4711): server one of pool alpha is down
//!   JSON     {"time":"2026-…","level":"warning","process":"worker 3","pid":4711,"event":"down",
//!             "message":"server one of pool alpha is down"}
//! ```
//!
//! The collector of stderr adds its own timestamps; a file has no such collector.

use std::fmt::Write;
use std::process;

use serde::Serialize;

use super::{Entry, Format, Origin};

/// A line of the log in JSON.
#[derive(Serialize)]
struct Record<'f> {
    time: &'f str,
    level: &'f str,
    process: &'f str,
    pid: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    event: &'f str,
    message: &'f str,
    /// Number of occurrences in the past second, including this line.
    #[serde(skip_serializing_if = "Option::is_none")]
    repeated: Option<u64>,
}

/// Returns the line with its line break. It fits into one atomic write to a pipe.
pub fn render(
    format: Format,
    stamped: bool,
    unix_us: u64,
    entry: &Entry,
    repeated: Option<u64>,
) -> Vec<u8> {
    let time = timestamp(unix_us);
    let level = entry.level.name();
    let (process, pid) = match entry.origin {
        Origin::Master => ("master".to_string(), process::id()),
        Origin::Worker { slot, pid } => (format!("worker {slot}"), pid),
    };
    let message = visible(&entry.text);
    let mut line = match format {
        Format::Json => {
            let record = Record {
                time: &time,
                level,
                process: &process,
                pid,
                event: &entry.key,
                message: &message,
                repeated,
            };
            serde_json::to_string(&record).expect("strings and numbers only")
        }
        Format::Text => {
            let count = match repeated {
                Some(count) => format!(" (repeated {count} times in 1 s)"),
                None => String::new(),
            };
            match stamped {
                true => format!("{time} {level} {process} ({pid}): {message}{count}"),
                false => format!("quickack: {message}{count}"),
            }
        }
    };
    line.push('\n');
    line.into_bytes()
}

/// Escapes characters that would end the line or move a terminal's cursor, and limits the length.
fn visible(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if out.len() >= MESSAGE_LEN_MAX {
            out.push('…');
            break;
        }
        match c.is_control() {
            true => out.extend(c.escape_debug()),
            false => out.push(c),
        }
    }
    out
}

/// RFC 3339, in UTC.
pub fn timestamp(unix_us: u64) -> String {
    let (seconds, us) = (unix_us / 1_000_000, unix_us % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let mut out = String::new();
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z");
    out
}

/// Returns the date of a day since 1970. Years are counted from March, so that the leap day is the
/// last day of a year.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    const DAYS_BEFORE_1970: u64 = 719_468; // Since 1 March of the year 0.
    let days = days + DAYS_BEFORE_1970;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

/// With the other fields, the line stays below the size of an atomic write to a pipe, even if JSON
/// doubles each byte.
const MESSAGE_LEN_MAX: usize = 1800;
