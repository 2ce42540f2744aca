//! Blocks: several requests that a server executes as one, in one message with several replies.
//!
//! ```text
//!   MULTI  SET k 1  GET k  EXEC        one message: never cut, never mixed with others
//!   +OK    +QUEUED  +QUEUED  *2 …      the steps are checked; only the last reply is a client's
//! ```
//!
//! On a server that has another name for one of the commands around a block, or forbids it to us,
//! the requests would be executed one by one, or the link would stay in a transaction for all its
//! clients. So a server gets its first block when a **trial** has shown that it executes blocks: on
//! a link of its own, which is closed afterwards, with the login of all other links. If the server
//! takes no further link, one that clients share is tried when nothing is outstanding on it, while
//! all that is asked meanwhile waits.

use proto::{BlockReply, Item, ItemKind, Parsed, Trial, Upstream, Verdict};

use super::handshake::ENDLESS;
use super::link::{Handshake, Link, State};
use super::message::{Late, Message, MessageForm, Payload, Steps};
use super::open::{fault_of, is_out};
use super::pair::{EARLY_REPLY, UNASKED};
use super::rest::TRIAL;
use super::state::ServerState;
use super::waiting::Waiting;
use super::{LinkEvent, Servers};
use crate::Time;
use crate::base::buffer::Outbox;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Effort, LinkClass, Part, Requester};
use crate::base::size::Cost;
use crate::base::{Base, ServerAt, limits};

/// Whether a server executes blocks of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Blocks {
    /// Nobody has asked yet, or its links were lost since.
    #[default]
    Unknown,
    /// This link is to show it.
    Tried(ConnId),
    /// It does.
    Accepted,
    /// It does not, for this reason. Then it is tried again.
    Refused(Fault, Time),
}

/// A trial that is under way.
pub(super) struct TrialProgress {
    /// Its link is one that clients share, and not there for the trial alone.
    is_shared: bool,
    /// The number of replies that have come.
    replies: usize,
    verdict: Verdict,
    /// Its link is in a block.
    in_block: bool,
}

