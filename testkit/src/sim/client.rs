//! A model client: what it has asked, what of that has reached the proxy, what it has read, and
//! what it knows to be true.

use std::collections::VecDeque;

use proxy::{ConnId, Time};

use super::book::Book;
use super::forms::{Form, What};
use super::redis::Talk;

/// What a request must be answered with.
pub enum Asked {
    /// Values of these keys, and an end.
    Read {
        keys: Vec<u8>,
        with_cas: bool,
    },
    /// The outcome of that update of the book.
    Update(u32),
    Delete {
        key: usize,
    },
    /// Nothing but the removal of what is stored there: its value is too large.
    TooLarge {
        key: usize,
    },
    /// These words alone.
    Line(&'static str),
    /// A line that begins so.
    Prefix(&'static str),
    /// Counters.
    Stats,
    /// What a request of meta or binary is answered by.
    Form(Form),
    /// What fulfils that wish of the ledger.
    Redis(u32),
    /// No line at all.
    Nothing,
}

/// A request, from its making to its answer.
pub struct Expect {
    pub asked: Asked,
    /// Which request of this client it is.
    pub index: u64,
    /// Where in the client's stream the part ends that it is answered by.
    pub end: u64,
    /// Where it ends, with all its data.
    pub frame_end: u64,
    /// No answer may come.
    pub is_quiet: bool,
    /// The event by which the proxy had all of it; zero before.
    pub arrived: u64,
    pub arrived_at: Time,
    /// The ring's epoch at that time.
    pub epoch: u32,
    /// The number in the book, if it is a read that also changes something.
    pub touch: Option<u32>,
}

/// What a client knows of a key: it must not read anything that was gone by that event.
#[derive(Clone, Copy, Default)]
pub struct Floor {
    pub event: u64,
    /// A ring that has changed since has sent the key elsewhere.
    pub epoch: u32,
}

pub struct Client {
    pub id: ConnId,
    /// Its number in the run, never reused.
    pub number: u32,
    pub pool: usize,
    /// Bytes that it has written and the proxy has not read.
    pub unsent: Vec<u8>,
    /// Bytes it has ever written, and those that the proxy has read.
    pub written: u64,
    pub sent: u64,
    pub expects: VecDeque<Expect>,
    /// Where requests begin that have not arrived: those before it in `expects` have.
    pub arrived: usize,
    pub requests: u64,
    /// Bytes that the proxy has written and it has not read: the kernel's buffer.
    pub socket: Vec<u8>,
    pub capacity: usize,
    /// The proxy has more to write than the socket could take.
    pub is_full: bool,
    /// Bytes read that are no whole reply yet.
    pub inbox: Vec<u8>,
    pub floors: Vec<Floor>,
    /// Its last quiet updates: which request, and the number in the book.
    pub quiet_updates: VecDeque<(u64, u32)>,
    /// It has ever asked for a change or a removal without an answer.
    pub has_been_quiet: bool,
    /// The last cas number seen of each key.
    pub cas: Vec<u64>,
    /// The proxy does not want to read it.
    pub is_paused: bool,
    pub is_half_closed: bool,
    /// It has asked for something after which the proxy closes.
    pub is_leaving: bool,
    pub reads_late: bool,
    /// It has asked for something of meta or binary.
    pub has_forms: bool,
    /// It speaks binary.
    pub is_binary: bool,
    /// Errors that it was told and that say not whose they are.
    pub loose_errors: usize,
    /// What it has said about itself, if it speaks Redis.
    pub talk: Option<Box<Talk>>,
    /// It was told a value of binary last, of which the server has to say the end yet.
    pub ends_with_value: bool,
    /// Some of what it had sent may not have been looked at when it closed its half.
    pub is_unread: bool,
    /// The proxy was told to drain: how much of what it had sent had been looked at.
    pub drained_at: Option<u64>,
}

impl Expect {
    /// Some answer must come.
    pub fn is_owed(&self) -> bool {
        !self.is_quiet && !matches!(self.asked, Asked::Form(Form { is_sparing: true, .. }))
    }

    /// The update, by its number in the book.
    pub fn update(&self) -> Option<u32> {
        match &self.asked {
            Asked::Update(number) => Some(*number),
            Asked::Form(form) => form.update(),
            _ => self.touch,
        }
    }

    /// The only key, if it has one.
    pub fn key(&self, book: &Book) -> Option<usize> {
        match &self.asked {
            Asked::Read { keys, .. } if keys.len() == 1 => Some(usize::from(keys[0])),
            Asked::Form(form) => match form.what {
                What::Get { key } | What::GetAndTouch { key, .. } | What::Vivify { key, .. } => {
                    Some(key)
                }
                _ => self.removes().or_else(|| book.updates[self.update()? as usize].key),
            },
            Asked::Redis(number) => match book.redis.wishes[*number as usize].keys[..] {
                [key] => Some(usize::from(key)),
                _ => None,
            },
            _ => self.removes().or_else(|| book.updates[self.update()? as usize].key),
        }
    }

    /// The key that is to be removed.
    pub fn removes(&self) -> Option<usize> {
        match self.asked {
            Asked::Delete { key }
            | Asked::TooLarge { key }
            | Asked::Form(Form { what: What::Delete { key }, .. }) => Some(key),
            _ => None,
        }
    }

    /// Its answer is one value.
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

    /// It asks for a change.
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
            is_half_closed: false,
            is_leaving: false,
            reads_late: false,
            has_forms: false,
            is_binary: false,
            loose_errors: 0,
            talk: None,
            ends_with_value: false,
            is_unread: false,
            drained_at: None,
        }
    }

