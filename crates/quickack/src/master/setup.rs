//! Messages that set a worker up: at its start all that it needs, later what is new.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::events::Source;
use super::workers::Slot;
use super::{Master, WaitingClient, say_of};
use crate::ipc::ToWorker;
use crate::ipc::client_state::{ClientState, ClientTally};
use crate::log::{About, Clocks, Level};

impl Master {
    /// Makes slots for `count` workers, and their wakeups.
    pub(super) fn fill_slots(&mut self, count: usize) -> io::Result<()> {
        while self.wakeups.len() < count {
            self.wakeups.push(Rc::new(sys::wakeup::new()?));
        }
        while self.slots.len() < count {
            self.slots.push(Slot::new(self.slots.len()));
        }
        self.scoreboard.set_used(self.slots.len(), self.ids.used());
        Ok(())
    }

    /// Fills the slots that are vacant and whose pause is over.
    pub(super) fn start_what_is_due(&mut self, now: Instant) {
        let count = self.running.config.process.worker_count();
        for number in 0..count.min(self.slots.len()) {
            let slot = &mut self.slots[number];
            if slot.worker.is_some() || now < slot.not_before {
                continue;
            }
            if let Err(error) = slot.start() {
                slot.not_before = now + START_AGAIN;
                let text = format!("cannot start worker {number}: {error}; trying again");
                say_of(&mut self.log, Level::Error, "worker_start", About::worker(number), &text);
                continue;
            }
            self.set_up(number);
            self.ask_worker(number);
        }
    }

    /// Sends a new worker everything that it needs.
    fn set_up(&mut self, number: usize) {
        self.tell_process();
        let Some(worker) = self.slots[number].worker.as_mut() else { return };
        // A descriptor that cannot be watched is that of a worker that cannot be controlled.
        if self.events.add(&worker.channel, Source::Channel(number)).is_err() {
            return worker.signal(Signal::KILL);
        }
        let release = env!("CARGO_PKG_VERSION").to_string();
        worker.send(
            ToWorker::Welcome { slot: number, release },
            &[Rc::clone(&self.scoreboard_memory)],
        );
        worker.send(ToWorker::Lock {}, &[Rc::clone(&self.lock)]);
        self.pass_access_log(number);
        let mine = self.running.listeners.iter().filter(|entry| entry.is_of(number));
        let ids: Vec<u32> = mine.map(|entry| entry.id).collect();
        self.pass_listeners(number, &ids);
        self.pass_wakeups(number, 0);
        let epoch = self.running.epoch;
        let Some(worker) = self.slots[number].worker.as_mut() else { return };
        worker.send(ToWorker::Prepare { epoch }, &[Rc::clone(&self.sealed_config)]);
        worker.send(ToWorker::Commit { epoch }, &[]);
    }

    /// Tells the workers what their clients may ask about the proxy as a whole.
    pub(super) fn tell_process(&self) {
        let clocks = Clocks::read();
        let ahead_us = clocks.unix_us.saturating_sub(clocks.clock_us);
        // The times of what has been should not move by a second because the clocks were read a
        // little apart.
        let told_us = self.scoreboard.registry().process().unix_ahead_us;
        let is_same = told_us.abs_diff(ahead_us) < CLOCKS_APART_US;
        let process = &self.running.config.process;
        // As memcached's own, a number that an `int` can hold.
        let descriptors = sys::process::descriptors_max().min(i32::MAX as usize);
        let room = descriptors.saturating_mul(process.worker_count());
        self.scoreboard.registry().tell_process(metrics::Process {
            pid: std::process::id().into(),
            started_s: self.started_unix_us / 1_000_000,
            told_s: clocks.unix_us / 1_000_000,
            unix_ahead_us: if is_same { told_us } else { ahead_us },
            workers: process.worker_count() as u64,
            clients_max: self.running.config.plan.clients_max.min(room) as u64,
        });
    }

    pub(super) fn pass_listeners(&mut self, number: usize, ids: &[u32]) {
        let Some(worker) = self.slots[number].worker.as_mut() else { return };
        for ids in ids.chunks(sys::channel::FDS_MAX) {
            let fds: Vec<_> =
                ids.iter().map(|id| Rc::clone(&self.listeners.find(*id).fd)).collect();
            worker.send(ToWorker::Listeners { ids: ids.to_vec() }, &fds);
        }
    }

    /// The wakeups of the workers from `first` on; all of them fit one message.
    pub(super) fn pass_wakeups(&mut self, number: usize, first: usize) {
        let Some(worker) = self.slots[number].worker.as_mut() else { return };
        worker.send(ToWorker::Wakeups { first }, &self.wakeups[first..]);
    }

    /// Clients that a worker hands over, each for the serving worker that has the fewest. While no
    /// worker serves, or every channel of one that does is rather full, they wait here.
    pub(super) fn pass_clients(
        &mut self,
        client: &ClientState,
        ones: impl Iterator<Item = (ClientTally, OwnedFd)>,
    ) {
        for (tally, fd) in ones {
            // Whether a worker has counted whom it was given is not known: it is one or the other.
            let count = |number: &usize| {
                let given = self.clients_given.get(number).copied().unwrap_or(0);
                self.scoreboard.connections(*number).max(given)
            };
            let listens = |number: &usize| {
                let worker = self.slots[*number].worker.as_ref();
                worker.is_some_and(|worker| worker.channel.has_room_to_spare())
            };
            let serving =
                (0..self.slots.len()).filter(|number| self.scoreboard.is_serving(*number));
            let serving = serving.filter(listens);
            let Some((count, number)) = serving.map(|number| (count(&number), number)).min() else {
                let client = client.clone();
                self.waiting_clients.push(WaitingClient { client, tally, fd });
                continue;
            };
            self.clients_given.insert(number, count + 1);
            if let Some(worker) = self.slots[number].worker.as_mut() {
                // One by one: a worker may have as many descriptors as its limit allows, and one
                // more that it has no room for must not take others with it.
                let client = client.clone();
                worker.send(ToWorker::Adopt { client, tally }, &[Rc::new(fd)]);
            }
        }
    }

    /// New workers have no clients: the others give them some of theirs.
    pub(super) fn share_clients(&mut self) {
        let serving: Vec<usize> =
            (0..self.slots.len()).filter(|number| self.scoreboard.is_serving(*number)).collect();
        let count = |number: &usize| self.scoreboard.connections(*number);
        let all: u32 = serving.iter().map(count).sum();
        let keep = all.div_ceil(serving.len().max(1) as u32);
        let rich: Vec<usize> =
            serving.iter().copied().filter(|number| count(number) > keep + 1).collect();
        for number in rich {
            if let Some(worker) = self.slots[number].worker.as_mut() {
                worker.send(ToWorker::Share { keep }, &[]);
            }
        }
    }
}

/// The pause before a start that the system refused is tried again.
const START_AGAIN: Duration = Duration::from_millis(500);
/// Clocks that are read one after the other differ by less than this.
const CLOCKS_APART_US: u64 = 100_000;
