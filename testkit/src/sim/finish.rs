//! The end of a run: faults stop, everything is answered, the servers come back, the clients leave,
//! and nothing is left over.

use proxy::plan::MultiKey;
use proxy::{Closed, Time, limits};

use super::ask::Asker;
use super::redis::From;
use super::server::{Server, Trick};
use super::world::{BLOCK_LEN, World, say};

impl World {
    pub fn finish(&mut self) {
        self.scene.far = 0;
        let drains_at_once = self.scene.drains && self.random.permille(500);
        if drains_at_once {
            self.drain();
            for _ in 0..ROUGH_STEPS {
                self.step();
                self.settle();
                self.check();
            }
        } else if !self.scene.drains {
            self.wait_for_retirement();
        }
        self.lift_states();
        say!(self, "the faults are over");
        self.heal();
        if drains_at_once {
            self.end_drain();
        } else if self.scene.drains {
            self.drain();
            self.end_drain();
        } else {
            self.quiesce();
            // Waits for the pause after a socket that could not be made.
            self.now = self.now.after(limits::BACKOFF_LAST_US);
            self.fire_timers();
            self.wait_for_health();
            self.orphans.clear();
            self.over = self.journal.event();
            self.check_quiet_updates();
            self.check_quiet_wishes();
            self.ask_for_everything();
            self.use_free_memory();
            self.say_goodbye();
        }
        self.quiesce();
        // A request to be repeated is checked once more, because its client may have left.
        self.now = self.now.after(limits::REPEAT_FIRST_US << 6);
        self.fire_timers();
        self.quiesce();
        self.proxy.check();
        assert_eq!(self.clients.iter().flatten().count(), 0, "a client is never closed");
        let (ids, clients, _) = self.proxy.census();
        assert_eq!((ids, clients), (0, 0), "rows and clients left behind");
        self.proxy.end_turn(self.now);
        self.carry_out();
        assert_eq!(self.proxy.memory_in_blocks(), 0, "memory that nobody holds is not given back");
        assert_eq!(self.proxy.retired_ids_in_use(), [], "what has left the plan is still needed");
        self.check_rows();
    }

    fn heal(&mut self) {
        self.is_calm = true;
        for server in self.pools.iter_mut().flat_map(|pool| &mut pool.servers) {
            server.stalled_until = Time(0);
            server.refusing_until = Time(0);
            server.full_until = Time(0);
            server.dribbles_until = Time(0);
            server.trick = Trick::None;
            if let Some(redis) = &mut server.redis {
                redis.loads_until = Time(0);
            }
        }
        for at in 0..self.pools.len() {
            (0..self.pools[at].servers.len()).for_each(|one| self.begin_rumour(at, one, self.now));
        }
        for client in self.clients.iter_mut().flatten() {
            client.capacity = usize::MAX;
            client.writes_first = false;
        }
        for conn in self.conns.iter_mut().flatten() {
            conn.capacity = usize::MAX;
            if let Some(due) = &mut conn.connects_at {
                *due = self.now.min(*due);
            }
        }
    }

