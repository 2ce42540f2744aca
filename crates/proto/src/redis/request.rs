//! (being written)
use crate::{Extra, Parsed, Request, Resume, Span};

pub(super) fn parse(input: &[u8], resume: &mut Resume, keys: &mut Vec<Span>) -> Parsed<Request> {
    let _ = (input, resume, keys);
    Parsed::Incomplete
}

/// What a server is sent.
pub(super) fn write_head(_request: &Request, head: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(head);
}

/// Makes a request that can be routed of one whose command only the operator knows.
pub(super) fn adopt(_: &mut Request, _: &[u8], _: &mut Vec<Span>, _: &[Extra]) -> bool {
    false
}

/// The arguments that are in a request's head, its name first. A last one that is a body is not.
pub(super) fn arguments(head: &[u8]) -> Vec<std::borrow::Cow<'_, [u8]>> {
    let _ = head;
    Vec::new()
}
