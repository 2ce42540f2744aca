//! The keys that a request reaches, and the categories of commands.

use crate::{Class, Command, Keys, Local, Request};

/// Returns the keys that a request reaches. `argument` is that of a request for statistics. Servers
/// list keys, and prefixes of keys, in the answers to some of these.
pub(super) fn keys(request: &Request, argument: &[u8]) -> Keys {
    match request.class {
        Class::Fetch { .. } | Class::Single { .. } | Class::Split { .. } => Keys::Named,
        Class::Local(_) | Class::Refuse(_) => Keys::Nothing,
        Class::Broadcast { gated: false, writes: false, .. }
            if matches!(argument, b"" | b"settings") =>
        {
            Keys::Nothing
        }
        Class::Broadcast { .. } => Keys::Any,
    }
}

/// Returns the categories of a command: memcached has none, so they follow from the proxy's
/// treatment.
pub(super) fn categories(command: &Command) -> Vec<&'static str> {
    match command.class {
        Class::Fetch { idempotent: false, .. } => vec!["@read", "@write"],
        Class::Fetch { .. } | Class::Single { writes: false } => vec!["@read"],
        Class::Single { writes: true } | Class::Split { .. } => vec!["@write"],
        Class::Broadcast { gated: true, .. } => vec!["@admin", "@dangerous"],
        Class::Broadcast { .. } | Class::Local(Local::Stats) => vec!["@admin"],
        Class::Local(_) => vec!["@connection"],
        Class::Refuse(_) => Vec::new(),
    }
}

/// Returns the second word of a line.
pub(super) fn second_word(head: &[u8]) -> &[u8] {
    let is_end = |byte: &u8| byte.is_ascii_whitespace();
    head.split(is_end).filter(|word| !word.is_empty()).nth(1).unwrap_or_default()
}
