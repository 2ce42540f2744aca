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
//! a link of its own, which is closed afterwards, with the login of all other links.

use proto::{BlockReply, Item, ItemKind, Parsed, Trial, Upstream};

use super::link::{Handshake, Link, State};
use super::message::{Late, Message, MessageForm, Payload, Steps};
use super::open::{fault_of, is_out};
use super::rest::TRIAL;
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
            return Err(why.of_further());
        }
        let id = self.begin_connect(base, at, home, LinkClass::Shared);
        self.state(at).blocks = Blocks::Tried(id);
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

    /// Whether a link is there for a trial only.
    pub(super) fn is_trial(&self, at: ServerAt, id: ConnId) -> bool {
        self.states[at.pool as usize][at.server as usize].blocks == Blocks::Tried(id)
    }

    /// Adds the trial to the handshake of a link that is there for it.
    pub(super) fn begin_trial(&mut self, base: &Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        if let State::Handshake(handshake) = &mut link.state {
            base.pool(link.at).upstream.write_trial(&mut handshake.unsent);
        }
    }

    /// Reads the replies to a trial behind the answer to its handshake, and closes its link.
    pub(super) fn read_trial(&mut self, base: &mut Base, id: ConnId) -> Result<(), &'static str> {
        let Some(link) = self.links.find_mut(id) else { return Ok(()) };
        let upstream = base.pool(link.at).upstream;
        // Each reply is progress.
        link.since = base.now;
        let State::Handshake(Handshake { trial: Some(nth), .. }) = &mut link.state else {
            return Ok(());
        };
        let blocks = loop {
            match upstream.read_trial(*nth, &link.partial) {
                Parsed::Incomplete => return Ok(()),
                Parsed::Malformed(why) => return Err(why),
                Parsed::Complete(Trial::GoesOn(len)) => {
                    link.partial.drain(..len);
                    *nth += 1;
                }
                Parsed::Complete(Trial::Accepted) => break Blocks::Accepted,
                Parsed::Complete(Trial::Busy) => {
                    self.note_busy_answer(base, id);
                    break Blocks::Refused(Fault::Busy, base.now.after(limits::BUSY_PAUSE_US));
                }
                Parsed::Complete(Trial::Refused) => {
                    let until = base.now.after(limits::CONN_KEY_PAUSE_US);
                    break Blocks::Refused(Fault::NoBlocks, until);
                }
            }
        };
        self.end_trial(base, id, blocks);
        Ok(())
    }

    /// Ends a trial with this result.
    pub(super) fn end_trial(&mut self, base: &mut Base, id: ConnId, blocks: Blocks) {
        let Some(link) = self.links.find_mut(id) else { return };
        base.spares.give(std::mem::take(&mut link.partial));
        let (at, conn_key) = (link.at, base.pool(link.at).conn_keys.of(link.conn_key));
        let state = self.state(at);
        state.blocks = blocks;
        state.rests.end(conn_key, TRIAL);
        self.close_quietly(base, id);
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

const BROKEN: &str = "not a possible reply within a transaction";
