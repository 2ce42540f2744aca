//! The driver: performs the proxy's actions and moves bytes, as the program's event loop does.

use std::borrow::Cow;

use proxy::{Action, Closed, ConnId, Event, Side, Slices, Time, limits};

use super::client::{Client, Expect};
use super::conn::Conn;
use super::frame::frame_len;
use super::redis;
use super::server::{Server, Trick};
use super::world::{World, say};

/// The reason for which a server is down that sends wrong replies.
const POISONED: &str = "unexpected reply, connection closed";

impl World {
    /// Performs, after a step, the actions, the clients' reads, and often the end of the turn.
    pub fn settle(&mut self) {
        self.carry_out();
        self.flush_clients();
        self.turn_age += 1;
        if self.turn_age >= 4 || self.random.permille(600) {
            self.end_turn();
        }
    }

    pub fn end_turn(&mut self) {
        self.turn_age = 0;
        let vacant = self.vacant_pools();
        self.proxy.end_turn(self.now);
        self.carry_out();
        self.flush_clients();
        while let Some(id) = self.proxy.poll_transmit(Side::Link) {
            self.flush_link(id);
        }
        self.carry_out();
        self.check_rest(vacant);
        self.check_grants();
        self.check_inflight_limits();
        if !self.journal.unheard.is_empty() {
            self.check_unheard();
        }
    }

    pub fn flush_clients(&mut self) {
        while let Some(id) = self.proxy.poll_transmit(Side::Client) {
            self.flush_client(id);
        }
        self.carry_out();
    }

    pub fn carry_out(&mut self) {
        while let Some(action) = self.proxy.poll_action() {
            say!(self, "  {action:?}");
            match action {
                Action::Connect { link, server } => self.connect(link, server),
                Action::End(id) => self.close_client(id),
                Action::Close(id) if id.is_client() => self.close_client(id),
                Action::Close(id) => self.close_link(id),
                Action::Pause(id) => self.set_paused(id, true),
                Action::Resume(id) => self.set_paused(id, false),
                Action::LookUpEndpoints(id) => {
                    self.proxy.handle_endpoints(id, Default::default(), self.now);
                }
                Action::Inquire { client, .. } => {
                    self.proxy.handle_told(client, Ok(Default::default()), self.now);
                }
                Action::FlushAck(id) => self.flushed.push(id),
                Action::Log(event) => self.note(event),
                Action::Report(report) => self.hear(0, &report),
                // Nothing depends on it.
                Action::Slow { .. } | Action::Access { .. } | Action::InPieces { .. } => {}
                Action::Tap { .. } => {}
            }
        }
    }

    /// Notes that a link has ended. If it never came up, the attempt to make it began then.
    pub fn note_attempt(&mut self, (pool, server): (usize, usize), begun: Option<Time>) {
        let entry = &mut self.pools[pool].servers[server];
        entry.attempted = entry.attempted.max(begun.unwrap_or_default());
        if entry.rest.has_been() {
            self.note_rest((pool, server));
        }
    }

    /// Notes that a link is not tried again for a while: who needs it is told so.
    fn note_rest(&mut self, (pool, server): (usize, usize)) {
        let entry = &mut self.pools[pool].servers[server];
        entry.rest.note(self.now);
        entry.rough_until = entry.rough_until.max(entry.rest.until());
    }

