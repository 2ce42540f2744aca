//! The actions of clients and servers without faults: they send requests and answers in pieces,
//! late or at once.

use proxy::plan::QuickAck;
use proxy::{Closed, ConnId, Slices};

use super::ask::Asker;
use super::client::{Asked, Client, Expect};
use super::conn::Conn;
use super::server::{Place, Server, Trick};
use super::world::{BLOCK_LEN, World, say};

impl World {
    pub fn client_event(&mut self) {
        let at = self.random.below(self.scene.clients);
        let Some(client) = self.clients.get(at).and_then(Option::as_ref) else {
            return self.accept();
        };
        let id = client.id;
        let is_stuck = client.unsent.is_empty() && (client.is_leaving || client.is_half_closed);
        // A client that waits for a stalled server gives up sooner.
        let stalled = |one: &Server| one.stalled_until > self.now;
        let waits = !client.is_answered() && self.pools[client.pool].servers.iter().any(stalled);
        let may_retry = client.is_let_down || self.has_waited(client);
        let tired = match client {
            _ if waits => 30,
            _ if may_retry => self.scene.retry_permille / 10 + 2,
            _ => 2,
        };
        match self.random.below(1000) {
            n if n < tired => {
                match waits {
                    true => self.part(id),
                    false => self.reset_client(id),
                }
                // Some come back at once.
                if self.random.permille(self.scene.retry_permille) {
                    self.accept();
                }
            }
            2..5 => self.half_close(id),
            5..35 if client.is_greedy => self.grab(id),
            5..250 => self.let_client_read(id),
            _ if is_stuck => self.let_client_read(id),
            _ => {
                self.let_client_ask(id);
                self.send_piece(id);
            }
        }
    }

    fn let_client_ask(&mut self, id: ConnId) {
        let client = self.clients[id.index()].as_mut().expect("the caller found it");
        let has_enough = client.expects.len() > ASKED_MAX;
        if client.is_gone() || has_enough || !client.unsent.is_empty() && self.random.permille(700)
        {
            return;
        }
        let count = match self.random.below(20) {
            0..3 if client.is_greedy => self.random.range(40, 150),
            0 => self.random.range(10, 40),
            1..6 => self.random.range(2, 8),
            _ => 1,
        };
        let keys = &self.pools[client.pool].keys;
        let (journal, random, scene) = (&mut self.journal, &mut self.random, &self.scene);
        let plan = &self.pools[client.pool].plan;
        let mut asker = Asker { client, keys, plan, journal, random, scene };
        for _ in 0..count {
            if asker.client.is_leaving || asker.client.is_half_closed {
                break;
            }
            asker.ask();
            self.summary.requests += 1;
        }
    }

    /// Lets the proxy read some of a client's output: usually all of it, sometimes any piece.
    fn send_piece(&mut self, id: ConnId) {
        let client = self.clients[id.index()].as_ref().expect("the caller found it");
        let len = client.unsent.len();
        if len == 0 || client.is_paused || client.is_half_closed {
            return;
        }
        let n = match self.random.below(10) {
            0..6 => len,
            6 => 1,
            7 => self.random.range(1, len.min(20)),
            _ => self.random.range(1, len),
        };
        self.send(id, n.min(BLOCK_LEN));
    }

