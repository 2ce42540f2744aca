//! A client's session: its unfinished input, the pipeline of requests that wait for answers, and
//! its output.
//!
//! ```text
//!   bytes ─▶ intake ─▶ [head ─▶ request ─▶ … ─▶ tail] ─▶ out ─▶ bytes
//!            (partial)   answers leave at the head only
//! ```

use metrics::PoolCounter;
use proto::{Class, ConnKey, Endpoints, Protocol, Request, Resume, Session, Told};

use super::ahead::Ahead;
use super::body::Body;
use super::large::Admitted;
use super::leave::Departure;
use super::tally::Record;
use super::tenant::Member;
use super::topics::Subscriber;
use super::transaction::{Select, Transaction};
use super::unwritten::UnwrittenList;
use super::waits::Waits;
use super::watch::{Unwatched, Watch, WatchCounts};
use crate::base::Base;
use crate::base::buffer::Outbox;
use crate::base::groups::Groups;
use crate::base::id::ConnId;
use crate::base::limits::{self, Limits};
use crate::base::memory::Memory;
use crate::base::part::{Effort, LinkClass, NONE, RequestId, Requester};
use crate::base::phases::UNSENT;
use crate::base::size::{ClientSizes, Expected};
use crate::base::tenants::NOBODY;
use crate::{Action, Time};

/// One client.
pub(super) struct Client {
    pub(super) pool: u32,
    /// The group that it shares a worker's time and memory with.
    pub(super) group: u16,
    pub(super) state: State,
    pub(super) departure: Departure,
    pub(super) reading: Reading,
    pub(super) waits: Waits,
    pub(super) login: Login,
    /// The protocol that its first byte showed; before that byte, its listener's.
    pub(super) protocol: &'static dyn Protocol,
    /// It has sent something.
    pub(super) has_sent: bool,
    /// The index of its connection key.
    pub(super) conn_key: u16,
    /// The index of its tenant.
    pub(super) tenant: u16,
    /// The class of the links on which something of it is outstanding, if anything is.
    pub(super) class: LinkClass,
    /// It has, or had, links of its own.
    pub(super) has_own: bool,
    /// Since it was owed nothing, it has asked for what may wait at a server for ever.
    pub(super) is_blocked: bool,
    /// Its transaction selects a database, so nothing of it is read before that has ended.
    pub(super) selects: Option<Box<Select>>,
    /// The session settings that it has chosen.
    pub(super) session: Session,
    /// Its transaction, if it has begun one. Boxed, since few clients are in one.
    pub(super) transaction: Option<Box<Transaction>>,
    /// What it watches. Boxed, since few clients watch.
    pub(super) watch: Option<Box<Watch>>,
    pub(super) watch_counts: WatchCounts,
    /// Why keys are not watched that it has asked for since.
    pub(super) unwatched: Option<Box<Unwatched>>,
    /// What it listens to. Boxed, since few clients listen.
    pub(super) subscriber: Option<Box<Subscriber>>,
    /// An answer is being written to it whose end has not come.
    pub(super) is_mid_answer: bool,
    /// Its user and what it has of its tenant's. Boxed, since most clients have none.
    pub(super) member: Option<Box<Member>>,
    /// It is shown what others ask.
    pub(super) monitors: bool,
    /// When it came to this worker.
    pub(super) since: Time,
    /// The addresses of its connection, if they were ever asked for.
    pub(super) endpoints: Option<Box<Endpoints>>,
    /// What all workers have told about the request that it is to be answered with next.
    pub(super) told: Option<Box<Result<Told, String>>>,
    pub(super) intake: Intake,
    /// Bytes of an unfinished head, or input that waits because the client is paused.
    pub(super) partial: Vec<u8>,
    /// Its later input, if it writes on and does not read. Boxed, since few clients do.
    pub(super) ahead: Option<Box<Ahead>>,
    pub(super) resume: Resume,
    /// When the first byte came of the request that is read next, and when any byte came last.
    pub(super) begun: Time,
    pub(super) received: Time,
    /// When its input was let go on last.
    pub(super) resumed: Time,
    pub(super) pipeline: Pipeline,
    pub(super) out: Outbox,
    /// When its ACK was flushed last, until something came of it.
    pub(super) flushed: Time,
    pub(super) record: Record,
    /// It has not taken all that was to be written to it.
    pub(super) lags: bool,
    /// When it took something last.
    pub(super) took_last: Time,
    /// When it is looked at whether it takes nothing any more.
    pub(super) look_at: Option<Time>,
    /// Its measured answers that are not wholly written.
    pub(super) unwritten: UnwrittenList,
    /// The lengths of the answers that it has had. So a client that asks for many large values and
    /// does not read is paused before they are fetched, not after.
    pub(super) sizes: ClientSizes,
    /// What the answer to the request being read may be.
    pub(super) expected: Expected,
    /// What waits of it in the server half is not sent until it has read its answers.
    pub(super) must_read: bool,
    /// It is in the list of clients to be written.
    pub(super) dirty: bool,
    /// It is in the list of clients that may go on.
    pub(super) resumable: bool,
    /// The work done for it in the turn `work_turn`, beyond what the turns before have paid for.
    work: u32,
    work_turn: u32,
    /// Bytes held, as last reported to the memory account.
    pub(super) counted: usize,
    pub(super) admitted: Admitted,
}

