//! The numbers of requests, as memcached 1.6.18 reads them, and the plain form in which servers are
//! sent them: digits, behind a minus sign if the number is negative, and no longer than what was
//! said. Up to nine digits are left as they are, zeros too. Another server may not read the other
//! forms, and one that refuses a number of a storage command reads its data as commands.

use super::request::BODY_MAX;
use crate::scan::{self, push_decimal};

/// The meaning of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A time.
    Exptime,
    /// A client's flags.
    Flags,
    /// The length of the data.
    Length,
    /// A cas, a delta or the initial value of a counter.
    Unsigned,
}

/// Reads a time. The server reads 64 bits with a sign, and keeps the lower 32: 4294967296 never
/// expires. 2147483648 is negative to it and expires at once, as -1 does. It is read as -1, since a
/// line that fits into a server's buffer must not grow.
#[inline]
pub fn exptime(text: &[u8]) -> Option<i32> {
    if is_plain(text) {
        return short(text).map(|number| number as i32);
    }
    let (number, is_negative) = (signed(text)? as i32, text.starts_with(b"-"));
    Some(if number < 0 && !is_negative { -1 } else { number })
}

/// Reads a client's flags: the lower 32 bits of a number without a sign.
pub fn flags(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|number| number as u32)
}

/// Reads the length of data. A server keeps the lower 32 bits of one that is longer; here it is
/// refused, since the data would be read as commands.
#[inline]
pub(super) fn length(text: &[u8]) -> Option<u64> {
    if is_plain(text) {
        return short(text).filter(|len| *len <= BODY_MAX);
    }
    signed(text).and_then(|number| u64::try_from(number).ok()).filter(|len| *len <= BODY_MAX)
}

/// Reads a number without a sign. A server takes one with a minus sign for what is left to 2^64, if
/// that is below 2^63.
#[inline]
pub fn unsigned(text: &[u8]) -> Option<u64> {
    if is_plain(text) {
        return short(text);
    }
    let (is_negative, digits) = sign(text);
    let number = magnitude(digits)?;
    match is_negative {
        false => Some(number),
        true => Some(number.wrapping_neg()).filter(|number| *number <= i64::MAX as u64),
    }
}

/// Reads a number with a sign, as C's `strtol` does, but for spaces.
fn signed(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = sign(text);
    let number = magnitude(digits)?;
    match is_negative {
        false => i64::try_from(number).ok(),
        true => 0i64.checked_sub_unsigned(number),
    }
}

/// Returns whether a number is negative, and what is behind its sign.
fn sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    }
}

fn magnitude(digits: &[u8]) -> Option<u64> {
    let is_zero = |byte: &u8| *byte == b'0';
    let zeros = digits.iter().take_while(|byte| is_zero(byte)).count();
    // One of them may be all that there is.
    let zeros = zeros.min(digits.len().saturating_sub(1));
    scan::decimal(&digits[zeros..], u64::MAX)
}

/// Writes a number that has been read, in its plain form.
#[inline]
pub(super) fn push(kind: Kind, text: &[u8], out: &mut Vec<u8>) {
    if is_plain(text) {
        return out.extend_from_slice(text);
    }
    match kind {
        Kind::Exptime => push_signed(exptime(text).unwrap_or_default().into(), out),
        Kind::Flags => push_decimal(flags(text).unwrap_or_default().into(), out),
        Kind::Length => push_decimal(length(text).unwrap_or_default(), out),
        Kind::Unsigned => push_decimal(unsigned(text).unwrap_or_default(), out),
    }
}

/// Whether it is sure to be in its plain form if it is a number: it begins with a digit, and has so
/// few that none is lost.
#[inline]
pub(super) fn is_plain(text: &[u8]) -> bool {
    text.len() <= DIGITS_SHORT && text.first().is_some_and(u8::is_ascii_digit)
}

/// As [`unsigned`], for a number of few digits, as nearly all are.
#[inline]
fn short(digits: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    digits.iter().try_fold(0, |number, byte| Some(10 * number + digit(byte)?))
}

pub(super) fn push_signed(number: i64, out: &mut Vec<u8>) {
    if number < 0 {
        out.push(b'-');
    }
    push_decimal(number.unsigned_abs(), out);
}

/// Every number of so many digits is below 2^31.
const DIGITS_SHORT: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of memcached 1.6.18.
    #[test]
    fn numbers_are_read_as_a_server_reads_them() {
        for (text, expected) in [
            ("5", Some(5)),
            ("+5", Some(5)),
            ("-5", Some(-5)),
            ("-0", Some(0)),
            ("0000000000000000000000005", Some(5)),
            ("000", Some(0)),
            ("2147483647", Some(i32::MAX)),
            ("2147483648", Some(-1)),
            ("-2147483648", Some(i32::MIN)),
            ("4294967296", Some(0)),
            ("9223372036854775807", Some(-1)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(0)),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("", None),
            ("+", None),
            ("-", None),
            ("++5", None),
            ("0x10", None),
        ] {
            assert_eq!(exptime(text.as_bytes()), expected, "{text}");
        }
        for (text, expected) in [
            ("5", Some(5)),
            ("+5", Some(5)),
            ("-0", Some(0)),
            ("-5", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-18446744073709551615", Some(1)),
            ("-9223372036854775809", Some(i64::MAX as u64)),
            ("-9223372036854775808", None),
        ] {
            assert_eq!(unsigned(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(flags(b"4294967301"), Some(5));
        assert_eq!([length(b"+1"), length(b"-0"), length(b"-1")], [Some(1), Some(0), None]);
        assert_eq!(length(BODY_MAX.to_string().as_bytes()), Some(BODY_MAX));
        assert_eq!(
            [length((BODY_MAX + 1).to_string().as_bytes()), length(b"4294967297")],
            [None; 2]
        );
    }

    #[test]
    fn numbers_are_written_in_their_plain_form() {
        for (kind, text, expected) in [
            (Kind::Exptime, "60", "60"),
            (Kind::Exptime, "-1", "-1"),
            (Kind::Exptime, "+60", "60"),
            (Kind::Exptime, "-0", "0"),
            (Kind::Exptime, "2147483648", "-1"),
            (Kind::Exptime, "-2147483648", "-2147483648"),
            (Kind::Flags, "4294967295", "4294967295"),
            (Kind::Flags, "4294967296", "0"),
            (Kind::Length, "+10", "10"),
            (Kind::Unsigned, "18446744073709551615", "18446744073709551615"),
            (Kind::Unsigned, "-18446744073709551615", "1"),
        ] {
            let mut out = Vec::new();
            push(kind, text.as_bytes(), &mut out);
            assert!(out.len() <= text.len(), "{text} grows");
            assert_eq!(String::from_utf8_lossy(&out), expected, "{kind:?} {text}");
        }
    }
}
