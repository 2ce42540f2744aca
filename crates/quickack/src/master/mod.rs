//! The master: one idle process that owns everything its workers only borrow: listeners,
//! configuration, shared memory, embedded caches, the log, the admin socket. It never reads a byte
//! of a client's.
//!
//! ```text
//!   signals ──┐                               ┌── worker 0 ── clients, servers
//!   admin   ──┼──▶ one ladder of questions ──▶├── worker 1     a channel to each, one scoreboard
//!   channels ─┤      (`Master::turn`)         └── …
//!   timers  ──┘                                    cache processes
//! ```
//!
//! | file | what it decides |
//! |---|---|
//! | `shared_memory` | how large the scoreboard is |
//! | `setup` | what a worker is sent: its slot, descriptors, clients that others hand over |
//! | `workers`, `lifecycle` | when a worker is started, believed dead, ended; signals, the end |
//! | `listeners`, `ids`, `caches` | what a configuration needs, and what of it is there already |
//! | `judge` | whether a configuration may hold, and what it would change |
//! | `change`, `change_queue` | one configuration becomes another, for all workers or for none |
//! | `health` | which servers are out of their rings |
//! | `http` | the process that serves metrics and health |
//! | `query`, `clients` | what all workers are asked, and `quickack clients` |
//! | `access_log` | the process that writes the access log |
//! | `servers` | the states of servers that an operator sets, and `quickack servers` |
//! | `names` | the process that looks up servers' names, and when they move |
//! | `info` | what is said of the proxy as a whole, and whether it is ready |
//! | `problems` | what is wrong now, in sentences |
//! | `seconds` | the latencies of the last seconds and minutes |
//! | `admin_server` | what the operator asks by the admin socket |
//! | `stats_port` | twemproxy's statistics, and who asks for them in HTTP |
//! | `acceptor` | how many connections the two have at once |
//! | `running` | the configuration that holds, as workers are sent it |
//! | `reader` | a process of its own that reads files and looks up hosts |

mod acceptor;
mod access_log;
mod admin_server;
mod caches;
mod change;
mod change_queue;
mod clients;
mod events;
mod health;
mod http;
mod ids;
mod info;
mod inquiries;
mod judge;
mod lifecycle;
mod listeners;
mod lists;
mod names;
mod preparing;
mod problems;
mod query;
pub mod reader;
mod report;
mod running;
mod seconds;
mod servers;
mod setup;
mod shared_memory;
mod slow_log;
mod stats_port;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sys::kernel::Kernel;
use sys::signal::Signals;

use crate::config::{Config, WORKERS_MAX};
use crate::event::{self, Rows};
use crate::scoreboard::{Ejection, Scoreboard};

use crate::error::{Error, Peer};
use crate::ipc::ToMaster;
use crate::ipc::client_state::{ClientState, ClientTally};
use crate::ipc::http_view::Reloads;
use crate::log::{self, About, Clocks, Entry, Level, Log, Origin};

use access_log::AccessLog;
use admin_server::AdminServer;
use caches::Caches;
use change::Change;
use change_queue::ChangeRequest;
use events::{Events, Source};
use health::Health;
use http::Http;
use ids::Ids;
use lifecycle::Ending;
use listeners::Listeners;
use names::Names;
use query::Queries;
use running::Running;
use seconds::Seconds;
use stats_port::StatsPort;
use workers::{Slot, State, Worker};

/// Serves `config` until it is told to end. `file` is what a reload reads; `ready` is called when
/// the listeners are open and no worker has been started.
pub fn run(config: Config, file: Option<PathBuf>, ready: &mut dyn FnMut()) -> ExitCode {
    if let Some(name) = file.as_deref().and_then(Path::file_name) {
        sys::process::name_titles(&name.to_string_lossy());
    }
    sys::process::set_title("quickack: master");
    sys::process::raise_descriptors();
    let process = &config.process;
    let (target, format) = (process.log.clone(), process.log_format);
    let log = Log::open(&target, format, process.log_level);
    let started = log.and_then(|log| Master::start(config, file, log, ready));
    let started = started.map_err(|error| format!("cannot start: {error}"));
    let ended =
        started.and_then(|master| master.watch().map_err(|error| format!("cannot go on: {error}")));
    ended.unwrap_or_else(|why| {
        log::last_words(&target, format, &why);
        ExitCode::FAILURE
    })
}

