//! The invariants, asserted all at once. For the simulator and the fuzzers, as it is too expensive
//! for every event. Each half checks itself; what must agree between them is checked here.

use super::Proxy;
use crate::Time;
use crate::base::id::ConnId;

/// Far more timers than a link or server can have, and far fewer than a leak would make.
const TIMERS_EACH: usize = 64;

impl Proxy {
    /// Panics if an invariant is broken.
    pub fn check(&self) {
        let clients = self.clients.check();
        self.clients.check_tenants(&self.base);
        self.clients.check_topics(&self.base);
        let servers = self.servers.check(&self.base);
        let timers = self.base.timers.len();
        let owners = self.servers.len() + self.base.pools.len() + self.clients.login_lines();
        let timers_max = TIMERS_EACH * (owners + 64);
        assert!(timers <= timers_max, "timers do not pile up: {timers}");
        let held = self.base.memory.used;
        let blocks = self.base.memory.in_blocks;
        assert_eq!(held, clients.bytes + servers.bytes + blocks, "the memory account adds up");
        let waiting: usize = self.base.pools.iter().map(|pool| pool.topics.waiting()).sum();
        let parts = clients.parts_kept + servers.parts + waiting;
        assert_eq!(parts, clients.parts, "each outstanding part is in exactly one queue");
        self.clients.check_shares(&self.servers.full_clients());
    }

    /// Returns the number of pending requests, of clients and of links. All are zero when nothing
    /// is left behind.
    pub fn census(&self) -> (usize, usize, usize) {
        (self.clients.request_count(), self.clients.len(), self.servers.len())
    }

    /// Whether a client's input waits although the client is read: the client waits, or has just
    /// waited, for the capabilities of a server.
    pub fn is_awaiting(&self, id: ConnId) -> bool {
        self.clients.is_awaiting(id)
    }

    /// Returns the bytes that the account has by themselves, those that are being given back
    /// among them.
    pub fn memory_in_blocks(&self) -> usize {
        self.base.memory.in_blocks
    }

    /// Returns how many bytes are kept of a client that writes before it reads.
    pub fn kept_ahead(&self, id: ConnId) -> usize {
        self.clients.kept_ahead(id)
    }

    /// Whether nothing more is read from a client.
    pub fn is_leaving(&self, id: ConnId) -> bool {
        self.clients.is_leaving(id)
    }

    /// Whether a client is in a transaction.
    pub fn is_in_transaction(&self, id: ConnId) -> bool {
        self.clients.is_in_transaction(id)
    }

    /// Returns how many messages and bytes are in the fullest queues of any link, but for the last.
    pub fn longest_queue(&self) -> (usize, usize) {
        self.servers.longest_queue()
    }

    /// Lists the clients that wait for their turn at a link: how often each stood aside, and the
    /// cost that it was granted so far.
    pub fn grants(&self) -> impl Iterator<Item = (ConnId, ConnId, u32, i64)> {
        self.servers.grants()
    }

    /// Lists the in-flight limits of links, each with the number of its rounds so far.
    pub fn inflight_limits(&self) -> impl Iterator<Item = (ConnId, u32, u64)> {
        self.servers.inflight_limits()
    }

    /// Returns how many parts of a client's requests wait for links.
    pub fn waiting_of(&self, client: ConnId) -> usize {
        self.servers.waiting_of(client)
    }

    /// Whether a client has filled its share of a link's queue.
    pub fn has_full_share(&self, client: ConnId) -> bool {
        self.servers.full_clients().contains_key(&client)
    }

    /// Whether something waits on a client's own links to be sent or to be answered.
    pub fn uses_private(&self, client: ConnId) -> bool {
        self.servers.uses_private(client)
    }

    /// Whether a link is there and may serve any client.
    pub fn is_shared(&self, link: ConnId) -> bool {
        self.servers.is_shared(link)
    }

    /// Whether clients go around others with a link.
    pub fn is_spare(&self, link: ConnId) -> bool {
        self.servers.is_spare(link)
    }

    /// Whether a link carries what others are not to wait behind.
    pub fn is_beside(&self, link: ConnId) -> bool {
        self.servers.is_beside(link)
    }

    /// Returns how long a server with this id that owes answers may be silent before it is held,
    /// and how long a request may wait for a link to it.
    pub fn hold_after(&self, server: u32) -> Option<(u64, u64)> {
        let at = self.base.find_server(server)?;
        self.base.silence_after(at).zip(self.base.hold_after(at))
    }

    /// Whether requests wait for a link.
    pub fn is_waited_for(&self, link: ConnId) -> bool {
        self.servers.is_waited_for(link)
    }

    /// Panics if something waits on longer than it may. For when the timers that are due have been
    /// handled; what the world can see of deadlines is not looked at here.
    pub fn check_deadlines(&self, now: Time) {
        self.servers.check_deadlines(&self.base, now);
    }

    /// Panics if something waits for nothing. For the end of a turn, when all has been written that
    /// may be.
    pub fn check_rest(&self) {
        self.servers.check_rest(&self.base);
        for owner in self.servers.owners() {
            assert!(self.clients.is_here(owner), "private links end with their client");
        }
        for request in self.servers.waiting() {
            assert!(self.clients.is_wanted(request), "a read waits for a client that has gone");
        }
        for at in self.clients.check_rest() {
            let is_known = self.base.server(at).awaited;
            assert!(is_known, "a client waits for a server, and it is not known");
            assert!(self.servers.has_link(at), "a client waits for a server that is not asked");
        }
    }
}
