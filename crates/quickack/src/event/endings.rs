//! Clients that have been told why they are closed, and may still be writing. What comes for a
//! closed socket makes the kernel reset the connection, and the words may be lost. So what they
//! send is read and thrown away, until they end it too, or have had their time.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use proxy::Time;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

/// Their connections, in the order in which we have ended them.
#[derive(Default)]
pub struct Endings {
    endings: VecDeque<Ending>,
    looked: Time,
}

/// One of them.
pub struct Ending {
    fd: OwnedFd,
    /// Until then it may say nothing, and at the latest end.
    until: Time,
    at_latest: Time,
    /// How much more of it is read.
    left: usize,
}

impl Endings {
    /// Ends a connection for our side. `block`: where what it has said is read to.
    pub fn add(&mut self, fd: OwnedFd, block: &mut [u8], now: Time) {
        self.endings.extend(end(fd, block, now));
    }

    /// Closes the oldest, if there are more than so many.
    pub fn keep_newest(&mut self, most: usize) {
        self.endings.drain(..self.endings.len().saturating_sub(most));
    }

    /// Reads what has come, if it is time.
    pub fn look(&mut self, block: &mut [u8], now: Time) {
        if self.due().is_some_and(|due| due <= now) {
            self.looked = now;
            let most = READ_MAX / self.endings.len();
            self.endings.retain_mut(|one| !one.is_over(block, most, now));
        }
    }

    /// When to look again.
    pub fn due(&self) -> Option<Time> {
        (!self.endings.is_empty()).then(|| self.looked.after(LOOK_US))
    }
}

/// Ends a connection for our side, and reads what has come. Returns it if more may come.
pub fn end(fd: OwnedFd, block: &mut [u8], now: Time) -> Option<Ending> {
    let _ = rustix::net::shutdown(&fd, Shutdown::Write);
    let (until, at_latest) = (now.after(PATIENCE_US), now.after(PATIENCE_MAX_US));
    let mut ending = Ending { fd, until, at_latest, left: DISCARD_MAX };
    (!ending.is_over(block, READ_MAX / 4, now)).then_some(ending)
}

impl Ending {
    /// Reads what has come, up to about so much. Returns whether that is the end.
    fn is_over(&mut self, block: &mut [u8], most: usize, now: Time) -> bool {
        let len = block.len().min(most);
        let mut read = 0;
        while read < most {
            match rustix::net::recv(&self.fd, &mut block[..len], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok((n, _)) => {
                    read += n;
                    self.until = now.after(PATIENCE_US).min(self.at_latest);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return true,
            }
        }
        self.left = self.left.saturating_sub(read);
        now >= self.until || self.left == 0
    }
}

/// How long a client may say nothing, how long it may go on writing, and how much: nobody needs to
/// write more than is kept of a client that is served (`client_buffer_max`).
const PATIENCE_US: u64 = 2_000_000;
const PATIENCE_MAX_US: u64 = 10_000_000;
const DISCARD_MAX: usize = 64 * 1024 * 1024;
/// They have no place in the loop's epoll set, so each look costs a call for each of them.
const LOOK_US: u64 = 5_000;
/// About how much is read of all of them in a look, so that it takes little of the loop's time.
const READ_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use testkit::process::{accept, connect, wait_until};

    use super::*;

    const NOW: Time = Time(1_000_000);
    const WORDS: &[u8] = b"-ERR max number of clients reached\r\n";

    /// A client, and our side of its connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = connect(listener.local_addr().unwrap());
        (client, accept(&listener))
    }

    fn look(endings: &mut Endings, now: Time) {
        endings.looked = Time::default();
        endings.look(&mut [0; 4096], now);
    }

    fn end(ours: TcpStream) -> Endings {
        let mut endings = Endings::default();
        endings.add(ours.into(), &mut [0; 4096], NOW);
        endings
    }

    /// Lets somebody write so much; returns whether all of it was taken.
    fn is_taken(client: &TcpStream, endings: &mut Endings, len: usize) -> bool {
        let mut writes = client.try_clone().unwrap();
        let writer = std::thread::spawn(move || writes.write_all(&vec![b'x'; len]));
        wait_until("all of it is written, or the connection is lost", || {
            look(endings, NOW);
            writer.is_finished()
        });
        writer.join().unwrap().is_ok()
    }

    #[test]
    fn a_client_that_writes_on_reads_the_last_words() {
        let (mut client, mut ours) = pair();
        ours.write_all(WORDS).unwrap();
        let mut endings = end(ours);
        assert!(is_taken(&client, &mut endings, 10 << 20));
        let mut read = Vec::new();
        client.read_to_end(&mut read).expect("no reset");
        assert_eq!(read, WORDS);
        assert_eq!(endings.endings.len(), 1, "it has not ended it");
        drop(client);
        wait_until("it is closed", || {
            look(&mut endings, NOW);
            endings.due().is_none()
        });
    }

    #[test]
    fn one_that_writes_too_much_is_closed() {
        let (client, ours) = pair();
        let mut endings = end(ours);
        assert!(!is_taken(&client, &mut endings, 2 * DISCARD_MAX));
        assert_eq!(endings.due(), None);
    }

    #[test]
    fn one_that_never_stops_is_closed_in_the_end() {
        let (mut client, ours) = pair();
        let mut endings = end(ours);
        let mut turns = 0;
        while let Some(one) = endings.endings.front() {
            turns += 1;
            client.write_all(b"more").unwrap();
            let has_come = || {
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                rustix::net::recv(&one.fd, &mut [0; 1], flags).is_ok()
            };
            wait_until("it has come", has_come);
            look(&mut endings, NOW.after(turns * PATIENCE_US - 1));
        }
        assert_eq!(turns, 6);
    }

    #[test]
    fn one_that_says_nothing_and_never_ends_it_is_closed_after_a_moment() {
        let (mut client, ours) = pair();
        let mut endings = end(ours);
        look(&mut endings, NOW.after(PATIENCE_US - LOOK_US));
        assert_eq!(endings.due(), Some(NOW.after(PATIENCE_US)));
        look(&mut endings, NOW.after(PATIENCE_US));
        assert_eq!(endings.due(), None);
        assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
    }

    #[test]
    fn the_oldest_make_room() {
        let mut endings = Endings::default();
        let [mut first, last] = [(); 2].map(|()| {
            let (client, ours) = pair();
            endings.add(ours.into(), &mut [0; 4096], NOW);
            client
        });
        endings.keep_newest(1);
        let is_lost = |client: &mut TcpStream| client.write_all(b"more").is_err();
        wait_until("the first is closed", || is_lost(&mut first));
        assert!(is_taken(&last, &mut endings, 1 << 20), "the last is not");
    }
}
