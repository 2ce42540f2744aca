//! A driver for stories: it executes the proxy's orders, and records what a test may check.

pub mod resp;

use std::rc::Rc;

use metrics::{Registry, WorkerMetrics};
use proto::{Endpoints, PROTOCOLS, Told};
use proxy::plan::{Plan, PoolPlan, ServerPlan};
use proxy::{
    Action, Asking, ClientView, Closed, ConnId, Event, Look, Passed, Proxy, Report, Side, Slices,
    Time,
};

pub const SECOND: u64 = 1_000_000;
/// The ids of the first pool and of its first server.
pub const POOL: u32 = 1;
pub const S0: u32 = 2;
/// More than any story needs.
const ROWS: usize = 16;

/// A driver with a kernel that takes everything, and a clock that only the test moves.
pub struct Stage {
    proxy: Proxy,
    now: Time,
    /// The metrics of this worker, slot 0, and of another.
    pub registry: Registry,
    /// The address of clients that log in.
    pub address: [u8; 16],
    /// Links that were ordered and are not up, and their servers' places in the first plan.
    pub connects: Vec<(ConnId, usize)>,
    pub closed: Vec<ConnId>,
    /// Clients that are paused.
    pub paused: Vec<ConnId>,
    pub flushes: Vec<ConnId>,
    pub events: Vec<Event>,
    pub reports: Vec<Report>,
    /// The slow requests.
    pub slow: Vec<metrics::SlowEntry>,
    /// Clients that sent in pieces, and how late the rest came.
    pub in_pieces: Vec<(ConnId, u64, bool)>,
    /// What clients have asked about clients.
    pub asked: Vec<(ConnId, Asking)>,
    /// Lines of the access log.
    pub access: Vec<proxy::access::AccessLine>,
    /// The plan installed last.
    pub plan: Plan,
    /// Connections that were named as having something to write, and have not been written whole
    /// since.
    named: Vec<ConnId>,
    /// Addresses were given, with which a client goes on at the end of the turn.
    located: bool,
}

impl Stage {
    /// One server, and the link to it.
    pub fn of_one() -> (Stage, ConnId) {
        let mut stage = Stage::new(&["s0"], |pool| pool.preconnect = true);
        let link = stage.connect(0);
        (stage, link)
    }

    pub fn new(servers: &[&str], set: impl FnOnce(&mut PoolPlan)) -> Stage {
        Stage::of(servers, |plan| set(&mut plan.pools[0]))
    }

    pub fn of(servers: &[&str], set: impl FnOnce(&mut Plan)) -> Stage {
        Stage::with(servers, set, Registry::private(2, ROWS).metrics(0))
    }

    /// One server, and another worker of the same proxy.
    pub fn in_slot(registry: Registry, slot: usize) -> Stage {
        Stage::with(&["s0"], |_| (), registry.metrics(slot))
    }

    fn with(servers: &[&str], set: impl FnOnce(&mut Plan), metrics: WorkerMetrics) -> Stage {
        let server = |name: &&str| ServerPlan::new(name, name, 1);
        let pool = PoolPlan::new("pool", PROTOCOLS[0], servers.iter().map(server).collect());
        let mut plan = Plan::new(vec![pool]);
        (plan.memory_max, plan.clients_max) = (1 << 20, 9);
        // Most stories do not begin with what a server is asked before its answers are known.
        plan.limits.unproven = 16 * 1024 * 1024;
        plan.limits.depth = 1 << 20;
        set(&mut plan);
        let now = Time(SECOND);
        let mut stage = Stage {
            proxy: Proxy::new(plan.clone(), 1, now, metrics),
            registry: metrics.registry(),
            address: [1; 16],
            now,
            connects: Vec::new(),
            closed: Vec::new(),
            paused: Vec::new(),
            flushes: Vec::new(),
            events: Vec::new(),
            reports: Vec::new(),
            slow: Vec::new(),
            in_pieces: Vec::new(),
            asked: Vec::new(),
            access: Vec::new(),
            plan,
            named: Vec::new(),
            located: false,
        };
        stage.settle();
        stage
    }

