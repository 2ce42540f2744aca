//! The keys of one message to a server: a read that several requests may share, or the part of a
//! request that is split.

use proto::{Ask, Upstream};

use super::costs::Costs;
use crate::Time;
use crate::base::buffer::Slice;
use crate::base::id::ConnId;
use crate::base::part::Part;
use crate::base::size::Cost;
use crate::base::{Base, limits};

/// The keys of one get, in the order of the requests, each with its request. Always boxed, since it
/// moves from the open batch to the queue and on to the spares, and takes three cache lines.
pub(crate) struct Batch {
    /// The message, whose bytes the entries point into.
    pub(crate) text: Vec<u8>,
    pub(crate) entries: Vec<Entry>,
    /// Large values that stand among the text, each at its offset. They are parts of a block that
    /// the account has by itself.
    pub(super) rests: Vec<(usize, Slice)>,
    pub(crate) ask: Ask,
    /// Sending it again changes nothing.
    pub(crate) idempotent: bool,
    /// One reply answers all its keys.
    pub(crate) single_reply: bool,
    /// The length of the prefix of `text`, which precedes the first key.
    prefix_len: usize,
    /// The entries before this one have had their turn: they are settled or skipped.
    pub(crate) cursor: usize,
    /// Keys that the server passed over. They become misses only when the reply has ended, since a
    /// reply that turns out to be wrong must not have produced any.
    pub(crate) skipped: Vec<Entry>,
    /// The turn in which the batch was opened, and the time.
    pub(crate) turn: u64,
    pub(crate) since: Time,
    /// When its last key came. Its time in the queue counts from then on.
    pub(crate) latest: Time,
    /// The costs of its keys.
    pub(super) costs: Costs,
}

/// One key of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) part: Part,
    /// The client that asks.
    pub(super) client: ConnId,
    pub(super) cost: Cost,
    start: u32,
    end: u32,
}

impl Batch {
    /// Makes an empty batch, to be opened.
    pub(crate) fn blank() -> Box<Batch> {
        Box::new(Batch {
            text: Vec::new(),
            entries: Vec::new(),
            rests: Vec::new(),
            ask: Ask::default(),
            idempotent: false,
            single_reply: false,
            prefix_len: 0,
            cursor: 0,
            skipped: Vec::new(),
            turn: 0,
            since: Time(0),
            latest: Time(0),
            costs: Costs::default(),
        })
    }

    /// Clears a used batch for keys to be asked in form `ask`. Its buffers stay.
    pub(crate) fn open(&mut self, ask: Ask, idempotent: bool, turn: u64, now: Time) {
        self.text.clear();
        self.entries.clear();
        self.ask = ask;
        self.idempotent = idempotent;
        self.single_reply = false;
        self.cursor = 0;
        self.skipped.clear();
        self.turn = turn;
        self.since = now;
        self.latest = now;
        self.costs = Costs::default();
    }

    /// Clears a used batch for keys to be asked as those of another.
    pub(super) fn open_like(&mut self, other: &Batch, turn: u64, now: Time) {
        self.open(other.ask, other.idempotent, turn, now);
        self.single_reply = other.single_reply;
        self.text.extend_from_slice(other.prefix());
    }

    /// Returns the bytes that are sent for its keys, and expected in answer.
    pub(crate) fn bytes_asked(&self) -> u64 {
        self.costs.bytes().saturating_sub(self.entries.len() as u64 * limits::COST_OF_MESSAGE)
    }

