//! Parts of a request from which one answer is made: the origin of each part, and how the protocol
//! receives them.

use proto::{Answer, Outcome, Part, ProxyFacts};

use super::{PendingRequest, RequestInfo, Slot};

impl PendingRequest {
    /// Keeps a server's whole reply until it is gathered.
    pub(in crate::client) fn keep_part(
        &mut self,
        slot: u32,
        origin: Origin<'_>,
        write: impl FnOnce(&RequestInfo, &mut Vec<u8>),
    ) {
        let start = self.values.len();
        origin.write(Kind::Reply, &mut self.values);
        write(&self.info, &mut self.values);
        self.fill(slot, start);
    }

    /// Keeps an error until it is gathered.
    pub(in crate::client) fn keep_bad_part(
        &mut self,
        slot: u32,
        origin: Origin<'_>,
        kind: Kind,
        text: &[u8],
    ) {
        let start = self.values.len();
        origin.write(kind, &mut self.values);
        self.values.extend_from_slice(text);
        let end = self.values.len() as u32;
        self.slots[slot as usize] = Slot::Failed { start: start as u32, end };
    }

    /// Makes the one answer from the gathered replies. Returns whether all of them were good.
    pub(in crate::client) fn gather(&mut self, ours: &dyn ProxyFacts, out: &mut Vec<u8>) -> bool {
        let is_bad = |slot: &Slot| matches!(slot, Slot::Failed { .. }) && !bug!(SwallowError);
        if self.info.element_per_key && !self.slots.iter().any(is_bad) {
            self.interleave(out);
            return true;
        }
        let (slots, values) = (&self.slots, &self.values);
        let of = |start: u32, end: u32| &values[start as usize..end as usize];
        let twice = slots.first().filter(|_| bug!(CountTwice));
        let lost = usize::from(bug!(LosePart) && slots.len() > 1);
        let counted = slots.iter().skip(lost).chain(twice);
        let mut parts = counted.filter_map(|slot| match *slot {
            Slot::Failed { .. } if bug!(SwallowError) => None,
            Slot::Small { start, end } | Slot::Failed { start, end } => {
                Some(Origin::read(of(start, end)))
            }
            Slot::Empty | Slot::Missed | Slot::With { .. } | Slot::Large { .. } => None,
        });
        let asked = self.info.asked();
        self.info.protocol.gather(&asked, &mut parts, ours, out);
        !slots.iter().any(is_bad)
    }

    /// Makes the next element of the reply in slot `first` the answer to this key.
    pub(in crate::client) fn follow(&mut self, slot: u32, first: u32) {
        if let Slot::Small { .. } = self.slots[first as usize] {
            self.slots[slot as usize] = Slot::With { first };
        }
    }

    /// Makes one list from the elements of several, in the order of the keys.
    fn interleave(&mut self, out: &mut Vec<u8>) {
        let upstream = self.info.protocol.upstream();
        let count = Answer::Open(self.slots.len() as u64);
        self.info.protocol.answer(&self.info.asked(), &count, out);
        for at in 0..self.slots.len() {
            let at = if bug!(ShiftElements) { (at + 1) % self.slots.len() } else { at };
            let (first, begins) = match self.slots[at] {
                Slot::With { first } => (first as usize, false),
                _ => (at, true),
            };
            // A client that has left gets no answer, and nothing was kept for it.
            let Slot::Small { start, end } = self.slots[first] else { continue };
            let rest = &self.values[start as usize..end as usize];
            let head = match begins {
                true => {
                    let origin = Origin::len(rest);
                    origin + upstream.elements(&rest[origin..]).map_or(0, |(head, _)| head)
                }
                false => 0,
            };
            let len = upstream.element_len(&rest[head..]).unwrap_or(0);
            out.extend_from_slice(&rest[head..head + len]);
            self.slots[first] = Slot::Small { start: start + (head + len) as u32, end };
        }
    }
}

/// The origin of a part of an answer. It is stored before the part, since the server may have left
/// the plan when the answer is made.
///
/// ```text
///   [ place 4 | kind 1 | length of the label 2 | label ]  the part
/// ```
pub(in crate::client) struct Origin<'a> {
    /// The server's place in the pool.
    pub(in crate::client) place: Option<u32>,
    /// The server's name, or the pool's where no server was found.
    pub(in crate::client) label: &'a str,
}

/// The kind of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Kind {
    /// A server's reply.
    Reply,
    /// A server's error line.
    Error,
    /// The text of a fault.
    Fault,
    /// The text of a fault, where a change may have been made.
    Uncertain,
}

impl Origin<'_> {
    fn write(&self, kind: Kind, out: &mut Vec<u8>) {
        // The configuration allows no name of nearly this length.
        let label = &self.label.as_bytes()[..self.label.len().min(usize::from(u16::MAX))];
        out.extend_from_slice(&self.place.unwrap_or(u32::MAX).to_le_bytes());
        out.push(kind as u8);
        out.extend_from_slice(&(label.len() as u16).to_le_bytes());
        out.extend_from_slice(label);
    }

    /// The most bytes that an origin takes.
    pub(in crate::client) const LEN_MAX: usize = ORIGIN_LEN + u16::MAX as usize;

    /// Returns how many bytes the origin takes before this part.
    fn len(part: &[u8]) -> usize {
        ORIGIN_LEN + usize::from(u16::from_le_bytes([part[5], part[6]]))
    }

    fn read(part: &[u8]) -> Part<'_> {
        let place = u32::from_le_bytes([part[0], part[1], part[2], part[3]]);
        let (origin, bytes) = part.split_at(Origin::len(part));
        let words = || std::str::from_utf8(bytes).unwrap_or_default();
        let outcome = match part[4] {
            kind if kind == Kind::Error as u8 => Outcome::Error(bytes),
            kind if kind == Kind::Fault as u8 => {
                Outcome::Fault { words: words(), uncertain: false }
            }
            kind if kind == Kind::Uncertain as u8 => {
                Outcome::Fault { words: words(), uncertain: true }
            }
            _ => Outcome::Reply(bytes),
        };
        let server = std::str::from_utf8(&origin[ORIGIN_LEN..]).unwrap_or_default();
        Part { server, place: (place != u32::MAX).then_some(place), outcome }
    }
}

const ORIGIN_LEN: usize = 7;
