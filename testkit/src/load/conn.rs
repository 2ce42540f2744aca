//! One connection of the load: its socket, its outstanding requests, and its keys.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::keys::{self, Ask, Key};
use super::{Counts, Journal, Options};
use crate::process::DEADLINE;
use crate::random::Random;

pub struct Conn {
    /// Its index in the journal.
    place: usize,
    socket: Option<OwnedFd>,
    state: State,
    keys: Vec<Key>,
    /// Requests that wait for an answer, in order.
    asked: VecDeque<Ask>,
    asked_at: Instant,
    input: Vec<u8>,
    /// Output; the bytes from `sent` on are not written yet.
    output: Vec<u8>,
    sent: usize,
    random: Random,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has no socket.
    Absent,
    /// The kernel is connecting it.
    Connecting,
    /// Connected, without outstanding requests.
    Idle,
    /// Answers are outstanding.
    Asking,
}

impl Conn {
    /// `load` distinguishes its keys from those of all other loads.
    pub fn new(load: usize, place: usize, options: &Options) -> Conn {
        let key = |n| Key::new(format!("load{load}-{place}-{n}"), options.value_max);
        Conn {
            place,
            socket: None,
            state: State::Absent,
            keys: (0..options.keys).map(key).collect(),
            asked: VecDeque::new(),
            asked_at: Instant::now(),
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            random: Random::new(place as u64),
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Begins to connect. The caller must watch the socket in both directions, edge-triggered.
    pub fn connect(&mut self, address: SocketAddr) -> std::io::Result<&OwnedFd> {
        debug_assert_eq!(self.state, State::Absent);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let family = AddressFamily::INET;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        self.state = State::Connecting;
        self.asked_at = Instant::now();
        Ok(self.socket.insert(socket))
    }

    /// Sends a batch of requests, as far as the kernel accepts them.
    pub fn ask(&mut self, options: &Options, journal: &mut Journal) {
        debug_assert_eq!(self.state, State::Idle);
        let count = 1 + self.random.below(options.depth);
        // Three neighbouring keys for each request, so that no two requests of a batch share one.
        let first = self.random.below(self.keys.len());
        for at in 0..count {
            let place = (first + 3 * at) % self.keys.len();
            let ask = match self.random.below(100) {
                0..60 => Ask::get(vec![place], &self.keys, &mut self.output),
                60..70 => {
                    let places = (place..place + 3).map(|n| n % self.keys.len()).collect();
                    Ask::get(places, &self.keys, &mut self.output)
                }
                70..97 => Ask::set(place, &mut self.keys, &mut self.output),
                _ => Ask::delete(place, &mut self.keys, &mut self.output),
            };
            self.asked.push_back(ask);
        }
        journal.outstanding += count;
        (self.state, self.asked_at) = (State::Asking, Instant::now());
        self.write();
    }

    /// Handles an event on its socket. Returns an error if a reply is wrong.
    pub fn handle_ready(&mut self, options: &Options, journal: &mut Journal) -> Result<(), String> {
        let Some(socket) = &self.socket else { return Ok(()) };
        if self.state == State::Connecting {
            let failed = sockopt::socket_error(socket).map_or(true, |error| error.is_err());
            if failed {
                self.counts(journal).refused += 1;
                self.disconnect();
                return Ok(());
            }
            // The event may belong to the previous socket.
            if rustix::net::getpeername(socket).is_err() {
                return Ok(());
            }
            self.counts(journal).connected += 1;
            self.state = State::Idle;
        }
        self.write();
        self.read(options, journal)
    }

    /// Fails if an answer is overdue, so that a test ends.
    pub fn check_patience(&self) -> Result<(), String> {
        let waits = matches!(self.state, State::Asking | State::Connecting);
        if waits && self.asked_at.elapsed() > DEADLINE {
            let (place, state, held) = (self.place, self.state, keys::show(&self.input));
            return Err(format!("no answer for connection {place}, {state:?}, after {held:?}"));
        }
        Ok(())
    }

    fn write(&mut self) {
        while let Some(socket) = &self.socket
            && self.sent < self.output.len()
        {
            match rustix::io::write(socket, &self.output[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // An answer may have arrived all the same; a read finds it, and the end.
                Err(_) => return,
            }
        }
        self.output.clear();
        self.sent = 0;
    }

    fn read(&mut self, options: &Options, journal: &mut Journal) -> Result<(), String> {
        let mut block = [0; 16 * 1024];
        while let Some(socket) = &self.socket {
            match rustix::io::read(socket.as_fd(), &mut block) {
                Ok(n) if n > 0 => self.input.extend_from_slice(&block[..n]),
                Err(Errno::AGAIN) => return self.hear(options, journal),
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => {
                    // Answers before the end count.
                    self.hear(options, journal)?;
                    self.lose(journal);
                }
            }
        }
        Ok(())
    }

    /// Parses whole replies from the input.
    fn hear(&mut self, options: &Options, journal: &mut Journal) -> Result<(), String> {
        let mut gone = 0;
        while let Some(ask) = self.asked.front() {
            let heard = ask.hear(&self.input[gone..], &mut self.keys, options.trust);
            let heard = heard.map_err(|wrong| format!("connection {}: {wrong}", self.place))?;
            let Some(reply) = heard else { break };
            gone += reply.len;
            let counts = &mut journal.tally.connections[self.place];
            counts.requests += 1;
            *(if ask.is_get() { &mut counts.gets } else { &mut counts.updates }) += 1;
            counts.failed += u64::from(reply.error.is_some());
            if let Some(error) = reply.error {
                *journal.tally.errors.entry(error).or_default() += 1;
            }
            journal.requests += 1;
            journal.outstanding -= 1;
            self.asked.pop_front();
        }
        self.input.drain(..gone);
        if self.asked.is_empty() && self.state == State::Asking {
            self.state = State::Idle;
            journal.latencies.push(self.asked_at.elapsed().as_micros() as u32);
        }
        if self.state == State::Idle && !self.input.is_empty() {
            return self.hear_unasked(journal);
        }
        Ok(())
    }

    /// Handles input without a request: only a proxy that refuses a client may send it.
    fn hear_unasked(&mut self, journal: &mut Journal) -> Result<(), String> {
        let line = keys::next_line(&self.input)?;
        let Some(error) = line.and_then(|(line, _)| keys::error(line.text)) else {
            let (place, held) = (self.place, keys::show(&self.input));
            return Err(format!("connection {place} hears what it never asked for: {held}"));
        };
        *journal.tally.errors.entry(error).or_default() += 1;
        self.counts(journal).failed += 1;
        self.input.clear();
        Ok(())
    }

    /// Handles the loss of the connection.
    fn lose(&mut self, journal: &mut Journal) {
        if self.asked.is_empty() {
            self.counts(journal).closed += 1;
        } else {
            self.counts(journal).lost += 1;
        }
        journal.outstanding -= self.asked.len();
        for ask in self.asked.drain(..) {
            ask.lose(&mut self.keys);
        }
        self.disconnect();
    }

    fn disconnect(&mut self) {
        self.socket = None;
        self.state = State::Absent;
        self.input.clear();
        self.output.clear();
        self.sent = 0;
    }

    fn counts<'a>(&self, journal: &'a mut Journal) -> &'a mut Counts {
        &mut journal.tally.connections[self.place]
    }
}
