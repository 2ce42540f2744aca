//! The ways in which clients leave, in order or not, and the requests that they leave behind.

use proxy::{Closed, ConnId, limits};

use super::ask::Asker;
use super::client::Client;
use super::world::{BLOCK_LEN, World, say};

impl World {
    pub fn half_close(&mut self, id: ConnId) {
        let client = self.clients[id.index()].as_mut().expect("the caller found it");
        // The proxy does not see the close of a client that it does not read.
        if client.is_half_closed || client.is_paused {
            return;
        }
        say!(self, "client {} closes its half", client.number);
        client.is_half_closed = true;
        self.summary.half_waiting += u64::from(self.proxy.waiting_of(id) > 0);
        client.is_unread = self.proxy.is_awaiting(id) || !client.has_sent_whole();
        client.unsent.clear();
        // The rest of a request that has begun does not come any more.
        client.drained_at = client.drained_at.map(|at| at.min(client.sent));
        // Only the proxy knows since when input has waited without being parsed.
        client.listens = self.now.since(client.sent_at) <= limits::ENDS_WITHIN_US;
        if !client.listens && !client.is_leaving && !self.proxy.is_awaiting(id) {
            self.journal.cancel(client.awaited(), self.now);
        }
        self.proxy.handle_closed(id, Closed::Eof, self.now);
    }

    /// Lets a client leave without its answers, with changes as its last requests for which it does
    /// not wait.
    pub fn part(&mut self, id: ConnId) {
        let client = self.clients[id.index()].as_mut().expect("the caller found it");
        let is_memcached = client.talk.is_none();
        let may_ask = !client.is_leaving && !client.is_half_closed && !client.is_gone();
        if is_memcached && may_ask && client.unsent.is_empty() && !client.is_paused {
            let keys = &self.pools[client.pool].keys;
            let (journal, random, scene) = (&mut self.journal, &mut self.random, &self.scene);
            let plan = &self.pools[client.pool].plan;
            let mut asker = Asker { client, keys, plan, journal, random, scene };
            for _ in 0..4 {
                asker.quiet_form();
            }
            self.send_all(id);
        }
        if self.clients[id.index()].is_some() {
            self.reset_client(id);
        }
    }

    /// Lets a client ask for more keys than its share of the queues holds. It may then read the
    /// answers, close its half, or leave.
    pub fn grab(&mut self, id: ConnId) {
        let client = self.clients[id.index()].as_mut().expect("the caller found it");
        let is_memcached = client.talk.is_none();
        let may_ask = !client.is_leaving && !client.is_half_closed && !client.is_gone();
        if !is_memcached || client.is_binary || !may_ask || !client.unsent.is_empty() {
            return;
        }
        let keys = &self.pools[client.pool].keys;
        let (journal, random, scene) = (&mut self.journal, &mut self.random, &self.scene);
        let plan = &self.pools[client.pool].plan;
        let mut asker = Asker { client, keys, plan, journal, random, scene };
        for _ in 0..asker.random.range(1, 8) {
            let count = asker.random.range(60, 250);
            asker.read("get", count);
        }
        self.send_all(id);
        self.summary.full_shares += u64::from(self.proxy.has_full_share(id));
        // Whether it is the same one: the proxy may have closed it.
        if self.clients[id.index()].as_ref().is_none_or(|client| client.id != id) {
            return;
        }
        match self.random.below(3) {
            0 => self.half_close(id),
            1 => self.reset_client(id),
            _ => {}
        }
    }

    pub fn send_all(&mut self, id: ConnId) {
        let left = |world: &World| {
            let client = world.clients[id.index()].as_ref();
            client.map_or(0, |client| if client.is_paused { 0 } else { client.unsent.len() })
        };
        while left(self) > 0 {
            self.send(id, left(self).min(BLOCK_LEN));
        }
    }

    pub fn reset_client(&mut self, id: ConnId) {
        let client = self.clients[id.index()].take().expect("the caller found it");
        say!(self, "client {} resets", client.number);
        self.summary.left_waiting += u64::from(self.proxy.waiting_of(id) > 0);
        // Only the proxy knows since when input has waited without being parsed.
        if !client.is_leaving && !self.proxy.is_awaiting(id) {
            self.journal.cancel(client.awaited(), self.now);
            let event = self.journal.now();
            for number in client.awaited() {
                self.journal.updates[number as usize].gone = event;
                self.journal.to_repeat.push(number);
            }
        }
        if client.has_sent_whole() {
            self.note_unheard(&client);
        }
        if client.is_paused || self.proxy.is_awaiting(id) {
            // Its last requests may have been received and never parsed.
            self.journal.retryable(client.number);
        }
        if self.proxy.uses_private(id) {
            // Its own links end with it, in the middle of what it has asked there.
            self.journal.retryable(client.number);
        }
        self.proxy.handle_closed(id, Closed::Reset, self.now);
    }

    /// Records that a client is gone: its changes without an answer must be executed.
    pub fn note_unheard(&mut self, client: &Client) {
        // It may not have read its last answers.
        let has_read = client.socket.is_empty() && client.inbox.is_empty() && !client.is_full;
        let is_done = client.is_leaving || client.is_gone() || client.is_unread;
        if client.loose_errors == 0 && has_read && !is_done {
            self.journal.unheard.extend(client.unheard());
        }
    }

    /// Checks that a client may be closed that has written so much, and reads nothing.
    pub fn note_unread(&mut self, id: ConnId, kept: usize, bound: &str) {
        let client = self.clients[id.index()].as_ref().expect("it is there");
        assert_eq!(client.id, id, "it is not there any more");
        let plan = &self.pools[client.pool].plan;
        if bound == "client_buffer_max" {
            let bound = plan.client_buffer_max.max(self.scene.plan.limits.kept_least);
            assert!(kept >= bound, "a client is closed of which {kept} bytes are kept");
            // It may read as soon as it is not read itself.
            let write = self.patience_to_read(client).min(limits::AHEAD_FULL_US);
            let (since, end) = (client.paused_at, client.paused_at.after(write));
            assert!(self.now >= end, "a client is closed that is stopped since {since:?}");
        } else {
            assert!(bound == "memory_max" && self.scene.tight_memory, "{bound}");
            self.unread_at = self.now;
        }
        assert!(client.is_full, "a client is closed that takes its answers");
        let since = client.taken_at;
        assert!(self.has_had_time_to_read(client), "a client has had since {since:?} to read");
        self.clients[id.index()].as_mut().expect("it is there").is_given_up = true;
    }

    /// Whether a client may be closed now because it reads nothing. Where several are closed for
    /// the memory that they hold, the log names the first.
    pub fn is_closed_unread(&self, client: &Client) -> bool {
        let may_be_unnamed = self.unread_at == self.now && client.is_full;
        client.is_given_up || may_be_unnamed && self.has_had_time_to_read(client)
    }

    fn has_had_time_to_read(&self, client: &Client) -> bool {
        self.now >= client.taken_at.after(self.patience_to_read(client))
    }

    /// Returns the shortest time that a client had to take more of its answers.
    fn patience_to_read(&self, client: &Client) -> u64 {
        self.pools[client.pool].deadlines_since(client.taken_at).write
    }
}
