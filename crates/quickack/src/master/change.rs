//! One configuration becomes another, for all workers or for none: two-phase commit.
//!
//! ```text
//!   Reading ─text─▶ Preparing ─all Prepared─▶ a store in the scoreboard ──▶ Committing ──▶ answer
//!      │ errors, a remap  │ Refused, a death,                               │ deadline: says who
//!      ▼ not allowed      ▼ the deadline                                    ▼ has not said so
//!   refused, nothing changed                                          it holds all the same
//! ```
//!
//! The store is the moment: each worker looks at the scoreboard before it reads anything in a turn,
//! so no request read after it is routed by the older configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::change_queue::{Asked, ChangeRequest, Wanted, name_workers};
use super::ids::Ids;
use super::preparing::Preparing;
use super::reader::{self, Addresses, Reader, Reading};
use super::report::one_line;
use super::workers::State;
use super::{Master, Running};
use super::{lists, names};
use super::{say, say_of};
use crate::config::{self, Config, Override};
use crate::error::Error;
use crate::ipc::ToWorker;
use crate::log::{About, Level};

/// A change under way.
pub struct Change {
    phase: Phase,
    asked: Asked,
}

enum Phase {
    Reading(Reader),
    Preparing(Box<Next>),
    Committing(Applied),
}

/// The configuration that is to hold.
struct Next {
    running: Running,
    sealed_config: Rc<OwnedFd>,
    ids: Ids,
    preparing: Preparing,
    told: Vec<String>,
}

/// The configuration that holds and that not all workers have confirmed.
struct Applied {
    waiting: BTreeSet<usize>,
    workers: usize,
    /// There are more workers than before.
    grew: bool,
    deadline: Instant,
    told: Vec<String>,
}

impl Master {
    /// The file is read anew.
    pub(super) fn begin_reload(&mut self, asked: Asked, now: Instant) {
        let Some(file) = self.file.clone() else {
            let why = "there is no file: the proxy runs with its built-in configuration";
            return self.refuse(asked, why);
        };
        if self.ending.is_some() {
            return self.refuse(asked, "the proxy is shutting down");
        }
        if self.change.is_some() {
            return self.queue_change(ChangeRequest::Reload(asked));
        }
        // A reload starts workers anew if WINCH has sent them away.
        self.workers_sent_away = false;
        self.ask_for_names();
        match Reader::start(&file, &self.names.known(), now) {
            Ok(reader) => {
                self.change = Some(Change { phase: Phase::Reading(reader), asked });
            }
            Err(error) => self.refuse(asked, Error::os("cannot read the file")(error)),
        }
    }

    /// Says what would change if a file were the one that is reloaded.
    pub(super) fn begin_difference(&mut self, asked: Asked, file: &Path, now: Instant) {
        if self.ending.is_some() {
            return self.refuse(asked, "the proxy is shutting down");
        }
        if self.change.is_some() {
            let file = file.to_path_buf();
            return self.queue_change(ChangeRequest::Difference { asked, file });
        }
        match Reader::start(file, &self.names.known(), now) {
            Ok(reader) => self.change = Some(Change { phase: Phase::Reading(reader), asked }),
            Err(error) => self.refuse(asked, Error::os("cannot read the file")(error)),
        }
    }

    /// Looks at what the change waits for.
    pub(super) fn continue_change(&mut self, now: Instant) {
        let Some(change) = &mut self.change else { return };
        match &mut change.phase {
            Phase::Reading(reader) => {
                if let Some(outcome) = reader.finish() {
                    self.handle_reading(outcome, now);
                } else if now >= reader.deadline {
                    self.cancel_change(format!(
                        "reading the file and looking up its hosts took longer than {} seconds",
                        reader::PATIENCE.as_secs()
                    ));
                }
            }
            Phase::Preparing(next) if next.preparing.waiting().is_empty() => self.commit(now),
            Phase::Preparing(next) if next.preparing.is_late(now) => {
                let who = name_workers(next.preparing.waiting());
                self.cancel_change(format!("{who} did not answer in time"));
            }
            Phase::Committing(applied) if applied.waiting.is_empty() || now >= applied.deadline => {
                self.conclude();
            }
            _ => {}
        }
    }

    fn handle_reading(&mut self, outcome: Result<Reading, Error>, now: Instant) {
        let Some(change) = self.change.take() else { return };
        match outcome {
            Ok(reading) if reading.errors == 0 => {
                let overrides = self.running.config.overrides.clone();
                self.prepare(change.asked, reading, &overrides, now);
            }
            Ok(reading) => self.refuse(change.asked, reading.report.trim_end()),
            Err(error) => self.refuse(change.asked, error),
        }
    }

