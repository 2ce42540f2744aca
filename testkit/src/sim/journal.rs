//! The journal of requests and executions: every update with its executions, and every error line
//! that a server was made to send.
//!
//! An update carries its number on the wire (as flags, delta, exptime or delay, which the proxy
//! must pass on unchanged). So a server knows the client of each command that it executes, and
//! executes none twice. A delete has no field for a number; deletes are counted by key.

use std::collections::{BTreeMap, BTreeSet};

use proxy::Time;

use super::redis::Ledger;

/// The effect of an update, and the field that holds its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateKind {
    /// set, add, replace, append, prepend, cas: the flags.
    Store,
    /// incr, decr: the delta.
    Delta,
    /// touch: the exptime.
    Touch,
    /// gat, gats: the exptime. A read, but one that must not be sent twice.
    GetAndTouch,
    /// mg with N: the expiry of the created item. One client is asked to fill the item.
    Vivify,
    /// md with I: the expiry.
    Invalidate,
    /// flush_all: the delay.
    Flush,
}

/// A server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Words(&'static str),
    Number(u64),
}

/// One update.
pub struct Update {
    pub kind: UpdateKind,
    pub pool: usize,
    /// The key's index; none for a flush.
    pub key: Option<usize>,
    /// The client's number in the run, never reused.
    pub client: u32,
    /// The number of the request among that client's.
    pub index: u64,
    /// Whether the client wants no answer.
    pub quiet: bool,
    /// The event at which the proxy had received the whole request; zero before that.
    pub arrived: u64,
    pub arrived_at: Time,
    /// The event at which its client had left without the answer; zero before that.
    pub left: u64,
    pub left_at: Time,
    /// The event at which its client's connection was gone, if its client waited for the answer.
    pub gone: u64,
    /// The update that it repeats: its client was told that this was not sent, or gave up waiting.
    pub repeats: Option<u32>,
    /// The event at which the proxy had received the request that repeats it; zero before that.
    pub repeated: u64,
    /// The proxy may have read it later than it arrived.
    pub is_unread: bool,
    /// The ring's epoch when it arrived.
    pub epoch: u32,
    /// How many messages to its pool had timed out in a queue when it arrived.
    pub queue_timeouts: u64,
    /// The proxy may refuse its value; then the old value of its key is removed instead.
    pub may_remove: bool,
    /// The client was told that it was not executed, so it must never be executed.
    pub forbidden: bool,
    /// It is excused: it may be executed or not. See `retryable`.
    pub retries: bool,
    /// One bit for each server that executed it; for a gat, one bit for each key that it touched.
    pub executed: u64,
    /// The event of the last execution.
    pub at: u64,
    /// The server of the last execution.
    pub server: usize,
    /// The proxy still had the link to the server when the update was executed.
    pub live: bool,
    pub outcome: Outcome,
}

/// An error line that a server sent in answer to a command.
pub struct Injected {
    pub pool: usize,
    /// The command's keys, one bit each.
    pub keys: u64,
    /// The command had one key, so the proxy does not ask again key by key.
    pub alone: bool,
}

/// An executed delete.
pub struct Deletion {
    pub at: u64,
    pub found: bool,
    /// An answer has reported it to a client.
    pub told: bool,
}

/// Deletes of one key.
#[derive(Default)]
pub struct Deletes {
    /// Those caused by refused values.
    pub asked: usize,
    pub done: Vec<Deletion>,
    /// Answers that reported the removal of an old value, but not whether there was one.
    removals: usize,
}

#[derive(Default)]
pub struct Journal {
    events: u64,
    pub updates: Vec<Update>,
    pub injected: Vec<Injected>,
    /// Requests of Redis clients.
    pub redis: Ledger,
    /// Requests that a server chose to fill an item and whose answer has not arrived yet: the pool
    /// and the opaque of each.
    pub wins: BTreeSet<(usize, String)>,
    /// Updates of clients that left without waiting for the answer, until they are executed.
    pub unheard: Vec<u32>,
    /// Updates that clients may ask for again, each at most once: they were told that these were
    /// not sent, or gave up waiting.
    pub to_repeat: Vec<u32>,
    /// The event of the first request that sets marks or asks for them, by pool.
    pub marked: BTreeMap<usize, u64>,
    /// By pool, then by key.
    pub deletes: Vec<Vec<Deletes>>,
}

impl Journal {
    /// Makes an empty journal for pools with that many keys.
    pub fn new(keys: impl Iterator<Item = usize>) -> Journal {
        let none = |count| (0..count).map(|_| Deletes::default()).collect();
        Journal { deletes: keys.map(none).collect(), ..Journal::default() }
    }

    /// Counts an event and returns its number.
    pub fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    pub fn now(&self) -> u64 {
        self.events
    }

    /// Adds an update and returns its number.
    pub fn add(
        &mut self,
        kind: UpdateKind,
        (pool, key): (usize, Option<usize>),
        (client, index): (u32, u64),
        quiet: bool,
    ) -> u32 {
        self.updates.push(Update {
            kind,
            pool,
            key,
            client,
            index,
            quiet,
            arrived: 0,
            arrived_at: Time(0),
            left: 0,
            left_at: Time(0),
            gone: 0,
            repeats: None,
            repeated: 0,
            is_unread: false,
            epoch: 0,
            queue_timeouts: 0,
            may_remove: false,
            forbidden: false,
            retries: false,
            executed: 0,
            at: 0,
            server: 0,
            live: false,
            outcome: Outcome::Words(""),
        });
        (self.updates.len() - 1) as u32
    }

