//! One listening socket: what its connections get, and whether the kernel watches it for us.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use ipnet::IpNet;
use proxy::Time;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{self, Errno};

use super::super::{LISTENER_TOKEN, token};

/// A listener: its socket, and what its connections get.
#[derive(Debug)]
pub struct Listener {
    /// The key that finds it again when the listeners change.
    pub id: u32,
    /// `None`: the socket that this id has already.
    pub fd: Option<OwnedFd>,
    /// The id of its pool.
    pub pool: u32,
    pub tcp: bool,
    pub nodelay: bool,
    pub keepalive: bool,
    /// Other workers have it too.
    pub shared: bool,
    /// Clients from these networks begin with a PROXY header.
    pub proxy_protocol: Vec<IpNet>,
    /// What a client reads for which there is no descriptor.
    pub no_room: Vec<u8>,
}

/// A client that has come in.
pub struct Arrival {
    pub fd: OwnedFd,
    pub pool: u32,
    pub tcp: bool,
    /// A PROXY header comes first.
    pub has_header: bool,
    pub from: Option<IpAddr>,
}

/// A listening socket, and whether the kernel watches it for us.
pub(super) struct ListeningSocket {
    pub listener: Listener,
    pub fd: OwnedFd,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The kernel says when a client waits.
    Watched,
    /// It does not: clients that wait are for others now.
    Aside,
    /// It does not, until then: accepting failed.
    Resting(Time),
    /// It is accepted empty, and then closed.
    Leaving,
}

impl ListeningSocket {
    pub fn accept(&self) -> io::Result<Arrival> {
        let listener = &self.listener;
        let (fd, from) = match listener.proxy_protocol.is_empty() {
            true => (sys::listen::accept(&self.fd)?, None),
            false => sys::listen::accept_from(&self.fd)?,
        };
        let believed = |from: IpAddr| listener.proxy_protocol.iter().any(|net| net.contains(&from));
        if listener.tcp {
            // Said to each socket, never left to what the listener's own flag may hand down. A
            // connection that is gone already fails here and is noticed when it is read.
            let _ = sys::tcp::set_nodelay(&fd, listener.nodelay);
            if listener.keepalive {
                let _ = rustix::net::sockopt::set_socket_keepalive(&fd, true);
            }
        }
        let has_header = from.is_some_and(believed);
        Ok(Arrival { fd, pool: listener.pool, tcp: listener.tcp, has_header, from })
    }

    pub fn watch(&mut self, epoll: &OwnedFd, at: usize, exclusive: bool, now: Time) {
        let flags = if exclusive && self.listener.shared {
            sys::kernel::EXCLUSIVE
        } else {
            epoll::EventFlags::empty()
        };
        let data = token(LISTENER_TOKEN + at as u64);
        self.state = match epoll::add(epoll, &self.fd, data, epoll::EventFlags::IN | flags) {
            Ok(()) | Err(Errno::EXIST) => State::Watched,
            // The kernel has no room for it yet.
            Err(_) => State::Resting(now.after(REST_US)),
        };
    }

    pub fn unwatch(&mut self, epoll: &OwnedFd) {
        if self.state == State::Watched {
            // It cannot fail for what is watched.
            let _ = epoll::delete(epoll, &self.fd);
            self.state = State::Aside;
        }
    }
}

/// The listeners at which somebody waits now.
pub(super) fn waiting(sockets: &[Option<ListeningSocket>]) -> Vec<usize> {
    let looked_at =
        |socket: &&ListeningSocket| matches!(socket.state, State::Watched | State::Aside);
    let open = || sockets.iter().flatten().filter(looked_at);
    let mut polled: Vec<PollFd<'_>> =
        open().map(|socket| PollFd::new(&socket.fd, PollFlags::IN)).collect();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut polled, Some(&at_once)).is_err() {
        return Vec::new();
    }
    let numbers = sockets
        .iter()
        .enumerate()
        .filter_map(|(at, socket)| socket.as_ref().filter(|socket| looked_at(socket)).map(|_| at));
    let ready = polled.iter().map(|polled| !polled.revents().is_empty());
    numbers.zip(ready).filter(|(_, ready)| *ready).map(|(at, _)| at).collect()
}

/// How long a listener rests when there are no descriptors, microseconds.
pub(super) const REST_US: u64 = 100_000;