    /// Lets everything happen that can, until nothing moves and no client waits.
    fn quiesce(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if self.round() {
                continue;
            }
            if self.is_settled() {
                return;
            }
            let due = self.proxy.poll_timeout();
            self.now = due.expect("somebody waits, and no timer will help");
            self.fire_timers();
        }
        panic!("it never comes to rest");
    }

    fn is_settled(&self) -> bool {
        let waits = |client: &super::client::Client| !client.is_answered();
        let closes = |client: &super::client::Client| {
            client.is_half_closed || client.is_leaving || client.drained_at.is_some()
        };
        !self.clients.iter().flatten().any(|client| waits(client) || closes(client))
            && self.conns.iter().flatten().all(|conn| conn.is_up() && conn.is_idle())
    }

    /// Moves every pipe once; returns whether anything moved.
    fn round(&mut self) -> bool {
        self.now = self.now.after(20);
        self.fire_timers();
        let mut moved = !self.decisions.is_empty();
        self.decide();
        for at in 0..self.clients.len() {
            let Some(client) = self.clients[at].as_ref() else { continue };
            let (id, len) = (client.id, client.unsent.len().min(BLOCK_LEN));
            let is_read = !client.is_paused && !client.is_half_closed;
            if len > 0 && is_read {
                moved = true;
                self.send(id, len);
            }
            if self.clients[at].is_some() {
                moved |= self.clients[at].as_ref().is_some_and(|one| !one.socket.is_empty());
                self.let_client_read(id);
            }
        }
        self.flush_clients();
        self.end_turn();
        for at in 0..self.conns.len() {
            let Some(conn) = self.conns[at].as_ref() else { continue };
            let due = conn.connects_at;
            if due.is_some() {
                self.now = self.now.max(due.unwrap_or_default());
                moved = true;
                self.connect_ends(at);
            } else if !conn.is_idle() {
                let before = (conn.input.len(), conn.undelivered());
                self.serve(at, usize::MAX);
                self.deliver(at, usize::MAX);
                let conn = self.conns[at].as_ref();
                moved |= conn.is_none_or(|now| (now.input.len(), now.undelivered()) != before);
            }
        }
        let unserved = self.unserved();
        self.carry_out();
        self.flush_clients();
        self.end_turn();
        // The turn's end may have sent a server what it has not been given the time to answer.
        moved |= self.unserved() != unserved;
        // A client whose share of a turn is used up goes on in the next, and may ask for a connect.
        let connects = self.conns.iter().flatten().any(|conn| conn.connects_at.is_some());
        moved || connects || self.proxy.wants_turn()
    }

    /// Returns the bytes that servers have been sent and have not executed.
    fn unserved(&self) -> usize {
        self.conns.iter().flatten().map(|conn| conn.input.len()).sum()
    }

    /// A server that answers is found to be back without any client's request.
    fn wait_for_health(&mut self) {
        let until = self.now.after(limits::BACKOFF_LAST_US + self.longest_request());
        for _ in 0..ROUNDS_MAX {
            let pools = self.pools.iter().filter(|pool| pool.is_planned);
            let mut servers =
                pools.flat_map(|pool| pool.servers.iter().filter(|one| pool.has(one.id)));
            if !servers.any(|server| server.is_down) {
                return;
            }
            assert!(self.now < until, "a healthy server is found to be back too late");
            let due = self.proxy.poll_timeout();
            self.now = self.now.max(due.expect("a server is down, and nobody will ask it"));
            self.fire_timers();
            self.quiesce();
        }
        panic!("a healthy server is never found to be back");
    }

    /// Checks that an update without an answer was executed like any other, unless a fault explains
    /// it.
    fn check_quiet_updates(&self) {
        for (number, update) in self.journal.updates.iter().enumerate() {
            let is_open = update.quiet && update.arrived != 0 && update.executed == 0;
            if !is_open || update.retries {
                continue;
            }
            let model = &self.pools[update.pool];
            let in_trouble =
                |server: &Server| server.may_have_lost(update.arrived, update.arrived_at);
            let retries = match update.key {
                Some(key) => {
                    model.owners(key, update.arrived).any(|at| in_trouble(&model.servers[at]))
                }
                None => model.servers.iter().any(in_trouble),
            };
            let retries = retries || model.rings.was_empty(update.arrived);
            let is_tight = self.scene.tight_memory || self.scene.tight_queues;
            let is_late = self.queue_timeouts(update.pool) > 0;
            assert!(retries || is_tight || is_late, "quiet update {number} was forgotten");
        }
    }

    /// Checks the same for the changes of Redis clients with replies off.
    fn check_quiet_wishes(&self) {
        for (number, wish) in self.journal.redis.wishes.iter().enumerate() {
            let is_done = wish.is_executed() || !wish.refusals.is_empty();
            let may_be_apart = wish.keys.len() > 1 && wish.is_together();
            let is_open = wish.quiet && wish.writes && wish.arrived != 0 && !wish.keys.is_empty();
            if is_done || !is_open || may_be_apart {
                continue;
            }
            let model = &self.pools[wish.pool];
            let in_trouble = |server: &Server| {
                server.ever_lacked || server.was_in_trouble(wish.arrived, wish.arrived_at)
            };
            let retries = model.servers.iter().any(in_trouble)
                || model.rings.was_empty(wish.arrived)
                || self.journal.redis.retries.contains(&wish.client)
                || self.scene.tight_memory
                || self.scene.tight_queues
                || self.scene.has_few_private()
                || self.queue_timeouts(wish.pool) > 0
                || model.plan.multi_key == MultiKey::Refuse;
            assert!(retries, "wish {number} of a muted client was forgotten");
        }
    }

    /// Returns the number of a pool's requests that waited too long to be sent.
    pub fn queue_timeouts(&self, pool: usize) -> u64 {
        let count =
            |one: &Server| self.counters.total(one.id, metrics::ServerCounter::QueueTimeout);
        self.pools[pool].servers.iter().map(count).sum()
    }

    /// Reads all keys; no fault can retryable error an error any more.
    fn ask_for_everything(&mut self) {
        for server in self.pools.iter_mut().flat_map(|pool| &mut pool.servers) {
            server.redis.iter_mut().for_each(|redis| redis.scripts.clear());
        }
        for at in 0..self.clients.len() {
            let Some(client) = self.clients[at].as_mut() else { continue };
            let waits = client.talk.as_ref().is_some_and(|talk| talk.waits);
            if client.is_leaving || client.is_half_closed || client.is_gone() || waits {
                continue;
            }
            let keys = &self.pools[client.pool].keys;
            let (journal, random, scene) = (&mut self.journal, &mut self.random, &self.scene);
            let plan = &self.pools[client.pool].plan;
            Asker { client, keys, plan, journal, random, scene }.read_all();
        }
        self.quiesce();
        self.scan_all();
    }

    /// Checks that a scan of data at rest returns each key of each server exactly once.
    fn scan_all(&mut self) {
        let at = (0..self.clients.len()).find(|at| {
            let client = self.clients[*at].as_ref();
            client.is_some_and(|one| one.talk.is_some() && !one.is_leaving && !one.is_half_closed)
        });
        let Some(at) = at else { return };
        let client = self.clients[at].as_mut().expect("it was there a moment ago");
        let servers = &self.pools[client.pool].servers;
        let talk = client.talk.as_mut().expect("it speaks Redis");
        talk.scan = None;
        // A server that is too old for the client's protocol version refuses a step of the scan.
        if talk.proto_version == 3 && servers.iter().any(|one| !one.has_meta) {
            return;
        }
        let (mut cursor, mut from, mut told) = (b"0".to_vec(), From::Start, u64::MAX);
        loop {
            let client = self.clients[at].as_mut().expect("it has not gone");
            let pool = client.pool;
            client.talk.as_mut().expect("it speaks Redis").found.retain(|_| from != From::Start);
            let keys = &self.pools[pool].keys;
            let (journal, random, scene) = (&mut self.journal, &mut self.random, &self.scene);
            let plan = &self.pools[pool].plan;
            Asker { client, keys, plan, journal, random, scene }.scan_from(&cursor, from, told);
            self.quiesce();
            let Some(client) = self.clients[at].as_mut() else { return };
            let talk = client.talk.as_mut().expect("it speaks Redis");
            if let Some(next) = talk.scan.take() {
                (cursor, from, told) = next;
                continue;
            }
            let (database, mut found) = (talk.database as usize, std::mem::take(&mut talk.found));
            found.sort_unstable();
            let model = &self.pools[pool];
            let servers = model.servers.iter().enumerate();
            let planned = servers.filter(|(_, one)| model.is_planned && model.has(one.id));
            let mut held: Vec<Vec<u8>> = planned
                .flat_map(|(at, one)| one.redis.iter().map(move |redis| (at, redis)))
                .flat_map(|(at, redis)| redis.keys(database, &model.keys, at))
                .collect();
            held.sort_unstable();
            // Without memory for an answer, or without a link, the scan ends with an error.
            let may_fail = self.scene.tight_memory || self.scene.has_few_private();
            assert!(found == held || may_fail, "{} keys", found.len());
            return;
        }
    }

    fn say_goodbye(&mut self) {
        for at in 0..self.clients.len() {
            let Some(client) = self.clients[at].as_mut() else { continue };
            if client.is_half_closed || client.is_gone() {
                continue;
            }
            assert!(!client.is_paused, "a client with nothing outstanding is paused");
            client.is_half_closed = true;
            let id = client.id;
            self.proxy.handle_closed(id, Closed::Eof, self.now);
            self.carry_out();
        }
    }

    /// Waits until the clients of a removed pool are closed, even if they do not read their answers
    /// and its servers behave in any way.
    fn wait_for_retirement(&mut self) {
        let is_left = |world: &World| {
            let mut clients = world.clients.iter().flatten();
            clients.any(|client| !world.pools[client.pool].is_planned)
        };
        let until = self.now.after(limits::RETIRE_US);
        while is_left(self) {
            assert!(self.now < until, "clients of a pool that is gone stay");
            let due = self.proxy.poll_timeout().unwrap_or(until);
            self.now = self.now.max(due).min(until);
            self.fire_timers();
            self.lull();
            self.end_turn();
        }
    }

    /// Stores a small value with nothing outstanding: all memory is free, so it must not be
    /// refused.
    fn use_free_memory(&mut self) {
        if !std::mem::replace(&mut self.scene.tight_memory, false) {
            return;
        }
        self.scene.large_permille = 0;
        for at in 0..self.clients.len() {
            let Some(client) = self.clients[at].as_mut() else { continue };
            let is_classic = client.talk.is_none() && !client.is_binary;
            if !is_classic || client.is_leaving || client.is_half_closed || client.is_gone() {
                continue;
            }
            let keys = &self.pools[client.pool].keys;
            let (journal, random, scene) = (&mut self.journal, &mut self.random, &self.scene);
            let plan = &self.pools[client.pool].plan;
            Asker { client, keys, plan, journal, random, scene }.loud_store();
            self.quiesce();
        }
    }

    /// Returns the longest time for a request: in the queue, for a link and for its answer.
    fn longest_request(&self) -> u64 {
        let all = self.pools.iter().map(|pool| pool.plan.timeouts);
        all.map(|one| one.connect + one.queue + one.reply).max().unwrap_or(0)
    }

    /// Waits for the end of a drain: every client is answered and closed.
    fn end_drain(&mut self) {
        // A read whose link dies is sent once more, and a pipeline may be served one by one.
        let until = self.now.after(4 * self.longest_request());
        self.quiesce();
        assert!(self.proxy.is_drained(), "all clients have gone, and it is not drained");
        assert!(self.now <= until, "the drain ends too late");
    }

    /// Drains the proxy: requests that have begun to arrive are answered.
    fn drain(&mut self) {
        say!(self, "drain");
        self.is_draining = true;
        for client in self.clients.iter_mut().flatten() {
            // A client that is paused may have sent requests that were never parsed.
            client.drain(&self.proxy, &self.journal);
        }
        self.proxy.drain(self.now);
        self.carry_out();
        if let Some(pool) = self.pools.iter().find(|pool| pool.is_planned) {
            let refused = self.proxy.handle_accept(pool.plan.id, self.now);
            assert!(refused.is_err(), "a client is accepted while draining");
        }
    }
}

/// More rounds than any run needs to come to rest.
const ROUNDS_MAX: usize = 5_000;

/// Steps of a drain while faults go on.
const ROUGH_STEPS: usize = 200;
