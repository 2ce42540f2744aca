//! Whether a server executes blocks of ours: a **trial** shows it before the first one.
//!
//! ```text
//!   DISCARD  EXEC       -ERR … without MULTI, twice: both are known, and we may use them
//!   MULTI  DISCARD      +OK +OK: a block begins and ends
//! ```
//!
//! On a server that has another name for one of these commands, or forbids it to us, the requests
//! of a block would be executed one by one, or its link would stay in a transaction for all
//! clients. A trial has a link of its own, which is closed afterwards, since a server may end a
//! link on which it reads such a command. If the server takes no further link, the trial goes among
//! the requests on one that clients share.

use proto::{Trial, TrialReply, Upstream};

use super::link::Link;
use super::message::{Internal, Late, Message, Payload, Steps};
use super::open::{fault_of, is_out};
use super::rest::{Place, TRIAL};
use super::state::ServerState;
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{LinkClass, Requester};
use crate::base::{Base, ServerAt, limits};

/// Whether a server executes blocks of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Blocks {
    /// Nobody has asked yet, or its links were lost since.
    #[default]
    Unknown,
    /// This link, which is there for that alone, is to show it.
    Tried(ConnId),
    /// This one is to show it, which clients share.
    TriedShared(ConnId),
    /// It does.
    Accepted,
    /// It does not, for this reason. Then it is tried again.
    Refused(Fault, Time),
}

/// The message of a trial, which has two replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrialMessage {
    trial: Trial,
    /// The first reply that is not as it must be.
    reply: TrialReply,
}

impl Servers {
    /// Whether a server executes blocks. Returns false if that has to be waited for.
    pub(crate) fn accepts_blocks(
        &mut self,
        base: &mut Base,
        asks: &Requester,
        server: usize,
    ) -> Result<bool, Fault> {
        let at = ServerAt { pool: asks.pool, server: server as u32 };
        let one = base.server(at);
        if is_out(one) {
            return Err(fault_of(one));
        }
        let state = self.state(at);
        match state.blocks {
            Blocks::Accepted => return Ok(true),
            Blocks::Refused(fault, until) if until > base.now => return Err(fault),
            Blocks::Tried(_) | Blocks::TriedShared(_) => return Ok(false),
            _ if bug!(BlockUntried) => return Ok(true),
            Blocks::Unknown | Blocks::Refused(..) => {}
        }
        if state.unable_until > base.now {
            return Err(Fault::Unable);
        }
        let home = base.pool(at).conn_keys.home;
        let conn_key = base.pool(at).conn_keys.of(home);
        if state.refuses(conn_key, base.now) {
            return Err(Fault::SetupRefused);
        }
        if let Some(why) = state.rests.why(Place::of_all(conn_key, TRIAL), base.now) {
            return self.try_shared(base, at, why);
        }
        let id = self.begin_connect(base, at, home, LinkClass::Shared);
        self.state(at).blocks = Blocks::Tried(id);
        Ok(false)
    }

    /// Has a link that clients share show whether its server executes blocks, since no other can be
    /// made for this reason. Returns false, as that has to be waited for.
    #[cold]
    fn try_shared(&mut self, base: &mut Base, at: ServerAt, why: Fault) -> Result<bool, Fault> {
        if self.state(at).shares_no_trial_until > base.now {
            return Err(why.of_further());
        }
        let places = self.states[at.pool as usize][at.server as usize].links.iter();
        let shared = places.flat_map(|links| links.iter().skip(LinkClass::SPECIAL)).flatten();
        let shared = shared.filter_map(|id| self.links.find(*id).map(|link| (*id, link)));
        let shared = shared.filter(|(_, link)| !link.retiring);
        let soonest = shared.min_by_key(|(_, link)| (!link.is_up(), link.is_waiting()));
        let Some((id, link)) = soonest else { return Err(why.of_further()) };
        let is_up = link.is_up();
        if self.says_busy(id) {
            return Err(Fault::Busy);
        }
        if is_up {
            self.send_trial(base, id, Trial::Ends);
            self.state(at).blocks = Blocks::TriedShared(id);
        }
        // One that is not up is tried when it has its answer.
        Ok(false)
    }

    /// Handles the loss of a link that was up and there for a trial. Its server may end, or leave
    /// unanswered, what is no request of a client, and is well all the same. It may do so again.
    #[cold]
    pub(super) fn rest_trial(&mut self, base: &mut Base, link: &Link, fault: Fault) {
        self.state(link.at).note_trap(base.now);
        self.rest_place(base, link, TRIAL, fault);
        if !self.has_links_up(link.at) {
            self.begin_judge(base, link.at);
        }
    }

    /// Whether this link is there to show whether its server executes blocks, and for nothing else.
    pub(super) fn is_trial_link(&self, at: ServerAt, id: ConnId) -> bool {
        self.states[at.pool as usize][at.server as usize].blocks == Blocks::Tried(id)
    }

    /// Begins the trial on a link that is there for it, and up.
    pub(super) fn begin_trial(&mut self, base: &mut Base, id: ConnId) {
        // It may have repeated its handshake.
        let is_new = self.links.find(id).is_some_and(|link| !link.carries_trial());
        if is_new {
            self.send_trial(base, id, Trial::Ends);
        }
    }

