//! Clients that write a whole pipeline before they read an answer.
//!
//! Such a client is stopped for what it is owed, and would wait for ever: it reads nothing before
//! everything is written. So its socket is read on, and its requests are kept as they came. Nothing
//! more is asked for it until it reads.
//!
//! ```text
//!   stopped, takes nothing ──10 ms──▶ read ahead ──▶ it reads its answers: requests are read
//!                                     │      ▲       from the blocks, one after the other
//!                  no room for more   ▼      │ room
//!                                   stopped ─┴─ it took nothing for `timeout_write` ──▶ closed
//! ```
//!
//! Blocks are small and are read one at a time, so that what is kept is never moved. One who reads
//! is not read ahead any more: then its socket holds it up, as before.

use std::collections::VecDeque;

use metrics::PoolCounter;
use proto::Resume;

use super::Clients;
use super::session::{Client, Intake, Reading};
use crate::base::buffer::Spares;
use crate::base::connection::Departed;
use crate::base::id::ConnId;
use crate::base::timers::Due;
use crate::base::{Base, limits};
use crate::{Action, Event, Time};

/// The input of a client behind that in `partial`.
#[derive(Default)]
pub(super) struct Ahead {
    blocks: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Since then there is no room for more.
    full_since: Option<Time>,
}

impl Ahead {
    fn push(&mut self, mut bytes: &[u8], spares: &mut Spares) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            let last = self.blocks.back().map_or(BLOCK, Vec::len);
            if last == BLOCK {
                let mut block = spares.take();
                block.reserve_exact(BLOCK);
                self.blocks.push_back(block);
            }
            let Some(block) = self.blocks.back_mut() else { return };
            let (part, rest) = bytes.split_at(bytes.len().min(BLOCK - block.len()));
            block.extend_from_slice(part);
            bytes = rest;
        }
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let block = self.blocks.pop_front()?;
        self.bytes -= block.len();
        Some(block)
    }
}

impl Client {
    /// Returns how many bytes are kept in blocks.
    pub(super) fn kept_ahead(&self) -> usize {
        self.ahead.as_ref().map_or(0, |ahead| ahead.bytes)
    }

    /// Keeps what has come of it behind all that is kept already.
    pub(super) fn keep(&mut self, bytes: &[u8], spares: &mut Spares) {
        match &mut self.ahead {
            Some(ahead) if ahead.bytes == 0 || !bug!(AheadOvertaken) => ahead.push(bytes, spares),
            _ => self.partial.extend_from_slice(bytes),
        }
    }

    /// Whether so much of its input is kept that its socket is not read.
    pub(super) fn has_enough_kept(&self, base: &Base) -> bool {
        match self.ahead.is_some() && self.lags {
            true => self.bound(base).is_some(),
            false => self.partial.len() + self.kept_ahead() > limits::BUFFER_KEEP_MAX,
        }
    }

    /// Returns the reason why no more of it is kept while it does not read, if it is so.
    /// All clients together have half of the memory for it; who keeps most is stopped first. A
    /// little is kept in any case: it shows whether the client writes at all.
    pub(super) fn bound(&self, base: &Base) -> Option<&'static str> {
        let kept = self.kept_ahead();
        if kept < base.limits.kept_least {
            return None;
        }
        if self.must_log_in(base) {
            return Some("no login");
        }
        if kept >= base.pools[self.pool as usize].plan.client_buffer_max {
            return Some("client_buffer_max");
        }
        (base.memory.in_use() + kept / 8 > base.memory.max / 2).then_some(MEMORY)
    }

    /// Moves the next block to `partial`. Returns whether that can be read now.
    pub(super) fn take_block(&mut self, spares: &mut Spares) -> bool {
        if self.ahead.is_none() || !self.partial.is_empty() && self.is_paused() {
            return false;
        }
        let block = self.ahead.as_mut().and_then(|ahead| ahead.pop());
        let Some(block) = block.filter(|_| !bug!(ForgetAhead)) else {
            self.ahead = None;
            return false;
        };
        if self.partial.is_empty() {
            self.partial = block;
        } else {
            self.partial.extend_from_slice(&block);
            spares.give(block);
        }
        !self.is_paused()
    }

    /// Discards its unfinished input.
    pub(super) fn forget_input(&mut self, base: &mut Base) {
        if let Intake::Body(mut body) = std::mem::replace(&mut self.intake, Intake::Head) {
            base.give_back(body.data.take_copied());
        }
        base.give_back(std::mem::take(&mut self.partial));
        if let Some(ahead) = self.ahead.take() {
            base.memory.free_later(ahead.blocks);
        }
        self.resume = Resume::default();
        if self.is_paused() {
            self.let_go_on(base.now);
        }
    }

    /// Has it looked at later, if it is stopped and has not taken all its output: it may take
    /// nothing.
    pub(super) fn look_later(&mut self, base: &mut Base, id: ConnId) {
        if self.lags && self.is_stopped() {
            let due = self.took_last.after(limits::AHEAD_AFTER_US).max(base.now.after(1));
            self.look_by(base, id, due);
        }
    }

    fn look_by(&mut self, base: &mut Base, id: ConnId, due: Time) {
        if self.look_at.is_none_or(|look_at| look_at > due) {
            self.look_at = Some(due);
            base.timers.set(due, Due::Ahead(id));
        }
    }
}