    /// Lets the proxy read `n` bytes that a client has written.
    pub fn send(&mut self, id: ConnId, n: usize) {
        let client = self.clients[id.index()].as_ref().expect("the caller found it");
        let queue_timeouts = self.queue_timeouts(client.pool);
        let client = self.clients[id.index()].as_mut().expect("the caller found it");
        let rest = client.unsent.split_off(n);
        let piece = std::mem::replace(&mut client.unsent, rest);
        client.sent += n as u64;
        client.sent_at = self.now;
        let before = client.requests - (client.expects.len() - client.arrived) as u64;
        say!(self, "client {} sends {:?}", client.number, String::from_utf8_lossy(&piece));
        while let Some(expect) = client.expects.get_mut(client.arrived) {
            if expect.end > client.sent {
                if expect.begun == 0 {
                    expect.begun = self.journal.event();
                }
                break;
            }
            client.arrived += 1;
            expect.arrived = self.journal.event();
            expect.arrived_at = self.now;
            expect.epoch = self.pools[client.pool].epoch;
            if let Some(key) = expect.removes() {
                self.journal.deletes[client.pool][key].asked += 1;
            }
            if let Asked::Redis(number) = expect.asked {
                let wish = &mut self.journal.redis.wishes[number as usize];
                (wish.arrived, wish.arrived_at) = (expect.arrived, self.now);
            }
            let update = expect.update();
            if let Some(number) = update {
                self.journal.arrive(number, (expect.arrived, self.now), expect.epoch);
                self.journal.updates[number as usize].queue_timeouts = queue_timeouts;
            }
        }
        if self.scene.tight_queues {
            client.count_queued(&self.journal);
        }
        let ends = client.ends_with_request();
        self.fill_block(&piece);
        self.flushed.clear();
        self.proxy.handle_received(id, &self.block, n, self.now);
        self.carry_out();
        let Some(client) = self.clients[id.index()].as_ref() else { return };
        let is_awaiting = self.proxy.is_awaiting(id);
        if client.is_paused || is_awaiting {
            let late = client.expects.iter().take(client.arrived);
            for number in late.filter(|one| one.index > before).filter_map(Expect::update) {
                self.journal.updates[number as usize].is_unread = true;
            }
        }
        // After the end of the connection, and while the client is paused, its input is not parsed.
        // A client with a part of a value whose rest was lost is closed when it has read that part.
        let lost = |server: &Server| server.trouble.any > 0;
        let has_lost = self.pools[client.pool].servers.iter().any(lost);
        if client.is_full && has_lost || self.is_cut_off(client) {
            return;
        }
        // A request that its server does not support was answered when its head arrived.
        let lacked = client.has_forms
            && self.pools[client.pool].servers.iter().any(|server| server.ever_lacked);
        let ends = if lacked && ends == Some(true) { Some(false) } else { ends };
        if client.is_leaving || client.is_paused || is_awaiting || self.scene.tight_memory {
            return;
        }
        if ends == Some(false) && self.pools[client.pool].plan.quickack == QuickAck::Partial {
            return self.check_quiet_ack(client);
        }
        match self.pools[client.pool].plan.quickack {
            QuickAck::Partial => self.check_ack(id, ends),
            QuickAck::Always => self.check_ack(id, None),
            QuickAck::Off => assert!(self.flushed.is_empty(), "an ACK is sent although `off`"),
        }
    }

    /// Checks the QUICKACK rule: a piece of a request is acknowledged at once, and whole requests
    /// by the segment that answers them. `whole` is None if the piece did not end with a request;
    /// else whether that request is answered.
    fn check_ack(&self, id: ConnId, whole: Option<bool>) {
        let is_flushed = self.flushed.contains(&id);
        match whole {
            None => assert!(is_flushed, "the sender of a piece waits for its ACK"),
            Some(true) => assert!(!is_flushed, "a whole request costs a call of its own"),
            // Without an answer, the rule depends on other outstanding requests.
            Some(false) => {}
        }
    }

