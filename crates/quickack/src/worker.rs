//! The worker: one loop around one `Proxy`, controlled by the master over a channel and the
//! scoreboard. It never forks, blocks, or opens a file once it serves.
//!
//! ```text
//!   Welcome, Lock, Listeners, Wakeups ──▶ Prepare (compile) ──▶ Commit ──▶ the loop
//!                                              ▲                              │ the same again
//!                                              └──────────────────────────────┘ for each reload
//! ```

mod access;
mod lines;
mod names;
mod origins;
mod prepare;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use proxy::access::AccessLine;
use proxy::connection::Connection;
use proxy::{Event, Proxy, Report, Tally, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::clock::monotonic_us;
use sys::signal::{self, Signals};

use crate::config::Affinity;
use crate::error::{Error, Peer};
use crate::event::{self, Command, Leaver, Loop, Rows};
use crate::ipc::client_state::{ClientState, ClientTally};
use crate::ipc::installation::Installation;
use crate::ipc::query::{self, Query};
use crate::ipc::{Channel, Received, ToMaster, ToWorker};
use crate::log::{self, About, Level};
use crate::scoreboard::{self, Epochs, Scoreboard};
use access::AccessLog;
use names::Names;
use origins::Origins;

use prepare::{Prepared, compile, seed};

/// Serves until the master says otherwise, or is gone.
pub fn run() -> ExitCode {
    match sys::process::take_passed().map_err(Error::from).and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("worker: {error}; workers are started by `quickack run`");
            log::line(Level::Error, &text);
            ExitCode::FAILURE
        }
    }
}

fn serve(channel: OwnedFd) -> Result<(), Error> {
    let mut master = MasterChannel::new(Channel::new(channel));
    let first = master.wait_for_first()?;
    let scoreboard = master.scoreboard.clone();
    let scoreboard = scoreboard.ok_or_else(|| Peer::Broken("no scoreboard was passed".into()))?;
    sys::process::keep_title();
    master.pin(&first.affinity);
    let room = first.install.plan.clients_room;
    if room < ROOM_EXPECTED.min(first.install.plan.clients_max) {
        let text =
            format!("a worker has room for only {room} clients: the descriptor limit is low");
        master.log_line(Level::Warning, "clients_room", About::default(), "room", text);
    }
    let signals = Signals::new(signal::ALL_OF_A_CHILD)?;
    let shared = event::Shared {
        scoreboard: scoreboard.clone(),
        slot: master.slot,
        mode: first.mode,
        wakeups: master.wakeups.clone(),
        lock: master.lock.take(),
    };
    let metrics = scoreboard.metrics(master.slot);
    let install = first.install;
    let mut service = Proxy::new(install.plan.clone(), seed(), Time(monotonic_us()), metrics);
    master.installed.config = first.epoch;
    master.access_log.set_counters(metrics.counters(0));
    master.access_log.install(first.access_log, first.tenants);
    let ended = Loop::controlled(&mut service, &mut master, shared, install, signals)
        .and_then(|mut looping| looping.run());
    master.finish();
    Ok(ended?)
}

/// The channel to the master, and what came by it: the scoreboard, descriptors, configurations.
struct MasterChannel {
    channel: Channel<ToMaster, ToWorker>,
    slot: usize,
    scoreboard: Option<Scoreboard>,
    lock: Option<OwnedFd>,
    wakeups: Rc<std::cell::RefCell<Vec<OwnedFd>>>,
    /// Listening sockets that were passed and are not in the loop yet.
    passed: BTreeMap<u32, OwnedFd>,
    prepared: Option<Prepared>,
    /// The installed configuration, and the health as it was looked at last.
    installed: Epochs,
    /// The health of those that are planned is looked at in the scoreboard.
    names: Names,
    ejected: Vec<u32>,
    /// Ids that the master was last told are still in use.
    told_in_use: Vec<u32>,
    /// Messages that the channel had no room for and that must be sent: the last about each server,
    /// …
    owed_of_servers: BTreeMap<u32, ToMaster>,
    /// … and everything else but lines for the log, which are only counted.
    owed: VecDeque<ToMaster>,
    lines_lost: u64,
    /// Clients' addresses and names of failed logins that are still to be logged, by the pool's id.
    failed_logins: BTreeMap<u32, Origins>,
    access_log: AccessLog,
    /// The master has ended.
    is_gone: bool,
    /// The processors that we might use before we were kept on one.
    processors: Vec<usize>,
}

