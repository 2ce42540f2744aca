//! The server half: links, what waits on them, and what is known of the servers behind them.
//!
//! It gets the parts of requests to send, and tells what becomes of each: a reply as it comes
//! ([`Reply`]), and everything else as a [`LinkEvent`]. It knows of a client what [`Requester`]
//! says, and of a request its [`Part`](crate::base::part::Part). Waiting requests stand in each
//! link's queue (`link.rs`); that is the place for another order of them, or for a limit.

mod again;
mod around;
mod batch;
mod block;
mod busy;
mod check;
mod costs;
mod deadline;
mod drips;
mod effort;
mod fail;
mod handshake;
mod health;
mod hold;
mod inflight;
mod keys;
mod link;
mod load;
mod lost_soon;
mod marks;
mod message;
mod open;
mod order;
mod outstanding;
mod pair;
mod plan;
mod private;
mod queue;
mod refused;
mod renew;
mod rest;
mod send;
mod state;
mod takes;
mod topics;
mod trial;
mod verdict;
mod wait;
mod waiting;
mod work;

use std::collections::{BTreeMap, VecDeque};

use metrics::ServerCounter;

use crate::base::buffer::Slices;
use crate::base::id::{ConnId, Side, Slab};
use crate::base::part::LinkClass;
use crate::base::pool::Stage;
use crate::base::{Base, ServerAt};
use link::{Link, State};
use load::Loads;
use state::{Gauges, Hold, ServerState};

pub(crate) use batch::Batch;
pub(crate) use block::Block;
pub(crate) use fail::{LinkEvent, Lost};
pub(crate) use keys::SendOptions;
pub(crate) use message::{Internal, Payload, Unit};
pub(crate) use pair::{Matched, Received, Reply, WRONG_LENGTH};
pub(crate) use topics::{Settled, ToSubscribers, TopicName, TopicsLost};

/// The links of this worker, and the servers as they show themselves on them.
pub(crate) struct Servers {
    links: Slab<Link>,
    /// By pool and server, as in `Base::pools`.
    states: Vec<Vec<ServerState>>,
    /// Links that may have something to write, each once.
    dirty: Vec<ConnId>,
    /// Servers whose held messages are sent at the end of this turn.
    ending_holds: Vec<ServerAt>,
    /// Links to which the request being read has added keys.
    touched_links: Vec<ConnId>,
    // The boxes themselves are reused, not only their contents.
    #[allow(clippy::vec_box)]
    spare_batches: Vec<Box<Batch>>,
    /// What each client has outstanding.
    loads: Loads,
    /// Links for which something waits, each once.
    backlogs: Vec<ConnId>,
    /// Clients whose parked queues are served again at the end of this turn.
    unparked: Vec<ConnId>,
    /// A request has gone without an answer since the queues were served: what waits for it on
    /// another link of its server may go on.
    has_room_since: bool,
    /// The links that serve one client only, by that client.
    private: BTreeMap<ConnId, Vec<ConnId>>,
    /// The outcomes of messages, until `proxy.rs` asks.
    events: VecDeque<LinkEvent>,
}

impl Servers {
    pub(crate) fn new(base: &mut Base) -> Servers {
        let mut servers = Servers {
            links: Slab::new(Side::Link),
            states: Vec::new(),
            dirty: Vec::new(),
            ending_holds: Vec::new(),
            touched_links: Vec::new(),
            spare_batches: Vec::new(),
            loads: Loads::default(),
            backlogs: Vec::new(),
            unparked: Vec::new(),
            has_room_since: false,
            private: BTreeMap::new(),
            events: VecDeque::new(),
        };
        (0..base.pools.len()).for_each(|pool| servers.add_pool(base, pool));
        servers
    }

    fn state(&mut self, at: ServerAt) -> &mut ServerState {
        &mut self.states[at.pool as usize][at.server as usize]
    }

    /// Returns what has become of a message, if there is more to tell.
    pub(crate) fn next_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    /// Returns the place of the server of a link.
    pub(crate) fn at(&self, id: ConnId) -> Option<ServerAt> {
        self.links.find(id).map(|link| link.at)
    }

