//! THE table of channel messages: who sends it, its fields, one sentence. The enum, the reference
//! page and what may travel are all made from these rows.

use serde::{Deserialize, Serialize};

use super::client_state::ClientState;

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Master,
    Worker,
    Both,
}

/// A row of the reference.
pub struct Kind {
    pub name: &'static str,
    pub sender: Sender,
    pub fields: &'static [(&'static str, &'static str)],
    pub text: &'static str,
}

macro_rules! messages {
    ($($sender:ident $name:ident { $($field:ident: $type:ty),* } $text:literal)*) => {
        /// The messages between master and worker.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Message {
            $(#[doc = $text] $name { $($field: $type),* },)*
        }

        /// The rows, in the order of the enum.
        pub static MESSAGES: &[Kind] = &[$(Kind {
            name: stringify!($name),
            sender: Sender::$sender,
            fields: &[$((stringify!($field), stringify!($type))),*],
            text: $text,
        },)*];
    };
}

messages! {
    Master Welcome { slot: usize, release: String }
        "The first message: the number of this worker, with the shared memory."
    Master Listeners { ids: Vec<u32> }
        "Listening sockets, one descriptor each; the next configuration names their pools."
    Master Wakeups { first: usize }
        "The wakeups (eventfd) of the workers from `first` on, one descriptor each."
    Master Lock {}
        "The file whose record lock is the accept mutex."
    Master Prepare { epoch: u64 }
        "A configuration, as a sealed memfd: compile it, and report whether it can be installed."
    Worker Prepared { epoch: u64 }
        "The configuration can be installed."
    Worker Refused { epoch: u64, why: String }
        "The configuration cannot be installed; nothing has changed."
    Master Commit { epoch: u64 }
        "The configuration is in force. This wakes a worker that has not seen the epoch yet."
    Master Abort { epoch: u64 }
        "The configuration will never be in force; discard it."
    Worker Installed { epoch: u64, ids_in_use: Vec<u32> }
        "It is installed. `ids_in_use`: removed pools and servers that still have outstanding \
         requests."
    Worker IdsInUse { ids: Vec<u32> }
        "Removed pools and servers that still have outstanding requests; empty if there are \
         none."
    Worker Failed { server: u32, failures: u32, why: String }
        "A server failed; `failures` counts its failures in a row in this worker."
    Worker Answered { server: u32, probe: bool }
        "A server that had failed has answered a request or a probe."
    Worker Log { level: String, key: String, text: String }
        "A line for the log. Lines with the same key are counted as repeats."
    Worker LogLost { lines: u64 }
        "Log lines that were not sent because the channel was full."
    Master Retire {}
        "Accept no more clients, hand over the present ones, and exit."
    Master Share { keep: u32 }
        "Hand over clients that have nothing outstanding until `keep` are left: others have fewer."
    Worker Leaving {}
        "The worker was told to exit by a signal: it drains."
    Worker Clients { client: ClientState }
        "Connections of clients that have nothing outstanding, one descriptor each, for other \
         workers. They all have the same pool, protocol, login, database, protocol version and \
         client names."
    Master Adopt { client: ClientState }
        "Connections of clients from another worker, one descriptor each."
    Master Drain { timeout_us: u64 }
        "Accept no more clients, answer outstanding requests, close at request ends, and exit."
    Both Ack {}
        "Only the number of the last message that was received."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_a_sentence_and_a_name_of_its_own() {
        for (at, kind) in MESSAGES.iter().enumerate() {
            assert!(kind.text.ends_with('.'), "{}", kind.name);
            assert!(MESSAGES[..at].iter().all(|other| other.name != kind.name), "{}", kind.name);
        }
    }
}
