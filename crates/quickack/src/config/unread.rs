//! The directives of clients that write and do not read.

use super::directives::Origin::Native;
use super::directives::Unwritten::Value;
use super::directives::{Directive, Kind, row};
use super::draft::PoolDraft;

pub const TIMEOUT_WRITE: Directive<PoolDraft> = row(
    "timeout_write",
    Native,
    Value("1m"),
    Kind::Deadline(|pool, us| pool.plan.timeouts.write = us),
    "How long a client may take nothing of its answers while it writes on and no more is kept of \
     it (`client_buffer_max`, or half of a worker's part of `memory_max`). Then it is closed, with \
     a line in the log that says which of the two it was, and counted in `clients_unread_total`. \
     The system takes answers for a client in large steps: one that reads a few kilobytes a second \
     may take nothing for a minute.",
);

pub const CLIENT_BUFFER_MAX: Directive<PoolDraft> = row(
    "client_buffer_max",
    Native,
    Value("64m"),
    Kind::Size(0..=1 << 30, |pool, bytes| pool.plan.client_buffer_max = bytes as usize),
    "How many bytes of requests are kept of a client that writes and does not read: some clients \
     write a whole pipeline before they read the first answer. Nothing more is asked for such a \
     client until it reads. All clients together keep at most half of a worker's part of \
     `memory_max`, and one alone eight ninths of that; who keeps most is stopped first. 16k are \
     kept in any case.",
);
