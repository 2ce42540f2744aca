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
            NoRoom::NoMemory => Answer::Failed(NO_MEMORY),
        }
    }

    /// As `answer`, when its key could not be removed, or nobody knows whether it was.
    pub(crate) fn answer_failed<'a>(self, why: &Answer<'_>, text: &'a mut String) -> Answer<'a> {
        if let Answer::Uncertain(why) = why {
            *text = format!("{}; {why}", self.words());
            return Answer::Uncertain(text);
        }
        match self {
            NoRoom::TooLarge => Answer::Refused(Refusal::TooLargeKept),
            NoRoom::NoMemory => Answer::Failed("out of memory storing object, old value kept"),
        }
    }

    fn words(self) -> &'static str {
        match self {
            NoRoom::TooLarge => "object too large for cache",
            NoRoom::NoMemory => NO_MEMORY,
        }
    }
}

const NO_MEMORY: &str = "out of memory storing object";