/// A block on its way to a server.
pub(crate) struct Block {
    pub(crate) server: usize,
    pub(crate) out: Outbox,
    /// The number of requests in it.
    pub(crate) requests: u32,
    /// It changes something.
    pub(crate) writes: bool,
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
            Blocks::Tried(_) => return Ok(false),
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
        if let Some(why) = state.rests.why(conn_key, TRIAL, base.now) {
            return self.try_shared(base, at, why);
        }
        let id = self.begin_connect(base, at, home, LinkClass::Shared);
        self.state(at).blocks = Blocks::Tried(id);
        Ok(false)
    }

    /// Has a link that clients share show whether its server executes blocks, since no other can be
    /// made for this reason. Returns false, as that has to be waited for.
    #[cold]
    fn try_shared(&mut self, base: &Base, at: ServerAt, why: Fault) -> Result<bool, Fault> {
        // A server that has read a trial and ended its link, or was silent, may do so again.
        let has_read = !matches!(why, Fault::Refused | Fault::LoginRefused | Fault::ConnectTimeout);
        if has_read || self.state(at).shares_no_trial_until > base.now {
            return Err(why.of_further());
        }
        let places = self.states[at.pool as usize][at.server as usize].links.iter();
        let shared = places.flat_map(|links| links.iter().skip(LinkClass::SPECIAL)).flatten();
        let shared = shared.filter_map(|id| self.links.find(*id).map(|link| (*id, link)));
        // Requests that wait meanwhile are to have time left.
        let most = base.pool(at).plan.timeouts.queue / TRIAL_SHARE;
        let is_near = |link: &Link| !link.is_up() || link.trip <= most;
        let shared = shared.filter(|(_, link)| !link.retiring && is_near(link));
        let soonest = shared.min_by_key(|(_, link)| match link.is_up() {
            true if !link.is_waiting() => 0,
            true => 1,
            false => 2,
        });
        let Some((id, _)) = soonest else { return Err(why.of_further()) };
        if self.says_busy(id) {
            return Err(Fault::Busy);
        }
        // One that is not up is tried when it has its answer.
        if let Some(link) = self.links.find_mut(id).filter(|link| link.is_up()) {
            // As soon as all that was asked before is answered.
            link.proves_at = Some(link.queued);
            self.state(at).blocks = Blocks::Tried(id);
            self.mark_dirty(id);
        }
        Ok(false)
    }

    /// Sends a block, or has it wait; returns its link. It is one message, and its last reply is
    /// the part's.
    pub(crate) fn send_block(
        &mut self,
        base: &mut Base,
        part: Part,
        asks: &Requester,
        mut block: Block,
    ) -> Option<ConnId> {
        let Block { server, requests, writes, .. } = block;
        let id = match self.link_at(base, asks, server) {
            Ok(id) => id,
            Err(fault) => {
                block.out.clear();
                block.out.close(&mut base.spares);
                let server = Some(server as u32);
                self.events.push_back(LinkEvent::NotSent { part, server, fault });
                return None;
            }
        };
        if let Some(link) = self.links.find_mut(id) {
            link.own.executed = false;
        }
        let cost = Cost::new(block.out.len(), asks.expected);
        let cost = if cost.is_unproven() { cost.of_values(requests as usize) } else { cost };
        let ask = base.pools[asks.pool()].upstream.close_block(block.out.copied());
        let form = MessageForm { payload: Payload::Single(part), ask, is_update: writes };
        let one = Waiting::message(form, block.out, (cost, asks.effort), base.now);
        let one = Waiting { steps: requests + 1, ..one };
        if self.goes_straight(base, id, asks, cost) {
            self.send_waiting(base, id, asks.id, one);
            self.arm(base, id);
            return Some(id);
        }
        if let Err((waiting, fault)) = self.wait(base, id, asks, one, true) {
            let Waiting { mut out, payload, .. } = waiting;
            out.clear();
            out.close(&mut base.spares);
            let server = server as u32;
            self.events.push_back(LinkEvent::Failed { payload, server, fault, sent: false });
        }
        Some(id)
    }

    /// Returns whether the last block on a link was executed, if the link is there. If so, closes
    /// it: the block has changed the connection.
    #[cold]
    pub(crate) fn end_changed(&mut self, base: &mut Base, id: ConnId) -> Option<bool> {
        let is_changed = std::mem::take(&mut self.links.find_mut(id)?.own.executed);
        if is_changed {
            self.close_private(base, id);
        }
        Some(is_changed)
    }

    /// Whether a link is to show whether its server executes blocks.
    pub(super) fn is_tried(&self, at: ServerAt, id: ConnId) -> bool {
        self.states[at.pool as usize][at.server as usize].blocks == Blocks::Tried(id)
    }

    /// Adds the trial to the handshake of a link that is there for it.
    pub(super) fn add_trial(&mut self, base: &Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        if let State::Handshake(handshake) = &mut link.state {
            base.pool(link.at).upstream.write_trial(&mut handshake.unsent);
        }
    }

    /// Reads the replies to a trial. A link that is there for it alone has seen enough when one of
    /// them is not as it must be; on one that clients share, all of them are to come.
    pub(super) fn read_trial(&mut self, base: &mut Base, id: ConnId) -> Result<(), &'static str> {
        let Some(link) = self.links.find_mut(id) else { return Ok(()) };
        let (at, upstream) = (link.at, base.pool(link.at).upstream);
        // Each reply is progress.
        link.since = base.now;
        loop {
            let Some(link) = self.links.find_mut(id) else { return Ok(()) };
            let State::Handshake(Handshake { unsent, trial: Some(trial), .. }) = &mut link.state
            else {
                return Ok(());
            };
            let reply = match upstream.read_trial(trial.replies, &link.partial) {
                Parsed::Complete(reply) => reply,
                Parsed::Malformed(why) => return Err(why),
                Parsed::Incomplete if link.partial.len() > limits::HANDSHAKE_MAX => {
                    return Err(ENDLESS);
                }
                Parsed::Incomplete => return Ok(()),
            };
            let is_shared = trial.is_shared;
            if is_shared && reply.verdict == Verdict::Wrong {
                return Err(BROKEN);
            }
            trial.note(&reply);
            let verdict = trial.verdict;
            let busy = upstream.busy_line(&link.partial[..reply.len]);
            link.partial.drain(..reply.len);
            let is_over = reply.is_last || !is_shared && verdict != Verdict::Accepted;
            if is_over && is_shared {
                // Others go on with it.
                match (unsent.is_empty(), link.partial.is_empty()) {
                    (false, _) => return Err(EARLY_REPLY),
                    (true, false) => return Err(UNASKED),
                    (true, true) => {}
                }
            }
            if let Some(line) = busy {
                self.note_busy_line(base, at, Some(&line));
            }
            if is_over {
                match is_shared {
                    true => self.end_shared_trial(base, id),
                    false => self.end_trial(base, id, Blocks::shown_by(verdict, base.now)),
                }
                return Ok(());
            }
        }
    }

    /// Ends the trial on a link that is there for it alone with this result, and closes the link.
    pub(super) fn end_trial(&mut self, base: &mut Base, id: ConnId, blocks: Blocks) {
        let Some(link) = self.links.find_mut(id) else { return };
        base.spares.give(std::mem::take(&mut link.partial));
        let (at, conn_key) = (link.at, base.pool(link.at).conn_keys.of(link.conn_key));
        let state = self.state(at);
        state.blocks = blocks;
        state.rests.end(conn_key, TRIAL);
        self.close_quietly(base, id);
    }

    /// Has the clients of a link that was tried use it again, when it is in no block. If it stays
    /// in one, they get another.
    fn end_shared_trial(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let at = link.at;
        let State::Handshake(Handshake { unsent, trial: Some(trial), .. }) = &mut link.state else {
            return;
        };
        if trial.in_block && trial.replies == TRIAL_REPLIES {
            base.pool(at).upstream.write_trial_end(unsent);
            return self.mark_dirty(id);
        }
        let (in_block, blocks) = (trial.in_block, Blocks::shown_by(trial.verdict, base.now));
        self.state(at).blocks = blocks;
        if !in_block {
            self.repeat_handshake(base, id);
            return self.mark_dirty(id);
        }
        if let Some(link) = self.links.find_mut(id) {
            // Its server is well.
            link.proven = true;
        }
        self.renew(base, id);
        self.close_link(base, id, Fault::LinkLost);
        // It is the same server as before.
        self.state(at).blocks = blocks.after_trap(base.now);
    }
}

