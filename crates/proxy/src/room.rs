//! Why there is no room for the data of a request, and what its client is told.

use proto::{Answer, Refusal};

/// Why the data of a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// It is longer than the pool lets it be.
    TooLarge,
    /// All memory is in use.
    NoMemory,
}

impl NoRoom {
    /// What its client is told, when its key has been removed or need not be.
    pub(crate) fn answer(self) -> Answer<'static> {
        match self {
            NoRoom::TooLarge => Answer::Refused(Refusal::TooLarge),
            NoRoom::NoMemory => Answer::Failed("out of memory storing object"),
        }
    }

    /// As `answer`, when its key could not be removed.
    pub(crate) fn answer_kept(self) -> Answer<'static> {
        match self {
            NoRoom::TooLarge => Answer::Refused(Refusal::TooLargeKept),
            NoRoom::NoMemory => Answer::Failed("out of memory storing object, old value kept"),
        }
    }
}