impl MasterChannel {
    fn new(channel: Channel<ToMaster, ToWorker>) -> MasterChannel {
        MasterChannel {
            channel,
            slot: 0,
            scoreboard: None,
            lock: None,
            wakeups: Rc::default(),
            passed: BTreeMap::new(),
            prepared: None,
            installed: Epochs::default(),
            names: Names::default(),
            ejected: Vec::new(),
            told_in_use: Vec::new(),
            owed_of_servers: BTreeMap::new(),
            owed: VecDeque::new(),
            lines_lost: 0,
            failed_logins: BTreeMap::new(),
            access_log: AccessLog::new(),
            is_gone: false,
            processors: sys::process::affinity(),
        }
    }

    /// Keeps this worker on a processor of its own, where that was asked for.
    fn pin(&self, affinity: &Affinity) {
        let nth = |list: &[usize]| match list {
            [] => Vec::new(),
            list => vec![list[self.slot % list.len()]],
        };
        let wanted = match affinity {
            Affinity::Off => self.processors.clone(),
            Affinity::Auto => nth(&self.processors),
            Affinity::List(list) => nth(list),
        };
        if wanted.is_empty() || wanted == sys::process::affinity() {
            return;
        }
        if let Err(error) = sys::process::set_affinity(&wanted) {
            let slot = self.slot;
            let text = format!("worker {slot} cannot be pinned to processors {wanted:?}: {error}");
            log::line(Level::Warning, &text);
        }
    }

