//! The handshake on a link. It proves that a server is there, and shows its capabilities. Nothing
//! else is sent before its answer has come, so a server that accepts connections and stays silent
//! gets no request.

use metrics::ServerCounter;
use proto::{Ask, Capabilities, ConnKey, Credentials, HandshakeReply, Parsed};

use super::link::{Handshake, Link, State};
use super::message::Message;
use super::pair::{EARLY_REPLY, UNASKED};
use super::state::Proof;
use super::trial::Blocks;
use super::{LinkEvent, Servers};
use crate::base::buffer::Source;
use crate::base::connection::Connection;
use crate::base::fault::Fault;
use crate::base::id::ConnId;
use crate::base::part::LinkClass;
use crate::base::{Base, ServerAt, limits};
use crate::{Event, Time};

impl Servers {
    /// Starts the handshake when a connect has succeeded.
    pub(crate) fn connected(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let login = base.pool(link.at).plan.server_login.as_ref();
        link.begin_handshake(base, login);
        let (at, begun) = (link.at, link.begun);
        self.note_connect(base, at, begun);
        let state = self.state(at);
        state.unable_pause = limits::BACKOFF_FIRST_US;
        state.counters.add(ServerCounter::Connects, 1);
        if state.probe == Some(id) {
            state.counters.add(ServerCounter::Probes, 1);
        }
        self.mark_dirty(id);
        self.arm(base, id);
    }

    /// Repeats the handshake with a server that may have fallen silent, on a link on which it owes
    /// nothing.
    pub(super) fn repeat_handshake(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        link.begin_handshake(base, None);
        self.arm(base, id);
    }

    /// Repeats a handshake that a busy server has answered, when its pause is over.
    pub(super) fn ask_busy_again(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let login = match &link.state {
            State::Handshake(Handshake { login, .. }) if *login => {
                base.pool(link.at).plan.server_login.as_ref()
            }
            _ => None,
        };
        link.look_at = None;
        link.begin_handshake(base, login);
        self.mark_dirty(id);
        self.arm(base, id);
    }

    /// Handles the answer of a busy server: it is there, and refuses nothing. It is asked again.
    #[cold]
    fn await_busy(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let (at, until) = (link.at, base.now.after(limits::BUSY_PAUSE_US));
        (link.since, link.look_at) = (base.now, Some(until));
        self.note_busy_answer(base, id);
        if self.is_trial_link(at, id) {
            return self.end_trial(base, id, Blocks::Refused(Fault::Busy, until));
        }
        if self.state(at).probe == Some(id) {
            self.probe_answered(base, id);
        }
        // Requests that wait for it would be refused as well, in the same words.
        let is_kept = |link: &Link| link.class.is_never_held();
        if self.state(at).said_busy && !self.links.find(id).is_some_and(is_kept) {
            self.refuse_as_busy(base, id);
        }
        // A change at several servers waits for all their links.
        self.events.push_back(LinkEvent::Known(at, base.hold_after(at)));
        self.arm(base, id);
    }

    /// Notes the line among the answers to a handshake that says that the server is busy.
    pub(super) fn note_busy_answer(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find_mut(id) else { return };
        let (at, answers) = (link.at, std::mem::take(&mut link.partial));
        let upstream = base.pool(at).upstream;
        let mut lines = answers.split_inclusive(|byte| *byte == b'\n');
        if let Some(line) = lines.find_map(|one| upstream.busy_line(one)) {
            self.note_busy_line(base, at, Some(&line));
        }
        base.spares.give(answers);
    }

