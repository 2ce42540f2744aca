//! Adapts a meta request to a server: unchanged where the server has the meta commands, and
//! otherwise to classic commands where they mean exactly the same.

use super::super::commands::{self, GATS_ONE, GETS_ONE};
use super::super::number::{self, Kind};
use super::super::{META, is_plain};
use super::flags::{number_of, option};
use super::{Line, Verb, base64};
use crate::scan::{Tokens, push_decimal};
use crate::{Adapted, Ask, Capabilities, Refusal, Request, Span};

/// Otherwise the server would answer with the unencoded key.
const HIDDEN: &str = "refused by the proxy: a line cannot hold this key";
const NO_META: &str = "refused by the proxy: this needs the meta commands, which the server lacks";

/// Returns the form of a single request for a server with these capabilities.
pub(in super::super) fn adapt(
    request: &Request,
    head: &[u8],
    capabilities: Option<Capabilities>,
) -> Adapted {
    if request.command == commands::ME && !request.arguments.is_empty() {
        let mut tokens = Tokens::new(head);
        let key = tokens.nth(1).map_or(&b""[..], |key| tokens.text(key));
        if is_hidden(key) {
            return Adapted::Refused(Refusal::ByName(HIDDEN));
        }
    }
    match capabilities {
        None => Adapted::Unknown,
        Some(capabilities) if capabilities.include(META) => {
            Adapted::Ask(Ask { command: request.command })
        }
        Some(_) => match Line::read(head).and_then(|line| classic(&line)) {
            Some(command) => Adapted::Ask(Ask { command }),
            None => Adapted::Refused(Refusal::ByName(NO_META)),
        },
    }
}

/// Returns the classic form that means the same, if there is one.
fn classic(line: &Line<'_>) -> Option<u16> {
    let flags = &line.flags;
    if flags.has(b'b') && is_hidden(line.key) {
        return None;
    }
    match line.verb {
        Verb::Get if flags.within(b"bvfcksOqPL") => Some(GETS_ONE),
        Verb::Get if flags.within(b"bvfcksOqPLT") => Some(GATS_ONE),
        Verb::Set if flags.within(b"bkOqPLTFM") => Some(match flags.mode {
            b'E' => commands::ADD,
            b'R' => commands::REPLACE,
            b'A' => commands::APPEND,
            b'P' => commands::PREPEND,
            _ => commands::SET,
        }),
        Verb::Set if flags.within(b"bkOqPLTFMC") && matches!(flags.mode, 0 | b'S' | b'R') => {
            Some(commands::CAS)
        }
        Verb::Delete if flags.within(b"bkOqPL") => Some(commands::DELETE),
        Verb::Arithmetic if flags.within(b"bkOqPLDMv") => {
            let down = matches!(flags.mode, b'D' | b'-');
            Some(if down { commands::DECR } else { commands::INCR })
        }
        _ => None,
    }
}

/// Writes the head in the form of `ask`.
pub(in super::super) fn write_head(
    request: &Request,
    head: &[u8],
    key: Span,
    ask: Ask,
    out: &mut Vec<u8>,
) {
    if ask.command == commands::ME {
        out.extend_from_slice(b"me ");
        out.extend_from_slice(key.of(head));
        let coded = !request.arguments.is_empty();
        return out.extend_from_slice(if coded { b" b\r\n" } else { b"\r\n" });
    }
    if ask.command == request.command {
        let coded = request.arguments.of(head) == b"b" && is_hidden(key.of(head));
        return write_meta(head, request.command == commands::MS, coded, out);
    }
    let Some(line) = Line::read(head) else {
        unreachable!("the parser has read it");
    };
    let name = match ask.command {
        GETS_ONE => "gets",
        GATS_ONE => "gats",
        other => commands::TABLE[usize::from(other)].name,
    };
    out.extend_from_slice(name.as_bytes());
    if ask.command == GATS_ONE {
        push_number(line.flags.ttl.into(), out);
    }
    out.push(b' ');
    if line.flags.has(b'b') {
        out.extend_from_slice(base64::decoded(line.key, &mut base64::room()).unwrap_or_default());
    } else {
        out.extend_from_slice(key.of(head));
    }
    match ask.command {
        commands::SET..=commands::CAS => {
            push_number(line.flags.client.into(), out);
            push_number(line.flags.ttl.into(), out);
            push_number(line.body as i64, out);
            if ask.command == commands::CAS {
                out.push(b' ');
                push_decimal(line.flags.cas, out);
            }
        }
        commands::INCR | commands::DECR => {
            out.push(b' ');
            push_decimal(line.flags.delta, out);
        }
        _ => {}
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the request that removes a key: as a meta command only if no classic command can hold the
/// key.
pub(in super::super) fn write_removal(key: &[u8], coded: bool, out: &mut Vec<u8>) {
    if coded && is_hidden(key) {
        out.extend_from_slice(b"md ");
        out.extend_from_slice(key);
        return out.extend_from_slice(b" b\r\n");
    }
    out.extend_from_slice(b"delete ");
    match coded {
        true => out.extend_from_slice(base64::decoded(key, &mut base64::room()).unwrap_or(key)),
        false => out.extend_from_slice(key),
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether this base64 stands for a key that no line may hold. A server that did not get its item
/// from an `ms` with `b` returns such a key unencoded, line ends and all, and we would take parts
/// of it for replies. So servers are never asked to return the key, which we know anyway.
pub(super) fn is_hidden(key: &[u8]) -> bool {
    !base64::decoded(key, &mut base64::room()).is_some_and(is_plain)
}

/// Writes the canonical, answering form: single spaces, plain numbers, no `q`, and no `k` of a
/// hidden key.
fn write_meta(head: &[u8], is_set: bool, hidden: bool, out: &mut Vec<u8>) {
    let mut tokens = Tokens::new(head);
    let mut place = 0;
    while let Some(token) = tokens.next() {
        let text = tokens.text(token);
        match place {
            0 | 1 => out.extend_from_slice(text),
            2 if is_set => number::push(Kind::Length, text, out),
            _ if text[0] == b'q' || hidden && text[0] == b'k' => continue,
            _ => push_option(text, out),
        }
        out.push(b' ');
        place += 1;
    }
    out.pop();
    out.extend_from_slice(b"\r\n");
}

/// Writes a flag.
fn push_option(token: &[u8], out: &mut Vec<u8>) {
    let (letter, text) = option(token);
    let Some(kind) = number_of(letter) else { return out.extend_from_slice(token) };
    out.push(letter);
    number::push(kind, text, out);
}

fn push_number(number: i64, out: &mut Vec<u8>) {
    out.push(b' ');
    number::push_signed(number, out);
}
