//! Several servers were asked: a part is what came of one of them. [`crate::Protocol::gather`]
//! makes one answer of all parts.

use crate::Facts;

/// What came of asking one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The server, as errors name it; the pool, where no server was found.
    pub server: &'a str,
    /// Its place in the pool.
    pub place: Option<u32>,
    pub said: Said<'a>,
}

/// The outcome of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// The server's whole reply, as it came: it is not translated.
    Reply(&'a [u8]),
    /// The server's own error, as it came.
    Error(&'a [u8]),
    /// The server did not answer. `words` say why, without its name; `uncertain`: it may have made
    /// the change that it was asked for.
    Fault { words: &'a str, uncertain: bool },
}

impl<'a> Part<'a> {
    /// The server's reply, if it gave one that is no error.
    pub fn reply(&self) -> Option<&'a [u8]> {
        match self.said {
            Said::Reply(reply) => Some(reply),
            Said::Error(_) | Said::Fault { .. } => None,
        }
    }

    /// A fault as clients are told of it: the server's name and what happened.
    pub fn fault(&self) -> Option<String> {
        match self.said {
            Said::Fault { words, .. } => Some(format!("{}: {words}", self.server)),
            Said::Reply(_) | Said::Error(_) => None,
        }
    }
}

/// The proxy's own side of an answer that is gathered. What is not asked for costs nothing.
pub trait Ours {
    /// What the protocol is told where it answers by itself.
    fn facts(&self) -> Facts<'_>;

    /// What the pool's clients and servers have said so far.
    fn totals(&self) -> Totals;

    /// The proxy as one process, whichever worker answers.
    fn process(&self) -> Process {
        Process::default()
    }
}

/// What monitors want to know of a process, of master and workers as if they were one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The master's: it stays when a worker is replaced.
    pub pid: u64,
    /// Since the master has started.
    pub uptime_s: u64,
    /// Unix time.
    pub time_s: u64,
    pub workers: u64,
    /// Clients of all pools that there may be.
    pub clients_max: u64,
    /// Processor time of all workers, those that have gone among them: microseconds.
    pub user_us: u64,
    pub system_us: u64,
}

/// Counts of one pool, of all workers together, since the proxy has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Clients that are connected, and those that ever were.
    pub clients: u64,
    pub clients_ever: u64,
    pub clients_refused: u64,
    /// Requests that were understood, those that were refused among them.
    pub requests: u64,
    pub refused: u64,
    /// Keys of reads, and those of them that had a value, or none.
    pub keys_asked: u64,
    pub hits: u64,
    pub misses: u64,
    /// Requests with a value to be stored.
    pub stores: u64,
    /// Logins that were taken, and those that were not.
    pub logins: u64,
    pub logins_failed: u64,
    /// Bytes that clients sent, and that they were sent.
    pub client_bytes_received: u64,
    pub client_bytes_sent: u64,
    /// Bytes that the pool's servers were sent, and that they sent.
    pub server_bytes_sent: u64,
    pub server_bytes_received: u64,
}

/// The one reply that all servers gave, byte by byte.
pub(crate) fn agreed<'a>(parts: &[Part<'a>]) -> Option<&'a [u8]> {
    let first = parts.first()?.reply()?;
    parts.iter().all(|part| part.reply() == Some(first)).then_some(first)
}

/// The one error of their own that all servers gave.
pub(crate) fn agreed_error<'a>(parts: &[Part<'a>]) -> Option<&'a [u8]> {
    let Said::Error(first) = parts.first()?.said else { return None };
    parts.iter().all(|part| part.said == Said::Error(first)).then_some(first)
}

/// A sentence that names each server with what it said, for servers that do not agree. `show`: a
/// reply or an error as text that an error line can hold.
pub(crate) fn disagreement(parts: &[Part<'_>], show: &dyn Fn(&[u8]) -> String) -> String {
    if parts.is_empty() {
        return "no server was asked".to_string();
    }
    let mut told = String::new();
    if parts.iter().any(|part| !matches!(part.said, Said::Fault { .. })) {
        told.push_str("the servers do not agree: ");
    }
    for (nth, part) in parts.iter().enumerate() {
        if told.len() > TOLD_MAX {
            let more = parts.len() - nth;
            told.push_str(&format!("; and {more} servers more"));
            break;
        }
        if nth > 0 {
            told.push_str("; ");
        }
        told.push_str(part.server);
        match part.said {
            Said::Reply(bytes) | Said::Error(bytes) => {
                told.push_str(" says '");
                told.push_str(&show(bytes));
                told.push('\'');
            }
            Said::Fault { words, .. } => {
                told.push_str(": ");
                told.push_str(words);
            }
        }
    }
    told
}

/// A sentence that has become this long names no further server: clients take so long a line, and
/// memcached's no line above 2048 bytes.
const TOLD_MAX: usize = 1000;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Lane, Skills};

    /// A proxy that knows nothing.
    pub(crate) struct Nothing;

    impl Ours for Nothing {
        fn facts(&self) -> Facts<'_> {
            Facts {
                pool: "p",
                version: "quickack-0.0.0",
                skills: Some(Skills::default()),
                spaces: 1,
                lane: Lane::default(),
                servers: 2,
                clients: 0,
                uptime_s: 0,
                has_users: false,
                ends: None,
                age_s: 0,
            }
        }

        fn totals(&self) -> Totals {
            Totals::default()
        }
    }

    /// What the servers `s0`, `s1` and so on say.
    pub(crate) fn parts<'a>(said: &'a [Said<'a>]) -> impl Iterator<Item = Part<'a>> {
        const NAMES: [&str; 4] = ["s0", "s1", "s2", "s3"];
        said.iter().enumerate().map(|(nth, said)| {
            let server = NAMES.get(nth).copied().unwrap_or("more");
            Part { server, place: Some(nth as u32), said: *said }
        })
    }

    pub(crate) fn fault(words: &str, uncertain: bool) -> Said<'_> {
        Said::Fault { words, uncertain }
    }
}
