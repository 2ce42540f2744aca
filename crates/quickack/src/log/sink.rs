//! The target of lines, written without ever waiting for the reader.
//!
//! Waiting is a property of an open file, and stderr's is shared with the process that started this
//! one: making it non-blocking here would change it for a shell too. A pipe or a terminal is
//! therefore opened once more. A socket, such as the journal's, gets a flag in each call. A file
//! never blocks for long.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::Target;
use crate::error::Error;

pub struct Sink {
    fd: OwnedFd,
    way: Way,
    /// The rest of a line that was written in part.
    rest: Vec<u8>,
}

/// The way to write to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// write(2), which does not wait, or at least not for a reader.
    Write,
    /// send(2), for a socket.
    Send,
    /// An open file shared with another process, which may block: poll it for room first.
    Ask,
}

impl Sink {
    pub fn open(target: &Target) -> Result<Sink, Error> {
        match target {
            Target::Stderr => Ok(Sink::share(io::stderr().as_fd())?),
            Target::File(path) => {
                let flags = OFlags::WRONLY
                    | OFlags::APPEND
                    | OFlags::CREATE
                    | OFlags::CLOEXEC
                    | OFlags::NOCTTY
                    | OFlags::NONBLOCK;
                let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))
                    .map_err(Error::os(path.display()))?;
                Ok(Sink { fd, way: Way::Write, rest: Vec::new() })
            }
        }
    }

    /// Makes a sink of a file that another process has opened.
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

    /// Writes a whole line, or nothing of it.
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
            // The rest is written before the next line, so that no line is torn.
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

/// Opens the same pipe or terminal as an open file of our own. None if that is not permitted.
fn open_again(shared: BorrowedFd) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", shared.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}
