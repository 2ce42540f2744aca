//! The book of what was asked and what was done: every update with its executions, every error line
//! that a server was made to say.
//!
//! An update carries its number on the wire (as flags, delta, exptime or delay, which the proxy
//! must pass on untouched), so a server knows whose command it executes, and executes none twice.
//! Only a delete has no place for a number; deletes are counted by key.

use std::collections::{BTreeMap, BTreeSet};

use proxy::Time;

use super::redis::Ledger;

/// What an update changes, and where its number stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateKind {
    /// set, add, replace, append, prepend, cas: the flags.
    Store,
    /// incr, decr: the delta.
    Delta,
    /// touch: the exptime.
    Touch,
    /// gat, gats: the exptime. A read, but not one to be asked twice.
    GetAndTouch,
    /// mg with N: its expiry. Tells one client to fill the item.
    Vivify,
    /// md with I: the expiry.
    Invalidate,
    /// flush_all: the delay.
    Flush,
}

/// What a server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Words(&'static str),
    Number(u64),
}

/// One update.
pub struct Update {
    pub kind: UpdateKind,
    pub pool: usize,
    /// For a flush, nothing.
    pub key: Option<usize>,
    /// Which client asked: its number in the run, never reused.
    pub client: u32,
    /// Which request of that client it is.
    pub index: u64,
    /// Whether the client wants no answer.
    pub quiet: bool,
    /// The event by which the proxy had all of it; zero before that.
    pub arrived: u64,
    pub arrived_at: Time,
    /// The event by which its client had left and did not wait for its answer any more, or zero.
    pub left: u64,
    pub left_at: Time,
    /// The ring's epoch when it arrived.
    pub epoch: u32,
    /// Where there is no memory for its data, what is stored under its key is removed instead.
    pub may_remove: bool,
    /// The client was told that it was not executed, so it must never be.
    pub forbidden: bool,
    /// It need not be executed.
    pub excused: bool,
    /// One bit a server that executed it; of a gat, one bit a key that it touched.
    pub executed: u64,
    /// The event of the last execution.
    pub at: u64,
    /// The server of the last execution.
    pub server: usize,
    /// The proxy still had the link on which it came when it was executed.
    pub live: bool,
    pub outcome: Outcome,
}

/// An error line that a server said for a command.
pub struct Injected {
    pub pool: usize,
    /// The command's keys, one bit each.
    pub keys: u64,
    /// It had one key, so that it is not asked again key by key.
    pub alone: bool,
}

/// A delete that was executed.
pub struct Deletion {
    pub at: u64,
    pub found: bool,
    /// The answer to some client told of it.
    pub told: bool,
}

/// Deletes of one key.
#[derive(Default)]
pub struct Deletes {
    /// Those of refused values among them.
    pub asked: usize,
    pub done: Vec<Deletion>,
    /// Answers that told of the removal for a refused value, but not of what it found.
    removals: usize,
}

#[derive(Default)]
pub struct Book {
    events: u64,
    pub updates: Vec<Update>,
    pub injected: Vec<Injected>,
    /// What Redis clients have asked.
    pub redis: Ledger,
    /// The opaques of requests that were told to fill an item, and not yet seen to be, by pool.
    pub wins: BTreeSet<(usize, String)>,
    /// Updates that nobody waits for, of clients that have left, until they are executed; and how
    /// many messages to their pool had waited too long by then.
    pub unheard: Vec<(u32, u64)>,
    /// When marks were first asked for or left, by pool.
    pub marked: BTreeMap<usize, u64>,
    /// By pool, then by key.
    pub deletes: Vec<Vec<Deletes>>,
}

impl Book {
    /// An empty book for pools with so many keys.
    pub fn new(keys: impl Iterator<Item = usize>) -> Book {
        let none = |count| (0..count).map(|_| Deletes::default()).collect();
        Book { deletes: keys.map(none).collect(), ..Book::default() }
    }

    /// Something happened: the number of that event.
    pub fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    pub fn now(&self) -> u64 {
        self.events
    }

    /// A new update; its number.
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
            epoch: 0,
            may_remove: false,
            forbidden: false,
            excused: false,
            executed: 0,
            at: 0,
            server: 0,
            live: false,
            outcome: Outcome::Words(""),
        });
        (self.updates.len() - 1) as u32
    }

    /// An update may become the removal of its key.
    pub fn may_remove(&mut self, number: u32) {
        let update = &mut self.updates[number as usize];
        update.may_remove = true;
        self.deletes[update.pool][update.key.expect("a store has a key")].asked += 1;
    }

    /// A server executes an update that it knows by its number.
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
        // A gat has many keys and is checked by the values that come back.
        let same = kind == UpdateKind::GetAndTouch || update.key == key;
        assert!(same, "update {number} arrives with another key");
        assert_ne!(update.arrived, 0, "update {number} leaves before it is whole");
        assert!(
            !update.forbidden,
            "update {number} is executed, but its client was told it is not"
        );
        let (bit, whole) = match kind {
            UpdateKind::Flush => (1 << server, false),
            UpdateKind::GetAndTouch => (1 << key.expect("a gat has keys"), false),
            _ => (1, true),
        };
        let before = if whole { update.executed } else { update.executed & bit };
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

    /// What a client still waits for may never be done, for no fault of anybody's.
    pub fn excuse(&mut self, client: u32) {
        self.redis.excused.insert(client);
        for update in self.updates.iter_mut().filter(|update| update.client == client) {
            update.excused = true;
        }
    }

    /// The client of these updates has left, and does not wait for their answers any more.
    pub fn abandon(&mut self, updates: impl Iterator<Item = u32>, now: Time) {
        let event = self.event();
        for number in updates {
            let update = &mut self.updates[number as usize];
            (update.left, update.left_at) = (event, now);
        }
    }

    /// A client was told that its delete was not executed.
    pub fn forbid_delete(&mut self, pool: usize, key: usize) {
        let deletes = &mut self.deletes[pool][key];
        deletes.asked -= 1;
        let (asked, done) = (deletes.asked, deletes.done.len());
        assert!(
            done <= asked,
            "a delete of key {key} is executed, but its client was told it is not"
        );
    }

    /// A client was told that its value is refused: so what was stored has been removed. Returns
    /// the earliest event that this can have been.
    pub fn tell_removal(&mut self, pool: usize, key: usize, since: u64) -> u64 {
        let deletes = &mut self.deletes[pool][key];
        let first = deletes.done.iter().find(|one| one.at > since);
        let first = first.unwrap_or_else(|| panic!("a value is refused, and key {key} is kept"));
        let at = first.at;
        deletes.removals += 1;
        let told = deletes.done.iter().filter(|one| one.told).count() + deletes.removals;
        assert!(told <= deletes.done.len(), "key {key} is removed for one of two that are told so");
        at
    }

    /// A client was told the outcome of a delete. Which execution it was about cannot be known, but
    /// there must be one for each answer. Returns the earliest event that it can have been.
    pub fn tell_delete(&mut self, pool: usize, key: usize, found: bool, since: u64) -> u64 {
        let done = &mut self.deletes[pool][key].done;
        let first = done.iter().find(|one| one.found == found && one.at > since);
        let first = first.map(|one| one.at);
        // The earliest that is left: any other choice could only leave less to others.
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