struct Master {
    signals: Signals,
    events: Events,
    scoreboard: Scoreboard,
    /// The scoreboard's memory, and what else every worker is passed.
    scoreboard_memory: Rc<OwnedFd>,
    lock: Rc<OwnedFd>,
    wakeups: Vec<Rc<OwnedFd>>,
    running: Running,
    /// The running configuration as workers get it, in a sealed memfd.
    sealed_config: Rc<OwnedFd>,
    ids: Ids,
    listeners: Listeners,
    caches: Caches,
    health: Health,
    slots: Vec<Slot>,
    change: Option<Change>,
    /// Requests that came while a change was under way, in order.
    change_requests: VecDeque<ChangeRequest>,
    admin: AdminServer,
    stats_port: StatsPort,
    queries: Queries,
    http: Http,
    access_log: AccessLog,
    names: Names,
    reloads: Reloads,
    /// Why the admin socket could not be opened last, to be told once.
    admin_error: String,
    log: Log,
    file: Option<PathBuf>,
    ending: Option<Ending>,
    /// Some worker has begun to serve.
    has_served: bool,
    /// WINCH: the workers have been sent away, the listeners are kept.
    workers_sent_away: bool,
    next_check: Instant,
    seconds: Seconds,
    /// How many clients those workers have, by slot, that were given some since the last look.
    clients_given: BTreeMap<usize, u32>,
    /// Clients that were handed over while no worker served: they wait for the next that does.
    waiting_clients: Vec<WaitingClient>,
    /// Children that were killed and have not been reaped yet.
    killed: Vec<Child>,
    /// The epoch of the last change that was tried, whether it holds or not.
    last_epoch: u64,
    started: Instant,
    /// The same in microseconds since 1970.
    started_unix_us: u64,
}

/// A client that no worker has now.
struct WaitingClient {
    client: ClientState,
    tally: ClientTally,
    fd: OwnedFd,
}

impl Master {
    fn start(
        config: Config,
        file: Option<PathBuf>,
        log: Log,
        ready: &mut dyn FnMut(),
    ) -> Result<Master, Error> {
        let signals = Signals::new(lifecycle::SIGNALS)?;
        judge::affinity(&config)?;
        let (names, config, resolved) = Names::begin(config, file.as_deref())?;
        let (memory, scoreboard) = shared_memory::make_scoreboard(&config)?;
        let mut ids = Ids::new(scoreboard.ids_max());
        let addresses = reader::choose(&resolved, None);
        let assigned = ids.assign(&config, &addresses)?;
        let choice = event::choose(config.process.accept, Kernel::running(), &event::CALLS)?;
        let mut listeners = Listeners::default();
        let (mut http, mut caches) = (Http::default(), Caches::new());
        let entries = listeners.open(&config, &addresses, choice.mode)?;
        listeners.start(&config, &entries)?;
        http.open(&config, &addresses)?;
        http.start(&config)?;
        let access_log = AccessLog::of(&config)?;
        caches.start(&config, &assigned)?;
        let running = Running {
            epoch: 1,
            tenants: ids.tenants(&config),
            config,
            mode: choice.mode,
            ids: assigned,
            listeners: entries,
            resolved,
            addresses,
        };
        scoreboard.commit_config(running.epoch);
        let events = Events::new(&signals)?;
        let admin = AdminServer::open(&running, file.as_deref(), &events)?;
        let (clocks, seconds) = (Clocks::read(), Seconds::new(Clocks::read()));
        let mut master = Master {
            sealed_config: Rc::new(running.installation(&mut caches)?.seal()?),
            stats_port: StatsPort::open(&running, &events)?,
            events,
            signals,
            health: Health::new(&running),
            scoreboard,
            scoreboard_memory: Rc::new(memory),
            lock: Rc::new(sys::lock::new()?),
            wakeups: Vec::new(),
            running,
            ids,
            listeners,
            caches,
            slots: Vec::new(),
            change: None,
            change_requests: VecDeque::new(),
            admin,
            queries: Queries::default(),
            http,
            access_log,
            names,
            reloads: Reloads::since(clocks.unix_us / 1_000_000),
            admin_error: String::new(),
            log,
            file,
            ending: None,
            has_served: false,
            workers_sent_away: false,
            next_check: Instant::now() + seconds.until_half(clocks),
            seconds,
            clients_given: BTreeMap::new(),
            waiting_clients: Vec::new(),
            killed: Vec::new(),
            last_epoch: 1,
            started: Instant::now(),
            started_unix_us: clocks.unix_us,
        };
        master.begin(&choice.why, ready)?;
        Ok(master)
    }

