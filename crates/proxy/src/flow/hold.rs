//! Hold and drop. A server that owes answers and has been silent for `hold_after` gets nothing
//! more: messages to it wait, and those that no client waits for any more are dropped. So when a
//! client gives up, comes back and sends its change again, the change is done once when the server
//! wakes.
//!
//! ```text
//!           owes, and silent for `hold_after`           a byte of it, or it owes nothing
//!     Off ────────────────────────────────────▶ On ────────────────────────────────────▶ Ending
//!      ▲                                         │ every `hold_after`: drop                  │
//!      └──────────── the turn ends: drop, and send the rest ◀───────────────────────────────┘
//! ```
//!
//! * A server is silent, not a link. So all links of this worker are held, and the metrics registry
//!   shows the other workers that they are. A message that has begun to leave goes on to its end.
//! * A link that owes nothing repeats the handshake before it sends anything, if some worker found
//!   its server silent. The answer shows that the server is there after all.
//! * Two kinds of requests are dropped: a read whose client has left, and a change whose client
//!   waited for the answer and has left without a `quit`. A client that comes back asks for it
//!   again. A request that no client ever waited for (`noreply`, quiet requests without a loud one
//!   behind them) is not asked again: it is sent.

use metrics::ServerCounter;
use proto::Request;

use crate::batch::Batch;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::{Link, Message, Payload, State};
use crate::pool::{Hold, Server};
use crate::request::RequestId;
use crate::timers::Due;
use crate::{Proxy, Time};

impl Proxy {
    /// Checks whether a server now owes something on a link, or no longer does.
    pub(super) fn note_owing(&mut self, id: ConnId, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        let owes = link.is_waiting();
        if link.owes == owes {
            return;
        }
        link.owes = owes;
        let (pool, server) = (link.pool as usize, link.server as usize);
        if !owes {
            return self.count_link_settled(pool, server);
        }
        let hold_after = self.pipelines.pools[pool].plan.hold_after;
        let silence = &mut self.pipelines.pools[pool].servers[server].silence;
        silence.owing += 1;
        if silence.owing == 1 {
            silence.asked = now;
        }
        if let (Some(patience), None) = (hold_after, silence.look_at) {
            self.look_at_silence(pool, server, now.after(patience));
        }
    }

    /// Counts one link fewer on which a server owes, since the link died or has all its answers.
    /// When no other is left, there is nothing to wait for: the next message or handshake finds
    /// out.
    pub(super) fn count_link_settled(&mut self, pool: usize, server: usize) {
        let silence = &mut self.pipelines.pools[pool].servers[server].silence;
        silence.owing -= 1;
        if silence.owing == 0 {
            self.end_hold(pool, server);
        }
    }

    /// Notes that bytes came from a server.
    pub(super) fn note_heard(&mut self, pool: usize, server: usize, now: Time) {
        let silence = &mut self.pipelines.pools[pool].servers[server].silence;
        silence.heard = now;
        silence.suspect = false;
        if silence.hold == Hold::On && !bug!(HoldForEver) {
            self.end_hold(pool, server);
        }
    }

    /// Handles a link that came up: messages that have waited for it for long were held back.
    pub(super) fn note_up(&mut self, id: ConnId, now: Time) {
        let link = self.links.find_mut(id).expect("the caller found it");
        let pool = &mut self.pipelines.pools[link.pool as usize];
        let Some(patience) = pool.plan.hold_after else { return };
        let late = |message: &&mut Message| now >= message.since.after(patience) && !message.held;
        let count =
            link.outstanding.iter_mut().filter(late).map(|message| message.held = true).count();
        let server = &mut pool.servers[link.server as usize];
        server.counters.add(ServerCounter::Held, count as u64);
        // Some may have been held before, when the server was silent on another link.
        let is_held = link.outstanding.iter().any(|message| message.held);
        if is_held && server.silence.hold != Hold::Ending {
            server.silence.hold = Hold::Ending;
            self.ending_holds.push((link.pool, link.server));
        }
    }

