//! The path of a request, one file a step. These files own the decisions; the files they call
//! compute and return.
//!
//! `accept` lets a client in, `receive` cuts its bytes into requests, `body` collects long ones ·
//! `way` finds the form in which a server can be asked · `ask` routes and enqueues them, `split`
//! those whose keys belong to several servers · `converse` lets the protocol answer by itself ·
//! `greet` has the first words on a link · `pair` matches a server's bytes with what was asked,
//! `pieces` what does not come whole · `again` asks once more what a server says it did not do ·
//! `fail` deals with dead links and deadlines, `health` with servers that are down or ejected,
//! `hold` with such as are silent · `install` takes up another plan · `leave` lets clients go to
//! another worker · `login` asks who they are · `remove` takes away what a refused value was to
//! replace · `stats` shows the counters.

mod accept;
mod again;
mod ask;
mod body;
mod check;
mod converse;
mod fail;
mod greet;
mod health;
mod hold;
mod install;
mod leave;
mod login;
mod pair;
mod pieces;
mod receive;
mod remove;
#[cfg(seeded_bugs)]
mod seeded;
mod split;
pub mod stats;
mod way;
