//! A model client: its requests, the part of them that has reached the proxy, its unread answers,
//! and the facts that it knows.

use std::collections::VecDeque;

use proxy::{ConnId, Proxy, Time};

use super::forms::{Form, What};
use super::journal::Journal;
use super::redis::{Kind, Talk};

/// The answer that a request must get.
#[derive(Clone)]
pub enum Asked {
    /// Values of these keys, and a line that ends them.
    Read {
        keys: Vec<u8>,
        with_cas: bool,
    },
    /// The outcome of that update of the journal.
    Update(u32),
    Delete {
        key: usize,
    },
    /// Only the removal of the stored value, because the new value is too large.
    TooLarge {
        key: usize,
    },
    /// Exactly this line.
    Line(&'static str),
    /// A line that begins with this.
    Prefix(&'static str),
    /// Counters.
    Stats,
    /// The answer to a request of meta or binary.
    Form(Form),
    /// The answer to that request of the ledger.
    Redis(u32),
    /// No line at all.
    Nothing,
}

/// A request, from its creation to its answer.
#[derive(Clone)]
pub struct Expect {
    pub asked: Asked,
    /// The number of the request among this client's.
    pub index: u64,
    /// The position in the client's stream after the part that triggers the answer.
    pub end: u64,
    /// The position after the request with all its data.
    pub frame_end: u64,
    /// No answer may come.
    pub is_quiet: bool,
    /// The event by which the proxy may have received the beginning of it, if the rest came later.
    pub begun: u64,
    /// The event by which the proxy had received all of it; zero before.
    pub arrived: u64,
    pub arrived_at: Time,
    /// The number of messages and keys of its client that may have waited with it, itself included,
    /// and of their bytes.
    pub queued: (usize, usize),
    /// The ring's epoch at that time.
    pub epoch: u32,
    /// The number in the journal, for a read that also changes something.
    pub touch: Option<u32>,
}

/// A client's knowledge of a key: it must not read a value that was gone by that event.
#[derive(Clone, Copy, Default)]
pub struct Floor {
    pub event: u64,
    /// The ring's epoch: after a change of the ring another server may own the key.
    pub epoch: u32,
}

pub struct Client {
    pub id: ConnId,
    /// Its number in the run, never reused.
    pub number: u32,
    pub pool: usize,
    /// Bytes that it has written and the proxy has not read.
    pub unsent: Vec<u8>,
    /// The number of bytes it has ever written, and of those that the proxy has read.
    pub written: u64,
    pub sent: u64,
    pub expects: VecDeque<Expect>,
    /// The position after the last request that is not in `expects` any more.
    pub dropped: u64,
    /// The index of the first request in `expects` that has not arrived.
    pub arrived: usize,
    pub requests: u64,
    /// Bytes that the proxy has written and the client has not read: the kernel's buffer.
    pub socket: Vec<u8>,
    pub capacity: usize,
    /// The proxy has more to write than fits into the socket.
    pub is_full: bool,
    /// Bytes read that are not a whole reply yet.
    pub inbox: Vec<u8>,
    pub floors: Vec<Floor>,
    /// Its last quiet updates: the number of the request, and the number in the journal.
    pub quiet_updates: VecDeque<(u64, u32)>,
    /// It has sent a change or a removal without an answer.
    pub has_been_quiet: bool,
    /// The last cas number seen of each key.
    pub cas: Vec<u64>,
    /// The proxy has paused reading from it, and when it did.
    pub is_paused: bool,
    pub paused_at: Time,
    /// When it was read again after a pause: what had arrived meanwhile waits from then on.
    pub resumed_at: Time,
    pub is_half_closed: bool,
    /// It closed its half right behind its last request, so it still waits for its answers.
    pub listens: bool,
    /// When the proxy last read bytes of it.
    pub sent_at: Time,
    /// It has sent a request after which the proxy closes.
    pub is_leaving: bool,
    pub reads_late: bool,
    /// It reads nothing while it has something to write.
    pub writes_first: bool,
    /// When the kernel accepted some of its answers last.
    pub taken_at: Time,
    /// It is closed because it has written too much and read nothing.
    pub is_given_up: bool,
    /// It asks much at once.
    pub is_greedy: bool,
    /// It has sent a request of meta or binary.
    pub has_forms: bool,
    /// It uses the binary protocol.
    pub is_binary: bool,
    /// Number of errors it got that do not identify their request.
    pub loose_errors: usize,
    /// Its session settings, if it uses Redis.
    pub talk: Option<Box<Talk>>,
    /// Its last answer is a binary value whose end the server has not sent yet.
    pub ends_with_value: bool,
    /// It was told that a change was not sent.
    pub is_let_down: bool,
    /// Some of its input may not have been parsed when it closed its half.
    pub is_unread: bool,
    /// Set when the proxy is told to drain: the position up to which it must be answered.
    pub drained_at: Option<u64>,
}

impl Expect {
    /// Returns whether an answer must come.
    pub fn is_owed(&self) -> bool {
        !self.is_quiet && !matches!(self.asked, Asked::Form(Form { is_sparing: true, .. }))
    }

    /// Returns the update, by its number in the journal.
    pub fn update(&self) -> Option<u32> {
        match &self.asked {
            Asked::Update(number) => Some(*number),
            Asked::Form(form) => form.update(),
            _ => self.touch,
        }
    }

    /// Returns the only key, if it has exactly one.
    pub fn key(&self, journal: &Journal) -> Option<usize> {
        match &self.asked {
            Asked::Read { keys, .. } if keys.len() == 1 => Some(usize::from(keys[0])),
            Asked::Form(form) => match form.what {
                What::Get { key } | What::GetAndTouch { key, .. } | What::Vivify { key, .. } => {
                    Some(key)
                }
                _ => self.removes().or_else(|| journal.updates[self.update()? as usize].key),
            },
            Asked::Redis(number) => match journal.redis.wishes[*number as usize].keys[..] {
                [key] => Some(usize::from(key)),
                _ => None,
            },
            _ => self.removes().or_else(|| journal.updates[self.update()? as usize].key),
        }
    }

    /// Returns the key that is to be removed.
    pub fn removes(&self) -> Option<usize> {
        match self.asked {
            Asked::Delete { key }
            | Asked::TooLarge { key }
            | Asked::Form(Form { what: What::Delete { key }, .. }) => Some(key),
            _ => None,
        }
    }

    /// Returns whether its answer is one value.
    pub fn reads_one(&self) -> bool {
        match &self.asked {
            Asked::Read { keys, .. } => keys.len() == 1,
            Asked::Form(form) => {
                matches!(
                    form.what,
                    What::Get { .. } | What::GetAndTouch { .. } | What::Vivify { .. }
                )
            }
            _ => false,
        }
    }

    /// Returns whether it changes something.
    pub fn changes(&self) -> bool {
        match &self.asked {
            Asked::Update(_) | Asked::Delete { .. } | Asked::TooLarge { .. } => true,
            Asked::Form(form) => form.changes(),
            _ => false,
        }
    }
}

impl Client {
    pub fn new(id: ConnId, number: u32, pool: usize, keys: usize) -> Client {
        Client {
            id,
            number,
            pool,
            unsent: Vec::new(),
            written: 0,
            sent: 0,
            expects: VecDeque::new(),
            dropped: 0,
            arrived: 0,
            requests: 0,
            socket: Vec::new(),
            capacity: usize::MAX,
            is_full: false,
            inbox: Vec::new(),
            floors: vec![Floor::default(); keys],
            quiet_updates: VecDeque::new(),
            has_been_quiet: false,
            cas: vec![0; keys],
            is_paused: false,
            paused_at: Time(0),
            resumed_at: Time(0),
            is_half_closed: false,
            listens: false,
            sent_at: Time(0),
            is_leaving: false,
            reads_late: false,
            writes_first: false,
            taken_at: Time(0),
            is_given_up: false,
            is_greedy: false,
            has_forms: false,
            is_binary: false,
            loose_errors: 0,
            talk: None,
            ends_with_value: false,
            is_let_down: false,
            is_unread: false,
            drained_at: None,
        }
    }

    /// Records a request that has been written, with the answer that it must get.
    pub fn expect(&mut self, asked: Asked, text_len: usize, is_quiet: bool, is_last: bool) {
        self.written += text_len as u64;
        self.requests += 1;
        self.is_leaving |= is_last;
        self.has_forms |= matches!(asked, Asked::Form(_));
        self.has_been_quiet |= is_quiet;
        if let (true, Asked::Update(number)) = (is_quiet, &asked) {
            self.quiet_updates.push_back((self.requests, *number));
            if self.quiet_updates.len() > QUIET_KEPT {
                self.quiet_updates.pop_front();
            }
        }
        self.expects.push_back(Expect {
            asked,
            index: self.requests,
            end: self.written,
            frame_end: self.written,
            is_quiet,
            begun: 0,
            arrived: 0,
            arrived_at: Time(0),
            queued: (0, 0),
            epoch: 0,
            touch: None,
        });
    }

    /// Records that the last request is refused when its head arrives, before its data.
    pub fn answered_by_head(&mut self, body_len: u64) {
        self.expects.back_mut().expect("one was just added").end -= body_len;
    }

    /// Returns None if the input sent does not end with a whole request; else whether that request
    /// is answered.
    pub fn ends_with_request(&self) -> Option<bool> {
        let last = self.expects.iter().find(|one| one.frame_end >= self.sent)?;
        // A request with unwanted data was answered when its head arrived.
        let is_answered = last.is_owed() && last.end == last.frame_end;
        (last.frame_end == self.sent).then_some(is_answered)
    }

    /// Returns whether the input sent ends with a whole request.
    pub fn has_sent_whole(&self) -> bool {
        self.sent == self.written || self.expects.iter().any(|one| one.frame_end == self.sent)
    }

    /// Returns the updates that have arrived and are awaited: those before the last answer owed.
    pub fn awaited(&self) -> impl Iterator<Item = u32> {
        let last = (0..self.arrived).rev().find(|at| self.expects[*at].is_owed());
        self.expects.iter().take(last.map_or(0, |at| at + 1)).filter_map(Expect::update)
    }

    /// Returns changes that have arrived, are answered only if they fail, and have no awaited
    /// request after them.
    pub fn unheard(&self) -> impl Iterator<Item = u32> {
        let last = (0..self.arrived).rev().find(|at| self.expects[*at].is_owed());
        let rest = self.expects.iter().take(self.arrived).skip(last.map_or(0, |at| at + 1));
        let rest = rest.filter(|one| one.is_quiet || matches!(one.asked, Asked::Form(_)));
        rest.filter_map(Expect::update)
    }

    /// Records how much may wait with the requests that have just arrived.
    pub fn count_queued(&mut self, journal: &Journal) {
        let (mut sum, mut start) = ((0, 0), self.dropped);
        for expect in self.expects.iter_mut().take(self.arrived) {
            let keys = match &expect.asked {
                Asked::Read { keys, .. } => keys.len(),
                Asked::Redis(number) => journal.redis.wishes[*number as usize].keys.len(),
                _ => 1,
            };
            let len = expect.frame_end.saturating_sub(start) as usize;
            start = expect.frame_end;
            sum = (sum.0 + keys.max(1), sum.1 + len + KEY_MAX * keys.max(1));
            if expect.queued == (0, 0) {
                // A read has a place once the first of its keys has.
                let is_read = matches!(expect.asked, Asked::Read { .. });
                let rest = if is_read { keys.max(1) - 1 } else { 0 };
                expect.queued = (sum.0 - rest, sum.1);
            }
        }
    }

    /// Records that the proxy has ended the connection: nothing else will be answered.
    pub fn give_up(&mut self) {
        self.is_leaving = true;
        self.unsent.clear();
        self.expects.clear();
        self.arrived = 0;
    }

    /// Records that the proxy was told to drain: the client sends the rest of the request or the
    /// transaction that has begun, and is answered up to there.
    pub fn drain(&mut self, proxy: &Proxy, journal: &Journal) {
        if self.is_gone() {
            return;
        }
        if self.is_half_closed {
            let is_unread = self.is_paused || proxy.is_awaiting(self.id);
            self.drained_at = Some(if is_unread { 0 } else { self.sent });
            return self.unsent.clear();
        }
        let request = self.sent + self.rest_of_request();
        let transaction = self.end_of_transaction(request, journal);
        // One that has not arrived may be refused.
        let has_begun = proxy.is_in_transaction(self.id);
        self.drained_at = Some(if has_begun { transaction } else { request });
        self.unsent.truncate((transaction - self.sent) as usize);
    }

    /// Returns where the transaction ends that a position is in; the position, if it is in none.
    fn end_of_transaction(&self, at: u64, journal: &Journal) -> u64 {
        let mut end = at;
        for expect in self.expects.iter().filter(|one| one.frame_end > at) {
            let Asked::Redis(number) = expect.asked else { break };
            match journal.redis.wishes[number as usize].kind {
                Kind::Queued(_) => {}
                Kind::Exec(_) | Kind::Discard(_) => {
                    end = expect.frame_end;
                    break;
                }
                _ => break,
            }
        }
        end
    }

    /// Returns how many bytes are missing of the request whose beginning has been sent.
    fn rest_of_request(&self) -> u64 {
        let mut start = self.dropped;
        if start > self.sent {
            // It is answered already, and the rest of its data is skipped.
            return start - self.sent;
        }
        for expect in &self.expects {
            if expect.frame_end >= self.sent {
                return if self.sent > start { expect.frame_end - self.sent } else { 0 };
            }
            start = expect.frame_end;
        }
        0
    }

    pub fn is_gone(&self) -> bool {
        self.drained_at.is_some()
    }

    /// Returns whether all arrived requests are answered.
    pub fn is_answered(&self) -> bool {
        !self.expects.iter().take(self.arrived).any(Expect::is_owed)
    }

    /// Returns the first request that waits for an answer; quiet ones before it are settled.
    pub fn next_expect(&mut self) -> Option<&Expect> {
        while self.arrived > 0 && self.expects[0].is_quiet {
            self.drop_expect();
        }
        self.expects.front()
    }

    pub fn drop_expect(&mut self) -> Expect {
        let first = self.expects.pop_front().expect("the caller looked at it");
        self.dropped = first.frame_end;
        if first.arrived != 0 {
            self.arrived -= 1;
        }
        first
    }
}

/// Limit on quiet updates that a client remembers; a read looks for those of its key.
const QUIET_KEPT: usize = 64;

/// More than the proxy adds to the bytes of a key.
const KEY_MAX: usize = 200;
