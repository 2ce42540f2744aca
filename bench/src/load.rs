//! The load generator: one thread, one epoll, preformatted requests.
//!
//! It shares a CPU with the servers, so its own cost limits the requests per second of every row.
//! Yet it reads every reply to the last byte: it checks kind, key, length and end, and with
//! `verify` the value too.
//!
//! ```text
//!  Workload --> Generator --> Connection (outstanding requests, reply reader, output)
//!                  |   \----> Corpus     (keys, requests and values as bytes)
//!                  v
//!                Tally (counts and latency, handed to the window)
//!  wire: requests and replies in classic text, meta, binary and RESP
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

/// The requests of a load, their rate, and their connections.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Client connections held open, or with `short` in use at any moment.
    pub connections: usize,
    /// Limit on outstanding requests on each connection.
    pub depth: usize,
    /// The mix of gets and sets.
    pub mix: Mix,
    /// Bytes of each value.
    pub value_len: usize,
    /// Number of keys, all of them stored before the first window.
    pub key_count: u32,
    /// The protocol of the requests.
    pub wire: Wire,
    /// Nothing is stored before the first window: every get misses.
    pub missing: bool,
    /// Keys in one get.
    pub keys_per_get: u32,
    /// The rule for the time of the next request.
    pub arrival: Arrival,
    /// A new connection for each request.
    pub short: bool,
    /// The way in which a request is written.
    pub writing: Writing,
    /// Compare every byte of every value.
    pub verify: bool,
}

/// The mix of gets and sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Gets only.
    Gets,
    /// Sets only.
    Sets,
    /// Requests that the proxy answers by itself.
    Pings,
    /// Scripts that get a value (Redis).
    Evals,
    /// One request in this many is a set: 11 is a ratio of 10:1.
    SetEvery(u32),
}

/// The rule for the time of the next request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// As soon as a reply has made room: `depth` requests are sent in one write at the start, and
    /// each read of replies is followed by one write of as many new requests.
    Closed,
    /// When all `depth` replies are there: a whole batch in one write each time.
    Batch,
    /// At times of a Poisson process with this many requests a second, on a random connection. A
    /// request whose connection is full waits there; its latency counts from its due time.
    Poisson(f64),
}

/// The way in which a request is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// TCP_NODELAY is set and whole requests leave in one write.
    Whole,
    /// Nagle is on and each request leaves in two writes: `get KEY` and CRLF, or a set's header
    /// and its body.
    Split,
}
