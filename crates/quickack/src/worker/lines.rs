//! The lines of the log that tell of the data plane's events, and of connections: clients that come
//! and go, links to servers that are made and lost.

use std::net::IpAddr;

use proxy::Event;
use proxy::connection::{ClientLeft, Connection};

use super::origins::Origins;
use crate::config::grouped;
use crate::ipc::ToMaster;
use crate::log::{About, Level};

/// Returns the level, the word for the event, and the line; none for events that have lines of
/// other kinds. `about`: the pool or server that it is about. `from`: the client's address, if it
/// is about one.
pub fn of_event(
    event: &Event,
    about: &About,
    from: Option<IpAddr>,
) -> Option<(Level, &'static str, String)> {
    Some(match event {
        Event::ServerDown { why, errno, .. } => {
            let why = match errno.map(std::io::Error::from_raw_os_error) {
                Some(error) => format!("{why}: {error}"),
                None => why.to_string(),
            };
            (Level::Warning, "server_down", format!("{about} is down ({why}); it is probed"))
        }
        Event::ServerBack { .. } => (Level::Notice, "server_back", format!("{about} is back")),
        Event::ServerDrips { reads, us, .. } => {
            let ms = us / 1_000;
            let text = format!(
                "{about} sends small replies drop by drop: the last in {reads} reads over {ms} ms. \
                 It is slow and never silent, so no timeout finds it; `replies_dripped_total` \
                 counts them"
            );
            (Level::Warning, "server_drips", text)
        }
        Event::Lacks { what, .. } => (Level::Warning, "server_lacks", format!("{about} {what}")),
        Event::CapabilityLost { .. } => {
            let text = format!(
                "{about} closes connections at meta commands: it is treated as a server without \
                 them, until it is connected to again after a reload"
            );
            (Level::Warning, "server_capability", text)
        }
        Event::Marked { .. } => {
            let text = format!(
                "{about} uses stale or win marks: its meta reads are not merged from now on"
            );
            (Level::Notice, "pool_marked", text)
        }
        Event::LinkRefused { why, said, serves, .. } => {
            let refusal = refusal(why, said.as_deref());
            let text = match serves {
                true => format!(
                    "{about} cannot be connected to once more ({refusal}); the connections that \
                     are there serve on"
                ),
                false => format!(
                    "{about} cannot be connected to ({refusal}); it is tried again after a pause"
                ),
            };
            (Level::Warning, "link_refused", text)
        }
        Event::Poisoned { why, .. } => {
            let text = format!("{about} sent {why}; its connection is closed");
            (Level::Error, "server_poisoned", text)
        }
        Event::ClientsRefused { .. }
        | Event::NotAllowed { .. }
        | Event::SubscriptionsLost { .. }
        | Event::CutOff { .. }
        | Event::ClientUnread { .. }
        | Event::ClientStalled { .. }
        | Event::MemoryShort { .. }
        | Event::MemoryFree { .. } => return of_clients(event, about, from),
        Event::LoginFailed { .. } | Event::LoginsFailed { .. } | Event::Connection(_) => {
            return None;
        }
    })
}

/// Returns the line of a client that is closed for what it does not do.
fn of_closed_client(
    event: &Event,
    about: &About,
    from: Option<IpAddr>,
) -> Option<(Level, &'static str, String)> {
    let from = from.map(|from| format!(", {from},")).unwrap_or_default();
    let line = match event {
        Event::ClientUnread { kept, bound, held, .. } => {
            let text = format!(
                "a client of {about}{from} is closed: {} bytes of its requests wait until it \
                 reads, no more is kept ({bound}), and it has taken nothing of its {} bytes of \
                 answers for as long as it may (timeout_write)",
                grouped(*kept as u64),
                grouped(*held as u64)
            );
            (Level::Warning, "client_unread", text)
        }
        Event::ClientStalled { come, silent_us, .. } => {
            let text = format!(
                "a client of {about}{from} is closed: {} bytes of a request have come, none of \
                 them in the last {} s, and half of the memory for buffers is in use (memory_max)",
                grouped(*come as u64),
                silent_us / 1_000_000
            );
            (Level::Warning, "client_stalled", text)
        }
        _ => return None,
    };
    Some(line)
}

