//! A link as the simulated world sees it: two pipes and the server's end.
//!
//! ```text
//!   proxy ──transmit──▶ input ──serve──▶ output ──deliver──▶ proxy
//!                       (bounded: the kernel's buffer)       any piece at any time
//! ```

use std::collections::VecDeque;

use proto::ConnKey;
use proxy::plan::Timeouts;
use proxy::{ConnId, Time};

use super::redis;

pub struct Conn {
    pub id: ConnId,
    pub pool: usize,
    pub server: usize,
    /// The time at which the connect succeeds or fails; `None` once the link is connected.
    pub connects_at: Option<Time>,
    /// The time at which the proxy asked for it.
    pub since: Time,
    /// Bytes that the proxy sent and the server has not executed.
    pub input: Vec<u8>,
    /// Number of bytes that `input` may hold.
    pub capacity: usize,
    /// `input` has never been bounded.
    pub is_wide: bool,
    /// The proxy has more to send than fits into `input`.
    pub is_full: bool,
    pub output: Vec<u8>,
    /// Number of bytes of `output` that the proxy has received.
    pub delivered: usize,
    /// Positions in `output` at which replies end.
    pub reply_ends: VecDeque<usize>,
    /// Where the last whole reply ends that the proxy has received.
    last_end: usize,
    /// The range of `output` that is not a possible answer. Once its last byte is delivered, the
    /// proxy must have closed the link.
    pub poison: Option<(usize, usize)>,
    /// The delivered bytes end with a whole reply.
    pub ends_with_reply: bool,
    /// The time since which the server has owed the next reply.
    pub owed_since: Time,
    /// The last time at which the server sent anything on it.
    pub heard_at: Time,
    /// The server has answered the handshake; before that, no request is sent.
    pub is_established: bool,
    /// Its handshake reports fewer capabilities than another link's may have reported, so its
    /// server may not support the requests that wait for it.
    pub has_lost_capability: bool,
    /// The event and the time of the last handshake's answer.
    pub up: (u64, Time),
    /// For how long a request may have waited for it then.
    pub patience: u64,
    /// Number of bytes ever received and executed, and the events and times at which the bytes from
    /// given positions were received.
    pub taken: u64,
    pub executed: u64,
    pub writes: VecDeque<(u64, u64, Time)>,
    /// Its server is full, has said so, and does nothing else on it.
    pub is_turned_away: bool,
    /// The server sends nothing more on it.
    pub is_over: bool,
    /// Its connection key, once its handshake has been read; None if the protocol has no connection
    /// keys.
    pub conn_key: Option<ConnKey>,
    /// Its transaction, if its server is a Redis that has begun one, and whether one is being
    /// executed.
    pub queue: Option<redis::Queue>,
    pub in_transaction: bool,
    /// The last command that its server has taken was DISCARD outside of a transaction: the first
    /// of two that show whether transactions can be ended.
    pub is_mid_trial: bool,
    /// It has been tried so, and has had a request of a client.
    pub is_tried: bool,
    pub has_request: bool,
    /// The requests that watch keys on it.
    pub watches: Vec<u32>,
    /// The number of commands that its server has taken; a handshake is one.
    pub messages: u32,
    /// It serves one client only.
    pub is_private: bool,
    /// Clients go around others with it.
    pub is_spare: bool,
    /// It carries what others are not to wait behind.
    pub is_beside: bool,
    /// It may have taken the place of one that has ended, with what waited there.
    pub is_renewal: bool,
    /// It probes whether the server is back, and has no answer yet.
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
            is_wide: true,
            is_full: false,
            output: Vec::new(),
            delivered: 0,
            reply_ends: VecDeque::new(),
            last_end: 0,
            poison: None,
            ends_with_reply: true,
            owed_since: since,
            heard_at: since,
            is_established: false,
            has_lost_capability: false,
            up: (0, since),
            patience: u64::MAX,
            taken: 0,
            executed: 0,
            writes: VecDeque::new(),
            is_turned_away: false,
            is_over: false,
            conn_key: None,
            queue: None,
            in_transaction: false,
            is_mid_trial: false,
            is_tried: false,
            has_request: false,
            watches: Vec::new(),
            messages: 0,
            is_spare: false,
            is_beside: false,
            is_private: false,
            is_renewal: false,
            is_probe: false,
        }
    }

    /// Returns whether its server still reads what the proxy sends.
    pub fn is_read(&self) -> bool {
        !self.is_over && !self.is_turned_away
    }

    /// Returns whether the proxy has read all the words of its full server.
    pub fn is_told_full(&self) -> bool {
        self.is_turned_away && self.undelivered() == 0
    }

    /// Returns whether the proxy asks on it again whether the server is there.
    pub fn repeats_handshake(&self) -> bool {
        !self.is_established && self.up.0 > 0
    }

    pub fn is_up(&self) -> bool {
        self.connects_at.is_none()
    }

    /// Returns whether all requests are answered and the answers have arrived.
    pub fn is_idle(&self) -> bool {
        self.input.is_empty() && self.undelivered() == 0
    }

    /// Returns whether the server owes no answer, not even to the handshake.
    pub fn owes_nothing(&self) -> bool {
        self.is_established && self.is_idle()
    }

    /// Returns whether clients have gone around others with it for as long as they may need it.
    pub fn is_unneeded(&self, now: Time) -> bool {
        self.is_spare && now.since(self.since) >= proxy::limits::SPARE_KEPT_US
    }

    /// Returns whether the server owes an answer to a request.
    pub fn owes(&self) -> bool {
        self.is_up() && self.is_established && !self.is_idle()
    }

    /// Returns the name of the next command to execute, as it stands on its line: of Redis.
    pub fn next_name(&self) -> &[u8] {
        self.input.split(|byte| *byte == b'\n').nth(2).unwrap_or_default()
    }

    /// Returns whether the next answer that the server owes is that to a whole KEYS, which takes a
    /// link for slow requests.
    pub fn owes_keys(&self) -> bool {
        let is_whole =
            self.conn_key.is_some() && redis::frame_len(&self.input, &mut false).is_some();
        is_whole && self.undelivered() == 0 && self.next_name().eq_ignore_ascii_case(b"keys\r")
    }

    /// Returns how long its server may owe the next answer. A link that stands in for one of slow
    /// requests is one that all share.
    pub fn patience_by(&self, timeouts: &Timeouts, has_stood_in: bool) -> u64 {
        match self.is_established && self.owes_keys() {
            true if has_stood_in => timeouts.slow,
            true => 2 * timeouts.slow,
            false => timeouts.reply,
        }
    }

    /// Returns whether a whole answer is among the next `n` bytes that the proxy reads. Steps of a
    /// transaction, or of a trial, are none.
    pub fn brings_answer(&self, n: usize) -> bool {
        let read = self.delivered + n;
        let mut start = self.last_end;
        self.reply_ends.iter().take_while(|end| **end <= read).any(|end| {
            let reply = &self.output[std::mem::replace(&mut start, *end)..*end];
            let is_step = matches!(reply, b"+QUEUED\r\n" | b"+OK\r\n" | NO_BLOCK);
            self.conn_key.is_none() || !is_step
        })
    }

    /// Records that `n` more bytes are on their way to the server.
    pub fn take(&mut self, n: usize, event: u64, now: Time) {
        self.writes.push_back((self.taken, event, now));
        self.taken += n as u64;
    }

    /// Returns the event and the time at which the next command to execute began to be sent.
    pub fn sent_event(&mut self) -> (u64, Time) {
        while self.writes.get(1).is_some_and(|(from, ..)| *from <= self.executed) {
            self.writes.pop_front();
        }
        self.writes.front().map_or((0, Time(0)), |(_, event, time)| (*event, *time))
    }

    /// Returns when the first bytes came that are not executed; of a handshake, the last.
    pub fn asked_at(&mut self) -> Time {
        match self.is_established {
            true => self.sent_event().1,
            false => self.writes.back().map_or(Time(0), |(.., time)| *time),
        }
    }

    /// Returns the database selected on it.
    pub fn database(&self) -> usize {
        self.conn_key.map_or(0, |conn_key| conn_key.database as usize)
    }

    /// Returns the protocol version used on it.
    pub fn proto_version(&self) -> u8 {
        self.conn_key.map_or(0, |conn_key| conn_key.proto_version)
    }

    pub fn undelivered(&self) -> usize {
        self.output.len() - self.delivered
    }

    /// Records that the proxy has received `n` more bytes of `output`.
    pub fn deliver(&mut self, n: usize, now: Time) {
        self.delivered += n;
        self.heard_at = now;
        self.ends_with_reply = false;
        while let Some(end) = self.reply_ends.front().copied().filter(|end| *end <= self.delivered)
        {
            self.reply_ends.pop_front();
            self.last_end = end;
            self.ends_with_reply = end == self.delivered;
            self.owed_since = now;
            self.is_established = true;
        }
        // A run may be long, and delivered bytes are never needed again.
        if self.delivered == self.output.len() && self.poison.is_none() {
            self.output.clear();
            (self.delivered, self.last_end) = (0, 0);
            self.reply_ends.clear();
        }
    }
}

/// The answer to the first command of a trial.
const NO_BLOCK: &[u8] = b"-ERR DISCARD without MULTI\r\n";
