//! The process that writes the access log: the pipe between the workers and it, its start and its
//! end, the file that it opens.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::rc::Rc;
use std::time::{Duration, Instant};

use metrics::WorkerCounter;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::events::Source;
use super::workers::EarlyDeaths;
use super::{Master, say};
use crate::config::Config;
use crate::error::Error;
use crate::ipc::{Channel, FromLogWriter, ToLogWriter, ToWorker};
use crate::log::{Clocks, Level};
use crate::log_writer;

/// The access log of the running configuration.
#[derive(Default)]
pub struct AccessLog {
    pipe: Option<Pipe>,
    path: Option<String>,
    writer: Option<Writer>,
    early_deaths: EarlyDeaths,
    /// A process is not started before this.
    not_before: Option<Instant>,
    /// The last lines that could not be written: when, in microseconds since 1970, and why.
    pub last_loss: Option<(u64, String)>,
}

/// Both ends. The master keeps them, so that no line in it is lost with a process.
struct Pipe {
    read: Rc<OwnedFd>,
    write: Rc<OwnedFd>,
}

struct Writer {
    child: Child,
    channel: Channel<ToLogWriter, FromLogWriter>,
    started: Instant,
}

impl AccessLog {
    /// That of the configuration that the proxy starts with.
    pub fn of(config: &Config) -> Result<AccessLog, Error> {
        let mut log = AccessLog::default();
        log.open(config)?;
        log.follow(config);
        Ok(log)
    }

