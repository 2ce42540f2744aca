//! Clients that come in: from a listener, with or without a PROXY header, or from another worker.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use metrics::WorkerCounter;
use proxy::plan::Plan;
use proxy::{ConnId, Time, limits};
use rustix::event::epoll;

use super::accept::Arrival;
use super::conn::{self, Conn, Read};
use super::control::LoopEvent;
use super::header::{HeaderReader, Progress};
use super::{HEADER_TOKEN, Loop, token};
use crate::ipc::client_state::ClientState;

/// A socket that is to be a client.
struct Socket {
    fd: OwnedFd,
    tcp: bool,
    /// The client's address by its PROXY header.
    from: Option<IpAddr>,
}

impl Loop<'_> {
    /// New connections, as many as are for us. False: none.
    pub(super) fn accept_waiting(&mut self) -> bool {
        let mut came = false;
        while let Some(arrival) = self.acceptor.next(&self.epoll, self.now) {
            came = true;
            match arrival.has_header {
                true => self.expect_header(arrival),
                false => {
                    let accepted = self.service.handle_accept(arrival.pool, self.now);
                    let socket = Socket { fd: arrival.fd, tcp: arrival.tcp, from: None };
                    self.register(accepted, socket, b"");
                }
            }
        }
        came
    }

    /// Makes a socket a client of the service. `first`: the bytes of it that have been read.
    fn register(&mut self, accepted: Result<ConnId, Vec<u8>>, socket: Socket, first: &[u8]) {
        let Socket { fd, tcp, from } = socket;
        match accepted {
            Ok(id) => {
                let from = from.map(Box::new);
                let mut conn = Conn::new(id, fd, tcp, false);
                conn.from = from;
                self.conns.insert(conn);
                if !first.is_empty() {
                    self.blocks.writable()[..first.len()].copy_from_slice(first);
                    self.service.handle_received(id, self.blocks.current(), first.len(), self.now);
                    self.run_actions(None);
                }
                self.watch(id);
            }
            Err(refusal) => {
                match self.refused.add(fd, refusal, first, self.now) {
                    Some(fd) => self.end_told(fd),
                    None => self.endings.keep_newest(self.refused.room()),
                }
                self.acceptor.left();
            }
        }
    }

    /// A client from another worker.
    pub(super) fn adopt(&mut self, fd: OwnedFd, client: ClientState) {
        let tcp = sys::listen::local_address(&fd).is_ok();
        self.acceptor.entered();
        let accepted = self.service.handle_adopted(client.passed, self.now);
        self.register(accepted, Socket { fd, tcp, from: client.from }, b"");
    }

    /// A client that must begin with a PROXY header.
    fn expect_header(&mut self, arrival: Arrival) {
        let at = self.header_readers.add(arrival, self.now);
        let Some(reader) = self.header_readers.find(at) else { return };
        let data = token(HEADER_TOKEN + at as u64);
        if epoll::add(&self.epoll, &reader.fd, data, epoll::EventFlags::IN).is_err() {
            self.drop_reader(at);
        }
    }

    /// Reads from a client whose PROXY header has not come.
    pub(super) fn read_header(&mut self, at: usize) {
        let Some(reader) = self.header_readers.find(at) else { return };
        let block = self.blocks.writable();
        match conn::read(&reader.fd, block) {
            Read::Bytes(n) => match reader.feed(&block[..n]) {
                Progress::Partial => {}
                Progress::Whole(used) => {
                    let rest = block[used..n].to_vec();
                    self.finish_header(at, &rest);
                }
                Progress::Broken(why) => self.reject_header(at, why),
            },
            Read::Nothing => {}
            // A balancer's health check sends no header, or a part of it.
            Read::End | Read::Gone => self.drop_reader(at),
        }
    }

    /// The header is whole; the bytes behind it are the client's.
    fn finish_header(&mut self, at: usize, rest: &[u8]) {
        debug_assert!(rest.len() <= limits::BLOCK);
        let Some(reader) = self.header_readers.remove(at) else { return };
        let from = reader.source();
        let HeaderReader { fd, pool, tcp, .. } = reader;
        // It will be watched anew, as a connection.
        let _ = epoll::delete(&self.epoll, &fd);
        let accepted = self.service.handle_begun(pool, self.now);
        self.register(accepted, Socket { fd, tcp, from }, rest);
    }

    fn reject_header(&mut self, at: usize, why: &'static str) {
        let from = self.header_readers.find(at).and_then(|reader| reader.from);
        self.tell_broken(from, why);
        self.drop_reader(at);
    }

    fn tell_broken(&mut self, from: Option<IpAddr>, why: &'static str) {
        if let Some(counters) = &self.counters {
            counters.add(WorkerCounter::HeadersBroken, 1);
        }
        self.control.log_loop_event(LoopEvent::HeaderBroken { from, why });
    }

    fn drop_reader(&mut self, at: usize) {
        if self.header_readers.remove(at).is_some() {
            self.acceptor.left();
        }
    }

    /// Clients that did not send their header in time are closed.
    pub(super) fn drop_overdue_readers(&mut self) {
        let now: Time = self.now;
        while let Some(reader) = self.header_readers.overdue(now) {
            if !reader.is_silent() {
                let why = "an incomplete PROXY header";
                self.tell_broken(reader.from, why);
            }
            self.acceptor.left();
        }
    }

    /// Clients whose header has not come and whose pool has gone are closed.
    pub(super) fn drop_readers_of_gone_pools(&mut self, plan: &Plan) {
        let is_known = |pool: u32| plan.pools.iter().any(|it| it.id == pool);
        for at in self.header_readers.those(|reader| !is_known(reader.pool)) {
            self.drop_reader(at);
        }
    }

    /// Nobody is accepted any more. Clients that have sent a part of their header may send the
    /// rest; the others have asked nothing, and are closed.
    pub(super) fn finish_readers(&mut self) {
        for at in self.header_readers.those(|_| true) {
            self.read_header(at);
        }
        for at in self.header_readers.those(HeaderReader::is_silent) {
            self.drop_reader(at);
        }
    }
}
