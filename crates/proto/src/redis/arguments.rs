//! The arguments of a request, which is an array or a line.

use std::borrow::Cow;

use super::{array, inline};

/// Returns the arguments in a request's head, beginning with the command's name. A body is not
/// among them.
pub(super) fn all(head: &[u8]) -> Vec<Cow<'_, [u8]>> {
    first(head, usize::MAX)
}

/// As `all`, at most `most` of them: a request may have millions.
pub(super) fn first(head: &[u8], most: usize) -> Vec<Cow<'_, [u8]>> {
    match inline::arguments(head) {
        Some(arguments) => arguments,
        None => {
            array::spans(head, most).into_iter().map(|span| Cow::Borrowed(span.of(head))).collect()
        }
    }
}