impl Servers {
    /// Returns what is told instead of the error line that ends a block in which there was one.
    #[cold]
    pub(crate) fn tell_aborted(&mut self, base: &Base, id: ConnId, last: &[u8]) -> Option<Vec<u8>> {
        let link = self.links.find_mut(id).filter(|link| !link.own.block_error.is_empty())?;
        let first = std::mem::take(&mut link.own.block_error);
        base.pool(link.at).upstream.tell_aborted(&first, last)
    }
}

impl Blocks {
    fn shown_by(verdict: Verdict, now: Time) -> Blocks {
        let refused = |why, pause| Blocks::Refused(why, now.after(pause));
        match verdict {
            Verdict::Accepted => Blocks::Accepted,
            Verdict::Busy => refused(Fault::Busy, limits::BUSY_PAUSE_US),
            Verdict::Refused | Verdict::Wrong => {
                refused(Fault::NoBlocks, limits::CONN_KEY_PAUSE_US)
            }
        }
    }

    /// Returns what a trial has shown that has cost clients their link: the next one waits longer.
    fn after_trap(self, now: Time) -> Blocks {
        match self {
            Blocks::Refused(why, _) => Blocks::Refused(why, now.after(limits::TRAP_PAUSE_US)),
            other => other,
        }
    }

    /// Returns what is known when a link of the server is lost. If that was up, it may not be the
    /// same server any more.
    pub(super) fn after_loss(self, link: ConnId, was_up: bool) -> Blocks {
        match self {
            Blocks::Accepted | Blocks::Refused(Fault::Busy, _) if was_up => Blocks::Unknown,
            Blocks::Tried(one) if one == link => Blocks::Unknown,
            other => other,
        }
    }
}

