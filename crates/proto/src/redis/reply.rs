//! Replies of servers, in RESP2 and RESP3.
//!
//! A reply is a tree, and is read without building one. `Progress::left` counts the elements still
//! to come, an aggregate adds its own, and the reply ends at zero. So depth costs nothing, and no
//! count, however large, causes an allocation.
//!
//! ```text
//!   *3\r\n  :1\r\n  $5\r\nhello\r\n  *1\r\n  +OK\r\n
//!   left 3    2           1            1       0       one Status, if all of it has come
//! ```
//!
//! The framing is checked strictly, and the text within is not: scripts write lines as they like,
//! and a link is shared by many clients.
//!
//! One item takes as many whole elements as the input holds. A bulk string that is long or
//! incomplete is the item's body: its bytes are never read.

use super::commands::id;
use super::scan::CURSOR_END;
use super::{shape, transaction};
use crate::scan;
use crate::{Ask, Item, ItemKind, Parsed, Progress, Span};

/// A line of at least this length passes in pieces: errors raised by scripts have no bound of their
/// own.
pub(super) const LINE_MAX: usize = 64 * 1024;
/// A flag beside the number of elements to come: the first of them is a line that has begun.
const IN_LINE: u64 = 1 << 63;
/// Another one: the client is told something else. The key of each item is all its head then.
const LEFT_OUT: u64 = 1 << 62;
/// The longest bulk string: the default of a server's `proto-max-bulk-len`.
pub(super) const BULK_MAX: u64 = 512 * 1024 * 1024;
/// The most elements of one aggregate.
const COUNT_MAX: u64 = u32::MAX as u64;
/// A bulk string of at least this length is an item's body, which may be passed on by reference.
const BODY_MIN: u64 = 4096;
/// The longest cursor that is read, from a server of any kind.
const CURSOR_LEN_MAX: u64 = BODY_MIN - 1;
/// A head's end must fit its field; inputs are far shorter.
const HEAD_MAX: usize = 1 << 30;

const BAD_TYPE: &str = "a reply of no known type";
const BAD_LINE: &str = "a malformed line";
const BAD_LEN: &str = "a malformed length";
const BAD_END: &str = "a string without its end";
const TOO_LONG: &str = "a line without end";
const TOO_MANY: &str = "more elements than can be counted";
const STRAY: &str = "a request was queued that belongs to no transaction";
const PUSHED: &str = "a push on a link that many share";
const NO_ANSWER: &str = "a reply that cannot answer what was asked";

// Measured.
#[inline(always)]
pub(super) fn parse(ask: Ask, progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
    if progress.left == 0
        && let Some(first) = input.first()
    {
        if !shape::may_begin(ask, *first) {
            return Parsed::Malformed(NO_ANSWER);
        }
        if let Some(end) = short(input) {
            return Parsed::Complete(made(ItemKind::Status, end, None));
        }
    }
    long(ask, progress, input)
}

// Measured: if inlined, it makes its caller save every register for each short reply.
#[inline(never)]
fn long(ask: Ask, progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
    let input = &input[..input.len().min(HEAD_MAX)];
    match ask.command {
        id::SCAN if progress.left == 0 => lead(progress, input),
        _ if progress.left & LEFT_OUT != 0 => left_out(ask, progress, input),
        _ => whole(ask, progress, input),
    }
}

/// Takes as many elements as are complete.
fn whole(ask: Ask, progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
    if progress.left & IN_LINE != 0 {
        return rest_of_line(progress, input);
    }
    let last = match input.first() {
        Some(b'-') if progress.left == 0 => ItemKind::Error,
        Some(b'+') if progress.left == 0 && transaction::is_stray(ask, input) => {
            return Parsed::Malformed(STRAY);
        }
        Some(b'!') if progress.left == 0 => return long_error(input),
        _ => ItemKind::Status,
    };
    let (mut left, mut at) = (progress.left.max(1), 0);
    loop {
        while let Some(len) = short(&input[at..]) {
            (left, at) = (left - 1, at + len);
            if left == 0 {
                progress.left = 0;
                return item(last, progress, at, None);
            }
        }
        match element(input, at) {
            Element::Whole { end, more } => {
                let sum = left - 1 + more;
                if sum >= LEFT_OUT {
                    return Parsed::Malformed(TOO_MANY);
                }
                (left, at) = (sum, end);
            }
            Element::LongLine { end } => {
                progress.left = left | IN_LINE;
                return item(last, progress, end, None);
            }
            Element::Body { start, len } => {
                progress.left = left - 1;
                return item(last, progress, start, Some(len));
            }
            Element::Unfinished if at == 0 => return Parsed::Incomplete,
            Element::Unfinished => {
                progress.left = left;
                return item(last, progress, at, None);
            }
            Element::Wrong(why) => return Parsed::Malformed(why),
        }
        if left == 0 {
            progress.left = 0;
            return item(last, progress, at, None);
        }
    }
}

