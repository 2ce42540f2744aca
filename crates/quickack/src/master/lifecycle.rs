//! The lifecycle of the proxy and its workers: signals, shutdown, workers that die or hang.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use metrics::WorkerCounter;
use rustix::process::Signal;
use sys::signal;

use super::Master;
use super::admin_server::ConnectionId;
use super::change_queue::Asked;
use super::workers::{Slot, State};
use super::{say, say_of};
use crate::address_space;
use crate::ipc::ToWorker;
use crate::log::{About, Clocks, Level};

/// The end of the proxy, once it has begun.
pub(super) struct Ending {
    code: u8,
    stage: EndStage,
}

/// How far the end has come.
enum EndStage {
    /// Everything is served until then, and the proxy says that it is not ready.
    Delayed { until: Instant },
    /// Nothing is accepted; what is left is killed at the deadline.
    Draining { deadline: Instant },
}

impl Ending {
    /// When its stage is over at the latest.
    pub(super) fn due(&self) -> Instant {
        match self.stage {
            EndStage::Delayed { until: due } | EndStage::Draining { deadline: due } => due,
        }
    }
}

impl Master {
    pub(super) fn handle_signals(&mut self, now: Instant) {
        while let Some(signal) = self.signals.take() {
            match signal {
                signal::TERM | signal::INT | signal::QUIT => self.end(0, now),
                signal::HUP => {
                    self.renew(None);
                    self.begin_reload(Asked::reload(None, false), now);
                }
                signal::USR1 => self.reopen_log(None),
                // A terminal sends WINCH, too, when its window changes.
                signal::WINCH if !std::io::stdin().is_terminal() => self.retire_workers(),
                // As in twemproxy: a more detailed log, a less detailed one.
                signal::TTIN => self.step_log_level(1),
                signal::TTOU => self.step_log_level(-1),
                // Every turn looks for workers that have died.
                signal::CHLD => {}
                odd => {
                    let text = format!("signal {odd} has no meaning here and is ignored");
                    say(&mut self.log, Level::Notice, "signal", &text);
                }
            }
        }
    }

    /// Changes the log level by one step. It lasts until a new configuration sets the level.
    fn step_log_level(&mut self, step: isize) {
        let process = &self.running.config.process;
        let level = self.log.level().step(step);
        // Only the level changes: nothing is opened that could fail.
        let _ = self.log.change(&process.log, process.log_format, level);
        self.scoreboard.registry().set_debug(self.log.is_debug());
        let text = format!("the log level is now {}", level.name());
        say(&mut self.log, level, "log_level", &text);
    }

    /// Opens the log and the admin socket again by their names, since another program may have
    /// moved or removed the files. This happens even if the configuration cannot be read.
    pub(super) fn renew(&mut self, asker: Option<ConnectionId>) {
        self.reopen_log(asker);
        self.renew_admin(asker);
    }

    /// Opens the admin socket again if its file is gone: without the file, no reload can be asked
    /// for. An error that repeats is logged once, and again for each command that asks.
    pub(super) fn renew_admin(&mut self, asker: Option<ConnectionId>) {
        let had_one = self.admin.path().is_some();
        let admin = &self.running.config.process.admin;
        match self.admin.open_admin(admin, self.file.as_deref(), &self.events) {
            Ok(false) => self.admin_error.clear(),
            Ok(true) => {
                self.admin_error.clear();
                let path = self.admin.path().unwrap_or(Path::new("")).display();
                let text = match had_one {
                    true => "the admin socket was removed and is created again".to_string(),
                    false => format!("admin socket: {path}"),
                };
                self.report(asker, "admin_socket", &text);
            }
            Err(error) => {
                let text = error.to_string();
                // A proxy that never had the socket has logged this when it started.
                if asker.is_some() || (had_one && self.admin_error != text) {
                    self.report_failure(asker, "admin_socket", &text);
                }
                self.admin_error = text;
            }
        }
    }

