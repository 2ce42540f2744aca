//! The process that looks up the names of servers and takes lists of them, and what comes of its
//! answers about names: the master chooses one address for each server, and changes it for all
//! workers at one epoch. What comes of the lists: `lists.rs`.
//!
//! ```text
//!   resolver ──answers──▶ what is known of each name ──another address──▶ a change (`change.rs`)
//! ```
//!
//! A server keeps its address while the answer still has it, and when there is no answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use super::change_queue::{Asked, Wanted};
use super::events::{Events, Source};
use super::lists::{self, KnownLists};
use super::reader::{self, Addresses, Place, Reading};
use super::workers::EarlyDeaths;
use super::{Master, Running, say, say_of};
use crate::config::{Config, ListSource};
use crate::error::Error;
use crate::ipc::http_view::NameCounts;
use crate::ipc::{Channel, FromResolver, ToResolver};
use crate::log::{About, Level};
use crate::resolver::{self, Found, Subjects};

/// The process, the names that it looks up, and what it has said of them.
#[derive(Default)]
pub struct Names {
    helper: Option<Helper>,
    /// What it looks up.
    subjects: Subjects,
    every_us: u64,
    answers: BTreeMap<String, Found>,
    pub lists: KnownLists,
    pub counts: NameCounts,
    /// When servers get the addresses that they are to have by now.
    due: Option<Instant>,
    early_deaths: EarlyDeaths,
    /// A process is not started before this.
    not_before: Option<Instant>,
}

struct Helper {
    child: Child,
    channel: Channel<ToResolver, FromResolver>,
    started: Instant,
    /// When it was last asked to show that it works.
    pinged: Instant,
    /// It has been killed because it did not.
    is_hung: bool,
}

/// A server whose address is another.
pub struct Move {
    about: About,
    name: String,
    now: String,
    was: Option<String>,
}

impl Names {
    /// Looks up all names of the configuration that the proxy starts with, and takes its lists of
    /// servers. Both are waited for, but not for long: then servers are down, and pools have none,
    /// until there is an answer. Returns the configuration with the lists.
    pub fn begin(config: Config, file: Option<&Path>) -> Result<(Names, Config, Addresses), Error> {
        let mut names = Names::default();
        names.subjects.folder = reader::folder(file);
        names.follow(&config);
        let mut why = format!("no answer within {} s", START_PATIENCE.as_secs());
        let until = Instant::now() + START_PATIENCE;
        if !names.subjects.is_empty() {
            match names.start() {
                Ok(()) => names.await_answers(until),
                Err(error) => why = format!("cannot start the resolver: {error}"),
            }
        }
        let config = names.lists.at_start(config, &why);
        if names.follow(&config) {
            // The servers of the lists.
            names.ask()?;
            names.await_answers(until);
        }
        let addresses = names.first_answers(&config, &why);
        reader::require_listeners(&config, &addresses, &BTreeMap::new())?;
        Ok((names, config, addresses))
    }

    fn first_answers(&self, config: &Config, why: &str) -> Addresses {
        reader::look_up(config, |hosts| {
            let answer = |host: &String| match self.answers.get(host) {
                Some(found) => found.clone(),
                None if self.subjects.hosts.contains(host) => Err(why.to_string()),
                // A name to listen on: nothing is served before it is known.
                None => resolver::ask(host),
            };
            hosts.into_iter().map(|host| (host.clone(), answer(&host))).collect()
        })
    }

    /// Has its answers wake the master.
    pub fn watch(&self, events: &Events) -> io::Result<()> {
        self.helper.as_ref().map_or(Ok(()), |helper| events.add(&helper.channel, Source::Resolver))
    }

