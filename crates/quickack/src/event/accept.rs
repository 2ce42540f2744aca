//! Accepting: a bounded number a turn, options set on each socket, and a clear refusal when there
//! is no room.

use std::os::fd::OwnedFd;

use proxy::Time;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::conn::Conn;
use super::{LISTENER, Loop, token};

/// A listening socket and what its connections get.
pub struct Listener {
    pub fd: OwnedFd,
    /// What the mind calls it.
    pub index: usize,
    pub tcp: bool,
    pub nodelay: bool,
    pub keepalive: bool,
    /// Not watched until then: accepting failed for want of descriptors.
    pub resting_until: Option<Time>,
}

impl Loop<'_> {
    /// New connections, after everything else of this pass.
    pub(super) fn accept_waiting(&mut self) {
        while let Some(at) = self.knocking.pop() {
            if at < self.listeners.len() {
                self.accept(at);
            }
        }
    }

    fn accept(&mut self, at: usize) {
        for _ in 0..ACCEPTS_MAX {
            match sys::listen::accept(&self.listeners[at].fd) {
                Ok(fd) => self.welcome(at, fd),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE) => {
                    if !self.refuse_for_want_of_descriptors(at) {
                        return self.rest(at);
                    }
                }
                // The client has gone again; the next may be waiting.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => return self.rest(at),
            }
        }
    }

    fn welcome(&mut self, at: usize, fd: OwnedFd) {
        let listener = &self.listeners[at];
        let tcp = listener.tcp;
        if tcp {
            // Said to each socket, never left to what the listener's own flag may hand down. A
            // connection that is gone already fails here and is noticed when it is read.
            let _ = sys::tcp::set_nodelay(&fd, listener.nodelay);
            if listener.keepalive {
                let _ = rustix::net::sockopt::set_socket_keepalive(&fd, true);
            }
        }
        match self.mind.handle_accept(listener.index, self.now) {
            Ok(id) => {
                self.conns.insert(Conn::new(id, fd, tcp, false));
                self.watch(id);
            }
            Err(refusal) => {
                refuse(&fd, &refusal);
            }
        }
    }

    /// The descriptor kept for this is given up for a moment: the client reads why, and is closed.
    fn refuse_for_want_of_descriptors(&mut self, at: usize) -> bool {
        if self.reserve.take().is_none() {
            return false;
        }
        let accepted = sys::listen::accept(&self.listeners[at].fd);
        if let Ok(fd) = &accepted {
            refuse(fd, OUT_OF_DESCRIPTORS);
        }
        let progress = accepted.is_ok();
        drop(accepted);
        self.reserve = self.epoll.try_clone().ok();
        progress
    }

    /// Does not look at a listener for a while, rather than fail at it in circles.
    fn rest(&mut self, at: usize) {
        self.listeners[at].resting_until = Some(self.now.after(REST_US));
        let _ = epoll::delete(&self.epoll, &self.listeners[at].fd);
    }

    /// Looks again at listeners that have rested.
    pub(super) fn wake_listeners(&mut self) {
        for (at, listener) in self.listeners.iter_mut().enumerate() {
            if listener.resting_until.is_some_and(|until| until <= self.now) {
                let data = token(LISTENER + at as u64);
                let added = epoll::add(&self.epoll, &listener.fd, data, epoll::EventFlags::IN);
                // Where the kernel has no room for it yet, it rests on.
                listener.resting_until = added.err().map(|_| self.now.after(REST_US));
            }
        }
    }
}

/// Says why, and reads what the client has sent already: left unread, it would make the kernel
/// reset the connection, and the sentence might never arrive. A client that has gone needs no word.
fn refuse(fd: &OwnedFd, why: &[u8]) {
    let _ = rustix::net::send(fd, why, SendFlags::NOSIGNAL);
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
    let _ = rustix::net::recv(fd, &mut [0; 4096], RecvFlags::empty());
}

/// Connections taken from one listener in one pass.
const ACCEPTS_MAX: usize = 64;
/// How long a listener rests when there are no descriptors, microseconds.
const REST_US: u64 = 100_000;
/// What the last client reads; every protocol of ours shows an error line to a person.
const OUT_OF_DESCRIPTORS: &[u8] = b"SERVER_ERROR too many open connections\r\n";