    /// Checks input of quiet requests only: nothing will carry the ACK, unless an answer is owed
    /// for an earlier request, or is already waiting to be sent.
    fn check_quiet_ack(&self, client: &Client) {
        let arrived = client.expects.iter().take(client.arrived);
        // A client that reads late may have been answered without knowing it.
        if !client.socket.is_empty() || !client.inbox.is_empty() || client.is_full {
            return;
        }
        // In binary a value is whole before the end of its reply has come.
        let is_mid_reply = |conn: &Conn| conn.pool == client.pool && !conn.ends_with_reply;
        if client.is_binary && self.conns.iter().flatten().any(is_mid_reply) {
            return;
        }
        let is_owed = arrived.clone().any(Expect::is_owed);
        let mut slices = Slices::default();
        self.proxy.transmit(client.id, &mut slices);
        let answers = !slices.is_empty();
        let is_flushed = self.flushed.contains(&client.id);
        assert!(is_flushed || is_owed || answers, "the sender of quiet requests waits for its ACK");
        let wasted = is_flushed && is_owed && !answers;
        assert!(!wasted, "quiet requests before which an answer is owed cost a call of their own");
    }

    pub fn let_client_read(&mut self, id: ConnId) {
        let writes = |client: &Client| {
            client.writes_first && !client.unsent.is_empty() && !client.is_half_closed
        };
        if self.clients[id.index()].as_ref().is_some_and(writes) {
            return;
        }
        self.read_client(id);
        if self.clients[id.index()].as_ref().is_some_and(|client| client.is_full) {
            self.flush_client(id);
        }
    }

    /// Advances a connection to a server: it connects, commands are executed, or answers arrive.
    pub fn server_event(&mut self) {
        let count = self.conns.len();
        if count == 0 {
            return;
        }
        let start = self.random.below(count);
        let busy = |at: &usize| {
            let conn = self.conns[*at].as_ref();
            conn.is_some_and(|conn| !conn.is_up() || !conn.is_idle() || conn.is_over)
        };
        let Some(at) = (0..count).map(|step| (start + step) % count).find(busy) else { return };
        let conn = self.conns[at].as_ref().expect("one was found there");
        let server = &self.pools[conn.pool].servers[conn.server];
        if server.stalled_until > self.now {
            return;
        }
        if !conn.is_up() {
            return self.connect_ends(at);
        }
        let commands = self.pace(at);
        self.serve(at, commands);
        let n = self.piece(at);
        self.deliver(at, n);
    }

    /// Lets every server that can answer everything, so that time may pass without a deadline.
    pub fn lull(&mut self) {
        for at in 0..self.conns.len() {
            let Some(conn) = self.conns[at].as_ref() else { continue };
            if self.pools[conn.pool].servers[conn.server].stalled_until > self.now {
                continue;
            }
            if !conn.is_up() {
                self.connect_ends(at);
                continue;
            }
            let dribbles = self.pools[conn.pool].servers[conn.server].dribbles_until > self.now;
            self.serve(at, usize::MAX);
            self.deliver(at, if dribbles { 1 } else { usize::MAX });
        }
        self.settle();
    }

    /// Returns the number of bytes of a server's answers that arrive.
    fn piece(&mut self, at: usize) -> usize {
        let Some(conn) = self.conns[at].as_ref() else { return 0 };
        let len = conn.undelivered();
        if len == 0 {
            return 0;
        }
        let dribbles = self.pools[conn.pool].servers[conn.server].dribbles_until > self.now;
        match self.random.below(10) {
            0 => 0,
            _ if dribbles => 1,
            1..7 => len,
            7 => self.random.range(1, len.min(8)),
            _ => self.random.range(1, len),
        }
    }

    /// Ends a connect: it succeeds or is refused.
    pub fn connect_ends(&mut self, at: usize) {
        let conn = self.conns[at].as_mut().expect("the caller found it");
        if conn.connects_at.is_some_and(|due| due > self.now) {
            return;
        }
        let server = &self.pools[conn.pool].servers[conn.server];
        if server.refusing_until > self.now {
            return self.end_conn(at, Closed::Reset);
        }
        say!(self, "link {at} stands");
        conn.connects_at = None;
        conn.owed_since = self.now;
        if server.full_until > self.now {
            self.turn_away(at);
        }
        let conn = self.conns[at].as_ref().expect("it was there a moment ago");
        let (id, place) = (conn.id, (conn.pool, conn.server));
        self.pools[place.0].servers[place.1].progress = self.now;
        self.proxy.handle_connected(id, self.now);
        self.note_patience(place);
    }

