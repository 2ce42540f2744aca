//! One table of all faults: their cause, their texts and their counters. The page
//! `docs/reference/errors.md` is made from it.

use metrics::ServerCounter;

use super::limits;

/// The cause of a fault, which decides how the proxy goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The server failed: the fault counts towards its ejection.
    Server,
    /// There is too much load: the request is shed, and no server is ejected.
    Overload,
    /// The proxy itself lacks a resource, and the server's state is unknown.
    Own,
}

/// The failure of a request that is not the client's own fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    ConnectFailed,
    ConnectClosed,
    ConnectTimeout,
    QueueTimeout,
    QueueFull,
    ReplyTimeout,
    LinkLost,
    LoginRefused,
    Poisoned,
    Down,
    NoServer,
    OutOfMemory,
    Unable,
    Held,
    Dropped,
    SetupRefused,
    Busy,
    Maint,
    Unresolved,
    NoBlocks,
    PrivateFull,
    TenantFull,
    Refused,
    FurtherFailed,
    FurtherClosed,
    FurtherTimeout,
    FurtherSilent,
    FurtherLost,
}

/// One entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub fault: Fault,
    pub blame: Blame,
    /// The text after the server's name in the client's error.
    pub words: &'static str,
    /// The same text if no byte of the request was sent.
    pub words_unsent: &'static str,
    /// The same text for an update that was sent and may have been executed.
    pub words_sent: &'static str,
    /// The counter; `None` for a fault without a server.
    pub counter: Option<ServerCounter>,
    /// The proxy's action, for the reference page.
    pub action: &'static str,
}

/// Every fault, in the order of the enum.
pub static FAULTS: &[Row] = &[
    attempt(
        Fault::ConnectFailed,
        "connect failed",
        "nothing was sent; unless other connections answer, the server is down until a probe \
         succeeds",
    ),
    attempt(
        Fault::ConnectClosed,
        "closed the connection before it answered",
        "nothing was sent; unless other connections answer, the server is down until a probe \
         succeeds. What accepted the connection and then closed or reset it may be a load \
         balancer without a server, or a port for TLS",
    ),
    attempt(
        Fault::ConnectTimeout,
        "connect timed out",
        "nothing was sent; unless other connections answer, the server is down until a probe \
         succeeds",
    ),
    row(
        Fault::QueueTimeout,
        Blame::Overload,
        "timed out in the queue, not sent",
        "timed out in the queue, not sent",
        Some(ServerCounter::QueueTimeout),
        "removed from the queue unsent",
    ),
    row(
        Fault::QueueFull,
        Blame::Overload,
        "queue full, not sent",
        "queue full, not sent",
        Some(ServerCounter::QueueFull),
        "refused unsent",
    ),
    told(
        Fault::ReplyTimeout,
        "no reply in time",
        "no reply in time, not sent",
        "no reply in time, outcome unknown",
        Some(ServerCounter::ReplyTimeout),
        "the link is closed, and another one shows whether the server is down: what others wait to \
         send moves there. While the server is busy with a slow command, neither happens, and the \
         late reply is discarded; a slow command itself has as much time again",
    ),
    told(
        Fault::LinkLost,
        "connection lost",
        "connection lost, not sent",
        "connection lost, outcome unknown",
        Some(ServerCounter::LinkLost),
        "what was not sent moves to a new link, unless the server owes its client something on the \
         old one; a read may be sent once more, if its client has sent no update since; all other \
         requests fail",
    ),
    row(
        Fault::LoginRefused,
        Blame::Server,
        "login refused",
        "login refused",
        Some(ServerCounter::LoginRefused),
        "nothing was sent; unless other connections have logged in, the server is down until a \
         probe's login is accepted",
    ),
    told(
        Fault::Poisoned,
        "unexpected reply, connection closed",
        "unexpected reply, connection closed, not sent",
        "unexpected reply, connection closed, outcome unknown",
        Some(ServerCounter::Poisoned),
        "the link is closed and the rest of its input ignored; reads of others that were on it are \
         sent again on a new link, as after `connection lost`, up to four times in all",
    ),
    row(
        Fault::Down,
        Blame::Server,
        "down, waiting for it to come back",
        "down, waiting for it to come back",
        Some(ServerCounter::RefusedDown),
        "refused unsent; probes detect the server's return",
    ),
    row(
        Fault::NoServer,
        Blame::Server,
        "no server in the ring",
        "no server in the ring",
        None,
        "refused unsent: every server of the pool is ejected, or none is known yet. The error says \
         why one of them is out",
    ),
    row(
        Fault::OutOfMemory,
        Blame::Overload,
        "out of memory holding the reply",
        "done, but out of memory holding the reply",
        Some(ServerCounter::OutOfMemory),
        "the reply is read and dropped because `memory_max` is reached",
    ),
    row(
        Fault::Unable,
        Blame::Own,
        "no connection could be made, not sent",
        "no connection could be made, not sent",
        Some(ServerCounter::ConnectUnable),
        "refused unsent: the proxy has run out of descriptors or ports; it retries after a pause",
    ),
    row(
        Fault::Held,
        Blame::Overload,
        "silent, timed out in the queue, not sent",
        "silent, timed out in the queue, not sent",
        Some(ServerCounter::QueueTimeout),
        "held back because the server was silent for `hold_after`; removed from the queue unsent",
    ),
    row(
        Fault::Dropped,
        Blame::Overload,
        "dropped while it waited, not sent",
        "dropped while it waited, not sent",
        Some(ServerCounter::Dropped),
        "it waited because the server was silent or had enough to do, and was dropped when its \
         client had disconnected; it was not executed, so the client can send it again",
    ),
    row(
        Fault::SetupRefused,
        Blame::Overload,
        "refuses this database, or this version of the protocol: not sent",
        "refuses this database, or this version of the protocol: not sent",
        Some(ServerCounter::SetupRefused),
        "the link is closed; the server stays up for all other databases and versions",
    ),
    row(
        Fault::Busy,
        Blame::Overload,
        "busy, not sent",
        "busy, not sent",
        Some(ServerCounter::QueueTimeout),
        "the error names what the server is busy with, and for how long; removed from the queue \
         unsent",
    ),
    row(
        Fault::Maint,
        Blame::Overload,
        "in maintenance, not sent",
        "in maintenance, not sent",
        Some(ServerCounter::RefusedMaint),
        "refused unsent: `quickack server POOL/NAME ready` ends it",
    ),
    row(
        Fault::Unresolved,
        Blame::Server,
        "its name does not resolve",
        "its name does not resolve",
        None,
        "nothing was sent; the server is down until its name has an address",
    ),
    row(
        Fault::NoBlocks,
        Blame::Overload,
        "does not execute MULTI, EXEC and DISCARD for the proxy's login: not sent",
        "does not execute MULTI, EXEC and DISCARD for the proxy's login: not sent",
        None,
        "refused unsent; the server is asked again a second later. Allow these commands to the \
         user of `server_login`",
    ),
    row(
        Fault::PrivateFull,
        Blame::Overload,
        "the proxy has as many private connections as `private_connections_max` allows, not sent",
        "the proxy has as many private connections as `private_connections_max` allows, not sent",
        None,
        "refused unsent: the client needs a connection of its own, and there is none. It may try \
         again when another client has given up its own",
    ),
    row(
        Fault::TenantFull,
        Blame::Overload,
        "its tenant has as many private connections as its `private_links_max` allows, not sent",
        "its tenant has as many private connections as its `private_links_max` allows, not sent",
        None,
        "the error names tenant and limit; refused unsent. The client may try again when another \
         client of the tenant has given up its own",
    ),
    attempt(
        Fault::Refused,
        "takes no further connection, not sent",
        "the error has the server's own words; refused unsent. The connections that are there \
         serve on, and another attempt is made after a pause",
    ),
    further(
        Fault::FurtherFailed,
        "takes no further connection (the last attempt: connect failed), not sent",
    ),
    further(
        Fault::FurtherClosed,
        "takes no further connection (the last one was closed before it answered), not sent",
    ),
    further(
        Fault::FurtherTimeout,
        "takes no further connection (the last attempt: connect timed out), not sent",
    ),
    further(
        Fault::FurtherSilent,
        "takes no further connection (the last attempt: no reply in time), not sent",
    ),
    further(
        Fault::FurtherLost,
        "takes no further connection (the last one was lost or brought an unexpected reply), not \
         sent",
    ),
];

