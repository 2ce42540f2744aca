//! Traffic on connections: bytes in, bytes out, and the actions that the service asks for.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use metrics::SlowEntry;
use proto::Endpoints;
use proxy::connection::Connection;
use proxy::{Action, Closed, ConnId, Event, Side, Slices, limits};
use rustix::event::epoll;
use rustix::io::Errno;

use super::conn::{Conn, Read, Written};
use super::{Loop, endings, token};

impl Loop<'_> {
    pub(super) fn ready(&mut self, id: ConnId, flags: epoll::EventFlags) {
        let Some(conn) = self.conns.find(id) else { return };
        if conn.connecting {
            return self.finish_connect(id);
        }
        if conn.paused && flags.contains(epoll::EventFlags::ERR) {
            // It is not read, and gone: nothing else would say so, again and again.
            return self.report_lost(id);
        }
        if flags.contains(epoll::EventFlags::HUP) && (conn.paused || conn.ends_in_order(flags)) {
            // It is gone, but what it has sent is there still: to be read when it is resumed, or to
            // be sent on when its turn comes.
            conn.is_gone = true;
            self.write(id);
            return self.watch(id);
        }
        let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        if flags.contains(epoll::EventFlags::IN) || failed {
            if conn.ended {
                return self.report_lost(id);
            }
            self.read(id);
        }
        if flags.contains(epoll::EventFlags::OUT)
            && let Some(conn) = self.conns.find(id)
        {
            conn.blocked = false;
            self.write(id);
            self.watch(id);
        }
    }

    /// Reads what a socket has, within bounds: the others wait as well.
    fn read(&mut self, id: ConnId) {
        let mut ack_due = false;
        for _ in 0..READS_MAX {
            let Some(conn) = self.conns.find(id) else { return };
            if conn.paused {
                break;
            }
            match conn.read(self.blocks.writable()) {
                Read::Bytes(n) => {
                    self.service.handle_received(id, self.blocks.current(), n, self.now);
                    ack_due = self.run_actions(Some(id));
                    if n < limits::BLOCK {
                        break;
                    }
                    self.full_reads += 1;
                    if self.full_reads >= FULL_READS_MAX {
                        break;
                    }
                }
                Read::Nothing => break,
                Read::End => {
                    conn.ended = true;
                    if !id.is_client() {
                        // Before another link can get its place.
                        self.drop_conn(id);
                    }
                    self.service.handle_closed(id, Closed::Eof, self.now);
                    self.run_actions(None);
                    return self.watch(id);
                }
                Read::Gone => return self.report_lost(id),
            }
        }
        if ack_due {
            self.flush_ack(id);
        }
    }

    /// A connection is gone; the service is told.
    pub(super) fn report_lost(&mut self, id: ConnId) {
        self.report_closed(id, Closed::Reset);
    }

    fn report_closed(&mut self, id: ConnId, how: Closed) {
        // What is told of it says where it was.
        self.gone = self.drop_conn(id);
        self.service.handle_closed(id, how, self.now);
        self.run_actions(None);
        self.gone = None;
    }

    fn finish_connect(&mut self, id: ConnId) {
        let Some(conn) = self.conns.find(id) else { return };
        if let Err(error) = sys::connect::outcome(&conn.fd) {
            return self.report_closed(id, Closed::Unmade(error.raw_os_error()));
        }
        conn.connecting = false;
        self.watch(id);
        self.service.handle_connected(id, self.now);
        self.run_actions(None);
    }

    /// Writes every connection of a side that has something to say.
    pub(super) fn write_side(&mut self, side: Side) {
        while let Some(id) = self.service.poll_transmit(side) {
            match self.conns.find(id) {
                Some(conn) if conn.blocked => self.service.handle_transmitted(id, 0, self.now),
                Some(_) => self.write(id),
                None => {}
            }
        }
    }

    /// Writes what a socket takes, within bounds: the others wait as well.
    fn write(&mut self, id: ConnId) {
        let mut written = 0;
        loop {
            let mut slices = Slices::default();
            self.service.transmit(id, &mut slices);
            if slices.is_empty() {
                return;
            }
            let offered: usize = slices.iter().map(|slice| slice.len()).sum();
            let Some(conn) = self.conns.find(id) else { return };
            let taken = match conn.write(&slices) {
                // Nobody reads these answers, but what else was asked is still to be done.
                _ if conn.is_gone => offered,
                Written::Some(n) => n,
                Written::Blocked => 0,
                Written::Gone if conn.keeps_what_came() => {
                    // The hang-up is seen here before the kernel's event says it.
                    conn.is_gone = true;
                    offered
                }
                Written::Gone => return self.report_lost(id),
            };
            written += taken;
            // As long as its peer reads, the socket may never be full. It is found writable at once
            // when the others have had their turn.
            conn.blocked = taken < offered || written >= WRITTEN_MAX;
            let is_blocked = conn.blocked;
            // Told also when it took nothing: what waits now may be kept in another way.
            self.service.handle_transmitted(id, taken, self.now);
            self.run_actions(None);
            if is_blocked {
                return self.watch(id);
            }
        }
    }

    /// Carries out the service's actions. The pending ACK of `reading` is not flushed but reported:
    /// more may be read from it first.
    pub(super) fn run_actions(&mut self, reading: Option<ConnId>) -> bool {
        let mut ack_due = false;
        while let Some(action) = self.service.poll_action() {
            match action {
                Action::FlushAck(id) if reading == Some(id) => ack_due = true,
                Action::FlushAck(id) => self.flush_ack(id),
                Action::Connect { link, server } => self.connect(link, server),
                Action::Close(id) => self.close(id),
                Action::End(id) => self.end(id),
                Action::Pause(id) => self.set_paused(id, true),
                Action::Resume(id) => self.set_paused(id, false),
                Action::LookUpEndpoints(id) => self.look_up_endpoints(id),
                Action::Inquire { client, asking } => self.inquire(client, *asking),
                Action::Tap { client, pool, tenant, database, text } => {
                    self.show(client, (pool, tenant), database, &text);
                }
                Action::Report(report) => self.control.report(report),
                Action::Log(event) => self.log(event),
                Action::Slow { client, entry } => self.note_slow(client, *entry),
                Action::InPieces { client, late_us, is_late } => {
                    self.note_in_pieces(client, late_us, is_late);
                }
                Action::Access { client, line } => {
                    let name = self.conns.find(client).map_or("", Conn::name);
                    self.control.access(&line, name);
                }
            }
        }
        ack_due
    }

    fn log(&mut self, event: Event) {
        if let Event::Connection(what) = &event {
            return self.log_connection(what);
        }
        let from = match &event {
            Event::LoginFailed { client, .. }
            | Event::ClientUnread { client, .. }
            | Event::ClientStalled { client, .. } => {
                self.conns.find(*client).and_then(|it| it.peer())
            }
            _ => None,
        };
        self.control.log(event, from);
    }

    #[cold]
    fn log_connection(&mut self, what: &Connection) {
        let id = match what {
            Connection::Came { client, .. } => *client,
            Connection::Left(left) => left.client,
            Connection::LinkMade { link, .. } | Connection::LinkLost { link, .. } => *link,
        };
        let gone = self.gone.as_mut().filter(|conn| conn.id == id);
        match self.conns.find(id).or(gone) {
            Some(conn) => {
                let ours = sys::listen::local_name(&conn.fd);
                self.control.log_connection(what, [conn.name(), &ours]);
            }
            None => self.control.log_connection(what, ["", ""]),
        }
    }

    /// Writes a slow request to the shared memory, with the address of its client.
    fn note_slow(&mut self, client: ConnId, mut entry: SlowEntry) {
        let Some(slow_log) = self.slow_log else { return };
        if let Some(conn) = self.conns.find(client) {
            entry.client = conn.name().to_string();
        }
        slow_log.push(&entry);
    }

    /// Shows a request to clients that look, at any worker.
    #[cold]
    fn show(&mut self, client: ConnId, scope: (u32, u32), database: u32, text: &[u8]) {
        let Some(metrics) = self.metrics else { return };
        let from = self.conns.find(client).map_or("", Conn::name);
        let us = self.now.0.wrapping_add(metrics.registry().process().unix_ahead_us);
        let (seconds, rest) = (us / 1_000_000, us % 1_000_000);
        let mut line = format!("{seconds}.{rest:06} [{database} {from}] ").into_bytes();
        line.extend_from_slice(text);
        metrics.registry().tap(metrics.slot()).push(scope.0, scope.1, &line);
    }

    /// Counts a request in pieces for the address of its client.
    fn note_in_pieces(&mut self, client: ConnId, late_us: u64, is_late: bool) {
        let Some(conn) = self.conns.find(client) else { return };
        if conn.source.is_none() {
            conn.source = conn.peer().map(Box::new);
        }
        if let Some(address) = conn.source.as_deref() {
            self.in_pieces.note(*address, (late_us, is_late), self.now);
        }
    }

    fn flush_ack(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.find(id)
            && conn.tcp
        {
            // Nothing is lost if it fails: the ACK goes out later by itself.
            let _ = sys::tcp::flush_ack(&conn.fd);
        }
    }

    fn look_up_endpoints(&mut self, id: ConnId) {
        let Some(conn) = self.conns.find(id) else { return };
        let endpoints = Endpoints {
            from: sys::listen::peer_name(&conn.fd),
            to: sys::listen::local_name(&conn.fd),
            descriptor: conn.fd.as_raw_fd(),
            address: conn.peer().map(octets),
        };
        self.service.handle_endpoints(id, endpoints, self.now);
        self.has_new_endpoints = true;
    }

    fn set_paused(&mut self, id: ConnId, paused: bool) {
        if let Some(conn) = self.conns.find(id) {
            conn.paused = paused;
            self.watch(id);
        }
    }

    /// Closes a connection of our own will.
    fn close(&mut self, id: ConnId) {
        self.connects.forget(id);
        if let Some(conn) = self.drop_conn(id)
            && id.is_client()
            && !conn.ended
        {
            drop(endings::end(conn.fd, self.blocks.writable(), self.now));
        }
    }

    /// Ends the connection of a client that has been told why.
    fn end(&mut self, id: ConnId) {
        if let Some(conn) = self.drop_conn(id)
            && !conn.ended
        {
            let _ = epoll::delete(&self.epoll, &conn.fd);
            self.end_told(conn.fd);
        }
    }

    /// Reads on for a while what a client sends that has been told why it is closed.
    pub(super) fn end_told(&mut self, fd: OwnedFd) {
        self.endings.add(fd, self.blocks.writable(), self.now);
        self.endings.keep_newest(self.refused.room());
    }

    /// Forgets a connection, and counts one client less if it was one.
    pub(super) fn drop_conn(&mut self, id: ConnId) -> Option<Conn> {
        let conn = self.conns.remove(id);
        if conn.is_some() && id.is_client() {
            self.acceptor.left();
        }
        conn
    }

    /// Tells the kernel what to watch a connection for, if that changed.
    pub(super) fn watch(&mut self, id: ConnId) {
        let Some(conn) = self.conns.find(id) else { return };
        if conn.is_gone && (conn.paused || conn.ended) {
            // The kernel would say that it is gone again and again, whatever it is asked.
            let _ = epoll::delete(&self.epoll, &conn.fd);
            conn.watched = epoll::EventFlags::empty();
            return;
        }
        let wanted = conn.interest();
        if conn.watched == wanted {
            return;
        }
        let outcome = if conn.watched.is_empty() {
            // A connection that was never watched, or is not any more: the kernel knows which.
            match epoll::add(&self.epoll, &conn.fd, token(id.to_u64()), wanted) {
                Err(Errno::EXIST) => {
                    epoll::modify(&self.epoll, &conn.fd, token(id.to_u64()), wanted)
                }
                other => other,
            }
        } else {
            epoll::modify(&self.epoll, &conn.fd, token(id.to_u64()), wanted)
        };
        conn.watched = wanted;
        if outcome.is_err() {
            self.report_lost(id);
        }
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Blocks read from one socket before the others have their turn.
const READS_MAX: usize = 4;
/// After so many full blocks in a turn, one block of each socket is read, and then the turn ends.
pub(super) const FULL_READS_MAX: u32 = 4;
/// Bytes written to one socket before the others have their turn.
const WRITTEN_MAX: usize = 128 * 1024;
