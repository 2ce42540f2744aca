//! Outgoing connections: where servers are, how a connect begins, and the pace that all workers
//! keep together when many begin at once.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use metrics::WorkerCounter;
use proxy::{Closed, ConnId, Time};
use rustix::io::Errno;

use super::Loop;
use super::conn::Conn;
use crate::scoreboard::Scoreboard;

/// Where a server is, ready to be connected to, with the options of its links.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: TargetAddress,
    pub nodelay: bool,
    pub keepalive: bool,
}

/// A resolved address.
#[derive(Clone, Debug)]
pub enum TargetAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// The server's name does not resolve.
    None,
}

/// The settings that connects need.
#[derive(Default)]
pub struct Connects {
    /// By the server's id.
    targets: BTreeMap<u32, Target>,
    /// The bucket that all workers take from.
    scoreboard: Option<Scoreboard>,
    /// For all workers together; 0 is any number.
    per_second: u64,
    /// Links in the order of their turn; one that was closed meanwhile is not in `servers`.
    waiting: VecDeque<ConnId>,
    servers: HashMap<ConnId, u32>,
    /// When the first of them is to ask again.
    due: Option<Time>,
}

impl Connects {
    pub fn share(&mut self, scoreboard: Scoreboard) {
        self.scoreboard = Some(scoreboard);
    }

    /// Servers are there from now on. Those of before stay: what has left the plan may still be
    /// answering.
    pub fn set_targets(&mut self, targets: BTreeMap<u32, Target>, per_second: u64) {
        self.targets.extend(targets);
        self.per_second = per_second;
    }

    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// A link that waits no more.
    pub fn forget(&mut self, link: ConnId) {
        self.servers.remove(&link);
    }

    /// Leave to connect now, or how long to wait.
    fn take_token(&self) -> Result<(), u64> {
        let Some(scoreboard) = &self.scoreboard else { return Ok(()) };
        if self.per_second == 0 {
            return Ok(());
        }
        scoreboard.take_connect_token(sys::clock::monotonic_us(), self.per_second)
    }
}

impl Loop<'_> {
    /// Begins to connect, or waits for its turn.
    pub(super) fn connect(&mut self, link: ConnId, server: u32) {
        let target = self.connects.targets.get(&server);
        if target.is_some_and(|target| matches!(target.address, TargetAddress::None)) {
            return self.service.handle_closed(link, Closed::Reset, self.now);
        }
        if !self.connects.waiting.is_empty() {
            return self.queue(link, server);
        }
        match self.connects.take_token() {
            Ok(()) => self.begin(link, server),
            Err(wait) => {
                self.connects.due = Some(self.now.after(wait));
                self.queue(link, server);
            }
        }
    }

    fn queue(&mut self, link: ConnId, server: u32) {
        if self.connects.waiting.len() == WAITING_MAX {
            return self.service.handle_closed(link, Closed::Own, self.now);
        }
        if let Some(counters) = &self.counters {
            counters.add(WorkerCounter::ConnectsWaited, 1);
        }
        // It is not the server that is late meanwhile.
        self.service.handle_connecting(link, self.now.after(AS_LONG_AS_IT_TAKES_US));
        self.connects.waiting.push_back(link);
        self.connects.servers.insert(link, server);
    }

    /// Begins those whose turn it is.
    pub(super) fn connect_waiting(&mut self) {
        if self.connects.due.is_none_or(|due| due > self.now) {
            return;
        }
        self.connects.due = None;
        while let Some(link) = self.connects.waiting.front().copied() {
            if self.connects.servers.contains_key(&link)
                && let Err(wait) = self.connects.take_token()
            {
                self.connects.due = Some(self.now.after(wait));
                break;
            }
            self.connects.waiting.pop_front();
            if let Some(server) = self.connects.servers.remove(&link) {
                self.service.handle_connecting(link, self.now);
                self.begin(link, server);
            }
        }
        self.run_actions(None);
    }

    fn begin(&mut self, link: ConnId, server: u32) {
        let target = self.connects.targets.get(&server);
        match begin(target.expect("each server of a plan has a target")) {
            Ok(Begun { fd, established, tcp }) => {
                self.conns.insert(Conn::new(link, fd, tcp, !established));
                self.watch(link);
                if established {
                    self.service.handle_connected(link, self.now);
                }
            }
            Err(error) => {
                let how = match is_ours(error) {
                    true => Closed::Own,
                    false => Closed::Unmade(error.raw_os_error()),
                };
                self.service.handle_closed(link, how, self.now);
            }
        }
    }
}

/// Whether a connect failed for want of something of our own.
fn is_ours(error: Errno) -> bool {
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    ours.contains(&error)
}

/// A socket that connects, or has connected.
struct Begun {
    fd: OwnedFd,
    established: bool,
    tcp: bool,
}

fn begin(target: &Target) -> rustix::io::Result<Begun> {
    match &target.address {
        TargetAddress::Tcp(address) => {
            let fd = sys::connect::tcp_socket(address)?;
            sys::tcp::set_nodelay(&fd, target.nodelay)?;
            if target.keepalive {
                sys::tcp::set_keepalive(&fd, KEEPALIVE_IDLE, KEEPALIVE_EVERY, KEEPALIVE_COUNT)?;
            }
            sys::tcp::set_user_timeout(&fd, USER_TIMEOUT)?;
            let established = sys::connect::tcp(&fd, address)?;
            Ok(Begun { fd, established, tcp: true })
        }
        TargetAddress::Unix(path) => {
            let fd = sys::connect::unix_socket()?;
            let established = sys::connect::unix(&fd, path)?;
            Ok(Begun { fd, established, tcp: false })
        }
        TargetAddress::None => Err(Errno::DESTADDRREQ),
    }
}

/// Connects that may wait for their turn; one more fails.
const WAITING_MAX: usize = 16_384;
/// When the connect of a link that waits for its turn begins, for all that is known then.
const AS_LONG_AS_IT_TAKES_US: u64 = 3_600_000_000;
/// A silent link is probed after this long …
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// … every so often …
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// … and given up after so many probes.
const KEEPALIVE_COUNT: u32 = 3;
/// A link whose bytes stay unacknowledged for this long is given up; deadlines come long before.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_without_room_of_our_own_is_no_fault_of_the_server() {
        let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
        assert!(ours.into_iter().all(is_ours));
        assert!(![Errno::CONNREFUSED, Errno::NETUNREACH, Errno::NOENT].into_iter().any(is_ours));
    }

    #[test]
    fn a_token_is_needed_where_connects_are_limited_and_shared() {
        let memory = sys::memory::shared("test", Scoreboard::words(1, 1)).unwrap();
        let scoreboard = Scoreboard::create(sys::memory::map(&memory).unwrap(), 1, 1);
        let mut connects = Connects::default();
        let take = |connects: &Connects| (0..100).filter(|_| connects.take_token().is_ok()).count();
        connects.set_targets(BTreeMap::new(), 10);
        assert_eq!(take(&connects), 100, "alone");
        connects.share(scoreboard);
        assert!(take(&connects) < 50);
        connects.set_targets(BTreeMap::new(), 0);
        assert_eq!(take(&connects), 100, "without a limit");
    }
}
