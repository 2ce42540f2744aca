//! The path of a request, one file a step. These files own the decisions; the files they call
//! compute and return.
//!
//! `receive` cuts a client's bytes into requests · `ask` routes and enqueues them · `pair` matches
//! a server's bytes with what was asked · `fail` deals with dead links, deadlines and probes ·
//! `stats` shows the counters.

mod ask;
mod check;
mod fail;
mod pair;
mod receive;
#[cfg(seeded_bugs)]
mod seeded;
pub mod stats;
