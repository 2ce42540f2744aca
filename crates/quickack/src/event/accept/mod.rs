//! The acceptor: listening sockets, which worker takes the clients that wait at them, and what
//! happens to clients for which there is no room.
//!
//! ```text
//!                     alone       gate           reuseport     mutex
//!   sockets           own         shared         one each      shared
//!   watched           always      within gate    always        with the lock
//!   a client wakes    us          one worker     its worker    the holder
//! ```
//!
//! With `reuseport` the kernel deals: each worker has its own sockets. Those of workers that have
//! gone for good are in the lists of others, so that no queue is forgotten.
//!
//! A bounded number is taken a pass. A listener that is taken away is first accepted empty: closed
//! with clients in its queue, it would reset them.

mod choice;
mod gate;
mod mutex;
mod peers;
mod socket;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;

use proxy::Time;
use rustix::io::{self, Errno};

use super::refused;
use gate::Gate;
use mutex::Mutex;
use socket::{ListeningSocket, State, waiting};

pub use choice::{CALLS, choose};
pub use peers::Peers;
pub(super) use socket::Arrival;
pub use socket::Listener;

/// How the workers share new clients.
pub enum Policy {
    /// No other worker listens at the same sockets, or the kernel distributes the clients.
    Uncoordinated,
    Gate,
    Mutex(OwnedFd),
}

/// All listeners of a worker, and the policy by which it accepts.
pub(super) struct Acceptor {
    /// By token; empty where one has gone.
    sockets: Vec<Option<ListeningSocket>>,
    policy: ActivePolicy,
    peers: Option<Peers>,
    /// Clients that came in and have not left.
    clients: u32,
    /// How many they were when we last asked whether others have fewer.
    clients_compared: u32,
    /// Listeners that are ready in this pass …
    ready: Vec<usize>,
    /// … and what the last of them has brought so far.
    taken: usize,
    /// A descriptor to give up when there is no other, so that a client can be told so.
    reserve: Option<OwnedFd>,
    /// When to look at the listeners without a wakeup.
    look_due: Time,
}

/// A policy at work.
enum ActivePolicy {
    Uncoordinated,
    Gate(Gate),
    Mutex(Mutex),
}

impl Acceptor {
    pub fn new(epoll: &OwnedFd) -> io::Result<Acceptor> {
        Ok(Acceptor {
            sockets: Vec::new(),
            policy: ActivePolicy::Uncoordinated,
            peers: None,
            clients: 0,
            clients_compared: 0,
            ready: Vec::new(),
            taken: 0,
            reserve: Some(reserve(epoll)?),
            look_due: Time(0),
        })
    }

    /// From now on, clients are shared by this policy. Before the first listener.
    pub fn share(&mut self, peers: Peers, policy: Policy) {
        assert!(self.sockets.is_empty(), "the policy is chosen once");
        self.policy = match policy {
            Policy::Uncoordinated => ActivePolicy::Uncoordinated,
            Policy::Gate => ActivePolicy::Gate(Gate::new(peers.scoreboard.slots())),
            Policy::Mutex(lock) => ActivePolicy::Mutex(Mutex::new(lock)),
        };
        self.peers = Some(peers);
        self.publish();
    }

    pub fn set_epoll_timeout(&mut self, us: u64) {
        if let ActivePolicy::Mutex(mutex) = &mut self.policy {
            mutex.set_epoll_timeout(us);
        }
    }

    pub fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    /// Takes clients from these listeners and, when the others are empty, no others.
    pub fn set_listeners(&mut self, epoll: &OwnedFd, listeners: Vec<Listener>) {
        let mut kept = Vec::new();
        for mut listener in listeners {
            let known = self.sockets.iter().position(|socket| {
                let is_it = |socket: &ListeningSocket| {
                    socket.listener.id == listener.id && socket.state != State::Leaving
                };
                socket.as_ref().is_some_and(is_it)
            });
            match (known, listener.fd.take()) {
                (Some(at), _) => {
                    kept.push(at);
                    self.sockets[at].as_mut().expect("it was found").listener = listener;
                }
                (None, Some(fd)) => {
                    kept.push(self.add(ListeningSocket { listener, fd, state: State::Aside }))
                }
                (None, None) => {}
            }
        }
        for at in 0..self.sockets.len() {
            if !kept.contains(&at) {
                self.remove(epoll, at);
            }
        }
        if !matches!(self.policy, ActivePolicy::Mutex(_)) {
            self.watch_all(epoll);
        }
    }

    fn add(&mut self, socket: ListeningSocket) -> usize {
        let at = self.sockets.iter().position(Option::is_none).unwrap_or(self.sockets.len());
        if at == self.sockets.len() {
            self.sockets.push(None);
        }
        self.sockets[at] = Some(socket);
        at
    }

    fn remove(&mut self, epoll: &OwnedFd, at: usize) {
        if let Some(socket) = &mut self.sockets[at] {
            socket.unwatch(epoll);
            socket.state = State::Leaving;
            self.set_ready(at);
        }
    }

