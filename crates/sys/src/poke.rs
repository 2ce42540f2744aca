//! A word without content to another process, "look now": eventfd(2).

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

/// What one process waits on and others write to. Wait on it edge by edge: then nobody need ever
/// read it, and each poke is one event, or several pokes are.
pub fn new() -> io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Wakes whoever waits on `fd`.
pub fn poke(fd: impl AsFd) {
    // It fails for one reason: nobody has read 2^64 pokes. Begin anew, so that this one is seen.
    if io::write(&fd, &1u64.to_ne_bytes()) == Err(io::Errno::AGAIN) {
        let _ = io::read(&fd, &mut [0; 8]);
        let _ = io::write(&fd, &1u64.to_ne_bytes());
    }
}
