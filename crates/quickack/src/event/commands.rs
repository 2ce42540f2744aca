//! Signals and commands, each carried out between events.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::event::epoll;
use sys::signal;

use super::control::{Command, Install, Leaver};
use super::{CONTROL_TOKEN, Loop, Sharing, token};
use crate::ipc::client_state::ClientState;
use crate::scoreboard::Ejection;

impl Loop<'_> {
    /// Changes for all workers, such as another configuration: before anything is read.
    pub(super) fn apply_changes(&mut self) {
        let mut commands = Vec::new();
        self.control.poll_changes(&mut commands);
        if !commands.is_empty() {
            self.execute(commands);
        }
    }

    /// Commands to this worker alone: after everything that was ready with them has been read.
    pub(super) fn handle_commands(&mut self) {
        let mut commands = Vec::new();
        self.control.receive(&mut commands);
        self.execute(commands);
        if self.control.is_gone()
            && let Some(fd) = self.control.fd()
        {
            // It would be ready for ever. If it is not watched any more, nothing else is needed.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    fn execute(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Install(install) => self.install(*install),
                Command::Eject(Ejection { server, ejected }) => {
                    self.service.set_ejected(server, ejected, self.now);
                }
                Command::AskServer(server) => self.service.ask_server(server, self.now),
                Command::NoteWhyEjected { server, why } => {
                    self.service.note_why_ejected(server, why);
                }
                Command::Adopt { client, fds } => {
                    fds.into_iter().for_each(|fd| self.adopt(fd, client.clone()));
                }
                Command::Listen(listeners) => {
                    self.acceptor.set_listeners(&self.epoll, listeners);
                    self.accept_waiting();
                }
                Command::Retire => self.retire(),
                Command::Share { keep } => {
                    self.sharing = Some(Sharing { keep, until: self.now.after(SHARE_US) })
                }
                Command::Drain { within } => self.drain(within),
                Command::Told { number, told } => self.take_told(number, told),
                Command::Query { number, until, query } => {
                    self.queries.add(number, until, query, self.now);
                }
            }
            self.run_actions(None);
        }
    }

    /// TERM or INT: no new clients, and the others leave when they have their answers. Again: at
    /// once.
    pub(super) fn handle_signals(&mut self) {
        while let Some(signal) = self.signals.take() {
            if !matches!(signal, signal::TERM | signal::INT | signal::QUIT) {
                // Meant for the master, and sent to all of our name: a log that was rotated.
                continue;
            }
            if self.has_master && self.drain_deadline.is_some() {
                // The master has ended, or the operator is impatient: the master ends us at once
                // if that is wanted.
                continue;
            }
            if self.drain_deadline.is_none() {
                self.control.leaving();
            }
            let within =
                if self.drain_deadline.is_some() { Duration::ZERO } else { self.shutdown_timeout };
            self.drain(within);
        }
    }

    fn install(&mut self, install: Install) {
        let plan = install.plan.clone();
        self.drop_readers_of_gone_pools(&plan);
        self.apply_install(install);
        self.service.install(plan, self.now);
        self.control.installed(self.service);
    }

    /// All of an installation but the plan. Clients in the queues of listeners that go are the old
    /// plan's still.
    pub(super) fn apply_install(&mut self, install: Install) {
        let Install { plan: _, listeners, targets, connects_per_second, epoll_timeout } = install;
        self.connects.set_targets(targets, connects_per_second);
        self.acceptor.set_epoll_timeout(epoll_timeout.as_micros() as u64);
        if !self.is_leaving() {
            self.acceptor.set_listeners(&self.epoll, listeners);
            self.accept_waiting();
        }
    }

    /// No more clients; those who are quiet go to other workers, turn by turn.
    fn retire(&mut self) {
        self.acceptor.close(&self.epoll);
        self.retiring = true;
    }

    /// Gives clients that have nothing outstanding to other workers.
    pub(super) fn hand_over(&mut self) {
        let surplus = self.surplus();
        if surplus == 0 || self.drain_deadline.is_some() {
            return;
        }
        let mut alike: BTreeMap<ClientState, Vec<Leaver>> = BTreeMap::new();
        let leaving = self.service.hand_over(surplus);
        // What is told of them says where they were.
        self.run_actions(None);
        for (id, mut passed) in leaving {
            if let Some(conn) = self.drop_conn(id) {
                let _ = epoll::delete(&self.epoll, &conn.fd);
                let from = conn.from.map(|from| *from);
                let tally = std::mem::take(&mut passed.tally);
                let leaver = Leaver { tally, fd: conn.fd };
                alike.entry(ClientState { passed, from }).or_default().push(leaver);
            }
        }
        for (client, ones) in alike {
            // Those that cannot be passed stay for another turn.
            if let Err(back) = self.control.hand_over(client.clone(), ones) {
                for Leaver { tally, fd } in back {
                    let mut client = client.clone();
                    client.passed.tally = tally;
                    self.adopt(fd, client);
                }
            }
        }
    }

    /// How many clients are too many here.
    fn surplus(&mut self) -> usize {
        match self.sharing {
            _ if self.retiring => usize::MAX,
            None => 0,
            Some(Sharing { keep, until }) => {
                let surplus = self.acceptor.clients().saturating_sub(keep);
                if surplus == 0 || self.now >= until {
                    self.sharing = None;
                }
                surplus as usize
            }
        }
    }

    /// No more clients; those who are here leave when they have been answered.
    fn drain(&mut self, within: Duration) {
        self.acceptor.close(&self.epoll);
        self.finish_readers();
        self.drain_deadline = Some(self.now.after(within.as_micros() as u64));
        self.service.drain(self.now);
        self.run_actions(None);
    }

    /// While something waits for it, the kernel says when the control channel has room.
    pub(super) fn watch_control(&mut self) {
        let has_unsent = self.control.has_unsent();
        if has_unsent == self.watches_control_writes {
            return;
        }
        if let Some(fd) = self.control.fd() {
            let out = if has_unsent { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let flags = epoll::EventFlags::IN | out;
            // Should it fail, the next turn that has something to say tries again.
            if epoll::modify(&self.epoll, fd, token(CONTROL_TOKEN), flags).is_ok() {
                self.watches_control_writes = has_unsent;
            }
        }
    }
}

/// How long a worker looks for clients that have nothing outstanding, microseconds.
const SHARE_US: u64 = 2_000_000;
