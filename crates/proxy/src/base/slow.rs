//! The slow log's rules: which requests are slow, and what is known of the cause.

use metrics::{NO_COMMAND, SLOW_KEY_MAX, SlowEntry};

use super::phases::{Moments, UNSENT};
use super::plan::SlowKeys;
use crate::Time;

/// What the proxy knows of the time that a request took. More than one may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Its client sent it in pieces.
    RequestInPieces,
    /// It waited because its server was silent.
    Held,
    /// It waited for its turn at its server.
    Queued,
    /// Its command was slow work for the server.
    SlowCommand,
    /// Its server was busy with another command.
    ServerBusy,
    /// Its server sent the reply in pieces.
    ReplyInPieces,
    /// Its server took long, and nothing more is known.
    Server,
    /// The worker was busy with something else.
    LongTurn,
    /// Its client did not read its answer at once.
    ClientReads,
    /// It has many keys, or it and its answer have many bytes.
    Large,
    /// Its server sent the reply drop by drop.
    ReplyDrips,
}

/// THE table of causes, in their order: a word for programs, and a sentence.
pub static CAUSES: &[(Cause, &str, &str)] = &[
    (Cause::RequestInPieces, "request_in_pieces", "the client sent the request in pieces"),
    (Cause::Held, "held", "it waited because the server was silent"),
    (Cause::Queued, "queue", "it waited for its turn at the server"),
    (Cause::SlowCommand, "slow_command", "the command was slow work for the server"),
    (Cause::ServerBusy, "server_busy", "the server was busy with another command"),
    (Cause::ReplyInPieces, "reply_in_pieces", "the server sent the reply in pieces"),
    (Cause::Server, "server", "the server took long"),
    (Cause::LongTurn, "long_turn", "the worker was busy with something else"),
    (Cause::ClientReads, "client_reads_slowly", "the client did not read the answer at once"),
    (Cause::Large, "large", "the request itself is large"),
    (Cause::ReplyDrips, "reply_drips", "the server sent a small reply drop by drop"),
];

impl Cause {
    /// Returns the causes whose bits are set.
    pub fn of_bits(
        bits: u16,
    ) -> impl Iterator<Item = &'static (Cause, &'static str, &'static str)> {
        CAUSES.iter().filter(move |(cause, ..)| bits & cause.bit() != 0)
    }

    /// Returns the place in the table.
    pub fn place(self) -> u8 {
        self as u8
    }

    /// Returns its name as clients read it, who have words for events in this form.
    pub fn event(self) -> &'static str {
        match self {
            Cause::RequestInPieces => "request-in-pieces",
            Cause::Held => "held",
            Cause::Queued => "queue",
            Cause::SlowCommand => "slow-command",
            Cause::ServerBusy => "server-busy",
            Cause::ReplyInPieces => "reply-in-pieces",
            Cause::Server => "server",
            Cause::LongTurn => "long-turn",
            Cause::ClientReads => "client-reads-slowly",
            Cause::Large => "large",
            Cause::ReplyDrips => "reply-drips",
        }
    }

    /// Returns the length of the phase that it explains, out of those of its request. Where it may
    /// be one of several, it is the longest.
    pub fn time_of(self, phases: [u64; 4]) -> u64 {
        let of = match self {
            Cause::RequestInPieces => 0..=0,
            Cause::Held | Cause::Queued => 1..=1,
            Cause::ServerBusy => 1..=2,
            Cause::SlowCommand | Cause::ReplyInPieces | Cause::Server | Cause::ReplyDrips => 2..=2,
            Cause::Large => 0..=2,
            Cause::LongTurn => 1..=3,
            Cause::ClientReads => 3..=3,
        };
        phases[of].iter().copied().max().unwrap_or(0)
    }

    const fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// The reply that is being read, as far as the phases of requests depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyOf {
    /// When the message had been sent; `UNSENT` while no reply is being read, or if it was not
    /// looked up yet.
    pub(crate) sent: Time,
    /// When its first bytes came, if it came in several reads.
    pub(crate) began: Time,
    /// In how many reads it came, as far as that is counted.
    pub(crate) reads: u32,
    /// The index of the server.
    pub(crate) server: u32,
    /// The message waited because the server was silent.
    pub(crate) held: bool,
    /// It may be slow work.
    pub(crate) is_work: bool,
}

impl ReplyOf {
    pub(crate) const NONE: ReplyOf = ReplyOf {
        sent: UNSENT,
        began: UNSENT,
        reads: 0,
        server: NO_SERVER,
        held: false,
        is_work: false,
    };

    /// Returns what is known where a server has not replied.
    pub(crate) fn none_of(server: Option<u32>) -> ReplyOf {
        ReplyOf { server: server.unwrap_or(NO_SERVER), ..ReplyOf::NONE }
    }
}