/// Returns the length of one short string, `OK` or a digit, that is complete; most replies are
/// such. It decides nothing about others: it only saves the long path.
#[inline(always)]
fn short(input: &[u8]) -> Option<usize> {
    match *input {
        [b'$', first @ b'0'..=b'9', ..] => {
            let (mut len, mut at) = (usize::from(first - b'0'), 2);
            // A length that begins with zero ends there.
            while len > 0 && at < 5 {
                let digit = input.get(at)?.wrapping_sub(b'0');
                if digit > 9 {
                    break;
                }
                len = len * 10 + usize::from(digit);
                at += 1;
            }
            let end = at + 2 + len;
            let is_framed =
                input.get(at..at + 2)? == b"\r\n" && input.get(end..end + 2)? == b"\r\n";
            (is_framed && len < BODY_MIN as usize).then_some(end + 2)
        }
        [b'+', b'O', b'K', b'\r', b'\n', ..] | [b'$', b'-', b'1', b'\r', b'\n', ..] => Some(5),
        [b':', b'0'..=b'9', b'\r', b'\n', ..] => Some(4),
        _ => None,
    }
}

/// Makes an item of the pieces up to `head`; `last` is its kind if nothing follows.
fn item(last: ItemKind, progress: &Progress, head: usize, body: Option<u64>) -> Parsed<Item> {
    let kind = if progress.left == 0 { last } else { ItemKind::Part };
    Parsed::Complete(made(kind, head, body))
}

fn made(kind: ItemKind, head: usize, body: Option<u64>) -> Item {
    let trailer: &'static [u8] = if body.is_some() { b"\r\n" } else { b"" };
    let (head, body) = (head as u32, body.unwrap_or(0));
    Item { kind, head, body, trailer, key: Span::default() }
}

/// As `whole`, for what the client does not get.
fn left_out(ask: Ask, progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
    progress.left &= !LEFT_OUT;
    let parsed = whole(ask, progress, input);
    if progress.left > 0 {
        progress.left |= LEFT_OUT;
    }
    match parsed {
        Parsed::Complete(item) => {
            let key = Span::new(0, item.head as usize);
            Parsed::Complete(Item { key, ..item })
        }
        other => other,
    }
}

/// Takes the part of an unfinished line that has come.
fn rest_of_line(progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
    let end = memchr::memchr2(b'\r', b'\n', input).unwrap_or(input.len());
    let head = match &input[end..] {
        [b'\r', b'\n', ..] => {
            progress.left = (progress.left & !IN_LINE) - 1;
            end + 2
        }
        [] | [b'\r'] if end > 0 => end,
        [] | [b'\r'] => return Parsed::Incomplete,
        _ => return Parsed::Malformed(BAD_LINE),
    };
    item(ItemKind::Status, progress, head, None)
}

/// Reads a bulk error. It is passed whole, as a simple error is.
fn long_error(input: &[u8]) -> Parsed<Item> {
    match element(input, 0) {
        Element::Whole { end, .. } => Parsed::Complete(made(ItemKind::Error, end, None)),
        Element::Body { start, len } => {
            let end = start + (len as usize) + 2;
            match input.get(start..end) {
                _ if len > LINE_MAX as u64 => Parsed::Malformed(TOO_LONG),
                None => Parsed::Incomplete,
                Some(body) if body.ends_with(b"\r\n") => {
                    Parsed::Complete(made(ItemKind::Error, end, None))
                }
                Some(_) => Parsed::Malformed(BAD_END),
            }
        }
        Element::Unfinished | Element::LongLine { .. } => Parsed::Incomplete,
        Element::Wrong(why) => Parsed::Malformed(why),
    }
}