    /// No more clients. What waits is for the others, who may have slept through it because the
    /// kernel told us.
    pub fn close(&mut self, epoll: &OwnedFd) {
        // To close is not enough: as long as another process has the socket, the kernel would go
        // on telling us of it.
        self.stand_aside(epoll);
        self.sockets.clear();
        self.ready.clear();
        self.policy = ActivePolicy::Uncoordinated;
        if let Some(peers) = &self.peers {
            peers.wake_all();
        }
    }

    /// A client came from another worker, not from a listener.
    pub fn entered(&mut self) {
        self.clients += 1;
        self.publish();
    }

    /// A client has left.
    pub fn left(&mut self) {
        self.clients -= 1;
        self.publish();
    }

    /// How many are here.
    pub fn clients(&self) -> u32 {
        self.clients
    }

    /// No client is here.
    pub fn is_empty(&self) -> bool {
        self.clients == 0
    }

    fn publish(&self) {
        if let Some(peers) = &self.peers {
            peers.scoreboard.set_connections(peers.slot, self.clients);
        }
    }

    /// The kernel says that a client waits at a listener.
    pub fn set_ready(&mut self, at: usize) {
        if !self.ready.contains(&at) {
            self.ready.push(at);
        }
    }

    /// Whether what has come to be done must be done before anything else.
    pub fn is_first(&self) -> bool {
        matches!(self.policy, ActivePolicy::Mutex(_))
    }

    /// Before a wait: who has rested is looked at again, and the policy says what is watched.
    pub fn before_wait(&mut self, epoll: &OwnedFd, now: Time) {
        self.resume_rested(epoll, now);
        if self.peers.is_some() && self.look_due <= now {
            self.look_due = now.after(LOOK_US);
            self.look(epoll, now);
        }
        match (&mut self.policy, &self.peers) {
            (ActivePolicy::Gate(gate), Some(peers)) => {
                if gate.due().is_some_and(|due| due <= now) {
                    let waiting = waiting(&self.sockets);
                    gate.judge(peers, !waiting.is_empty(), now);
                    self.ready.extend(waiting);
                } else if self.clients_compared != self.clients && self.is_aside() {
                    // To ask is to read a line of every other worker, so it is not done every turn:
                    // if others have got more meanwhile, the one that declines a client wakes us.
                    self.clients_compared = self.clients;
                    if self.is_least(now) {
                        self.watch_all(epoll);
                    }
                }
            }
            (ActivePolicy::Mutex(mutex), Some(peers)) => match mutex.begin(peers, self.clients) {
                true => self.watch_all(epoll),
                false => self.stand_aside(epoll),
            },
            _ => {}
        }
    }

    /// Whether a listener is ready: there is something to do without waiting for the kernel.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When to wake without an event.
    pub fn due(&self, now: Time) -> Option<Time> {
        let rests = self.sockets.iter().flatten().filter_map(|socket| match socket.state {
            State::Resting(until) => Some(until),
            _ => None,
        });
        let policy = match &self.policy {
            ActivePolicy::Uncoordinated => None,
            ActivePolicy::Gate(gate) => gate.due(),
            ActivePolicy::Mutex(mutex) => mutex.wake_by(now),
        };
        // It bounds the sleep of all who share: their hearts beat once a turn.
        let look = self.peers.as_ref().map(|_| self.look_due);
        rests.chain(policy).chain(look).min()
    }

    /// Looks at the listeners: a peer wants it, or nothing has happened for long.
    pub fn look(&mut self, epoll: &OwnedFd, now: Time) {
        match (&mut self.policy, &self.peers) {
            (ActivePolicy::Gate(gate), Some(peers)) => {
                let waiting = waiting(&self.sockets);
                if gate.may_take(peers, self.clients, now) {
                    self.watch_all(epoll);
                } else if waiting.is_empty() {
                    gate.pass_on(peers, now);
                }
                waiting.into_iter().for_each(|at| self.set_ready(at));
            }
            // It tries for the lock before it waits again.
            (ActivePolicy::Mutex(_), _) => {}
            _ => waiting(&self.sockets).into_iter().for_each(|at| self.set_ready(at)),
        }
    }

    /// The next client of this pass.
    pub fn next(&mut self, epoll: &OwnedFd, now: Time) -> Option<Arrival> {
        while let Some(at) = self.ready.last().copied() {
            if let Some(arrival) = self.take(epoll, at, now) {
                return Some(arrival);
            }
            self.ready.pop();
            self.taken = 0;
        }
        if let (ActivePolicy::Mutex(mutex), Some(peers)) = (&mut self.policy, &self.peers) {
            mutex.end(peers, self.clients);
        }
        None
    }

