//! What is counted. Two tables, one row a counter; the enums index them, the docs are made from
//! them.
//!
//! A set of counters is a flat array with a single writer, so that it can live in shared memory
//! later and merging is adding.

/// One counter as people see it.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    /// What it counts; it never falls unless it says "now".
    pub help: &'static str,
}

macro_rules! table {
    ($(#[$doc:meta])* $enum:ident, $table:ident:
     $($variant:ident $name:literal $help:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $enum { $(#[doc = $help] $variant,)* }

        /// The rows, in the order of the enum.
        pub static $table: &[Metric] = &[$(Metric { name: $name, help: $help },)*];

        impl From<$enum> for usize {
            fn from(row: $enum) -> usize { row as usize }
        }
    };
}

table! {
    /// Counters of a pool.
    Pool, POOL:
    ClientsNow "clients" "Clients connected now.",
    ClientsTotal "clients_total" "Clients ever accepted.",
    ClientsRefused "clients_refused_total" "Clients refused because a limit was reached.",
    Requests "requests_total" "Requests understood, the refused ones among them.",
    Refused "requests_refused_total" "Requests answered with an error, not forwarded.",
    Local "requests_local_total" "Requests that the proxy answered by itself.",
    KeysAsked "keys_asked_total" "Keys of reads that were routed.",
    Hits "hits_total" "Keys that had a value.",
    Failed "requests_failed_total" "Requests that met a fault.",
    Abandoned "requests_abandoned_total" "Answers thrown away because their client had left.",
    Paused "clients_paused_total" "Times a client with too much outstanding was paused.",
    AcksFlushed "acks_flushed_total" "ACKs sent at once: a request in pieces, or quiet.",
}

table! {
    /// Counters of a server of a pool.
    Server, SERVER:
    Connects "connects_total" "Links that were established.",
    Messages "messages_total" "Messages queued for it; a merged get is one.",
    Merged "keys_merged_total" "Keys that left in a get shared by several requests.",
    Replies "replies_total" "Messages it answered.",
    Errors "errors_total" "Error lines it answered.",
    AskedAlone "keys_asked_alone_total" "Keys asked alone after an error for a shared get.",
    AskedAgain "keys_asked_again_total" "Keys asked once more because a link died.",
    ConnectFailed "connect_failed_total" "Connects refused or timed out.",
    QueueTimeout "queue_timeout_total" "Messages that waited too long to be sent.",
    QueueFull "queue_full_total" "Requests refused because the queue was full.",
    ReplyTimeout "reply_timeout_total" "Links closed because the server was silent.",
    LinkLost "link_lost_total" "Links that the server closed or reset.",
    Poisoned "poisoned_total" "Links closed because of a reply that nobody could have asked for.",
    Down "refused_down_total" "Requests that failed at once because the server was down.",
    OutOfMemory "out_of_memory_total" "Replies dropped because the memory ceiling was reached.",
    Ejections "ejections_total" "Times it was taken out of the ring.",
    Probes "probes_total" "Probes sent to find out whether it is back.",
    AcksFlushed "acks_flushed_total" "ACKs sent at once because a reply was incomplete.",
}

/// A set of counters, indexed by one of the enums.
#[derive(Clone, Debug)]
pub struct Counters<const N: usize>([u64; N]);

impl<const N: usize> Counters<N> {
    pub fn add<R: Into<usize>>(&mut self, row: R, amount: u64) {
        self.0[row.into()] += amount;
    }

    /// For rows that say "now".
    pub fn subtract<R: Into<usize>>(&mut self, row: R, amount: u64) {
        let at: usize = row.into();
        assert!(self.0[at] >= amount, "a count of things that exist cannot fall below zero");
        self.0[at] -= amount;
    }

    pub fn value<R: Into<usize>>(&self, row: R) -> u64 {
        self.0[row.into()]
    }

    /// The values in the order of their table.
    pub fn values(&self) -> &[u64; N] {
        &self.0
    }
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Counters([0; N])
    }
}

/// Counters of one pool.
pub type PoolCounters = Counters<{ Pool::AcksFlushed as usize + 1 }>;
/// Counters of one server.
pub type ServerCounters = Counters<{ Server::AcksFlushed as usize + 1 }>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_place_and_names_differ() {
        assert_eq!(PoolCounters::default().values().len(), POOL.len());
        assert_eq!(ServerCounters::default().values().len(), SERVER.len());
        for table in [POOL, SERVER] {
            for (at, row) in table.iter().enumerate() {
                assert!(table[..at].iter().all(|other| other.name != row.name), "{}", row.name);
                assert!(row.help.ends_with('.'));
            }
        }
    }
}