    pub fn client(&mut self) -> ConnId {
        self.accept().expect("there is room")
    }

    pub fn hand_over(&mut self) -> Vec<ConnId> {
        self.hand_over_some(usize::MAX)
    }

    pub fn hand_over_some(&mut self, max: usize) -> Vec<ConnId> {
        self.proxy.hand_over(max).into_iter().map(|(id, _)| id).collect()
    }

    /// Returns each server as operators see it.
    pub fn healths(&self) -> Vec<String> {
        self.proxy.servers().map(|view| format!("{} {}", view.server, view.health)).collect()
    }

    /// Hands all clients over, as another worker receives them.
    pub fn passed(&mut self) -> Vec<Passed> {
        self.proxy.hand_over(usize::MAX).into_iter().map(|(_, passed)| passed).collect()
    }

    /// Takes a client from another worker.
    pub fn adopt(&mut self, client: Passed) -> ConnId {
        self.try_adopt(client).expect("there is room")
    }

    pub fn try_adopt(&mut self, client: Passed) -> Result<ConnId, Vec<u8>> {
        self.proxy.handle_adopted(client, self.now)
    }

    pub fn accept(&mut self) -> Result<ConnId, Vec<u8>> {
        self.accept_at(POOL)
    }

    pub fn accept_at(&mut self, pool: u32) -> Result<ConnId, Vec<u8>> {
        self.proxy.handle_accept(pool, self.now)
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn uptime(&self) -> u64 {
        self.proxy.uptime(self.now)
    }

    pub fn wants_turn(&self) -> bool {
        self.proxy.wants_turn()
    }

    pub fn next_timeout(&self) -> Option<Time> {
        self.proxy.poll_timeout()
    }

    /// Tells the proxy how long its driver has worked in a turn.
    pub fn note_work(&mut self, us: u64) {
        self.proxy.note_work(us, self.now);
    }

    /// Hands over a peer's bytes, in one read.
    pub fn says(&mut self, conn: ConnId, text: &str) {
        self.says_bytes(conn, text.as_bytes());
    }

    pub fn says_bytes(&mut self, conn: ConnId, bytes: &[u8]) {
        if !bytes.is_empty() {
            let block = Rc::new(bytes.to_vec().into());
            self.proxy.handle_received(conn, &block, bytes.len(), self.now);
        }
        self.settle();
    }

    /// Returns all bytes that are written to a peer.
    pub fn received(&mut self, conn: ConnId) -> String {
        String::from_utf8(self.received_bytes(conn)).expect("these stories are text")
    }

    pub fn received_bytes(&mut self, conn: ConnId) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            self.name_clients();
            let mut slices = Slices::default();
            self.proxy.transmit(conn, &mut slices);
            let before = bytes.len();
            slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
            if bytes.len() == before {
                break;
            }
            // A driver writes nobody else. (It may ask for links at the end of a turn only.)
            let is_named = self.named.contains(&conn);
            assert!(is_named || !conn.is_client(), "it is to be written, and is not named");
            self.proxy.handle_transmitted(conn, bytes.len() - before, self.now);
            self.settle();
        }
        self.named.retain(|named| *named != conn);
        bytes
    }

    fn name_clients(&mut self) {
        while let Some(client) = self.proxy.poll_transmit(Side::Client) {
            self.named.push(client);
        }
    }

    /// As `received`, with a kernel that takes this many bytes and no more.
    pub fn received_some(&mut self, conn: ConnId, n: usize) -> String {
        self.name_clients();
        let mut slices = Slices::default();
        self.proxy.transmit(conn, &mut slices);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).take(n).collect();
        self.proxy.handle_transmitted(conn, bytes.len(), self.now);
        self.settle();
        String::from_utf8(bytes).expect("these stories are text")
    }

    /// Ends the turn; returns the bytes that a server then receives.
    pub fn turn(&mut self, link: ConnId) -> String {
        self.end_turn();
        let mut slices = Slices::default();
        self.proxy.transmit(link, &mut slices);
        let is_written = !link.is_client() && slices.iter().any(|slice| !slice.is_empty());
        assert!(!is_written || self.named.contains(&link), "it is to be written, and is not named");
        self.received(link)
    }

    pub fn end_turn(&mut self) {
        self.proxy.end_turn(self.now);
        while let Some(link) = self.proxy.poll_transmit(Side::Link) {
            self.named.push(link);
        }
        self.settle();
    }

    /// Brings up a link that was ordered.
    pub fn connect(&mut self, server: usize) -> ConnId {
        let asked = self.connects.iter().position(|&(_, asked)| asked == server);
        let (link, _) = self.connects.remove(asked.expect("a link to it was asked for"));
        self.comes_up(link);
        link
    }

    /// Begins an ordered connect, this much later than now.
    pub fn connecting(&mut self, link: ConnId, later: u64) {
        self.proxy.handle_connecting(link, self.now.after(later));
        self.settle();
    }

    pub fn comes_up(&mut self, link: ConnId) {
        self.establishes(link);
        self.says(link, "VERSION 1.6.18\r\n");
    }

    /// Establishes the connection and completes the handshake.
    pub fn establishes(&mut self, link: ConnId) {
        self.proxy.handle_connected(link, self.now);
        self.settle();
        assert_eq!(self.received(link), "version\r\n");
    }

    /// Establishes a link that was ordered; returns it with its server's place.
    pub fn begins(&mut self) -> Option<(ConnId, usize)> {
        let (link, server) = (!self.connects.is_empty()).then(|| self.connects.remove(0))?;
        self.proxy.handle_connected(link, self.now);
        self.settle();
        Some((link, server))
    }

    /// Establishes the first link that was ordered; the server answers the handshake with `hello`.
    pub fn establishes_with(&mut self, hello: &str) -> ConnId {
        let (link, _) = self.connects.remove(0);
        self.proxy.handle_connected(link, self.now);
        self.settle();
        assert_eq!(self.turn(link), hello);
        link
    }

    /// Lets a client wait, and leave.
    pub fn gives_up(&mut self, client: ConnId, how: Closed) {
        self.passes(proxy::limits::ENDS_WITHIN_US + 1);
        self.closes(client, how);
    }

    pub fn closes(&mut self, conn: ConnId, how: Closed) {
        self.proxy.handle_closed(conn, how, self.now);
        self.settle();
    }

    /// Installs the present plan with a change; unchanged parts keep their ids.
    pub fn install(&mut self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.plan);
        self.proxy.install(self.plan.clone(), self.now);
        self.settle();
    }

    /// Lists the clients, so many at a time, as a test names them.
    pub fn list<T>(
        &mut self,
        how: Look,
        most: usize,
        row: impl Fn(&ClientView<'_>) -> T,
    ) -> Vec<T> {
        let (mut rows, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let before = rows.len();
            let mut look = |view: ClientView<'_>| rows.push(row(&view));
            next = self.proxy.walk_clients((from, most), how, self.now, &mut look);
            assert!(rows.len() - before <= most);
        }
        rows
    }

    /// All workers have told what a client has asked for.
    pub fn told(&mut self, client: ConnId, told: Result<Told, String>) {
        self.proxy.handle_told(client, told, self.now);
        self.end_turn();
    }

    pub fn unblock(&mut self, client: ConnId, with_error: bool) -> bool {
        self.proxy.unblock(client, with_error, self.now)
    }

    pub fn kill(&mut self, client: ConnId) {
        self.proxy.kill(client, self.now);
        self.settle();
    }

    pub fn ask_server(&mut self, server: u32) {
        self.proxy.ask_server(server, self.now);
        self.settle();
    }

    pub fn note_why_ejected(&mut self, server: u32, why: &str) {
        self.proxy.note_why_ejected(server, why.into());
    }

    pub fn set_ejected(&mut self, server: u32, ejected: bool) {
        self.proxy.set_ejected(server, ejected, self.now);
        self.settle();
    }

    pub fn uses(&self, id: u32) -> bool {
        self.proxy.uses_id(id)
    }

    pub fn retired(&self) -> Vec<u32> {
        self.proxy.retired_ids_in_use()
    }

    /// Has all clients end; nothing more happens yet.
    pub fn drain_only(&mut self) {
        self.proxy.drain(self.now);
        self.settle();
    }

    /// Has all clients end; those who are at rest leave at the end of the next turn.
    pub fn drain(&mut self) {
        self.drain_only();
        self.end_turn();
        self.end_turn();
    }

    pub fn is_drained(&self) -> bool {
        self.proxy.is_drained()
    }

    pub fn passes(&mut self, time: u64) {
        self.now = self.now.after(time);
        self.proxy.handle_timeout(self.now);
        self.settle();
    }

    /// As `passes`, but each timer runs when it is due.
    pub fn waits(&mut self, time: u64) {
        let end = self.now.after(time);
        while let Some(due) = self.proxy.poll_timeout().filter(|due| *due < end) {
            self.now = self.now.max(due);
            self.proxy.handle_timeout(self.now);
            self.settle();
        }
        self.now = end;
        self.proxy.handle_timeout(end);
        self.settle();
    }

    /// Has a reply arrive on the link, so that its loss is no sign that the server is down.
    pub fn handshake(&mut self, link: ConnId) {
        let client = self.client();
        self.says(client, "get hello\r\n");
        assert_eq!(self.turn(link), "get hello\r\n");
        self.says(link, "END\r\n");
        self.closes(client, Closed::Reset);
    }

    /// Returns a key that belongs to a server, according to a ring of the same plan.
    pub fn key_of(&self, server: usize) -> String {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let hash = shard::Hash::Fnv64a;
        let found = names.iter().find(|name| hash.hash(name.as_bytes()) as usize % 2 == server);
        found.expect("eight keys meet both of two servers").to_string()
    }

    /// Returns the bytes that the proxy reports as held.
    pub fn memory(&self) -> usize {
        self.proxy.memory_held()
    }

    #[track_caller]
    pub fn expect_rows(&self, expected: usize) {
        assert_eq!(self.proxy.census().0, expected, "requests that wait for an answer");
    }

    /// Checks that nothing is sent, since the only server is down.
    #[track_caller]
    pub fn expect_refused(&mut self, client: ConnId) {
        self.says(client, "get x\r\n");
        self.end_turn();
        let words = "SERVER_ERROR s0: down, waiting for it to come back\r\n";
        assert_eq!(self.received(client), words);
    }

    fn settle(&mut self) {
        while let Some(action) = self.proxy.poll_action() {
            match action {
                Action::Connect { link, server } => {
                    self.connects.push((link, (server - S0) as usize));
                }
                Action::Close(conn) | Action::End(conn) => self.closed.push(conn),
                Action::Pause(client) if self.paused.contains(&client) => {}
                Action::Pause(client) => self.paused.push(client),
                Action::Resume(client) => {
                    assert!(self.paused.contains(&client), "who is read is not resumed");
                    self.paused.retain(|&other| other != client);
                }
                Action::LookUpEndpoints(client) => {
                    let (from, to) = ("192.0.2.1:5001".into(), "192.0.2.9:6379".into());
                    let address = Some(self.address);
                    let ends = Endpoints { from, to, descriptor: 7, address };
                    self.proxy.handle_endpoints(client, ends, self.now);
                    self.located = true;
                }
                Action::Inquire { client, asking } => self.asked.push((client, *asking)),
                Action::Tap { pool, tenant, text, .. } => {
                    let registry = self.registry;
                    registry.tap(0).push(pool, tenant, &text);
                }
                Action::FlushAck(conn) => self.flushes.push(conn),
                Action::Log(event) => self.events.push(event),
                Action::Slow { entry, .. } => self.slow.push(*entry),
                Action::Access { line, .. } => self.access.push(*line),
                Action::Report(report) => self.reports.push(report),
                Action::InPieces { client, late_us, is_late } => {
                    self.in_pieces.push((client, late_us, is_late));
                }
            }
        }
        self.proxy.check();
        if std::mem::take(&mut self.located) {
            self.end_turn();
        }
    }
}
