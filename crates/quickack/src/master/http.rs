//! The HTTP process: its socket, which the master makes and keeps, its start and its end, and what
//! it is told. It knows nothing that its clients may not see, and can ask for nothing else.
//!
//! ```text
//!   `http:` changes ──▶ open (bound) ──▶ listen ──▶ passed on; only then the old one is closed
//!   the process dies ──pause──▶ started again, with names, state and socket
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::clients::{Asker, BUSIEST};
use super::events::Source;
use super::listeners::SocketFile;
use super::workers::EarlyDeaths;
use super::{Master, say};
use crate::admin::FileLock;
use crate::config::{Address, Config};
use crate::error::{Error, Peer};
use crate::ipc::http_view::{Names, PoolNames, ServerNames, State, TenantNames};
use crate::ipc::query::Query;
use crate::ipc::{Channel, FromHttp, Question, ToHttp};
use crate::log::Level;
use crate::stats;

/// The HTTP process and its socket.
#[derive(Default)]
pub struct Http {
    /// The socket, while `http:` is configured.
    listener: Option<Rc<Listener>>,
    /// The same for the configuration that is being prepared.
    next: Option<Rc<Listener>>,
    helper: Option<Helper>,
    early_deaths: EarlyDeaths,
    deaths: u64,
    /// A process is not started before this.
    not_before: Option<Instant>,
    /// Sockets are numbered.
    opened: u32,
}

/// The process.
struct Helper {
    child: Child,
    channel: Channel<ToHttp, FromHttp>,
    started: Instant,
    /// The state as it was last told.
    told: State,
    /// When it was last asked to show that it works.
    pinged: Instant,
    /// It has been killed because it did not.
    is_hung: bool,
}

/// A listening socket. The file of a unix socket goes before the socket, and the lock beside it
/// last.
struct Listener {
    number: u32,
    /// The address as it is written, without a file's mode, and as it was looked up.
    key: String,
    /// Where it is bound, for people.
    bound: String,
    address: Option<SocketAddr>,
    file: Option<SocketFile>,
    fd: Rc<OwnedFd>,
    lock: Option<Rc<FileLock>>,
}

impl Http {
    /// Opens the socket that `config` wants, if it is not open; nobody can connect to it yet.
    pub fn open(
        &mut self,
        config: &Config,
        addresses: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        self.next = None;
        let Some(address) = &config.process.http else { return Ok(()) };
        let key = key(address, addresses);
        let same = self.listener.as_ref().filter(|open| open.key == key);
        if let Some(open) = same.filter(|open| !open.is_gone()) {
            self.next = Some(Rc::clone(open));
            return Ok(());
        }
        self.opened += 1;
        let old = self.listener.as_deref();
        let listener = bind(self.opened, address, key, addresses, old);
        let listener =
            listener.map_err(|error| error.within(&format!("cannot serve HTTP on {address}")))?;
        self.next = Some(Rc::new(listener));
        Ok(())
    }

    /// Lets clients connect to the socket that was opened.
    pub fn start(&self, config: &Config) -> Result<(), Error> {
        let (Some(next), Some(address)) = (&self.next, &config.process.http) else { return Ok(()) };
        let set_up = || {
            if let Address::Unix { path, mode: Some(mode) } = address {
                sys::listen::set_mode(path, *mode)?;
            }
            sys::listen::listen(&next.fd, BACKLOG)
        };
        set_up().map_err(Error::os(format!("cannot serve HTTP on {address}")))
    }

    /// The configuration that the socket was opened for will not hold.
    pub fn cancel(&mut self) {
        self.next = None;
    }

    /// Where it listens, for people.
    pub fn bound(&self) -> Option<&str> {
        self.listener.as_deref().map(|open| &*open.bound)
    }

    /// The file of its socket, if somebody has removed it.
    pub fn gone(&self) -> Option<&Path> {
        let open = self.listener.as_deref().filter(|open| open.is_gone())?;
        Some(&open.file.as_ref()?.path)
    }

    pub fn pid(&self) -> Option<u32> {
        self.helper.as_ref().map(|helper| helper.child.id())
    }

    /// Has the process end when its clients have read their answers.
    fn drain(&mut self) -> Option<Child> {
        let helper = self.helper.take()?;
        let _ = kill_process(Pid::from_child(&helper.child), Signal::TERM);
        Some(helper.child)
    }

