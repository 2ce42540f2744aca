//! Outgoing connections: connect(2) without waiting.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A TCP socket for `address`, not connected yet, so that its options can be set first.
pub fn tcp_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    net::socket_with(family, SocketType::STREAM, FLAGS, None)
}

/// A unix socket, not connected yet.
pub fn unix_socket() -> io::Result<OwnedFd> {
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
}

/// Begins to connect. False: it is under way, and the socket becomes writable when it is decided.
pub fn tcp(fd: impl AsFd, address: &SocketAddr) -> io::Result<bool> {
    under_way(net::connect(fd, address))
}

/// The same to a unix socket.
pub fn unix(fd: impl AsFd, path: &Path) -> io::Result<bool> {
    under_way(net::connect(fd, &SocketAddrUnix::new(path)?))
}

/// How a connect that was under way ended.
pub fn outcome(fd: impl AsFd) -> io::Result<()> {
    sockopt::socket_error(fd)?
}

fn under_way(outcome: io::Result<()>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(io::Errno::INPROGRESS) => Ok(false),
        Err(error) => Err(error),
    }
}
