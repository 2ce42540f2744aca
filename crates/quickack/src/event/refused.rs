//! Clients that there is no room for, until it is known in which protocol they read why.
//!
//! memcached's text and binary protocols share a port, and a client's first byte tells which of
//! them it speaks. It comes with the connection, or a moment later.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use proxy::Time;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::endings;
use super::header::{self, HEADER_LEN_MAX};

/// Those that have said nothing yet, in the order in which they came.
pub struct RefusedClients {
    waiting: VecDeque<Refused>,
    /// How many may wait at once; others get a line of text.
    most: usize,
    looked: Time,
}

struct Refused {
    fd: OwnedFd,
    words: Vec<u8>,
    /// The bytes of it that have been read.
    first: Vec<u8>,
    until: Time,
}

impl RefusedClients {
    pub fn new(most: usize) -> RefusedClients {
        RefusedClients { waiting: VecDeque::new(), most, looked: Time::default() }
    }

    /// Refuses a client with these words: at once, if it is known how it reads them; then it is
    /// returned, to be ended. `first`: the bytes of it that have been read.
    pub fn add(&mut self, fd: OwnedFd, words: Vec<u8>, first: &[u8], now: Time) -> Option<OwnedFd> {
        let first = first[..first.len().min(proto::FIRST_LEN)].to_vec();
        let one = Refused { fd, words, first, until: now.after(PATIENCE_US) };
        if one.tell(self.room() == 0) {
            return Some(one.fd);
        }
        self.waiting.push_back(one);
        None
    }

    /// Looks whether they have said anything, if it is time. Returns those that have been told, to
    /// be ended.
    pub fn look(&mut self, now: Time) -> Vec<OwnedFd> {
        if self.due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.looked = now;
        let waiting = std::mem::take(&mut self.waiting);
        let (told, waiting): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|one: &Refused| one.tell(now >= one.until));
        self.waiting = waiting;
        told.into_iter().map(|one| one.fd).collect()
    }

    /// When to look again.
    pub fn due(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then(|| self.looked.after(LOOK_US))
    }

    /// How many more may wait.
    pub fn room(&self) -> usize {
        self.most - self.waiting.len()
    }
}

impl Drop for RefusedClients {
    fn drop(&mut self) {
        for one in self.waiting.drain(..) {
            one.tell(true);
            endings::end(one.fd, &mut [0; 4096], self.looked);
        }
    }
}

impl Refused {
    /// Tells it why it is refused, unless it is not known yet how. Returns whether it is done.
    fn tell(&self, is_last: bool) -> bool {
        let known = self.first.len();
        let mut said = [0; proto::FIRST_LEN];
        said[..known].copy_from_slice(&self.first);
        let Some((n, is_over)) = peek(&self.fd, &mut said[known..]) else { return true };
        let is_last = is_last || is_over;
        let Some(words) = proto::refusal(&self.words, &said[..known + n], is_last) else {
            return false;
        };
        say(&self.fd, &words);
        true
    }
}

/// Tells a client why it is refused that cannot be kept until it says something, and closes it.
pub fn tell_at_once(fd: OwnedFd, words: &[u8], has_header: bool) {
    let mut said = [0; HEADER_LEN_MAX + proto::FIRST_LEN];
    let Some((n, _)) = peek(&fd, &mut said) else { return };
    let header = if has_header { header::length(&said[..n]).unwrap_or(n) } else { 0 };
    if let Some(words) = proto::refusal(words, &said[header..n], true) {
        say(&fd, &words);
    }
    endings::end(fd, &mut [0; 4096], Time::default());
}

/// Returns how many bytes a client has said that were not read, and whether it has said that there
/// are no more; `None` if its connection is lost: then it needs no word.
fn peek(fd: impl AsFd, block: &mut [u8]) -> Option<(usize, bool)> {
    if block.is_empty() {
        return Some((0, false));
    }
    match rustix::net::recv(fd, block, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => Some((0, true)),
        Err(Errno::AGAIN | Errno::INTR) => Some((0, false)),
        Ok((n, _)) => Some((n, false)),
        Err(_) => None,
    }
}

fn say(fd: impl AsFd, words: &[u8]) {
    let _ = rustix::net::send(&fd, words, SendFlags::NOSIGNAL);
}

/// Returns how many may be there at once, those that have been told and still write included, in a
/// process of so many descriptors. It keeps as many for them: nothing else counts theirs.
pub fn most(descriptors: usize) -> usize {
    (descriptors / 8).clamp(8, MOST)
}