    /// The first phase: everything the master can know is settled, then the workers are asked.
    pub(super) fn prepare(
        &mut self,
        asked: Asked,
        mut reading: Reading,
        overrides: &[Override],
        now: Instant,
    ) {
        let asker = asked.asker;
        let chosen = match self.choose_lists(asked, &mut reading, overrides) {
            Ok(chosen) => chosen,
            Err(error) => return self.refuse(asked, error),
        };
        let config = chosen.config;
        self.names.note_in(&config, &mut reading.addresses);
        // A directive that is set may name an address that the file does not.
        let known = &self.running.resolved;
        if let Err(error) = reader::complete(&config, &mut reading.addresses, known) {
            return self.refuse(asked, error);
        }
        let addresses = reader::choose(&reading.addresses, Some(&self.running.addresses));
        if let Err(error) = reader::require_listeners(&config, &reading.addresses, &addresses) {
            return self.refuse(asked, error);
        }
        if !matches!(asked.what, Wanted::Moves | Wanted::Lists) {
            reading.warn_of_names(&config, &addresses);
        }
        let mut told = match self.judge(&config, &addresses, chosen.may_move) {
            Ok(told) => told,
            Err(error) => return self.refuse(asked, error),
        };
        if asked.what == Wanted::Difference {
            let none = config::NO_CHANGE.to_string();
            let text = if told.is_empty() { none } else { told.join("\n") };
            return self.answer(asker, text);
        }
        if told.is_empty() {
            // Not even the text is taken over: another order in it needs another order of the ids.
            let mut text = format!("nothing changed; epoch {} stays in force", self.running.epoch);
            if !reading.report.is_empty() {
                // Faults of the file itself, such as who may write it, remain.
                let one_line = format!("{text}: {}", one_line(&reading.report));
                say(&mut self.log, Level::Warning, "reload_unchanged", &one_line);
                text += &format!("\n{}", reading.report.trim_end());
            }
            self.look_at_sockets(asker);
            self.note_reload(asked, true, &one_line(&text));
            return self.answer(asker, text);
        }
        if !reading.report.is_empty() {
            told.push(reading.report.trim_end().to_string());
        }
        match self.next(config, reading.addresses, addresses, now, told) {
            Ok(next) => {
                let phase = Phase::Preparing(Box::new(next));
                self.change = Some(Change { phase, asked });
                self.ask_workers();
            }
            Err(error) => {
                self.close_what_was_opened();
                self.refuse(asked, error);
            }
        }
    }

    fn next(
        &mut self,
        config: Config,
        resolved: Addresses,
        addresses: BTreeMap<String, String>,
        now: Instant,
        told: Vec<String>,
    ) -> Result<Next, Error> {
        let mut ids = self.ids.clone();
        let assigned = ids.assign(&config, &addresses)?;
        let tenants = ids.tenants(&config);
        if self.caches.is_resized(&config, &assigned) {
            let text = "`memory` and `item_size_max` of a running embedded cache cannot be \
                        changed: it holds items";
            return Err(Error::Config(text.into()));
        }
        let mode = self.running.mode;
        let listeners = self.listeners.open(&config, &addresses, mode)?;
        self.http.open(&config, &addresses)?;
        self.open_access_log(&config)?;
        self.caches.start(&config, &assigned)?;
        let running = Running {
            // No number is used twice: a late word about a cancelled change is not about this one.
            epoch: self.last_epoch + 1,
            config,
            mode,
            ids: assigned,
            tenants,
            listeners,
            resolved,
            addresses,
        };
        let sealed_config = Rc::new(running.installation(&mut self.caches)?.seal()?);
        self.last_epoch += 1;
        Ok(Next { running, sealed_config, ids, preparing: Preparing::begin(now), told })
    }

    fn ask_workers(&mut self) {
        let Some(Change { phase: Phase::Preparing(next), .. }) = &self.change else { return };
        let count = next.running.config.process.worker_count();
        let wakeups = self.wakeups.len();
        if let Err(error) = self.fill_slots(count) {
            return self.cancel_change(format!("cannot make room for {count} workers: {error}"));
        }
        for number in 0..self.slots.len() {
            let Some(worker) = &self.slots[number].worker else { continue };
            if worker.state == State::Leaving && number < count {
                // Its slot is wanted; until it has left, nobody would look at its listeners.
                if let Some(Change { phase: Phase::Preparing(next), .. }) = &mut self.change {
                    next.preparing.wait_for(number);
                }
            } else {
                if self.wakeups.len() > wakeups {
                    self.pass_wakeups(number, wakeups);
                }
                self.ask_worker(number);
            }
        }
    }