    /// Returns the index of the server of a link.
    pub(crate) fn server_of(&self, id: ConnId) -> Option<u32> {
        self.links.find(id).map(|link| link.at.server)
    }

    /// Returns the number of links.
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    /// Collects the bytes to write to a link, in order: none if it is gone or cannot send yet.
    pub(crate) fn transmit<'a>(&'a self, id: ConnId, out: &mut Slices<'a>) {
        let Some(link) = self.links.find(id) else { return };
        match &link.state {
            State::Connecting => {}
            State::Handshake(handshake) if handshake.unsent.is_empty() => {}
            State::Handshake(handshake) => out.push(&handshake.unsent),
            State::Up(_) => {
                let state = &self.states[link.at.pool as usize][link.at.server as usize];
                match state.silence.hold {
                    Hold::Off => link.out.slices(out),
                    _ if link.class.is_never_held() => link.out.slices(out),
                    Hold::On | Hold::Ending => link.out.slices_within(link.begun(), out),
                }
            }
        }
    }

    /// Notes that the kernel took bytes of a link.
    pub(crate) fn transmitted(&mut self, base: &mut Base, id: ConnId, n: usize) {
        let Some(link) = self.links.find_mut(id) else { return };
        let state = &self.states[link.at.pool as usize][link.at.server as usize];
        state.counters.add(ServerCounter::MessageBytes, n as u64);
        if let State::Handshake(handshake) = &mut link.state {
            handshake.unsent.drain(..n);
            if n > 0 {
                // While the kernel still takes the handshake, the server cannot answer it.
                link.since = base.now;
            }
            return;
        }
        link.advance(n, base.now);
        let is_slow = link.outstanding.front().is_some_and(|first| first.effort.is_slow());
        let at = link.at;
        if link.out.is_empty() {
            link.out.close(&mut base.spares);
        } else {
            link.out.settle();
        }
        link.account(&mut base.memory);
        let is_retiring = link.retiring;
        self.note_owing(base, id);
        if is_slow {
            self.tell_busy(base, at);
        }
        self.arm(base, id);
        if is_retiring {
            // The rest of a refused message may have been the last that it waited for.
            self.end_link_retirement(base, id);
        }
    }

    fn mark_dirty(&mut self, id: ConnId) {
        if let Some(link) = self.links.find_mut(id)
            && !link.dirty
        {
            link.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Returns the next link that has something to send and can send it.
    pub(crate) fn next_dirty(&mut self, base: &mut Base) -> Option<ConnId> {
        while let Some(id) = self.dirty.pop() {
            if let Some(link) = self.links.find_mut(id) {
                link.dirty = false;
                if self.may_write(base, id) {
                    return Some(id);
                }
            }
        }
        None
    }

    /// Sums up the gauges of each server, and writes them to the metrics registry.
    pub(crate) fn publish(&mut self, base: &Base) {
        for state in self.states.iter_mut().flatten() {
            state.gauges = Gauges::default();
        }
        self.tell_all_work();
        for (_, link) in self.links.iter() {
            let state = &mut self.states[link.at.pool as usize][link.at.server as usize];
            let pending = link.outstanding.len() - link.first_pending();
            state.gauges.links += u64::from(link.was_up());
            state.gauges.pending += (pending + link.queue.len()) as u64;
            state.gauges.pending_bytes += (link.out.len() + link.queue.bytes()) as u64;
            state.gauges.inflight += (link.outstanding.len() - pending) as u64;
            state.gauges.inflight_bytes += link.sent - link.done;
            if link.class == LinkClass::Private {
                state.gauges.private += 1;
                state.gauges.blocked += u64::from(link.waits());
            }
        }
        for (pool, states) in base.pools.iter().zip(&self.states) {
            let both = pool.servers.iter().zip(states);
            // The id of a vacant place may belong to another server by now.
            both.filter(|(server, _)| server.stage != Stage::Vacant)
                .for_each(|(_, state)| state.publish());
        }
    }

    fn links_of(&self, at: ServerAt) -> Vec<ConnId> {
        self.links.iter().filter(|(_, link)| link.at == at).map(|(id, _)| id).collect()
    }
}
