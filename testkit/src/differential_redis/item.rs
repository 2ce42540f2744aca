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
    /// The server does not know the command, or its newest form, and the proxy does: each has its
    /// own words for a mistake in it.
    pub newer: bool,
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
    /// Refused, because the transaction that it stands in was, or is that transaction's end.
    Void,
    /// `+OK`: nothing was to be done, and nothing is.
    Discarded,
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

    /// The same mistake, told in other words: servers of other versions have others, and where the
    /// proxy cannot tell the keys it answers by itself.
    pub fn is_said_otherwise(&self, direct: &Reply, ours: &Reply) -> bool {
        let (direct, ours) = (direct.error(), ours.error());
        let alike = direct != ours && direct.starts_with("ERR ") && ours.starts_with("ERR ");
        // An echo of the client's bytes is escaped by us, and blanked by them.
        let echo = self.row.is_none() && ours.starts_with("ERR unknown command 'NOSUCH'");
        alike && (self.newer || self.spoilt || echo)
    }

    /// Whether that is what has to come; `direct` is none where no server was asked.
    pub fn accepts(&self, direct: Option<&Reply>, ours: &Reply) -> bool {
        match self.expect {
            Expect::Same => {
                let direct = direct.expect("a server was asked");
                // A cursor is the proxy's own word: one that it did not give is no cursor.
                // For GETKEYS a server reads ' 1' as a number, which it does not in a call.
                let getkeys = self.is("command") && ours.is_error();
                self.skip
                    || self.spoilt && (self.is("scan") || getkeys)
                    || self.is_said_otherwise(direct, ours)
                    || compare::is_like(self.likeness, direct, ours)
            }
            // In a spoilt call the proxy may see another mistake first.
            Expect::Apart if self.spoilt => ours.is_error(),
            Expect::Apart => ours.error().starts_with("CROSSSLOT "),
            // The grammar of some is documented nowhere, and their calls are too short.
            Expect::ByName => {
                let text = ours.error();
                text.contains(" is not supported: ") || text.starts_with("ERR wrong number of ")
            }
            Expect::Pattern | Expect::Void => ours.is_error(),
            Expect::Discarded => *ours == Reply::Simple(b"OK".to_vec()),
        }
    }
}
