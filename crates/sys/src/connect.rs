//! Outgoing connections: connect(2) without waiting.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Makes a TCP socket for `address`, not connected yet, so that its options can be set first.
pub fn tcp_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    net::socket_with(family, SocketType::STREAM, FLAGS, None)
}

/// Makes a unix socket, not connected yet.
pub fn unix_socket() -> io::Result<OwnedFd> {
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
}

/// Begins to connect. False means in progress: the socket becomes writable when the result is
/// known.
pub fn tcp(fd: impl AsFd, address: &SocketAddr) -> io::Result<bool> {
    under_way(net::connect(fd, address))
}

/// Begins to connect a unix socket; see [`tcp`].
pub fn unix(fd: impl AsFd, path: &Path) -> io::Result<bool> {
    under_way(net::connect(fd, &SocketAddrUnix::new(path)?))
}

/// Makes a blocking connection to a unix socket. Waits at most `limit` for room in the listener's
/// queue: the kernel waits no longer for room than for sending (`unix_stream_connect` in
/// `net/unix`).
pub fn unix_within(path: &Path, limit: Duration) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A limit of zero would mean no limit.
    let limit = limit.max(Duration::from_millis(1));
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(limit))?;
    net::connect(&fd, &address)?;
    Ok(fd)
}

/// Returns the result of a connect that was in progress.
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