/// Reads the beginning of a scan's reply, up to the keys. It contains the cursor, which is rendered
/// anew. Its item is the only one with a position in its head.
fn lead(progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
    const START: &[u8] = b"*2\r\n$";
    if input.first() == Some(&b'-') {
        return whole(Ask { command: id::SCAN }, progress, input);
    }
    let known = input.len().min(START.len());
    if input[..known] != START[..known] {
        return Parsed::Malformed(NO_ANSWER);
    }
    let Length::Is { value: len @ 1..=CURSOR_LEN_MAX, end: start } =
        length(input, START.len(), BULK_MAX)
    else {
        return match length(input, START.len(), BULK_MAX) {
            Length::Unfinished => Parsed::Incomplete,
            _ => Parsed::Malformed(NO_ANSWER),
        };
    };
    let end = start + len as usize;
    let Some(cursor) = input.get(start..end + 2) else { return Parsed::Incomplete };
    let Some(cursor) = cursor.strip_suffix(b"\r\n") else { return Parsed::Malformed(BAD_END) };
    // The client is told if it cannot be passed on.
    let fits = scan::decimal(cursor, CURSOR_END - 1).is_some();
    progress.left = if fits { 1 } else { 1 | LEFT_OUT };
    let part = made(ItemKind::Part, end + 2, None);
    Parsed::Complete(Item { key: Span::new(start, end), ..part })
}

/// The element at one position of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// A whole element, or the head of an aggregate, to which the `more` next elements belong.
    Whole {
        end: usize,
        more: u64,
    },
    /// A string that is long or incomplete.
    Body {
        start: usize,
        len: u64,
    },
    Unfinished,
    /// A line whose end is not near: it does not end before `end`.
    LongLine {
        end: usize,
    },
    Wrong(&'static str),
}

#[inline]
pub(super) fn element(input: &[u8], at: usize) -> Element {
    let Some(&first) = input.get(at) else { return Element::Unfinished };
    match first {
        b'$' => match length(input, at + 1, BULK_MAX) {
            Length::Is { value, end } => string(input, end, value),
            Length::Null { end } => Element::Whole { end, more: 0 },
            Length::Unfinished => Element::Unfinished,
            Length::Wrong => Element::Wrong(BAD_LEN),
        },
        b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => line(input, at),
        b'*' | b'~' | b'%' | b'|' => aggregate(input, at, first),
        b'=' | b'!' => match length(input, at + 1, BULK_MAX) {
            Length::Is { value, end } => string(input, end, value),
            Length::Unfinished => Element::Unfinished,
            _ => Element::Wrong(BAD_LEN),
        },
        b'>' => Element::Wrong(PUSHED),
        _ => Element::Wrong(BAD_TYPE),
    }
}

#[inline]
fn string(input: &[u8], start: usize, len: u64) -> Element {
    let end = start + len as usize;
    match input.get(end..end + 2) {
        Some(b"\r\n") if len < BODY_MIN => Element::Whole { end: end + 2, more: 0 },
        Some(b"\r\n") | None => Element::Body { start, len },
        Some(_) => Element::Wrong(BAD_END),
    }
}

fn aggregate(input: &[u8], at: usize, first: u8) -> Element {
    match length(input, at + 1, COUNT_MAX) {
        Length::Is { value, end } => {
            let more = match first {
                b'%' => value * 2,
                // An attribute belongs to the element after it, which is still to come.
                b'|' => value * 2 + 1,
                _ => value,
            };
            Element::Whole { end, more }
        }
        Length::Null { end } if first == b'*' => Element::Whole { end, more: 0 },
        Length::Unfinished => Element::Unfinished,
        _ => Element::Wrong(BAD_LEN),
    }
}

fn line(input: &[u8], at: usize) -> Element {
    let rest = &input[at + 1..input.len().min(at + LINE_MAX)];
    let Some(len) = memchr::memchr2(b'\r', b'\n', rest) else {
        return match input[at] {
            _ if input.len() - at < LINE_MAX => Element::Unfinished,
            b'+' | b'-' | b'(' | b',' => Element::LongLine { end: at + LINE_MAX },
            _ => Element::Wrong(TOO_LONG),
        };
    };
    let end = at + 1 + len;
    match (rest[len], input.get(end + 1)) {
        (b'\r', Some(b'\n')) if is_sound(input[at], &rest[..len]) => {
            Element::Whole { end: end + 2, more: 0 }
        }
        (b'\r', None) => Element::Unfinished,
        _ => Element::Wrong(BAD_LINE),
    }
}

/// Whether a line of this type can have this text. A script writes its status, its error and its
/// big number as it likes, and a double in the format of its server's C library.
fn is_sound(first: u8, text: &[u8]) -> bool {
    match first {
        b':' => {
            let digits = match text {
                [b'-' | b'+', digits @ ..] => digits,
                digits => digits,
            };
            !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        }
        b'#' => matches!(text, b"t" | b"f"),
        b'_' => text.is_empty(),
        _ => true,
    }
}

