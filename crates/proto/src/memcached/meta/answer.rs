//! Answers to a client of the meta protocol.

use super::super::commands::{self, GATS_ONE, GETS_ONE, MA, ME, MG};
use super::super::reply::Value;
use super::adapt::is_hidden;
use super::flags::option as option_of;
use super::{Line, Verb, base64};
use crate::scan::{Tokens, push_decimal};
use crate::{Asked, Item, ItemKind, Quiet, Shown};

/// Whether the key and the opaque that a server's item repeats are those of the request.
pub(in super::super) fn is_answer(asked: &Asked<'_>, item: &Item, head: &[u8]) -> bool {
    let repeated = Repeated::read(asked.ask.command, item, head);
    if repeated.is_nothing() {
        return true;
    }
    let mut tokens = Tokens::new(asked.head);
    let key = tokens.by_ref().nth(1).map_or(&b""[..], |key| tokens.text(key));
    let (mut coded, mut opaque) = (false, None);
    while let Some(option) = tokens.next() {
        match option_of(tokens.text(option)) {
            (b'b', _) => coded = true,
            (b'O', text) => opaque = Some(text),
            _ => {}
        }
    }
    let mut room = base64::room();
    let key = match coded {
        true => base64::decoded(key, &mut room).unwrap_or_default(),
        false => key,
    };
    repeated.is_of(key, opaque)
}

/// The parts of a request that a server's item repeats. Some replies leave them out.
pub(in super::super) struct Repeated<'a> {
    key: Option<&'a [u8]>,
    form: Form,
    opaque: Option<&'a [u8]>,
}

/// The encoding of a key in a server's reply.
enum Form {
    Plain,
    Base64,
    /// Either: the reply does not show which.
    Untold,
}

impl<'a> Repeated<'a> {
    /// Reads an item that answers this command.
    pub(in super::super) fn read(command: u16, item: &Item, head: &'a [u8]) -> Repeated<'a> {
        let mut told = Repeated { key: None, form: Form::Plain, opaque: None };
        if !item.key.is_empty() {
            told.key = Some(item.key.of(head));
        }
        if !(MG..=ME).contains(&command) {
            return told;
        }
        let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
        let mut tokens = line.split(|&byte| byte == b' ');
        let code = tokens.next().unwrap_or_default();
        if command == ME {
            (told.key, told.form) = (tokens.next().filter(|_| code == b"ME"), Form::Untold);
            return told;
        }
        for token in tokens {
            match option_of(token) {
                (b'k', text) => told.key = Some(text),
                (b'b', b"") => told.form = Form::Base64,
                (b'O', text) => told.opaque = Some(text),
                _ => {}
            }
        }
        told
    }

    fn is_nothing(&self) -> bool {
        self.key.is_none() && self.opaque.is_none()
    }

    /// Whether it repeats nothing but this key and this opaque.
    pub(in super::super) fn is_of(&self, key: &[u8], opaque: Option<&[u8]>) -> bool {
        let is_coded = |text| base64::decoded(text, &mut base64::room()) == Some(key);
        let is_key = |text| match self.form {
            Form::Plain => text == key,
            Form::Base64 => is_coded(text),
            Form::Untold => text == key || is_coded(text),
        };
        self.key.is_none_or(is_key) && self.opaque.is_none_or(|text| Some(text) == opaque)
    }
}

/// Renders a server's item.
pub(in super::super) fn render(
    asked: &Asked<'_>,
    item: &Item,
    head: &[u8],
    out: &mut Vec<u8>,
) -> Shown {
    if asked.ask.command == asked.command {
        return pass(asked, item, head, out);
    }
    if asked.ask.command <= commands::GATS {
        return show_merged(asked, item, head, out);
    }
    let Some(line) = Line::read(asked.head) else {
        unreachable!("the parser has read it");
    };
    match asked.ask.command {
        GETS_ONE | GATS_ONE if item.key.is_empty() => show_miss(asked, &line, out),
        GETS_ONE | GATS_ONE => show_value(&line, item, head, out),
        _ => show_status(asked, &line, head, out),
    }
}

/// Passes the server's own line, or nothing if a quiet request hides it.
fn pass(asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
    if asked.quiet == Quiet::Sparing && item.kind == ItemKind::Status {
        let hidden = match asked.command {
            MG => head.starts_with(b"EN"),
            MA => head.starts_with(b"HD") || head.starts_with(b"VA"),
            ME => false,
            _ => head.starts_with(b"HD"),
        };
        if hidden {
            return Shown::Nothing;
        }
    }
    match hidden_key(asked.head) {
        Some(line) => push_key_back(&line, head, out),
        None => out.extend_from_slice(head),
    }
    if item.trailer.is_empty() { Shown::Head } else { Shown::Body { trailer: item.trailer } }
}

/// Returns the request, if it asks for the return of a key that was not requested from the server.
fn hidden_key(head: &[u8]) -> Option<Line<'_>> {
    // Nearly all requests of this form have no `b`.
    memchr::memmem::find(head, b" b")?;
    let line = Line::read(head)?;
    (line.flags.has(b'b') && line.flags.has(b'k') && is_hidden(line.key)).then_some(line)
}