    /// Ends the process now: its address is free when this returns.
    pub fn end(&mut self) {
        if let Some(mut helper) = self.helper.take() {
            helper.kill();
            let _ = helper.child.wait();
        }
    }

    fn send(&mut self, message: ToHttp, fds: &[Rc<OwnedFd>]) {
        let Some(helper) = &mut self.helper else { return };
        match helper.channel.send_by(message, fds, Instant::now() + PATIENCE) {
            // One that is gone is found by its end.
            Ok(()) | Err(Error::Peer(Peer::Closed)) => {}
            Err(_) => helper.kill(),
        }
    }

    fn pass_listener(&mut self) {
        let Some(open) = self.listener.clone() else { return };
        let message = ToHttp::Listen { number: open.number, tcp: open.address.is_some() };
        self.send(message, &[Rc::clone(&open.fd)]);
    }

    /// Whether the process has ended, and how.
    fn reap(&mut self, now: Instant) -> Option<(u32, ExitStatus)> {
        let helper = self.helper.as_mut()?;
        let status = helper.child.try_wait().ok()??;
        let lasted = now - helper.started >= LASTED;
        let pid = helper.child.id();
        self.helper = None;
        self.deaths += 1;
        self.not_before = Some(now + self.early_deaths.note(lasted));
        Some((pid, status))
    }

    fn is_due(&self, now: Instant) -> bool {
        let is_due = self.not_before.is_none_or(|due| due <= now);
        self.helper.is_none() && self.listener.is_some() && is_due
    }
}

impl Helper {
    fn start() -> io::Result<Helper> {
        let (ours, theirs) = sys::channel::pair()?;
        let mut command = Command::new(super::OWN_IMAGE);
        command.arg("http");
        sys::process::prepare_child(&mut command, "quickack: http", Some(theirs));
        // It often shares a processor with a worker, and clients wait for that one.
        sys::process::give_way(&mut command);
        let (child, started) = (command.spawn()?, Instant::now());
        Ok(Helper {
            child,
            channel: Channel::new(ours),
            started,
            told: State::default(),
            pinged: started,
            is_hung: false,
        })
    }

    fn kill(&self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
    }
}

impl Listener {
    fn is_gone(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.is_there())
    }
}

/// What a socket is found by after a reload.
fn key(address: &Address, addresses: &BTreeMap<String, String>) -> String {
    match address {
        Address::Unix { path, mode: _ } => path.display().to_string(),
        tcp => {
            let written = tcp.to_string();
            let found = addresses.get(&written).map_or("", String::as_str);
            format!("{written} {found}")
        }
    }
}

fn bind(
    number: u32,
    address: &Address,
    key: String,
    addresses: &BTreeMap<String, String>,
    old: Option<&Listener>,
) -> Result<Listener, Error> {
    match address {
        Address::Unix { path, mode } => {
            // Of the same path, if its file was removed: a lock is taken once.
            let same = old.filter(|old| old.key == key).and_then(|old| old.lock.clone());
            let lock = match same {
                Some(lock) => lock,
                None => Rc::new(lock_of(path)?),
            };
            let fd = sys::listen::unix_bound(path, *mode)?;
            let (fd, file) = (Rc::new(fd), Some(SocketFile::of(path)?));
            let bound = path.display().to_string();
            Ok(Listener { number, key, bound, address: None, file, fd, lock: Some(lock) })
        }
        Address::Tcp { .. } => {
            let found = addresses.get(&address.to_string());
            let found: Option<SocketAddr> = found.and_then(|found| found.parse().ok());
            let found = found.ok_or_else(|| Error::Os("it has no address".into()))?;
            let overlaps = old.and_then(|old| old.address).is_some_and(|it| overlap(it, found));
            if !overlaps {
                // Sockets that share an address let any process of the same user share it. So a
                // socket that does not share is tried first.
                drop(sys::listen::tcp_bound(found, false).map_err(in_use)?);
            }
            let fd = sys::listen::tcp_bound(found, true).map_err(in_use)?;
            let local = sys::listen::local_address(&fd)?;
            let (bound, address, fd) = (local.to_string(), Some(local), Rc::new(fd));
            Ok(Listener { number, key, bound, address, file: None, fd, lock: None })
        }
    }
}

fn in_use(error: rustix::io::Errno) -> Error {
    let hint = match error {
        rustix::io::Errno::ADDRINUSE => "; something else is bound there",
        rustix::io::Errno::ACCESS => "; ports below 1024 need a privilege",
        _ => "",
    };
    Error::Os(format!("{error}{hint}"))
}

