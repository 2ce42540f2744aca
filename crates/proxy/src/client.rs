//! The client half: clients, their requests and the answers to them.
//!
//! It reads clients' bytes, answers what the proxy answers by itself, and yields the other requests
//! as [`Frame`]s. What servers make of their parts comes back and is settled here. It knows
//! nothing of links: a request's parts are out of its hands until `proxy.rs` brings an answer or a
//! fault for each.

mod accept;
mod ahead;
mod answer;
mod attempts;
mod body;
mod check;
mod facts;
mod finish;
mod forms;
mod gather;
mod inflight;
mod input;
mod inquire;
mod large;
mod leave;
mod life;
mod local;
mod login;
mod monitor;
mod operate;
mod owed;
mod push;
mod repeat;
mod request;
mod session;
mod settle;
mod stalled;
mod stats;
mod stream;
mod tally;
mod tenant;
mod topics;
mod transaction;
mod unwritten;
mod value;
mod waits;
mod watch;

use std::collections::VecDeque;

use metrics::WorkerCounter;

use crate::base::Base;
use crate::base::buffer::Slices;
use crate::base::connection::Departed;
use crate::base::id::{ConnId, Side, Slab};
use crate::base::part::{LinkClass, RequestId, Requester};
use crate::base::plan::Plan;
use crate::{Action, Event, Time};
use attempts::Attempts;
use finish::{Finishing, count};
use inquire::Held;
use local::Text;
use monitor::Monitors;
use request::PendingRequests;
use session::{Client, State};
use topics::TopicChanges;
use unwritten::UnwrittenTable;

pub(crate) use answer::SplitRequest;
pub use operate::{ClientView, Look};
pub use tally::Recent;

pub(crate) use body::Body;
pub(crate) use input::{Frame, Input, Next, no_room, recognize, refusal};
pub(crate) use repeat::Recovery;
pub(crate) use transaction::{BlockEffort, Queued, QueuedBody, QueuedRequest};
pub(crate) use value::{ReplyTo, Value};
pub(crate) use watch::Watch;

/// Clients and their requests.
pub(crate) struct Clients {
    table: Slab<Client>,
    requests: PendingRequests,
    unwritten: UnwrittenTable,
    /// Clients with output to be written, each once.
    dirty: Vec<ConnId>,
    /// Paused clients that may go on, each once.
    resumable: VecDeque<ConnId>,
    /// Clients that have read their answers, and for which something waits.
    readers: Vec<ConnId>,
    /// Clients that went, or were cut off, with requests outstanding, until what waits of theirs is
    /// dropped.
    gone: Vec<ConnId>,
    /// Clients that are not read because of a pause.
    held: Vec<Held>,
    monitors: Monitors,
    /// Logins that wait for their turn.
    attempts: Attempts,
    topics: TopicChanges,
    /// The answers that never change, rendered once.
    texts: Vec<Text>,
    /// When room was made last for those who write on.
    room_made: Time,
    clients_max: usize,
    clients_room: usize,
    /// The longest pipeline that any plan so far allowed. Requests read under it may still be
    /// outstanding.
    pipeline_ever: usize,
    draining: bool,
    /// Clients that are to end at the boundary of a request.
    finishing: Finishing,
}

impl Clients {
    pub(crate) fn new(plan: &Plan) -> Clients {
        Clients {
            table: Slab::new(Side::Client),
            requests: PendingRequests::default(),
            unwritten: UnwrittenTable::default(),
            dirty: Vec::new(),
            readers: Vec::new(),
            gone: Vec::new(),
            resumable: VecDeque::new(),
            held: Vec::new(),
            monitors: Monitors::default(),
            attempts: Attempts::default(),
            topics: TopicChanges::default(),
            texts: Vec::new(),
            room_made: Time(0),
            clients_max: plan.clients_max,
            clients_room: plan.clients_room,
            pipeline_ever: plan.limits.pipeline,
            draining: false,
            finishing: Finishing::default(),
        }
    }

    /// Takes the limits of another plan.
    pub(crate) fn set_limits(&mut self, plan: &Plan) {
        self.clients_max = plan.clients_max;
        self.clients_room = plan.clients_room;
        self.pipeline_ever = self.pipeline_ever.max(plan.limits.pipeline);
    }

    /// Returns a client, as far as its requests' routes and links depend on it.
    pub(crate) fn requester(&self, id: ConnId) -> Option<Requester> {
        self.table.find(id).map(|client| client.requester(id))
    }

