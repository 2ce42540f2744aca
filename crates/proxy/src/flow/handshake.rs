//! The handshake on a link. It proves that a server is there, and shows its capabilities. Nothing
//! else is sent before its answer has come, so a server that accepts connections and stays silent
//! gets no request.

use metrics::ServerCounter;
use proto::{Ask, Capabilities, HandshakeReply, Parsed};

use crate::buffer::Source;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::link::{Message, State};
use crate::pool::Proof;
use crate::{Action, Event, Proxy, Time, limits};

impl Proxy {
    /// Starts the handshake when a connect has succeeded.
    pub(crate) fn connected(&mut self, id: ConnId, now: Time) {
        let Some(link) = self.links.find_mut(id) else { return };
        link.set_state(State::Handshake);
        link.since = now;
        let pool = &mut self.pipelines.pools[link.pool as usize];
        let login = pool.plan.server_login.as_ref();
        pool.upstream.write_handshake(login, pool.conn_keys.of(link.conn_key), &mut link.handshake);
        link.login = login.is_some();
        let server = &mut pool.servers[link.server as usize];
        server.unable_pause = limits::BACKOFF_FIRST_US;
        server.counters.add(ServerCounter::Connects, 1);
        if server.probe == Some(id) {
            server.counters.add(ServerCounter::Probes, 1);
        }
        self.mark_dirty(id);
        self.arm_link(id);
    }

    /// Repeats the handshake with a server that may have fallen silent, on a link on which it owes
    /// nothing.
    pub(super) fn repeat_handshake(&mut self, id: ConnId) {
        let link = self.links.find_mut(id).expect("the caller found it");
        link.set_state(State::Handshake);
        link.since = self.pipelines.now;
        let pool = &self.pipelines.pools[link.pool as usize];
        pool.upstream.write_handshake(None, pool.conn_keys.of(link.conn_key), &mut link.handshake);
        link.login = false;
        self.arm_link(id);
    }

    /// Handles the answer to the handshake, or a part of it.
    pub(super) fn handshake(
        &mut self,
        id: ConnId,
        source: Source<'_>,
        now: Time,
    ) -> Result<(), &'static str> {
        let link = self.links.find_mut(id).expect("the caller found it");
        if !link.handshake.is_empty() {
            return Err("a reply before its request was sent");
        }
        link.partial.extend_from_slice(source.bytes);
        let pool = &self.pipelines.pools[link.pool as usize];
        let conn_key = pool.conn_keys.of(link.conn_key);
        let (len, capabilities) =
            match pool.upstream.read_handshake(link.login, conn_key, &link.partial) {
                Parsed::Complete(HandshakeReply::Welcome { len, capabilities }) => {
                    (len, capabilities)
                }
                Parsed::Complete(HandshakeReply::LoginRefused) => {
                    self.close_link(id, Fault::LoginRefused, now);
                    return Ok(());
                }
                Parsed::Complete(HandshakeReply::SetupRefused) => {
                    self.close_link(id, Fault::SetupRefused, now);
                    return Ok(());
                }
                Parsed::Incomplete if link.partial.len() <= limits::HANDSHAKE_MAX => return Ok(()),
                Parsed::Incomplete => return Err("a handshake without end"),
                Parsed::Malformed(why) => return Err(why),
            };
        if len < link.partial.len() {
            return Err("a reply that was not asked for");
        }
        self.pipelines.spares.give(std::mem::take(&mut link.partial));
        link.set_state(State::Up);
        (link.since, link.up_at) = (now, now);
        let upstream = pool.upstream;
        let (pool, server_index) = (link.pool as usize, link.server as usize);
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        let capabilities =
            if server.proof == Proof::Disproved { Capabilities::default() } else { capabilities };
        let before = server.capabilities.replace(capabilities);
        let what = upstream.lacks(capabilities).filter(|_| server.proof != Proof::Disproved);
        if let Some(what) = what
            && before.is_none_or(|before| upstream.lacks(before).is_none())
        {
            let event = Event::Lacks { server: server.plan.id, what };
            self.pipelines.actions.push_back(Action::Log(event));
        }
        if server.probe == Some(id) {
            link.proven = true;
            self.probe_answered(id, now);
        }
        self.end_awaiting(pool, server_index);
        if self.links.find(id).is_some() {
            self.note_up(id, now);
        }
        if before.is_some_and(|before| !capabilities.include(before)) {
            self.close_unfit(pool, server_index, capabilities, now);
        }
        if self.links.find(id).is_some() {
            self.mark_dirty(id);
            self.arm_link(id);
        }
        Ok(())
    }

    /// Closes unused links of a server that has lost a capability. The messages that wait on them
    /// were written for a server that had it.
    fn close_unfit(&mut self, pool: usize, server: usize, capabilities: Capabilities, now: Time) {
        let upstream = self.pipelines.pools[pool].upstream;
        for id in self.links_of(pool, server) {
            let link = self.links.find_mut(id).expect("it has just been listed");
            let is_unfit = |message: &Message| !capabilities.include(upstream.needs(message.ask));
            if link.sent == 0 && link.outstanding.iter().any(is_unfit) {
                // The server is well, but another one.
                link.proven = true;
                self.close_link(id, Fault::LinkLost, now);
            }
        }
    }

    /// Notes a server's answer: it has the capability that the request needed, if any.
    pub(super) fn prove(&mut self, pool: usize, server_index: usize, ask: Ask) {
        let upstream = self.pipelines.pools[pool].upstream;
        let server = &mut self.pipelines.pools[pool].servers[server_index];
        if server.proof != Proof::Proven && !Capabilities::default().include(upstream.needs(ask)) {
            server.proof = Proof::Proven;
        }
    }

    /// Counts a lost link against a server's claimed capability. If links are lost again and again
    /// while requests that need the capability wait, and none like them was ever answered, the
    /// server does not have it.
    pub(super) fn doubt(&mut self, id: ConnId) {
        let link = self.links.find(id).expect("the caller found it");
        let pool = &mut self.pipelines.pools[link.pool as usize];
        let upstream = pool.upstream;
        let server = &mut pool.servers[link.server as usize];
        let Proof::Open(times) = server.proof else { return };
        let mut sent = link.outstanding.iter().take_while(|message| message.end <= link.sent);
        if !sent.any(|message| !Capabilities::default().include(upstream.needs(message.ask))) {
            return;
        }
        server.proof = Proof::Open(times + 1);
        if times + 1 == limits::DOUBTS_MAX {
            server.proof = Proof::Disproved;
            server.capabilities = Some(Capabilities::default());
            let event = Event::CapabilityLost { server: server.plan.id };
            self.pipelines.actions.push_back(Action::Log(event));
        }
    }
}
