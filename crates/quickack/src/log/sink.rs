//! The target of lines, written without ever waiting for the reader.
//!
//! Waiting is a property of an open file, and stderr's is shared with the process that started this
//! one: making it non-blocking here would change it for a shell too. A pipe or a terminal is
//! therefore opened once more. A socket, such as the journal's, gets a flag in each call. A file
//! never blocks for long.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::Target;
use crate::error::Error;

pub struct Sink {
    fd: OwnedFd,
    way: Way,
    /// The rest of a line that was written in part.
    rest: Vec<u8>,
    /// The socket of a syslog daemon, which may be started anew.
    syslog: Option<PathBuf>,
}

/// The way to write to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// write(2), which does not wait, or at least not for a reader.
    Write,
    /// send(2), for a socket.
    Send,
    /// The same, for datagrams: a line is sent whole or not at all.
    Datagram,
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
                Ok(Sink { fd, way: Way::Write, rest: Vec::new(), syslog: None })
            }
            Target::Syslog(path) => {
                let fd = connect(path).map_err(|error| {
                    let hint = match error {
                        Errno::PROTOTYPE => "; it takes no datagrams",
                        Errno::NOENT | Errno::CONNREFUSED => "; is a syslog daemon running?",
                        _ => "",
                    };
                    Error::Os(format!("{}: {error}{hint}", path.display()))
                })?;
                let syslog = Some(path.clone());
                Ok(Sink { fd, way: Way::Datagram, rest: Vec::new(), syslog })
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
        Ok(Sink { fd, way, rest: Vec::new(), syslog: None })
    }

    /// Writes a whole line, or nothing of it.
    pub fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if let Some(path) = &self.syslog {
            return match self.take(line) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    // The daemon may be another by now.
                    self.fd = connect(path)?;
                    self.take(line).map(drop)
                }
                taken => taken.map(drop),
            };
        }
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
                Way::Send | Way::Datagram => {
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

/// Connects to a syslog daemon.
fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

/// Whether stderr is connected to the journal (systemd.exec(5), `JOURNAL_STREAM`). A program that
/// has sent its own stderr elsewhere inherits the variable to us all the same.
pub fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stderr) = rustix::fs::fstat(io::stderr()) else { return false };
    named == format!("{}:{}", stderr.st_dev, stderr.st_ino)
}

/// Opens the same pipe or terminal as an open file of our own. None if that is not permitted.
fn open_again(shared: BorrowedFd) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", shared.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}