    /// Lets a server execute up to `count` commands of a connection.
    pub fn serve(&mut self, at: usize, count: usize) {
        let mut conn = self.conns[at].take().expect("the caller found it");
        let before = conn.input.len();
        self.execute(&mut conn, count, true);
        let is_stuck = count > 0 && conn.is_read() && conn.input.len() == before && before > 0;
        assert!(conn.is_full || !is_stuck, "half a request was sent, and nothing follows");
        if is_stuck {
            // The server has read its kernel's buffer and waits for the rest of the command; it may
            // read that slowly too.
            conn.is_wide = false;
            conn.capacity = match self.pools[conn.pool].servers[conn.server].dribbles_until {
                until if until > self.now => before + self.random.range(1, before / 16 + 8),
                _ => conn.capacity.saturating_mul(2),
            };
        }
        let (id, is_over, is_full) = (conn.id, conn.is_over, conn.is_full);
        self.conns[at] = Some(conn);
        if is_over {
            self.end_conn(at, Closed::Reset);
        } else if is_full {
            self.flush_link(id);
        }
    }

    pub fn execute(&mut self, conn: &mut super::conn::Conn, count: usize, is_live: bool) {
        let (pool, server) = (conn.pool, conn.server);
        let model = &mut self.pools[pool];
        let mut place = Place {
            pool,
            server,
            keys: &model.keys,
            rings: &model.rings,
            handshakes: &model.handshakes,
            now: self.now,
            is_live,
            hold_after: model.plan.hold_after,
            journal: &mut self.journal,
            random: &mut self.random,
        };
        for _ in 0..count {
            let shown = if self.trace {
                String::from_utf8_lossy(&conn.input).into_owned()
            } else {
                String::new()
            };
            let entry = &mut model.servers[server];
            if !conn.is_read() || !entry.serve(conn, &mut place) {
                break;
            }
            if self.trace {
                let head = shown.find('\r').unwrap_or(shown.len());
                // A Redis command has each argument on its own line.
                let end = if model.is_redis { shown.len().min(200) } else { head };
                let end = (0..=end).rev().find(|at| shown.is_char_boundary(*at)).unwrap_or(0);
                println!(
                    "  event {} server {pool}.{server} executes {:?}",
                    place.journal.now(),
                    &shown[..end]
                );
            }
            if !is_live {
                self.summary.orphans += 1;
            }
        }
        if !is_live {
            model.servers[server].trick = Trick::None;
        }
    }

