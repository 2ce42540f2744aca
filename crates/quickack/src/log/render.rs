//! Renders an entry as a line.
//!
//! ```text
//!   text     2026-01-31T12:00:00.000123Z warning worker 3 (4711): server one of pool alpha is down
//!   journal  <4>worker 3 (4711): server one of pool alpha is down
//!   syslog   <28>quickack[4711]: worker 3: server one of pool alpha is down
//!   JSON     {"time":"2026-…","level":"warning","process":"worker 3","pid":4711,"worker":3,
//!             "event":"server_down","pool":"alpha","server":"one","message":"…"}
//! ```
//!
//! The journal and syslog have a time of their own for each line. JSON in them has the same prefix.

use std::io::Write;
use std::process;

use serde::Serialize;

use super::{About, Entry, Format, Origin, Style};

/// A line of the log in JSON.
#[derive(Serialize)]
struct Record<'f> {
    time: &'f str,
    level: &'f str,
    process: &'f str,
    pid: u32,
    event: &'f str,
    /// The process itself, or the subject.
    #[serde(flatten)]
    about: &'f About,
    message: &'f str,
    /// Number of occurrences in the past second, including this line.
    #[serde(skip_serializing_if = "Option::is_none")]
    repeated: Option<u64>,
}

/// Returns the line with its line break; syslog wants none. It fits into one atomic write to a
/// pipe.
pub fn render(
    format: Format,
    style: Style,
    unix_us: u64,
    entry: &Entry,
    repeated: Option<u64>,
) -> Vec<u8> {
    let (process, pid) = match entry.origin {
        Origin::Master => ("master".to_string(), process::id()),
        Origin::Worker { slot, pid } => (format!("worker {slot}"), pid),
    };
    let level = entry.level;
    let mut line = match style {
        Style::Stamped => String::new(),
        Style::Journal => format!("<{}>", level.severity()),
        Style::Syslog => format!("<{}>quickack[{pid}]: ", DAEMON * 8 + level.severity()),
    };
    let (time, level) = (timestamp(unix_us), level.name());
    let message = visible(&entry.text);
    if format == Format::Json {
        let worker = match entry.origin {
            Origin::Worker { slot, .. } => Some(slot),
            Origin::Master => entry.about.worker,
        };
        let about = &About { worker, ..entry.about.clone() };
        let (time, process, event, message) = (&*time, &*process, &*entry.event, &*message);
        let record = Record { time, level, process, pid, event, about, message, repeated };
        line += &serde_json::to_string(&record).expect("strings and numbers only");
    } else {
        let origin = match (style, entry.origin) {
            (Style::Stamped, _) => format!("{time} {level} {process} ({pid}): "),
            (_, Origin::Master) => String::new(),
            (Style::Journal, _) => format!("{process} ({pid}): "),
            (Style::Syslog, _) => format!("{process}: "),
        };
        let count = match repeated {
            Some(count) => format!(" (repeated {count} times in 1 s)"),
            None => String::new(),
        };
        line += &format!("{origin}{message}{count}");
    }
    if style != Style::Syslog {
        line.push('\n');
    }
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
    let mut out = Vec::new();
    push_timestamp(unix_us, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Writes the same.
pub fn push_timestamp(unix_us: u64, out: &mut Vec<u8>) {
    let (seconds, us) = (unix_us / 1_000_000, unix_us % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z");
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

/// The facility of system daemons (RFC 5424, 6.2.1).
const DAEMON: u8 = 3;
/// With the other fields, the line stays below the size of an atomic write to a pipe, even if JSON
/// doubles each byte.
const MESSAGE_LEN_MAX: usize = 1800;