/// When a proxy or a network comes back, all the clients of a host come at once.
const MOST: usize = 64;
/// How long a client may take to say something. It may connect many sockets before it asks on the
/// first, or not run for a while where the machine is busy.
const PATIENCE_US: u64 = 200_000;
/// They have no place in the loop's epoll set, so each look costs a call for each that waits.
const LOOK_US: u64 = 5_000;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use testkit::wire::binary::{self, Head, Packet};

    use super::*;

    const LINE: &str = "SERVER_ERROR no room\r\n";
    const NOW: Time = Time(1_000_000);
    const TEMPORARY_FAILURE: u16 = 0x86;

    fn add(all: &mut RefusedClients, said: &[u8], first: &[u8]) -> UnixStream {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(said).unwrap();
        theirs.set_nonblocking(true).unwrap();
        all.add(ours.into(), LINE.into(), first, NOW);
        theirs
    }

    fn told(client: &mut UnixStream) -> Vec<u8> {
        let mut told = [0; 4096];
        let len = client.read(&mut told).unwrap_or(0);
        told[..len].to_vec()
    }

    fn noop() -> Vec<u8> {
        Packet::new(binary::NOOP, 7).bytes()
    }

    fn expect_packet(told: &[u8]) {
        let head = Head::read(told).expect("a packet");
        assert_eq!((head.code, head.opaque), (binary::NOOP, 7));
        assert_eq!(head.status, TEMPORARY_FAILURE);
        assert_eq!(told[binary::HEAD_LEN..], *b"no room");
    }

    #[test]
    fn a_client_is_told_when_its_first_packet_has_come_whole_in_whatever_pieces() {
        for cut in 0..=binary::HEAD_LEN {
            for known in 0..=cut {
                let (noop, mut all) = (noop(), RefusedClients::new(MOST));
                let mut client = add(&mut all, &noop[known..cut], &noop[..known]);
                assert_eq!(all.due().is_none(), cut == binary::HEAD_LEN, "{cut}");
                client.write_all(&noop[cut..]).unwrap();
                all.look(NOW.after(LOOK_US));
                assert_eq!(all.due(), None);
                expect_packet(&told(&mut client));
            }
        }
    }

    #[test]
    fn those_that_say_nothing_and_those_that_are_too_many_read_text() {
        let mut all = RefusedClients::new(MOST);
        let mut clients: Vec<_> = (0..=MOST).map(|_| add(&mut all, b"", b"")).collect();
        let read = |clients: &mut [UnixStream]| -> usize {
            clients.iter_mut().map(told).filter(|told| told == LINE.as_bytes()).count()
        };
        assert_eq!(read(&mut clients), 1);
        all.look(NOW.after(PATIENCE_US - 1));
        assert_eq!(read(&mut clients), 0);
        let mut last = add(&mut all, b"", b"");
        assert_eq!(told(&mut last), LINE.as_bytes());
        all.look(NOW.after(PATIENCE_US + LOOK_US));
        assert_eq!((read(&mut clients), all.due()), (MOST, None));
        let mut client = add(&mut all, b"", b"");
        drop(all);
        assert_eq!(told(&mut client), LINE.as_bytes());
    }

    /// A probe of a load balancer connects and closes, and is to keep no place.
    #[test]
    fn one_that_has_closed_is_not_waited_for() {
        let mut all = RefusedClients::new(MOST);
        let mut client = add(&mut all, b"", b"");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        all.look(NOW.after(LOOK_US));
        assert_eq!((told(&mut client), all.due()), (LINE.as_bytes().to_vec(), None));
    }

    #[test]
    fn those_that_wait_leave_descriptors_to_others() {
        for (descriptors, most) in [(64, 8), (256, 32), (1024, MOST), (1 << 20, MOST)] {
            assert_eq!(super::most(descriptors), most, "{descriptors}");
        }
    }

    #[test]
    fn looks_are_as_far_apart_as_they_should_be() {
        let mut all = RefusedClients::new(MOST);
        all.look(NOW);
        let mut client = add(&mut all, b"", b"");
        all.look(NOW.after(LOOK_US));
        client.write_all(b"get a\r\n").unwrap();
        all.look(NOW.after(2 * LOOK_US - 1));
        assert_eq!(told(&mut client), b"");
        all.look(NOW.after(2 * LOOK_US));
        assert_eq!(told(&mut client), LINE.as_bytes());
    }

    #[test]
    fn a_client_behind_a_balancer_that_cannot_wait_is_told_in_its_protocol() {
        for (has_header, header) in [(false, ""), (true, "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n")]
        {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&[header.as_bytes(), &noop()].concat()).unwrap();
            tell_at_once(ours.into(), LINE.as_bytes(), has_header);
            expect_packet(&told(&mut theirs));
        }
    }
}