    /// Delivers `n` bytes of a server's answers to the proxy.
    pub fn deliver(&mut self, at: usize, n: usize) {
        let Some(conn) = self.conns[at].as_mut() else { return };
        let n = n.min(conn.undelivered()).min(BLOCK_LEN);
        if n == 0 {
            return;
        }
        let place = (conn.pool, conn.server);
        self.note_hold_before(place.0, place.1);
        let conn = self.conns[at].as_mut().expect("it was there a moment ago");
        let piece = conn.output[conn.delivered..conn.delivered + n].to_vec();
        say!(self, "link {at} delivers {:?}", String::from_utf8_lossy(&piece));
        let was_established = conn.is_established;
        let has_answered = was_established && conn.brings_answer(n);
        conn.deliver(n, self.now);
        let has_come_up = conn.is_established && !was_established;
        let is_probe = conn.is_probe;
        if conn.is_established && !was_established {
            conn.up = (self.journal.event(), self.now);
            if conn.has_lost_capability {
                self.pools[place.0].servers[place.1].unfit_at = self.now;
            }
            self.pools[place.0].servers[place.1].silence.established_at = self.now;
        }
        self.note_silence(place, true);
        let conn = self.conns[at].as_mut().expect("it was there a moment ago");
        let server = &mut self.pools[conn.pool].servers[conn.server];
        // A server that sends anything is not silent, even in the middle of a reply.
        server.progress = self.now;
        let poisoned = conn.poison.is_some_and(|(start, _)| conn.delivered > start);
        if conn.is_established && conn.ends_with_reply && !poisoned {
            server.replied = self.now;
        }
        // A server that answers a request is healthy.
        if has_answered && !poisoned {
            server.sick_since = None;
        }
        if poisoned {
            server.trouble.poisoned = self.journal.event();
            server.trouble.any = server.trouble.poisoned;
            server.trouble.any_time = self.now;
        }
        let is_told_full = conn.is_told_full();
        let must_end = is_told_full || conn.poison.is_some_and(|(_, end)| conn.delivered >= end);
        let id = conn.id;
        let ends = conn.ends_with_reply.then_some(true);
        let quickack = self.pools[conn.pool].plan.server_quickack;
        if is_told_full {
            self.note_turned_away(place);
        }
        self.fill_block(&piece);
        self.flushed.clear();
        let patience = self.proxy.hold_after(self.pools[place.0].servers[place.1].id);
        self.proxy.handle_received(id, &self.block, n, self.now);
        self.carry_out();
        self.note_patience(place);
        let conn = self.conns[at].as_mut().filter(|conn| conn.id == id && has_come_up);
        conn.into_iter()
            .for_each(|conn| conn.patience = patience.map_or(u64::MAX, |(_, link)| link));
        if has_come_up && is_probe {
            self.expect_probe(place.0, place.1);
            // From here on it is a link like any other: what becomes of it schedules no probe.
            let conn = self.conns[at].as_mut().filter(|conn| conn.id == id);
            conn.into_iter().for_each(|conn| conn.is_probe = false);
        }
        let stands = self.conns[at].as_ref().is_some_and(|conn| conn.id == id);
        assert!(!(must_end && stands), "a link stays after what must end it");
        if stands && !poisoned {
            match quickack {
                QuickAck::Partial => self.check_ack(id, ends),
                QuickAck::Always => self.check_ack(id, None),
                QuickAck::Off => assert!(self.flushed.is_empty(), "an ACK is sent although `off`"),
            }
        }
    }

    /// Ends a connection from the server or the network.
    pub fn end_conn(&mut self, at: usize, how: Closed) {
        let conn = self.conns[at].take().expect("the caller found it");
        say!(self, "link {at} ends: {how:?}");
        let begun = (!conn.is_established).then_some(conn.since);
        self.note_attempt((conn.pool, conn.server), begun);
        self.note_hold_before(conn.pool, conn.server);
        self.note_silence((conn.pool, conn.server), false);
        let server = &mut self.pools[conn.pool].servers[conn.server];
        let event = self.journal.event();
        let trouble = &mut server.trouble;
        if conn.is_established || conn.up.0 > 0 {
            trouble.lost = event;
        }
        if !conn.is_established {
            trouble.refused = event;
        }
        trouble.any = event;
        trouble.any_time = self.now;
        server.progress = self.now;
        self.ending = Some((conn.pool, conn.server));
        self.proxy.handle_closed(conn.id, how, self.now);
        self.carry_out();
        self.ending = None;
        if conn.is_probe {
            self.expect_probe(conn.pool, conn.server);
        }
    }

    /// Lets a server read the last bytes of a link that the proxy has closed, and execute them, or
    /// not.
    pub fn orphan_event(&mut self) {
        if self.orphans.is_empty() {
            return;
        }
        let at = self.random.below(self.orphans.len());
        let (pool, server) = (self.orphans[at].pool, self.orphans[at].server);
        if self.pools[pool].servers[server].stalled_until > self.now {
            return;
        }
        let mut orphan = self.orphans.swap_remove(at);
        if self.random.permille(800) {
            self.execute(&mut orphan, usize::MAX, false);
        }
    }
}

/// Requests of one client that are not answered.
const ASKED_MAX: usize = 500;