impl TrialProgress {
    pub(super) fn new(is_shared: bool) -> TrialProgress {
        TrialProgress { is_shared, replies: 0, verdict: Verdict::Accepted, in_block: false }
    }

    pub(super) fn has_replies(&self) -> bool {
        self.replies > 0
    }

    fn note(&mut self, reply: &Trial) {
        self.replies += 1;
        if self.verdict == Verdict::Accepted {
            self.verdict = reply.verdict;
        }
        self.in_block = reply.in_block.unwrap_or(self.in_block);
    }
}

impl ServerState {
    /// Notes that a link is lost, and with it what it has shown.
    pub(super) fn note_blocks_lost(&mut self, id: ConnId, link: &Link, now: Time) {
        let is_shared = |trial: &TrialProgress| trial.is_shared;
        if let State::Handshake(Handshake { trial, .. }) = &link.state
            && trial.as_ref().is_some_and(is_shared)
        {
            self.shares_no_trial_until = now.after(limits::TRAP_PAUSE_US);
        }
        self.blocks = self.blocks.after_loss(id, link.was_up());
    }
}

impl Link {
    /// Notes that the last message is a block with so many replies before its own. The server
    /// watches nothing any more when it has executed it, but for what is watched behind it.
    pub(super) fn expect_steps(&mut self, steps: u32) {
        let Some(block) = self.outstanding.back_mut() else { return };
        let left = steps - u32::from(bug!(EarlyBlockEnd));
        block.late = Late::Block(Steps::new(left));
        if self.own.watched {
            self.own.guarded_until = block.end;
            let mut behind = self.queue.iter();
            self.own.watched = behind.any(|(_, one, _)| one.effort == Effort::Watches);
        }
    }
}

impl Message {
    /// Takes a reply to a block. Returns false if it is the last one, which is its request's.
    #[cold]
    pub(super) fn take_step(
        &mut self,
        upstream: &dyn Upstream,
        item: Item,
        head: &[u8],
    ) -> Result<bool, &'static str> {
        let (Late::Block(steps) | Late::AnsweredBlock(steps)) = self.late else { return Ok(false) };
        let is_last = steps.left() == 0;
        let reply = match (is_last, steps.has_begun()) {
            (true, _) => BlockReply::Ended,
            (false, true) => BlockReply::Queued,
            (false, false) => BlockReply::Begun,
        };
        let is_whole = matches!(item.kind, ItemKind::Status | ItemKind::Error) && item.body == 0;
        if !(is_last || is_whole) || !upstream.is_block_reply(reply, head) {
            return Err(BROKEN);
        }
        let next = steps.next();
        self.late = match (is_last, self.is_late()) {
            (true, true) => Late::Yes,
            (true, false) => Late::No,
            (false, true) => Late::AnsweredBlock(next),
            (false, false) => Late::Block(next),
        };
        Ok(!is_last)
    }
}

/// The round trips of a trial on a link that clients share, and some more.
const TRIAL_SHARE: u64 = 8;
/// So many replies a trial has; that to the end of its block comes behind them.
const TRIAL_REPLIES: usize = 4;
const BROKEN: &str = "not a possible reply within a transaction";
