//! One connection to a server, shared by many clients: what waits to be sent, what waits for an
//! answer, and the pairing of the two streams.
//!
//! ```text
//!             batch (open get, leaves last)
//!               │ end of turn
//!               ▼
//!   flights: [ in flight ............ | pending ...... ]     oldest first
//!            ^ done      ^ sent                        ^ queued      offsets in the sent stream
//!            │
//!            └── the next reply belongs to the first flight, and to nobody else
//! ```
//!
//! A flight is one message: a get of one or many keys, or another request. `end` is where it ends
//! in the stream of sent bytes; so what was handed to the kernel, and may have been executed, is
//! told from what was not by comparing two numbers.

use std::collections::VecDeque;

use proto::{Ask, Item, Progress, Shown, Upstream};

use crate::Time;
use crate::batch::{Batch, Entry};
use crate::buffer::Outbox;
use crate::client::End;
use crate::limits::{self, Limits};
use crate::plan::Timeouts;
use crate::request::RowId;

/// One link.
pub(crate) struct Link {
    pub(crate) pool: u32,
    pub(crate) server: u32,
    /// The place of its lane.
    pub(crate) lane: u16,
    pub(crate) state: State,
    /// The first words, which go ahead of everything; unsent ones.
    pub(crate) hello: Vec<u8>,
    /// A login was among them.
    pub(crate) login: bool,
    pub(crate) out: Outbox,
    pub(crate) flights: VecDeque<Flight>,
    /// The open batch: gets of this turn that will leave as one.
    pub(crate) batch: Option<Box<Batch>>,
    /// A read that is not merged, while its keys are being added.
    pub(crate) own: Option<Box<Batch>>,
    /// Errands among the flights, by their numbers.
    pub(crate) errands: Vec<u64>,
    /// Gets among the flights.
    pub(crate) fetches: usize,
    /// Bytes that these gets hold until they are answered.
    fetches_held: usize,
    /// Offset up to which replies are complete.
    pub(crate) done: u64,
    /// Offset up to which bytes were handed to the kernel.
    pub(crate) sent: u64,
    /// Offset up to which bytes were queued.
    pub(crate) queued: u64,
    /// Bytes of an unfinished reply head.
    pub(crate) partial: Vec<u8>,
    /// How far the reply has come whose items are being read.
    pub(crate) progress: Progress,
    /// A value, or a reply, of which more is still arriving.
    pub(crate) body: Option<Body>,
    /// When it began to connect, or the server began to owe the reply that is next.
    pub(crate) since: Time,
    /// When the reply that is next began to be owed.
    pub(crate) owed: Time,
    /// The earliest timer that will look at this link.
    pub(crate) armed: Option<Time>,
    /// It is closed as soon as nothing waits on it.
    pub(crate) retiring: bool,
    /// In the list of links to be written.
    pub(crate) dirty: bool,
    /// Its server knows that it owes a reply here.
    pub(crate) owes: bool,
    /// It has answered something: its loss is not a failure to connect.
    pub(crate) proven: bool,
    /// When it came up.
    pub(crate) up_at: Time,
    /// Bytes held, as last told to the memory account.
    pub(crate) held: usize,
}

/// The life of a link. A link that has died is not in the table any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Requests may queue; nothing can be sent.
    Connecting,
    /// Established; its server is asked who it is.
    Greeting,
    /// It has said so.
    Up,
}

/// One message in the queue or on the wire.
pub(crate) struct Flight {
    pub(crate) cargo: Cargo,
    pub(crate) ask: Ask,
    /// Where it ends in the stream.
    pub(crate) end: u64,
    /// When it was queued.
    pub(crate) since: Time,
    /// It waits, or has waited, because the server was silent.
    pub(crate) held: bool,
}

/// What a message carries.
pub(crate) enum Cargo {
    Fetch(Box<Batch>),
    /// A request, or its part of this number.
    Single(RowId, u32),
    /// Ours: nobody waits for the reply. The number tells what is said from other such words.
    Errand(u64),
}

/// A value on its way in.
pub(crate) struct Body {
    pub(crate) item: Item,
    /// Whom it is for; `None` drops it.
    pub(crate) entry: Option<Entry>,
    /// What it settles when it is complete.
    pub(crate) unit: Unit,
    /// Its client gets it as it comes.
    pub(crate) streams: bool,
    /// Otherwise, what the client is shown: its head, and of the rest as much as has come.
    pub(crate) data: Outbox,
    pub(crate) shown: Shown,
    /// Bytes to come, of the item's body and trailer.
    pub(crate) left: u64,
    pub(crate) end: End,
}

/// What an item, or several, settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// One key of a read.
    Key,
    /// A single request.
    Single,
    /// All keys of a message, which have one reply.
    Batch,
    /// Nothing of anybody's.
    Errand,
}

