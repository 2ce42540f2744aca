//! The path of a request, one file a step. These files make the decisions; the files they call
//! compute and return.
//!
//! `accept` lets a client in, `receive` cuts its bytes into requests, `body` collects long ones ·
//! `route` finds the form in which a server can take a request · `ask` routes and enqueues it,
//! `split` does so for keys that belong to several servers, `open` finds or opens the link ·
//! `local` lets the protocol answer local commands · `handshake` runs the handshake on a link ·
//! `pair` matches a server's bytes with requests, `pieces` handles replies that come in several
//! reads · `again` sends a request once more after a retryable error · `fail` deals with dead links
//! and deadlines, `health` with servers that are down or ejected, `hold` with silent ones ·
//! `install` applies another plan · `leave` passes clients to another worker · `login` checks
//! clients' credentials · `remove` deletes the old value when a new one is refused · `stats`
//! renders the counters.

mod accept;
mod again;
mod ask;
mod body;
mod check;
mod fail;
mod handshake;
mod health;
mod hold;
mod install;
mod leave;
mod local;
mod login;
mod open;
mod pair;
mod pieces;
mod receive;
mod remove;
mod route;
#[cfg(seeded_bugs)]
mod seeded;
mod split;
pub mod stats;