    /// Asks one worker about the change under way; one that was started meanwhile as well.
    pub(super) fn ask_worker(&mut self, number: usize) {
        let Some(Change { phase: Phase::Preparing(next), .. }) = &mut self.change else { return };
        let has = |id: u32| self.running.listeners.iter().any(|it| it.id == id && it.is_of(number));
        let mine = next.running.listeners.iter().filter(|entry| entry.is_of(number));
        let new: Vec<u32> = mine.map(|entry| entry.id).filter(|id| !has(*id)).collect();
        let (epoch, sealed) = (next.running.epoch, Rc::clone(&next.sealed_config));
        next.preparing.wait_for(number);
        self.pass_listeners(number, &new);
        let Some(worker) = self.slots[number].worker.as_mut() else { return };
        // One that does not read is replaced, or found by the deadline of the change.
        worker.send(ToWorker::Prepare { epoch }, &[sealed]);
    }

    pub(super) fn note_prepared(&mut self, number: usize, epoch: u64) {
        // Of one that is being killed, its successor has to prepare.
        if self.slots[number].worker.as_ref().is_some_and(|it| it.state == State::Hung) {
            return;
        }
        if let Some(Change { phase: Phase::Preparing(next), .. }) = &mut self.change
            && next.running.epoch == epoch
        {
            next.preparing.forget(number);
        }
    }

    pub(super) fn note_refused(&mut self, number: usize, epoch: u64, why: &str) {
        if let Some(Change { phase: Phase::Preparing(next), .. }) = &self.change
            && next.running.epoch == epoch
        {
            return self.cancel_change(format!("worker {number} refused it: {why}"));
        }
        // The others run with this configuration, but this worker cannot begin with it.
        if let Some(worker) = self.slots[number].worker.as_mut()
            && worker.state == State::Starting
        {
            worker.signal(Signal::KILL);
            let text = format!("worker {number} cannot start: {why}");
            let about = About::worker(number);
            say_of(&mut self.log, Level::Error, "worker_refused", about, &text);
            if !self.has_served {
                // Nothing has ever worked: the operator who starts it has to mend it.
                self.end(1, Instant::now());
            }
        }
    }

    /// A death while a change is prepared ends the change: it may be what the worker died of. One
    /// that was killed because it stood still may have been kept from a processor by a busy
    /// machine: its successor is asked instead, once.
    pub(super) fn note_death(&mut self, number: usize, was_hung: bool, now: Instant) {
        // Once it holds, the successor starts with it, and says so.
        let Some(Change { phase: Phase::Preparing(next), .. }) = &mut self.change else { return };
        let count = self.running.config.process.worker_count();
        if was_hung && (number >= count || self.workers_sent_away) {
            // It has no successor before the change holds.
            return next.preparing.forget(number);
        }
        if !was_hung || !next.preparing.replace(number, now) {
            self.cancel_change(format!("worker {number} died during the preparation"));
        }
    }

    /// A worker that was to leave has left; nobody waits for it any more.
    pub(super) fn note_left(&mut self, number: usize) {
        if let Some(Change { phase: Phase::Preparing(next), .. }) = &mut self.change {
            next.preparing.forget(number);
        }
    }