    /// Waits for the first answer about everything.
    fn await_answers(&mut self, until: Instant) {
        while !self.is_all_answered() {
            let Some(helper) = &mut self.helper else { return };
            match helper.channel.receive() {
                Ok(Some(received)) => {
                    match received.message {
                        FromResolver::Answer { host, found } => {
                            self.answers.insert(host, found);
                        }
                        FromResolver::List { source, found } => {
                            self.lists.note(&source, lists::read(found, received.fds));
                        }
                    }
                    continue;
                }
                Ok(None) => {}
                // Its end is found later.
                Err(_) => return,
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let left = Timespec {
                tv_sec: left.as_secs() as _,
                tv_nsec: i64::from(left.subsec_nanos()) as _,
            };
            let _ = poll(&mut [PollFd::new(&helper.channel, PollFlags::IN)], Some(&left));
        }
        if let Some(helper) = &mut self.helper {
            let _ = helper.channel.acknowledge();
        }
    }

    fn is_all_answered(&self) -> bool {
        let mut lists = self.subjects.lists.iter();
        self.knows_all(&self.subjects.hosts) && lists.all(|source| self.lists.is_known(source))
    }

    /// Whether there is an answer, of whatever kind, about each of these.
    pub fn knows_all(&self, hosts: &BTreeSet<String>) -> bool {
        hosts.iter().all(|host| self.answers.contains_key(host))
    }

    /// The names and lists of another configuration. Returns whether the process has to be told.
    /// The servers of a list are looked up before it holds.
    pub fn follow(&mut self, config: &Config) -> bool {
        let sources: BTreeSet<ListSource> =
            config.lists().map(|(_, list)| list.source.clone()).collect();
        self.lists.retain(&sources);
        let mut hosts = reader::server_names(config);
        hosts.extend(self.lists.hosts());
        let folder = self.subjects.folder.clone();
        let subjects = Subjects { hosts, lists: sources, folder };
        let every_us = config.process.resolve_every_us;
        let is_new = subjects != self.subjects || every_us != self.every_us;
        self.answers.retain(|host, _| subjects.hosts.contains(host));
        (self.subjects, self.every_us) = (subjects, every_us);
        is_new
    }

    /// Has everything looked up at once.
    fn ask(&mut self) -> io::Result<()> {
        let Some(helper) = &mut self.helper else { return Ok(()) };
        let subjects = serde_json::to_vec(&self.subjects)?;
        let subjects = sys::memory::sealed("quickack-subjects", &subjects)?;
        // One that is gone is found by its end, one that reads nothing by its silence.
        let message = ToResolver::Subjects { every_us: self.every_us };
        let _ = helper.channel.send(message, &[Rc::new(subjects)]);
        Ok(())
    }

    fn start(&mut self) -> io::Result<()> {
        let (ours, theirs) = sys::channel::pair()?;
        let mut command = Command::new(super::OWN_IMAGE);
        command.arg("resolver");
        sys::process::prepare_child(&mut command, "quickack: resolver", Some(theirs));
        // It often shares a processor with a worker, and clients wait for that one.
        sys::process::give_way(&mut command);
        let (child, started) = (command.spawn()?, Instant::now());
        let channel = Channel::new(ours);
        self.helper = Some(Helper { child, channel, started, pinged: started, is_hung: false });
        self.ask()
    }

    /// Adds what is known of the names of servers.
    pub fn note_in(&self, config: &Config, addresses: &mut Addresses) {
        for Place { written, host, port } in reader::servers(config) {
            if let Some(found) = self.answers.get(host) {
                addresses.insert(written, reader::with_port(found.clone(), port));
            }
        }
    }

    /// The names that the process answers for: nobody else need ask.
    pub fn known(&self) -> BTreeSet<&String> {
        self.answers.keys().collect()
    }

    /// When something is to be done.
    pub fn due(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.lists.due(self)).min()
    }

    pub fn pid(&self) -> Option<u32> {
        self.helper.as_ref().map(|helper| helper.child.id())
    }

    /// Ends the process. It has nothing to save, and may be waiting for a name server.
    pub fn end(&mut self) -> Option<Child> {
        let helper = self.helper.take()?;
        let _ = kill_process(Pid::from_child(&helper.child), Signal::KILL);
        Some(helper.child)
    }

    /// The change could not be made.
    pub fn try_again(&mut self, now: Instant) {
        self.due = Some(now + TRY_AGAIN);
    }
}

/// The servers whose addresses differ, but for those that are new.
pub fn moves(old: &Running, new: &Running) -> Vec<Move> {
    let mut all = Vec::new();
    for (pool, upstream) in new.config.plan.pools.iter().zip(&new.config.upstreams) {
        for (server, address) in pool.servers.iter().zip(&upstream.servers) {
            let name = address.to_string();
            let (was, now) = (old.addresses.get(&name), new.addresses.get(&name));
            if let Some(now) = now.filter(|_| now != was && old.resolved.contains_key(&name)) {
                let about = About::server(&server.label, &pool.name);
                all.push(Move { about, name, now: now.clone(), was: was.cloned() });
            }
        }
    }
    all
}

impl Master {
    /// Starts the process if it is due, notices its end, and begins the change that its answers
    /// ask for.
    pub(super) fn tend_names(&mut self, now: Instant) {
        if let Some(helper) = &mut self.names.helper
            && let Ok(Some(status)) = helper.child.try_wait()
        {
            let (pid, lasted) = (helper.child.id(), now - helper.started >= LASTED);
            self.names.helper = None;
            self.names.not_before = Some(now + self.names.early_deaths.note(lasted));
            let text = format!(
                "the process that looks up names (pid {pid}) died: {status}; it is started again"
            );
            say(&mut self.log, Level::Error, "resolver_died", &text);
        }
        if self.ending.is_some() {
            return;
        }
        let is_due = self.names.not_before.is_none_or(|due| due <= now);
        if self.names.helper.is_none() && !self.names.subjects.is_empty() && is_due {
            let started = self.names.start();
            if let Err(error) = started.and_then(|()| self.names.watch(&self.events)) {
                self.killed.extend(self.names.end());
                self.names.not_before = Some(now + TRY_AGAIN);
                let text =
                    format!("cannot start the process that looks up names: {error}; trying again");
                say(&mut self.log, Level::Error, "resolver_start", &text);
            }
        }
        let is_free = self.change.is_none() && self.change_requests.is_empty();
        if is_free && self.names.due.is_some_and(|due| due <= now) {
            self.names.due = None;
            self.begin_moves(now);
        }
        self.tend_lists(now);
    }

