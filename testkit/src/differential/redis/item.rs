//! One call: its words, its servers, and the expected result.

use super::compare;
use super::maker::Word;
use super::table::Likeness;
use crate::wire::resp::Reply;
use crate::wire::shown;

pub struct Item {
    /// Index in the table; None for a command that nobody has.
    pub row: Option<usize>,
    pub words: Vec<Word>,
    pub expect: Expect,
    pub likeness: Likeness,
    /// It is answered, but the answer is not compared.
    pub skip: bool,
    /// It gets no answer, after `CLIENT REPLY OFF` and the like.
    pub silent: bool,
    /// The proxy knows the command, or its newest form, but the server does not: their texts for a
    /// mistake in it differ.
    pub newer: bool,
    /// Its arguments were spoilt, so a server must be asked for its keys.
    pub spoilt: bool,
    /// Its keys.
    pub keys: Vec<Vec<u8>>,
    /// Number of servers that own these keys.
    pub spread: usize,
}

/// The expected result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A server's own answer.
    Same,
    /// `CROSSSLOT`, and no server is asked.
    Apart,
    /// Refused by its name, and no server is asked.
    ByName,
    /// Refused, because a pattern may match any key.
    Pattern,
    /// Queued or refused, in a transaction that is refused.
    InVain,
    /// Refused, because it ends that transaction.
    Aborted,
    /// `+OK`: a transaction without effect is discarded.
    Discarded,
}

impl Item {
    pub fn bytes(&self) -> Vec<&[u8]> {
        self.words.iter().map(|word| &word.bytes[..]).collect()
    }

    /// Returns whether that side is asked: the server (0) only for what it has to answer as well.
    pub fn is_asked(&self, side: usize) -> bool {
        side > 0 || self.expect == Expect::Same
    }

    pub fn has_answer(&self, side: usize) -> bool {
        self.is_asked(side) && !self.silent
    }

    pub fn is(&self, name: &str) -> bool {
        self.words[0].bytes.eq_ignore_ascii_case(name.as_bytes())
    }

    /// Returns whether one of its words is `word`.
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

    /// Returns whether both report the same mistake in other words. Servers of other versions have
    /// other texts, and if the proxy cannot find the keys it answers by itself.
    pub fn is_said_otherwise(&self, direct: &Reply, ours: &Reply) -> bool {
        let (direct, ours) = (direct.error(), ours.error());
        let alike = direct != ours && direct.starts_with("ERR ") && ours.starts_with("ERR ");
        // The proxy escapes an echo of the client's bytes; the servers blank them.
        let echo = self.row.is_none() && ours.starts_with("ERR unknown command 'NOSUCH'");
        alike && (self.newer || self.spoilt || echo)
    }

    /// Returns whether the answer is as expected; `direct` is None if no server was asked.
    pub fn accepts(&self, direct: Option<&Reply>, ours: &Reply) -> bool {
        match self.expect {
            Expect::Same => {
                let direct = direct.expect("a server was asked");
                // The proxy makes its own cursors; it rejects a cursor that it did not make. For
                // GETKEYS a server accepts ' 1' as a number, but not in a call.
                let getkeys = self.is("command") && ours.is_error();
                self.skip
                    || self.spoilt && (self.is("scan") || getkeys)
                    || self.is_said_otherwise(direct, ours)
                    || compare::is_like(self.likeness, direct, ours)
            }
            // In a spoilt call the proxy may find another mistake first.
            Expect::Apart if self.spoilt => ours.is_error(),
            Expect::Apart => ours.error().starts_with("CROSSSLOT "),
            // The grammar of some commands is not documented, so their calls are too short.
            Expect::ByName => {
                let text = ours.error();
                text.contains(" is not supported: ") || text.starts_with("ERR wrong number of ")
            }
            Expect::Pattern => ours.is_error(),
            Expect::InVain => {
                let fine = [Reply::Simple(b"OK".to_vec()), Reply::Simple(b"QUEUED".to_vec())];
                fine.contains(ours) || ours.error().starts_with("CROSSSLOT ")
            }
            Expect::Aborted => ours.error().starts_with("EXECABORT "),
            Expect::Discarded => *ours == Reply::Simple(b"OK".to_vec()),
        }
    }
}
