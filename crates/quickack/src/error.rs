//! Why the program cannot do something, sorted by who caused it. Each text is whole: it can be the
//! end of a line in the log, or the answer to the operator.
//!
//! Failures of clients and servers are no errors of the program; `proxy` has a table of them. All
//! that is wrong with a file is a report of `config`, with its lines.

use std::fmt::{self, Display};
use std::io;
use std::process::ExitStatus;

use rustix::io::Errno;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The operator: something that they have written or set cannot be carried out.
    Config(String),
    /// The operating system refused a call.
    Os(String),
    /// Another process of the proxy.
    Peer(Peer),
    /// Ourselves: this cannot happen.
    Bug(String),
}

/// An error of another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// It has not taken so many messages; one more was not queued.
    Full(usize),
    /// It is gone.
    Closed,
    /// Its bytes are not a message, or not the next one.
    Broken(String),
    /// A process that was to bring a result ended without one.
    Ended { status: ExitStatus, why: String },
    /// It has answered that it cannot do what it was asked to.
    Refused(String),
}

impl Error {
    /// For `map_err`: the system refused what was tried.
    pub fn os<E: Display>(tried: impl Display) -> impl FnOnce(E) -> Error {
        move |error| Error::Os(format!("{tried}: {error}"))
    }

    /// Says before the operator's or the system's error what was tried.
    pub fn within(self, tried: &str) -> Error {
        match self {
            Error::Config(text) => Error::Config(format!("{tried}: {text}")),
            Error::Os(text) => Error::Os(format!("{tried}: {text}")),
            other => other,
        }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(text) | Error::Os(text) => write!(f, "{text}"),
            Error::Peer(peer) => write!(f, "{peer}"),
            Error::Bug(text) => write!(f, "{text}; this is a bug in quickack: please report it"),
        }
    }
}

impl Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Full(count) => write!(f, "{count} messages wait and are not read"),
            Peer::Closed => write!(f, "the other side is gone"),
            Peer::Broken(why) => write!(f, "the channel is broken: {why}"),
            Peer::Ended { status, why } => {
                write!(f, "the reading process ended ({status}): {why}")
            }
            Peer::Refused(why) => write!(f, "{why}"),
        }
    }
}

/// The command line's parser shows it.
impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Os(error.to_string())
    }
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Error {
        Error::Os(error.to_string())
    }
}

impl From<Peer> for Error {
    fn from(peer: Peer) -> Error {
        Error::Peer(peer)
    }
}