/// The requests of a client that wait for answers, linked by `next`. Silent ones are not among
/// them.
#[derive(Clone, Copy)]
pub(super) struct Pipeline {
    pub(super) head: RequestId,
    pub(super) tail: RequestId,
    /// The number of requests in it.
    pub(super) depth: u32,
    /// The number of those that are answered whatever happens.
    pub(super) loud_count: u32,
    /// The number of silent requests beside it.
    pub(super) silent_count: u32,
    /// When the last of those came, even if it is answered.
    pub(super) silent_at: Time,
    /// The request that is answered when no silent request is left.
    pub(super) barrier: RequestId,
    /// Bytes of requests and of answers that wait for their turn.
    pub(super) bytes: usize,
    /// Those of answers.
    pub(super) gathered: usize,
    /// Bytes of answers that are expected.
    pub(super) expected: usize,
}

impl Pipeline {
    pub(super) const EMPTY: Pipeline = Pipeline {
        head: NONE,
        tail: NONE,
        depth: 0,
        loud_count: 0,
        silent_count: 0,
        silent_at: Time(0),
        barrier: NONE,
        bytes: 0,
        gathered: 0,
        expected: 0,
    };
}

/// Whether a client's input is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Requests are read as they come.
    On,
    /// It is paused: its input waits. Its socket is still read, so that we notice when it leaves.
    Paused,
    /// It is paused, and the driver has been ordered not to read its socket.
    Stopped,
    /// It may go on. The driver is told when its kept input has been read.
    Resuming,
}

/// Whether a client has logged in.
#[derive(Clone, Copy, Default)]
pub(super) struct Login {
    /// It has. This stays, whatever becomes of the pool's users.
    pub(super) done: bool,
    /// Wrong logins. A right one does not reset the count: a guesser may have a login of its own.
    pub(super) failures: u8,
    /// Its login has waited for its turn as long as it may.
    pub(super) is_overdue: bool,
}

/// The states of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Requests are read.
    Open,
    /// It is to end: requests are read until the last that has begun is whole (`finish.rs`).
    Finishing,
    /// Nothing more arrives. The requests that had arrived and wait, since the client is paused,
    /// are still sent.
    Ending,
    /// Nothing more is read. The client is closed when it has all its answers.
    Leaving,
}

impl State {
    /// Whether its requests are read.
    pub(super) fn is_read(self) -> bool {
        matches!(self, State::Open | State::Finishing)
    }
}

/// The meaning of a client's next bytes.
pub(super) enum Intake {
    /// The head of a request.
    Head,
    /// The rest of a body whose head is known. Boxed, since idle clients are many.
    Body(Box<Body>),
    /// The rest of a body that goes nowhere.
    Swallow(u64),
    /// The rest of a head that goes nowhere. So much is left of the present part of it; `resume`
    /// has the number of the others.
    Skip(u64),
}