    /// Starts the workers.
    fn begin(&mut self, why_this_mode: &str, ready: &mut dyn FnMut()) -> Result<(), Error> {
        self.names.watch(&self.events)?;
        self.follow_http();
        self.announce(why_this_mode);
        ready();
        self.fill_slots(self.running.config.process.worker_count())?;
        Ok(())
    }

    fn watch(mut self) -> io::Result<ExitCode> {
        loop {
            if let Some(code) = self.turn()? {
                self.caches.end();
                // Its clients are told that the proxy is ending, until it has ended.
                self.http.end();
                self.access_log.end();
                if let Some(mut resolver) = self.names.end() {
                    let _ = resolver.wait();
                }
                self.log.finish(Clocks::read());
                return Ok(ExitCode::from(code));
            }
        }
    }

    /// One look at everything, in this order. The answer is the exit status when all is over.
    fn turn(&mut self) -> io::Result<Option<u8>> {
        let sources = self.events.wait(self.timeout())?;
        let now = Instant::now();
        for source in sources {
            match source {
                Source::Signals => self.handle_signals(now),
                Source::Channel(slot) => self.listen_to(slot),
                Source::Admin(id) => self.serve_admin(id, now),
                Source::Stats(id) => self.serve_stats(id, now),
                Source::Http => self.listen_to_http(),
                Source::LogWriter => self.listen_to_log_writer(),
                Source::Resolver => self.listen_to_resolver(),
            }
        }
        self.scoreboard.beat_of_master(Clocks::read().clock_us);
        self.reap(now)?;
        for said in self.caches.restart_due(now) {
            say(&mut self.log, Level::Error, "cache_died", &said);
        }
        self.continue_change(now);
        self.begin_next_change(now);
        if now >= self.next_check {
            self.tell_process();
            self.end_second();
            if !self.is_draining() {
                self.renew_admin(None);
            }
            self.look_at_heartbeats(now);
        }
        self.end_delay(now);
        if !self.is_draining() && !self.workers_sent_away {
            self.start_what_is_due(now);
        }
        self.tend_http(now);
        self.tend_access_log(now);
        self.tend_names(now);
        self.release_ids();
        self.tend_queries(now);
        self.tend_stats(now);
        for WaitingClient { client, tally, fd } in std::mem::take(&mut self.waiting_clients) {
            self.pass_clients(&client, std::iter::once((tally, fd)));
        }
        self.log.tick(Clocks::read());
        Ok(self.ended(now))
    }

    /// How long nothing may happen.
    fn timeout(&self) -> Duration {
        let wanted = match self.workers_sent_away || self.is_draining() {
            true => 0,
            false => self.running.config.process.worker_count(),
        };
        let vacant = self.slots.iter().take(wanted).filter(|slot| slot.worker.is_none());
        let starts = vacant.map(|slot| slot.not_before);
        let ending = self.ending.as_ref().map(Ending::due);
        let log = self.log.due_us().map(|due| {
            let wait = due.saturating_sub(Clocks::read().clock_us);
            Instant::now() + Duration::from_micros(wait)
        });
        // The turn that comes each half second looks at everything else that has its time.
        let names = self.names.due().filter(|_| self.change.is_none() && self.ending.is_none());
        let all = starts.chain(ending).chain(log).chain(self.queries.due()).chain(names);
        let all = all.chain(self.stats_port.due());
        let next = all.min().unwrap_or(self.next_check).min(self.next_check);
        next.saturating_duration_since(Instant::now())
    }

    /// Handles the messages of a worker.
    fn listen_to(&mut self, number: usize) {
        loop {
            let Some(worker) = self.slots[number].worker.as_mut() else { return };
            match worker.channel.receive() {
                Ok(Some(received)) => self.handle_message(number, received.message, received.fds),
                Ok(None) => break,
                Err(Error::Peer(Peer::Closed)) => {
                    // It is ending; its end is found by the signal that comes with it.
                    self.events.forget(&worker.channel);
                    return;
                }
                Err(error) => {
                    let text = format!("worker {number}: {error}; it is being stopped");
                    let about = About::worker(number);
                    say_of(&mut self.log, Level::Error, "worker_channel", about, &text);
                    worker.signal(Signal::KILL);
                    self.events.forget(&worker.channel);
                    return;
                }
            }
        }
        if let Some(worker) = self.slots[number].worker.as_mut() {
            // A worker that takes nothing any more has ended, or is about to.
            let _ = worker.channel.flush();
            let blocked = worker.channel.has_unsent();
            self.events.watch(worker.channel.as_fd(), Source::Channel(number), true, blocked);
        }
    }

