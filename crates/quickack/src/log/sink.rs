//! Where lines go, written so that nobody ever waits for their reader.
//!
//! Whether a write waits is a property of an open file, and stderr's is shared with whoever
//! started us: made non-blocking here, it would be so for a shell too. A pipe or a terminal is
//! therefore opened once more; a socket, as the journal's, is asked not to wait in each call; and a
//! file never lets anybody wait for long.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::Target;

pub struct Sink {
    fd: OwnedFd,
    way: Way,
    /// The end of a line that was taken in part only.
    rest: Vec<u8>,
}

/// How it is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It does not wait, or never for a reader.
    Write,
    /// A socket.
    Send,
    /// Somebody else's open file, which may wait: only after it said that it has room.
    Ask,
}

impl Sink {
    pub fn open(target: &Target) -> io::Result<Sink> {
        match target {
            Target::Stderr => Sink::share(io::stderr().as_fd()),
            Target::File(path) => {
                let flags = OFlags::WRONLY
                    | OFlags::APPEND
                    | OFlags::CREATE
                    | OFlags::CLOEXEC
                    | OFlags::NOCTTY
                    | OFlags::NONBLOCK;
                let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))
                    .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
                Ok(Sink { fd, way: Way::Write, rest: Vec::new() })
            }
        }
    }

    /// What somebody else has opened.
    pub(super) fn share(shared: BorrowedFd) -> io::Result<Sink> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(shared)?.st_mode);
        let own = match kind {
            FileType::Fifo | FileType::CharacterDevice => open_again(shared),
            _ => None,
        };
        let way = match (kind, &own) {
            (FileType::Socket, _) => Way::Send,
            (FileType::RegularFile, _) | (_, Some(_)) => Way::Write,
            _ => Way::Ask,
        };
        let fd = match own {
            Some(fd) => fd,
            None => rustix::io::fcntl_dupfd_cloexec(shared, 3)?,
        };
        Ok(Sink { fd, way, rest: Vec::new() })
    }

    /// Writes a line, or nothing of it.
    pub fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if !self.rest.is_empty() {
            let taken = self.take(&self.rest)?;
            self.rest.drain(..taken);
            if !self.rest.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        let taken = self.take(line)?;
        if taken < line.len() {
            // The rest comes before the next line, so that no line is torn.
            self.rest = line[taken..].to_vec();
        }
        Ok(())
    }

    fn take(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let taken = match self.way {
                Way::Write => rustix::io::write(&self.fd, bytes),
                Way::Send => {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    rustix::net::send(&self.fd, bytes, flags)
                }
                Way::Ask if self.has_room() => rustix::io::write(&self.fd, bytes),
                Way::Ask => Err(Errno::AGAIN),
            };
            match taken {
                Err(Errno::INTR) => {}
                taken => return Ok(taken?),
            }
        }
    }

    fn has_room(&self) -> bool {
        let mut wait = [PollFd::new(&self.fd, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut wait, Some(&at_once)), Ok(1))
            && wait[0].revents().contains(PollFlags::OUT)
    }
}

/// The same pipe or terminal as an open file of our own. None if it may not be opened.
fn open_again(shared: BorrowedFd) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", shared.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}
