//! Options of one TCP connection: tcp(7).

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io;
use rustix::net::sockopt;

/// Sets `TCP_NODELAY`: written bytes are sent at once, even if earlier ones are unacknowledged.
pub fn set_nodelay(fd: impl AsFd, on: bool) -> io::Result<()> {
    sockopt::set_tcp_nodelay(fd, on)
}

/// Sends the pending ACK now, if there is one.
///
/// The value 2 flushes and leaves the connection interactive; 1 would also keep it in quick-ACK
/// mode, with an ACK of its own for each of the next segments (`tcp_sock_set_quickack` in the
/// kernel's `net/ipv4/tcp.c`). It acts on the ACK that is due now and must be called again after
/// later reads.
pub fn flush_ack(fd: impl AsFd) -> io::Result<()> {
    let value: libc::c_int = 2;
    // SAFETY: the descriptor is open while it is borrowed, and the pointer and length describe
    // `value`.
    let outcome = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_QUICKACK,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(last_error()) }
}

/// Probes a silent connection, so that the loss of its peer is noticed.
pub fn set_keepalive(fd: impl AsFd, idle: Duration, every: Duration, count: u32) -> io::Result<()> {
    let fd = fd.as_fd();
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, idle)?;
    sockopt::set_tcp_keepintvl(fd, every)?;
    sockopt::set_tcp_keepcnt(fd, count)
}

/// Ends a connection whose sent bytes stay unacknowledged for that time (`TCP_USER_TIMEOUT`).
pub fn set_user_timeout(fd: impl AsFd, timeout: Duration) -> io::Result<()> {
    sockopt::set_tcp_user_timeout(fd, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX))
}

fn last_error() -> io::Errno {
    let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    io::Errno::from_raw_os_error(code)
}
