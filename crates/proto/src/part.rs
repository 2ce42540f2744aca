//! Parts of an answer: a part is the result from one server, where several were asked.
//! [`crate::Protocol::gather`] makes one answer from all parts.

use crate::{Facts, SlowRequest, SlowSample, Told, TopicKind};

/// The result from one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The server's name in errors; the pool's name, where no server was found.
    pub server: &'a str,
    /// The server's index in the pool.
    pub place: Option<u32>,
    pub outcome: Outcome<'a>,
}

/// The outcome of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The server's whole reply, not rendered.
    Reply(&'a [u8]),
    /// The server's own error line, unchanged.
    Error(&'a [u8]),
    /// The server did not answer. `words` give the reason, without the server's name. `uncertain`:
    /// the server may have made the requested change.
    Fault { words: &'a str, uncertain: bool },
}

impl<'a> Part<'a> {
    /// Returns the server's reply, if it is no error.
    pub fn reply(&self) -> Option<&'a [u8]> {
        match self.outcome {
            Outcome::Reply(reply) => Some(reply),
            Outcome::Error(_) | Outcome::Fault { .. } => None,
        }
    }

    /// Returns a fault as text for clients: the server's name and the reason.
    pub fn fault(&self) -> Option<String> {
        match self.outcome {
            Outcome::Fault { words, .. } => Some(format!("{}: {words}", self.server)),
            Outcome::Reply(_) | Outcome::Error(_) => None,
        }
    }
}

/// The proxy's facts and counters for a gathered answer. Each is computed only on demand.
pub trait ProxyFacts {
    /// Returns the facts that local commands use as well.
    fn facts(&self) -> Facts<'_>;

    /// Returns the counts of the pool's clients and servers so far.
    fn totals(&self) -> Totals;

    /// Returns the process, which is the same whichever worker answers.
    fn process(&self) -> Process {
        Process::default()
    }

    /// Returns the slow requests that the client may see, the newest first, `most` at most.
    fn slow_requests(&self, _most: usize) -> Vec<SlowRequest> {
        Vec::new()
    }

    /// Returns how many of this worker's clients listen to exactly this topic.
    fn listeners(&self, _kind: TopicKind, _topic: &[u8]) -> usize {
        0
    }

    /// Returns how many there are of them.
    fn slow_count(&self) -> usize {
        0
    }

    /// Whether there is a user of this name.
    fn has_user(&self, _name: &str) -> bool {
        false
    }

    /// Returns what all workers have told, or why they could not be asked.
    fn told(&self) -> Option<&Result<Told, String>> {
        None
    }

    /// Returns what made the requests slow that the client may see, the oldest first.
    fn slow_samples(&self) -> Vec<SlowSample> {
        Vec::new()
    }
}

/// Facts alone, without any counter.
impl ProxyFacts for Facts<'_> {
    fn facts(&self) -> Facts<'_> {
        *self
    }

    fn totals(&self) -> Totals {
        Totals::default()
    }
}

/// Process figures for monitoring, of master and workers as if they were one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The master's process id: it stays the same when a worker is replaced.
    pub pid: u64,
    /// Seconds since the master started.
    pub uptime_s: u64,
    /// Unix time, in seconds.
    pub time_s: u64,
    pub workers: u64,
    /// The most clients of all pools together.
    pub clients_max: u64,
    /// Processor time of all workers, former ones included, in microseconds.
    pub user_us: u64,
    pub system_us: u64,
}

/// Counts of one pool, of all workers together, since the proxy has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Clients that are connected, and all that ever were.
    pub clients: u64,
    pub clients_ever: u64,
    pub clients_refused: u64,
    /// Requests that were parsed, and those of them that were refused.
    pub requests: u64,
    pub refused: u64,
    /// Keys of reads, and those of them that had a value, or none.
    pub keys_asked: u64,
    pub hits: u64,
    pub misses: u64,
    /// Requests with a value to be stored.
    pub stores: u64,
    /// Logins that succeeded, and those that failed.
    pub logins: u64,
    pub logins_failed: u64,
    /// Bytes received from clients, and bytes sent to them.
    pub client_bytes_received: u64,
    pub client_bytes_sent: u64,
    /// Bytes sent to the pool's servers, and bytes received from them.
    pub server_bytes_sent: u64,
    pub server_bytes_received: u64,
}

/// Returns the reply that all servers gave, if it is the same byte by byte.
pub(crate) fn agreed<'a>(parts: &[Part<'a>]) -> Option<&'a [u8]> {
    let first = parts.first()?.reply()?;
    parts.iter().all(|part| part.reply() == Some(first)).then_some(first)
}

/// Returns the server error that all servers gave, if it is the same.
pub(crate) fn agreed_error<'a>(parts: &[Part<'a>]) -> Option<&'a [u8]> {
    let Outcome::Error(first) = parts.first()?.outcome else { return None };
    parts.iter().all(|part| part.outcome == Outcome::Error(first)).then_some(first)
}

/// Returns a sentence with each server's name and reply, for servers that disagree. `show` makes a
/// reply or an error into text that an error line can hold.
pub(crate) fn disagreement(parts: &[Part<'_>], show: &dyn Fn(&[u8]) -> String) -> String {
    if parts.is_empty() {
        return "no server was asked".to_string();
    }
    let mut told = String::new();
    if parts.iter().any(|part| !matches!(part.outcome, Outcome::Fault { .. })) {
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
        match part.outcome {
            Outcome::Reply(bytes) | Outcome::Error(bytes) => {
                told.push_str(" says '");
                told.push_str(&show(bytes));
                told.push('\'');
            }
            Outcome::Fault { words, .. } => {
                told.push_str(": ");
                told.push_str(words);
            }
        }
    }
    told
}

/// A sentence of this length names no further server. Clients accept a line this long, and
/// memcached's accept none above 2048 bytes.
const TOLD_MAX: usize = 1000;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Capabilities, ConnKey};

    /// A proxy without any facts.
    pub(crate) struct Nothing;

    impl ProxyFacts for Nothing {
        fn facts(&self) -> Facts<'_> {
            Facts {
                pool: "p",
                version: "quickack-0.0.0",
                capabilities: Some(Capabilities::default()),
                databases: 1,
                conn_key: ConnKey::default(),
                servers: 2,
                clients: 0,
                uptime_s: 0,
                has_users: false,
                endpoints: None,
                age_s: 0,
                topics: [0; 3],
            }
        }

        fn totals(&self) -> Totals {
            Totals::default()
        }
    }

    /// The replies of the servers `s0`, `s1` and so on.
    pub(crate) fn parts<'a>(outcomes: &'a [Outcome<'a>]) -> impl Iterator<Item = Part<'a>> {
        const NAMES: [&str; 4] = ["s0", "s1", "s2", "s3"];
        outcomes.iter().enumerate().map(|(nth, outcome)| {
            let server = NAMES.get(nth).copied().unwrap_or("more");
            Part { server, place: Some(nth as u32), outcome: *outcome }
        })
    }

    pub(crate) fn fault(words: &str, uncertain: bool) -> Outcome<'_> {
        Outcome::Fault { words, uncertain }
    }
}
