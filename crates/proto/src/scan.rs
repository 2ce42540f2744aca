//! The byte-level helpers that every text protocol shares: find a line's end, cut tokens, read decimals.

use crate::{Resume, Span};

/// Length of the line at the start of `input`, its `\n` included. Bytes that an earlier call has
/// searched are not searched again, so a line that arrives in pieces costs linear time.
pub fn line_len(input: &[u8], resume: &mut Resume) -> Option<usize> {
    let from = resume.scanned.min(input.len());
    match memchr::memchr(b'\n', &input[from..]) {
        Some(at) => Some(from + at + 1),
        None => {
            resume.scanned = input.len();
            None
        }
    }
}

/// The tokens of a line: what stands between runs of spaces. `\r\n` and `\n` end the line.
pub struct Tokens<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Tokens<'a> {
    /// `line` ends with `\n`, as `line_len` found it.
    pub fn new(line: &'a [u8]) -> Tokens<'a> {
        let mut end = line.len() - 1;
        if end > 0 && line[end - 1] == b'\r' {
            end -= 1;
        }
        Tokens { line: &line[..end], at: 0 }
    }

    /// The text of a token of this line.
    pub fn text(&self, token: Span) -> &'a [u8] {
        token.of(self.line)
    }
}

impl Iterator for Tokens<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let mut start = self.at;
        while self.line.get(start) == Some(&b' ') {
            start += 1;
        }
        if start == self.line.len() {
            self.at = start;
            return None;
        }
        let rest = &self.line[start..];
        let len = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        self.at = start + len;
        Some(Span::new(start, self.at))
    }
}

/// An unsigned decimal: digits only, no sign, no space, at most `max`.
pub fn decimal(text: &[u8], max: u64) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (value <= max).then_some(value)
}

/// Appends an unsigned decimal.
pub fn push_decimal(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_digits_within_their_range() {
        assert_eq!(decimal(b"0", 10), Some(0));
        assert_eq!(decimal(b"007", 10), Some(7));
        assert_eq!(decimal(b"18446744073709551615", u64::MAX), Some(u64::MAX));
        for bad in [&b""[..], b"-1", b"+1", b" 1", b"1 ", b"0x1", b"18446744073709551616", b"11"] {
            assert_eq!(decimal(bad, if bad == b"11" { 10 } else { u64::MAX }), None, "{bad:?}");
        }
    }

    #[test]
    fn a_line_in_pieces_is_searched_once() {
        let mut resume = Resume::default();
        assert_eq!(line_len(b"get a", &mut resume), None);
        assert_eq!(resume.scanned, 5);
        assert_eq!(line_len(b"get a\r\nrest", &mut resume), Some(7));
    }

    #[test]
    fn push_decimal_writes_what_decimal_reads() {
        for value in [0, 9, 10, 4294967295, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(value, &mut out);
            assert_eq!(decimal(&out, u64::MAX), Some(value));
        }
    }
}