    /// A request has been written out; what it must be answered with.
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
            arrived: 0,
            arrived_at: Time(0),
            epoch: 0,
            touch: None,
        });
    }

    /// The last request is refused as soon as its head is there, before its data.
    pub fn answered_by_head(&mut self, body_len: u64) {
        self.expects.back_mut().expect("one was just added").end -= body_len;
    }

    /// Whether what has been sent ends with a request; and if so, whether that one is answered.
    pub fn ends_with_request(&self) -> Option<bool> {
        let last = self.expects.iter().find(|one| one.frame_end >= self.sent)?;
        // Data that nobody wants was answered when its head came.
        let is_answered = last.is_owed() && last.end == last.frame_end;
        (last.frame_end == self.sent).then_some(is_answered)
    }

    /// What has been sent ends with a request that is whole.
    pub fn has_sent_whole(&self) -> bool {
        self.sent == self.written || self.expects.iter().any(|one| one.frame_end == self.sent)
    }

    /// The updates that have arrived and it waits for: those before the last answer that is owed.
    pub fn awaited(&self) -> impl Iterator<Item = u32> {
        let last = (0..self.arrived).rev().find(|at| self.expects[*at].is_owed());
        self.expects.iter().take(last.map_or(0, |at| at + 1)).filter_map(Expect::update)
    }

    /// Changes that have arrived and are answered only if they fail, with nothing behind them that
    /// it waits for.
    pub fn unheard(&self) -> impl Iterator<Item = u32> {
        let last = (0..self.arrived).rev().find(|at| self.expects[*at].is_owed());
        let rest = self.expects.iter().take(self.arrived).skip(last.map_or(0, |at| at + 1));
        let rest = rest.filter(|one| one.is_quiet || matches!(one.asked, Asked::Form(_)));
        rest.filter_map(Expect::update)
    }

    /// The conversation was ended by the proxy: nothing else will be answered.
    pub fn give_up(&mut self) {
        self.is_leaving = true;
        self.unsent.clear();
        self.expects.clear();
        self.arrived = 0;
    }

    /// The proxy was told to let it go: it has been answered so far, and is not read further.
    pub fn drain(&mut self, is_awaiting: bool) {
        let looked_at = if self.is_paused || is_awaiting { 0 } else { self.sent };
        self.drained_at.get_or_insert(looked_at);
        self.unsent.clear();
    }

    pub fn is_gone(&self) -> bool {
        self.drained_at.is_some()
    }

    /// Nothing that arrived waits for an answer.
    pub fn is_answered(&self) -> bool {
        !self.expects.iter().take(self.arrived).any(Expect::is_owed)
    }

    /// The first request that waits for an answer, quiet ones before it being done with.
    pub fn next_expect(&mut self) -> Option<&Expect> {
        while self.arrived > 0 && self.expects[0].is_quiet {
            self.drop_expect();
        }
        self.expects.front()
    }

    pub fn drop_expect(&mut self) -> Expect {
        let first = self.expects.pop_front().expect("the caller looked at it");
        if first.arrived != 0 {
            self.arrived -= 1;
        }
        first
    }
}

/// Quiet updates that a client remembers; a read looks for those of its key.
const QUIET_KEPT: usize = 64;