    /// Before it serves a worker has nothing else to do, and may wait.
    fn wait_for_first(&mut self) -> Result<Prepared, Error> {
        loop {
            while let Some(received) = self.channel.receive()? {
                self.handle(received, &mut Vec::new())?;
                self.channel.acknowledge()?;
                // After each message: what comes next may prepare a change that never holds.
                let holds = self.scoreboard.as_ref().map_or(0, Scoreboard::config_epoch);
                if let Some(prepared) = self.prepared.take_if(|one| one.epoch <= holds) {
                    self.names.install(prepared.names.clone());
                    // The loop has its own copies; ours would keep the sockets open.
                    self.passed.clear();
                    return Ok(prepared);
                }
            }
            let mut wait = [PollFd::new(&self.channel, PollFlags::IN)];
            match poll(&mut wait, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Handles the messages that have come.
    fn handle_all(&mut self, out: &mut Vec<Command>) -> Result<(), Error> {
        while let Some(received) = self.channel.receive()? {
            self.handle(received, out)?;
        }
        Ok(())
    }

    /// Handles a message from the master; commands for the loop are appended.
    fn handle(
        &mut self,
        received: Received<ToWorker>,
        out: &mut Vec<Command>,
    ) -> Result<(), Error> {
        let Received { message, mut fds } = received;
        match message {
            ToWorker::Welcome { slot, release: _ } => {
                self.slot = slot;
                if let Some(fd) = fds.pop() {
                    self.scoreboard = Some(Scoreboard::open(sys::memory::map(fd)?)?);
                }
            }
            ToWorker::Lock {} => self.lock = fds.pop(),
            ToWorker::AccessLog {} => self.access_log.set_pipe(fds.pop()),
            ToWorker::Listeners { ids } if ids.len() != fds.len() => {
                let why = format!("{} listeners came with {} descriptors", ids.len(), fds.len());
                return Err(Peer::Broken(why).into());
            }
            ToWorker::Listeners { ids } => self.passed.extend(ids.into_iter().zip(fds)),
            ToWorker::Wakeups { first } => {
                let mut wakeups = self.wakeups.borrow_mut();
                wakeups.truncate(first);
                wakeups.extend(fds);
            }
            ToWorker::Prepare { epoch } => fds.into_iter().for_each(|fd| self.prepare(epoch, fd)),
            // The scoreboard says which epoch holds; this has only woken us.
            ToWorker::Commit { epoch: _ } => {}
            ToWorker::Abort { epoch } => {
                self.prepared.take_if(|prepared| prepared.epoch == epoch);
                self.passed.clear();
            }
            ToWorker::Adopt { mut client, tally } => {
                client.passed.tally = tally.into();
                out.push(Command::Adopt { client, fds });
            }
            ToWorker::Query { number, until_us, query } => {
                out.push(Command::Query { number, until: Time(until_us), query });
            }
            ToWorker::Told { number, count, is_own, why } => {
                let told = query::told(fds.pop(), (count, is_own), why);
                out.push(Command::Told { number, told });
            }
            ToWorker::NotTold { number, why } => {
                out.push(Command::Told { number, told: Err(why) });
            }
            ToWorker::AskServer { server } => out.push(Command::AskServer(server)),
            ToWorker::ServerEjected { server, why } => {
                out.push(Command::NoteWhyEjected { server, why });
            }
            ToWorker::Retire {} => out.push(Command::Retire),
            ToWorker::Share { keep } => out.push(Command::Share { keep }),
            ToWorker::Drain { timeout_us } => {
                out.push(Command::Drain { within: Duration::from_micros(timeout_us) });
            }
        }
        Ok(())
    }

    fn prepare(&mut self, epoch: u64, fd: OwnedFd) {
        let read = Installation::read(fd).map_err(Error::from);
        match read.and_then(|it| compile(&it, self.slot, &self.passed)) {
            Ok(prepared) => {
                self.prepared = Some(prepared);
                self.say(ToMaster::Prepared { epoch });
            }
            Err(error) => {
                self.passed.clear();
                self.say(ToMaster::Refused { epoch, why: error.to_string() });
            }
        }
    }

    /// Says something to the master, now or when the channel has room again.
    fn say(&mut self, message: ToMaster) {
        self.say_what_is_owed();
        if let ToMaster::Failed { server, .. } | ToMaster::Answered { server, .. } = message {
            // This is the last word about it.
            self.owed_of_servers.remove(&server);
        }
        if self.channel.has_room() && self.owed.is_empty() {
            // If the master is gone the loop finds out when it listens.
            let _ = self.channel.send(message, &[]);
            return;
        }
        match message {
            ToMaster::Log { .. } => self.lines_lost += 1,
            ToMaster::LinkRefused { .. } | ToMaster::Doubted { .. } => {}
            ToMaster::Failed { server, .. } | ToMaster::Answered { server, .. } => {
                self.owed_of_servers.insert(server, message);
            }
            // A few for each configuration.
            other => self.owed.push_back(other),
        }
    }

    fn say_what_is_owed(&mut self) {
        while self.channel.has_room() {
            let lost = std::mem::take(&mut self.lines_lost);
            let next = self.owed.pop_front();
            let next = next.or_else(|| self.owed_of_servers.pop_first().map(|(_, it)| it));
            let next = next.or((lost > 0).then_some(ToMaster::LogLost { lines: lost }));
            let Some(message) = next else { return };
            if !matches!(message, ToMaster::LogLost { .. }) {
                self.lines_lost = lost;
            }
            let _ = self.channel.send(message, &[]);
        }
    }

    /// Nothing is served any more: the last words, and clients that were handed over, leave before
    /// the process does.
    fn finish(&mut self) {
        self.access_log.flush();
        let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
        while self.channel.has_unsent() {
            let mut wait = [PollFd::new(&self.channel, PollFlags::OUT)];
            match poll(&mut wait, Some(&patience)) {
                Ok(0) => return,
                Ok(_) | Err(rustix::io::Errno::INTR) if self.channel.flush().is_ok() => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Sends a line for the log. Lines with the same key are repeats; those without one are not.
    fn log_line(&mut self, level: Level, event: &str, about: About, key: &str, text: String) {
        let (event, key) = (event.to_string(), key.to_string());
        self.say(ToMaster::Log { level, event, key, about, text });
    }
}

impl event::Control for MasterChannel {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }

    fn has_unsent(&self) -> bool {
        self.channel.has_unsent()
    }

    fn poll_changes(&mut self, out: &mut Vec<Command>) {
        let Some(scoreboard) = &self.scoreboard else { return };
        let now = Epochs { config: scoreboard.config_epoch(), health: scoreboard.health_epoch() };
        if now == self.installed {
            return;
        }
        let mut changed = false;
        if let Some(prepared) = self.prepared.take_if(|prepared| prepared.epoch <= now.config) {
            self.installed.config = prepared.epoch;
            self.names.install(prepared.names);
            self.pin(&prepared.affinity);
            self.passed.clear();
            self.access_log.install(prepared.access_log, prepared.tenants);
            out.push(Command::Install(Box::new(prepared.install)));
            changed = true;
        }
        if now.health != self.installed.health || changed {
            self.installed.health = now.health;
            let out_now: Vec<u32> = self
                .names
                .planned()
                .keys()
                .copied()
                .filter(|id| scoreboard.is_ejected(*id))
                .collect();
            out.extend(scoreboard::changes(&self.ejected, &out_now).map(Command::Eject));
            self.ejected = out_now;
            scoreboard.set_installed(self.slot, self.installed);
        }
    }

    fn receive(&mut self, out: &mut Vec<Command>) {
        if self.handle_all(out).is_err() {
            // Without a master nobody would start us again or count us: the clients are served to
            // the end of what they asked.
            self.is_gone = true;
            return out.push(Command::Drain { within: ORPHAN_TIMEOUT });
        }
        // If the master is gone, the next look finds out.
        let _ = self.channel.flush();
        let _ = self.channel.acknowledge();
    }

    fn is_gone(&self) -> bool {
        self.is_gone
    }

    fn leaving(&mut self) {
        self.say(ToMaster::Leaving {});
    }

    fn installed(&mut self, service: &dyn event::Service) {
        self.told_in_use = service.retired_ids_in_use();
        self.names.keep_retired(&self.told_in_use);
        let (epoch, ids_in_use) = (self.installed.config, self.told_in_use.clone());
        if let Some(scoreboard) = &self.scoreboard {
            scoreboard.set_installed(self.slot, self.installed);
        }
        self.say(ToMaster::Installed { epoch, ids_in_use });
    }

    fn after_turn(&mut self, service: &dyn event::Service) {
        if !self.told_in_use.is_empty() {
            let ids = service.retired_ids_in_use();
            if ids != self.told_in_use {
                self.told_in_use.clone_from(&ids);
                self.say(ToMaster::IdsInUse { ids });
            }
        }
        self.say_what_is_owed();
        self.access_log.flush();
    }

    fn has_backlog(&self) -> bool {
        self.access_log.has_unwritten()
    }

    fn access(&mut self, line: &AccessLine, client: &str) {
        let ahead_us = self.scoreboard.as_ref().map(|it| it.registry().process().unix_ahead_us);
        let unix_us = line.entry.at_us.wrapping_add(ahead_us.unwrap_or(0));
        self.access_log.note(line, (unix_us, self.slot, client), &self.names);
    }

    fn report(&mut self, report: Report) {
        self.say(report.into());
    }

    fn log(&mut self, event: Event, from: Option<IpAddr>) {
        match event {
            Event::LoginFailed { pool, client: _, name, is_known } => {
                self.failed_logins.entry(pool).or_default().note(from, name, is_known);
            }
            Event::LoginsFailed { pool, count } => {
                let from = self.failed_logins.remove(&pool).unwrap_or_default();
                let about = self.names.about(pool);
                let text = lines::of_failed_logins(&about, count, &from);
                // Without a key: the worker has counted already, and the words differ.
                self.log_line(Level::Warning, "login_failed", about, "", text);
            }
            other => {
                if let Some(message) = lines::to_master(&other) {
                    self.say(message);
                }
                let subject = lines::subject(&other);
                let about = subject.map(|id| self.names.about(id)).unwrap_or_default();
                if let Some((level, event, text)) = lines::of_event(&other, &about, from) {
                    let key = format!("{event} {}", subject.unwrap_or_default());
                    self.log_line(level, event, about, &key, text);
                }
            }
        }
    }

    fn log_connection(&mut self, what: &Connection, ends: [&str; 2]) {
        let about = self.names.about(lines::subject_of_connection(what));
        let tenant = self.access_log.tenant_of(what);
        let (event, text) = lines::of_connection(what, &about, ends, tenant);
        self.log_line(Level::Debug, event, about, "", text);
    }

    fn log_loop_event(&mut self, note: event::LoopEvent) {
        let (event, key, text) = note.line();
        self.log_line(Level::Warning, event, About::default(), &key, text);
    }

    fn hand_over(&mut self, client: ClientState, ones: Vec<Leaver>) -> Result<(), Vec<Leaver>> {
        let ones = ones.into_iter().map(|one| (one.tally, Rc::new(one.fd)));
        let mut rest: VecDeque<(Tally, Rc<OwnedFd>)> = ones.collect();
        while !rest.is_empty() {
            let some = || rest.iter().take(sys::channel::FDS_MAX);
            let tallies: Vec<ClientTally> = some().map(|(tally, _)| (*tally).into()).collect();
            let fds: Vec<Rc<OwnedFd>> = some().map(|(_, fd)| Rc::clone(fd)).collect();
            let client = client.clone();
            if self.channel.send(ToMaster::Clients { client, tallies }, &fds).is_err() {
                drop(fds);
                let back = |(tally, fd)| Some(Leaver { tally, fd: Rc::into_inner(fd)? });
                return Err(rest.into_iter().filter_map(back).collect());
            }
            rest.drain(..fds.len());
        }
        Ok(())
    }

    fn ask(&mut self, number: u64, query: Query) -> Result<(), String> {
        let sent = self.channel.send(ToMaster::Ask { number, query }, &[]);
        sent.map(drop).map_err(|error| error.to_string())
    }

    fn answer(&mut self, rows: Rows) {
        let Rows { number, clients, in_pieces, left_out, is_last } = rows;
        // If the master is gone the loop finds out when it listens.
        let rows = ToMaster::Rows { number, clients, in_pieces, left_out, is_last };
        let _ = self.channel.send(rows, &[]);
    }
}

/// Fewer clients than this are worth a word at the start.
const ROOM_EXPECTED: usize = 512;
/// How long clients may wait for their last answers when the master has gone.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(10);
