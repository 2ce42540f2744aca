//! Clients that come in: from a listener, with or without a PROXY header, or from another worker.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use metrics::Worker;
use proxy::plan::Plan;
use proxy::{ConnId, Time};
use rustix::event::epoll;

use super::accept::{Arrival, refuse};
use super::blocks::BLOCK;
use super::conn::{self, Conn, Read};
use super::control::{Handover, Note};
use super::header::{Greeter, Verdict};
use super::{GREETER, Loop, token};

impl Loop<'_> {
    /// New connections, as many as are for us. False: none.
    pub(super) fn accept_waiting(&mut self) -> bool {
        let mut came = false;
        while let Some(arrival) = self.acceptor.next(&self.epoll, self.now) {
            came = true;
            match arrival.has_header {
                true => self.greet(arrival),
                false => {
                    let welcome = self.service.handle_accept(arrival.pool, self.now);
                    self.seat(welcome, arrival.fd, arrival.tcp, None, b"");
                }
            }
        }
        came
    }

    /// Makes a socket a client of the service. `from`: its address by its PROXY header; `first`:
    /// the bytes of it that have been read already.
    fn seat(
        &mut self,
        welcome: Result<ConnId, Vec<u8>>,
        fd: OwnedFd,
        tcp: bool,
        from: Option<IpAddr>,
        first: &[u8],
    ) {
        match welcome {
            Ok(id) => {
                let from = from.map(Box::new);
                self.conns.insert(Conn { from, ..Conn::new(id, fd, tcp, false) });
                if !first.is_empty() {
                    self.blocks.writable()[..first.len()].copy_from_slice(first);
                    self.service.handle_received(id, self.blocks.current(), first.len(), self.now);
                    self.run_actions(None);
                }
                self.watch(id);
            }
            Err(refusal) => {
                refuse(&fd, &refusal);
                self.acceptor.left();
            }
        }
    }

    /// A client from another worker.
    pub(super) fn adopt(&mut self, fd: OwnedFd, client: Handover) {
        let tcp = sys::listen::local_address(&fd).is_ok();
        self.acceptor.entered();
        let welcome = self.service.handle_adopted(client.passed, self.now);
        self.seat(welcome, fd, tcp, client.from, b"");
    }

    /// A client that must begin with a PROXY header.
    fn greet(&mut self, arrival: Arrival) {
        let at = self.greeters.add(arrival, self.now);
        let Some(greeter) = self.greeters.find(at) else { return };
        let data = token(GREETER + at as u64);
        if epoll::add(&self.epoll, &greeter.fd, data, epoll::EventFlags::IN).is_err() {
            self.dismiss(at);
        }
    }

    /// Something has come from a client whose header has not.
    pub(super) fn hear(&mut self, at: usize) {
        let Some(greeter) = self.greeters.find(at) else { return };
        let block = self.blocks.writable();
        match conn::read(&greeter.fd, block) {
            Read::Bytes(n) => match greeter.hear(&block[..n]) {
                Verdict::Partial => {}
                Verdict::Whole(used) => {
                    let rest = block[used..n].to_vec();
                    self.introduce(at, &rest);
                }
                Verdict::Broken(why) => self.turn_away(at, why),
            },
            Read::Nothing => {}
            // A balancer that looks whether we are there says nothing, or not all of it.
            Read::End | Read::Gone => self.dismiss(at),
        }
    }

    /// The header is whole; what came behind it is the client's.
    fn introduce(&mut self, at: usize, rest: &[u8]) {
        debug_assert!(rest.len() <= BLOCK);
        let Some(greeter) = self.greeters.remove(at) else { return };
        let from = greeter.source();
        let Greeter { fd, pool, tcp, .. } = greeter;
        // It is watched anew, as a connection.
        let _ = epoll::delete(&self.epoll, &fd);
        let welcome = self.service.handle_accept(pool, self.now);
        self.seat(welcome, fd, tcp, from, rest);
    }

    fn turn_away(&mut self, at: usize, why: &'static str) {
        let from = self.greeters.find(at).and_then(|greeter| greeter.from);
        self.tell_broken(from, why);
        self.dismiss(at);
    }

    fn tell_broken(&mut self, from: Option<IpAddr>, why: &'static str) {
        if let Some(counters) = &self.counters {
            counters.add(Worker::HeadersBroken, 1);
        }
        self.control.note(Note::HeaderBroken { from, why });
    }

    fn dismiss(&mut self, at: usize) {
        if self.greeters.remove(at).is_some() {
            self.acceptor.left();
        }
    }

    /// Clients that did not send their header in time are closed.
    pub(super) fn give_up_greeters(&mut self) {
        let now: Time = self.now;
        while let Some(greeter) = self.greeters.overdue(now) {
            if !greeter.is_silent() {
                let why = "a PROXY header whose end did not come";
                self.tell_broken(greeter.from, why);
            }
            self.acceptor.left();
        }
    }

    /// All clients whose header has not come are closed: they have asked nothing.
    /// Those who came for a pool that is no more.
    pub(super) fn dismiss_strangers(&mut self, plan: &Plan) {
        let is_known = |pool: u32| plan.pools.iter().any(|it| it.row == pool);
        for at in self.greeters.those(|greeter| !is_known(greeter.pool)) {
            self.dismiss(at);
        }
    }

    pub(super) fn dismiss_greeters(&mut self) {
        for _ in 0..self.greeters.clear() {
            self.acceptor.left();
        }
    }
}