    /// The next client of a listener, unless it is not for us.
    fn take(&mut self, epoll: &OwnedFd, at: usize, now: Time) -> Option<Arrival> {
        loop {
            let socket = self.sockets.get(at)?.as_ref()?;
            let is_leaving = socket.state == State::Leaving;
            if !is_leaving && (self.taken == ACCEPTS_MAX || !self.may_take(epoll, at, now)) {
                return None;
            }
            match self.sockets[at].as_ref()?.accept() {
                Ok(arrival) => return Some(self.count(arrival)),
                Err(Errno::AGAIN) if is_leaving => {
                    self.sockets[at] = None;
                    return None;
                }
                Err(Errno::AGAIN) => return None,
                Err(Errno::MFILE | Errno::NFILE) => {
                    if !self.refuse_for_want_of_descriptors(epoll, at) {
                        self.rest(epoll, at, now);
                        return None;
                    }
                    self.taken += 1;
                }
                // The client has gone again; the next may be waiting.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => {
                    self.rest(epoll, at, now);
                    return None;
                }
            }
        }
    }

    fn count(&mut self, arrival: Arrival) -> Arrival {
        self.taken += 1;
        self.entered();
        if let ActivePolicy::Mutex(mutex) = &mut self.policy {
            mutex.took();
        }
        arrival
    }

    /// Whether a client that may wait at a listener is for us. If it is not, others are told.
    fn may_take(&mut self, epoll: &OwnedFd, at: usize, now: Time) -> bool {
        match (&mut self.policy, &self.peers) {
            (ActivePolicy::Gate(gate), Some(peers)) => {
                let may = gate.may_take(peers, self.clients, now);
                // After a first one it is not known whether more wait: the kernel says if so.
                if !may && self.taken == 0 {
                    gate.decline(peers, now);
                    peers.scoreboard.set_watching(peers.slot, false);
                    if let Some(socket) = &mut self.sockets[at] {
                        socket.unwatch(epoll);
                    }
                }
                may
            }
            (ActivePolicy::Mutex(mutex), Some(peers)) => mutex.may_take(peers, self.clients),
            _ => true,
        }
    }

    fn is_aside(&self) -> bool {
        self.sockets.iter().flatten().any(|socket| socket.state == State::Aside)
    }

    fn is_least(&self, now: Time) -> bool {
        match (&self.policy, &self.peers) {
            (ActivePolicy::Gate(gate), Some(peers)) => gate.is_least(peers, self.clients, now),
            _ => true,
        }
    }

    /// Watches every listener that neither rests nor leaves.
    fn watch_all(&mut self, epoll: &OwnedFd) {
        let exclusive = matches!(self.policy, ActivePolicy::Gate(_));
        for (at, socket) in self.sockets.iter_mut().enumerate() {
            if let Some(socket) = socket
                && socket.state == State::Aside
            {
                socket.watch(epoll, at, exclusive, Time(0));
            }
        }
        if let Some(peers) = &self.peers {
            peers.scoreboard.set_watching(peers.slot, true);
        }
    }

    fn stand_aside(&mut self, epoll: &OwnedFd) {
        self.sockets.iter_mut().flatten().for_each(|socket| socket.unwatch(epoll));
        if let Some(peers) = &self.peers {
            peers.scoreboard.set_watching(peers.slot, false);
        }
    }

    /// The descriptor kept for this is given up for a moment: the client reads why, and is closed.
    fn refuse_for_want_of_descriptors(&mut self, epoll: &OwnedFd, at: usize) -> bool {
        let Some(spare) = self.reserve.take() else { return false };
        drop(spare);
        let socket = self.sockets[at].as_ref();
        let accepted = socket.and_then(|socket| Some((socket.accept().ok()?, socket)));
        let progress = accepted.is_some();
        if let Some((arrival, socket)) = accepted {
            refused::tell_at_once(arrival.fd, &socket.listener.no_room, arrival.has_header);
        }
        // A moment ago there was room for one; if that has gone, a rest brings it back.
        self.reserve = reserve(epoll).ok();
        progress
    }

    /// Does not look at a listener for a while, rather than fail at it in circles.
    fn rest(&mut self, epoll: &OwnedFd, at: usize, now: Time) {
        if let Some(socket) = &mut self.sockets[at] {
            socket.unwatch(epoll);
            if socket.state == State::Leaving {
                // It cannot be emptied and must not come back.
                self.sockets[at] = None;
                return;
            }
            socket.state = State::Resting(now.after(socket::REST_US));
        }
    }

    /// Looks again at listeners that have rested.
    fn resume_rested(&mut self, epoll: &OwnedFd, now: Time) {
        let exclusive = matches!(self.policy, ActivePolicy::Gate(_));
        for (at, socket) in self.sockets.iter_mut().enumerate() {
            if let Some(socket) = socket
                && matches!(socket.state, State::Resting(until) if until <= now)
            {
                if self.reserve.is_none() {
                    self.reserve = reserve(epoll).ok();
                }
                socket.watch(epoll, at, exclusive, now);
            }
        }
    }
}

/// A descriptor that stands for nothing.
fn reserve(any: &OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(any, 0)
}

/// Connections taken from one listener in one pass.
const ACCEPTS_MAX: usize = 64;
/// With shared listeners, a worker looks at them at least so often, microseconds: another may have
/// been woken for a client, and stopped.
const LOOK_US: u64 = 1_000_000;
