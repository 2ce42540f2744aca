//! How clients come, and what they ask for again that was not done on an earlier connection.

use proxy::{ConnId, limits};

use super::ask::Asker;
use super::client::Client;
use super::redis::Talk;
use super::silence::TURN_US;
use super::world::{World, say};

impl World {
    /// Returns whether a client has waited so long for an answer that it may ask again elsewhere.
    pub fn has_waited(&self, client: &Client) -> bool {
        let patience = self.pools[client.pool].plan.hold_after.unwrap_or(u64::MAX / 2) + TURN_US;
        let mut owed = client.expects.iter().take(client.arrived).filter(|one| one.is_owed());
        owed.next().is_some_and(|first| self.now.since(first.arrived_at) >= patience)
    }

    pub fn accept(&mut self) {
        let pool = self.random.below(self.pools.len());
        if !self.pools[pool].is_planned {
            return;
        }
        let plan = &self.scene.plan;
        let model = &self.pools[pool].plan;
        if self.is_draining {
            let refused = self.proxy.handle_accept(model.id, self.now);
            assert!(refused.is_err(), "a client is accepted while draining");
            return;
        }
        let all = self.clients.iter().flatten().count();
        let own = self.clients.iter().flatten().filter(|one| one.pool == pool).count();
        let most = plan.clients_max.min(plan.clients_room);
        let is_full = all >= most || own >= model.client_connections;
        match self.proxy.handle_accept(model.id, self.now) {
            Ok(id) => {
                assert!(!is_full, "one client too many is accepted");
                self.welcome(id, pool);
            }
            Err(text) => {
                assert!(is_full, "a client is refused for nothing");
                let kind: &[u8] =
                    if self.pools[pool].is_redis { b"-ERR " } else { b"SERVER_ERROR " };
                assert!(text.starts_with(kind) && text.ends_with(b"\r\n"));
                self.summary.refused_clients += 1;
            }
        }
    }

    fn welcome(&mut self, id: ConnId, pool: usize) {
        self.clients_ever += 1;
        let mut client = Client::new(id, self.clients_ever, pool, self.pools[pool].keys.len());
        client.reads_late = self.random.permille(self.scene.slow_reader_permille);
        client.is_greedy = self.random.permille(self.scene.greedy_permille);
        client.is_binary = self.random.permille(self.scene.binary_permille);
        if self.pools[pool].is_redis {
            client.is_binary = false;
            let mut talk = Talk::new();
            talk.database = self.pools[pool].plan.database;
            client.talk = Some(Box::new(talk));
        }
        if client.reads_late {
            let is_bounded =
                self.pools[pool].plan.client_buffer_max < limits::CLIENT_BUFFER_DEFAULT;
            // Few clients live long enough to be closed for it.
            client.writes_first = self.random.permille(if is_bounded { 700 } else { 300 });
            client.capacity = self.random.range(10, 3_000);
        }
        say!(self, "client {} of pool {pool} at {}", client.number, id.index());
        let at = id.index();
        if self.clients.len() <= at {
            self.clients.resize_with(at + 1, || None);
        }
        assert!(self.clients[at].is_none(), "a client's place is taken");
        let is_plain = client.talk.is_none() && !client.is_binary;
        self.clients[at] = Some(client);
        if is_plain && self.random.permille(self.scene.retry_permille) {
            self.repeat(id, pool);
        }
    }

    /// Lets a client ask again for what was not done for it on an earlier connection.
    fn repeat(&mut self, id: ConnId, pool: usize) {
        for _ in 0..REPEATED_MAX {
            let Some(first) = self.journal.take_to_repeat(pool) else { break };
            let client = self.clients[id.index()].as_mut().expect("it has just come");
            let keys = &self.pools[pool].keys;
            let (journal, random, scene) = (&mut self.journal, &mut self.random, &self.scene);
            let plan = &self.pools[pool].plan;
            Asker { client, keys, plan, journal, random, scene }.repeat(first);
            self.summary.repeats += 1;
        }
        self.send_all(id);
    }
}

/// Requests that one client repeats.
const REPEATED_MAX: usize = 4;
