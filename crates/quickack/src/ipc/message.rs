//! THE table of channel messages: who sends it, its fields, one sentence. The enum, the reference
//! page and what may travel are all made from these rows.

use serde::{Deserialize, Serialize};

use super::client_state::ClientState;

/// Who sends a message.
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
        /// What master and worker say to each other.
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
        "The first message: which worker this is. With it, the shared memory."
    Master Listeners { ids: Vec<u32> }
        "Listening sockets, one descriptor each; the next configuration says whose they are."
    Master Wakeups { first: usize }
        "The wakeups (eventfd) of the workers from `first` on, one descriptor each."
    Master Lock {}
        "The file whose record lock is the accept mutex."
    Master Prepare { epoch: u64 }
        "A configuration, as a sealed memfd: compile it, and say whether you could install it."
    Worker Prepared { epoch: u64 }
        "It could be installed."
    Worker Refused { epoch: u64, why: String }
        "It could not; nothing has changed."
    Master Commit { epoch: u64 }
        "It holds. This wakes a worker that has not seen the epoch in the scoreboard yet."
    Master Abort { epoch: u64 }
        "It will never hold; forget it."
    Worker Installed { epoch: u64, ids_in_use: Vec<u32> }
        "It is installed. `ids_in_use`: pools and servers that have left the configuration and \
         whose requests are still being answered."
    Worker IdsInUse { ids: Vec<u32> }
        "Pools and servers that have left the configuration and whose requests are still being \
         answered; empty when there are none."
    Worker Failed { server: u32, failures: u32, why: String }
        "A server failed, so many times in a row as this worker sees it."
    Worker Answered { server: u32, probe: bool }
        "A server that had failed has answered a request, or a probe."
    Worker Log { level: String, key: String, text: String }
        "A line for the log. Lines with the same key say the same."
    Worker LogLost { lines: u64 }
        "Lines that were not sent because the channel was full."
    Master Retire {}
        "Take no more clients, hand over those you have, and end."
    Master Share { keep: u32 }
        "Others have fewer: hand over clients that have nothing outstanding until so many are left."
    Worker Leaving {}
        "Somebody else has told it to end: it drains."
    Worker Clients { client: ClientState }
        "Connections of clients that have nothing outstanding, one descriptor each, to be given to \
         other workers. They are all alike: of a pool, of a protocol, logged in or not, and have \
         said the same about themselves: database, version of the protocol, names."
    Master Adopt { client: ClientState }
        "Connections of clients from another worker, one descriptor each."
    Master Drain { timeout_us: u64 }
        "Take no more clients, answer what was asked, close at a request boundary, and end."
    Both Ack {}
        "Nothing but the number of the last message that was received."
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
