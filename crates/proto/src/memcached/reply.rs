//! Replies of servers. A line that cannot answer the request is `Malformed`, and the caller
//! believes nothing after it: one misread byte on a shared link would give clients each other's
//! values.

use super::commands::{
    CACHEDUMP, CAS, DECR, DELETE, DETAIL_DUMP, FLUSH_ALL, GATS, GATS_ONE, GETS, GETS_ONE, INCR, ME,
    MG, SET, SIZES_DISABLE, SIZES_ENABLE, SLABS, STATS, TOUCH, VERSION,
};
use super::line::{NO_ANSWER, error_or_malformed, item};
use super::{BODY_MAX, meta};
use crate::scan;
use crate::{Ask, Item, ItemKind, Parsed, Progress, Resume, Shown, Span};

/// A number with this many digits cannot overflow 64 bits.
const SAFE_DIGITS: usize = 19;
/// The beginning of a value's head.
const VALUE: &[u8] = b"VALUE ";
/// The longest line that a server may send.
const LINE_MAX: usize = 2048;

const TOO_LONG: &str = "a line without end";
const BAD_VALUE: &str = "a malformed VALUE line";

pub(super) fn parse(ask: Ask, progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
    if (ask.command < SET || ask.command >= GETS_ONE) && input.starts_with(VALUE) {
        return value(ask, input);
    }
    let head = &input[..input.len().min(LINE_MAX)];
    let Some(len) = scan::line_len(head, &mut Resume::default()) else {
        return unfinished(input);
    };
    let line = &input[..len];
    if !line.ends_with(b"\r\n") {
        return Parsed::Malformed(NO_ANSWER);
    }
    let text = &line[..len - 2];
    if ask.command < SET {
        return if text == b"END" {
            item(ItemKind::End, len)
        } else {
            error_or_malformed(text, len)
        };
    }
    if (MG..=ME).contains(&ask.command) {
        return meta::reply::parse(ask.command, input, len);
    }
    if answers(ask.command, text) {
        return item(ItemKind::Status, len);
    }
    match ask.command {
        STATS => list(b"STAT ", progress, input),
        DETAIL_DUMP => list(b"PREFIX ", progress, input),
        CACHEDUMP => list(b"ITEM ", progress, input),
        SIZES_ENABLE | SIZES_DISABLE if text == b"STAT sizes_status error" => sizes(input, len),
        // The reply `ERROR` to such a command may be followed by a reason.
        SLABS..=SIZES_DISABLE if text.starts_with(b"ERROR ") => item(ItemKind::Error, len),
        _ => error_or_malformed(text, len),
    }
}

/// Whether this line can answer an administrative command, be it executed or not.
fn is_admins(text: &[u8]) -> bool {
    let word = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    match word {
        b"OK" | b"RESET" => word.len() == text.len(),
        b"BUSY"
        | b"BADCLASS"
        | b"NOSPARE"
        | b"NOTFULL"
        | b"UNSAFE"
        | b"SAME"
        | b"NOTSTARTED"
        | b"MEMLIMIT_TOO_SMALL"
        | b"MEMLIMIT_ADJUST_FAILED" => true,
        _ => false,
    }
}

/// Reads a list that servers do not end: one line, or two where there is an error.
fn sizes(input: &[u8], first: usize) -> Parsed<Item> {
    let rest = &input[first..input.len().min(first + LINE_MAX)];
    match scan::line_len(rest, &mut Resume::default()) {
        Some(len) if rest[..len].starts_with(b"STAT sizes_error ") => {
            item(ItemKind::Status, first + len)
        }
        Some(_) => Parsed::Malformed(NO_ANSWER),
        None => unfinished(rest),
    }
}

/// Reads lines that begin with `word` up to `END`, or one other line in their place. An item has as
/// many whole lines as there are, of which `parse` has found the first; `Progress::left` is 1 while
/// more must follow.
fn list(word: &[u8], progress: &mut Progress, input: &[u8]) -> Parsed<Item> {
    let mut at = 0;
    loop {
        let rest = &input[at..];
        let head = &rest[..rest.len().min(LINE_MAX)];
        let Some(len) = scan::line_len(head, &mut Resume::default()) else {
            progress.left = 1;
            return item(ItemKind::Part, at);
        };
        let Some(text) = head[..len].strip_suffix(b"\r\n") else {
            return Parsed::Malformed(NO_ANSWER);
        };
        let is_first = at == 0 && progress.left == 0;
        at += len;
        match text {
            b"END" => {
                progress.left = 0;
                return item(ItemKind::Status, at);
            }
            _ if text.starts_with(word) => {}
            b"OK" | b"RESET" if is_first => return item(ItemKind::Status, len),
            _ if is_first => return error_or_malformed(text, len),
            _ => return Parsed::Malformed(NO_ANSWER),
        }
    }
}

