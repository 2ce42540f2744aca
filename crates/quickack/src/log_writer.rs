//! The process that writes the access log. It may wait for a disk, which no worker may.
//!
//! ```text
//!   worker 0 ──┐ whole lines, never waiting        a disk, a pipe
//!   worker 1 ──┼──▶ one pipe ──▶ this process ──▶ the file
//!   …          ┘      │ full: the worker keeps some lines, and counts what it drops
//! ```
//!
//! It ends when nobody has the pipe open for writing any more: then it has written everything.
//! Lines that cannot be written are dropped and counted, and the master is told.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sys::signal::{self, Signals};

use crate::error::{Error, Peer};
use crate::ipc::{Channel, FromLogWriter, Received, ToLogWriter};
use crate::log::{self, Level};

/// Writes until the pipe ends.
pub fn run() -> ExitCode {
    match sys::process::take_passed().map_err(Error::from).and_then(write) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("log writer: {error}; this process is started by `quickack run`");
            log::line(Level::Error, &text);
            ExitCode::FAILURE
        }
    }
}

fn write(channel: OwnedFd) -> Result<(), Error> {
    sys::process::keep_title();
    // It gets one when the master ends, and has lines to write still.
    let _ignored = Signals::new(signal::ALL_OF_A_CHILD)?;
    let mut writer = Writer::greet(Channel::new(channel))?;
    writer.open();
    while !writer.is_done() {
        writer.wait()?;
        writer.hear();
        writer.read()?;
        writer.write();
        writer.tell();
    }
    writer.tell_now();
    Ok(())
}

struct Writer {
    channel: Channel<FromLogWriter, ToLogWriter>,
    pipe: OwnedFd,
    path: String,
    file: Option<OwnedFd>,
    /// Bytes from the pipe that are not written yet. They may end within a line.
    buffer: Vec<u8>,
    /// The file ends within a line, whose rest could not be written.
    is_torn: bool,
    /// The file takes no more for now.
    is_blocked: bool,
    /// Nobody writes to the pipe any more; from then on waiting for the file has an end.
    over_since: Option<Instant>,
    /// The master has ended.
    is_alone: bool,
    /// Lines that were dropped and not told yet, the reason for the last, and when any were told.
    lost: u64,
    why: String,
    told: Option<Instant>,
    open_again: Instant,
}

