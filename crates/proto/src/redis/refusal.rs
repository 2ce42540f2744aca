//! Refusals: the servers' texts for clients' mistakes, and our own for unsupported requests.

use std::borrow::Cow;

use super::array::{self, EXPECTED_BULK};
use super::work::DISCARDED;
use super::{arguments, commands, words};
use crate::answer::not_allowed;
use crate::{Asked, Refusal};

/// The bounds of a request are those of docs/redis.md.
const TOO_LARGE: &[u8] =
    b"ERR the request is too large: an argument may have item_size_max bytes, \
    a request 4194304 arguments and 2 GB, and one to subscribe 1 MB";

pub(super) fn write(asked: &Asked<'_>, why: Refusal, out: &mut Vec<u8>) {
    match why {
        Refusal::Unknown => unknown(asked.head, out),
        Refusal::ByName(why) => {
            let name = name(asked).replace('|', " ");
            words::error(
                &[b"ERR '", name.as_bytes(), b"' is not supported: ", why.as_bytes()],
                out,
            );
        }
        Refusal::NotAllowed(allowed) => {
            let name = name(asked).replace('|', " ");
            let why = not_allowed(allowed);
            let parts = [b"ERR '", name.as_bytes(), b"' is not supported: ", why.as_bytes()];
            words::error(&parts, out);
        }
        Refusal::Bad(EXPECTED_BULK) => {
            // A single byte, even one that would end a text.
            let found = [array::offender(asked.head)];
            words::error(&[b"ERR ", EXPECTED_BULK.as_bytes(), b"'", &found, b"'"], out);
        }
        Refusal::Bad(BAD_ARGUMENT) => {
            let arguments = arguments::first(asked.head, SHOWN_MAX);
            let wrong = words::shown(stray(&arguments).unwrap_or_default());
            words::error(&[b"ERR ", BAD_ARGUMENT.as_bytes(), wrong], out);
        }
        // EXEC ends its transaction whatever is wrong with it, and servers say so.
        Refusal::Bad(why) if asked.command == commands::id::EXEC => {
            let why = why.replace('%', name(asked));
            words::error(&[DISCARDED, why.as_bytes()], out);
        }
        Refusal::Bad(why) => {
            words::error(&[b"ERR ", why.replace('%', name(asked)).as_bytes()], out);
        }
        Refusal::OutOfPlace if asked.command == commands::id::MULTI => {
            words::error(&[b"ERR MULTI calls can not be nested"], out);
        }
        Refusal::OutOfPlace => {
            let name = name(asked).to_ascii_uppercase();
            words::error(&[b"ERR ", name.as_bytes(), b" without MULTI"], out);
        }
        Refusal::TooLong => words::error(&[b"ERR line too long"], out),
        Refusal::BadBody => words::error(&[b"ERR bad data chunk"], out),
        Refusal::NoPlace => words::error(&[b"ERR ", BAD_CURSOR.as_bytes()], out),
        Refusal::NoDatabase => words::error(&[b"ERR DB index is out of range"], out),
        Refusal::TooLarge | Refusal::TooLargeKept => {
            words::error(&[TOO_LARGE], out);
        }
    }
}

fn name(asked: &Asked<'_>) -> &'static str {
    commands::rows().get(usize::from(asked.command)).map_or("", |row| row.name)
}

/// Writes the error as servers do: the name and the beginning of the arguments, or the container's
/// help.
fn unknown(head: &[u8], out: &mut Vec<u8>) {
    let arguments = arguments::first(head, SHOWN_MAX);
    let Some((name, rest)) = arguments.split_first() else {
        return words::error(&[b"ERR unknown command"], out);
    };
    if let (Some(_), Some(sub)) = (commands::lookup(name), rest.first()) {
        let (container, sub) = (name.to_ascii_uppercase(), shown(sub));
        return words::error(
            &[b"ERR unknown subcommand '", sub, b"'. Try ", &container, b" HELP."],
            out,
        );
    }
    let mut beginning = Vec::new();
    for argument in rest {
        if beginning.len() >= words::ECHO_MAX {
            break;
        }
        let room = words::ECHO_MAX - beginning.len();
        let shown = words::shown(argument);
        beginning.push(b'\'');
        beginning.extend_from_slice(&shown[..shown.len().min(room)]);
        beginning.extend_from_slice(b"' ");
    }
    words::error(
        &[b"ERR unknown command '", shown(name), b"', with args beginning with: ", &beginning],
        out,
    );
}

/// The most arguments that are read: each one repeated takes at least three bytes.
const SHOWN_MAX: usize = words::ECHO_MAX / 3 + 2;

const BAD_CURSOR: &str = "invalid cursor";
/// The argument is added when the error is written.
pub(super) const BAD_ARGUMENT: &str = "Unknown argument ";

/// Returns the argument that `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]` does not know. Valkey
/// 9.1 repeats it unchanged, line ends and all, and on a shared link that would be taken for a
/// reply.
pub(super) fn stray<'a>(arguments: &'a [Cow<'_, [u8]>]) -> Option<&'a [u8]> {
    let (mut named, mut coded) = (false, false);
    let mut rest = arguments.get(2..).unwrap_or_default().iter();
    while let Some(word) = rest.next() {
        if !named && word.eq_ignore_ascii_case(b"LIBRARYNAME") {
            named = true;
            rest.next();
        } else if !coded && word.eq_ignore_ascii_case(b"WITHCODE") {
            coded = true;
        } else {
            return Some(word);
        }
    }
    None
}

/// Returns a name as servers repeat it.
fn shown(name: &[u8]) -> &[u8] {
    words::beginning(words::shown(name))
}