/// Writes a server's line, with the key at the client's place for it.
fn push_key_back(line: &Line<'_>, head: &[u8], out: &mut Vec<u8>) {
    let (first, rest) = head.split_at(memchr::memchr(b'\r', head).unwrap_or(head.len()));
    let mut told = first.split(|&byte| byte == b' ').filter(|token| !token.is_empty()).peekable();
    let mut push = |token: &[u8]| {
        out.extend_from_slice(token);
        out.push(b' ');
    };
    if let Some(code) = told.next() {
        push(code);
        if code == b"VA" {
            told.next().into_iter().for_each(&mut push);
        }
    }
    for (letter, _) in line.options() {
        if letter == b'k' {
            push(&[b"k", line.key].concat());
            push(b"b");
        } else if let Some(token) = told.next_if(|token| token[0] == letter) {
            push(token);
        }
    }
    told.for_each(&mut push);
    out.pop();
    out.extend_from_slice(rest);
}

/// Writes a miss.
pub(in super::super) fn miss(asked: &Asked<'_>, out: &mut Vec<u8>) {
    if let Some(line) = Line::read(asked.head) {
        show_miss(asked, &line, out);
    }
}

fn show_miss(asked: &Asked<'_>, line: &Line<'_>, out: &mut Vec<u8>) -> Shown {
    if asked.quiet == Quiet::Sparing {
        return Shown::Nothing;
    }
    out.extend_from_slice(b"EN");
    push_options(line, None, out);
    Shown::Head
}

/// As `show_value`, for a merged read: it wants the value, and its key is no base64.
fn show_merged(asked: &Asked<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
    let value = Value::read(item, head);
    out.extend_from_slice(b"VA ");
    out.extend_from_slice(value.len);
    let mut tokens = Tokens::new(asked.head);
    let key = tokens.by_ref().nth(1).map_or(&b""[..], |key| tokens.text(key));
    while let Some(option) = tokens.next() {
        let (letter, text) = option_of(tokens.text(option));
        let text = match letter {
            b'O' => text,
            b'k' => key,
            b'f' => value.flags,
            b'c' => value.cas,
            b's' => value.len,
            _ => continue,
        };
        out.push(b' ');
        out.push(letter);
        out.extend_from_slice(text);
    }
    out.extend_from_slice(b"\r\n");
    Shown::Body { trailer: b"\r\n" }
}

fn show_value(line: &Line<'_>, item: &Item, head: &[u8], out: &mut Vec<u8>) -> Shown {
    let value = Value::read(item, head);
    let wanted = line.flags.has(b'v');
    if wanted {
        out.extend_from_slice(b"VA ");
        push_decimal(item.body, out);
    } else {
        out.extend_from_slice(b"HD");
    }
    push_options(line, Some(&value), out);
    if wanted { Shown::Body { trailer: b"\r\n" } } else { Shown::Head }
}

/// Renders a classic status as a meta code.
fn show_status(asked: &Asked<'_>, line: &Line<'_>, head: &[u8], out: &mut Vec<u8>) -> Shown {
    let text = head.strip_suffix(b"\r\n").unwrap_or(head);
    let code: &[u8] = match text {
        b"NOT_STORED" => b"NS",
        b"NOT_FOUND" => b"NF",
        b"EXISTS" => b"EX",
        _ => b"HD",
    };
    if code == b"HD" && asked.quiet == Quiet::Sparing {
        return Shown::Nothing;
    }
    let number = code == b"HD" && line.verb == Verb::Arithmetic && line.flags.has(b'v');
    if number {
        out.extend_from_slice(b"VA ");
        push_decimal(text.len() as u64, out);
    } else {
        out.extend_from_slice(code);
    }
    push_options(line, None, out);
    if number {
        out.extend_from_slice(head);
    }
    Shown::Head
}

/// Writes the flags that a server returns, in the client's order, and the end of the line.
fn push_options(line: &Line<'_>, value: Option<&Value<'_>>, out: &mut Vec<u8>) {
    for (letter, text) in line.options() {
        let text = match (letter, value) {
            (b'O', _) => text,
            (b'k', _) => line.key,
            (b'f', Some(value)) => value.flags,
            (b'c', Some(value)) => value.cas,
            (b's', Some(value)) => value.len,
            _ => continue,
        };
        out.push(b' ');
        out.push(letter);
        let coded = letter == b'k' && line.flags.has(b'b');
        if coded && value.is_some() {
            // An item that was stored with its key unencoded has it unencoded.
            out.extend_from_slice(base64::decoded(text, &mut base64::room()).unwrap_or(text));
        } else {
            out.extend_from_slice(text);
            out.extend_from_slice(if coded { b" b" } else { b"" });
        }
    }
    out.extend_from_slice(b"\r\n");
}