/// Reads `VALUE key flags bytes [cas]` in one pass: most replies of servers begin so.
fn value(ask: Ask, input: &[u8]) -> Parsed<Item> {
    let rest = &input[VALUE.len()..input.len().min(LINE_MAX)];
    // If the key stops at the end of the line, the checks below fail.
    let Some(key_len) = memchr::memchr2(b' ', b'\n', rest) else {
        return unfinished(input);
    };
    let key = Span::new(VALUE.len(), VALUE.len() + key_len);
    let mut cursor = Cursor { input, at: key.end as usize };
    match cursor.value_tail(ask) {
        Some(body) if key_len > 0 => {
            let head = cursor.at as u32;
            let (kind, trailer): (_, &[u8]) = match ask.command {
                GETS_ONE | GATS_ONE => (ItemKind::Status, b"\r\nEND\r\n"),
                _ => (ItemKind::Value, b"\r\n"),
            };
            Parsed::Complete(Item { kind, head, body, trailer, key })
        }
        None if cursor.at >= input.len() => unfinished(input),
        _ => Parsed::Malformed(BAD_VALUE),
    }
}

/// The fields of a value's head, as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value<'a> {
    pub(super) flags: &'a [u8],
    pub(super) len: &'a [u8],
    /// Empty where no cas number was asked for.
    pub(super) cas: &'a [u8],
}

impl<'a> Value<'a> {
    /// Reads a head that `parse` has accepted.
    pub(super) fn read(item: &Item, head: &'a [u8]) -> Value<'a> {
        let text = head.get(item.key.end as usize + 1..).unwrap_or_default();
        let text = text.strip_suffix(b"\r\n").unwrap_or(text);
        let mut parts = text.split(|&byte| byte == b' ');
        let mut part = || parts.next().unwrap_or_default();
        Value { flags: part(), len: part(), cas: part() }
    }
}

/// Reads flags and cas number of a head that `parse` has accepted, in one pass.
pub(super) fn numbers(item: &Item, head: &[u8]) -> (u32, u64) {
    let mut rest = head.get(item.key.end as usize + 1..).unwrap_or_default();
    let mut next = || {
        let (value, len) = digits(rest);
        rest = rest.get(len + 1..).unwrap_or_default();
        value
    };
    let (flags, _len) = (next(), next());
    // Without a cas number, a line feed is next.
    (flags as u32, next())
}

/// Passes a value to a classic read, without a cas number that this read did not ask for: another
/// read that did was sent together with it.
pub(super) fn pass(command: u16, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
    let cas = if matches!(command, GETS | GATS) { b"" } else { Value::read(item, head).cas };
    if cas.is_empty() {
        out.extend_from_slice(head);
    } else {
        out.extend_from_slice(&head[..head.len() - b"\r\n".len() - cas.len() - 1]);
        out.extend_from_slice(b"\r\n");
    }
    Shown::Body { trailer: item.trailer }
}

/// Returns whether a read of one key found something, according to the reply.
pub(super) fn found(ask: Ask, item: &Item, head: &[u8]) -> Option<bool> {
    match ask.command {
        MG => Some(!head.starts_with(b"EN")),
        GETS_ONE | GATS_ONE => Some(!item.key.is_empty()),
        _ => None,
    }
}

/// A position in a head. If it stops before the end, the text there does not fit; at the end, more
/// may come.
struct Cursor<'a> {
    input: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// Reads the fields after a value's key; returns the value's length.
    fn value_tail(&mut self, ask: Ask) -> Option<u64> {
        self.number(u64::from(u32::MAX))?;
        let body = self.number(BODY_MAX)?;
        if matches!(ask.command, GETS | GATS | GETS_ONE | GATS_ONE) {
            self.number(u64::MAX)?;
        }
        self.literal(b'\r')?;
        self.literal(b'\n')?;
        Some(body)
    }

    /// Reads a space and a decimal of at most `max`.
    fn number(&mut self, max: u64) -> Option<u64> {
        self.literal(b' ')?;
        let start = self.at;
        let mut value: u64 = 0;
        while let Some(digit) = self.input.get(self.at).map(|byte| byte.wrapping_sub(b'0'))
            && digit <= 9
        {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.at += 1;
        }
        let text = &self.input[start..self.at];
        let fits = match text.len() {
            0 => None,
            1..=SAFE_DIGITS => (value <= max).then_some(value),
            _ => scan::decimal(text, max),
        };
        if fits.is_none() {
            // Digits that are no valid number will not become one.
            self.at = start;
        }
        fits
    }

    fn literal(&mut self, byte: u8) -> Option<()> {
        (self.input.get(self.at) == Some(&byte)).then(|| self.at += 1)
    }
}

/// Returns the number that `text` begins with, and its count of digits. The number may overflow.
fn digits(text: &[u8]) -> (u64, usize) {
    let (mut value, mut len) = (0_u64, 0);
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        len += 1;
    }
    (value, len)
}