    /// Makes the pipe that `config` needs, if there is none, and tries its file. Whether it is new.
    pub fn open(&mut self, config: &Config) -> Result<bool, Error> {
        let Some(path) = &config.process.access_log else { return Ok(false) };
        if self.path.as_ref() != Some(path) {
            match log_writer::open(path) {
                // A pipe that nobody reads yet.
                Ok(_) | Err(rustix::io::Errno::NXIO) => {}
                Err(error) => {
                    return Err(Error::Os(format!("cannot open the access log {path}: {error}")));
                }
            }
        }
        if self.pipe.is_some() {
            return Ok(false);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(Error::os("cannot make a pipe for the access log"))?;
        // A smaller one does too.
        let _ = fcntl_setpipe_size(&write, PIPE_SIZE);
        self.pipe = Some(Pipe { read: Rc::new(read), write: Rc::new(write) });
        Ok(true)
    }

    /// The configuration holds.
    pub fn follow(&mut self, config: &Config) {
        let path = config.process.access_log.clone();
        if path == self.path {
            return;
        }
        self.path = path;
        match &self.path {
            Some(_) => self.reopen(),
            None => {
                // The process ends when it has written what is in the pipe.
                self.pipe = None;
            }
        }
    }

    /// Has the file opened again by its name.
    pub fn reopen(&mut self) {
        let (Some(path), Some(writer)) = (&self.path, &mut self.writer) else { return };
        // One that is gone is found by its end.
        let _ = writer.channel.send(ToLogWriter::Reopen { path: path.clone() }, &[]);
    }

    pub fn is_open(&self) -> bool {
        self.path.is_some()
    }

    pub fn pid(&self) -> Option<u32> {
        self.writer.as_ref().map(|writer| writer.child.id())
    }

    /// Lets the process write what is left, and waits for it, but not for long.
    pub fn end(&mut self) {
        self.pipe = None;
        let Some(mut writer) = self.writer.take() else { return };
        let patience = Timespec { tv_sec: 2, tv_nsec: 0 };
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until && !matches!(writer.child.try_wait(), Ok(Some(_))) {
            // Its end closes the channel; before that it may say something.
            let _ = poll(&mut [PollFd::new(&writer.channel, PollFlags::IN)], Some(&patience));
            if writer.channel.receive().is_err() {
                let _ = writer.child.wait();
            }
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let (Some(pipe), Some(path)) = (&self.pipe, &self.path) else { return Ok(()) };
        let (ours, theirs) = sys::channel::pair()?;
        let mut command = Command::new(super::OWN_IMAGE);
        command.arg("log-writer");
        sys::process::prepare_child(&mut command, "quickack: log", Some(theirs));
        // It often shares a processor with a worker, and clients wait for that one.
        sys::process::give_way(&mut command);
        let child = command.spawn()?;
        let mut channel = Channel::new(ours);
        let first = ToLogWriter::Pipe { path: path.clone() };
        let _ = channel.send(first, &[Rc::clone(&pipe.read)]);
        self.writer = Some(Writer { child, channel, started: Instant::now() });
        Ok(())
    }
}

impl Master {
    /// Makes what `config` needs for its access log, and passes it to the workers.
    pub(super) fn open_access_log(&mut self, config: &Config) -> Result<(), Error> {
        if self.access_log.open(config)? {
            (0..self.slots.len()).for_each(|number| self.pass_access_log(number));
        }
        Ok(())
    }

    pub(super) fn pass_access_log(&mut self, number: usize) {
        let Some(pipe) = &self.access_log.pipe else { return };
        let Some(worker) = self.slots[number].worker.as_mut() else { return };
        worker.send(ToWorker::AccessLog {}, &[Rc::clone(&pipe.write)]);
    }

    /// Starts the process if it is due, and notices its end.
    pub(super) fn tend_access_log(&mut self, now: Instant) {
        let log = &mut self.access_log;
        if let Some(writer) = &mut log.writer
            && let Ok(Some(status)) = writer.child.try_wait()
        {
            let (pid, lasted) = (writer.child.id(), now - writer.started >= LASTED);
            log.writer = None;
            if log.pipe.is_some() {
                log.not_before = Some(now + log.early_deaths.note(lasted));
                let text = format!(
                    "the process that writes the access log (pid {pid}) died: {status}; it is \
                     started again"
                );
                say(&mut self.log, Level::Error, "log_writer_died", &text);
            }
        }
        let log = &mut self.access_log;
        let is_due = log.not_before.is_none_or(|due| due <= now);
        if log.writer.is_some() || log.pipe.is_none() || log.path.is_none() || !is_due {
            return;
        }
        match log.start() {
            Ok(()) => {
                let channel = log.writer.as_ref().map(|writer| &writer.channel);
                // If it cannot be watched, it writes all the same.
                let _ = channel.map(|channel| self.events.add(channel, Source::LogWriter));
            }
            Err(error) => {
                log.not_before = Some(now + START_AGAIN);
                let text = format!(
                    "cannot start the process that writes the access log: {error}; trying again"
                );
                say(&mut self.log, Level::Error, "log_writer_start", &text);
            }
        }
    }

    /// Notes what the process tells.
    pub(super) fn listen_to_log_writer(&mut self) {
        while let Some(writer) = &mut self.access_log.writer {
            match writer.channel.receive() {
                Ok(Some(received)) => {
                    let FromLogWriter::Lost { lines, why } = received.message;
                    let counters = self.scoreboard.master_metrics().counters(0);
                    counters.add(WorkerCounter::AccessLinesLost, lines);
                    let text = format!("{lines} lines of the access log were lost: {why}");
                    self.access_log.last_loss = Some((Clocks::read().unix_us, why));
                    say(&mut self.log, Level::Warning, "access_log_lost", &text);
                }
                Ok(None) => {
                    let _ = writer.channel.acknowledge();
                    return;
                }
                Err(_) => return self.events.forget(&writer.channel),
            }
        }
    }
}

/// Bytes that workers may write while the process waits for a disk: Linux gives as much to anybody.
const PIPE_SIZE: usize = 1 << 20;
/// A process that lives this long did not die of its start.
const LASTED: Duration = Duration::from_secs(5);
const START_AGAIN: Duration = Duration::from_millis(500);
