//! Parses words to values: numbers, switches, durations, sizes. Pure functions of one word. A fault
//! describes the valid values; the caller knows the place of the word.

use std::ops::{Range, RangeInclusive};

use super::report::printable;
use crate::error::Error;

/// The reason why a word is not a valid value.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    pub message: String,
    /// The word that was probably meant.
    pub suggestion: Option<String>,
    /// What can be done about it, if that is more than another word.
    pub help: Option<&'static str>,
    /// The wrong bytes of the word, if only a part is wrong.
    pub part: Option<Range<usize>>,
}

impl Fault {
    pub fn new(message: impl Into<String>) -> Fault {
        Fault { message: message.into(), suggestion: None, help: None, part: None }
    }

    pub fn suggest(self, suggestion: Option<&str>) -> Fault {
        Fault { suggestion: suggestion.map(str::to_string), ..self }
    }

    /// Adds what can be done about it, if that is known.
    pub fn help(self, help: Option<&'static str>) -> Fault {
        Fault { help: help.or(self.help), ..self }
    }

    /// Adds the directive's name.
    pub fn about(self, name: &str) -> Fault {
        Fault { message: format!("{name}: {}", self.message), ..self }
    }

    /// Moves the fault of a part to its place `part` in a longer word.
    pub fn within(self, part: Range<usize>) -> Fault {
        Fault { part: Some(part), ..self }
    }
}

/// The fault of a word that stands in no file.
impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        let message = printable(&fault.message);
        Error::Config(match fault.suggestion {
            Some(near) => format!("{message}; did you mean `{near}`?"),
            None => message,
        })
    }
}

/// Returns a word as it is written in a list or a mapping.
pub fn quoted(word: &str) -> String {
    let is_odd = |c: char| ",[]{}".contains(c);
    let is_plain = !word.is_empty()
        && !word.starts_with(|c: char| "@`&*!%#|>'\"-?: ".contains(c))
        && !word.contains(is_odd)
        && !word.contains(": ")
        && !word.contains(" #")
        && !word.ends_with([':', ' ']);
    if is_plain { word.to_string() } else { format!("'{}'", word.replace('\'', "''")) }
}

/// Parses a number of digits only, as twemproxy does: no sign, no point.
pub fn number(word: &str, range: &RangeInclusive<u64>) -> Result<u64, Fault> {
    let Some(number) = digits(word) else {
        return Err(Fault::new(format!("`{word}` is not a whole number")));
    };
    if !range.contains(&number) {
        let (start, end) = (range.start(), range.end());
        return Err(Fault::new(format!("{word} is out of range: {start} to {end} are allowed")));
    }
    Ok(number)
}

/// Parses ASCII digits. A number that does not fit becomes the largest one, so that a range
/// excludes it.
fn digits(word: &str) -> Option<u64> {
    let all_digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| word.parse().unwrap_or(u64::MAX))
}

pub const SWITCH_WORDS: &[&str] = &["true", "false", "yes", "no", "on", "off"];

pub fn switch(word: &str) -> Result<bool, Fault> {
    match word {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        _ => Err(Fault::new(format!("`{word}` is neither true nor false"))),
    }
}

/// The longest duration: twemproxy's milliseconds in an `int`, about 24 days.
pub const DURATION_MAX_US: u64 = i32::MAX as u64 * 1000;

/// Parses a duration to microseconds. A bare number is milliseconds, as in `nutcracker.yml`.
pub fn duration(word: &str) -> Result<u64, Fault> {
    let (number, unit) = split_unit(word);
    let unit_us = match unit {
        "us" => 1,
        "" | "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return Err(not_a_duration(word)),
    };
    let duration = digits(number).ok_or_else(|| not_a_duration(word))?.saturating_mul(unit_us);
    if duration > DURATION_MAX_US {
        let longest = duration_word(DURATION_MAX_US);
        return Err(Fault::new(format!("`{word}` is too long: {longest} is the longest")));
    }
    Ok(duration)
}

fn not_a_duration(word: &str) -> Fault {
    Fault::new(format!("`{word}` is not a duration, which is written `400ms`, `2s` or `5m`"))
}

/// Parses a size to bytes. The units are powers of 1024.
pub fn size(word: &str, range: &RangeInclusive<u64>) -> Result<u64, Fault> {
    let fault = || Fault::new(format!("`{word}` is not a size, which is written `512k` or `64m`"));
    let (number, unit) = split_unit(word);
    let unit_bytes: u64 = match unit {
        "" | "b" | "B" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        _ => return Err(fault()),
    };
    let size = digits(number).ok_or_else(fault)?.saturating_mul(unit_bytes);
    if !range.contains(&size) {
        let (start, end) = (size_word(*range.start()), size_word(*range.end()));
        return Err(Fault::new(format!("{word} is out of range: {start} to {end} are allowed")));
    }
    Ok(size)
}

fn split_unit(word: &str) -> (&str, &str) {
    word.split_at(word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len()))
}

/// Returns the shortest exact form of a duration.
pub fn duration_word(us: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    unit_word(us, &UNITS, "us")
}

/// Returns the shortest exact form of a size.
pub fn size_word(bytes: u64) -> String {
    unit_word(bytes, &[(1 << 40, "t"), (1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")], "")
}

fn unit_word(number: u64, units: &[(u64, &str)], smallest: &str) -> String {
    let fits = |(unit, _): &&(u64, &str)| number > 0 && number.is_multiple_of(*unit);
    match units.iter().find(fits) {
        Some((unit, word)) => format!("{}{word}", number / unit),
        None if number == 0 => "0".to_string(),
        None => format!("{number}{smallest}"),
    }
}

/// Renders a number with commas: 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