/// What is known of a request when its answer has been written.
pub(crate) struct Story {
    pub(crate) moments: Moments,
    pub(crate) written: Time,
    pub(crate) reply: ReplyOf,
    /// What its server was busy with for longest meanwhile, beside the request itself.
    pub(crate) busy: Option<SlowWork>,
    /// The last long turn of the worker.
    pub(crate) turn: LongTurn,
    /// Its answer could not be written whole at first.
    pub(crate) lagged: bool,
    /// It has many keys, or it and its answer have many bytes.
    pub(crate) is_large: bool,
}

/// A command that has kept a server busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlowWork {
    pub(crate) command: u16,
    pub(crate) since: Time,
    pub(crate) until: Time,
}

/// The last turn in which the worker was busy for long.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LongTurn {
    pub(crate) since: Time,
    pub(crate) until: Time,
}

impl Story {
    /// Returns the bits of the causes, and the command that the server was busy with. A phase that
    /// took less than a quarter of the whole is no cause.
    pub(crate) fn causes(&self) -> (u16, u16) {
        let phases = self.moments.phases(self.written);
        let whole: u64 = phases.iter().sum();
        let is_long = |time: u64| time > 0 && time >= whole / 4;
        let Moments { whole: came, settled, .. } = self.moments;
        let sent = self.moments.sent.min(settled).max(came);
        let in_turn = |from: Time, to: Time| {
            let (from, to) = (from.max(self.turn.since), to.min(self.turn.until));
            is_long(to.since(from))
        };
        let (mut bits, mut busy_with) = (0, NO_COMMAND);
        let mut add = |cause: Cause| bits |= cause.bit();
        if is_long(phases[0]) {
            add(if self.is_large { Cause::Large } else { Cause::RequestInPieces });
        }
        let turns = [in_turn(came, sent), in_turn(sent, settled), in_turn(settled, self.written)];
        if is_long(phases[1]) {
            match (self.reply.held, turns[0]) {
                (true, _) => add(Cause::Held),
                (_, true) => add(Cause::LongTurn),
                _ => add(Cause::Queued),
            }
        }
        // A part of it may have waited behind the others.
        if is_long(phases[1]) && !self.reply.held && self.is_large {
            add(Cause::Large);
        }
        let overlaps = |work: &SlowWork| {
            let (from, to) = (work.since.max(came), work.until.min(settled));
            is_long(to.since(from))
        };
        let busy = self.busy.filter(overlaps);
        if let Some(work) = busy {
            add(Cause::ServerBusy);
            busy_with = work.command;
        }
        if is_long(phases[2]) {
            let in_pieces = self.reply.began != UNSENT && is_long(settled.since(self.reply.began));
            match (in_pieces, self.reply.is_work, turns[1]) {
                (true, ..) if self.is_large => add(Cause::Large),
                (true, ..) if self.reply.reads >= DRIPS => add(Cause::ReplyDrips),
                (true, ..) => add(Cause::ReplyInPieces),
                (_, true, _) => add(Cause::SlowCommand),
                (_, _, true) => add(Cause::LongTurn),
                _ if busy.is_some() => {}
                _ if self.is_large => add(Cause::Large),
                _ => add(Cause::Server),
            }
        }
        if is_long(phases[3]) {
            add(if self.lagged { Cause::ClientReads } else { Cause::LongTurn });
        }
        (bits, busy_with)
    }
}

/// The first key of a request, as the slow log may show it.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyNote {
    pub(crate) hash: u64,
    pub(crate) len: u32,
    /// Its beginning; empty unless it may be shown.
    pub(crate) text: Vec<u8>,
}

impl KeyNote {
    #[inline]
    pub(crate) fn set(&mut self, keys: SlowKeys, key: Option<&[u8]>) {
        let key = key.unwrap_or_default();
        self.len = key.len() as u32;
        self.hash = match keys {
            SlowKeys::Hash if !key.is_empty() => hash(key),
            _ => 0,
        };
        if keys == SlowKeys::Full || !self.text.is_empty() {
            self.set_text(keys, key);
        }
    }

    #[cold]
    fn set_text(&mut self, keys: SlowKeys, key: &[u8]) {
        let shown = if keys == SlowKeys::Full { key.len().min(SLOW_KEY_MAX) } else { 0 };
        self.text.clear();
        self.text.extend_from_slice(&key[..shown]);
    }
}

/// How many slow requests of a pool are recorded. When all are slow, more of them would push each
/// other out of the log at once, and would make the worker slower still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowRoom {
    /// Requests that may still be recorded at once, and when they were counted.
    left: u32,
    since: Time,
    /// Slow requests since the last that was recorded.
    skipped: u32,
}