    fn connect(&mut self, id: ConnId, number: u32) {
        let (pool, server) = self.place(number);
        let mut conn = Conn::new(id, (pool, server), self.now);
        // Only a private link may be gone again: its client has changed its database at once.
        conn.is_private = !self.proxy.is_shared(id);
        conn.is_spare = self.proxy.is_spare(id);
        conn.is_beside = self.proxy.is_beside(id);
        if conn.is_private {
            let timeouts = self.pools[pool].plan.timeouts;
            let most = timeouts.connect + timeouts.reply;
            self.pools[pool].servers[server].rest.note_private(self.now, most);
        }
        // One that shows whether a silent server is there may be used by who waited for others.
        let is_silent = self.pools[pool].servers[server].silence.since.is_some();
        conn.is_renewal = self.ending == Some((pool, server)) || is_silent;
        let model = &mut self.pools[pool].servers[server];
        assert!(!model.is_maint, "a server in maintenance is connected to");
        model.progress = self.now;
        if model.trick == Trick::NoSocket && !self.is_calm {
            say!(self, "  no socket for it");
            model.trick = Trick::None;
            model.trouble.unable = self.journal.event();
            model.trouble.unable_time = self.now;
            model.rough_until = model.rough_until.max(self.now.after(limits::BACKOFF_LAST_US));
            self.unmade.push(id);
            self.proxy.handle_closed(id, Closed::Own, self.now);
            if self.pools[pool].servers[server].is_down {
                self.expect_probe(pool, server);
            }
            return;
        }
        let delay = match self.is_calm {
            true => 0,
            false => self.scene.far + self.random.below(3 * self.scene.tick_max) as u64,
        };
        conn.connects_at = Some(self.now.max(model.stalled_until).after(delay));
        conn.is_probe = model.is_down;
        let slow = if model.dribbles_until > self.now { 500 } else { 150 };
        if !self.is_calm && self.random.permille(slow) {
            conn.capacity = self.random.range(40, 2_000);
            conn.is_wide = false;
        }
        let at = id.index();
        if self.conns.len() <= at {
            self.conns.resize_with(at + 1, || None);
        }
        assert!(self.conns[at].is_none(), "a link's place is taken");
        self.conns[at] = Some(conn);
    }

    fn set_paused(&mut self, id: ConnId, paused: bool) {
        // The client may have left in the same step.
        let now = self.now;
        if let Some(client) = self.client(id) {
            assert!(client.is_paused || paused, "resumed without a pause");
            match paused {
                true if client.is_paused => {}
                true => client.paused_at = now,
                false => client.resumed_at = now,
            }
            client.is_paused = paused;
            self.summary.pauses += u64::from(paused);
        }
    }

    pub fn client(&mut self, id: ConnId) -> Option<&mut Client> {
        self.clients.get_mut(id.index())?.as_mut().filter(|client| client.id == id)
    }

    /// Closes a link for the proxy, which must have a reason.
    fn close_link(&mut self, id: ConnId) {
        // A link may be given up before the driver has found that there is no socket for it.
        let conn = self.conns.get_mut(id.index());
        let Some(conn) = conn.and_then(|conn| conn.take_if(|conn| conn.id == id)) else {
            return assert!(self.unmade.contains(&id), "only what is there is closed");
        };
        assert_eq!(conn.id, id, "a link that is long gone is closed");
        if conn.is_probe {
            self.expect_probe(conn.pool, conn.server);
        }
        let begun = (!conn.is_established).then_some(conn.since);
        self.note_attempt((conn.pool, conn.server), begun);
        self.note_hold_before(conn.pool, conn.server);
        self.note_silence((conn.pool, conn.server), false);
        let gives_way = self.gives_way(&conn);
        let model = &mut self.pools[conn.pool];
        let entry = &model.servers[conn.server];
        let is_gone = !model.is_planned || !model.has(entry.id) || entry.is_maint;
        // One with which clients go around others is not needed for long.
        let may_retire = is_gone || model.has_shrunk || conn.is_unneeded(self.now);
        let since = if conn.is_up() { conn.owed_since } else { conn.since };
        let timeouts = model.deadlines_since(since);
        let waited = self.now.since(since);
        let is_late = match conn.is_up() {
            true => !conn.owes_nothing() && waited >= timeouts.reply,
            false => waited >= timeouts.connect,
        };
        let waits = conn.is_established && !conn.is_idle() && !conn.is_probe;
        let is_poisoned = conn.poison.is_some_and(|(start, _)| conn.delivered > start);
        // Its handshake has just reported fewer capabilities than the waiting requests may need.
        let unfit_at = model.servers[conn.server].unfit_at;
        let is_unfit = unfit_at == self.now && (conn.is_idle() || !conn.is_established);
        // No client waits for an answer to a trial.
        let is_trial = conn.is_tried && !conn.has_request;
        if conn.is_told_full() || is_trial && !is_poisoned && !is_late {
            return;
        }
        if may_retire && !waits && !is_poisoned && !is_late && !is_unfit {
            // No client waits for an answer, so this is not a failure.
            return;
        }
        if conn.is_private && !is_poisoned && !is_unfit {
            return self.close_private(conn, is_late);
        }
        let server = &mut model.servers[conn.server];
        let event = self.journal.event();
        let trouble = &mut server.trouble;
        if is_unfit {
            trouble.lost = event;
        } else if gives_way || server.is_down && !conn.is_established {
            // Its requests have another link, or nothing of its server works.
            trouble.hung = event;
        } else if !conn.is_up() {
            let waited = self.now.since(conn.since);
            assert!(waited >= timeouts.connect, "gave up connecting after {waited} us");
            trouble.hung = event;
        } else if is_poisoned {
            // Progress is noted at delivery, but a piece of a reply counts as silence.
            if self.now.since(conn.owed_since) >= timeouts.reply {
                trouble.silent = event;
            }
        } else if (conn.is_probe || conn.messages <= 1) && conn.is_idle() {
            // It was to show whether the server is there, and all places for links are taken; or
            // its request was never sent.
            trouble.hung = event;
        } else if conn.repeats_handshake() && server.silence.established_at == self.now {
            // Another one has just come up, and was asked later.
            trouble.lost = event;
        } else {
            let silent = self.now.since(conn.owed_since);
            assert!(!conn.owes_nothing(), "a link that owes nothing is closed");
            let patience = conn.patience_by(&timeouts, server.rest.has_been());
            assert!(silent >= patience, "gave up on a reply after {silent} us");
            trouble.silent = event;
        }
        trouble.any = event;
        trouble.any_time = self.now;
        self.leave_orphan(conn);
    }

