//! Scripts that a server has forgotten: the proxy remembers those that it has seen loaded, and loads
//! one again when a server says that it does not know it.

use std::borrow::Cow;

use super::commands::id;
use super::reply::Walk;
use super::{request, words};
use crate::{Ask, Asked, Excuse};

/// The digest that SCRIPT LOAD was answered with, and the script.
pub(super) fn learn<'a>(asked: &Asked<'a>, reply: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    if asked.command != id::SCRIPT_LOAD {
        return None;
    }
    let digest = Walk::new(reply).text().filter(|digest| is_digest(digest))?;
    // One of a line with quotes, which stands nowhere as it is, is not remembered.
    match request::arguments(asked.head).into_iter().nth(2)? {
        Cow::Borrowed(script) => Some((digest, script)),
        Cow::Owned(_) => None,
    }
}

/// Loads the script that a server does not know.
pub(super) fn remedy(
    asked: &Asked<'_>,
    excuse: Excuse,
    known: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
    out: &mut Vec<u8>,
) -> Option<Ask> {
    let by_digest = matches!(asked.command, id::EVALSHA | id::EVALSHA_RO);
    if excuse != Excuse::NoScript || !by_digest {
        return None;
    }
    let digest = request::arguments(asked.head).get(1)?.to_ascii_lowercase();
    let script = known(&digest).filter(|_| is_digest(&digest))?;
    words::open_array(3, out);
    words::bulk(b"SCRIPT", out);
    words::bulk(b"LOAD", out);
    words::bulk(&script, out);
    Some(Ask { command: id::SCRIPT_LOAD })
}

/// Forty digits of base 16, as servers write them.
fn is_digest(text: &[u8]) -> bool {
    text.len() == 40 && text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
