//! Blocks: several requests that a server executes as one, in one message with several replies.
//!
//! ```text
//!   MULTI  SET k 1  GET k  EXEC        one message: never cut, never mixed with others
//!   +OK    +QUEUED  +QUEUED  *2 …      the steps are checked; only the last reply is a client's
//! ```
//!
//! A server gets its first block when a trial has shown that it executes blocks ([`super::trial`]).

use proto::{BlockReply, Item, ItemKind, Upstream};

use super::link::Link;
use super::message::{Internal, Late, Message, MessageForm, Payload, Steps};
use super::waiting::Waiting;
use super::{LinkEvent, Servers};
use crate::base::Base;
use crate::base::buffer::Outbox;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::{Effort, Part, Requester};
use crate::base::size::Cost;

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

    /// Fails the blocks that wait on a client's own link, since a request to watch keys for one of
    /// them has failed unsent: that one would be executed whatever has become of the keys.
    #[cold]
    pub(super) fn fail_unwatched(&mut self, base: &mut Base, id: ConnId, fault: Fault) {
        let Some(link) = self.links.find_mut(id).filter(|_| !bug!(KeepUnwatched)) else { return };
        let owner = Some(link.owner);
        let blocks = link.withdraw_where(|message| message.is_block() && !message.is_trial());
        self.fail_pending(base, id, blocks, |_| fault);
        self.withdraw_waiting(base, id, owner, fault, |_, one, _| one.steps > 0);
    }

    /// Returns whether the last block on a link was executed, if the link is there. If so, closes
    /// it: the block has changed the connection.
    #[cold]
    pub(crate) fn end_changed(&mut self, base: &mut Base, id: ConnId) -> Option<bool> {
        let is_changed = std::mem::take(&mut self.links.find_mut(id)?.own.executed);
        if is_changed {
            self.close_private(base, id, Fault::Dropped);
        }
        Some(is_changed)
    }

    /// Returns what is told instead of the error line that ends a block in which there was one.
    #[cold]
    pub(crate) fn tell_aborted(&mut self, base: &Base, id: ConnId, last: &[u8]) -> Option<Vec<u8>> {
        let link = self.links.find_mut(id).filter(|link| !link.own.block_error.is_empty())?;
        let first = std::mem::take(&mut link.own.block_error);
        base.pool(link.at).upstream.tell_aborted(&first, last)
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
        let is_possible = match &mut self.payload {
            Payload::Internal(command) => match &mut **command {
                Internal::Trial(trial) => is_whole && trial.note_reply(upstream, is_last, head),
                _ => false,
            },
            _ => (is_last || is_whole) && upstream.is_block_reply(reply, head),
        };
        if !is_possible {
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

const BROKEN: &str = "a reply that cannot stand within a transaction";
