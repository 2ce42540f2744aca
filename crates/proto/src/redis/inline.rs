//! (being written)
use crate::Span;

/// An argument as it is meant: unquoted, where the request is a line.
pub(super) fn argument<'a>(head: &'a [u8], span: Span, _scratch: &'a mut Vec<u8>) -> &'a [u8] {
    span.of(head)
}