    /// Handles the answer to the handshake, or a part of it.
    pub(super) fn handshake(
        &mut self,
        base: &mut Base,
        id: ConnId,
        source: Source<'_>,
    ) -> Result<(), &'static str> {
        let Some(link) = self.links.find_mut(id) else { return Ok(()) };
        let State::Handshake(Handshake { unsent, login, .. }) = &link.state else {
            return Ok(());
        };
        let (at, is_early) = (link.at, !unsent.is_empty());
        link.partial.extend_from_slice(source.bytes);
        let pool = base.pool(at);
        let conn_key = link.asked_conn_key(base);
        let answer = pool.upstream.read_handshake(*login, conn_key, &link.partial);
        // A full server says so at once.
        let may_be_early = match answer {
            Parsed::Complete(HandshakeReply::Refused) => true,
            _ => !link.partial.contains(&b'\n'),
        };
        if is_early && !may_be_early {
            return Err(EARLY_REPLY);
        }
        let (len, capabilities) = match answer {
            Parsed::Complete(HandshakeReply::Welcome { len, capabilities }) => (len, capabilities),
            Parsed::Complete(HandshakeReply::LoginRefused) => {
                self.note_said(base, id, Fault::LoginRefused);
                self.close_link(base, id, Fault::LoginRefused);
                return Ok(());
            }
            Parsed::Complete(HandshakeReply::SetupRefused) => {
                self.note_life(base, at);
                self.close_link(base, id, Fault::SetupRefused);
                return Ok(());
            }
            Parsed::Complete(HandshakeReply::Refused) => {
                self.end_turned_away(base, id);
                return Ok(());
            }
            Parsed::Complete(HandshakeReply::Busy) => {
                self.note_life(base, at);
                self.await_busy(base, id);
                return Ok(());
            }
            Parsed::Incomplete if link.partial.len() <= limits::HANDSHAKE_MAX => return Ok(()),
            Parsed::Incomplete => return Err("a handshake without end"),
            Parsed::Malformed(why) => return Err(why),
        };
        if len < link.partial.len() {
            return Err(UNASKED);
        }
        if link.class == LinkClass::Private {
            link.own.note_welcome(pool.upstream, &link.partial);
        }
        base.spares.give(std::mem::take(&mut link.partial));
        self.come_up(base, id, capabilities);
        Ok(())
    }

    /// Puts a link into use whose handshake has succeeded.
    fn come_up(&mut self, base: &mut Base, id: ConnId, capabilities: Capabilities) {
        let Some(link) = self.links.find_mut(id) else { return };
        let was_busy = matches!(&link.state, State::Handshake(shake) if shake.was_busy);
        let is_new = link.trip == u64::MAX;
        link.set_state(State::Up(base.now));
        link.trip = link.trip.min(base.now.since(link.since));
        let trips = 1 + link.trip / limits::DEPTH_TRIP_US;
        link.depth = base.limits.depth.saturating_mul(trips.min(1 << 10) as u32);
        let at = link.at;
        let asked = std::mem::replace(&mut link.since, base.now);
        self.note_life(base, at);
        if self.links.find(id).is_some_and(|link| link.work() > 0) {
            self.tell_work(at);
        }
        if is_new {
            self.state(at).note_link_up();
            let server = base.server(at).plan.id;
            base.log_connection(|_| Connection::LinkMade { link: id, server });
        }
        // A busy server answers a handshake that chooses no database.
        if was_busy {
            self.note_busy_line(base, at, None);
        }
        let is_probe = self.state(at).probe == Some(id);
        let is_trial = self.is_trial_link(at, id);
        let before = self.note_capabilities(base, at, capabilities);
        if is_probe {
            self.probe_answered(base, id);
        }
        self.note_beside_probe(base, at, (asked, is_new));
        self.end_judge(base, id, asked);
        // A link that has shown that its server is well has its place by now.
        if !is_trial {
            self.end_rest(base, id);
        }
        if is_new {
            self.note_spare_up(id);
        }
        self.events.push_back(LinkEvent::Known(at, base.hold_after(at)));
        // It may have come late because its server was silent: what was known before judges that.
        self.note_up(base, id);
        self.note_trip(base, at, asked);
        let capabilities = base.server(at).capabilities.unwrap_or_default();
        if before.is_some_and(|before| !capabilities.include(before)) {
            self.close_unfit(base, at, capabilities);
        }
        if is_trial {
            self.begin_trial(base, id);
        }
        self.mark_dirty(id);
        self.arm(base, id);
    }

    /// Notes the capabilities that a handshake has shown; returns those known before.
    fn note_capabilities(
        &mut self,
        base: &mut Base,
        at: ServerAt,
        capabilities: Capabilities,
    ) -> Option<Capabilities> {
        let upstream = base.pool(at).upstream;
        let state = self.state(at);
        let is_disproved = state.proof == Proof::Disproved;
        if state.proof == Proof::Forgiven {
            state.proof = Proof::Open(0);
        }
        let capabilities = if is_disproved { Capabilities::default() } else { capabilities };
        let server = base.server_mut(at);
        let before = server.capabilities.replace(capabilities);
        let what = upstream.lacks(capabilities).filter(|_| !is_disproved);
        if let Some(what) = what
            && before.is_none_or(|before| upstream.lacks(before).is_none())
        {
            let event = Event::Lacks { server: server.plan.id, what };
            base.log(event);
        }
        before
    }

    /// Closes unused links of a server that has lost a capability. The messages that wait on them
    /// were written for a server that had it.
    fn close_unfit(&mut self, base: &mut Base, at: ServerAt, capabilities: Capabilities) {
        let upstream = base.pool(at).upstream;
        let is_unfit_ask = |ask: Ask| !capabilities.include(upstream.needs(ask));
        let is_unfit = |message: &Message| is_unfit_ask(message.ask);
        for id in self.links_of(at) {
            let Some(link) = self.links.find_mut(id) else { continue };
            let waits = link.queue.iter().any(|(_, one, _)| is_unfit_ask(one.ask));
            if link.sent == 0 && (waits || link.outstanding.iter().any(is_unfit)) {
                // The server is well, but another one.
                link.proven = true;
                self.close_link(base, id, Fault::LinkLost);
            }
        }
    }

    /// Notes a server's answer: it has the capability that the request needed, if any.
    pub(super) fn prove(&mut self, base: &Base, at: ServerAt, ask: Ask) {
        let upstream = base.pool(at).upstream;
        // Where nothing needs a capability, every answer is proof enough.
        if !upstream.has_needs() || !Capabilities::default().include(upstream.needs(ask)) {
            self.state(at).proof = Proof::Proven;
        }
    }

    /// Counts a lost link against a server's claimed capability. If links are lost again and again
    /// while requests that need the capability wait, and none like them was ever answered, the
    /// server does not have it.
    pub(super) fn doubt(&mut self, base: &mut Base, id: ConnId) {
        let Some(link) = self.links.find(id) else { return };
        let upstream = base.pool(link.at).upstream;
        let state = &mut self.states[link.at.pool as usize][link.at.server as usize];
        let Proof::Open(times) = state.proof else { return };
        let mut sent = link.outstanding.iter().take_while(|message| message.end <= link.sent);
        if !sent.any(|message| !Capabilities::default().include(upstream.needs(message.ask))) {
            return;
        }
        state.proof = Proof::Open(times + 1);
        if times + 1 == limits::DOUBTS_MAX {
            state.proof = Proof::Disproved;
            let server = base.server_mut(link.at);
            server.capabilities = Some(Capabilities::default());
            let event = Event::CapabilityLost { server: server.plan.id };
            base.log(event);
        }
    }
}

