//! The numbers in INFO, with and without decimal places.

use super::is_number;
use crate::scan;

/// A number with at most six decimal places, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub value: i128,
    /// The number of decimal places shown.
    pub places: usize,
}

pub(super) const ONE: i128 = 1_000_000;
const PLACES_MAX: usize = 6;

impl Number {
    pub const ZERO: Number = Number { value: 0, places: 0 };

    pub fn read(text: &str) -> Option<Number> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let (whole, rest) = digits.split_once('.').unwrap_or((digits, ""));
        let has_point = digits.len() > whole.len();
        if rest.len() > PLACES_MAX || has_point && !is_number(rest) {
            return None;
        }
        let whole = i128::from(scan::decimal(whole.as_bytes(), u64::MAX)?);
        let rest: i128 = format!("{rest:0<PLACES_MAX$}").parse().ok()?;
        let value = whole * ONE + rest;
        let value = if digits.len() < text.len() { -value } else { value };
        Some(Number { value, places: text.len() - text.find('.').map_or(text.len(), |at| at + 1) })
    }

    pub fn tell(self) -> String {
        let sign = if self.value < 0 { "-" } else { "" };
        let value = self.value.saturating_abs();
        // Rounds to the nearest number with that many places.
        let step = ONE / 10_i128.pow(self.places as u32);
        let value = value.saturating_add(step / 2) / step * step;
        let rest = format!("{:06}", value % ONE);
        match self.places {
            0 => format!("{sign}{}", value / ONE),
            places => format!("{sign}{}.{}", value / ONE, &rest[..places]),
        }
    }

    pub fn plus(self, other: Number) -> Number {
        let places = self.places.max(other.places);
        Number { value: self.value.saturating_add(other.value), places }
    }

    pub fn min(self, other: Number) -> Number {
        if other.value < self.value { other } else { self }
    }

    pub fn max(self, other: Number) -> Number {
        if other.value > self.value { other } else { self }
    }
}

pub(super) fn version(text: &str) -> Vec<u64> {
    text.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// Formats bytes for people, as servers do.
pub(super) fn human(bytes: Number) -> Option<String> {
    let bytes: u64 = bytes.tell().parse().ok()?;
    let units = ["B", "K", "M", "G", "T", "P"];
    let (mut size, mut unit) = (bytes as f64, 0);
    while size >= 1024.0 && unit + 1 < units.len() {
        size /= 1024.0;
        unit += 1;
    }
    Some(if unit == 0 { format!("{bytes}B") } else { format!("{size:.2}{}", units[unit]) })
}
