//! Requests in one line, as a person types them: words between spaces, quoted as in a shell.

use std::borrow::Cow;

use super::array::{LINE_MAX, Stop};
use crate::scan;
use crate::{Resume, Span};

const TOO_BIG: &str = "Protocol error: too big inline request";
const UNBALANCED: &str = "Protocol error: unbalanced quotes in request";
/// Servers wait for the end of such a line for ever.
const NUL: &str = "Protocol error: a NUL in an inline request";

/// Returns the line that `input` begins with, and adds its words to `words`.
pub(super) fn read<'a>(
    input: &'a [u8],
    resume: &mut Resume,
    words: &mut Vec<Span>,
) -> Result<&'a [u8], Stop> {
    let window = &input[..input.len().min(LINE_MAX + 1)];
    let Some(len) = scan::line_len(window, resume) else {
        return Err(if input.len() > LINE_MAX { Stop::Never(TOO_BIG) } else { Stop::More });
    };
    let line = &input[..len];
    if memchr::memchr(0, line).is_some() {
        return Err(Stop::Never(NUL));
    }
    if split_into(line, words) { Ok(line) } else { Err(Stop::Never(UNBALANCED)) }
}

/// Returns an argument without its quotes.
pub(super) fn argument<'a>(head: &'a [u8], span: Span, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    let text = span.of(head);
    if head.first() == Some(&b'*') || !has_quotes(text) {
        return text;
    }
    scratch.clear();
    unquote(text, scratch);
    scratch
}

/// Returns all arguments of a line without their quotes; `None` if the head is no line.
pub(super) fn arguments(line: &[u8]) -> Option<Vec<Cow<'_, [u8]>>> {
    let meant = |span: Span| {
        let text = span.of(line);
        if !has_quotes(text) {
            return Cow::Borrowed(text);
        }
        let mut out = Vec::with_capacity(text.len());
        unquote(text, &mut out);
        Cow::Owned(out)
    };
    Some(spans(line)?.into_iter().map(meant).collect())
}

/// Returns the positions of a line's arguments; `None` if the head is no line.
pub(super) fn spans(head: &[u8]) -> Option<Vec<Span>> {
    let mut words = Vec::new();
    (head.first() != Some(&b'*') && split_into(head, &mut words)).then_some(words)
}

fn split_into(line: &[u8], words: &mut Vec<Span>) -> bool {
    let mut at = 0;
    loop {
        match next(line, at) {
            Some(Ok(word)) => {
                words.push(word);
                at = word.end as usize;
            }
            Some(Err(())) => return false,
            None => return true,
        }
    }
}

/// Returns the word after this one, in a line that has been split.
pub(super) fn after(line: &[u8], word: Span) -> Option<Span> {
    next(line, word.end as usize)?.ok()
}

/// Returns the next word from `at` on. An error means a quote that does not end.
fn next(line: &[u8], at: usize) -> Option<Result<Span, ()>> {
    let end = line.strip_suffix(b"\n").unwrap_or(line);
    let line = end.strip_suffix(b"\r").unwrap_or(end);
    let start = at + line[at..].iter().take_while(|byte| is_space(**byte)).count();
    let rest = line.get(start..).filter(|rest| !rest.is_empty())?;
    Some(word_len(rest).map(|len| Span::new(start, start + len)).ok_or(()))
}

/// Whether some of a text may be quoted.
pub(super) fn has_quotes(text: &[u8]) -> bool {
    memchr::memchr2(b'"', b'\'', text).is_some()
}

/// As `isspace` in C.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Returns the length of the word that `text` begins with.
fn word_len(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => break,
            // A blank follows, or nothing.
            b'"' | b'\'' => return Some(at + quoted_len(&text[at..], byte)?),
            _ => at += 1,
        }
    }
    Some(at)
}

/// Returns the length of a quoted text with its quotes. A word ends after the second quote.
fn quoted_len(text: &[u8], quote: u8) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'\\' if quote == b'"' && text.len() > at + 1 => at += 2,
            b'\\' if quote == b'\'' && text.get(at + 1) == Some(&b'\'') => at += 2,
            byte if *byte == quote => break,
            _ => at += 1,
        }
    }
    let ends = text.get(at + 1).is_none_or(|next| is_space(*next));
    ends.then_some(at + 1)
}

/// Writes a word of a split line without its quotes.
pub(super) fn unquote(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    let mut quote = None;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (quote, byte) {
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if byte == open => quote = None,
            (Some(b'"'), b'\\') => rest = escape(after, out),
            (Some(b'\''), b'\\') if after.first() == Some(&b'\'') => {
                out.push(b'\'');
                rest = &after[1..];
            }
            _ => out.push(byte),
        }
    }
}

/// Writes the byte of an escape between double quotes; returns the text after the escape.
fn escape<'a>(text: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    if let [b'x', high, low, rest @ ..] = text
        && let (Some(high), Some(low)) = (hex(*high), hex(*low))
    {
        out.push(high << 4 | low);
        return rest;
    }
    let Some((&byte, rest)) = text.split_first() else {
        out.push(b'\\');
        return text;
    };
    out.push(match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    });
    rest
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}