    /// Marks the messages queued for a silent server as held.
    pub(super) fn note_held(link: &mut Link, server: &Server) {
        if server.silence.hold == Hold::On {
            let pending = link.outstanding.len() - link.first_pending();
            let fresh = link.outstanding.iter_mut().rev().take(pending);
            let fresh = fresh.take_while(|message| !message.held);
            let count = fresh.map(|message| message.held = true).count();
            server.counters.add(ServerCounter::Held, count as u64);
        }
    }

    /// Whether a link has something that may be sent now.
    pub(super) fn may_write(&mut self, id: ConnId) -> bool {
        let link = self.links.find(id).expect("the caller found it");
        let server = &self.pipelines.pools[link.pool as usize].servers[link.server as usize];
        let is_sent = server.silence.hold == Hold::Off;
        match link.state {
            State::Connecting => false,
            State::Handshake => !link.handshake.is_empty(),
            State::Up if link.out.is_empty() => false,
            State::Up if link.is_waiting() => is_sent || link.begun() > 0,
            State::Up if self.is_suspect(link) => {
                self.repeat_handshake(id);
                true
            }
            State::Up => is_sent,
        }
    }

    /// Whether a server that owes nothing must answer a handshake before anything is sent: no byte
    /// has come from it of late, and this worker or another found it silent.
    pub(super) fn is_suspect(&self, link: &Link) -> bool {
        let pool = &self.pipelines.pools[link.pool as usize];
        let Some(patience) = pool.plan.hold_after else { return false };
        let server = &pool.servers[link.server as usize];
        if self.pipelines.now < server.silence.heard.after(patience) || bug!(SendToSilent) {
            return false;
        }
        server.silence.suspect
            || self.pipelines.metrics.total(server.plan.id, ServerCounter::HoldingWorkersNow) > 0
    }

    /// Checks whether a server has been silent for too long, or still is.
    pub(super) fn silence_timer(&mut self, pool_index: usize, server: usize, set: Time, now: Time) {
        // Another server may have the index by now, or a later timer may have replaced this one.
        let Some(pool) = self.pipelines.pools.get_mut(pool_index) else { return };
        let hold_after = pool.plan.hold_after;
        let silence = pool.servers.get_mut(server).map(|one| &mut one.silence);
        let Some(silence) = silence.filter(|one| one.look_at == Some(set)) else { return };
        silence.look_at = None;
        let Some(patience) = hold_after else { return self.end_hold(pool_index, server) };
        if silence.owing == 0 {
            return;
        }
        let too_long = silence.heard.max(silence.asked).after(patience);
        match silence.hold {
            Hold::On => self.drop_cancelled(pool_index, server),
            _ if now < too_long => return self.look_at_silence(pool_index, server, too_long),
            Hold::Off | Hold::Ending => self.begin_hold(pool_index, server),
        }
        self.look_at_silence(pool_index, server, now.after(patience));
    }

    /// Sends the held messages at the end of a turn, when all clients that left in the turn are
    /// known.
    pub(crate) fn end_holds(&mut self) {
        while let Some((pool, server)) = self.ending_holds.pop() {
            let (pool, server) = (pool as usize, server as usize);
            let hold = &mut self.pipelines.pools[pool].servers[server].silence.hold;
            if *hold != Hold::Ending {
                // It has fallen silent again.
                continue;
            }
            *hold = Hold::Off;
            self.drop_cancelled(pool, server);
            for id in self.links_of(pool, server) {
                if !bug!(LeaveHeld) {
                    self.mark_dirty(id);
                }
            }
        }
    }

    /// Drops a request of a client that has left while all its input waited for a server's
    /// handshake.
    pub(super) fn drop_unasked(&mut self, id: ConnId, request: &Request, head: &[u8]) {
        let server = match self.keys.is_empty() {
            // The request may go to any server, or to all: this is the server that its client
            // waited for.
            true => self.pipelines.clients.find(id).map(|client| client.awaited as usize),
            false => self.server_for(id, request, head),
        };
        let pending = self.pipelines.enqueue(id, request, head);
        self.pipelines.requests[pending].left = 1;
        if let Some(server) = server {
            let pool = self.pipelines.requests[pending].pool as usize;
            let counters = self.pipelines.pools[pool].servers[server].counters;
            counters.add(ServerCounter::Held, 1);
            counters.add(ServerCounter::Dropped, 1);
        }
        let fault = if server.is_some() { Fault::Dropped } else { Fault::NoServer };
        self.pipelines.fail_part((pending, 0), server.map(|at| at as u32), fault, false);
    }

