//! The data plane as its driver sees it, and the life of a request: this file alone knows both
//! halves, and carries between them what each has for the other.
//!
//! ```text
//!   receive_client   bytes ─▶ Frame                        client/input.rs
//!   serve            refused, put off, or routed           route.rs
//!   admit            ─▶ a request with parts               client/answer.rs
//!                    ─▶ parts in links' queues             server/send.rs
//!   receive_link     bytes ─▶ Reply, matched with a part   server/pair.rs
//!   settle           ─▶ the part's answer                  client/settle.rs
//!   handle_link_events  parts that no reply will answer       server/fail.rs
//! ```

mod check;
mod class;
mod execute;
mod install;
mod local;
mod removal;
mod reply;
mod request;
#[cfg(seeded_bugs)]
mod seeded;
mod special;
mod topics;
mod transaction;
mod wait;
mod watch;

use std::rc::Rc;

use metrics::{PoolCounter, WorkerCounter, WorkerMetrics};
use proto::{Endpoints, Told};

use crate::base::block::Block;
use crate::base::buffer::{Slices, Source};
use crate::base::id::{ConnId, Side};
use crate::base::part::LinkClass;
use crate::base::plan::Plan;
use crate::base::slow::{LONG_TURN_US, LongTurn};
use crate::base::timers::Due;
use crate::base::{Base, ServerView, limits};
use crate::client::Clients;
use crate::server::Servers;
use crate::{Action, ClientView, Closed, Look, Passed, Time};

/// The data plane of one worker.
pub struct Proxy {
    base: Base,
    clients: Clients,
    servers: Servers,
    /// A pool or server that has left the plan is still in use.
    retired: bool,
    /// A timer for writing the gauges is set.
    publish_due: bool,
}

impl Proxy {
    /// Makes a data plane for `plan`. `seed` decides everything random: jitter, and the random
    /// distribution. The data plane counts in `metrics`, where id 0 is its own.
    pub fn new(plan: Plan, seed: u64, now: Time, metrics: WorkerMetrics) -> Proxy {
        let clients = Clients::new(&plan);
        let mut base = Base::new(plan, seed, now, metrics);
        let servers = Servers::new(&mut base);
        Proxy { base, clients, servers, retired: false, publish_due: false }
    }

    /// Takes a client that arrived at the listener of the pool with this id. `Err` holds the bytes
    /// to send before the driver closes the connection.
    pub fn handle_accept(&mut self, pool_id: u32, now: Time) -> Result<ConnId, Vec<u8>> {
        self.base.note_change(now);
        self.clients.accept(&mut self.base, pool_id, true)
    }

    /// Takes a client that came before a drain, and was not known until now. It may finish what it
    /// has begun, as the others.
    pub fn handle_begun(&mut self, pool_id: u32, now: Time) -> Result<ConnId, Vec<u8>> {
        self.base.note_change(now);
        self.clients.accept_begun(&mut self.base, pool_id)
    }

    /// Takes a client that another worker has handed over.
    pub fn handle_adopted(&mut self, client: Passed, now: Time) -> Result<ConnId, Vec<u8>> {
        self.base.note_change(now);
        let id = self.clients.accept(&mut self.base, client.pool, false)?;
        if let Some(pool) = self.base.pool_index_of(client.pool) {
            self.make_room_for_conn_key(pool);
        }
        let result = self.clients.take_over(&mut self.base, id, client);
        self.handle_link_events();
        result.map(|()| id)
    }

    /// Takes `block[..len]`, read from a connection. Large values are kept by cloning the `Rc`.
    pub fn handle_received(&mut self, conn: ConnId, block: &Rc<Block>, len: usize, now: Time) {
        assert!(len > 0, "an empty read is `handle_closed`");
        self.base.note_change(now);
        let source = Source::block(block, len);
        match conn.side() {
            Side::Client => self.receive_client(conn, source),
            Side::Link => self.receive_link(conn, source),
        }
    }

    /// Notes that the kernel took `n` bytes of `transmit`.
    pub fn handle_transmitted(&mut self, conn: ConnId, n: usize, now: Time) {
        self.base.note_change(now);
        match conn.side() {
            Side::Client => self.clients.transmitted(&mut self.base, conn, n),
            Side::Link => self.servers.transmitted(&mut self.base, conn, n),
        }
        self.handle_link_events();
    }