    /// The second phase: it holds, from one store on.
    fn commit(&mut self, now: Instant) {
        let Some(change) = self.change.take() else { return };
        let Phase::Preparing(next) = change.phase else { return };
        let next = *next;
        let epoch = next.running.epoch;
        let workers = next.running.config.process.worker_count();
        let grew = workers > self.running.config.process.worker_count();
        let started = self.listeners.start(&next.running.config, &next.running.listeners);
        let started = started.and_then(|()| self.http.start(&next.running.config));
        if let Err(error) = started {
            self.change = Some(Change { phase: Phase::Preparing(Box::new(next)), ..change });
            return self.cancel_change(error);
        }
        self.scoreboard.set_used(self.slots.len(), next.ids.used());
        self.prepare_health(&next.running);
        self.scoreboard.commit_config(epoch);
        let moves = names::moves(&self.running, &next.running);
        let lists = lists::changes(&self.running.config, &next.running.config);
        self.names.counts.list_changes += lists;
        self.running = next.running;
        self.sealed_config = next.sealed_config;
        self.ids = next.ids;
        self.note_reload(change.asked, true, &format!("configuration {epoch}"));
        self.follow_process();
        self.follow_http();
        self.follow_names(&moves, now);
        self.access_log.follow(&self.running.config);
        let mut waiting = BTreeSet::new();
        for slot in &mut self.slots {
            let number = slot.number;
            let Some(worker) = slot.worker.as_mut() else { continue };
            worker.send(ToWorker::Commit { epoch }, &[]);
            if number < workers {
                waiting.insert(number);
            } else if matches!(worker.state, State::Starting | State::Serving) {
                self.scoreboard.set_serving(number, false);
                worker.set_state(State::Leaving);
                worker.send(ToWorker::Retire {}, &[]);
            }
        }
        for number in 0..workers {
            if self.slots[number].worker.is_none() {
                self.slots[number].reset_pause(now);
                waiting.insert(number);
            }
        }
        let deadline = now + CONFIRM_LIMIT;
        let applied = Applied { waiting, workers, grew, deadline, told: next.told };
        self.change = Some(Change { phase: Phase::Committing(applied), ..change });
    }

    /// All workers have confirmed, or the time for it is over.
    fn conclude(&mut self) {
        let Some(change) = self.change.take() else { return };
        let Phase::Committing(applied) = change.phase else { return };
        let Applied { waiting, workers, told, grew, .. } = applied;
        let mut text = format!(
            "epoch {} applied by {}/{workers}",
            self.running.epoch,
            workers - waiting.len()
        );
        if !waiting.is_empty() {
            text += &format!("; {} has not confirmed it yet", name_workers(&waiting));
        }
        self.listeners.keep(&self.running.listeners);
        if grew {
            self.share_clients();
        }
        self.look_at_sockets(change.asked.asker);
        let one_line = format!("{text}: {}", one_line(&told.join("\n")));
        say(&mut self.log, Level::Notice, "change_applied", &one_line);
        for line in &told {
            text += &format!("\n  {line}");
        }
        self.answer(change.asked.asker, text);
    }

    /// A worker has installed an epoch.
    pub(super) fn note_applied(&mut self, number: usize, epoch: u64) {
        if let Some(Change { phase: Phase::Committing(applied), .. }) = &mut self.change
            && epoch == self.running.epoch
        {
            applied.waiting.remove(&number);
        }
    }

    /// Cancels the change; listeners and caches that were opened for it are closed.
    pub(super) fn cancel_change(&mut self, why: impl Display) {
        let Some(change) = self.change.take() else { return };
        match change.phase {
            Phase::Committing(_) => {
                // It holds already; only the answer is given early.
                return self.answer(change.asked.asker, format!("it is in force, but {why}"));
            }
            Phase::Preparing(next) => {
                let epoch = next.running.epoch;
                for worker in self.slots.iter_mut().filter_map(|slot| slot.worker.as_mut()) {
                    worker.send(ToWorker::Abort { epoch }, &[]);
                }
                self.close_what_was_opened();
            }
            Phase::Reading(reader) => self.killed.push(reader.kill()),
        }
        self.refuse(change.asked, format!("{why}; nothing has changed"));
    }

    fn close_what_was_opened(&mut self) {
        self.http.cancel();
        self.listeners.keep(&self.running.listeners);
        let (config, ids) = (&self.running.config, &self.running.ids);
        let gone = self.caches.keep(config, ids, |id| self.ids.is_leaving(id));
        self.killed.extend(gone);
    }

    pub(super) fn refuse(&mut self, asked: Asked, why: impl Display) {
        let (why, epoch) = (why.to_string(), self.running.epoch);
        self.note_reload(asked, false, &one_line(&why));
        match asked.what {
            Wanted::Moves => self.names.try_again(Instant::now()),
            Wanted::Lists => self.names.lists.try_again(Instant::now()),
            Wanted::Reload | Wanted::Set | Wanted::Difference => {}
        }
        if asked.what != Wanted::Difference {
            let text = format!("change refused, epoch {epoch} stays in force: {}", one_line(&why));
            say(&mut self.log, Level::Error, "change_refused", &text);
        }
        if let Some(id) = asked.asker {
            self.admin.refuse(id, &why);
            self.want_to_write(id);
        }
    }
}

/// The time that workers have to confirm, after which the answer names those that have not. The
/// change holds by then. Reading, preparing and confirming together take less than the 60 s after
/// which the one who asked stops waiting.
const CONFIRM_LIMIT: Duration = Duration::from_secs(5);