impl Writer {
    /// Waits for the first message, which has the pipe.
    fn greet(mut channel: Channel<FromLogWriter, ToLogWriter>) -> Result<Writer, Error> {
        let Received { message, mut fds } = loop {
            if let Some(received) = channel.receive()? {
                break received;
            }
            match poll(&mut [PollFd::new(&channel, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let (ToLogWriter::Pipe { path }, Some(pipe)) = (message, fds.pop()) else {
            return Err(Peer::Broken("the first message is not about the pipe".into()).into());
        };
        Ok(Writer {
            channel,
            pipe,
            path,
            file: None,
            buffer: Vec::new(),
            is_torn: false,
            is_blocked: false,
            over_since: None,
            is_alone: false,
            lost: 0,
            why: String::new(),
            told: None,
            open_again: Instant::now(),
        })
    }

    /// Waits until there is something to do.
    fn wait(&self) -> Result<(), Error> {
        let mut fds = Vec::new();
        if !self.is_alone {
            fds.push(PollFd::new(&self.channel, PollFlags::IN));
        }
        if self.buffer.len() < BUFFER_MAX && self.over_since.is_none() {
            fds.push(PollFd::new(&self.pipe, PollFlags::IN));
        }
        if let Some(file) = self.file.as_ref().filter(|_| self.is_blocked) {
            fds.push(PollFd::new(file, PollFlags::OUT));
        }
        let has_a_time = self.file.is_none() || self.lost > 0 || self.over_since.is_some();
        let soon = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        match poll(&mut fds, has_a_time.then_some(&soon)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether everything has been written, or nothing more will be.
    fn is_done(&self) -> bool {
        let is_late = |since: Instant| self.buffer.is_empty() || since.elapsed() >= PATIENCE;
        self.over_since.is_some_and(is_late)
    }

    fn hear(&mut self) {
        while !self.is_alone {
            match self.channel.receive() {
                Ok(None) => break,
                Ok(Some(Received { message: ToLogWriter::Reopen { path }, .. })) => {
                    self.path = path;
                    self.file = None;
                    self.open();
                }
                Ok(Some(Received { message: ToLogWriter::Pipe { .. }, .. })) => {}
                Err(error) => {
                    if error != Peer::Closed.into() {
                        // It cannot be told which file to write any more.
                        log::line(Level::Error, &format!("log writer: {error}"));
                    }
                    self.is_alone = true;
                }
            }
        }
        let _ = self.channel.acknowledge();
    }

    /// Opens the file. A pipe without a reader, like any other failure, is tried again later.
    fn open(&mut self) {
        self.open_again = Instant::now() + OPEN_AGAIN;
        match open(&self.path) {
            Ok(file) => {
                self.file = Some(file);
                (self.is_torn, self.is_blocked) = (false, false);
            }
            Err(error) => self.why = format!("{} cannot be opened: {error}", self.path),
        }
    }

    fn read(&mut self) -> Result<(), Error> {
        while self.buffer.len() < BUFFER_MAX && self.over_since.is_none() {
            let start = self.buffer.len();
            self.buffer.resize(start + READ, 0);
            let read = rustix::io::read(&self.pipe, &mut self.buffer[start..]);
            self.buffer.truncate(start + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => self.over_since = Some(Instant::now()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes whole lines, as far as the file takes them.
    fn write(&mut self) {
        if self.file.is_none() && Instant::now() >= self.open_again {
            self.open();
        }
        let whole = self.buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut written = 0;
        self.is_blocked = false;
        while written < whole {
            let Some(file) = &self.file else {
                self.drop_lines(written, whole);
                written = whole;
                break;
            };
            if self.is_torn {
                match rustix::io::write(file, b"\n") {
                    Ok(_) => self.is_torn = false,
                    Err(Errno::INTR) => {}
                    Err(error) => written = self.fail(error, written, whole),
                }
                continue;
            }
            match rustix::io::write(file, &self.buffer[written..whole]) {
                Ok(taken) => written += taken,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.is_blocked = true;
                    break;
                }
                Err(error) => written = self.fail(error, written, whole),
            }
        }
        self.buffer.drain(..written);
        if self.buffer.is_empty() {
            self.buffer.shrink_to(READ);
        }
    }

    /// Drops what could not be written; returns where the buffer goes on.
    fn fail(&mut self, error: Errno, written: usize, whole: usize) -> usize {
        self.why = format!("{}: {error}", self.path);
        // What was written last may be the beginning of a line.
        let begins_a_line = written == 0 || self.buffer[written - 1] == b'\n';
        self.is_torn |= !begins_a_line;
        if error == Errno::PIPE {
            // The reader is gone; there may be another.
            self.file = None;
        }
        self.drop_lines(written, whole);
        whole
    }

    fn drop_lines(&mut self, from: usize, to: usize) {
        let lines = self.buffer[from..to].iter().filter(|byte| **byte == b'\n').count();
        self.lost += lines as u64;
    }

    /// Tells the master of lines that were dropped, once a second at most.
    fn tell(&mut self) {
        if self.told.is_none_or(|told| told.elapsed() >= TELL_PAUSE) {
            self.tell_now();
        }
        let _ = self.channel.flush();
    }

    fn tell_now(&mut self) {
        if self.lost > 0 && !self.is_alone {
            let (lines, why) = (std::mem::take(&mut self.lost), self.why.clone());
            let _ = self.channel.send(FromLogWriter::Lost { lines, why }, &[]);
            self.told = Some(Instant::now());
        }
    }
}

/// Opens a file to append to, or a pipe, without waiting for its reader.
pub fn open(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::CLOEXEC
        | OFlags::NOCTTY
        | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o640))
}

/// The most bytes that are kept while the file takes none, as far as lines have come whole.
const BUFFER_MAX: usize = 64 * 1024;
const READ: usize = 64 * 1024;
const TELL_PAUSE: Duration = Duration::from_secs(1);
const OPEN_AGAIN: Duration = Duration::from_secs(1);
/// How long the last lines may take when the proxy has ended.
const PATIENCE: Duration = Duration::from_secs(1);