impl Clients {
    /// Looks at a client that was stopped while it lagged: reads its socket on, or closes it, if it
    /// still takes nothing.
    pub(crate) fn ahead_timer(&mut self, base: &mut Base, id: ConnId, set: Time) {
        let Some(client) = self.table.find_mut(id).filter(|one| one.look_at == Some(set)) else {
            return;
        };
        client.look_at = None;
        let is_stuck = client.lags && client.reading == Reading::Stopped && client.state.is_read();
        if !is_stuck || bug!(AheadNeverOpens) {
            return;
        }
        if base.now < client.took_last.after(limits::AHEAD_AFTER_US) {
            return client.look_later(base, id);
        }
        let bound = client.bound(base);
        let ahead = client.ahead.get_or_insert_default();
        let Some(bound) = bound else {
            ahead.full_since = None;
            client.reading = Reading::Paused;
            base.actions.push_back(Action::Resume(id));
            return;
        };
        let full_since = *ahead.full_since.get_or_insert(base.now);
        let write = base.pools[client.pool as usize].plan.timeouts.write;
        let due = full_since.after(write.min(limits::AHEAD_FULL_US));
        let due = due.max(client.took_last.after(write));
        let due = if bug!(HurryUnread) { base.now } else { due };
        let due = if bug!(KeepUnread) { Time(u64::MAX) } else { due };
        if base.now >= due {
            return self.close_unread(base, id, bound, true);
        }
        // There may be room before, when others have less.
        let look = base.now.after(limits::AHEAD_LOOK_US);
        client.look_by(base, id, due.min(look));
        if bound == MEMORY && base.now >= self.room_made.after(limits::AHEAD_LOOK_US) {
            self.room_made = base.now;
            self.make_room(base, id);
        }
    }

    /// Closes a client that reads nothing, and of which no more can be kept.
    pub(super) fn close_unread(
        &mut self,
        base: &mut Base,
        id: ConnId,
        bound: &'static str,
        is_told: bool,
    ) {
        let Some(client) = self.table.find(id) else { return };
        let pool = &base.pools[client.pool as usize];
        pool.counters.add(PoolCounter::ClientsUnread, 1);
        let (kept, held) = (client.kept_ahead(), client.held());
        if is_told {
            base.log(Event::ClientUnread { pool: pool.plan.id, client: id, kept, bound, held });
        }
        self.cancel(id);
        self.close_client(base, id, Departed::Unread);
    }
}

/// The directive that bounds what is kept of all clients.
pub(super) const MEMORY: &str = "memory_max";

/// The bytes of a block: those of a spare buffer.
const BLOCK: usize = limits::BUFFER_KEEP_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_give_back_what_was_kept_in_its_order() {
        let (mut ahead, mut spares) = (Ahead::default(), Spares::default());
        let bytes: Vec<u8> = (0..5 * BLOCK).map(|at| (at % 251) as u8).collect();
        let mut told = Vec::new();
        for (at, part) in bytes.chunks(BLOCK / 3).enumerate() {
            ahead.push(part, &mut spares);
            if at % 5 == 4 {
                told.extend(ahead.pop().unwrap());
            }
            assert_eq!(ahead.bytes, ahead.blocks.iter().map(Vec::len).sum());
            assert!(ahead.blocks.iter().all(|block| block.len() <= BLOCK));
        }
        while let Some(block) = ahead.pop() {
            told.extend(block);
        }
        assert!(told == bytes && ahead.bytes == 0);
    }
}