    /// Closes a private link whose client has gone, or needs it no more. What was sent on it may
    /// still be executed.
    fn close_private(&mut self, conn: Conn, is_late: bool) {
        let event = self.journal.event();
        let trouble = &mut self.pools[conn.pool].servers[conn.server].trouble;
        match conn.is_up() {
            _ if !is_late => {}
            true => (trouble.silent, trouble.any, trouble.any_time) = (event, event, self.now),
            false => (trouble.hung, trouble.any, trouble.any_time) = (event, event, self.now),
        }
        self.leave_orphan(conn);
    }

    /// Sometimes, what a closed link has sent and its server has not read is executed later.
    fn leave_orphan(&mut self, conn: Conn) {
        if !conn.input.is_empty() && self.random.permille(600) {
            self.orphans.push(conn);
        }
    }

    /// Closes a client for the proxy, which must have been asked to and owe it nothing.
    fn close_client(&mut self, id: ConnId) {
        self.read_client(id);
        let client = self.clients[id.index()].take().expect("only what is there is closed");
        assert_eq!(client.id, id, "a client that is long gone is closed");
        say!(self, "client {} is closed", client.number);
        if self.is_closed_unread(&client) {
            self.summary.unread[usize::from(self.unread_at == self.now)] += 1;
            // Requests that were kept of it are not asked any more.
            self.journal.retryable(client.number);
            return;
        }
        if self.is_cut_off(&client) {
            self.summary.cut_off += 1;
            // Its last requests may not have been parsed, or were held and dropped.
            self.journal.retryable(client.number);
            return;
        }
        // Without memory for the next request, a client with replies off gets no error, nor
        // anything later.
        let is_tight = self.scene.tight_memory && client.talk.is_some();
        if is_tight && client.has_been_quiet {
            self.journal.retryable(client.number);
            return;
        }
        // A client that does not read its answers is not waited for without end.
        if self.now >= self.pools[client.pool].gone_since.after(limits::RETIRE_US) {
            return;
        }
        self.note_unheard(&client);
        if let Some(sent) = client.drained_at {
            let owed = client.expects.iter().filter(|one| one.end <= sent && one.is_owed());
            assert_eq!(owed.count(), 0, "drained without all answers");
            return;
        }
        let wished = client.is_half_closed || client.is_leaving;
        assert!(wished, "client {} did not ask to be closed", client.number);
        let is_owed = |at: usize| at < client.arrived && client.expects[at].is_owed();
        let owed = (0..client.expects.len()).find(|at| is_owed(*at));
        assert!(owed.is_none(), "client {} is closed without its answer", client.number);
    }

