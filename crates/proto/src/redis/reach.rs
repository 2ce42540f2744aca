//! The keys and databases that a request reaches, for clients that may not reach all of them.
//!
//! Everything that is not known to be harmless reaches any key: a command that a later version adds
//! is refused until somebody has looked at it.

use std::borrow::Cow;

use super::arguments;
use super::array::integer;
use super::commands::{Effort, id, row};
use crate::{Asked, Class, Database, Keys, Local, Place, Reach, Request};

/// Returns the keys that a request reaches.
pub(super) fn keys(request: &Request) -> Keys {
    if request.command == Asked::UNKNOWN {
        return Keys::Nothing;
    }
    let command = row(request.command);
    // A script reads and writes what it likes, whatever it declares.
    if command.effort == Effort::Script || is_of_scripts(command.name) {
        return if is_help(command.name) { Keys::Nothing } else { Keys::Any };
    }
    match request.class {
        Class::Local(Local::Subscribe) => match request.command {
            id::SUBSCRIBE | id::SSUBSCRIBE => Keys::Named,
            id::PSUBSCRIBE => Keys::Any,
            _ => Keys::Nothing,
        },
        Class::Local(_) => Keys::Nothing,
        Class::Single { .. } | Class::Split { .. } if request.place == Place::Keys => Keys::Named,
        // BY and GET look up keys that only the server knows.
        Class::Single { .. } if request.place == Place::Sole => Keys::Any,
        Class::Single { .. } if request.place == Place::Own => Keys::Nothing,
        Class::Single { .. } if request.command == id::SCAN => Keys::Matching,
        Class::Single { .. } if is_help(command.name) || request.command == id::TIME => {
            Keys::Nothing
        }
        Class::Broadcast { reach: Reach::Keys | Reach::Channel(_), .. } => Keys::Named,
        Class::Broadcast { .. } if request.command == id::KEYS => Keys::Matching,
        Class::Broadcast { .. } if matches!(request.command, id::INFO | id::CONFIG_GET) => {
            Keys::Nothing
        }
        // It is refused in any case, and its own error says more.
        Class::Refuse(_) => Keys::Nothing,
        _ => Keys::Any,
    }
}

fn is_help(name: &str) -> bool {
    name.ends_with("|help") || name == "lolwut"
}

/// Scripts and functions are common to all clients of a server.
fn is_of_scripts(name: &str) -> bool {
    name.starts_with("script|") || name.starts_with("function|")
}

/// Whether the patterns of a SCAN or KEYS match only keys that begin with `prefix`.
pub(super) fn matches_within(request: &Request, head: &[u8], prefix: &[u8]) -> bool {
    let words = arguments::all(head);
    if request.command == id::KEYS {
        return words.len() == 2 && begins_with(&words[1], prefix);
    }
    // SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]: of several patterns the last counts,
    // and all of them are looked at.
    let options = words.get(2..).unwrap_or_default();
    let mut has_pattern = false;
    for option in options.chunks(2) {
        let [name, value] = option else { return false };
        if name.eq_ignore_ascii_case(b"MATCH") {
            has_pattern = true;
            if !begins_with(value, prefix) {
                return false;
            }
        } else if !name.eq_ignore_ascii_case(b"COUNT") && !name.eq_ignore_ascii_case(b"TYPE") {
            return false;
        }
    }
    has_pattern
}

/// Whether everything that a pattern matches begins with `prefix`, which stands at its start
/// literally, or with backslashes.
fn begins_with(pattern: &[u8], prefix: &[u8]) -> bool {
    let mut at = 0;
    for byte in prefix {
        let found = match pattern.get(at) {
            None | Some(b'*' | b'?' | b'[') => return false,
            Some(b'\\') if at + 1 < pattern.len() => {
                at += 1;
                pattern[at]
            }
            Some(found) => *found,
        };
        if found != *byte {
            return false;
        }
        at += 1;
    }
    true
}

/// Returns the database that a request reaches.
pub(super) fn database(request: &Request, head: &[u8]) -> Database {
    match (request.class, request.command) {
        (_, id::SELECT) => {
            let words = arguments::first(head, 2);
            Database::Only(number(words.get(1)))
        }
        (_, id::SWAPDB | id::FLUSHALL) => Database::All,
        (_, id::MOVE) => Database::Also(number(arguments::first(head, 3).get(2))),
        (_, id::COPY) => {
            let words = arguments::all(head);
            let is_name = |at: &usize| words[*at].eq_ignore_ascii_case(b"DB");
            let named = (3..words.len()).rev().find(is_name);
            named.map_or(Database::Own, |at| Database::Also(number(words.get(at + 1))))
        }
        (Class::Local(Local::Subscribe), _) => database_of_topics(request, head),
        (
            Class::Local(
                Local::Own | Local::Clients | Local::Monitor | Local::Nothing | Local::Quit,
            ),
            _,
        )
        | (Class::Refuse(_), _) => Database::Nothing,
        _ => Database::Own,
    }
}

/// Channels belong to no database, but some tell of the keys in one, and a pattern may match those.
fn database_of_topics(request: &Request, head: &[u8]) -> Database {
    let is_of_keys = |topic: &Cow<'_, [u8]>| topic.starts_with(b"__key");
    match request.command {
        id::PSUBSCRIBE => Database::All,
        id::SUBSCRIBE if arguments::all(head).iter().any(is_of_keys) => Database::All,
        _ => Database::Nothing,
    }
}

