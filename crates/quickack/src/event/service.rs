//! The service that the loop drives: a value that takes bytes and the time, and gives bytes and
//! actions. The proxy's data plane is one, the embedded cache another.

use std::rc::Rc;

use proto::{Endpoints, Told};
use proxy::plan::Plan;
use proxy::{Action, Block, ClientView, Closed, ConnId, Look, Passed, Proxy, Side, Slices, Time};

/// The contract of `proxy::Proxy`, for other values that are driven the same way.
pub trait Service {
    fn handle_accept(&mut self, pool: u32, now: Time) -> Result<ConnId, Vec<u8>>;
    /// A client that was accepted before the end began, and whose PROXY header has come since.
    fn handle_begun(&mut self, pool: u32, now: Time) -> Result<ConnId, Vec<u8>> {
        self.handle_accept(pool, now)
    }
    fn handle_received(&mut self, conn: ConnId, block: &Rc<Block>, len: usize, now: Time);
    fn handle_transmitted(&mut self, conn: ConnId, n: usize, now: Time);
    fn handle_connected(&mut self, link: ConnId, now: Time);
    fn handle_closed(&mut self, conn: ConnId, how: Closed, now: Time);
    fn handle_timeout(&mut self, now: Time);
    fn end_turn(&mut self, now: Time);
    /// The loop has worked so long since it last waited for events, in microseconds.
    fn note_work(&mut self, _us: u64, _now: Time) {}
    fn poll_action(&mut self) -> Option<Action>;
    fn poll_timeout(&self) -> Option<Time>;
    fn poll_transmit(&mut self, side: Side) -> Option<ConnId>;
    fn wants_turn(&self) -> bool {
        false
    }
    fn transmit<'a>(&'a self, conn: ConnId, out: &mut Slices<'a>);
    fn drain(&mut self, now: Time);
    fn is_drained(&self) -> bool;
    /// How many clients are owed answers or are in the middle of a request, and how many of them
    /// are in the middle of one.
    fn unfinished(&self) -> (usize, usize) {
        (0, 0)
    }

    // The rest concerns only a worker's service, which the master controls.

    /// A client arrived that another worker has handed over.
    fn handle_adopted(&mut self, client: Passed, now: Time) -> Result<ConnId, Vec<u8>> {
        self.handle_accept(client.pool, now)
    }

    /// Another plan holds.
    fn install(&mut self, _plan: Plan, _now: Time) {}

    /// A server has left its ring, or is back.
    fn set_ejected(&mut self, _server: u32, _ejected: bool, _now: Time) {}

    /// Another worker gets no answer from this server.
    fn ask_server(&mut self, _server: u32, _now: Time) {}

    /// Why this server left its ring.
    fn note_why_ejected(&mut self, _server: u32, _why: String) {}