    /// Returns the number of clients.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the number of pending requests.
    pub(crate) fn request_count(&self) -> usize {
        self.requests.len()
    }

    /// Collects the bytes to write to a client, in order.
    pub(crate) fn transmit<'a>(&'a self, id: ConnId, out: &mut Slices<'a>) {
        if let Some(client) = self.table.find(id) {
            client.out.slices(out);
        }
    }

    /// Tells the groups what their clients hold.
    #[cold]
    pub(crate) fn weigh(&self, base: &mut Base) {
        let held = |client: &Client| {
            let queued = client.transaction.as_ref().map_or(0, |queued| queued.counted);
            (client.group, client.counted + client.pipeline.bytes + queued)
        };
        let all = self.table.iter().map(|(_, client)| held(client));
        base.groups.look(&base.memory, base.now, all);
    }

    /// Gives the memory of a rush back.
    pub(crate) fn rest(&mut self, base: &mut Base) {
        self.requests.rest();
        base.spares.rest();
    }

    /// Has all clients end: each is closed at the boundary of a request, when it has its answers.
    pub(crate) fn drain(&mut self, base: &mut Base) {
        self.draining = true;
        for id in self.ids() {
            self.refuse_login(base, id);
            self.ask_to_finish(base, id);
        }
        self.tell_all_logins(base);
    }

    /// Returns whether all clients have gone, after `drain`.
    pub(crate) fn is_drained(&self) -> bool {
        self.draining && self.table.len() == 0
    }

    /// Whether the client of a request has left without waiting for its answer.
    pub(crate) fn is_cancelled(&self, id: RequestId) -> bool {
        self.requests[id].cancelled
    }

    /// When a request was read.
    pub(crate) fn since(&self, id: RequestId) -> Time {
        self.requests[id].since
    }

    /// Returns the client of a request, if it is there.
    pub(crate) fn requester_of(&self, id: RequestId) -> Option<Requester> {
        self.requester(self.requests[id].client)
    }

    /// Returns the index of a request's pool.
    pub(crate) fn pool_of(&self, id: RequestId) -> usize {
        self.requests[id].pool as usize
    }

    /// Has the clients of a pool that has left the plan get their answers, and closes them.
    pub(crate) fn finish_pool(&mut self, base: &mut Base, pool: usize) {
        self.of_pool(pool).into_iter().for_each(|id| self.ask_to_finish(base, id));
    }

    /// Stops reading the clients of a pool that wait for answers until they have them.
    pub(crate) fn pause_pool(&mut self, base: &mut Base, pool: usize) {
        for id in self.of_pool(pool) {
            self.pause_until_idle(base, id);
            self.set_class(id, LinkClass::Moved);
        }
    }

    /// Has the clients of a pool that go around a link be owed nothing before they take others:
    /// another link may be one to go around.
    pub(crate) fn leave_spare_links(&mut self, base: &mut Base, pool: usize) {
        for id in self.of_pool(pool) {
            if self.table.find(id).is_some_and(|client| client.class == LinkClass::Spare) {
                self.pause_until_idle(base, id);
                self.set_class(id, LinkClass::Moved);
            }
        }
    }

    /// Closes the clients of a retired pool, which have had long enough to take their answers.
    pub(crate) fn end_retirement(&mut self, base: &mut Base, pool_id: u32, set: Time) {
        let Some(pool) = base.pool_index_of(pool_id) else { return };
        if base.pools[pool].retire_at != set {
            return;
        }
        let mut all = self.of_pool(pool);
        all.retain(|id| self.table.find(*id).is_some_and(|client| client.state != State::Open));
        let (clients, half_asked) = count(all.iter().filter_map(|id| self.table.find(*id)));
        if clients > 0 {
            base.worker.add(WorkerCounter::ClientsUnfinished, clients as u64);
            base.log(Event::CutOff { pool: pool_id, clients, half_asked });
        }
        for id in all {
            self.drop_client(base, id, Departed::Drained);
            base.actions.push_back(Action::Close(id));
        }
    }

    /// Returns the form in which the server of a request was asked.
    #[cfg(seeded_bugs)]
    pub(crate) fn asked(&self, id: RequestId) -> proto::Ask {
        self.requests[id].info.ask
    }

    fn ids(&self) -> Vec<ConnId> {
        self.table.iter().map(|(id, _)| id).collect()
    }

    fn of_pool(&self, pool: usize) -> Vec<ConnId> {
        let clients = self.table.iter().filter(|(_, one)| one.pool as usize == pool);
        clients.map(|(id, _)| id).collect()
    }
}
