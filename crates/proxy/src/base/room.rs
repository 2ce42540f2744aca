//! Reasons not to accept the data of a request, and the client's answers.

use proto::{Answer, Refusal};

/// The reason why the data of a request is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The data is longer than the pool allows.
    TooLarge,
    /// All memory is in use.
    NoMemory,
}

impl NoRoom {
    /// Returns the client's answer when its key has been removed or need not be.
    pub(crate) fn answer(self) -> Answer<'static> {
        match self {
            NoRoom::TooLarge => Answer::Refused(Refusal::TooLarge),
            NoRoom::NoMemory => Answer::Failed(NO_MEMORY),
        }
    }

    /// As `answer`, when its key could not be removed, or the outcome is unknown.
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
