//! A wakeup for another process, without content: eventfd(2).

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

/// Makes a descriptor on which one process waits and to which others write. With edge-triggered
/// waiting nobody has to read it: each wakeup, or several together, is one event.
pub fn new() -> io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Wakes the process that waits on `fd`.
pub fn wake(fd: impl AsFd) {
    // The write fails only if 2^64 wakeups are unread. Reset the counter, so that this one arrives.
    if io::write(&fd, &1u64.to_ne_bytes()) == Err(io::Errno::AGAIN) {
        let _ = io::read(&fd, &mut [0; 8]);
        let _ = io::write(&fd, &1u64.to_ne_bytes());
    }
}