    /// Reports unix sockets whose file was replaced by another: clients cannot reach the proxy
    /// there.
    pub(super) fn look_at_sockets(&mut self, asker: Option<ConnectionId>) {
        let text = |path: &Path| {
            format!(
                "{} is now another file, not the proxy's socket, so clients cannot reach the proxy \
                 there; remove that file and reload",
                path.display()
            )
        };
        let texts: Vec<String> = self.listeners.replaced().map(text).collect();
        for text in texts {
            self.report_failure(asker, "socket_replaced", &text);
        }
    }

    fn reopen_log(&mut self, asker: Option<ConnectionId>) {
        if self.access_log.is_open() {
            self.access_log.reopen();
            self.report(asker, "access_log_reopened", "the access log is reopened");
        }
        match self.log.reopen() {
            Ok(false) => {}
            Ok(true) => self.report(asker, "log_reopened", "the log is reopened"),
            Err(error) => {
                let text = format!("cannot reopen the log: {error}; still writing to the old one");
                // The old log may be a file that was moved away, so stderr gets the line as well.
                crate::log::line(Level::Error, &text);
                self.report_failure(asker, "log_reopened", &text);
            }
        }
    }

    /// Logs a failure. If an admin command caused it, the answer to the command becomes an error.
    fn report_failure(&mut self, asker: Option<ConnectionId>, event: &str, text: &str) {
        say(&mut self.log, Level::Error, event, text);
        if let Some(id) = asker {
            self.admin.note_failure(id, text);
        }
    }

    /// Writes a line to the log and, if an admin command asked for it, to the command's answer.
    fn report(&mut self, asker: Option<ConnectionId>, event: &str, text: &str) {
        say(&mut self.log, Level::Notice, event, text);
        if let Some(id) = asker {
            self.admin.note(id, text);
        }
    }

    /// Begins the end: after a delay, if there is one, the proxy drains. Called again, it ends the
    /// delay, or ends at once.
    pub(super) fn end(&mut self, code: u8, now: Instant) {
        let delay = self.running.config.process.shutdown_delay_us;
        match &self.ending {
            None if delay > 0 => {
                let text = format!(
                    "ending in {}: still serving, but not ready any more",
                    crate::config::duration_word(delay)
                );
                say(&mut self.log, Level::Notice, "shutdown_delayed", &text);
                self.cancel_change("the proxy is shutting down");
                let until = now + Duration::from_micros(delay);
                self.ending = Some(Ending { code, stage: EndStage::Delayed { until } });
            }
            None => self.begin_drain(code, now),
            Some(Ending { code, stage: EndStage::Delayed { .. } }) => self.begin_drain(*code, now),
            Some(Ending { stage: EndStage::Draining { .. }, .. }) => {
                say(&mut self.log, Level::Notice, "ending", "ending now");
                self.signal_all(Signal::KILL);
            }
        }
    }

    /// The delay before the end may be over.
    pub(super) fn end_delay(&mut self, now: Instant) {
        if let Some(Ending { code, stage: EndStage::Delayed { until } }) = self.ending
            && now >= until
        {
            self.begin_drain(code, now);
        }
    }

    /// Whether no client is accepted any more.
    pub(super) fn is_draining(&self) -> bool {
        matches!(self.ending, Some(Ending { stage: EndStage::Draining { .. }, .. }))
    }

    /// Ends at once, whoever still waits.
    pub(super) fn quit(&mut self, now: Instant) {
        if !self.is_draining() {
            self.begin_drain(0, now);
        }
        self.signal_all(Signal::KILL);
    }

    /// Accepts no more clients, and answers what they have begun to ask.
    fn begin_drain(&mut self, code: u8, now: Instant) {
        let timeout = self.running.config.process.shutdown_timeout_us;
        let text = format!(
            "draining for up to {}: accepting no more clients, answering outstanding requests",
            crate::config::duration_word(timeout)
        );
        say(&mut self.log, Level::Notice, "draining", &text);
        self.cancel_change("the proxy is shutting down");
        self.drain_workers();
        self.listeners.close_all();
        let deadline = now + Duration::from_micros(timeout) + GRACE;
        self.ending = Some(Ending { code, stage: EndStage::Draining { deadline } });
    }