    /// Takes the addresses of a client's connection, as `Action::LookUpEndpoints` asked for them.
    /// The client is read again at the end of the turn; if the action was given at a turn's end, at
    /// the end of the next.
    pub fn handle_endpoints(&mut self, client: ConnId, ends: Endpoints, now: Time) {
        self.base.note_change(now);
        self.clients.set_endpoints(&mut self.base, client, ends);
    }

    /// Takes what all workers have told, or why they could not be asked, as `Action::Inquire` asked
    /// for. The client is read again at the end of the turn.
    pub fn handle_told(&mut self, client: ConnId, told: Result<Told, String>, now: Time) {
        self.base.note_change(now);
        self.clients.set_told(&mut self.base, client, told);
    }

    /// Notes when the attempt of a `Connect` begins, since the driver may queue it. The connect
    /// timeout counts from `begins`. While the attempt is queued, the driver passes a time far
    /// away; when the attempt begins, it passes the real one.
    pub fn handle_connecting(&mut self, link: ConnId, begins: Time) {
        self.servers.connecting(&mut self.base, link, begins);
    }

    /// Notes that a `Connect` succeeded.
    pub fn handle_connected(&mut self, link: ConnId, now: Time) {
        self.base.note_change(now);
        self.servers.connected(&mut self.base, link);
    }

    /// Notes that a connection ended, or that a `Connect` failed.
    pub fn handle_closed(&mut self, conn: ConnId, how: Closed, now: Time) {
        self.base.note_change(now);
        match conn.side() {
            Side::Client => self.clients.closed(&mut self.base, conn, how),
            Side::Link => self.servers.closed(&mut self.base, conn, how),
        }
        self.handle_link_events();
    }

