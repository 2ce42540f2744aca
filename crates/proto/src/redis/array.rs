//! Arrays of bulk strings, as programs write requests: the positions of their arguments.
//!
//! ```text
//!   *3\r\n     $3\r\nSET\r\n    $1\r\nk\r\n    $5\r\nhello\r\n
//!   begin      take_short                        step: a long or incomplete argument
//! ```
//!
//! The newest servers ignore the two bytes that end a length or a string. Here they must be CR LF.
//! Otherwise two programs that treat them differently could one day divide the stream differently.

use crate::{Parsed, Resume, Span};

/// The reason why nothing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The input is too short.
    More,
    /// The input can never become a request.
    Never(&'static str),
}

/// A request's arguments, one after the other.
pub(super) struct Walk<'a> {
    input: &'a [u8],
    /// The position of the next argument.
    pub(super) at: usize,
    /// The number of arguments to come.
    pub(super) left: u32,
    /// A long last argument has to be complete.
    pub(super) whole: bool,
    /// The length of the longest argument, if one is long.
    pub(super) longest: u32,
    /// How long the input must be for the next argument, if that is known.
    needs: usize,
}

pub(super) enum Step {
    Argument(Span),
    /// The last argument may be a body.
    Long {
        start: usize,
        len: usize,
    },
}

