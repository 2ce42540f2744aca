//! The client half: clients, their requests and the answers to them.
//!
//! It reads clients' bytes, answers what the proxy answers by itself, and yields the other requests
//! as [`Frame`]s. What servers make of their parts comes back and is settled here. It knows
//! nothing of links: a request's parts are out of its hands until `proxy.rs` brings an answer or a
//! fault for each.

mod accept;
mod answer;
mod attempts;
mod body;
mod check;
mod facts;
mod forms;
mod gather;
mod input;
mod large;
mod leave;
mod life;
mod local;
mod login;
mod operate;
mod owed;
mod repeat;
mod request;
mod session;
mod settle;
mod stats;
mod stream;
mod tally;
mod tenant;
mod unwritten;
mod value;

use std::collections::VecDeque;

use crate::base::Base;
use crate::base::buffer::Slices;
use crate::base::connection::Departed;
use crate::base::id::{ConnId, Side, Slab};
use crate::base::part::{LinkClass, RequestId, Requester};
use crate::base::plan::Plan;
use crate::{Action, Time};
use attempts::Attempts;
use local::Text;
use request::PendingRequests;
use session::{Client, State};
use unwritten::UnwrittenTable;

pub(crate) use answer::SplitRequest;
pub use operate::{ClientView, Look};
pub use tally::Recent;

pub(crate) use input::{Frame, Input, Next, no_room, refusal};
pub(crate) use repeat::Recovery;
pub(crate) use session::Body;
pub(crate) use value::{ReplyTo, Value};

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
    /// Logins that wait for their turn.
    attempts: Attempts,
    /// The answers that never change, rendered once.
    texts: Vec<Text>,
    clients_max: usize,
    clients_room: usize,
    /// The longest pipeline that any plan so far allowed. Requests read under it may still be
    /// outstanding.
    pipeline_ever: usize,
    draining: bool,
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
            attempts: Attempts::default(),
            texts: Vec::new(),
            clients_max: plan.clients_max,
            clients_room: plan.clients_room,
            pipeline_ever: plan.limits.pipeline,
            draining: false,
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
        let held = |client: &Client| (client.group, client.counted + client.pipeline.bytes);
        let all = self.table.iter().map(|(_, client)| held(client));
        base.groups.look(&base.memory, base.now, all);
    }

    /// Gives the memory of a rush back.
    pub(crate) fn rest(&mut self, base: &mut Base) {
        self.requests.rest();
        base.spares.rest();
    }

    /// Stops reading requests. Each client is closed when it has its answers.
    pub(crate) fn drain(&mut self, base: &mut Base) {
        self.draining = true;
        for id in self.ids() {
            self.refuse_login(base, id);
            self.finish(base, id);
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
        self.of_pool(pool).into_iter().for_each(|id| self.finish(base, id));
    }

    /// Stops reading the clients of a pool that wait for answers until they have them.
    pub(crate) fn pause_pool(&mut self, base: &mut Base, pool: usize) {
        for id in self.of_pool(pool) {
            self.pause_until_idle(base, id);
            self.set_class(id, LinkClass::Moved);
        }
    }

    /// Closes the clients of a retired pool, which have had long enough to take their answers.
    pub(crate) fn end_retirement(&mut self, base: &mut Base, pool_id: u32, set: Time) {
        let Some(pool) = base.pool_index_of(pool_id) else { return };
        if base.pools[pool].retire_at != set {
            return;
        }
        for id in self.of_pool(pool) {
            if self.table.find(id).is_some_and(|client| client.state != State::Open) {
                self.drop_client(base, id, Departed::Drained);
                base.actions.push_back(Action::Close(id));
            }
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