impl SlowRoom {
    pub(crate) fn new(now: Time) -> SlowRoom {
        SlowRoom { left: AT_ONCE_MAX, since: now, skipped: u32::MAX }
    }

    /// Whether one more may be recorded.
    pub(crate) fn has_room(&self, now: Time) -> bool {
        self.left > 0 || now.since(self.since) >= ONE_EACH_US
    }

    /// Whether this slow request is recorded, of one in so many.
    pub(crate) fn take(&mut self, one_in: u32, now: Time) -> bool {
        self.skipped = self.skipped.saturating_add(1);
        if self.skipped < one_in || !self.has_room(now) {
            return false;
        }
        let more = now.since(self.since) / ONE_EACH_US;
        self.since = self.since.after(more * ONE_EACH_US);
        let left = u64::from(self.left).saturating_add(more).min(AT_ONCE_MAX.into());
        (self.left, self.skipped) = (left as u32 - 1, 0);
        true
    }
}

/// Returns an entry's key as the directive wants it, and how many bytes more the key has: its
/// beginning, or its hash behind a `#`. No bytes: it is not to be known, or there is none.
pub fn key_text(entry: &SlowEntry) -> (Vec<u8>, u64) {
    match (entry.key_hash, entry.key.is_empty()) {
        (0, true) => (Vec::new(), 0),
        (hash, true) => (format!("#{hash:016x}").into_bytes(), 0),
        _ => (entry.key.clone(), u64::from(entry.key_len).saturating_sub(entry.key.len() as u64)),
    }
}

/// FNV-1a over words of eight bytes, so that a short key costs little; never 0. The last word may
/// have bytes of the one before.
#[inline]
pub fn hash(key: &[u8]) -> u64 {
    let add = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let begun = 0xcbf2_9ce4_8422_2325 ^ key.len() as u64;
    let (Some(first), Some(last)) = (key.first_chunk(), key.last_chunk()) else {
        let word = key.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        return add(begun, word).max(1);
    };
    let mut hash = add(begun, u64::from_le_bytes(*first));
    if key.len() > 16 {
        let (words, _) = key[8..key.len() - 1].as_chunks();
        hash = words.iter().fold(hash, |hash, word| add(hash, u64::from_le_bytes(*word)));
    }
    add(hash, u64::from_le_bytes(*last)).max(1)
}