    /// Records that an update may become the removal of its key.
    pub fn may_remove(&mut self, number: u32) {
        let update = &mut self.updates[number as usize];
        update.may_remove = true;
        self.deletes[update.pool][update.key.expect("a store has a key")].asked += 1;
    }

    /// Records that a server executes an update, identified by its number.
    pub fn execute(
        &mut self,
        number: u64,
        kind: UpdateKind,
        place: (usize, usize, Option<usize>),
        live: bool,
    ) -> u64 {
        let event = self.event();
        let (pool, server, key) = place;
        let update = self.updates.get_mut(number as usize);
        let update = update.unwrap_or_else(|| panic!("update {number} was never asked for"));
        assert_eq!((update.kind, update.pool), (kind, pool), "update {number} arrives as another");
        // A gat has many keys; the values in its answer are checked instead.
        let has_same_key = kind == UpdateKind::GetAndTouch || update.key == key;
        assert!(has_same_key, "update {number} arrives with another key");
        assert_ne!(update.arrived, 0, "update {number} leaves before it is whole");
        assert!(
            !update.forbidden,
            "update {number} is executed, but its client was told it is not"
        );
        let (bit, is_executed_once) = match kind {
            UpdateKind::Flush => (1 << server, false),
            UpdateKind::GetAndTouch => (1 << key.expect("a gat has keys"), false),
            _ => (1, true),
        };
        let before = if is_executed_once { update.executed } else { update.executed & bit };
        assert_eq!(before, 0, "update {number} is executed twice");
        if matches!(kind, UpdateKind::Vivify | UpdateKind::Invalidate) {
            self.marked.entry(pool).or_insert(event);
        }
        update.executed |= bit;
        update.at = event;
        update.server = server;
        update.live = live;
        event
    }

    pub fn execute_delete(&mut self, pool: usize, key: usize, found: bool) -> u64 {
        let at = self.event();
        let deletes = &mut self.deletes[pool][key];
        deletes.done.push(Deletion { at, found, told: false });
        assert!(deletes.done.len() <= deletes.asked, "a delete of key {key} is executed twice");
        at
    }

    /// Excuses a client's updates from being executed: the proxy may not have parsed them, or may
    /// have dropped them while they were held.
    pub fn retryable(&mut self, client: u32) {
        self.redis.retries.insert(client);
        for update in self.updates.iter_mut().filter(|update| update.client == client) {
            update.retries = true;
        }
    }

    /// Records that an update has arrived.
    pub fn arrive(&mut self, number: u32, (event, now): (u64, Time), epoch: u32) {
        let update = &mut self.updates[number as usize];
        (update.arrived, update.arrived_at, update.epoch) = (event, now, epoch);
        if let Some(first) = update.repeats {
            self.updates[first as usize].repeated = event;
        }
    }

    /// Takes the last update of a pool that a client may ask for again.
    pub fn take_to_repeat(&mut self, pool: usize) -> Option<u32> {
        let fits = |number: &u32| {
            let update = &self.updates[*number as usize];
            let is_one = matches!(update.kind, UpdateKind::Store | UpdateKind::Delta);
            update.pool == pool && is_one
        };
        let at = self.to_repeat.iter().rposition(fits)?;
        Some(self.to_repeat.remove(at))
    }

    /// Records that the client of these updates has left and no longer waits for their answers.
    pub fn cancel(&mut self, updates: impl Iterator<Item = u32>, now: Time) {
        let event = self.event();
        for number in updates {
            let update = &mut self.updates[number as usize];
            (update.left, update.left_at) = (event, now);
        }
    }

    /// Records that a client was told that its delete was not executed.
    pub fn forbid_delete(&mut self, pool: usize, key: usize) {
        let deletes = &mut self.deletes[pool][key];
        deletes.asked -= 1;
        let (asked, done) = (deletes.asked, deletes.done.len());
        assert!(
            done <= asked,
            "a delete of key {key} is executed, but its client was told it is not"
        );
    }

    /// Records that a client was told that its value is refused, so the stored value has been
    /// removed. Returns the earliest event at which this can have happened.
    pub fn tell_removal(&mut self, pool: usize, key: usize, since: u64) -> u64 {
        let deletes = &mut self.deletes[pool][key];
        let first = deletes.done.iter().find(|one| one.at > since);
        let first = first.unwrap_or_else(|| panic!("a value is refused, and key {key} is kept"));
        let at = first.at;
        deletes.removals += 1;
        let told = deletes.done.iter().filter(|one| one.told).count() + deletes.removals;
        assert!(told <= deletes.done.len(), "more answers than removals of key {key}");
        at
    }

    /// Records that a client was told the outcome of a delete. The execution behind the answer is
    /// unknown, but each answer needs one. Returns the earliest event at which it can have
    /// happened.
    pub fn tell_delete(&mut self, pool: usize, key: usize, found: bool, since: u64) -> u64 {
        let done = &mut self.deletes[pool][key].done;
        let first = done.iter().find(|one| one.found == found && one.at > since);
        let first = first.map(|one| one.at);
        // The earliest execution that no answer has reported yet. Any other choice would leave
        // fewer executions for later answers.
        let mut left = done.iter_mut().filter(|one| !one.told && one.found == found);
        match (first, left.find(|one| one.at > since)) {
            (Some(first), Some(one)) => {
                one.told = true;
                first
            }
            _ => panic!("no delete of key {key} can have been answered so"),
        }
    }
}