/// Whether two sockets cannot have these addresses unless they share them.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = |address: SocketAddr| address.ip().is_unspecified();
    let same = one.ip() == other.ip() || is_any(one) || is_any(other);
    one.port() == other.port() && same
}

/// A proxy that is bound and does not listen yet looks dead, so the one that may replace its socket
/// is who has the lock beside it.
fn lock_of(path: &Path) -> Result<FileLock, Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    FileLock::take(Path::new(&name), "another proxy serves there")
}

impl Master {
    /// Starts the process if it is due, tells it what is new, and notices its end.
    pub(super) fn tend_http(&mut self, now: Instant) {
        if let Some((pid, status)) = self.http.reap(now) {
            let again = if !self.is_draining() { "; it is started again" } else { "" };
            let text = format!("the HTTP process (pid {pid}) died: {status}{again}");
            say(&mut self.log, Level::Error, "http_died", &text);
        }
        if !self.is_draining() && self.http.is_due(now) {
            self.start_http(now);
        }
        let state = self.http_state();
        if let Some(helper) = &mut self.http.helper
            && helper.told != state
        {
            helper.told = state.clone();
            self.http.send(ToHttp::State { state }, &[]);
        }
    }

    /// Ends the process if it does not read its messages, of which it gets one now and then: it may
    /// have been stopped. It is started again like one that has died. `was_late`: the master itself
    /// may have stood still, and the process with it.
    pub(super) fn look_at_http(&mut self, now: Instant, was_late: bool) {
        let hang = Duration::from_micros(self.running.config.process.hang_timeout_us);
        let Some(helper) = &mut self.http.helper else { return };
        if !helper.is_hung && !was_late && helper.channel.overdue(now) {
            helper.is_hung = true;
            helper.kill();
            let pid = helper.child.id();
            let text = format!(
                "the HTTP process (pid {pid}) is hung: it does not read its messages; it is being \
                 replaced"
            );
            return say(&mut self.log, Level::Error, "http_hung", &text);
        }
        if !hang.is_zero() && now - helper.pinged >= PING_EVERY {
            helper.pinged = now;
            // One that is gone is found by its end, and one that is full of messages is overdue.
            let _ = helper.channel.send_by(ToHttp::Ping {}, &[], now + hang);
        }
    }

    fn start_http(&mut self, now: Instant) {
        let outcome = Helper::start().and_then(|helper| {
            self.events.add(&helper.channel, Source::Http)?;
            let memory = sys::memory::open_to_read(&self.scoreboard_memory);
            self.http.helper = Some(helper);
            Ok(Rc::new(memory?))
        });
        match outcome {
            Ok(memory) => {
                let release = env!("CARGO_PKG_VERSION").to_string();
                let welcome = ToHttp::Welcome { release, started_unix_us: self.started_unix_us };
                self.http.send(welcome, &[memory]);
                self.tell_http_names();
                let state = self.http_state();
                if let Some(helper) = &mut self.http.helper {
                    helper.told = state.clone();
                }
                self.http.send(ToHttp::State { state }, &[]);
                self.http.pass_listener();
            }
            Err(error) => {
                self.http.end();
                self.http.not_before = Some(now + START_AGAIN);
                let text = format!("cannot start the HTTP process: {error}; trying again");
                say(&mut self.log, Level::Error, "http_start", &text);
            }
        }
    }

    /// The socket that was opened is served from now on, and the one before it no longer.
    pub(super) fn follow_http(&mut self) {
        let is_new =
            |it: &Rc<Listener>| self.http.listener.as_ref().is_none_or(|old| !Rc::ptr_eq(old, it));
        let is_new = self.http.next.as_ref().is_some_and(is_new);
        self.http.listener = self.http.next.take();
        match &self.http.listener {
            None => self.killed.extend(self.http.drain()),
            Some(_) if is_new => self.http.pass_listener(),
            Some(_) => {}
        }
        self.tell_http_names();
    }

    fn tell_http_names(&mut self) {
        if self.http.helper.is_none() {
            return;
        }
        match self.http_names().seal() {
            Ok(names) => self.http.send(ToHttp::Names {}, &[Rc::new(names)]),
            Err(error) => {
                let text = format!("cannot tell the HTTP process the names: {error}");
                say(&mut self.log, Level::Error, "http_names", &text);
            }
        }
    }

