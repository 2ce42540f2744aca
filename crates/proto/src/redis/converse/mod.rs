//! What the proxy says by itself (a stub until the reply side is here).

use crate::{Ask, Carry, Facts, Login, Request, Session, Skills, Turn};

pub(super) fn carry(request: &Request, _head: &[u8], _skills: Option<Skills>) -> Carry {
    Carry::Ask(Ask { command: request.command })
}

pub(super) fn converse(
    _request: &Request,
    _head: &[u8],
    _session: &mut Session,
    _facts: &Facts<'_>,
    _out: &mut Vec<u8>,
) -> Turn {
    Turn::Stay
}

pub(super) fn login<'a>(_request: &Request, _head: &'a [u8]) -> Login<'a> {
    Login::Other
}