    /// Ends the process if it does not read its messages, as the HTTP process: see there.
    pub(super) fn look_at_resolver(&mut self, now: Instant, was_late: bool) {
        let hang = Duration::from_micros(self.running.config.process.hang_timeout_us);
        let Some(helper) = &mut self.names.helper else { return };
        if !helper.is_hung && !was_late && helper.channel.overdue(now) {
            helper.is_hung = true;
            let _ = kill_process(Pid::from_child(&helper.child), Signal::KILL);
            let pid = helper.child.id();
            let text = format!(
                "the process that looks up names (pid {pid}) is hung: it does not read its \
                 messages; it is being replaced"
            );
            return say(&mut self.log, Level::Error, "resolver_hung", &text);
        }
        if !hang.is_zero() && now - helper.pinged >= PING_EVERY {
            helper.pinged = now;
            // One that is gone is found by its end, and one that is full of messages is overdue.
            let _ = helper.channel.send_by(ToResolver::Ping {}, &[], now + hang);
        }
    }

    /// Notes what the process has found.
    pub(super) fn listen_to_resolver(&mut self) {
        let mut is_any_new = false;
        while let Some(helper) = &mut self.names.helper {
            match helper.channel.receive() {
                Ok(Some(received)) => match received.message {
                    FromResolver::Answer { host, found } => {
                        is_any_new |= self.note_answer_about(&host, found);
                    }
                    FromResolver::List { source, found } => {
                        self.note_list(&source, lists::read(found, received.fds));
                    }
                },
                Ok(None) => {
                    let _ = helper.channel.acknowledge();
                    break;
                }
                Err(_) => {
                    // It has ended, or says what it must not.
                    let _ = kill_process(Pid::from_child(&helper.child), Signal::KILL);
                    self.events.forget(&helper.channel);
                    break;
                }
            }
        }
        if is_any_new {
            self.names.note_in(&self.running.config, &mut self.running.resolved);
            self.look_for_moves(Instant::now());
        }
    }

    /// Returns whether the answer is another than before.
    fn note_answer_about(&mut self, host: &str, found: Found) -> bool {
        if !self.names.subjects.hosts.contains(host) {
            return false;
        }
        self.names.counts.lookups_failed += u64::from(found.is_err());
        let old = self.names.answers.insert(host.to_string(), found.clone());
        if old.as_ref() == Some(&found) {
            return false;
        }
        match (old, found) {
            (_, Err(why)) => {
                let text = format!("{host} does not resolve: {why}; its servers stay as they are");
                say(&mut self.log, Level::Warning, "name_unresolved", &text);
            }
            (Some(Err(_)), Ok(_)) => {
                say(&mut self.log, Level::Notice, "name_resolved", &format!("{host} resolves"));
            }
            _ => {}
        }
        true
    }

    /// Several answers that come together are one change.
    fn look_for_moves(&mut self, now: Instant) {
        let Running { resolved, addresses, .. } = &self.running;
        if reader::choose(resolved, Some(addresses)) != *addresses {
            self.names.due.get_or_insert(now + GATHER);
        }
    }

    fn begin_moves(&mut self, now: Instant) {
        let Running { config, resolved, .. } = &self.running;
        let (text, attachments) = (config.text.clone(), config.attachments.clone());
        let (overrides, addresses) = (config.overrides.clone(), resolved.clone());
        let reading = Reading { text, attachments, addresses, ..Reading::default() };
        let asked = Asked { asker: None, allow_remap: false, what: Wanted::Moves };
        self.prepare(asked, reading, &overrides, now);
    }

    /// Another configuration holds. `moves`: the servers whose addresses are others by it.
    pub(super) fn follow_names(&mut self, moves: &[Move], now: Instant) {
        self.names.counts.address_changes += moves.len() as u64;
        for Move { about, name, now, was } in moves {
            let was = was.as_ref().map_or("had none".to_string(), |was| format!("was {was}"));
            let text = format!("{about}: name {name} is now {now} ({was})");
            say_of(&mut self.log, Level::Notice, "server_moved", about.clone(), &text);
        }
        self.names.due = None;
        self.names.note_in(&self.running.config, &mut self.running.resolved);
        self.look_for_moves(now);
        let is_new = self.names.follow(&self.running.config);
        if self.names.subjects.is_empty() {
            self.killed.extend(self.names.end());
        } else if is_new {
            self.ask_for_names();
        }
        self.look_at_lists(now);
    }

    /// Has all names looked up at once.
    pub(super) fn ask_for_names(&mut self) {
        if let Err(error) = self.names.ask() {
            let text = format!("cannot tell the process that looks up names: {error}");
            say(&mut self.log, Level::Error, "resolver_hosts", &text);
        }
    }
}

/// How long a start waits for the names of servers, before they are down that could be up.
const START_PATIENCE: Duration = Duration::from_secs(3);
/// Answers that come within this time of another are of the same change.
const GATHER: Duration = Duration::from_millis(50);
/// The pause before what failed is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// A process that lives this long did not die of its start.
const LASTED: Duration = Duration::from_secs(5);
/// How often the process has to show that it reads its messages.
const PING_EVERY: Duration = Duration::from_secs(5);