impl<'a> Walk<'a> {
    #[inline(always)]
    pub(super) fn begin(input: &'a [u8]) -> Result<Walk<'a>, Stop> {
        if let [b'*', digit @ b'0'..=b'9', b'\r', b'\n', ..] = input {
            return Ok(Walk::new(input, 4, u32::from(digit - b'0')));
        }
        let (count, at) = length(input, 0, &COUNT)?;
        Ok(Walk::new(input, at, count.max(0) as u32))
    }

    pub(super) fn resume(input: &'a [u8], resume: &Resume) -> Walk<'a> {
        let whole = resume.left & WHOLE != 0;
        let walk = Walk::new(input, resume.scanned, resume.parts_left());
        Walk { whole, longest: resume.longest, ..walk }
    }

    #[inline(always)]
    fn new(input: &'a [u8], at: usize, left: u32) -> Walk<'a> {
        Walk { input, at, left, whole: false, longest: 0, needs: 0 }
    }

    /// Saves the progress, where more input may help.
    pub(super) fn pause<T>(&self, stop: Stop, resume: &mut Resume) -> Result<T, Stop> {
        let whole = if self.whole { WHOLE } else { 0 };
        let needs = self.needs.max(self.input.len() + 1);
        let (scanned, left, longest) = (self.at, self.left | whole, self.longest);
        *resume = Resume { scanned, needs, left, longest };
        Err(stop)
    }

    /// Takes the arguments that are short and complete.
    // Measured: nearly all arguments are taken here. Keys often have the same length, so the last
    // length line is compared first.
    #[inline(always)]
    pub(super) fn take_short(&mut self, words: &mut Vec<Span>) {
        let (mut at, mut left) = (self.at, self.left);
        let mut last = ShortLine { mask: 0, line: 1, head: 0, len: 0 };
        while left > 0
            && let Some(eight) = eight(self.input, at)
        {
            if eight & last.mask != last.line {
                let Some(line) = short_line(eight) else { break };
                last = line;
            }
            let start = at + last.head;
            let end = start + last.len;
            if !ends(self.input, end) {
                break;
            }
            words.push(Span::new(start, end));
            (at, left) = (end + 2, left - 1);
        }
        (self.at, self.left) = (at, left);
    }

    #[inline(never)]
    pub(super) fn step(&mut self) -> Result<Step, Stop> {
        let (len, start) = length(self.input, self.at, &LENGTH)?;
        let len = len as usize;
        if self.left == 1 && len >= BODY_MIN && !self.whole {
            return Ok(Step::Long { start, len });
        }
        if len >= BODY_MIN {
            self.longest = self.longest.max(len as u32);
        }
        match self.input.get(start + len..start + len + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(Stop::Never(BAD_END)),
            None => {
                self.needs = start + len + 2;
                return Err(Stop::More);
            }
        }
        self.at = start + len + 2;
        self.left -= 1;
        Ok(Step::Argument(Span::new(start, start + len)))
    }
}

/// Returns start and end of the text of a short argument, if it is complete.
#[inline(always)]
pub(super) fn short(input: &[u8], at: usize) -> Option<(usize, usize)> {
    let ShortLine { head, len, .. } = short_line(eight(input, at)?)?;
    let start = at + head;
    ends(input, start + len).then_some((start, start + len))
}

/// The length line of a short argument, read as one number with `$` first.
#[derive(Clone, Copy)]
struct ShortLine {
    /// The mask of its bytes, out of eight.
    mask: u64,
    line: u64,
    /// The length of the line.
    head: usize,
    /// The number in the line.
    len: usize,
}

#[inline(always)]
fn short_line(eight: u64) -> Option<ShortLine> {
    const ONE: u64 = 0xffff_00ff;
    const TWO: u64 = 0xff_ff00_00ff;
    const THREE: u64 = 0xffff_0000_00ff;
    let digit = |nth: u32| usize::from(((eight >> (8 * nth)) as u8).wrapping_sub(b'0'));
    let (one, two, three) = (digit(1), digit(2), digit(3));
    let made = |head, len| {
        let mask = u64::MAX >> (64 - 8 * head);
        ShortLine { mask, line: eight & mask, head, len }
    };
    // The first digit is no zero if more digits follow.
    let is_many = one.wrapping_sub(1) < 9 && two <= 9;
    if eight & ONE == 0x0a0d_0024 && one <= 9 {
        Some(made(4, one))
    } else if eight & TWO == 0x0a_0d00_0024 && is_many {
        Some(made(5, one * 10 + two))
    } else if eight & THREE == 0x0a0d_0000_0024 && is_many && three <= 9 {
        Some(made(6, one * 100 + two * 10 + three))
    } else {
        None
    }
}

#[inline(always)]
fn eight(input: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*input.get(at..)?.first_chunk()?))
}

/// Whether an argument ends there with CR LF.
#[inline(always)]
fn ends(input: &[u8], end: usize) -> bool {
    input.get(end..).is_some_and(|rest| rest.first_chunk() == Some(b"\r\n"))
}

/// Returns the next argument of a whole head, if there is one.
pub(super) fn next(walk: &mut Walk<'_>) -> Option<Span> {
    if walk.left == 0 {
        return None;
    }
    if let Some((start, end)) = short(walk.input, walk.at) {
        (walk.at, walk.left) = (end + 2, walk.left - 1);
        return Some(Span::new(start, end));
    }
    match walk.step() {
        Ok(Step::Argument(span)) => Some(span),
        _ => None,
    }
}

/// Reads where the next argument of a refused request ends, before the CR LF behind it. These are
/// read with the argument after it.
pub(super) fn skip(input: &[u8], resume: &mut Resume) -> Parsed<u64> {
    let (left, mut at) = (resume.parts_left(), 0);
    if resume.left & END_DUE != 0 {
        match input.get(..2) {
            Some(b"\r\n") if left == 0 => {
                resume.left = 0;
                return Parsed::Complete(2);
            }
            Some(b"\r\n") => at = 2,
            Some(_) => return Parsed::Malformed(BAD_END),
            None => return Parsed::Incomplete,
        }
    }
    match length(input, at, &LENGTH) {
        Ok((len, start)) => {
            resume.left = (left - 1) | END_DUE;
            Parsed::Complete(start as u64 + len as u64)
        }
        Err(Stop::More) => Parsed::Incomplete,
        Err(Stop::Never(why)) => Parsed::Malformed(why),
    }
}

/// Returns the spans of the first arguments of an array, at most `most`.
pub(super) fn spans(head: &[u8], most: usize) -> Vec<Span> {
    let mut found = Vec::new();
    let Ok(mut walk) = Walk::begin(head) else { return found };
    while walk.left > 0 && found.len() < most {
        match walk.step() {
            Ok(Step::Argument(span)) => found.push(span),
            Ok(Step::Long { start, .. }) if start < head.len() => walk.whole = true,
            _ => break,
        }
    }
    found
}

/// A kind of line that contains a length.
struct Kind {
    first: u8,
    range: std::ops::RangeInclusive<i64>,
    bad: &'static str,
    long: &'static str,
}

const COUNT: Kind =
    Kind { first: b'*', range: i64::MIN..=COUNT_MAX, bad: BAD_COUNT, long: LONG_COUNT };
const LENGTH: Kind = Kind { first: b'$', range: 0..=BULK_MAX, bad: BAD_LENGTH, long: LONG_LENGTH };

/// Returns the length in the line at `at`, and the end of that line.
fn length(input: &[u8], at: usize, kind: &Kind) -> Result<(i64, usize), Stop> {
    let line = input.get(at..).unwrap_or_default();
    match line.first() {
        None => return Err(Stop::More),
        Some(&first) if first != kind.first => return Err(Stop::Never(EXPECTED_BULK)),
        Some(_) => {}
    }
    let Some(end) = memchr::memchr(b'\r', &line[..line.len().min(LINE_MAX + 1)]) else {
        return Err(if line.len() > LINE_MAX { Stop::Never(kind.long) } else { Stop::More });
    };
    let Some(value) = integer(&line[1..end]).filter(|value| kind.range.contains(value)) else {
        return Err(Stop::Never(kind.bad));
    };
    match line.get(end + 1) {
        Some(b'\n') => Ok((value, at + end + 2)),
        Some(_) => Err(Stop::Never(BAD_END)),
        None => Err(Stop::More),
    }
}

/// Reads a number as servers do: no `+`, no leading zero, no space.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (digits, is_negative) = match text.strip_prefix(b"-") {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    match digits {
        [] => return None,
        [b'0', ..] => return (text.len() == 1).then_some(0),
        _ => {}
    }
    let mut value: i64 = 0;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // Counted downwards, since there is one more number below zero.
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if is_negative { Some(value) } else { value.checked_neg() }
}

