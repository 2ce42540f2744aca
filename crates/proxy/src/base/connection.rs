//! Connections that are made and lost, as an operator reads of them at level debug.

use crate::ConnId;

/// What became of a connection. Pools, servers and tenants are named by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// A client was accepted, or taken over from another worker.
    Came { client: ConnId, pool: u32, is_new: bool },
    /// A client is gone, or is about to be.
    Left(ClientLeft),
    /// A link to a server is up: its handshake was answered.
    LinkMade { link: ConnId, server: u32 },
    /// A link is closed, or was never up. `why`: none if it was not needed any more.
    LinkLost { link: ConnId, server: u32, why: Option<&'static str> },
}

/// A client that is gone, and what it has done here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLeft {
    pub client: ConnId,
    pub pool: u32,
    /// 0: it has none.
    pub tenant: u32,
    pub user: Option<String>,
    pub why: Departed,
    pub requests: u64,
    /// Bytes that came from it, and went to it.
    pub received: u64,
    pub sent: u64,
    /// How long this worker had it, in microseconds.
    pub lasted_us: u64,
}

/// Why a client is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departed {
    /// It said that it would.
    Quit,
    /// It has closed its connection.
    Ended,
    /// Its connection was reset, or it did not read its last answers.
    Reset,
    /// The proxy has closed it, after an error that its answer told, or because its user is gone.
    Closed,
    /// An operator has closed it.
    Killed,
    /// It sent more than is kept of it, and read nothing.
    Unread,
    /// It began a large request and sent no more of it, while there was little memory.
    Stalled,
    /// It did not read what MONITOR shows, or there was too much of it.
    Behind,
    /// The proxy, this worker or its pool ends.
    Drained,
    /// Another worker takes it over.
    HandedOver,
    /// There was no room for it.
    Refused,
}

impl Departed {
    /// The reason, as the end of a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Departed::Quit => "it quit",
            Departed::Ended => "it closed the connection",
            Departed::Reset => "the connection was reset",
            Departed::Closed => "the proxy closed it after an error",
            Departed::Killed => "an operator closed it",
            Departed::Unread => "it sent more than is kept of a client, and read nothing",
            Departed::Stalled => "it began a large request and sent no more, and memory was short",
            Departed::Behind => "it did not keep up with what MONITOR shows",
            Departed::Drained => "the proxy, a worker or its pool ends",
            Departed::HandedOver => "another worker takes it over",
            Departed::Refused => "there was no room for it",
        }
    }
}