    /// Runs the timers that are due. Call this when `poll_timeout` has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        self.base.now = now;
        // A timer that is set for a time that has come, again and again, would keep us here for
        // ever: a worker that dies is started again.
        let mut left = limits::TIMERS_IN_A_CALL * (self.base.timers.len() + 1);
        while let Some((set, due)) = self.base.timers.pop(now) {
            assert!(left > 0, "timers are set without end for a time that has come: {due:?}");
            left -= 1;
            self.timer(set, due);
        }
    }

    fn timer(&mut self, set: Time, due: Due) {
        let Proxy { base, clients, servers, .. } = self;
        match due {
            Due::Link(id) => servers.link_timer(base, id, set, |request| clients.since(request)),
            Due::Silence(at) => {
                if servers.silence_timer(base, at, set) {
                    servers.drop_cancelled(base, at, |request| clients.is_cancelled(request));
                }
            }
            Due::Kept(id) => match servers.idle_owner(base, id) {
                Some(owner) if clients.watched(owner).is_none() => {
                    servers.end_private(base, owner);
                    clients.set_class(owner, LinkClass::Shared);
                }
                _ => servers.kept_timer(base, id),
            },
            Due::Probe(at) => servers.probe(base, at, set),
            Due::Topics(at) => {
                if servers.topics_timer(base, at, set) {
                    self.settle_topics(at.pool as usize);
                }
            }
            Due::Again(request) => self.ask_anew(request),
            Due::Retire { id } => clients.end_retirement(base, id, set),
            Due::Logins { id } => clients.logins_timer(base, id, set),
            Due::LoginLine { at } => clients.login_line_timer(base, at, set),
            Due::Wait(id) => clients.wait_timer(base, id),
            Due::Ahead(id) => clients.ahead_timer(base, id, set),
            Due::Tenant { id } => clients.tenant_timer(base, id, set),
            Due::Monitor => clients.look(base),
            Due::Pause => clients.end_pauses(base),
            Due::Publish => {
                self.publish_due = false;
                self.publish();
            }
        }
        self.handle_link_events();
    }

    /// Ends a turn, when everything that was ready has been handed over. Open batches are closed so
    /// that the links can be written, and clients that may go on are read again.
    pub fn end_turn(&mut self, now: Time) {
        self.base.now = now;
        self.base.note_special();
        self.base.memory.end_turn();
        if self.base.groups.wants_look(&self.base.memory, now) {
            self.clients.close_stalled(&mut self.base);
            self.clients.weigh(&mut self.base);
            if let Some(news) = self.base.memory.news() {
                self.base.log(news);
            }
        }
        while let Some(at) = self.servers.next_to_release() {
            let Proxy { base, clients, servers, .. } = self;
            servers.drop_cancelled(base, at, |request| clients.is_cancelled(request));
            servers.release_held(at);
            self.handle_link_events();
        }
        self.read_resumable();
        self.clients.end_finishing(&mut self.base);
        self.follow_changes();
        self.serve_waiting();
        self.servers.close_batches(&mut self.base);
        self.free_retired();
        if self.base.gauges_changed && !self.publish_due {
            self.publish_due = true;
            self.base.timers.set(now.after(limits::PUBLISH_PAUSE_US), Due::Publish);
        }
        self.base.tenants.end_run();
        self.base.worker.add(WorkerCounter::Turns, 1);
        self.base.groups.end_turn(self.base.turn, self.base.limits.turn_work);
        self.base.turn += 1;
        self.base.turn_since = now;
    }

    /// Notes how long the driver has worked until now since it last waited for events, in
    /// microseconds: so long may what came meanwhile have waited for it.
    pub fn note_work(&mut self, us: u64, now: Time) {
        let average = &mut self.base.work_us;
        *average = *average - *average / 8 + us / 8;
        if us >= LONG_TURN_US {
            let since = Time(now.0.saturating_sub(us));
            self.base.long_turn = LongTurn { since, until: now };
        }
    }

    /// Sends what waits for links, as far as there is room.
    fn serve_waiting(&mut self) {
        self.drop_unheard();
        let Proxy { base, clients, servers, .. } = self;
        while let Some(id) = clients.next_reader() {
            servers.unpark(id);
        }
        servers.serve_waiting(base, |base, part, sent, waits| {
            clients.turn_of(base, part, sent, waits)
        });
        self.handle_link_events();
    }

    /// Drops what waits of clients whose connections are gone.
    fn drop_unheard(&mut self) {
        let Proxy { base, clients, servers, .. } = self;
        while let Some(id) = clients.next_gone() {
            servers.end_private(base, id);
            servers.drop_unheard(base, id, |base, request, since| {
                clients.is_unheard(base, request, since)
            });
        }
        self.handle_link_events();
    }

    /// Reads the kept input of clients that may go on, until enough is done for one turn.
    fn read_resumable(&mut self) {
        let most = self.base.limits.turn_work;
        let mut done = 0;
        while done < most
            && let Some(id) = self.clients.next_resumable(&mut self.base)
        {
            let before = self.clients.work(id);
            self.read_kept(id);
            self.clients.go_on(&mut self.base, id);
            done += self.clients.work(id).saturating_sub(before);
        }
    }

    /// Returns the next order to the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.base.actions.pop_front()
    }

    /// Returns when `handle_timeout` is to be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.base.timers.next()
    }

    /// Returns whether a write after `end_turn` allows something to go on. The next turn then
    /// begins at once, since nothing else may wake the driver.
    pub fn wants_turn(&self) -> bool {
        let is_parted = self.clients.has_readers() || self.servers.must_serve();
        let is_parted = is_parted || self.clients.has_gone() || self.base.memory.is_freeing();
        let is_parted = is_parted || self.clients.is_finishing();
        let is_parted = is_parted || self.clients.has_topic_changes();
        is_parted || self.clients.has_resumable() || self.servers.has_held_to_release()
    }

    /// Returns the next connection of a side that has new bytes to write. Ask for links only after
    /// `end_turn`: until then their batches are open.
    pub fn poll_transmit(&mut self, side: Side) -> Option<ConnId> {
        match side {
            Side::Client => self.clients.next_dirty(&mut self.base),
            Side::Link => self.servers.next_dirty(&mut self.base),
        }
    }

    /// Collects the bytes to write to a connection, in order: none if it is gone or cannot send
    /// yet.
    pub fn transmit<'a>(&'a self, conn: ConnId, out: &mut Slices<'a>) {
        match conn.side() {
            Side::Client => self.clients.transmit(conn, out),
            Side::Link => self.servers.transmit(conn, out),
        }
    }

    /// Installs another plan. Pools and servers with an id in both plans go on undisturbed. A
    /// request that was read under the old plan keeps its route.
    pub fn install(&mut self, plan: Plan, now: Time) {
        self.base.note_change(now);
        self.base.worker.add(WorkerCounter::Installs, 1);
        self.take_plan(plan);
        self.handle_link_events();
    }

    /// Applies the decision, made for all workers, that a server leaves the ring or comes back.
    pub fn set_ejected(&mut self, server_id: u32, ejected: bool, now: Time) {
        self.base.note_change(now);
        self.servers.eject(&mut self.base, server_id, ejected);
        self.follow_topics();
        self.handle_link_events();
    }

    /// Notes why a server leaves its ring, to be told where its pool has no other.
    pub fn note_why_ejected(&mut self, server_id: u32, why: String) {
        if let Some(at) = self.base.find_server(server_id) {
            self.base.server_mut(at).ejected_for = Some(why.into());
        }
    }

    /// Has the links to a server on which it owes nothing asked for an answer, since another worker
    /// gets none (`Report::Doubted`).
    pub fn ask_server(&mut self, server_id: u32, now: Time) {
        self.base.note_change(now);
        self.servers.ask_server(&mut self.base, server_id);
    }

    /// Has all clients end. Each is closed at the boundary of a request, when it has its answers;
    /// what it has begun to send is read to its end.
    pub fn drain(&mut self, now: Time) {
        self.base.note_change(now);
        self.clients.drain(&mut self.base);
    }

    /// Returns how many clients are owed answers or are in the middle of a request, and how many of
    /// them are in the middle of one.
    pub fn unfinished(&self) -> (usize, usize) {
        self.clients.unfinished()
    }

    /// Returns whether all clients have gone.
    pub fn is_drained(&self) -> bool {
        self.clients.is_drained()
    }

    /// Forgets up to `max` clients that have nothing outstanding, and returns them. No `Close` is
    /// ordered for them: the caller passes their connections to another worker.
    pub fn hand_over(&mut self, max: usize) -> Vec<(ConnId, Passed)> {
        self.clients.hand_over(&mut self.base, max)
    }

    /// Looks at clients, `most` at a time, from this place on. Returns the place to go on at. A
    /// client that is here from the first call to the last is looked at once.
    pub fn walk_clients(
        &mut self,
        (from, most): (usize, usize),
        how: Look,
        now: Time,
        look: &mut dyn FnMut(ClientView<'_>),
    ) -> Option<usize> {
        self.base.now = now;
        self.clients.walk(&self.base, (from, most), how, look)
    }

    /// Closes a client at once.
    pub fn kill(&mut self, client: ConnId, now: Time) {
        self.base.note_change(now);
        self.clients.kill(&mut self.base, client);
        self.handle_link_events();
    }

    /// Has a client wait no more that waits at a server for elements. Returns false if it does not.
    pub fn unblock(&mut self, client: ConnId, with_error: bool, now: Time) -> bool {
        self.base.note_change(now);
        let Some(asks) = self.clients.requester(client) else { return false };
        let is_sent = self.servers.unblock(&mut self.base, &asks, with_error);
        self.handle_link_events();
        is_sent
    }

    /// Lists every server, in the order of the plan.
    pub fn servers(&self) -> impl Iterator<Item = ServerView<'_>> {
        self.base.servers()
    }

    /// Returns the bytes held in buffers now.
    pub fn memory_held(&self) -> usize {
        self.base.memory.used
    }

    /// Returns for how many seconds it has run.
    pub fn uptime(&self, now: Time) -> u64 {
        now.since(self.base.started) / 1_000_000
    }

    /// Writes the gauges to the metrics registry. They are summed up a few times a second while
    /// anything changes, and once more afterwards, so the path of a request pays nothing for them.
    fn publish(&mut self) {
        self.clients.rest(&mut self.base);
        self.base.gauges_changed = false;
        self.servers.end_stand_ins(&self.base, |client| self.clients.requester(client));
        self.servers.publish(&self.base);
        for pool in &mut self.base.pools {
            pool.sampling.look(pool.counters.value(PoolCounter::Requests), self.base.now);
        }
        let worker = self.base.worker;
        worker.set(WorkerCounter::LinksNow, self.servers.len() as u64);
        worker.set(WorkerCounter::RequestsNow, self.clients.request_count() as u64);
        worker.set(WorkerCounter::BufferBytesNow, self.base.memory.used as u64);
    }

    /// Makes room among the connection keys of a pool, if there is none, by closing links that no
    /// client uses.
    fn make_room_for_conn_key(&mut self, pool: usize) {
        if self.base.pools[pool].conn_keys.is_full() {
            self.servers.retire_unused(&mut self.base, pool);
        }
    }
}