    /// Retires all workers and keeps the listeners. New clients wait there until a reload starts
    /// workers again.
    fn retire_workers(&mut self) {
        let text = "the workers are retiring; a reload starts new ones";
        say(&mut self.log, Level::Notice, "workers_retiring", text);
        self.workers_sent_away = true;
        self.drain_workers();
    }

    fn drain_workers(&mut self) {
        let timeout_us = self.running.config.process.shutdown_timeout_us;
        for slot in &mut self.slots {
            self.scoreboard.set_serving(slot.number, false);
            if let Some(worker) = slot.worker.as_mut().filter(|one| one.state != State::Hung) {
                worker.send(ToWorker::Drain { timeout_us }, &[]);
                if worker.state != State::Leaving {
                    worker.set_state(State::Leaving);
                }
            }
        }
    }

    pub(super) fn signal_all(&self, signal: Signal) {
        self.slots.iter().filter_map(|slot| slot.worker.as_ref()).for_each(|it| it.signal(signal));
    }

    pub(super) fn ended(&mut self, now: Instant) -> Option<u8> {
        let Some(Ending { code, stage: EndStage::Draining { deadline } }) = self.ending else {
            return None;
        };
        if self.slots.iter().all(|slot| slot.worker.is_none()) {
            return Some(code);
        }
        if now >= deadline {
            self.signal_all(Signal::KILL);
        }
        None
    }

    /// Finds workers that have ended.
    pub(super) fn reap(&mut self, now: Instant) -> io::Result<()> {
        for number in 0..self.slots.len() {
            if !self.slots[number].has_ended() {
                continue;
            }
            // The channel may still have its last messages and the clients that it handed over.
            self.listen_to(number);
            let Some((worker, status)) = self.slots[number].reap(now)? else { continue };
            self.scoreboard.set_serving(number, false);
            let lost = self.count_lost(number, worker.state);
            self.scoreboard.clear_worker(number);
            self.health.forget_worker(number);
            self.note_query_death(number);
            self.wake_all();
            if worker.state == State::Leaving {
                let text = format!("worker {number} has exited ({status})");
                let about = About::worker(number);
                say_of(&mut self.log, Level::Notice, "worker_exited", about, &text);
                self.note_left(number);
                continue;
            }
            self.slots[number].deaths += 1;
            let pid = worker.pid();
            let again = match self.slots[number].not_before.saturating_duration_since(now) {
                _ if self.is_draining() || self.workers_sent_away => String::new(),
                Duration::ZERO => "; restarting at once".to_string(),
                pause => format!("; restarting in {} ms", pause.as_millis()),
            };
            // A worker that hung was killed by the master, so its status gives no hint.
            let hint = match worker.state {
                State::Hung => String::new(),
                _ => address_space::hint(
                    status,
                    super::shared_memory::address_space_needed(
                        &self.running.config,
                        self.scoreboard.ids_max(),
                    ),
                ),
            };
            let text = format!("worker {number} (pid {pid}) died: {status}{lost}{again}{hint}");
            say_of(&mut self.log, Level::Error, "worker_died", About::worker(number), &text);
            let was_hung = worker.state == State::Hung;
            let how = if was_hung { "it hung".into() } else { status.to_string() };
            self.slots[number].last_death = Some((now, format!("{how}{hint}")));
            self.note_death(number, was_hung, now);
        }
        Ok(())
    }

    /// Counts the clients that a worker had when it died, and says how many they were.
    fn count_lost(&self, number: usize, state: State) -> String {
        // Nobody else writes there now.
        let its = self.scoreboard.metrics(number).counters(0);
        let lost = its.value(WorkerCounter::ClientsNow);
        if lost == 0 || state == State::Leaving {
            return String::new();
        }
        its.add(WorkerCounter::ClientsLost, lost);
        format!(", with {lost} client{}", if lost == 1 { "" } else { "s" })
    }