    /// Returns whether it has a part of a value, and a server had a fault since its request. If the
    /// rest of the value is lost, the proxy can only close.
    pub fn is_cut_off(&self, client: &Client) -> bool {
        let mut arrived = client.expects.iter().take(client.arrived);
        let first = arrived.clone().find(|one| one.is_owed() || one.reads_one());
        // It reads what it was owed before, which may take a while.
        let since = first.map_or(self.now, |one| one.arrived_at);
        let lost = |server: &Server| server.trouble.any_time >= since;
        let servers = &self.pools[client.pool].servers;
        // A server ends a value by bytes that binary does not have.
        if client.ends_with_value && servers.iter().any(lost) {
            return true;
        }
        let Some(first) = first else { return false };
        // Some of the quiet requests may have been skipped.
        let is_read = match client.has_forms {
            true => arrived.any(Expect::reads_one),
            false if client.talk.is_some() => true,
            false => first.reads_one() && client.inbox.starts_with(b"VALUE "),
        };
        // Without memory, a reply that has begun cannot be kept, either.
        let is_tight = self.scene.tight_memory && client.talk.is_some();
        is_read && !client.inbox.is_empty() && (is_tight || servers.iter().any(lost))
    }

    /// Checks that an event for the operator has a reason, and takes it as the proxy's view of its
    /// servers.
    fn note(&mut self, event: Event) {
        let (server, has_failed) = match &event {
            Event::ServerDown { server, .. } | Event::Poisoned { server, .. } => (*server, true),
            Event::ServerBack { server } => (*server, false),
            // The clients that were refused check this by their answers.
            Event::ClientsRefused { .. } | Event::NotAllowed { .. } => return,
            Event::Marked { .. } | Event::Lacks { .. } | Event::SubscriptionsLost { .. } => return,
            Event::LinkRefused { server, .. } => {
                let (pool, at) = self.place(*server);
                self.note_rest((pool, at));
                let conns = self.conns.iter_mut().flatten();
                let its = conns.filter(|conn| (conn.pool, conn.server) == (pool, at));
                its.for_each(|conn| conn.is_renewal = true);
                return;
            }
            Event::CutOff { clients, half_asked, .. } => {
                return assert!(*clients > 0 && half_asked <= clients, "nobody is cut off");
            }
            Event::MemoryShort { held, max } => {
                return assert!(*held >= max - max / 8, "{held} of {max} is not short");
            }
            Event::MemoryFree { held, max } => return assert!(*held < max / 2 + 1),
            Event::Connection(_) => unreachable!("nobody wants to know of connections here"),
            // Its links died repeatedly under meta requests, so the proxy assumes that it has none.
            Event::CapabilityLost { server } => {
                let (pool, at) = self.place(*server);
                self.pools[pool].servers[at].ever_lacked = true;
                return;
            }
            Event::ServerDrips { .. } => return,
            Event::LoginFailed { .. } | Event::LoginsFailed { .. } => {
                unreachable!("nobody logs in here")
            }
            Event::ClientUnread { client, kept, bound, .. } => {
                return self.note_unread(*client, *kept, bound);
            }
            Event::ClientStalled { .. } => unreachable!("nobody sends as much here"),
        };
        let (pool, at) = self.place(server);
        let entry = &mut self.pools[pool].servers[at];
        let known = entry.trouble.any_time == self.now;
        assert!(!has_failed || known, "{event:?}, but nothing happened to it");
        match event {
            Event::ServerDown { why, .. } => {
                let Cow::Borrowed(why) = why else { unreachable!("nobody logs in here") };
                let is_of_it = |conn: &&Conn| (conn.pool, conn.server) == (pool, at);
                let mut conns = self.conns.iter().flatten().filter(is_of_it);
                let up = conns.find(|conn| conn.is_established);
                assert!(
                    up.is_none(),
                    "{pool}.{at} is down ({why}), but link {} is up",
                    up.map_or(0, |conn| conn.id.index())
                );
                let entry = &mut self.pools[pool].servers[at];
                let is_attempt = !["connection lost", POISONED].contains(&why);
                assert!(
                    !is_attempt || entry.replied <= entry.attempted,
                    "{pool}.{at} is down ({why}), but has answered at {:?}, after {:?}",
                    entry.replied,
                    entry.attempted
                );
                entry.is_down = true;
                entry.trouble.verdict = (self.journal.event(), why);
                self.expect_probe(pool, at);
            }
            Event::ServerBack { .. } => {
                entry.is_down = false;
                entry.trouble.back = self.journal.event();
            }
            _ => {}
        }
        self.pools[pool].servers[at].progress = self.now;
        self.look_at_health();
    }

