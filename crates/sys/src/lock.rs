//! A lock between processes that the kernel frees when its holder dies: fcntl(2), `F_SETLK`.
//!
//! The lock belongs to the process and the file: closing any descriptor of the file gives it up,
//! so a process keeps exactly one. (A lock of flock(2) belongs to the open file, which a master
//! and its workers share: a worker's death would not free it.)

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FlockOperation, MemfdFlags, fcntl_lock, memfd_create};
use rustix::io;

/// Makes an in-memory file to lock, to be passed to the processes that compete for it.
pub fn new() -> io::Result<OwnedFd> {
    memfd_create("quickack-accept", MemfdFlags::CLOEXEC)
}

/// Takes the lock if no other process has it; never waits.
pub fn try_lock(fd: impl AsFd) -> io::Result<bool> {
    match fcntl_lock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        // POSIX allows either error for a lock that another process has.
        Err(io::Errno::AGAIN | io::Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

pub fn unlock(fd: impl AsFd) -> io::Result<()> {
    fcntl_lock(fd, FlockOperation::NonBlockingUnlock)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::process;

    /// The second process of the test below: it reports whether it got the lock.
    #[test]
    #[ignore = "run by the test below, in a process of its own"]
    fn contender() {
        let fd = process::take_passed().unwrap();
        std::process::exit(if try_lock(&fd).unwrap() { 10 } else { 11 });
    }

    fn ask_another_process(fd: &OwnedFd) -> Option<i32> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "lock::tests::contender"]).stdout(Stdio::null());
        process::prepare_child(&mut command, "contender", Some(fd.try_clone().unwrap()));
        let status = command.status().unwrap();
        // The command's copy of the descriptor is closed with it, which releases the lock. The
        // callers below take it again.
        status.code()
    }

    #[test]
    fn the_lock_keeps_another_process_out_until_its_holder_ends() {
        let fd = new().unwrap();
        assert_eq!(ask_another_process(&fd), Some(10));
        // The other process has ended without unlocking.
        assert!(try_lock(&fd).unwrap() && try_lock(&fd).unwrap());
        assert_eq!(ask_another_process(&fd), Some(11));
        assert!(try_lock(&fd).unwrap());
        unlock(&fd).unwrap();
        assert_eq!(ask_another_process(&fd), Some(10));
    }
}
