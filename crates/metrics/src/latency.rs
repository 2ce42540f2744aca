//! The histograms of a row, by their meaning.
//!
//! ```text
//!   pool     [ phases | family 0: reads, updates | family 1: reads, updates | ... | failed ]
//!   server   [        | reads, updates           |                                         ]
//!   tenant   [ queue  | requests                 |                                         ]
//! ```
//!
//! The protocol of a pool has the names of the command families.

use crate::{Kind, Metric};

/// One histogram of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Latency(u8);

/// The phases of a request. The places for them come first in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// From a request's first byte to its last.
    ClientRead,
    /// From then on until it has been written to its server.
    Queue,
    /// From then on until the server's reply has come whole.
    Server,
    /// From then on until the whole answer has been written to the client.
    ClientWrite,
}

impl Phase {
    pub const ALL: [Phase; PHASES] =
        [Phase::ClientRead, Phase::Queue, Phase::Server, Phase::ClientWrite];

    /// Returns its name for operators.
    pub fn name(self) -> &'static str {
        match self {
            Phase::ClientRead => "client_read",
            Phase::Queue => "queue",
            Phase::Server => "server",
            Phase::ClientWrite => "client_write",
        }
    }

    pub fn help(self) -> &'static str {
        match self {
            Phase::ClientRead => "From the request's first byte to its last.",
            Phase::Queue => "From then on until it has been written to its server.",
            Phase::Server => "From then on until the server's reply has come whole.",
            Phase::ClientWrite => "From then on until the whole answer is written to the client.",
        }
    }
}

/// The most families of commands of one protocol.
pub const FAMILIES_MAX: usize = 9;
const PHASES: usize = 4;
/// Histograms of a row.
pub const HISTOGRAMS: usize = PHASES + 2 * (FAMILIES_MAX + 1);

impl Latency {
    /// A family of its own: whatever a failed request was.
    pub const FAILED: u8 = FAMILIES_MAX as u8;

    /// Reads of a server, from the entry into a queue to the reply.
    pub const READS: Latency = Latency::of_family(0, false);
    /// Updates of a server, measured as reads are.
    pub const UPDATES: Latency = Latency::of_family(0, true);

    /// A tenant's requests, from the parse of the request to the release of its answer.
    pub const REQUESTS: Latency = Latency::of_family(0, false);
    /// How long a tenant's requests waited for a limit of the tenant, or in the queue of a server.
    pub const QUEUE: Latency = Latency::of_phase(Phase::Queue);

    /// A pool's requests of one family: from the parse of the request to the release of its answer.
    #[inline]
    pub const fn of_family(family: u8, is_update: bool) -> Latency {
        Latency(PHASES as u8 + 2 * family + is_update as u8)
    }

    /// The requests of a pool that failed, of all families: they say nothing of its servers' speed.
    pub fn failed() -> impl Iterator<Item = Latency> + Clone {
        [false, true].into_iter().map(|is_update| Latency::of_family(Latency::FAILED, is_update))
    }

    pub const fn of_phase(phase: Phase) -> Latency {
        Latency(phase as u8)
    }

    /// Returns the histograms of all families together, of reads or of updates.
    pub fn all(are_updates: bool) -> impl Iterator<Item = Latency> + Clone {
        (0..FAMILIES_MAX as u8).map(move |family| Latency::of_family(family, are_updates))
    }

    /// Returns its index among the histograms of a row.
    #[inline]
    pub fn place(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn of_place(place: usize) -> Latency {
        Latency(place as u8)
    }
}

/// The names of a pool's histograms, each over all families.
pub static LATENCIES: &[Metric] = LATENCY_TABLE;

pub(crate) const LATENCY_TABLE: &[Metric] = &[
    Metric {
        name: "reads",
        help: "Reads that did not fail: from parsing the request to releasing its answer.",
        kind: Kind::Total,
    },
    Metric {
        name: "updates",
        help: "Updates that did not fail: from parsing the request to releasing its answer.",
        kind: Kind::Total,
    },
    Metric {
        name: "failed",
        help: "Requests that failed, measured as the others are.",
        kind: Kind::Total,
    },
];

/// The names of a tenant's histograms: `REQUESTS` and `QUEUE`.
pub static TENANT_LATENCIES: &[Metric] = &[
    Metric {
        name: "requests",
        help: "Requests sent to servers: from parsing the request to releasing its answer.",
        kind: Kind::Total,
    },
    Metric {
        name: "queue",
        help: "How long requests waited for a limit of the tenant, or in the queue of a server.",
        kind: Kind::Total,
    },
];