/// As [`of_event`]: the events in which clients are refused, closed, or about to be slowed down.
fn of_clients(
    event: &Event,
    about: &About,
    from: Option<IpAddr>,
) -> Option<(Level, &'static str, String)> {
    Some(match event {
        Event::ClientsRefused { why, .. } => {
            (Level::Warning, "clients_refused", format!("clients of {about} are refused: {why}"))
        }
        Event::NotAllowed { name, .. } => {
            let not_noticed = match *name {
                "flush_all" => {
                    "; libmemcached, and so PHP, takes the refusal of a binary flush for success"
                }
                _ => "",
            };
            let text = format!(
                "a client of {about} asked for `{name}`, which is refused: `allow: [{name}]` in \
                 the pool permits it{not_noticed}"
            );
            (Level::Warning, "command_not_allowed", text)
        }
        Event::SubscriptionsLost { subscriptions, closed, .. } => {
            let after = match closed {
                0 => "the proxy subscribes again, and messages may be missing".to_string(),
                _ => format!("{closed} subscriber(s) are closed, since messages may be missing"),
            };
            let text = format!(
                "{about}: a connection with {subscriptions} subscription(s) was lost: {after} \
                 (on_subscription_lost)"
            );
            (Level::Warning, "subscriptions_lost", text)
        }
        Event::CutOff { clients, half_asked, .. } => {
            let text = format!(
                "{about} was removed, and the time for the end of its clients is over: {clients} \
                 clients with something outstanding are closed, {half_asked} of them in the \
                 middle of a request"
            );
            (Level::Warning, "clients_cut_off", text)
        }
        Event::ClientUnread { .. } | Event::ClientStalled { .. } => {
            return of_closed_client(event, about, from);
        }
        Event::MemoryShort { held, max } => {
            let text = format!(
                "buffers have {} of the {} bytes that this worker may use (memory_max): clients \
                 that do not read are paused sooner, and at the limit answers are dropped; \
                 `quickack clients --sort held` shows who holds them",
                grouped(*held as u64),
                grouped(*max as u64)
            );
            (Level::Warning, "memory_short", text)
        }
        Event::MemoryFree { held, max } => {
            let (held, max) = (grouped(*held as u64), grouped(*max as u64));
            (Level::Notice, "memory_free", format!("buffers have {held} of {max} bytes again"))
        }
        _ => return None,
    })
}

/// Returns the line that tells of failed logins.
pub fn of_failed_logins(about: &About, count: u64, from: &Origins) -> String {
    match count {
        1 => format!("a login to {about} failed, from {from}"),
        _ => format!("{count} logins to {about} failed, from {from}"),
    }
}

/// Returns what the master itself is told of an event.
pub fn to_master(event: &Event) -> Option<ToMaster> {
    let Event::LinkRefused { server, why, said, .. } = event else { return None };
    Some(ToMaster::LinkRefused { server: *server, why: refusal(why, said.as_deref()) })
}

/// Returns why a server takes no further connection, with its own words.
fn refusal(why: &str, said: Option<&str>) -> String {
    said.map_or(why.to_string(), |said| format!("{why}: {said}"))
}

/// Returns the id of the pool or server that an event is about; None if it is about the worker.
pub fn subject(event: &Event) -> Option<u32> {
    Some(match event {
        Event::MemoryShort { .. } | Event::MemoryFree { .. } => return None,
        Event::ServerDown { server, .. }
        | Event::ServerBack { server }
        | Event::ServerDrips { server, .. }
        | Event::SubscriptionsLost { server, .. }
        | Event::Lacks { server, .. }
        | Event::CapabilityLost { server }
        | Event::LinkRefused { server, .. }
        | Event::Poisoned { server, .. } => *server,
        Event::Marked { pool }
        | Event::ClientsRefused { pool, .. }
        | Event::NotAllowed { pool, .. }
        | Event::CutOff { pool, .. }
        | Event::LoginFailed { pool, .. }
        | Event::ClientUnread { pool, .. }
        | Event::ClientStalled { pool, .. }
        | Event::LoginsFailed { pool, .. } => *pool,
        Event::Connection(what) => subject_of_connection(what),
    })
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
