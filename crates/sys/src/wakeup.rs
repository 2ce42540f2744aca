//! A wakeup: a message without content to another process, "look now". By eventfd(2).

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

/// A descriptor that one process waits on and others write to. Wait on it edge-triggered: then
/// nobody need ever read it, and one or several wakeups are one event.
pub fn new() -> io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Wakes the process that waits on `fd`.
pub fn wake(fd: impl AsFd) {
    // It fails for one reason: 2^64 wakeups have not been read. Begin anew, so that this one is
    // seen.
    if io::write(&fd, &1u64.to_ne_bytes()) == Err(io::Errno::AGAIN) {
        let _ = io::read(&fd, &mut [0; 8]);
        let _ = io::write(&fd, &1u64.to_ne_bytes());
    }
}