impl Client {
    /// Makes a client. `conn_key` is the connection key that it begins with, and its index.
    pub(super) fn new(
        pool: u32,
        protocol: &'static dyn Protocol,
        conn_key: (u16, ConnKey),
        since: Time,
    ) -> Client {
        Client {
            pool,
            tenant: NOBODY,
            group: Groups::of(NOBODY, protocol.place()),
            transaction: None,
            watch: None,
            watch_counts: WatchCounts::default(),
            unwatched: None,
            subscriber: None,
            is_mid_answer: false,
            member: None,
            conn_key: conn_key.0,
            class: LinkClass::Shared,
            has_own: false,
            is_blocked: false,
            selects: None,
            monitors: false,
            session: Session { conn_key: conn_key.1, ..Session::default() },
            state: State::Open,
            departure: Departure::Here,
            reading: Reading::On,
            waits: Waits::default(),
            login: Login::default(),
            protocol,
            has_sent: false,
            since,
            endpoints: None,
            told: None,
            intake: Intake::Head,
            partial: Vec::new(),
            ahead: None,
            resume: Resume::default(),
            begun: since,
            received: since,
            resumed: since,
            pipeline: Pipeline::EMPTY,
            out: Outbox::default(),
            flushed: UNSENT,
            record: Record::new(since),
            lags: false,
            took_last: since,
            look_at: None,
            unwritten: UnwrittenList::EMPTY,
            sizes: ClientSizes::default(),
            expected: Expected::default(),
            must_read: false,
            dirty: false,
            resumable: false,
            work: 0,
            work_turn: 0,
            counted: 0,
            admitted: Admitted::default(),
        }
    }

    /// Whether no request is outstanding and no output is left.
    pub(super) fn is_settled(&self) -> bool {
        (self.outstanding() == 0 || bug!(CloseEarly)) && self.out.is_empty()
    }

    /// Whether its input cannot be answered before more arrives.
    pub(super) fn is_mid_request(&self) -> bool {
        !self.partial.is_empty() || !matches!(self.intake, Intake::Head)
    }

    /// Whether its requests are dropped: it has left while nothing could be sent.
    pub(super) fn gave_up(&self) -> bool {
        self.departure == Departure::Left && self.waits.is_late && !bug!(KeepCancelled)
    }

    pub(super) fn requester(&self, id: ConnId) -> Requester {
        Requester {
            id,
            pool: self.pool,
            tenant: self.tenant,
            conn_key: self.conn_key,
            protocol: self.protocol,
            expected: self.expected,
            class: self.class,
            effort: Effort::Quick,
            gave_up: self.gave_up(),
        }
    }

    /// Notes what the answer to a request that has just come may be.
    #[inline]
    pub(super) fn expect(&mut self, base: &Base, request: &Request) {
        if matches!(request.class, Class::Single { writes: true }) {
            self.sizes.forget_miss();
        }
        // The answer to a change is as short as others'.
        let is_short = || match request.class {
            Class::Single { writes } => writes,
            Class::Broadcast { .. } | Class::Local(_) | Class::Refuse(_) => true,
            _ => false,
        };
        let is_idle = || self.outstanding() == 0;
        self.expected = self.expected(base, request.command, is_short, is_idle);
    }

    /// Returns what the answer to a request of this command may be, as far as the answers before it
    /// tell. A client that has nothing else outstanding proves its size sooner, since it risks one
    /// answer.
    #[inline]
    pub(super) fn expected(
        &self,
        base: &Base,
        command: u16,
        is_short: impl FnOnce() -> bool,
        is_idle: impl FnOnce() -> bool,
    ) -> Expected {
        let sizes = &base.pools[self.pool as usize].sizes;
        let age = || {
            let age = base.now.since(self.since);
            if is_idle() { age.saturating_mul(limits::IDLE_PROOF) } else { age }
        };
        self.sizes.expected(command, sizes, (is_short, age, base.now))
    }

    /// Returns what an answer may be that is one of more than the client has shown to be small. One
    /// that is known to be large is what it is.
    #[cold]
    pub(super) fn doubted(&self, base: &Base, command: u16, expected: Expected) -> Expected {
        let largest = base.pools[self.pool as usize].sizes.largest(command, base.now);
        match expected.len() < limits::LARGE_MIN {
            true => Expected::unknown(expected.len(), largest),
            false => expected,
        }
    }

    /// Whether so much is outstanding that it is not read further.
    pub(super) fn must_pause(&self, limits: &Limits) -> bool {
        let is_full = self.outstanding() >= limits.pipeline || self.owed() > limits.client_outbox;
        is_full && !bug!(NeverPause)
    }