    /// Answers the questions of the process.
    pub(super) fn listen_to_http(&mut self) {
        loop {
            let Some(helper) = &mut self.http.helper else { return };
            match helper.channel.receive() {
                Ok(Some(received)) => {
                    let FromHttp::Ask { question } = received.message;
                    self.ask_for_http(question);
                }
                Ok(None) => break,
                Err(error) => {
                    // It has ended, or is ended now.
                    if !matches!(error, Error::Peer(Peer::Closed)) {
                        helper.kill();
                    }
                    self.events.forget(&helper.channel);
                    return;
                }
            }
        }
        if let Some(helper) = &mut self.http.helper {
            let _ = helper.channel.flush();
            let blocked = helper.channel.has_unsent();
            self.events.watch(helper.channel.as_fd(), Source::Http, true, blocked);
        }
    }

    fn ask_for_http(&mut self, question: Question) {
        let text = match question {
            Question::Stats => self.stats_text(true),
            Question::History => {
                let (windows, reloads) = (&self.seconds.windows, &self.reloads.last);
                stats::history(windows, &self.running.plan(), reloads)
            }
            Question::SlowLog => self.slow_log_text(true, None),
            // The answer comes when the workers have answered.
            Question::Clients => {
                let query = Query::Busiest { limit: BUSIEST };
                return self.begin_query(Asker::Http, query, Instant::now());
            }
        };
        self.answer_http(question, &text);
    }

    /// Gives the process an answer.
    pub(super) fn answer_http(&mut self, question: Question, text: &str) {
        if let Ok(text) = sys::memory::sealed("quickack-answer", text.as_bytes()) {
            self.http.send(ToHttp::Answer { question }, &[Rc::new(text)]);
        }
    }

    fn http_state(&self) -> State {
        State {
            draining: self.ending.is_some(),
            deaths: self.slots.iter().map(|slot| slot.deaths).collect(),
            http_deaths: self.http.deaths,
            reloads: self.reloads.clone(),
            names: self.names.counts,
            log_lines_lost: self.log.losses().0.lines,
        }
    }

    /// The file of a pool's unix socket.
    fn socket_of(&self, pool: usize) -> Option<(PathBuf, u64)> {
        let entry = self.running.listeners.iter().find(|entry| entry.pool == pool)?;
        self.listeners.socket_of(entry.id)
    }

    fn http_names(&self) -> Names {
        let running = &self.running;
        let (plan, unresolved) = (running.plan(), running.unresolved());
        let pools = plan.pools.iter().zip(&running.config.upstreams).enumerate();
        let pools = pools.map(|(at, (pool, upstream))| {
            // Labels are addresses or names, and may be alike; names in the ring are not.
            let mut labels: Vec<&str> = pool.servers.iter().map(|it| it.label.as_str()).collect();
            labels.sort_unstable();
            labels.dedup();
            let unique = labels.len() == pool.servers.len();
            let servers = pool.servers.iter().map(|server| ServerNames {
                id: server.id,
                name: if unique { server.label.clone() } else { server.name.clone() },
                admin: server.admin.word().to_string(),
                has_address: !unresolved.contains_key(&server.id),
            });
            PoolNames {
                id: pool.id,
                name: pool.name.clone(),
                protocol: pool.protocol.name().to_string(),
                required: upstream.required,
                socket: self.socket_of(at),
                servers: servers.collect(),
            }
        });
        let tenants = plan.tenants.iter();
        let tenants = tenants.map(|it| TenantNames { id: it.id, name: it.name.clone() });
        Names {
            memory_max: running.config.plan.memory_max as u64,
            private_max: running.config.plan.private_max,
            pools: pools.collect(),
            tenants: tenants.collect(),
        }
    }
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// How long the process may take to receive a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it has to show that it works.
const PING_EVERY: Duration = Duration::from_secs(5);
/// A process that lived this long did not die of its start.
const LASTED: Duration = Duration::from_secs(1);
/// The pause before a start that the system refused is tried again.
const START_AGAIN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_overlap_if_one_is_any_or_they_are_the_same() {
        let check = |one: &str, other: &str| overlap(one.parse().unwrap(), other.parse().unwrap());
        assert!(check("0.0.0.0:80", "127.0.0.1:80") && check("[::1]:80", "[::]:80"));
        assert!(check("[::]:80", "127.0.0.1:80") && check("10.0.0.1:80", "10.0.0.1:80"));
        assert!(!check("0.0.0.0:80", "0.0.0.0:81") && !check("10.0.0.1:80", "10.0.0.2:80"));
    }
}