    /// Returns the bytes before the first key: the command and its arguments.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.text[..self.prefix_len]
    }

    /// Changes the form in which its keys are asked, and the bytes before the first one.
    pub(crate) fn widen(&mut self, ask: Ask, prefix: &[u8]) {
        let (old, new) = (self.prefix_len as u32, prefix.len() as u32);
        self.text.splice(..self.prefix_len, prefix.iter().copied());
        self.prefix_len = prefix.len();
        self.ask = ask;
        for entry in &mut self.entries {
            entry.start = entry.start - old + new;
            entry.end = entry.end - old + new;
        }
    }

    pub(crate) fn key(&self, entry: Entry) -> &[u8] {
        &self.text[entry.start as usize..entry.end as usize]
    }

    /// Whether one more key of this length is within the bounds of a batch.
    pub(crate) fn has_room(&self, key_len: usize, bytes_max: usize) -> bool {
        self.entries.len() < limits::BATCH_KEYS_MAX
            && self.text.len() + key_len + 3 <= limits::BATCH_BYTES_MAX.min(bytes_max)
    }

    pub(super) fn push(
        &mut self,
        upstream: &dyn Upstream,
        key: &[u8],
        (part, client): (Part, ConnId),
        cost: Cost,
    ) {
        if self.entries.is_empty() {
            self.prefix_len = self.text.len();
        }
        let start = upstream.push_fetch(key, &mut self.text);
        let (start, end) = (start as u32, (start + key.len()) as u32);
        self.entries.push(Entry { part, client, cost, start, end });
        self.costs.add(cost);
    }

    /// Gives a key another cost.
    pub(super) fn renew(&mut self, at: usize, cost: Cost) {
        let before = std::mem::replace(&mut self.entries[at].cost, cost);
        self.costs.add(cost);
        self.costs.remove(before);
    }

    /// Whether the answers would be large with one more key, or of unknown length and more than a
    /// link may have of these: what is one message can be neither bounded nor taken back.
    pub(super) fn is_dear(&self, base: &Base, cost: Cost) -> bool {
        self.costs.bytes() + cost.bytes() > base.limits.large_min
            || cost.is_unproven() && self.costs.unproven() + cost.unproven() > base.limits.unproven
    }

    /// Splits off the entries that are `is_out`. Returns the batch without them, if any are left,
    /// and those entries.
    pub(crate) fn part(
        &self,
        upstream: &dyn Upstream,
        mut is_out: impl FnMut(&Entry) -> bool,
    ) -> (Option<Box<Batch>>, Box<Batch>) {
        let mut with = |wanted: bool| {
            let mut part = Batch::blank();
            part.open_like(self, self.turn, self.since);
            part.latest = self.latest;
            for entry in self.entries[self.cursor..].iter().filter(|entry| is_out(entry) == wanted)
            {
                part.push(upstream, self.key(*entry), (entry.part, entry.client), entry.cost);
            }
            part
        };
        let kept = with(false);
        ((!kept.entries.is_empty()).then_some(kept), with(true))
    }

    /// Whether all its keys are one request's.
    pub(super) fn is_of_one_request(&self) -> bool {
        self.entries.iter().all(|entry| entry.part.request == self.entries[0].part.request)
    }

    /// Whether sending it again would change nothing.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.idempotent || bug!(ResendTouch)
    }

    /// Whether a key of this client is in it, as far as the turn tells in which the client last
    /// added one.
    pub(super) fn is_shared_by(&self, client: ConnId, batch_turn: u64) -> bool {
        batch_turn >= self.turn && self.entries.iter().any(|entry| entry.client == client)
    }

    /// Returns the bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len() + self.entries.len() * size_of::<Entry>()
    }

    /// Returns the keys that have no answer yet, in the order of the requests.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = &Entry> {
        self.skipped.iter().chain(&self.entries[self.cursor..])
    }

    /// Returns the parts that it asks for.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        self.entries.iter().map(|entry| entry.part)
    }

    /// Returns the index of the entry that a value with this key answers. A server answers in order
    /// and leaves out misses, so it is the next entry with that key.
    // Measured.
    #[inline(always)]
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        // A search by an iterator costs more, measured: it is nearly always the first.
        let mut at = self.cursor;
        while at < self.entries.len() {
            if self.key(self.entries[at]) == key || bug!(PairByPosition) {
                return Some(at);
            }
            at += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(keys: usize, key: &[u8]) -> Box<Batch> {
        let upstream = proto::PROTOCOLS[0].upstream();
        let mut batch = Batch::blank();
        batch.open(Ask::default(), true, 1, Time(5));
        batch.text.extend_from_slice(b"get");
        (0..keys)
            .map(|slot| Part { request: 0, slot: slot as u32 })
            .for_each(|part| batch.push(upstream, key, (part, ConnId::NONE), Cost::default()));
        batch
    }

    #[test]
    fn a_batch_has_room_up_to_its_last_key_and_byte() {
        assert!(batch(limits::BATCH_KEYS_MAX - 1, b"k").has_room(1, usize::MAX));
        assert!(!batch(limits::BATCH_KEYS_MAX, b"k").has_room(1, usize::MAX));
        for (keys, bytes_max) in [(0, 64), (3, 64), (40, limits::BATCH_BYTES_MAX), (40, usize::MAX)]
        {
            let batch = batch(keys, &[b'k'; 9]);
            // A blank before the key, and the line's end.
            let room = bytes_max.min(limits::BATCH_BYTES_MAX) - batch.text.len() - 3;
            assert!(batch.has_room(room, bytes_max), "{keys} keys, {bytes_max} bytes");
            assert!(!batch.has_room(room + 1, bytes_max), "{keys} keys, {bytes_max} bytes");
        }
    }

    #[test]
    fn a_batch_holds_its_text_and_a_place_for_each_key() {
        for keys in [0, 1, 7] {
            let batch = batch(keys, b"key");
            assert_eq!(batch.bytes(), 3 + keys * (4 + size_of::<Entry>()));
            assert_eq!(batch.outstanding().count(), keys);
        }
    }
}