    /// Ids of pools and servers that the plan has no more and whose requests are still being
    /// answered.
    fn retired_ids_in_use(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Up to `max` clients with nothing outstanding. They are forgotten.
    fn hand_over(&mut self, _max: usize) -> Vec<(ConnId, Passed)> {
        Vec::new()
    }

    /// Looks at clients, a few at a time; returns where to go on.
    fn walk_clients(
        &mut self,
        _places: (usize, usize),
        _how: Look,
        _now: Time,
        _look: &mut dyn FnMut(ClientView<'_>),
    ) -> Option<usize> {
        None
    }

    /// A client is to be closed at once.
    fn kill(&mut self, _client: ConnId, _now: Time) {}

    /// A client is to wait no more at a server. False: it does not.
    fn unblock(&mut self, _client: ConnId, _with_error: bool, _now: Time) -> bool {
        false
    }

    /// Where a client's connection begins and ends.
    fn handle_endpoints(&mut self, _client: ConnId, _endpoints: Endpoints, _now: Time) {}

    /// What all workers have told about the clients that a client has asked about.
    fn handle_told(&mut self, _client: ConnId, _told: Result<Told, String>, _now: Time) {}

    /// A `Connect` has to wait for its turn, and begins then.
    fn handle_connecting(&mut self, _link: ConnId, _begins: Time) {}
}

impl Service for Proxy {
    fn handle_accept(&mut self, pool: u32, now: Time) -> Result<ConnId, Vec<u8>> {
        Proxy::handle_accept(self, pool, now)
    }

    fn handle_begun(&mut self, pool: u32, now: Time) -> Result<ConnId, Vec<u8>> {
        Proxy::handle_begun(self, pool, now)
    }

    fn handle_received(&mut self, conn: ConnId, block: &Rc<Block>, len: usize, now: Time) {
        Proxy::handle_received(self, conn, block, len, now);
    }

    fn handle_transmitted(&mut self, conn: ConnId, n: usize, now: Time) {
        Proxy::handle_transmitted(self, conn, n, now);
    }

    fn handle_connected(&mut self, link: ConnId, now: Time) {
        Proxy::handle_connected(self, link, now);
    }

    fn handle_closed(&mut self, conn: ConnId, how: Closed, now: Time) {
        Proxy::handle_closed(self, conn, how, now);
    }

    fn handle_timeout(&mut self, now: Time) {
        Proxy::handle_timeout(self, now);
    }

    fn end_turn(&mut self, now: Time) {
        Proxy::end_turn(self, now);
    }

    fn note_work(&mut self, us: u64, now: Time) {
        Proxy::note_work(self, us, now);
    }

    fn poll_action(&mut self) -> Option<Action> {
        Proxy::poll_action(self)
    }

    fn poll_timeout(&self) -> Option<Time> {
        Proxy::poll_timeout(self)
    }

    fn poll_transmit(&mut self, side: Side) -> Option<ConnId> {
        Proxy::poll_transmit(self, side)
    }

    fn wants_turn(&self) -> bool {
        Proxy::wants_turn(self)
    }

    fn transmit<'a>(&'a self, conn: ConnId, out: &mut Slices<'a>) {
        Proxy::transmit(self, conn, out);
    }

    fn drain(&mut self, now: Time) {
        Proxy::drain(self, now);
    }

    fn unfinished(&self) -> (usize, usize) {
        Proxy::unfinished(self)
    }

    fn is_drained(&self) -> bool {
        Proxy::is_drained(self)
    }

    fn handle_adopted(&mut self, client: Passed, now: Time) -> Result<ConnId, Vec<u8>> {
        Proxy::handle_adopted(self, client, now)
    }

    fn install(&mut self, plan: Plan, now: Time) {
        Proxy::install(self, plan, now);
    }

    fn set_ejected(&mut self, server: u32, ejected: bool, now: Time) {
        Proxy::set_ejected(self, server, ejected, now);
    }

    fn ask_server(&mut self, server: u32, now: Time) {
        Proxy::ask_server(self, server, now);
    }

    fn note_why_ejected(&mut self, server: u32, why: String) {
        Proxy::note_why_ejected(self, server, why);
    }

    fn retired_ids_in_use(&self) -> Vec<u32> {
        Proxy::retired_ids_in_use(self)
    }

    fn handle_connecting(&mut self, link: ConnId, begins: Time) {
        Proxy::handle_connecting(self, link, begins);
    }

    fn handle_endpoints(&mut self, client: ConnId, endpoints: Endpoints, now: Time) {
        Proxy::handle_endpoints(self, client, endpoints, now);
    }

    fn handle_told(&mut self, client: ConnId, told: Result<Told, String>, now: Time) {
        Proxy::handle_told(self, client, told, now);
    }

    fn hand_over(&mut self, max: usize) -> Vec<(ConnId, Passed)> {
        Proxy::hand_over(self, max)
    }

    fn walk_clients(
        &mut self,
        places: (usize, usize),
        how: Look,
        now: Time,
        look: &mut dyn FnMut(ClientView<'_>),
    ) -> Option<usize> {
        Proxy::walk_clients(self, places, how, now, look)
    }

    fn kill(&mut self, client: ConnId, now: Time) {
        Proxy::kill(self, client, now);
    }

    fn unblock(&mut self, client: ConnId, with_error: bool, now: Time) -> bool {
        Proxy::unblock(self, client, with_error, now)
    }
}