/// Returns the byte where an argument should have begun.
pub(super) fn offender(head: &[u8]) -> u8 {
    let Ok(mut walk) = Walk::begin(head) else {
        // The request is being skipped.
        let rest = head.strip_prefix(b"\r\n").unwrap_or(head);
        return rest.first().copied().unwrap_or(0);
    };
    while let Ok(Step::Argument(_)) = walk.step() {}
    head.get(walk.at).copied().unwrap_or(0)
}

/// A last argument of at least this length is a body, and any argument of this length is long.
pub(super) const BODY_MIN: usize = 4096;
/// Behind a head of more than this length there is no body: the whole is collected in one piece,
/// which passes without a copy.
pub(super) const BODY_HEAD_MAX: usize = 64 * 1024;
/// The longest line that contains a length.
pub(super) const LINE_MAX: usize = 64 * 1024;
/// The most arguments that a request can have.
const COUNT_MAX: i64 = i32::MAX as i64;
/// The longest argument that servers accept by default.
const BULK_MAX: i64 = 512 * 1024 * 1024;
/// A flag beside the number of arguments to come: the last one has to be complete.
pub(super) const WHOLE: u32 = Resume::OWN;
/// The same flag of a request that is skipped: CR LF have to come before the next argument.
const END_DUE: u32 = Resume::OWN;
const BAD_COUNT: &str = "Protocol error: invalid multibulk length";
const LONG_COUNT: &str = "Protocol error: too big mbulk count string";
const BAD_LENGTH: &str = "Protocol error: invalid bulk length";
const LONG_LENGTH: &str = "Protocol error: too big bulk count string";
/// The byte found instead is added when the error is written.
pub(super) const EXPECTED_BULK: &str = "Protocol error: expected '$', got ";
const BAD_END: &str = "Protocol error: expected CR LF";

#[cfg(test)]
mod tests {
    use super::*;

    /// For every line of up to seven bytes over the bytes that matter: the quick reader finds the
    /// same as the thorough one, or leaves the line to it.
    #[test]
    fn a_short_argument_is_what_a_thorough_look_finds() {
        const BYTES: &[u8] = b"$019\r\n-";
        let mut found = 0;
        for mut number in 0..BYTES.len().pow(7) {
            let mut input = [b'$', b'.', b'.', b'.', b'.', b'.', b'.', b'.', b'\r', b'\n'];
            for byte in &mut input[1..8] {
                *byte = BYTES[number % BYTES.len()];
                number /= BYTES.len();
            }
            let mut walk = Walk { whole: true, ..Walk::new(&input, 0, 1) };
            let thorough = match walk.step() {
                Ok(Step::Argument(span)) => Some((span.start as usize, span.end as usize)),
                _ => None,
            };
            assert_eq!(short(&input, 0), thorough, "{}", input.escape_ascii());
            let mut words = Vec::new();
            let mut walk = Walk { whole: true, ..Walk::new(&input, 0, 1) };
            walk.take_short(&mut words);
            let taken = words.first().map(|span| (span.start as usize, span.end as usize));
            assert_eq!((taken, walk.left == 0), (thorough, thorough.is_some()));
            found += usize::from(thorough.is_some());
        }
        assert!(found > 50, "{found}");
    }
}