    /// Whether so little is outstanding that it is read further, however much memory is left.
    #[inline]
    pub(super) fn has_little(&self, limits: &Limits) -> bool {
        let bytes = limits::CLIENT_OUTBOX_SHORT.min(limits.client_outbox);
        self.outstanding() < limits.pipeline && self.owed() <= bytes
    }

    /// Whether so little is outstanding that it is read again.
    pub(super) fn may_resume(&self, limits: &Limits) -> bool {
        let most = if self.waits.idle { 0 } else { limits.pipeline / 2 };
        self.waits.server.is_none()
            && !self.waits.endpoints
            && !self.waits.workers
            && !self.waits.pause
            && !self.waits.login
            && !self.waits.tenant
            && !self.waits.owed
            && self.waits.queues == 0
            && !self.waits.turn
            && self.outstanding() <= most
            && self.owed() <= limits.client_outbox / 2
    }

    /// Notes that it may be read in this turn. Each turn since the last time pays for one share of
    /// its work.
    #[inline]
    pub(super) fn enter_turn(&mut self, base: &Base) {
        let turn = base.turn as u32;
        if self.work_turn != turn {
            let passed = turn.wrapping_sub(self.work_turn);
            self.work_turn = turn;
            self.work = match self.work <= base.groups.least() {
                true => 0,
                false => {
                    let share = base.groups.work(self.group);
                    self.work.saturating_sub(passed.saturating_mul(share))
                }
            };
        }
    }

    /// Charges it for work that is done for it.
    #[inline]
    pub(super) fn charge(&mut self, work: u32) {
        self.work = self.work.saturating_add(work);
    }

    /// Returns the work that is not paid for.
    pub(super) fn work(&self) -> u32 {
        self.work
    }

    /// Returns the bytes queued for it, or expected to be from the answers before.
    fn owed(&self) -> usize {
        self.held() + self.pipeline.expected
    }

    /// Returns the bytes queued for it.
    pub(super) fn held(&self) -> usize {
        self.out.len() + self.pipeline.bytes
    }

    pub(super) fn outstanding(&self) -> usize {
        self.pipeline.depth as usize + self.pipeline.silent_count as usize
    }

    /// Pauses it, and has its socket not read.
    pub(super) fn stop(&mut self, base: &mut Base, id: ConnId) {
        self.reading = Reading::Stopped;
        base.pools[self.pool as usize].counters.add(PoolCounter::Paused, 1);
        base.actions.push_back(Action::Pause(id));
        self.look_later(base, id);
    }

    /// Whether its input waits.
    pub(super) fn is_paused(&self) -> bool {
        matches!(self.reading, Reading::Paused | Reading::Stopped)
    }

    /// Whether the driver has been ordered not to read its socket.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.reading, Reading::Stopped | Reading::Resuming)
    }

    /// Pauses it; its socket is read, or not, as before.
    pub(super) fn pause(&mut self) {
        self.reading = match self.reading {
            Reading::On | Reading::Paused => Reading::Paused,
            Reading::Resuming | Reading::Stopped => Reading::Stopped,
        };
    }

    /// Ends a pause. Its kept input is read first.
    pub(super) fn let_go_on(&mut self, now: Time) {
        self.resumed = now;
        self.reading = match self.reading {
            Reading::On | Reading::Paused => Reading::On,
            Reading::Resuming | Reading::Stopped => Reading::Resuming,
        };
    }

    /// Whether it has to log in first.
    pub(super) fn must_log_in(&self, base: &Base) -> bool {
        !self.login.done && base.pools[self.pool as usize].plan.users.is_some()
    }

    /// Reports the bytes held now to the memory account.
    pub(super) fn account(&mut self, memory: &mut Memory) {
        let bytes = self.measure();
        memory.change(&mut self.counted, bytes);
    }

    /// Returns the bytes held now.
    #[inline]
    pub(super) fn measure(&self) -> usize {
        let body = match &self.intake {
            Intake::Body(body) => body.data.held() + body.head.len(),
            Intake::Head | Intake::Swallow(_) | Intake::Skip(_) => 0,
        };
        self.out.held() + self.partial.len() + self.kept_ahead() + body
    }
}
