//! A link as the world sees it: two pipes and the server's end.
//!
//! ```text
//!   proxy ──transmit──▶ input ──serve──▶ output ──deliver──▶ proxy
//!                       (bounded: the kernel's buffer)       any piece at any time
//! ```

use std::collections::VecDeque;

use proto::Lane;
use proxy::{ConnId, Time};

pub struct Conn {
    pub id: ConnId,
    pub pool: usize,
    pub server: usize,
    /// When the connect succeeds or fails; `None` once it stands.
    pub connects_at: Option<Time>,
    /// When the proxy asked for it.
    pub since: Time,
    /// Bytes that the proxy sent and the server has not executed.
    pub input: Vec<u8>,
    /// How many bytes `input` may hold.
    pub capacity: usize,
    /// The proxy has more to send than `input` could take.
    pub is_full: bool,
    pub output: Vec<u8>,
    /// Bytes of `output` that the proxy has got.
    pub delivered: usize,
    /// Where in `output` each reply ends.
    pub reply_ends: VecDeque<usize>,
    /// Where in `output` stands what is no possible answer: with its last byte the proxy must have
    /// closed the link.
    pub poison: Option<(usize, usize)>,
    /// What was delivered ends with a whole reply.
    pub ends_with_reply: bool,
    /// Since when the server has owed the reply that is next.
    pub owed_since: Time,
    /// When the server last said anything on it.
    pub heard_at: Time,
    /// The server has said who it is; before that, nothing else is asked.
    pub is_greeted: bool,
    /// Its first words tell of less than those on another link may have told: what waits for it
    /// may not be what such a server understands.
    pub is_unskilled: bool,
    /// The event and the time of its last greeting's answer.
    pub up: (u64, Time),
    /// Bytes ever taken and executed, and at which event those from a place on were taken.
    pub taken: u64,
    pub executed: u64,
    pub writes: VecDeque<(u64, u64)>,
    /// The server says nothing more on it.
    pub is_over: bool,
    /// What it is for, once its first words have been read; where servers have no lanes, nothing.
    pub lane: Option<Lane>,
    /// It was opened to ask whether the server is back.
    pub is_probe: bool,
}

impl Conn {
    pub fn new(id: ConnId, (pool, server): (usize, usize), since: Time) -> Conn {
        Conn {
            id,
            pool,
            server,
            connects_at: Some(Time(u64::MAX)),
            since,
            input: Vec::new(),
            capacity: usize::MAX,
            is_full: false,
            output: Vec::new(),
            delivered: 0,
            reply_ends: VecDeque::new(),
            poison: None,
            ends_with_reply: true,
            owed_since: since,
            heard_at: since,
            is_greeted: false,
            is_unskilled: false,
            up: (0, since),
            taken: 0,
            executed: 0,
            writes: VecDeque::new(),
            is_over: false,
            lane: None,
            is_probe: false,
        }
    }

    pub fn is_up(&self) -> bool {
        self.connects_at.is_none()
    }

    /// All that was asked has been answered, and the answers have arrived.
    pub fn is_idle(&self) -> bool {
        self.input.is_empty() && self.undelivered() == 0
    }

    /// The server owes nothing, not even its first words.
    pub fn owes_nothing(&self) -> bool {
        self.is_greeted && self.is_idle()
    }

    /// The server owes an answer to a request.
    pub fn owes(&self) -> bool {
        self.is_up() && self.is_greeted && !self.is_idle()
    }

    /// So many bytes more are on their way to the server.
    pub fn take(&mut self, n: usize, event: u64) {
        self.writes.push_back((self.taken, event));
        self.taken += n as u64;
    }

    /// The event at which the command that is executed next began to be sent.
    pub fn sent_event(&mut self) -> u64 {
        while self.writes.get(1).is_some_and(|(from, _)| *from <= self.executed) {
            self.writes.pop_front();
        }
        self.writes.front().map_or(0, |(_, event)| *event)
    }

    /// The database that was chosen on it.
    pub fn space(&self) -> usize {
        self.lane.map_or(0, |lane| lane.space as usize)
    }

    /// The version of the protocol that is spoken on it.
    pub fn dialect(&self) -> u8 {
        self.lane.map_or(0, |lane| lane.dialect)
    }

    pub fn undelivered(&self) -> usize {
        self.output.len() - self.delivered
    }

    /// The proxy has got `n` more bytes of `output`.
    pub fn deliver(&mut self, n: usize, now: Time) {
        self.delivered += n;
        self.heard_at = now;
        self.ends_with_reply = false;
        while let Some(end) = self.reply_ends.front().copied().filter(|end| *end <= self.delivered)
        {
            self.reply_ends.pop_front();
            self.ends_with_reply = end == self.delivered;
            self.owed_since = now;
            self.is_greeted = true;
        }
        // A run may last, and what was delivered is never looked at again.
        if self.delivered == self.output.len() && self.poison.is_none() {
            self.output.clear();
            self.delivered = 0;
            self.reply_ends.clear();
        }
    }
}