impl Link {
    /// Whether it has repeated its handshake by then, and nothing has come.
    pub(super) fn is_unanswered_since(&self, time: Time) -> bool {
        let repeats = matches!(self.state, State::Handshake(_)) && self.was_up();
        let has_come = self.look_at.is_some() || !self.partial.is_empty();
        repeats && !has_come && self.begun <= time
    }

    /// Returns the connection key that its handshake asks for. The requests on a control link
    /// concern no database, and a busy server lets nobody choose one.
    fn asked_conn_key(&self, base: &Base) -> ConnKey {
        let conn_key = base.pool(self.at).conn_keys.of(self.conn_key);
        match self.class {
            LinkClass::Control => ConnKey { database: 0, ..conn_key },
            _ => conn_key,
        }
    }

    /// Whether its server has answered the handshake that it is busy, and not otherwise since.
    pub(super) fn is_told_busy(&self) -> bool {
        let is_asked_again = |shake: &Handshake| shake.was_busy || self.look_at.is_some();
        matches!(&self.state, State::Handshake(shake) if is_asked_again(shake))
    }

    /// Writes the handshake, with a login or without.
    fn begin_handshake(&mut self, base: &Base, login: Option<&Credentials>) {
        let pool = base.pool(self.at);
        let mut unsent = Vec::new();
        pool.upstream.write_handshake(login, self.asked_conn_key(base), &mut unsent);
        let login = login.is_some();
        let was_busy = matches!(self.state, State::Handshake(_));
        self.set_state(State::Handshake(Handshake { unsent, login, was_busy }));
        (self.since, self.must_prove) = (base.now, false);
        if self.proven {
            self.begun = base.now;
        }
    }
}