    fn handle_message(&mut self, number: usize, message: ToMaster, fds: Vec<OwnedFd>) {
        match message {
            ToMaster::Prepared { epoch } => self.note_prepared(number, epoch),
            ToMaster::Refused { epoch, why } => self.note_refused(number, epoch, &why),
            ToMaster::Installed { epoch, ids_in_use } => {
                self.note_installed(number, epoch, ids_in_use);
            }
            ToMaster::IdsInUse { ids } => {
                if let Some(worker) = self.slots[number].worker.as_mut() {
                    worker.ids_in_use = ids;
                }
            }
            ToMaster::Failed { server, failures, why } => {
                self.note_failure(number, server, failures, &why);
            }
            ToMaster::Answered { server, probe } => self.note_answer(number, server, probe),
            ToMaster::Doubted { server } => self.ask_others(number, server),
            ToMaster::LinkRefused { server, why } => self.health.note_refusal(server, why),
            ToMaster::Log { level, event, key, about, text } => {
                let pid = self.slots[number].worker.as_ref().map_or(0, Worker::pid);
                let origin = Origin::Worker { slot: number, pid };
                self.log.write(Clocks::read(), Entry { level, event, key, text, about, origin });
            }
            ToMaster::LogLost { lines } => {
                let text = format!("worker {number}: {lines} log lines were lost");
                let about = About::worker(number);
                say_of(&mut self.log, Level::Warning, "log_lost", about, &text);
            }
            ToMaster::Leaving {} => self.note_leaving(number),
            ToMaster::Clients { client, tallies } => {
                self.pass_clients(&client, tallies.into_iter().zip(fds));
            }
            ToMaster::Ask { number: question, query } => {
                self.begin_inquiry(number, question, query)
            }
            ToMaster::Rows { number: query, clients, in_pieces, left_out, is_last } => {
                let rows = Rows { number: query, clients, in_pieces, left_out, is_last };
                self.note_rows(number, rows);
            }
        }
    }

    fn note_installed(&mut self, number: usize, epoch: u64, ids_in_use: Vec<u32>) {
        let Some(worker) = self.slots[number].worker.as_mut() else { return };
        worker.epoch = epoch;
        worker.ids_in_use = ids_in_use;
        if worker.state == State::Starting {
            worker.set_state(State::Serving);
            self.has_served = true;
            self.scoreboard.set_serving(number, true);
            // A client that waits in a listener's queue may be this worker's to take.
            sys::wakeup::wake(&self.wakeups[number]);
            self.tell_new_worker(number);
        }
        self.note_applied(number, epoch);
    }

    /// Wipes and frees the ids of pools and servers that have left and are not used any more.
    fn release_ids(&mut self) {
        if self.change.is_some() || !self.ids.is_anything_leaving() {
            return;
        }
        let workers = self.slots.iter().filter_map(|slot| slot.worker.as_ref());
        let mut in_use = BTreeSet::new();
        for worker in workers {
            if worker.epoch != self.running.epoch {
                // It may still use anything.
                return;
            }
            in_use.extend(worker.ids_in_use.iter().copied());
        }
        let freed = self.ids.release(&in_use);
        for id in &freed {
            self.scoreboard.registry().clear_row(*id);
            self.seconds.forget_row(*id);
            // Its id may be another pool's next.
            let now_us = Clocks::read().clock_us;
            self.scoreboard.master_metrics().reset_slow_log(*id, metrics::SlowReset::All, now_us);
        }
        let still_out = freed.iter().filter(|id| self.scoreboard.is_ejected(**id));
        let still_out: Vec<Ejection> =
            still_out.map(|id| Ejection { server: *id, ejected: false }).collect();
        if !still_out.is_empty() {
            self.scoreboard.set_ejected(&still_out);
        }
        if !freed.is_empty() {
            let (config, ids) = (&self.running.config, &self.running.ids);
            let gone = self.caches.keep(config, ids, |id| in_use.contains(&id));
            self.killed.extend(gone);
        }
    }
}

/// A line of the master's own; the same words again within a second are counted.
fn say(log: &mut Log, level: Level, event: &str, text: &str) {
    log.write(Clocks::read(), Entry::new(level, event, text));
}

/// The same, about a worker, a pool or a server.
fn say_of(log: &mut Log, level: Level, event: &str, about: About, text: &str) {
    log.write(Clocks::read(), Entry { about, ..Entry::new(level, event, text) });
}

const _: () = assert!(WORKERS_MAX <= sys::channel::FDS_MAX);
/// The running image: a replaced file on disk never mixes versions.
const OWN_IMAGE: &str = "/proc/self/exe";