enum Length {
    Is { value: u64, end: usize },
    Null { end: usize },
    Unfinished,
    Wrong,
}

/// Reads the length at `at` with its line end: no sign, no leading zero, at most `max`.
#[inline]
fn length(input: &[u8], at: usize, max: u64) -> Length {
    let mut end = at;
    let mut value: u64 = 0;
    while let Some(digit) = input.get(end).map(|byte| byte.wrapping_sub(b'0'))
        && digit <= 9
        && value <= max
    {
        value = value * 10 + u64::from(digit);
        end += 1;
    }
    let starts_badly = input.get(at) == Some(&b'0') && end > at + 1;
    match input.get(end..end + 2) {
        _ if value > max || starts_badly => Length::Wrong,
        Some(b"\r\n") if end > at => Length::Is { value, end: end + 2 },
        Some(b"-1") if end == at => match input.get(end + 2..end + 4) {
            Some(b"\r\n") => Length::Null { end: end + 4 },
            None if matches!(input.get(end + 2), None | Some(b'\r')) => Length::Unfinished,
            _ => Length::Wrong,
        },
        Some(_) => Length::Wrong,
        // At most one byte is left.
        None => match input.get(end) {
            None => Length::Unfinished,
            Some(b'\r') if end > at => Length::Unfinished,
            Some(b'-') if end == at => Length::Unfinished,
            Some(_) => Length::Wrong,
        },
    }
}

/// Returns where the elements of a list begin, and how many they are.
pub(super) fn elements(reply: &[u8]) -> Option<(usize, u64)> {
    if reply.first() != Some(&b'*') {
        return None;
    }
    match length(reply, 1, COUNT_MAX) {
        Length::Is { value, end } => Some((end, value)),
        _ => None,
    }
}

/// Returns the length of the value at the start of `elements`, which is nearly always a short
/// string.
pub(super) fn element_len(elements: &[u8]) -> Option<usize> {
    short(elements).or_else(|| Some(Walk::new(elements).value()?.len()))
}

/// Reads the elements of a whole reply one after the other, for the few replies that the proxy
/// reads.
pub(super) struct Walk<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(input: &'a [u8]) -> Walk<'a> {
        Walk { input, at: 0 }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Opens the aggregate here; returns its number of elements, with a map's keys and values
    /// counted alike.
    pub(super) fn open(&mut self) -> Option<u64> {
        match (self.input.get(self.at)?, element(self.input, self.at)) {
            (b'*' | b'~' | b'%', Element::Whole { end, more }) => {
                self.at = end;
                Some(more)
            }
            _ => None,
        }
    }

    /// Returns the text of the string or line here, without its framing.
    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let at = self.at;
        let first = *self.input.get(at)?;
        let end = self.skip_one()?;
        let text = &self.input[at + 1..end - 2];
        match first {
            b'$' if text.first() == Some(&b'-') => None,
            b'$' | b'=' | b'!' => {
                let line = memchr::memchr(b'\n', text)?;
                text.get(line + 1..)
            }
            b'+' | b'-' | b':' | b',' | b'#' | b'(' => Some(text),
            _ => None,
        }
    }

    /// Returns the number here.
    pub(super) fn number(&mut self) -> Option<u64> {
        scan::decimal(self.text()?, u64::MAX)
    }

    /// Returns the bytes of the whole value here, with everything in it.
    pub(super) fn value(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        let mut left: u64 = 1;
        while left > 0 {
            match element(self.input, self.at) {
                Element::Whole { end, more } => {
                    self.at = end;
                    left = (left - 1).checked_add(more)?;
                }
                Element::Body { .. } => {
                    self.skip_one()?;
                    left -= 1;
                }
                Element::Unfinished | Element::LongLine { .. } | Element::Wrong(_) => return None,
            }
        }
        Some(&self.input[start..self.at])
    }

    /// Skips one element or an aggregate's head; returns its end.
    fn skip_one(&mut self) -> Option<usize> {
        self.at = match element(self.input, self.at) {
            Element::Whole { end, .. } => end,
            Element::Body { start, len } => {
                let end = start + len as usize + 2;
                self.input.get(start..end)?.ends_with(b"\r\n").then_some(end)?
            }
            Element::Unfinished | Element::LongLine { .. } | Element::Wrong(_) => return None,
        };
        Some(self.at)
    }
}

#[cfg(test)]
mod tests;
