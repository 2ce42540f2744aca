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

/// A listening TCP socket, non-blocking. Port 0 lets the kernel choose.
pub fn tcp(address: SocketAddr, backlog: i32, reuseport: bool) -> io::Result<OwnedFd> {
    let fd = tcp_bound(address, reuseport)?;
    listen(&fd, backlog)?;
    Ok(fd)
}

/// The same, to which nobody can connect yet.
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

/// Lets clients connect to a bound socket, or changes how many may wait.
pub fn listen(fd: impl AsFd, backlog: i32) -> io::Result<()> {
    net::listen(fd, backlog)
}

/// A listening unix socket, non-blocking. A socket file that nobody listens on any more is
/// replaced; one that is in use, or a file that is no socket, is `ADDRINUSE`.
pub fn unix(path: &Path, mode: Option<u32>, backlog: i32) -> io::Result<OwnedFd> {
    let fd = unix_bound(path, mode)?;
    listen(&fd, backlog)?;
    Ok(fd)
}

/// The same, to which nobody can connect yet.
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

/// Who may connect to a unix socket: the mode of its file.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

/// Removes a socket file that nobody listens on.
pub fn remove_unix(path: &Path) -> io::Result<()> {
    if is_socket(path)? && !is_alive(&SocketAddrUnix::new(path)?)? {
        rustix::fs::unlink(path)?;
    }
    Ok(())
}

/// The next connection that waits, non-blocking.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    net::accept_with(listener, FLAGS)
}

/// The same, and where the connection comes from: nowhere, if it is a unix one.
pub fn accept_from(listener: impl AsFd) -> io::Result<(OwnedFd, Option<IpAddr>)> {
    let (fd, address) = net::acceptfrom_with(listener, FLAGS)?;
    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
    // A socket for both families calls an IPv4 client ::ffff:a.b.c.d.
    Ok((fd, address.map(|address| address.ip().to_canonical())))
}

/// Whether the other end of a unix connection is of our own user, or root.
pub fn is_of_our_user(fd: impl AsFd) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    peer_user(fd).is_ok_and(|user| user == ours || user == 0)
}

/// The user at the other end of a unix connection (`SO_PEERCRED`). A peer in another PID namespace
/// has the process id 0 here, for which rustix has no value: only the user is read.
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

/// The address a TCP socket is bound to.
pub fn local_address(fd: impl AsFd) -> io::Result<SocketAddr> {
    let address = net::getsockname(fd)?;
    SocketAddr::try_from(address).map_err(|_| io::Errno::AFNOSUPPORT)
}

/// What a socket is bound to, as `address:port`; a unix one as `path:0`.
pub fn local_name(fd: impl AsFd) -> String {
    net::getsockname(fd).map_or_else(|_| String::new(), name)
}

/// The same of what it is connected to.
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

/// Whether the file is a socket: nothing else may ever be removed.
fn is_socket(path: &Path) -> io::Result<bool> {
    let mode = rustix::fs::lstat(path)?.st_mode;
    Ok(rustix::fs::FileType::from_raw_mode(mode).is_socket())
}

/// Whether somebody listens there.
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
        assert!(unix(&path, None, 1).is_ok());
    }
}
