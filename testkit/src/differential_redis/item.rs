//! One call: what it is, who is asked, and what has to come of it.

use super::compare;
use super::maker::Word;
use super::table::Likeness;
use crate::resp::{Reply, shown};

pub struct Item {
    /// Place in the table; none: a command that nobody has.
    pub row: Option<usize>,
    pub words: Vec<Word>,
    pub expect: Expect,
    pub likeness: Likeness,
    /// Not compared at all, but answered.
    pub skip: bool,
    /// After `CLIENT REPLY OFF` and the like nothing is said.
    pub silent: bool,
    /// Arguments were spoilt, so that which words are keys has to be asked.
    pub spoilt: bool,
    /// Its keys.
    pub keys: Vec<Vec<u8>>,
    /// Servers that these have.
    pub spread: usize,
}

/// What has to come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// What a server says.
    Same,
    /// `CROSSSLOT`, and no server is asked.
    Apart,
    /// Refused by its name, and no server is asked.
    ByName,
    /// Refused, because a pattern may be about any key.
    Pattern,
}

impl Item {
    pub fn bytes(&self) -> Vec<&[u8]> {
        self.words.iter().map(|word| &word.bytes[..]).collect()
    }

    pub fn is(&self, name: &str) -> bool {
        self.words[0].bytes.eq_ignore_ascii_case(name.as_bytes())
    }

    /// Whether one of its words is this one.
    pub fn says(&self, word: &str) -> bool {
        self.words[1..].iter().any(|one| one.bytes.eq_ignore_ascii_case(word.as_bytes()))
    }

    pub fn shown(&self) -> String {
        let words = self.words.iter().map(|word| match shown(&word.bytes) {
            text if text.is_empty() || text.contains(' ') => format!("'{text}'"),
            text => text,
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Whether that is what has to come; `direct` is none where no server was asked.
    pub fn accepts(&self, direct: Option<&Reply>, ours: &Reply) -> bool {
        match self.expect {
            Expect::Same => {
                let direct = direct.expect("a server was asked");
                self.skip || compare::is_like(self.likeness, direct, ours)
            }
            Expect::Apart => ours.error().starts_with("CROSSSLOT "),
            Expect::ByName => ours.error().contains(" is not supported: "),
            Expect::Pattern => ours.is_error(),
        }
    }
}
