//! The events that the master waits for: signals, channels, the admin server's sockets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use sys::signal::Signals;

/// A source that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Signals,
    /// The channel of the worker in this slot.
    Channel(usize),
    /// The admin socket, or one of its connections.
    Admin(u32),
    /// The port of twemproxy's statistics, or one of its connections.
    Stats(u32),
    /// The channel of the HTTP process.
    Http,
    /// The channel of the process that writes the access log.
    LogWriter,
    /// The channel of the process that looks up names.
    Resolver,
}

/// The one place where the master sleeps.
pub struct Events {
    epoll: OwnedFd,
    ready: Vec<epoll::Event>,
}

impl Events {
    pub fn new(signals: &Signals) -> io::Result<Events> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let events = Events { epoll, ready: Vec::with_capacity(READY_MAX) };
        events.add(signals.fd(), Source::Signals)?;
        Ok(events)
    }

    /// Waits until something is ready, or for `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Vec<Source>> {
        // Rounded up: woken a little early, it would find nothing due and wait again.
        let timeout = timeout + Duration::from_millis(1);
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as _,
            tv_nsec: i64::from(timeout.subsec_nanos()) as _,
        };
        self.ready.clear();
        let database = rustix::buffer::spare_capacity(&mut self.ready);
        match epoll::wait(&self.epoll, database, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.ready.iter().map(|event| Source::from_u64(event.data.u64())).collect())
    }

    pub fn add(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        let data = epoll::EventData::new_u64(source.to_u64());
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Watches a descriptor for input, for room to write, or for both.
    pub fn watch(&self, fd: impl AsFd, source: Source, read: bool, write: bool) {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, read);
        flags.set(epoll::EventFlags::OUT, write);
        let data = epoll::EventData::new_u64(source.to_u64());
        match epoll::modify(&self.epoll, &fd, data, flags) {
            // Not watched any more, since it says nothing: only for its room, then.
            Err(Errno::NOENT) if write => {
                let _ = epoll::add(&self.epoll, &fd, data, epoll::EventFlags::OUT);
            }
            // What cannot be watched is given up when its time is over.
            Ok(()) | Err(_) => {}
        }
    }

    /// No more from this one. Closing does it too, unless a child holds a copy.
    pub fn forget(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }
}

impl Source {
    fn to_u64(self) -> u64 {
        match self {
            Source::Signals => 0,
            Source::Channel(slot) => 1 << 32 | slot as u64,
            Source::Admin(id) => 2 << 32 | u64::from(id),
            Source::Http => 3 << 32,
            Source::LogWriter => 4 << 32,
            Source::Resolver => 5 << 32,
            Source::Stats(id) => 6 << 32 | u64::from(id),
        }
    }

    fn from_u64(data: u64) -> Source {
        match data >> 32 {
            0 => Source::Signals,
            1 => Source::Channel(data as u32 as usize),
            2 => Source::Admin(data as u32),
            3 => Source::Http,
            4 => Source::LogWriter,
            5 => Source::Resolver,
            _ => Source::Stats(data as u32),
        }
    }
}

/// Events taken from the kernel at once.
const READY_MAX: usize = 64;