/// Handles a head whose end has not come: it may come, up to a length.
fn unfinished(input: &[u8]) -> Parsed<Item> {
    if input.len() >= LINE_MAX { Parsed::Malformed(TOO_LONG) } else { Parsed::Incomplete }
}

/// Whether `text` is one of the statuses that `command` can have.
fn answers(command: u16, text: &[u8]) -> bool {
    match command {
        CAS => matches!(text, b"STORED" | b"EXISTS" | b"NOT_FOUND" | b"NOT_STORED"),
        SET..CAS => matches!(text, b"STORED" | b"NOT_STORED"),
        DELETE => matches!(text, b"DELETED" | b"NOT_FOUND"),
        INCR | DECR => text == b"NOT_FOUND" || scan::decimal(text, u64::MAX).is_some(),
        TOUCH => matches!(text, b"TOUCHED" | b"NOT_FOUND"),
        FLUSH_ALL => text == b"OK",
        SIZES_ENABLE => text == b"STAT sizes_status enabled",
        SIZES_DISABLE => text == b"STAT sizes_status disabled",
        SLABS..SIZES_ENABLE => is_admins(text),
        VERSION => text.starts_with(b"VERSION "),
        GETS_ONE | GATS_ONE => text == b"END",
        // A list, which `list` reads.
        STATS | DETAIL_DUMP | CACHEDUMP => false,
        _ => unreachable!("row {command} is never sent"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(said: &str, cut: usize) -> Result<String, &'static str> {
        let (mut progress, mut at, mut told) = (Progress::default(), 0, String::new());
        let mut end = cut.min(said.len());
        loop {
            let input = &said.as_bytes()[at..end];
            match parse(Ask { command: STATS }, &mut progress, input) {
                Parsed::Malformed(why) => return Err(why),
                Parsed::Incomplete if end == said.len() => return Err("incomplete"),
                Parsed::Incomplete => end = said.len().min(end + cut),
                Parsed::Complete(item) => {
                    assert!(item.head > 0 && item.len() == u64::from(item.head));
                    told.push_str(&said[at..at + item.head as usize]);
                    at += item.head as usize;
                    match item.kind {
                        ItemKind::Part => {}
                        kind => return Ok(format!("{kind:?} {told}")),
                    }
                    end = said.len().min(end.max(at + 1));
                }
            }
        }
    }

    #[test]
    fn a_list_of_lines_is_one_reply_in_whatever_pieces_it_comes() {
        let whole = "STAT pid 1\r\nSTAT x END\r\nSTAT version 1.6.18\r\nEND\r\n";
        for cut in 1..=whole.len() {
            assert_eq!(list(whole, cut), Ok(format!("Status {whole}")), "{cut}");
            let longer = format!("{whole}STORED\r\n");
            assert_eq!(list(&longer, cut), Ok(format!("Status {whole}")), "{cut}");
            assert_eq!(list("END\r\n", cut), Ok("Status END\r\n".to_string()));
            assert_eq!(list("RESET\r\n", cut), Ok("Status RESET\r\n".to_string()));
            assert_eq!(list("ERROR\r\n", cut), Ok("Error ERROR\r\n".to_string()));
        }
    }

    #[test]
    fn the_list_of_a_switch_ends_without_an_end() {
        let check = |said: &str, expected: Parsed<Item>| {
            let ask = Ask { command: SIZES_ENABLE };
            assert_eq!(parse(ask, &mut Progress::default(), said.as_bytes()), expected, "{said}");
        };
        let enabled = "STAT sizes_status enabled\r\n";
        check(&format!("{enabled}STORED\r\n"), item(ItemKind::Status, enabled.len()));
        let first = "STAT sizes_status error\r\n";
        let error = format!("{first}STAT sizes_error no_memory\r\n");
        for len in first.len()..error.len() {
            check(&error[..len], Parsed::Incomplete);
        }
        check(&error, item(ItemKind::Status, error.len()));
        check(&format!("{first}STORED\r\n"), Parsed::Malformed(NO_ANSWER));
        check("STAT sizes_status disabled\r\n", Parsed::Malformed(NO_ANSWER));
        check("ERROR\r\n", item(ItemKind::Error, 7));
    }

    #[test]
    fn a_list_with_anything_else_in_it_is_not_believed() {
        for said in
            ["STORED\r\n", "STAT a 1\r\nOK\r\n", "STAT a 1\r\nERROR\r\n", "END\n", "STAT a\nb\r\n"]
        {
            for cut in 1..=said.len() {
                assert_eq!(list(said, cut), Err(NO_ANSWER), "{said:?} {cut}");
            }
        }
        let long = format!("STAT a {}\r\nEND\r\n", "x".repeat(LINE_MAX));
        assert_eq!(list(&long, long.len()), Err(TOO_LONG));
        assert_eq!(list(&format!("STAT a 1\r\n{long}"), 4096), Err(TOO_LONG));
    }
}