impl Fault {
    /// Returns its entry in the table.
    pub fn row(self) -> &'static Row {
        &FAULTS[self as usize]
    }

    /// Returns the fault of requests that need a link which nobody tries to make for a while, since
    /// the last one failed like this. Nothing of them was sent, and they have not waited.
    pub(crate) fn of_further(self) -> Fault {
        match self {
            Fault::ConnectFailed => Fault::FurtherFailed,
            Fault::ConnectClosed => Fault::FurtherClosed,
            Fault::ConnectTimeout => Fault::FurtherTimeout,
            Fault::ReplyTimeout => Fault::FurtherSilent,
            Fault::LinkLost | Fault::Poisoned => Fault::FurtherLost,
            other => other,
        }
    }
}

const fn further(fault: Fault, words: &'static str) -> Row {
    let action = "refused unsent. The connections that are there serve on, and another attempt is \
                  made after a pause";
    attempt(fault, words, action)
}

/// Makes the entry of a fault of an attempt to connect.
const fn attempt(fault: Fault, words: &'static str, action: &'static str) -> Row {
    row(fault, Blame::Server, words, words, Some(ServerCounter::ConnectFailed), action)
}

/// Makes the entry of a fault that requests meet which were sent, and others that were not.
const fn told(
    fault: Fault,
    words: &'static str,
    words_unsent: &'static str,
    words_sent: &'static str,
    counter: Option<ServerCounter>,
    action: &'static str,
) -> Row {
    let row = row(fault, Blame::Server, words, words_sent, counter, action);
    Row { words_unsent, ..row }
}

const fn row(
    fault: Fault,
    blame: Blame,
    words: &'static str,
    words_sent: &'static str,
    counter: Option<ServerCounter>,
    action: &'static str,
) -> Row {
    Row { fault, blame, words, words_unsent: words, words_sent, counter, action }
}

/// Returns how many bytes are kept of an error: whole characters.
pub(crate) fn kept_of_error(line: &[u8]) -> usize {
    let is_inner = |byte: &u8| byte & 0xc0 == 0x80;
    match line.get(limits::ERROR_KEPT_MAX) {
        None => line.len(),
        Some(_) => {
            let most = &line[..=limits::ERROR_KEPT_MAX];
            most.iter().rposition(|byte| !is_inner(byte)).unwrap_or(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (at, row) in FAULTS.iter().enumerate() {
            assert_eq!(row.fault as usize, at);
            assert_eq!(row.fault.row().fault, row.fault);
        }
    }
}
