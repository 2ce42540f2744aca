//! Byte-level helpers that all text protocols share: find the end of a line, cut tokens, read
//! decimals.

use crate::{Resume, Span};

/// Returns the length of the line at the start of `input`, including its `\n`. Bytes that an
/// earlier call has searched are not searched again, so a line that arrives in pieces costs linear
/// time.
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

/// The tokens of a line: the text between runs of spaces. `\r\n` and `\n` end the line.
pub struct Tokens<'a> {
    line: &'a [u8],
    at: usize,
    clean: bool,
    whole: bool,
}

impl<'a> Tokens<'a> {
    /// Makes the tokens of `line`, which ends with `\n`, as `line_len` found it.
    pub fn new(line: &'a [u8]) -> Tokens<'a> {
        let mut end = line.len() - 1;
        if end > 0 && line[end - 1] == b'\r' {
            end -= 1;
        }
        Tokens { line: &line[..end], at: 0, clean: true, whole: true }
    }

    /// Returns the text of a token of this line.
    pub fn text(&self, token: Span) -> &'a [u8] {
        token.of(self.line)
    }

    /// Returns the length of the line without its end.
    pub fn line_len(&self) -> usize {
        self.line.len()
    }

    /// Returns the tokens of the same line from its beginning.
    pub fn again(&self) -> Tokens<'a> {
        Tokens { line: self.line, at: 0, clean: true, whole: true }
    }

    /// Returns the text behind the tokens cut so far.
    pub fn rest(&self) -> &'a [u8] {
        &self.line[self.at..]
    }

    /// Whether the tokens cut so far are free of control characters, NUL and DEL. The search for
    /// the tokens' ends finds this out, so a key's bytes are read only once.
    pub fn are_clean(&self) -> bool {
        self.clean
    }

    /// Whether the tokens cut so far are free of NUL and CR. To some servers a token ends there.
    pub fn are_whole(&self) -> bool {
        self.whole
    }

    /// Makes [`Tokens::are_clean`] tell of the tokens cut from here on.
    pub fn begin_clean(&mut self) {
        self.clean = true;
    }
}

impl Iterator for Tokens<'_> {
    type Item = Span;

    // Inlined: as a call of its own it costs a third of the time of a `set` line, measured.
    #[inline(always)]
    fn next(&mut self) -> Option<Span> {
        let mut start = self.at;
        while self.line.get(start) == Some(&b' ') {
            start += 1;
        }
        let mut end = printable_end(self.line, start);
        while let Some(&byte) = self.line.get(end).filter(|byte| **byte != b' ') {
            self.clean = false;
            self.whole &= !matches!(byte, 0 | b'\r');
            end = printable_end(self.line, end + 1);
        }
        self.at = end;
        (start < end).then(|| Span::new(start, end))
    }
}

/// Returns the end of the run of bytes above space, DEL excluded, that begins at `from`. Reads
/// eight bytes a step.
#[inline]
fn printable_end(line: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(&eight) = line[at..].first_chunk::<8>() {
        let ends = run_ends(u64::from_le_bytes(eight));
        if ends != 0 {
            return at + ends.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let left = line.len() - at;
    match line.last_chunk::<8>() {
        // The line's last eight bytes, with those before `at` shifted out. The zeros shifted in end
        // the run.
        Some(&eight) if left > 0 => {
            let ends = run_ends(u64::from_le_bytes(eight) >> (64 - 8 * left));
            at + ends.trailing_zeros() as usize / 8
        }
        _ => at + line[at..].iter().take_while(|&&byte| byte > b' ' && byte != 0x7f).count(),
    }
}

/// Marks the bytes of `word` that end a run, in their highest bits. Only the lowest mark is exact:
/// a borrow may set others above it.
fn run_ends(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    let below = word.wrapping_sub(ONES * 0x21) & !word;
    let other = word ^ (ONES * 0x7f);
    let del = other.wrapping_sub(ONES) & !other;
    (below | del) & (ONES * 0x80)
}

/// Reads an unsigned decimal: digits only, no sign, no space, at most `max`.
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
    fn tokens_are_cut_at_spaces_wherever_they_stand() {
        for (pad, len) in (0..20).flat_map(|pad| (1..20).map(move |len| (pad, len))) {
            let line = format!("{}{} b \r\n", " ".repeat(pad), "a".repeat(len));
            let mut tokens = Tokens::new(line.as_bytes());
            assert_eq!(tokens.next(), Some(Span::new(pad, pad + len)));
            assert_eq!(tokens.next(), Some(Span::new(pad + len + 1, pad + len + 2)));
            assert_eq!(tokens.next(), None);
            assert!(tokens.are_clean());
        }
    }

    #[test]
    fn every_byte_is_known_as_clean_or_not_at_every_place() {
        for (byte, at) in (0..=255u8).flat_map(|byte| (0..18).map(move |at| (byte, at))) {
            let mut line = [b'k'; 20];
            line[at] = byte;
            line[18..].copy_from_slice(b"\r\n");
            let mut tokens = Tokens::new(&line);
            let cut = tokens.by_ref().count();
            assert_eq!(tokens.are_clean(), byte >= b' ' && byte != 0x7f, "{byte:#x} at {at}");
            assert_eq!(tokens.are_whole(), !matches!(byte, 0 | b'\r'), "{byte:#x} at {at}");
            assert_eq!(cut, if byte == b' ' && at > 0 && at < 17 { 2 } else { 1 });
        }
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