    /// Notes that a worker drains because it got a signal that the master did not send.
    pub(super) fn note_leaving(&mut self, number: usize) {
        self.scoreboard.set_serving(number, false);
        if let Some(worker) = self.slots[number].worker.as_mut()
            && matches!(worker.state, State::Starting | State::Serving)
        {
            worker.set_state(State::Leaving);
            let text =
                format!("worker {number} (pid {}) was told to exit and is draining", worker.pid());
            say_of(&mut self.log, Level::Notice, "worker_leaving", About::worker(number), &text);
        }
    }

    /// Wakes all workers that serve: one that has died may have been about to take a client.
    pub(super) fn wake_all(&self) {
        for (number, wakeup) in self.wakeups.iter().enumerate() {
            if self.scoreboard.is_serving(number) {
                sys::wakeup::wake(wakeup);
            }
        }
    }

    /// Checks the heartbeats. A worker whose heartbeat stands still is hung: it is made to dump
    /// core, then killed.
    pub(super) fn look_at_heartbeats(&mut self, now: Instant) {
        // If this check comes late, the master itself stood still, and the workers may have, too.
        let was_late = now > self.next_check + LOOK_EVERY / 2;
        self.next_check = now + self.seconds.until_half(Clocks::read());
        self.admin.tidy(&self.events, now);
        self.stats_port.tidy(&self.events, now);
        self.clients_given.clear();
        self.killed.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_)) | Err(_)));
        let hang = Duration::from_micros(self.running.config.process.hang_timeout_us);
        let shutdown = Duration::from_micros(self.running.config.process.shutdown_timeout_us);
        let looks = (hang.as_millis() / LOOK_EVERY.as_millis()).max(LOOKS_MIN) as u32;
        for slot in &mut self.slots {
            let number = slot.number;
            let Some(worker) = slot.worker.as_mut() else { continue };
            if was_late {
                worker.forget_heartbeat();
            }
            if worker.state == State::Hung {
                if worker.has_left_its_trace() {
                    worker.signal(Signal::KILL);
                }
                continue;
            }
            if worker.leaves_late(now, shutdown) {
                worker.send(ToWorker::Drain { timeout_us: 0 }, &[]);
            }
            let is_still =
                worker.stands_still(self.scoreboard.beats(number), looks) && !hang.is_zero();
            let is_channel_stuck = worker.channel.overdue(now) && !was_late && !hang.is_zero();
            let why = match is_channel_stuck {
                _ if is_still => format!("no turn of its event loop in {} ms", hang.as_millis()),
                true => "it does not read its messages".to_string(),
                false => continue,
            };
            let text = format!(
                "worker {number} (pid {}) is hung: {why}; {}; it is being replaced",
                worker.pid(),
                worker.whereabouts()
            );
            say_of(&mut self.log, Level::Error, "worker_hung", About::worker(number), &text);
            worker.set_state(State::Hung);
            self.scoreboard.set_serving(number, false);
            // ABRT makes the worker dump core, if the system keeps cores. A stopped process would
            // not react to it.
            let signal = if worker.is_stopped() { Signal::KILL } else { Signal::ABORT };
            worker.signal(signal);
        }
        if !was_late {
            self.wake_if_hung();
        }
        self.look_at_http(now, was_late);
        self.look_at_resolver(now, was_late);
    }

    fn wake_if_hung(&self) {
        let is_hung = |slot: &Slot| slot.worker.as_ref().is_some_and(|it| it.state == State::Hung);
        if self.slots.iter().any(is_hung) {
            self.wake_all();
        }
    }
}

/// The signals that the master handles.
pub const SIGNALS: &[i32] = &[
    signal::TERM,
    signal::INT,
    signal::QUIT,
    signal::HUP,
    signal::USR1,
    signal::WINCH,
    signal::TTIN,
    signal::TTOU,
    signal::USR2,
    signal::ALRM,
    signal::CHLD,
];
/// How often heartbeats are checked.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The least number of checks without a heartbeat after which a worker is hung. A worker sleeps for
/// a second at most; fewer checks could all find it asleep.
const LOOKS_MIN: u128 = 4;
/// The time that a drained worker is given beyond its own deadline.
const GRACE: Duration = Duration::from_secs(1);
