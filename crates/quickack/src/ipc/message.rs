//! THE tables of channel messages, one for each direction: the fields of a message, the descriptors
//! that travel with it, one sentence. The enums, the reference page and the check of incoming
//! messages are all made from these rows.
//!
//! An envelope is `{"v":8,"seq":12,"ack":7,"body":{"commit":{"epoch":3}}}`: text, so that a trace
//! of system calls can be read. Without a body it only acknowledges.

use std::net::SocketAddr;

use proxy::Report;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::client_state::{ClientState, ClientTally};
use super::http_view::State;
use super::query::{ClientRow, InPiecesRow, Query};
use crate::config::ListSource;
use crate::error::{Error, Peer};
use crate::log::{About, Level};

/// Descriptors that travel with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptors {
    None,
    One,
    /// One or more, up to [`sys::channel::FDS_MAX`].
    Several,
}

/// A row of the reference.
pub struct Kind {
    pub name: &'static str,
    pub fields: &'static [(&'static str, &'static str)],
    pub descriptors: Descriptors,
    pub text: &'static str,
}

/// The messages of one direction.
pub trait Message: Serialize + DeserializeOwned {
    fn descriptors(&self) -> Descriptors;
}

/// A message as it is sent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope<B> {
    v: u32,
    /// The message's own number.
    pub seq: u64,
    /// The number of the last message received from the other side.
    pub ack: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<B>,
}

impl<B: Serialize> Envelope<B> {
    pub fn encode(seq: u64, ack: u64, body: Option<B>) -> Result<Vec<u8>, Error> {
        let envelope = Envelope { v: VERSION, seq, ack, body };
        serde_json::to_vec(&envelope).map_err(|error| Error::Bug(error.to_string()))
    }
}

impl<M: Message> Envelope<M> {
    /// Opens bytes that came with so many descriptors.
    pub fn decode(bytes: &[u8], descriptors: usize) -> Result<Envelope<M>, Peer> {
        let envelope: Envelope<M> =
            serde_json::from_slice(bytes).map_err(|error| Peer::Broken(error.to_string()))?;
        if envelope.v != VERSION {
            return Err(Peer::Broken(format!("version {}, not {VERSION}", envelope.v)));
        }
        let announced = envelope.body.as_ref().map_or(Descriptors::None, M::descriptors);
        if !announced.allow(descriptors) {
            let seq = envelope.seq;
            return Err(Peer::Broken(format!("message {seq} came with {descriptors} descriptors")));
        }
        Ok(envelope)
    }
}

impl Descriptors {
    pub fn allow(self, count: usize) -> bool {
        match self {
            Descriptors::None => count == 0,
            Descriptors::One => count == 1,
            Descriptors::Several => (1..=sys::channel::FDS_MAX).contains(&count),
        }
    }
}

