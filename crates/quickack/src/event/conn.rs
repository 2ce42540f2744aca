//! One socket in the loop, and the table that finds it by its id.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use proxy::{ConnId, Side};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};

/// A socket.
pub struct Conn {
    pub id: ConnId,
    pub fd: OwnedFd,
    /// TCP options apply.
    pub tcp: bool,
    /// A connect is under way.
    pub connecting: bool,
    /// The kernel would take no more; it says when it does again.
    pub blocked: bool,
    /// The service wants no bytes from it for now.
    pub paused: bool,
    /// The peer has sent its last byte.
    pub ended: bool,
    /// The peer has closed both ways, and something it sent may still be unread.
    pub is_gone: bool,
    /// The events that the kernel was last told to watch for.
    pub watched: epoll::EventFlags,
    /// The client's address by its PROXY header; few have one.
    pub from: Option<Box<IpAddr>>,
    /// Where it comes from, if it has sent requests in pieces: so that is looked up once.
    pub source: Option<Box<IpAddr>>,
    /// What `name` found.
    name: Option<Box<str>>,
}

/// The outcome of a read.
pub enum Read {
    Bytes(usize),
    Nothing,
    End,
    Gone,
}

/// The outcome of a write.
pub enum Written {
    Some(usize),
    Blocked,
    Gone,
}

impl Conn {
    /// Whether a client that has sent everything hangs up, and no error shows that it was cut off.
    pub fn ends_in_order(&self, flags: epoll::EventFlags) -> bool {
        self.ended && self.id.is_client() && !flags.contains(epoll::EventFlags::ERR)
    }

    /// Whether what a client has sent can be read after it has hung up: always on a local socket,
    /// while TCP tells of a reset.
    pub fn keeps_what_came(&self) -> bool {
        !self.tcp && self.id.is_client()
    }

    pub fn new(id: ConnId, fd: OwnedFd, tcp: bool, connecting: bool) -> Conn {
        Conn {
            id,
            fd,
            tcp,
            connecting,
            blocked: false,
            paused: false,
            ended: false,
            is_gone: false,
            watched: epoll::EventFlags::empty(),
            from: None,
            source: None,
            name: None,
        }
    }

    /// Where it comes from: nowhere, if it is a unix one.
    pub fn peer(&self) -> Option<IpAddr> {
        self.address().0
    }

    /// The same with its port, which a PROXY header does not keep.
    pub fn address(&self) -> (Option<IpAddr>, Option<u16>) {
        if let Some(from) = self.from.as_deref() {
            return (Some(*from), None);
        }
        let peer = || SocketAddr::try_from(net::getpeername(&self.fd).ok()??).ok();
        // A socket for both families calls an IPv4 client ::ffff:a.b.c.d.
        peer().map_or((None, None), |peer| (Some(peer.ip().to_canonical()), Some(peer.port())))
    }

    /// Where it comes from, for logs; asked of the kernel once.
    pub fn name(&mut self) -> &str {
        let Conn { from, fd, name, .. } = self;
        name.get_or_insert_with(|| {
            let name = from.as_ref().map(|address| address.to_string());
            name.unwrap_or_else(|| sys::listen::peer_name(fd)).into()
        })
    }

    /// Returns the events that the kernel should watch for.
    pub fn interest(&self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        if !self.paused && !self.ended && !self.connecting {
            flags |= epoll::EventFlags::IN;
        }
        if self.blocked || self.connecting {
            flags |= epoll::EventFlags::OUT;
        }
        flags
    }

    pub fn read(&self, block: &mut [u8]) -> Read {
        read(&self.fd, block)
    }

