//! The load generator: one thread, one epoll, preformatted requests.
//!
//! It shares a CPU with the servers, so what it spends bounds the requests per second of every row.
//! Yet every reply is read to its last byte: kind, key, length and end are checked, and the value
//! too where `verify` is set.
//!
//! ```text
//!  Workload --> Generator --> Connection (requests asked, reply reader, output)
//!                  |   \----> Corpus     (keys, requests and values as bytes)
//!                  v
//!                Tally (counts and latency, handed to the window)
//!  wire: how requests and replies look in classic text, meta, binary and RESP
//! ```

mod arrival;
mod connection;
mod corpus;
mod generator;
mod packets;
mod reply;
mod resp;
mod tally;
mod wire;

pub use arrival::Random;
pub use corpus::Corpus;
pub use generator::{Generator, now_ns};
pub use tally::Tally;
pub use wire::{Wire, push_noop, push_quiet_get};

/// What is asked, how often, and by whom.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Client connections held open (or, with `short`, being used at any moment).
    pub connections: usize,
    /// Requests outstanding on each connection at most.
    pub depth: usize,
    /// How gets and sets are mixed.
    pub mix: Mix,
    /// Bytes of each value.
    pub value_len: usize,
    /// Different keys, all of them stored before the first window.
    pub key_count: u32,
    /// In which words requests are asked.
    pub wire: Wire,
    /// Nothing is stored before the first window: every get misses.
    pub missing: bool,
    /// Keys in one get.
    pub keys_per_get: u32,
    /// When the next request is due.
    pub arrival: Arrival,
    /// A new connection for each request.
    pub short: bool,
    /// How a request is handed to the kernel.
    pub writing: Writing,
    /// Compare every byte of every value.
    pub verify: bool,
}

/// How gets and sets are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Gets only.
    Gets,
    /// Sets only.
    Sets,
    /// Neither: what the proxy answers by itself.
    Pings,
    /// One request in this many is a set: 11 is a ratio of 10:1.
    SetEvery(u32),
}

/// When the next request is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// As soon as a reply has made room: `depth` requests are sent in one write at the start, and
    /// each read of replies is followed by one write of as many new requests.
    Closed,
    /// As soon as all `depth` replies are there: a whole batch in one write each time.
    Batch,
    /// At times of a Poisson process of this many requests a second, on a random connection. What
    /// finds its connection full waits there, and its latency counts from the time it was due.
    Poisson(f64),
}

/// How a request is handed to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// TCP_NODELAY is set and whole requests leave in one write.
    Whole,
    /// Nagle is on and each request leaves in two writes: `get KEY` and CRLF, or a set's header
    /// and its body.
    Split,
}