macro_rules! messages {
    ($(#[$doc:meta])* $Direction:ident, $ROWS:ident:
     $($name:ident { $($field:ident: $type:ty),* } $descriptors:ident $text:literal)*) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $Direction {
            $(#[doc = $text] $name { $($field: $type),* },)*
        }

        impl Message for $Direction {
            fn descriptors(&self) -> Descriptors {
                match self {
                    $($Direction::$name { .. } => Descriptors::$descriptors,)*
                }
            }
        }

        /// The rows, in the order of the enum.
        pub static $ROWS: &[Kind] = &[$(Kind {
            name: stringify!($name),
            fields: &[$((stringify!($field), stringify!($type))),*],
            descriptors: Descriptors::$descriptors,
            text: $text,
        },)*];
    };
}

messages! {
    /// The messages from the master to a worker.
    ToWorker, TO_WORKER:
    Welcome { slot: usize, release: String } One
        "The first message: the number of this worker, with the shared memory."
    Listeners { ids: Vec<u32> } Several
        "Listening sockets, in the order of `ids`; the next configuration names their pools."
    Wakeups { first: usize } Several
        "The wakeups (eventfd) of the workers from `first` on."
    Lock {} One
        "The file whose record lock is the accept mutex."
    Prepare { epoch: u64 } One
        "A configuration, as a sealed memfd: compile it, and report whether it can be installed."
    Commit { epoch: u64 } None
        "The configuration is in force. This wakes a worker that has not seen the epoch yet."
    Abort { epoch: u64 } None
        "The configuration will never be in force; discard it."
    Retire {} None
        "Accept no more clients, hand over the present ones, and exit."
    Share { keep: u32 } None
        "Hand over clients that have nothing outstanding until `keep` are left: others have fewer."
    Adopt { client: ClientState, tally: ClientTally } One
        "A client from another worker: its connection, and what it has done."
    AskServer { server: u32 } None
        "Ask this server for an answer on the links that you have: another worker gets none."
    ServerEjected { server: u32, why: String } None
        "Why this server is out of its ring: clients are told if it has no other."
    Query { number: u64, until_us: u64, query: Query } None
        "A question about the clients, to be answered by then."
    Told { number: u64, count: u64, is_own: bool, why: Option<String> } One
        "The answer to what a client of this worker asks about clients: lines as a sealed memfd, \
         how many clients were meant, whether the client itself is one, or why not all were found."
    NotTold { number: u64, why: String } None
        "There is no such answer."
    AccessLog {} One
        "The pipe to the process that writes the access log."
    Drain { timeout_us: u64 } None
        "Accept no more clients, answer outstanding requests, close at request ends, and exit."
}

messages! {
    /// The messages from a worker to the master.
    ToMaster, TO_MASTER:
    Prepared { epoch: u64 } None
        "The configuration can be installed."
    Refused { epoch: u64, why: String } None
        "The configuration cannot be installed; nothing has changed."
    Installed { epoch: u64, ids_in_use: Vec<u32> } None
        "It is installed. `ids_in_use`: removed pools and servers that still have outstanding \
         requests."
    IdsInUse { ids: Vec<u32> } None
        "Removed pools and servers that still have outstanding requests; empty if there are \
         none."
    Failed { server: u32, failures: u32, why: String } None
        "A server failed; `failures` counts its failures in a row in this worker."
    Answered { server: u32, probe: bool } None
        "A server that had failed has answered a request or a probe."
    Doubted { server: u32 } None
        "A server has not answered the worker's last attempt to connect; others have links to it."
    LinkRefused { server: u32, why: String } None
        "A server takes no further connection, and serves on those that are there; said once a \
         second."
    Log { level: Level, event: String, key: String, about: About, text: String } None
        "A line for the log: what kind of event it tells, and of which pool and server. Lines with \
         the same key are counted as repeats."
    LogLost { lines: u64 } None
        "Log lines that were not sent because the channel was full."
    Leaving {} None
        "The worker was told to exit by a signal: it drains."
    Clients { client: ClientState, tallies: Vec<ClientTally> } Several
        "Connections of clients that have nothing outstanding, for other workers. They all have \
         the same pool, protocol, user, database, protocol version and client names; `tallies` has \
         what each has done."
    Ask { number: u64, query: Query } None
        "What a client of this worker asks about clients, for all workers."
    Rows { number: u64, clients: Vec<ClientRow>, in_pieces: Vec<InPiecesRow>, left_out: u64,
        is_last: bool } None
        "A part of the answer to the question of this number; `left_out`: rows that the answer had \
         no room for."
}

messages! {
    /// The messages from the master to the HTTP process.
    ToHttp, TO_HTTP:
    Welcome { release: String, started_unix_us: u64 } One
        "The first message: the shared memory, to be read only."
    Names {} One
        "The names of pools and servers, as a sealed memfd."
    State { state: State } None
        "What the master alone knows; sent when it changes."
    Listen { number: u32, tcp: bool } One
        "The socket to accept on; the one before it is accepted empty and closed."
    Answer { question: Question } One
        "The answer to the last question of this kind, as a sealed memfd."
    Ping {} None
        "To be acknowledged, like every message: a process that does not is replaced."
}

messages! {
    /// The messages from the HTTP process to the master. None of them changes anything.
    FromHttp, FROM_HTTP:
    Ask { question: Question } None
        "A question that only the master can answer."
}

messages! {
    /// The messages from the master to the process that writes the access log.
    ToLogWriter, TO_LOG_WRITER:
    Pipe { path: String } One
        "The first message: the pipe that has the lines, and the file that they go to."
    Reopen { path: String } None
        "Open the file, which may be another one or have been moved."
}

messages! {
    /// The messages from the process that writes the access log to the master.
    FromLogWriter, FROM_LOG_WRITER:
    Lost { lines: u64, why: String } None
        "Lines that could not be written, and the reason for the last of them."
}

messages! {
    /// The messages from the master to the process that looks up names.
    ToResolver, TO_RESOLVER:
    Subjects { every_us: u64 } One
        "Names to look up and lists to take now, and again after that time; as a sealed memfd."
    Ping {} None
        "To be acknowledged, like every message: a process that does not is replaced."
}

messages! {
    /// The messages from the process that looks up names to the master.
    FromResolver, FROM_RESOLVER:
    Answer { host: String, found: Result<Vec<SocketAddr>, String> } None
        "The addresses of a name, which have changed, or why there are none."
    List { source: ListSource, found: Result<(), String> } One
        "A list of servers, which has changed, as a sealed memfd; or why there is none."
}

/// A question of the HTTP process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// The answer of `quickack stats --json`.
    Stats,
    /// How many requests took how long in each second of the last five minutes; the last reloads.
    History,
    /// The answer of `quickack slowlog --json`.
    SlowLog,
    /// The answer of `quickack clients --busiest --json`.
    Clients,
}