    /// Writes to a client as much as its socket accepts.
    pub fn flush_client(&mut self, id: ConnId) {
        loop {
            let Some(client) = self.clients[id.index()].as_mut() else { return };
            assert_eq!(client.id, id, "a client that is long gone is written");
            let room = client.capacity - client.socket.len();
            let (taken, is_full) = take(&self.proxy, id, room, &mut client.socket);
            client.is_full = is_full;
            let reads_late = client.reads_late;
            if taken > 0 {
                say!(self, "  client at {} gets {taken} bytes", id.index());
                client.taken_at = self.now;
            }
            if taken > 0 || is_full {
                self.proxy.handle_transmitted(id, taken, self.now);
            }
            if taken == 0 {
                return;
            }
            if !reads_late {
                self.read_client(id);
            }
        }
    }

    /// Returns whether a part of the message with the next answer has been sent.
    fn is_begun(&self, conn: &Conn) -> bool {
        let len = match self.pools[conn.pool].is_redis {
            _ if !conn.is_full || conn.undelivered() > 0 => return false,
            true => redis::frame_len(&conn.input, &mut false),
            false => frame_len(&conn.input),
        };
        len.is_none()
    }

    /// Writes to a link as much as its kernel accepts.
    pub fn flush_link(&mut self, id: ConnId) {
        loop {
            let Some(mut conn) = self.conns[id.index()].take() else { return };
            assert!(conn.id == id && conn.is_up(), "a link is written that does not stand");
            let was_idle = conn.is_idle();
            let was_begun = self.is_begun(&conn);
            let before = conn.input.len();
            let room = conn.capacity.saturating_sub(before);
            let (taken, is_full) = take(&self.proxy, id, room, &mut conn.input);
            conn.is_full = is_full;
            if taken > 0 {
                conn.take(taken, self.journal.event(), self.now);
                self.check_hold(&conn, before, was_idle);
            }
            let conn = self.conns[id.index()].insert(conn);
            if taken == 0 {
                say!(self, "  link {} holds {} bytes", id.index(), conn.input.len());
                return;
            }
            let handshakes = &self.pools[conn.pool].handshakes;
            if was_idle && conn.is_established && handshakes.begin(&conn.input) {
                // The next connection needs a new handshake.
                conn.is_established = false;
                conn.conn_key = None;
            }
            // The server cannot answer before the kernel has accepted the whole message.
            if was_idle || was_begun || !conn.is_established {
                conn.owed_since = self.now;
            }
            let place = (conn.pool, conn.server);
            self.pools[place.0].servers[place.1].progress = self.now;
            self.note_silence(place, false);
            self.proxy.handle_transmitted(id, taken, self.now);
        }
    }
}

/// Moves output of the proxy as far as there is room; returns whether more is left.
fn take(proxy: &proxy::Proxy, id: ConnId, room: usize, to: &mut Vec<u8>) -> (usize, bool) {
    let mut slices = Slices::default();
    proxy.transmit(id, &mut slices);
    let mut taken = 0;
    for slice in slices.iter() {
        let n = slice.len().min(room - taken);
        to.extend_from_slice(&slice[..n]);
        taken += n;
        if n < slice.len() {
            return (taken, true);
        }
    }
    (taken, false)
}