/// No server.
pub(crate) const NO_SERVER: u32 = u32::MAX;
/// A small reply that comes in so many reads drips.
pub(crate) const DRIPS: u32 = 8;
/// Slow requests of a pool that a worker records at once, and how long each more takes to come.
const AT_ONCE_MAX: u32 = 128;
const ONE_EACH_US: u64 = 50_000;
/// A turn of this length is long.
pub(crate) const LONG_TURN_US: u64 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn story(times: [u64; 5]) -> Story {
        let [begun, whole, sent, settled, written] = times.map(Time);
        Story {
            moments: Moments { begun, whole, sent, settled },
            written,
            reply: ReplyOf { sent, server: 0, ..ReplyOf::NONE },
            busy: None,
            turn: LongTurn::default(),
            lagged: false,
            is_large: false,
        }
    }

    #[test]
    fn an_entry_has_its_key_as_far_as_it_may_be_known() {
        let entry = |key: &[u8], key_len, key_hash| {
            key_text(&SlowEntry { key: key.to_vec(), key_len, key_hash, ..SlowEntry::default() })
        };
        assert_eq!(entry(b"", 3, 0), (Vec::new(), 0));
        assert_eq!(entry(b"", 3, 0xab), (b"#00000000000000ab".to_vec(), 0));
        assert_eq!(entry(b"abc", 3, 0), (b"abc".to_vec(), 0));
        assert_eq!(entry(b"abc", 10, 0xab), (b"abc".to_vec(), 7));
    }

    fn words(story: &Story) -> Vec<&'static str> {
        Cause::of_bits(story.causes().0).map(|(_, word, _)| *word).collect()
    }

    #[test]
    fn each_long_phase_has_its_cause() {
        assert_eq!(words(&story([0, 100, 101, 110, 111])), ["request_in_pieces"]);
        assert_eq!(words(&story([0, 1, 100, 110, 111])), ["queue"]);
        assert_eq!(words(&story([0, 1, 2, 100, 111])), ["server"]);
        assert_eq!(words(&story([0, 1, 2, 3, 100])), ["long_turn"]);
        assert_eq!(
            words(&Story { lagged: true, ..story([0, 1, 2, 3, 100]) }),
            ["client_reads_slowly"]
        );
        assert_eq!(words(&story([0, 40, 80, 120, 120])), ["request_in_pieces", "queue", "server"]);
        assert_eq!(words(&story([0, 0, 0, 0, 0])), [""; 0]);
    }

    #[test]
    fn what_is_known_of_a_phase_goes_before_the_general_word() {
        let waited = story([0, 0, 100, 110, 110]);
        let reply = ReplyOf { held: true, ..waited.reply };
        assert_eq!(words(&Story { reply, ..story([0, 0, 100, 110, 110]) }), ["held"]);
        let turn = LongTurn { since: Time(0), until: Time(90) };
        assert_eq!(words(&Story { turn, ..waited }), ["long_turn"]);
        let slow = || story([0, 0, 10, 110, 110]);
        let reply = ReplyOf { began: Time(60), ..slow().reply };
        assert_eq!(words(&Story { reply, ..slow() }), ["reply_in_pieces"]);
        let at_last = ReplyOf { began: Time(100), ..reply };
        assert_eq!(words(&Story { reply: at_last, ..slow() }), ["server"], "it was soon there");
        let drips = ReplyOf { reads: DRIPS, ..reply };
        assert_eq!(words(&Story { reply: drips, ..slow() }), ["reply_drips"]);
        assert_eq!(words(&Story { reply: drips, is_large: true, ..slow() }), ["large"]);
        assert_eq!(words(&Story { is_large: true, ..slow() }), ["large"]);
        assert_eq!(words(&Story { is_large: true, ..story([0, 100, 101, 110, 111]) }), ["large"]);
        let reply = ReplyOf { is_work: true, ..slow().reply };
        assert_eq!(words(&Story { reply, ..slow() }), ["slow_command"]);
        assert_eq!(words(&Story { turn, ..slow() }), ["long_turn"]);
        let work = SlowWork { command: 7, since: Time(0), until: Time(100) };
        let busy = Story { busy: Some(work), ..slow() };
        assert_eq!((words(&busy), busy.causes().1), (vec!["server_busy"], 7));
        let work = SlowWork { until: Time(12), ..work };
        assert_eq!(
            words(&Story { busy: Some(work), ..slow() }),
            ["server"],
            "it was over long before"
        );
    }

    #[test]
    fn the_table_has_every_cause_in_its_place() {
        for (place, (cause, word, text)) in CAUSES.iter().enumerate() {
            assert_eq!(*cause as usize, place);
            assert!(!word.contains(' ') && !text.is_empty());
            assert_eq!(cause.event(), word.replace('_', "-"));
            assert!(usize::from(cause.place()) < metrics::SlowReset::CAUSES);
        }
    }

    #[test]
    fn a_cause_explains_the_longest_of_the_phases_in_which_it_may_lie() {
        let times = |phases: [u64; 4]| {
            let each = CAUSES.iter().map(|(cause, word, _)| (*word, cause.time_of(phases)));
            each.collect::<std::collections::BTreeMap<_, _>>()
        };
        let rising = times([10, 20, 30, 40]);
        let alone = ["request_in_pieces", "held", "queue", "slow_command", "server"];
        assert_eq!(alone.map(|word| rising[word]), [10, 20, 20, 30, 30]);
        let several = ["server_busy", "long_turn", "large", "client_reads_slowly"];
        assert_eq!(several.map(|word| rising[word]), [30, 40, 30, 40]);
        let falling = times([40, 30, 20, 10]);
        assert_eq!(several.map(|word| falling[word]), [30, 30, 40, 10]);
        assert_eq!(["reply_in_pieces", "reply_drips"].map(|word| falling[word]), [20, 20]);
    }

    #[test]
    fn a_burst_is_recorded_and_a_flood_only_now_and_then() {
        let mut room = SlowRoom::new(Time(0));
        let mut took =
            |us: u64, count: usize| (0..count).filter(|_| room.take(1, Time(us))).count();
        assert_eq!(took(0, 1_000), AT_ONCE_MAX as usize);
        assert_eq!(took(ONE_EACH_US - 1, 1_000), 0);
        assert_eq!(took(ONE_EACH_US, 1_000), 1);
        assert_eq!(took(11 * ONE_EACH_US, 1_000), 10);
        assert_eq!(took(1 << 40, 1_000), AT_ONCE_MAX as usize, "it is not saved up for ever");
        let mut room = SlowRoom::new(Time(0));
        let every_third = (0..9).filter(|_| room.take(3, Time(0))).count();
        assert_eq!(every_third, 3, "the first is one of them");
    }

    #[test]
    fn a_hash_of_a_key_is_never_the_one_that_means_none() {
        let keys: Vec<Vec<u8>> = (0..2_000u32).map(|n| format!("key:{n}").into()).collect();
        let hashes: std::collections::BTreeSet<u64> = keys.iter().map(|key| hash(key)).collect();
        assert_eq!(
            (hashes.len(), hash(b"") != 0, hash(b"a") == hash(b"a\0")),
            (2_000, true, false)
        );
    }
}