    fn send_trial(&mut self, base: &mut Base, id: ConnId, trial: Trial) {
        let Some(link) = self.links.find(id) else { return };
        let mut words = Vec::new();
        let ask = base.pool(link.at).upstream.write_trial(trial, &mut words);
        let command = Internal::Trial(TrialMessage { trial, reply: TrialReply::Accepted });
        // Its bytes are few, and a server has one at a time.
        self.launch_internal(base, id, Payload::internal(command), ask, &words);
        let link = self.links.find_mut(id);
        if let Some(message) = link.and_then(|link| link.outstanding.back_mut()) {
            message.late = Late::Block(Steps::new(1));
        }
    }

    /// Notes that all replies to the message of a trial have come.
    #[cold]
    pub(super) fn note_trial(&mut self, base: &mut Base, id: ConnId, message: TrialMessage) {
        if !self.is_on_trial(id) {
            return;
        }
        let now = base.now;
        let blocks = match (message.reply, message.trial) {
            (TrialReply::Accepted, Trial::Ends) => {
                return self.send_trial(base, id, Trial::Empty);
            }
            (TrialReply::Accepted, Trial::Empty) => Blocks::Accepted,
            (TrialReply::Busy, _) => Blocks::Refused(Fault::Busy, now.after(limits::BUSY_PAUSE_US)),
            (TrialReply::Refused, _) => Blocks::refused(Fault::NoBlocks, now),
        };
        self.end_trial(base, id, blocks);
    }

    /// Handles the end of a trial that was withdrawn before it was sent.
    pub(super) fn give_up_trial(&mut self, base: &mut Base, id: ConnId) {
        if self.is_on_trial(id) {
            self.end_trial(base, id, Blocks::Unknown);
        }
    }

    fn is_on_trial(&self, id: ConnId) -> bool {
        let Some(at) = self.at(id) else { return false };
        let blocks = self.states[at.pool as usize][at.server as usize].blocks;
        blocks == Blocks::Tried(id) || blocks == Blocks::TriedShared(id)
    }

    /// Ends a trial with this result. A link that is there for it alone is closed.
    pub(super) fn end_trial(&mut self, base: &mut Base, id: ConnId, blocks: Blocks) {
        let Some(link) = self.links.find(id) else { return };
        let (at, conn_key) = (link.at, base.pool(link.at).conn_keys.of(link.conn_key));
        let is_own = self.is_trial_link(at, id);
        let state = self.state(at);
        state.blocks = blocks;
        if is_own {
            state.rests.end(Place::of_all(conn_key, TRIAL));
            return self.close_quietly(base, id);
        }
        self.events.push_back(LinkEvent::Known(at, base.hold_after(at)));
    }
}

impl Blocks {
    fn refused(why: Fault, now: Time) -> Blocks {
        Blocks::Refused(why, now.after(limits::CONN_KEY_PAUSE_US))
    }

    /// Returns what is known when a link of the server is lost. If that was up, it may not be the
    /// same server any more.
    pub(super) fn after_loss(self, link: ConnId, was_up: bool) -> Blocks {
        match self {
            Blocks::Tried(one) | Blocks::TriedShared(one) if one == link => Blocks::Unknown,
            Blocks::Accepted | Blocks::Refused(Fault::Busy, _) if was_up => Blocks::Unknown,
            other => other,
        }
    }
}

impl TrialMessage {
    /// Notes the first or the last reply. Returns false for one that no server gives, and where the
    /// link stays in a block: it is of no use to anybody then.
    pub(super) fn note_reply(
        &mut self,
        upstream: &dyn Upstream,
        is_last: bool,
        line: &[u8],
    ) -> bool {
        let Some(reply) = upstream.read_trial(self.trial, is_last, line) else { return false };
        let was_accepted = self.reply == TrialReply::Accepted;
        if was_accepted {
            self.reply = reply;
        }
        let has_begun = self.trial == Trial::Empty && is_last && was_accepted;
        !has_begun || reply == TrialReply::Accepted
    }
}

impl ServerState {
    /// Notes that a link was lost at a trial. It may have been chance, so the pauses grow.
    fn note_trap(&mut self, now: Time) {
        let is_known = now.since(self.shares_no_trial_until) < limits::TRAP_PAUSE_LAST_US;
        let pause = if is_known { 2 * self.trap_pause } else { 0 };
        self.trap_pause = pause.clamp(limits::TRAP_PAUSE_FIRST_US, limits::TRAP_PAUSE_LAST_US);
        self.shares_no_trial_until = now.after(self.trap_pause);
    }

    /// Notes that a link is lost, and with it what it has shown.
    pub(super) fn note_blocks_lost(&mut self, id: ConnId, link: &Link, now: Time) {
        // It may be what has ended the link.
        let is_first = link.is_waiting() && link.outstanding.front().is_some_and(Message::is_trial);
        if self.blocks == Blocks::TriedShared(id) && is_first {
            self.note_trap(now);
        }
        self.blocks = self.blocks.after_loss(id, link.was_up());
    }
}

impl Link {
    fn carries_trial(&self) -> bool {
        self.outstanding.iter().any(Message::is_trial)
    }
}
