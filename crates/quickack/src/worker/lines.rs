//! The lines of the log that tell of the data plane's events, and of connections: clients that come
//! and go, links to servers that are made and lost.

use proxy::Event;
use proxy::connection::{ClientLeft, Connection};

use crate::log::{About, Level};

/// Returns the level, the word for the event, and the line; none for events that have lines of
/// other kinds. `about`: the pool or server that it is about.
pub fn of_event(event: &Event, about: &About) -> Option<(Level, &'static str, String)> {
    Some(match event {
        Event::ServerDown { why, .. } => {
            (Level::Warning, "server_down", format!("{about} is down ({why}); it is probed"))
        }
        Event::ServerBack { .. } => (Level::Notice, "server_back", format!("{about} is back")),
        Event::Lacks { what, .. } => (Level::Warning, "server_lacks", format!("{about} {what}")),
        Event::CapabilityLost { .. } => {
            let text = format!(
                "{about} closes connections at meta commands: until the next reload it is treated \
                 as a server without them"
            );
            (Level::Warning, "server_capability", text)
        }
        Event::Marked { .. } => {
            let text = format!(
                "{about} uses stale or win marks: its meta reads are not merged from now on"
            );
            (Level::Notice, "pool_marked", text)
        }
        Event::ClientsRefused { why, .. } => {
            (Level::Warning, "clients_refused", format!("clients of {about} are refused: {why}"))
        }
        Event::Poisoned { why, .. } => {
            let text = format!("{about} sent {why}; its connection is closed");
            (Level::Error, "server_poisoned", text)
        }
        Event::LoginFailed { .. } | Event::LoginsFailed { .. } | Event::Connection(_) => {
            return None;
        }
    })
}

/// Returns the id of the pool or server that an event is about.
pub fn subject(event: &Event) -> u32 {
    match event {
        Event::ServerDown { server, .. }
        | Event::ServerBack { server }
        | Event::Lacks { server, .. }
        | Event::CapabilityLost { server }
        | Event::Poisoned { server, .. } => *server,
        Event::Marked { pool }
        | Event::ClientsRefused { pool, .. }
        | Event::LoginFailed { pool, .. }
        | Event::LoginsFailed { pool, .. } => *pool,
        Event::Connection(what) => subject_of_connection(what),
    }
}

/// Returns the word for the event, and the line. The two ends are the other one, and ours.
pub fn of_connection(
    what: &Connection,
    about: &About,
    [theirs, ours]: [&str; 2],
    tenant: Option<&str>,
) -> (&'static str, String) {
    let theirs = if theirs.is_empty() { "a client" } else { theirs };
    match what {
        Connection::Came { is_new: true, .. } => {
            ("client_came", format!("{theirs} connected to {ours} ({about})"))
        }
        Connection::Came { is_new: false, .. } => {
            ("client_came", format!("{theirs} came from another worker ({about})"))
        }
        Connection::Left(left) => {
            let ClientLeft { why, requests, received, sent, lasted_us, user, .. } = left;
            let seconds = *lasted_us as f64 / 1e6;
            let user = user.as_deref().map_or(String::new(), |user| format!(", user {user}"));
            let tenant = tenant.map_or(String::new(), |name| format!(", tenant {name}"));
            let text = format!(
                "{theirs} left {about} after {seconds:.3} s: {}; {requests} requests, {received} \
                 bytes received, {sent} sent{user}{tenant}",
                why.text()
            );
            ("client_left", text)
        }
        Connection::LinkMade { .. } => {
            ("link_made", format!("a link to {about} is up, from {ours} to {theirs}"))
        }
        Connection::LinkLost { why: Some(why), .. } => {
            ("link_lost", format!("a link to {about} is closed: {why}"))
        }
        Connection::LinkLost { why: None, .. } => {
            ("link_lost", format!("a link to {about} is closed: it is not needed any more"))
        }
    }
}

/// Returns the id of the pool or server that a connection belongs to.
pub fn subject_of_connection(what: &Connection) -> u32 {
    match what {
        Connection::Came { pool, .. } => *pool,
        Connection::Left(left) => left.pool,
        Connection::LinkMade { server, .. } | Connection::LinkLost { server, .. } => *server,
    }
}
