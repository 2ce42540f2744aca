//! The errors of servers, and the meaning of each for the request that it answers.

use crate::Ask;

/// The errors of a protocol's servers.
pub trait Errors: Sync {
    /// Returns every retryable error of these servers.
    fn retryable_errors(&self) -> &'static [Retryable] {
        &[]
    }

    /// Returns the retryable error of this error line, if it says that the server did nothing.
    fn retryable(&self, _line: &[u8]) -> Option<&'static Retryable> {
        None
    }

    /// Returns the line of an error that says that the server did nothing, because it is busy with
    /// something that takes long.
    fn busy_line(&self, _error: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Whether a command runs code that a client has written, so that its error may be any line.
    fn runs_script(&self, _ask: Ask) -> bool {
        false
    }
}

/// A retryable error: the server did nothing of the request, so it can be sent again. A protocol
/// lists all of its own in [`Errors::retryable_errors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retryable {
    /// Its index in that list.
    pub place: usize,
    /// The counter of requests that are sent again after it: its name, and the line about it in the
    /// reference. Each server of the protocol has it.
    pub counter: &'static str,
    pub help: &'static str,
    /// The error comes again unless [`crate::Protocol::recovery`] is sent first. Otherwise it
    /// passes with time, and the request waits before it is sent again.
    pub needs_recovery: bool,
}
