//! A listening socket of the master's own, with room for so many connections at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::events::{Events, Source};

/// A listening socket.
pub struct Acceptor {
    fd: OwnedFd,
    source: Source,
    /// Nothing is accepted now, because there is no room.
    is_paused: bool,
}

impl Acceptor {
    pub fn new(fd: OwnedFd, source: Source, events: &Events) -> io::Result<Acceptor> {
        events.add(&fd, source)?;
        Ok(Acceptor { fd, source, is_paused: false })
    }

    /// Accepts what waits, beside the `count` connections that are there.
    pub fn accept(&mut self, count: usize, events: &Events) -> Vec<OwnedFd> {
        let mut new = Vec::new();
        loop {
            let accepted = match count + new.len() < CONNECTIONS_MAX {
                true => sys::listen::accept(&self.fd),
                false => Err(Errno::MFILE),
            };
            match accepted {
                Ok(fd) => new.push(fd),
                Err(Errno::AGAIN) => return new,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    // No room or no descriptor: until the next look the others wait in the queue.
                    events.forget(&self.fd);
                    self.is_paused = true;
                    return new;
                }
            }
        }
    }

    /// Accepts others again after there was no room.
    pub fn resume(&mut self, events: &Events) {
        if self.is_paused {
            self.is_paused = events.add(&self.fd, self.source).is_err();
        }
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Connections of each socket at once; the others wait in its queue.
const CONNECTIONS_MAX: usize = 32;