impl Link {
    pub(crate) fn new(pool: u32, (server, lane): (u32, u16), now: Time) -> Link {
        Link {
            pool,
            server,
            lane,
            state: State::Connecting,
            hello: Vec::new(),
            login: false,
            out: Outbox::default(),
            flights: VecDeque::new(),
            batch: None,
            own: None,
            errands: Vec::new(),
            fetches: 0,
            fetches_held: 0,
            done: 0,
            sent: 0,
            queued: 0,
            partial: Vec::new(),
            progress: Progress::default(),
            body: None,
            since: now,
            owed: now,
            armed: None,
            retiring: false,
            dirty: false,
            owes: false,
            proven: false,
            up_at: now,
            held: 0,
        }
    }

    /// Moves to the next state. A link that is up greets again when its server has fallen silent.
    pub(crate) fn set_state(&mut self, next: State) {
        let after = match self.state {
            State::Connecting | State::Up => State::Greeting,
            State::Greeting => State::Up,
        };
        assert_eq!(next, after, "a link connects, greets and is up");
        self.state = next;
    }

    /// Messages that wait, and the bytes of those that were not handed over yet, are within bounds.
    pub(crate) fn has_room(&self, limits: &Limits) -> bool {
        let fits = self.flights.len() < limits.link_queue && self.out.len() < limits.link_outbox;
        fits || bug!(NoQueueBound)
    }

    /// The same for a request that is so many messages at most.
    pub(crate) fn has_room_for(&self, messages: usize, limits: &Limits) -> bool {
        let fits = self.flights.len() + messages <= limits.link_queue;
        self.has_room(limits) && (fits || bug!(NoQueueBound))
    }

    /// The end of what was just written to `out` becomes a flight. `before` is what `out` held.
    pub(crate) fn launch(&mut self, cargo: Cargo, ask: Ask, before: usize, now: Time) {
        let len = self.out.len() - before;
        assert!(len > 0, "a message has bytes");
        self.queued += len as u64;
        self.flights.push_back(Flight { cargo, ask, end: self.queued, since: now, held: false });
    }

    /// Queues a whole get.
    pub(crate) fn launch_batch(&mut self, batch: Box<Batch>, upstream: &dyn Upstream) {
        let before = self.out.len();
        let ask = batch.ask;
        upstream.seal_fetch(ask, batch.entries.len(), &batch.text, self.out.copied());
        self.fetches += 1;
        self.fetches_held += batch.held();
        let since = batch.latest;
        self.launch(Cargo::Fetch(batch), ask, before, since);
    }

    /// Whether the open batch is to leave at the end of a turn. While the server has as many gets
    /// as it may, the next waits and grows: a server takes one connection's requests one after the
    /// other, so waiting here costs little more than waiting there, and what leaves together costs
    /// once.
    pub(crate) fn batch_may_leave(&self) -> bool {
        self.fetches < limits::FETCHES_IN_FLIGHT_MAX
    }

    /// The first flight, whose reply is complete.
    pub(crate) fn pop(&mut self) -> Flight {
        let flight = self.flights.pop_front().expect("a reply belongs to a flight");
        self.forget_cargo(&flight);
        flight
    }

    #[cold]
    fn forget_errand(&mut self, print: u64) {
        self.errands.retain(|one| *one != print);
    }

    fn forget_cargo(&mut self, flight: &Flight) {
        match &flight.cargo {
            Cargo::Fetch(batch) => {
                self.fetches -= 1;
                self.fetches_held -= batch.held();
            }
            Cargo::Errand(print) => self.forget_errand(*print),
            Cargo::Single(..) => {}
        }
    }

    /// Whether the server owes a reply, or the kernel owes us the sending of what it took.
    pub(crate) fn is_waiting(&self) -> bool {
        self.sent > self.done
    }

    /// When this link must be looked at, if nothing happens before.
    pub(crate) fn deadline(&self, timeouts: &Timeouts) -> Option<Time> {
        let owed = match self.state {
            State::Connecting => Some(self.since.after(timeouts.connect)),
            State::Greeting => Some(self.since.after(timeouts.reply)),
            State::Up if self.is_waiting() && !bug!(NoReplyDeadline) => {
                Some(self.reply_deadline(timeouts))
            }
            State::Up => None,
        };
        let pending = self.flights.get(self.first_pending());
        let queued = pending.map(|flight| flight.since.after(timeouts.queue));
        let gathering = self.batch.as_ref().filter(|_| !bug!(GatherForEver));
        let gathering = gathering.map(|batch| batch.since.after(timeouts.queue));
        owed.into_iter().chain(queued).chain(gathering).min()
    }

