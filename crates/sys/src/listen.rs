//! Listening sockets: socket(2), bind(2), listen(2), accept4(2), unix(7).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;
use rustix::io;
use rustix::net::{
    self, AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Makes a listening TCP socket, non-blocking. Port 0 lets the kernel choose.
pub fn tcp(address: SocketAddr, backlog: i32, reuseport: bool) -> io::Result<OwnedFd> {
    let fd = tcp_bound(address, reuseport)?;
    listen(&fd, backlog)?;
    Ok(fd)
}

/// Makes a bound TCP socket, to which nobody can connect yet.
pub fn tcp_bound(address: SocketAddr, reuseport: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if reuseport {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    net::bind(&fd, &address)?;
    Ok(fd)
}

/// Lets clients connect to a bound socket, or changes how many may wait in its queue.
pub fn listen(fd: impl AsFd, backlog: i32) -> io::Result<()> {
    net::listen(fd, backlog)
}

/// Makes a listening unix socket, non-blocking. A socket file without a listener is replaced. A
/// socket file in use, or a file that is not a socket, fails with `ADDRINUSE`.
pub fn unix(path: &Path, mode: Option<u32>, backlog: i32) -> io::Result<OwnedFd> {
    let fd = unix_bound(path, mode)?;
    listen(&fd, backlog)?;
    Ok(fd)
}

/// Makes a bound unix socket, to which nobody can connect yet.
pub fn unix_bound(path: &Path, mode: Option<u32>) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    if let Err(error) = net::bind(&fd, &address) {
        if error != io::Errno::ADDRINUSE || !is_socket(path)? || is_alive(&address)? {
            return Err(error);
        }
        rustix::fs::unlink(path)?;
        net::bind(&fd, &address)?;
    }
    if let Some(mode) = mode {
        set_mode(path, mode)?;
    }
    Ok(fd)
}

/// Sets the mode of a unix socket's file, which determines the users that may connect.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

/// Removes a socket file without a listener.
pub fn remove_unix(path: &Path) -> io::Result<()> {
    if is_socket(path)? && !is_alive(&SocketAddrUnix::new(path)?)? {
        rustix::fs::unlink(path)?;
    }
    Ok(())
}

/// Accepts the next waiting connection, non-blocking.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    net::accept_with(listener, FLAGS)
}

/// Accepts the next waiting connection and returns its source address; None for a unix socket.
pub fn accept_from(listener: impl AsFd) -> io::Result<(OwnedFd, Option<IpAddr>)> {
    let (fd, address) = net::acceptfrom_with(listener, FLAGS)?;
    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
    // A socket for both families reports an IPv4 client as ::ffff:a.b.c.d.
    Ok((fd, address.map(|address| address.ip().to_canonical())))
}

/// Returns whether the peer of a unix connection runs as our own user or as root.
pub fn is_of_our_user(fd: impl AsFd) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    peer_user(fd).is_ok_and(|user| user == ours || user == 0)
}

/// Returns the user of the peer of a unix connection (`SO_PEERCRED`). A peer in another PID
/// namespace has the process id 0 here, which rustix cannot represent, so only the user is read.
pub fn peer_user(fd: impl AsFd) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `len`
    // bytes, the size of `peer`, which is plain numbers.
    let outcome = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if outcome != 0 {
        let code = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(io::Errno::from_raw_os_error(code));
    }
    if (len as usize) < size_of::<libc::ucred>() {
        return Err(io::Errno::INVAL);
    }
    Ok(peer.uid)
}

/// Returns the address that a TCP socket is bound to.
pub fn local_address(fd: impl AsFd) -> io::Result<SocketAddr> {
    let address = net::getsockname(fd)?;
    SocketAddr::try_from(address).map_err(|_| io::Errno::AFNOSUPPORT)
}

/// Returns the address that a socket is bound to, as `address:port`; for a unix socket, as
/// `path:0`.
pub fn local_name(fd: impl AsFd) -> String {
    net::getsockname(fd).map_or_else(|_| String::new(), name)
}

/// Returns the address that a socket is connected to, in the form of [`local_name`].
pub fn peer_name(fd: impl AsFd) -> String {
    net::getpeername(fd).ok().flatten().map_or_else(String::new, name)
}

fn name(address: SocketAddrAny) -> String {
    match (SocketAddr::try_from(address.clone()), SocketAddrUnix::try_from(address)) {
        (Ok(address), _) => {
            SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
        }
        (_, Ok(address)) => {
            let path = address.path_bytes().unwrap_or_default();
            format!("{}:0", String::from_utf8_lossy(path))
        }
        _ => String::new(),
    }
}

/// Returns whether the file is a socket. No other file may ever be removed.
fn is_socket(path: &Path) -> io::Result<bool> {
    let mode = rustix::fs::lstat(path)?.st_mode;
    Ok(rustix::fs::FileType::from_raw_mode(mode).is_socket())
}

/// Returns whether a process listens at the address.
fn is_alive(address: &SocketAddrUnix) -> io::Result<bool> {
    let probe = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    match net::connect(&probe, address) {
        Err(io::Errno::CONNREFUSED) => Ok(false),
        Ok(()) | Err(_) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_socket_is_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(unix(&path, None, 1).unwrap_err(), io::Errno::ADDRINUSE);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    }

    #[test]
    fn a_socket_is_replaced_only_when_nobody_listens_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = unix(&path, Some(0o600), 1).unwrap();
        assert_eq!(unix(&path, None, 1).unwrap_err(), io::Errno::ADDRINUSE);
        drop(listener);
        // A child that another test starts may hold the listener until it has executed its program.
        let start = std::time::Instant::now();
        while unix(&path, None, 1).is_err() {
            assert!(start.elapsed().as_secs() < 20, "nobody listens on it any more");
            std::thread::yield_now();
        }
    }
}
