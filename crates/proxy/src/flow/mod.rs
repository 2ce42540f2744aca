//! The path of a request, one file a step. These files own the decisions; the files they call
//! compute and return.
//!
//! `receive` cuts a client's bytes into requests · `way` finds the form in which a server can be
//! asked · `ask` routes and enqueues them · `greet` has the first words on a link · `pair` matches
//! a server's bytes with what was asked · `fail` deals with dead links and deadlines, `health` with
//! servers that are down or ejected, `hold` with such as are silent · `install` takes up another
//! plan · `leave` lets clients go to another worker · `login` asks who they are · `stats` shows the
//! counters.

mod ask;
mod check;
mod fail;
mod greet;
mod health;
mod hold;
mod install;
mod leave;
mod login;
mod pair;
mod receive;
#[cfg(seeded_bugs)]
mod seeded;
pub mod stats;
mod way;