    /// When a server that owes a reply has been silent too long, or has spoken too long.
    pub(crate) fn reply_deadline(&self, timeouts: &Timeouts) -> Time {
        let patience = if bug!(HurryReply) { timeouts.reply / 2 } else { timeouts.reply };
        let at_most = self.owed.after(timeouts.reply * limits::REPLY_STRETCH);
        let at_most = if bug!(SpeakForEver) { Time(u64::MAX) } else { at_most };
        self.since.after(patience).min(at_most)
    }

    /// Bytes were taken by the kernel.
    pub(crate) fn advance(&mut self, n: usize, now: Time) {
        if n == 0 {
            return;
        }
        let first_was_whole = self.flights.front().is_some_and(|first| first.end <= self.sent);
        if !self.is_waiting() || !first_was_whole && !bug!(BlameEarly) {
            self.since = now;
            self.owed = now;
        }
        self.sent += n as u64;
        self.out.advance(n);
        assert!(self.sent <= self.queued, "only queued bytes are sent");
    }

    /// The first flight's reply is complete.
    pub(crate) fn land(&mut self, end: u64, now: Time) {
        assert!(self.done < end && end <= self.sent, "a reply follows its request");
        self.done = end;
        self.since = now;
        self.owed = now;
        self.proven = true;
    }

    /// Bytes have come: a server that is speaking is not silent.
    pub(crate) fn heard(&mut self, now: Time) {
        if self.is_waiting() {
            self.since = now;
        }
    }

    /// Index of the first flight of which nothing was sent.
    pub(crate) fn first_pending(&self) -> usize {
        // The flight in which `sent` falls has begun to leave; it starts where the one before ends.
        let whole = self.flights.partition_point(|flight| flight.end <= self.sent);
        let start = if whole == 0 { self.done } else { self.flights[whole - 1].end };
        if start < self.sent { whole + 1 } else { whole }
    }

    /// Unsent bytes of a message that has begun to leave.
    pub(crate) fn begun(&self) -> usize {
        match self.first_pending() {
            0 => 0,
            at => self.flights[at - 1].end.saturating_sub(self.sent) as usize,
        }
    }

    /// Takes the flights `at..at + count`, none of them sent, out of the queue.
    pub(crate) fn withdraw(&mut self, at: usize, count: usize) -> Vec<Flight> {
        let from = if at == 0 { self.done } else { self.flights[at - 1].end };
        assert!(from >= self.sent, "what was sent cannot be taken back");
        let taken: Vec<Flight> = self.flights.drain(at..at + count).collect();
        taken.iter().for_each(|flight| self.forget_cargo(flight));
        let len = taken.last().map_or(0, |last| last.end - from);
        match (from - self.sent) as usize {
            0 => self.out.advance(len as usize),
            skip => self.out.cut(&[(skip, skip + len as usize)]),
        }
        self.queued -= len;
        self.flights.iter_mut().skip(at).for_each(|flight| flight.end -= len);
        taken
    }

    /// Takes those that fit, none of them sent, out of the queue; in their order.
    pub(crate) fn withdraw_where(&mut self, fits: impl Fn(&Flight) -> bool) -> Vec<Flight> {
        let first = self.first_pending();
        let mut start = if first == 0 { self.done } else { self.flights[first - 1].end };
        let (mut cuts, mut taken, mut gone) = (Vec::new(), Vec::new(), 0);
        for mut flight in self.flights.split_off(first) {
            let len = flight.end - start;
            if fits(&flight) {
                cuts.push(((start - self.sent) as usize, (flight.end - self.sent) as usize));
                gone += len;
                self.forget_cargo(&flight);
                taken.push(flight);
            } else {
                flight.end -= gone;
                self.flights.push_back(flight);
            }
            start += len;
        }
        self.queued -= gone;
        if !cuts.is_empty() {
            self.out.cut(&cuts);
        }
        taken
    }

    /// Nothing waits on it, to be sent or to be answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.batch.is_none() && self.out.is_empty()
    }

    /// A reply has begun and is not complete.
    pub(crate) fn is_mid_reply(&self) -> bool {
        let begun = match self.flights.front() {
            Some(Flight { cargo: Cargo::Fetch(batch), .. }) => batch.cursor > 0,
            _ => false,
        };
        let has_begun = self.progress != Progress::default() || self.body.is_some();
        begun || has_begun || !self.partial.is_empty()
    }

    /// Bytes held now.
    pub(crate) fn measure(&self) -> usize {
        // A value that has begun to arrive is counted whole, or many could begin at once.
        let body = self.body.as_ref().map_or(0, |body| match body.entry {
            Some(_) => body.data.len() + body.left as usize,
            None => 0,
        });
        let gathering = self.batch.as_ref().map_or(0, |batch| batch.held());
        self.out.len() + self.partial.len() + body + self.fetches_held + gathering
    }
}
