//! Capabilities of the running kernel: uname(2), and a real try of the calls that matter, since a
//! sandbox may forbid calls that its kernel supports.

use std::fmt;

use rustix::event::{epoll, eventfd};
use rustix::io;
use rustix::net::{AddressFamily, SocketType, socket, sockopt};

/// A kernel, by the number of its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel {
    major: u32,
    minor: u32,
}

impl Kernel {
    /// Returns the running kernel.
    pub fn running() -> Kernel {
        let uname = rustix::system::uname();
        Kernel::of(&uname.release().to_string_lossy())
    }

    /// Parses a release such as `6.1.0-13-amd64`. A release without numbers is treated as that of a
    /// very old kernel.
    pub fn of(release: &str) -> Kernel {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        Kernel { major: next(), minor: next() }
    }

    /// `SO_REUSEPORT`: a queue for each worker on one address.
    pub fn has_reuseport(self) -> bool {
        self >= Kernel { major: 3, minor: 9 }
    }

    /// `EPOLLEXCLUSIVE`: one client wakes one worker. Older kernels accept the flag and ignore it.
    pub fn has_epollexclusive(self) -> bool {
        self >= Kernel { major: 4, minor: 5 }
    }

    /// `net.ipv4.tcp_migrate_req`: the queue of a closed listener moves to another one of its
    /// address.
    pub fn has_tcp_migrate_req(self) -> bool {
        self >= Kernel { major: 5, minor: 14 }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// `EPOLLEXCLUSIVE`, which rustix does not name.
pub const EXCLUSIVE: epoll::EventFlags = epoll::EventFlags::from_bits_retain(1 << 28);

/// Watches a descriptor exclusively. A kernel that supports the flag refuses to modify such a
/// watch; a kernel that allows the change has ignored the flag.
pub fn try_exclusive() -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let watched = eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(0);
    epoll::add(&epoll, &watched, data, epoll::EventFlags::IN | EXCLUSIVE)?;
    match epoll::modify(&epoll, &watched, data, epoll::EventFlags::IN | EXCLUSIVE) {
        Err(io::Errno::INVAL) => Ok(()),
        Ok(()) => Err(io::Errno::OPNOTSUPP),
        Err(error) => Err(error),
    }
}

/// Sets the option on a socket.
pub fn try_reuseport() -> io::Result<()> {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_reuseport(&fd, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_kernel_can_do() {
        let check = |release: &str, expected: [bool; 3]| {
            let kernel = Kernel::of(release);
            let found =
                [kernel.has_reuseport(), kernel.has_epollexclusive(), kernel.has_tcp_migrate_req()];
            assert_eq!(found, expected, "{release}");
        };
        check("2.6.32-754.el6.x86_64", [false, false, false]);
        check("3.8.13", [false, false, false]);
        check("3.10.0-1160.el7.x86_64", [true, false, false]);
        check("4.4.302+", [true, false, false]);
        check("4.5.0", [true, true, false]);
        check("5.4.0-1-generic", [true, true, false]);
        check("5.14.0-362.el9", [true, true, true]);
        check("6.1.0-13-amd64", [true, true, true]);
        check("6", [true, true, true]);
        check("10.0-rc1", [true, true, true]);
        check("", [false, false, false]);
        check("vax", [false, false, false]);
    }

    #[test]
    fn the_running_kernel_does_what_its_number_says() {
        let kernel = Kernel::running();
        assert_eq!(try_exclusive().is_ok(), kernel.has_epollexclusive(), "{kernel}");
        assert_eq!(try_reuseport().is_ok(), kernel.has_reuseport(), "{kernel}");
    }
}
