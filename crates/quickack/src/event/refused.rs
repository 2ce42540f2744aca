//! Clients that there is no room for, until it is known in which protocol they read why.
//!
//! memcached's text and binary protocols share a port, and a client's first byte tells which of
//! them it speaks. It comes with the connection, or a moment later.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use proxy::Time;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

/// Those that have said nothing yet, in the order in which they came.
#[derive(Default)]
pub struct RefusedClients {
    waiting: VecDeque<Refused>,
    looked: Time,
}

struct Refused {
    fd: OwnedFd,
    words: Vec<u8>,
    until: Time,
}

impl RefusedClients {
    /// Refuses a client with these words: at once, if it is known how it reads them. `first`: the
    /// bytes of it that have been read.
    pub fn add(&mut self, fd: OwnedFd, words: Vec<u8>, first: &[u8], now: Time) {
        if !first.is_empty()
            && let Some(words) = proto::refusal(&words, first, true)
        {
            return say(&fd, &words);
        }
        let is_full = self.waiting.len() >= WAITING_MAX;
        if !tell(&fd, &words, is_full) {
            let until = now.after(PATIENCE_US);
            self.waiting.push_back(Refused { fd, words, until });
        }
    }

    /// Looks whether they have said anything.
    pub fn look(&mut self, now: Time) {
        self.looked = now;
        self.waiting.retain(|one| !tell(&one.fd, &one.words, now >= one.until));
    }

    /// When to look again.
    pub fn due(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then(|| self.looked.after(LOOK_US))
    }
}

impl Drop for RefusedClients {
    fn drop(&mut self) {
        for one in self.waiting.drain(..) {
            tell(&one.fd, &one.words, true);
        }
    }
}

/// Tells a client why it is refused, unless it is not known yet how. Returns whether it is done.
pub fn tell(fd: impl AsFd, words: &[u8], is_last: bool) -> bool {
    let mut first = [0; proto::FIRST_LEN];
    let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let said = match rustix::net::recv(&fd, &mut first, peek) {
        // It has gone: it needs no word.
        Ok((0, _)) => return true,
        Ok((n, _)) => n,
        Err(Errno::AGAIN | Errno::INTR) => 0,
        Err(_) => return true,
    };
    let Some(words) = proto::refusal(words, &first[..said], is_last) else { return false };
    say(fd, &words);
    true
}

fn say(fd: impl AsFd, words: &[u8]) {
    let _ = rustix::net::send(&fd, words, SendFlags::NOSIGNAL);
    let _ = rustix::net::shutdown(&fd, Shutdown::Write);
    // Left unread, what it has sent would make the kernel reset the connection, and the words might
    // never arrive.
    let _ = rustix::net::recv(&fd, &mut [0; 4096], RecvFlags::DONTWAIT);
}

/// Clients that wait at once; others get a line of text.
const WAITING_MAX: usize = 64;
/// How long a client may take to say something.
const PATIENCE_US: u64 = 20_000;
const LOOK_US: u64 = 1_000;