/// Returns a database's number; one that cannot be read is no database, and servers say so.
fn number(word: Option<&Cow<'_, [u8]>>) -> u32 {
    let number = word.and_then(|word| integer(word)).unwrap_or(-1);
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{Redis, commands};
    use crate::{Parsed, Protocol, Resume};

    fn parse(text: &str) -> Request {
        let input = format!("{text}\r\n");
        match Redis.parse_request(input.as_bytes(), &mut Resume::default(), &mut Vec::new()) {
            Parsed::Complete(request) => request,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn what_names_its_keys_is_told_from_what_does_not() {
        for (text, expected) in [
            ("get k", Keys::Named),
            ("mset a 1 b 2", Keys::Named),
            ("del a b", Keys::Named),
            ("sort k", Keys::Named),
            ("sort k by nosort store d", Keys::Named),
            ("sort k by w_*", Keys::Any),
            ("sort k get #  get o_*", Keys::Any),
            ("xread streams a b 0 0", Keys::Named),
            ("object encoding k", Keys::Named),
            ("memory usage k", Keys::Named),
            ("debug object k", Keys::Named),
            ("eval x 1 k", Keys::Any),
            ("eval_ro x 0", Keys::Any),
            ("evalsha x 0", Keys::Any),
            ("fcall f 0", Keys::Any),
            ("function list", Keys::Any),
            ("script load x", Keys::Any),
            ("script flush", Keys::Any),
            ("script help", Keys::Nothing),
            ("scan 0", Keys::Matching),
            ("keys a*", Keys::Matching),
            ("flushall", Keys::Any),
            ("flushdb", Keys::Any),
            ("randomkey", Keys::Any),
            ("dbsize", Keys::Any),
            ("swapdb 0 1", Keys::Any),
            ("config set a b", Keys::Any),
            ("debug digest", Keys::Any),
            ("slowlog get", Keys::Nothing),
            ("latency reset", Keys::Nothing),
            ("latency doctor", Keys::Any),
            ("info", Keys::Nothing),
            ("ping", Keys::Nothing),
            ("command getkeys get k", Keys::Nothing),
            ("client setname x", Keys::Nothing),
            ("hello 3", Keys::Nothing),
            ("time", Keys::Nothing),
        ] {
            assert_eq!(keys(&parse(text)), expected, "{text}");
        }
    }

    /// Every command either names its keys or is looked at here, so none of a later version slips
    /// in.
    #[test]
    fn no_command_without_keys_is_harmless_by_itself() {
        let harmless = |row: &&commands::Row| {
            let class = row.class;
            let place = if row.keys.is_empty() { row.place } else { Place::Keys };
            let request = Request {
                command: row.id,
                class,
                place: if matches!(place, Place::Nth(_)) { Place::From(0) } else { place },
                ..Request::placeholder()
            };
            let asks = matches!(class, Class::Single { .. } | Class::Broadcast { .. });
            row.keys.is_empty() && asks && keys(&request) == Keys::Nothing
        };
        let names: Vec<&str> = commands::rows()
            .iter()
            .filter(harmless)
            .map(|row| row.name)
            .filter(|name| !is_help(name))
            .collect();
        assert_eq!(names, ["config|get", "info", "time", "wait", "waitaof"]);
    }

    #[test]
    fn a_pattern_begins_with_the_prefix_literally() {
        for (pattern, prefix, expected) in [
            ("a:*", "a:", true),
            ("a:", "a:", true),
            ("a:b?[c]", "a:", true),
            ("\\a\\:*", "a:", true),
            ("a*", "a:", false),
            ("*", "a:", false),
            ("?:*", "a:", false),
            ("[a]:*", "a:", false),
            ("", "a:", false),
            ("A:*", "a:", false),
            ("b:*", "a:", false),
            ("a\\", "a:", false),
            ("a[b]*", "a[b]", false),
            ("a\\[b\\]*", "a[b]", true),
            ("a\\[b]*", "a[b]", true),
            ("a\\*x", "a*", true),
            ("a*x", "a*", false),
            ("a\\", "a\\", true),
            ("a\\\\*", "a\\", true),
        ] {
            assert_eq!(begins_with(pattern.as_bytes(), prefix.as_bytes()), expected, "{pattern}");
        }
        let scan = |text: &str| {
            let request = parse(text);
            matches_within(&request, format!("{text}\r\n").as_bytes(), b"a:")
        };
        for (text, expected) in [
            ("scan 0 match a:*", true),
            ("scan 0 COUNT 9 MATCH a:* TYPE set", true),
            ("scan 0", false),
            ("scan 0 match a:* match *", false),
            ("scan 0 match * match a:*", false),
            ("scan 0 count match a:*", false),
            ("scan 0 match", false),
            ("scan 0 xyz a:*", false),
            ("keys a:*", true),
            ("keys *", false),
            ("keys \"a:*\"", true),
        ] {
            assert_eq!(scan(text), expected, "{text}");
        }
    }

    #[test]
    fn a_database_is_found_where_it_is_named() {
        for (text, expected) in [
            ("get k", Database::Own),
            ("select 3", Database::Only(3)),
            ("select x", Database::Only(u32::MAX)),
            ("move k 0", Database::Also(0)),
            ("copy a b", Database::Own),
            ("copy a b DB 0", Database::Also(0)),
            ("copy a b replace db 4", Database::Also(4)),
            ("copy DB DB", Database::Own),
            ("swapdb 0 1", Database::All),
            ("flushall", Database::All),
            ("flushdb", Database::Own),
            ("ping", Database::Nothing),
        ] {
            let head = format!("{text}\r\n");
            assert_eq!(database(&parse(text), head.as_bytes()), expected, "{text}");
        }
    }
}