/// Of the envelope and the tables of messages.
pub const VERSION: u32 = 8;

impl From<Report> for ToMaster {
    fn from(report: Report) -> ToMaster {
        match report {
            Report::Failed { server, failures, why } => {
                ToMaster::Failed { server, failures, why: why.into_owned() }
            }
            Report::Answered { server, probe } => ToMaster::Answered { server, probe },
            Report::Doubted { server } => ToMaster::Doubted { server },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_a_sentence_and_a_name_of_its_own() {
        for both in [
            [TO_WORKER, TO_MASTER],
            [TO_HTTP, FROM_HTTP],
            [TO_LOG_WRITER, FROM_LOG_WRITER],
            [TO_RESOLVER, FROM_RESOLVER],
        ] {
            let all: Vec<&Kind> = both.into_iter().flatten().collect();
            for (at, kind) in all.iter().enumerate() {
                assert!(kind.text.ends_with('.'), "{}", kind.name);
                assert!(all[..at].iter().all(|other| other.name != kind.name), "{}", kind.name);
            }
        }
    }

    /// Whether these bytes are a message to a worker.
    fn check(text: &str, descriptors: usize) -> bool {
        Envelope::<ToWorker>::decode(text.as_bytes(), descriptors).is_ok()
    }

    #[test]
    fn bytes_that_are_no_message_of_this_direction_are_refused() {
        let share = r#"{"v":8,"seq":1,"ack":0,"body":{"share":{"keep":7}}}"#;
        assert!(check(share, 0));
        for len in 0..share.len() {
            assert!(!check(&share[..len], 0), "{}", &share[..len]);
        }
        assert!(check(r#"{"v":8,"seq":1,"ack":0}"#, 0), "an acknowledgement");
        for body in [
            r#"{"dance":{}}"#,
            r#"{"leaving":{}}"#,
            r#"{"share":{"keep":-1}}"#,
            r#"{"share":{}}"#,
            r#"{"retire":{},"share":{"keep":7}}"#,
            "7",
            r#"null,"odd":1"#,
        ] {
            let text = format!(r#"{{"v":8,"seq":1,"ack":0,"body":{body}}}"#);
            assert!(!check(&text, 0), "{text}");
        }
        assert!(!check(&share.replace("\"v\":8", "\"v\":2"), 0), "another version");
        assert!(!check(&format!("{share} "), 1) && !check(&format!("{share}x"), 0));
    }

    #[test]
    fn a_message_comes_with_the_descriptors_that_its_row_names() {
        let lock = r#"{"v":8,"seq":1,"ack":0,"body":{"lock":{}}}"#;
        assert_eq!([0, 1, 2].map(|count| check(lock, count)), [false, true, false]);
        let wakeups = r#"{"v":8,"seq":1,"ack":0,"body":{"wakeups":{"first":0}}}"#;
        let wanted = [false, true, true, false];
        assert_eq!([0, 1, 128, 129].map(|count| check(wakeups, count)), wanted);
        let acknowledgement = r#"{"v":8,"seq":1,"ack":0}"#;
        assert_eq!([0, 1].map(|count| check(acknowledgement, count)), [true, false]);
    }
}