    pub fn write(&self, slices: &[IoSlice<'_>]) -> Written {
        loop {
            let outcome = match slices {
                [one] => net::send(&self.fd, one, SendFlags::NOSIGNAL),
                many => {
                    let mut control = net::SendAncillaryBuffer::default();
                    net::sendmsg(&self.fd, many, &mut control, SendFlags::NOSIGNAL)
                }
            };
            match outcome {
                Ok(n) => return Written::Some(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Written::Blocked,
                Err(_) => return Written::Gone,
            }
        }
    }
}

/// Reads the bytes that a socket has for us.
pub fn read(fd: &OwnedFd, block: &mut [u8]) -> Read {
    loop {
        match net::recv(fd, &mut *block, RecvFlags::empty()) {
            Ok((0, _)) => return Read::End,
            Ok((n, _)) => return Read::Bytes(n),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Read::Nothing,
            Err(_) => return Read::Gone,
        }
    }
}

/// The sockets, by their id's index.
#[derive(Default)]
pub struct Conns {
    clients: Vec<Option<Conn>>,
    links: Vec<Option<Conn>>,
}

impl Conns {
    pub fn insert(&mut self, conn: Conn) {
        let index = conn.id.index();
        let side = self.side(conn.id);
        if side.len() <= index {
            side.resize_with(index + 1, || None);
        }
        side[index] = Some(conn);
    }

    pub fn find(&mut self, id: ConnId) -> Option<&mut Conn> {
        let place = self.side(id).get_mut(id.index())?;
        place.as_mut().filter(|conn| conn.id == id)
    }

    pub fn remove(&mut self, id: ConnId) -> Option<Conn> {
        let place = self.side(id).get_mut(id.index())?;
        place.take_if(|conn| conn.id == id)
    }

    fn side(&mut self, id: ConnId) -> &mut Vec<Option<Conn>> {
        match id.side() {
            Side::Client => &mut self.clients,
            Side::Link => &mut self.links,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        std::os::unix::net::UnixStream::pair().unwrap().0.into()
    }

    #[test]
    fn a_connection_is_watched_for_what_is_to_be_done_next() {
        const IN: epoll::EventFlags = epoll::EventFlags::IN;
        const OUT: epoll::EventFlags = epoll::EventFlags::OUT;
        let interest = |paused, ended, connecting, blocked| {
            let conn = Conn::new(ConnId::from_u64(0), socket(), false, connecting);
            Conn { paused, ended, blocked, ..conn }.interest()
        };
        assert_eq!(interest(false, false, false, false), IN);
        assert_eq!(interest(true, false, false, false), epoll::EventFlags::empty());
        assert_eq!(interest(false, true, false, false), epoll::EventFlags::empty());
        assert_eq!(interest(false, false, true, false), OUT);
        assert_eq!(interest(false, false, false, true), IN | OUT);
        assert_eq!(interest(true, false, false, true), OUT);
    }

    #[test]
    fn a_connection_is_found_by_its_whole_id() {
        let id = |generation: u64, index: u64| ConnId::from_u64(generation << 32 | index);
        let mut conns = Conns::default();
        conns.insert(Conn::new(id(1, 5), socket(), false, false));
        conns.insert(Conn::new(id(2, 3), socket(), false, false));
        for stranger in [id(2, 5), id(1, 3), id(1, 0), id(1, 6), id(1, 1 << 31 | 5)] {
            assert!(conns.find(stranger).is_none() && conns.remove(stranger).is_none());
        }
        for known in [id(1, 5), id(2, 3)] {
            assert!(conns.find(known).is_some_and(|conn| conn.id == known));
            assert!(conns.remove(known).is_some() && conns.find(known).is_none());
        }
    }

    #[test]
    fn a_write_says_whether_the_kernel_took_it_would_take_it_later_or_never() {
        let (fd, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        fd.set_nonblocking(true).unwrap();
        let conn = Conn::new(ConnId::from_u64(0), fd.into(), false, false);
        assert!(conn.peer().is_none(), "it has no address");
        let block = vec![b'x'; 1 << 20];
        let [one, two] = [&block[..], b"y"].map(IoSlice::new);
        assert!(matches!(conn.write(&[two, two]), Written::Some(2)));
        while let Written::Some(_) = conn.write(&[one]) {}
        assert!(matches!(conn.write(&[one]), Written::Blocked));
        assert!(matches!(conn.write(&[one, two]), Written::Blocked));
        assert!(matches!(conn.read(&mut [0; 8]), Read::Nothing));
        drop(theirs);
        assert!(matches!(conn.write(&[two]), Written::Gone));
        assert!(matches!(conn.read(&mut [0; 8]), Read::Gone), "it left something unread");
        assert!(matches!(conn.read(&mut [0; 8]), Read::End));
    }
}