    fn look_at_silence(&mut self, pool: usize, server: usize, at: Time) {
        self.pipelines.pools[pool].servers[server].silence.look_at = Some(at);
        self.timers.set(at, Due::Silence { pool: pool as u32, server: server as u32 });
    }

    fn begin_hold(&mut self, pool: usize, server_index: usize) {
        if bug!(NeverHold) {
            return;
        }
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        server.silence.hold = Hold::On;
        server.silence.suspect = true;
        server.counters.set(ServerCounter::HoldingWorkersNow, 1);
        for id in self.links_of(pool, server_index) {
            let link = self.links.find_mut(id).expect("it has just been listed");
            Proxy::note_held(link, &self.pipelines.pools[pool].servers[server_index]);
            // A link that owes nothing repeats the handshake, to see whether the server is there.
            self.mark_dirty(id);
        }
        self.drop_cancelled(pool, server_index);
    }

    fn end_hold(&mut self, pool: usize, server_index: usize) {
        if self.pipelines.pools[pool].servers[server_index].silence.hold != Hold::On {
            return;
        }
        // Messages queued in this turn were held as well.
        for id in self.links_of(pool, server_index) {
            let link = self.links.find_mut(id).expect("it has just been listed");
            Proxy::note_held(link, &self.pipelines.pools[pool].servers[server_index]);
        }
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        server.silence.hold = Hold::Ending;
        server.counters.set(ServerCounter::HoldingWorkersNow, 0);
        self.ending_holds.push((pool as u32, server_index as u32));
    }

    pub(super) fn links_of(&self, pool: usize, server: usize) -> Vec<ConnId> {
        let is_its = |link: &Link| (link.pool as usize, link.server as usize) == (pool, server);
        self.links.iter().filter(|(_, link)| is_its(link)).map(|(id, _)| id).collect()
    }

    /// Takes held messages that no client waits for any more out of a server's queues.
    fn drop_cancelled(&mut self, pool: usize, server: usize) {
        if bug!(KeepCancelled) {
            return;
        }
        let (now, hold_after) = (self.pipelines.now, self.pipelines.pools[pool].plan.hold_after);
        for id in self.links_of(pool, server) {
            let link = self.links.find_mut(id).expect("it has just been listed");
            let requests = &self.pipelines.requests;
            let is_it = |pending: RequestId| requests[pending].cancelled || bug!(DropWaitedFor);
            let all = |batch: &Batch| batch.outstanding().all(|entry| is_it(entry.pending));
            let dropped = link.withdraw_where(|message| match &message.payload {
                Payload::Single(pending, _) => message.held && is_it(*pending),
                Payload::Fetch(batch) => message.held && all(batch),
                Payload::Internal(_) => false,
            });
            let late =
                |batch: &Batch| hold_after.is_some_and(|time| now >= batch.since.after(time));
            let gathering = link.batch.take_if(|batch| late(batch) && all(batch));
            let count = dropped.len() + usize::from(gathering.is_some());
            if count == 0 {
                continue;
            }
            self.gauges_changed = true;
            let counters = self.pipelines.pools[pool].servers[server].counters;
            counters.add(ServerCounter::Dropped, count as u64);
            for message in dropped {
                self.fail_message(message, server as u32, Fault::Dropped, false);
            }
            if let Some(batch) = gathering {
                counters.add(ServerCounter::Held, 1);
                self.fail_batch(batch, server as u32, Fault::Dropped, false);
            }
            self.mark_dirty(id);
            // It may have been all that the link waited for.
            self.end_link_retirement(id);
        }
    }
}
