//! The tables of counters, and the shared memory that holds them.
//!
//! Four tables have one row for each counter; enums index them, and the reference docs are
//! generated from them. A [`Registry`] is memory that several processes share. Each process writes
//! only its own [`WorkerMetrics`]; any process reads them all, and merging is adding.
//!
//! `registry.rs` has the layout of the memory; `latency.rs` says what is measured, `histogram.rs`
//! assigns times to buckets, and `chunks.rs` has the memory for these; `windows.rs` derives the
//! last seconds and minutes; `slow_log.rs` has the last slow requests; `logins.rs`,
//! `tenants.rs` and `pauses.rs` have the only words that several processes write.

mod chunks;
mod histogram;
mod latency;
mod logins;
mod pauses;
mod registry;
mod slow_log;
mod tap;
mod tenants;
mod windows;

pub use histogram::{Histogram, Recorder};
pub(crate) use latency::LATENCY_TABLE;
pub use latency::{FAMILIES_MAX, HISTOGRAMS, LATENCIES, Latency, Phase, TENANT_LATENCIES};
pub use logins::{ADDRESS_PAUSE_US, LoginPlaces, LoginRates, LoginToken, NAME_PAUSE_US};
pub use pauses::Pauses;
pub use registry::{
    Busy, Counters, NO_NAMES, Process, Refused, Registry, Work, WorkerMetrics, digest,
};
pub use slow_log::{NO_COMMAND, SLOW_KEY_MAX, SlowEntry, SlowHead, SlowLog, SlowReset};
pub use tap::{Overtaken, TAP_LEN_MAX, Tap};
pub use tenants::{Rate, TenantRates};
pub use windows::{Measured, Span, Window, Windows};

/// One counter as operators see it.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    /// Describes the events or the state that the counter measures.
    pub help: &'static str,
    pub kind: Kind,
}

/// The kind of a counter: gauge or total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A gauge: it can fall, and it ends with the process.
    Now,
    /// A total: it never falls, and it outlives the process that counted.
    Total,
}

/// A row of one of the four tables.
pub trait Counter: Copy + 'static {
    /// The table, in the order of the enum.
    const TABLE: &'static [Metric];
    /// Every row, in the same order.
    const ALL: &'static [Self];

    /// Returns its index among the counters of a row in memory.
    fn place(self) -> usize;

    /// Returns its line of the table.
    fn metric(self) -> &'static Metric;
}

/// The first places of a row are for gauges, so that they can be cleared without knowing what the
/// row describes. The last of them is no gauge of a table: see [`Busy`].
pub(crate) const GAUGES: usize = 16;

/// The last places of a row are for totals that the protocol of a server defines. The protocol has
/// their names, in the order of their places.
pub const OWN_COUNTERS: usize = 8;

macro_rules! table {
    ($(#[$doc:meta])* $enum:ident, $table:ident:
     now { $($now:ident $now_name:literal $now_help:literal,)* }
     total { $($total:ident $total_name:literal $total_help:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum $enum {
            $(#[doc = $now_help] $now,)*
            $(#[doc = $total_help] $total,)*
        }

        /// The rows, in the order of the enum.
        pub static $table: &[Metric] = <$enum as Counter>::TABLE;

        impl Counter for $enum {
            const TABLE: &'static [Metric] = &[
                $(Metric { name: $now_name, help: $now_help, kind: Kind::Now },)*
                $(Metric { name: $total_name, help: $total_help, kind: Kind::Total },)*
            ];
            const ALL: &'static [$enum] = &[$($enum::$now,)* $($enum::$total,)*];

            #[inline]
            fn place(self) -> usize {
                const NOW: usize = [$($enum::$now),*].len();
                const _: () = assert!(NOW < GAUGES);
                const _: () = assert!(GAUGES - NOW + $enum::ALL.len() <= registry::OWN_AT);
                let at = self as usize;
                if at < NOW { at } else { at + GAUGES - NOW }
            }

            fn metric(self) -> &'static Metric {
                &$enum::TABLE[self as usize]
            }
        }
    };
}

table! {
    /// Counters of a worker as a whole: row 0 in memory.
    WorkerCounter, WORKER:
    now {
        ClientsNow "clients" "Clients connected now.",
        LinksNow "links" "Links to servers now, including those that are being established.",
        PrivateLinksNow "private_links"
            "Links that serve one client only; `private_connections_max` limits them.",
        KeptLinksNow "private_links_kept"
            "Links of one client only that it keeps for 5 seconds without using them.",
        RequestsNow "requests" "Requests that are waiting for an answer now.",
        BufferBytesNow "buffer_bytes" "Bytes in buffers now; `memory_max` limits them.",
    }
    total {
        Turns "turns_total" "Turns of the event loop.",
        Accepts "accepts_total" "Clients accepted.",
        AcceptsRefused "accepts_refused_total" "Clients refused because of a limit or a drain.",
        ClientsUnfinished "clients_unfinished_total"
            "Clients closed amid requests, since the time for the end of their worker or pool was \
             over.",
        HeadersBroken "headers_broken_total"
            "Clients closed because they sent no valid PROXY header.",
        Connects "connects_total" "Attempts to connect to a server.",
        ConnectsWaited "connects_waited_total"
            "Attempts to connect that were delayed by `server_connects_max`.",
        Installs "installs_total" "Configurations applied at run time.",
        BusyUs "busy_us_total" "Microseconds in which the event loop was not waiting for events.",
        UserUs "user_us_total" "Microseconds of processor time in user mode.",
        SystemUs "system_us_total" "Microseconds of processor time in the kernel.",
        AccessLines "access_lines_total" "Requests that were to have a line in the access log.",
        AccessLinesLost "access_lines_lost_total" "Lines of the access log that were dropped.",
        ClientsLost "clients_lost_total" "Clients that were cut off because their worker died.",
    }
}

table! {
    /// Counters of a pool.
    PoolCounter, POOL:
    now {
        ClientsNow "clients" "Clients connected now.",
        SubscriptionsNow "subscriptions"
            "Channels and patterns that clients are subscribed to now, counted for each client.",
    }
    total {
        ClientsTotal "clients_total" "Clients accepted.",
        ClientsRefused "clients_refused_total" "Clients refused because a limit was reached.",
        ClientsEnded "clients_ended_total" "Clients that closed their connection.",
        ClientsLost "clients_lost_total" "Clients whose connection was reset.",
        ClientsKilled "clients_killed_total" "Clients closed by `quickack clients kill`.",
        ClientsUnread "clients_unread_total"
            "Clients closed because they did not read (`timeout_write`), and wrote on or held \
             memory that others needed.",
        ClientsStalled "clients_stalled_total"
            "Clients closed in a large request of which nothing came for 10 s, while half of the \
             memory was in use.",
        Requests "requests_total" "Requests parsed, including those that were refused.",
        Slow "requests_slow_total"
            "Requests that took `slowlog_threshold` or longer. The slow log has the last of them.",
        Transactions "transactions_total" "Transactions that EXEC sent to a server.",
        TransactionsRefused "transactions_refused_total"
            "Transactions that EXEC did not send: a request of them was refused, or their server \
             was down.",
        Refused "requests_refused_total" "Requests answered with an error and not forwarded.",
        Local "requests_local_total" "Requests that the proxy answered by itself.",
        KeysAsked "keys_asked_total" "Keys that reads asked for.",
        Fragments "fragments_total"
            "Keys of reads with several keys; `keys_asked_total` includes them.",
        Hits "hits_total" "Keys asked for that had a value.",
        Misses "misses_total" "Keys asked for that had no value.",
        Stores "stores_total" "Requests with a value to store.",
        ReceivedBytes "received_bytes_total" "Bytes received from clients.",
        SentBytes "sent_bytes_total" "Bytes sent to clients.",
        Logins "logins_total" "Successful logins.",
        LoginsFailed "logins_failed_total" "Logins with a wrong name or password.",
        LoginsDelayed "logins_delayed_total"
            "Logins that waited for their turn because others before them were wrong.",
        LoginsRefused "logins_refused_total"
            "Logins whose turn did not come in time: their passwords were not looked at.",
        Failed "requests_failed_total"
            "Requests, or parts of requests, that failed with one of the faults in errors.md.",
        Cancelled "requests_cancelled_total"
            "Requests whose answer was discarded because the client had left.",
        CutOff "clients_cut_off_total"
            "Clients closed in the middle of a value because the server failed.",
        MarkingRequests "requests_marking_total"
            "Requests that may set a stale or win mark on an item, or that ask for these marks.",
        Paused "clients_paused_total"
            "Times that a client was paused because it had too much outstanding.",
        AcksFlushed "acks_flushed_total"
            "ACKs sent at once after a part of a request or a quiet request.",
        StallsCured "stalls_cured_total"
            "Such ACKs after which the client sent more within 5 ms; it might have stalled.",
        Messages "messages_total" "Messages of channels that were passed to clients.",
        SubscribersSlow "subscribers_slow_total"
            "Subscribers closed because they did not read what was pushed to them.",
        SubscribersLost "subscribers_lost_total"
            "Subscribers closed because a subscription of theirs was lost at a server.",
    }
}

table! {
    /// Counters of a server of a pool.
    ServerCounter, SERVER:
    now {
        LinksNow "links" "Links established now.",
        PendingNow "pending" "Messages waiting to be sent now.",
        PendingBytesNow "pending_bytes" "Bytes waiting to be sent now.",
        InflightNow "inflight" "Messages sent and waiting for a reply now.",
        InflightBytesNow "inflight_bytes" "Bytes of the messages in `inflight` now.",
        HoldingWorkersNow "holding_workers"
            "Workers that hold back requests now because the server is silent.",
        WorkNow "work_us"
            "How long the commands whose time depends on data, and that the server owes now, are \
             expected to take it.",
        BlockedNow "clients_blocked" "Clients that wait at the server now, as with BLPOP.",
        PrivateLinksNow "private_links" "Links that serve one client only.",
        DownWorkersNow "down_workers" "Workers that see the server as down now, and probe it.",
        EjectedAt "ejected_at_us"
            "When the server was ejected, as Unix time in microseconds; 0 while it is in the ring.",
    }
    total {
        Connects "connects_total" "Links established (successful attempts to connect).",
        Messages "messages_total" "Messages queued for the server; a merged get counts once.",
        MessageBytes "message_bytes_total" "Bytes sent to the server.",
        Merged "keys_merged_total" "Keys sent in a get that several requests shared.",
        Replies "replies_total" "Messages that the server answered.",
        ReplyBytes "reply_bytes_total" "Bytes received from the server.",
        Errors "errors_total" "Error lines received from the server.",
        RepliesDripped "replies_dripped_total"
            "Small replies that came drop by drop: in 8 reads or more, over 50 ms or more.",
        AskedAlone "keys_asked_alone_total"
            "Keys asked alone because a shared get was answered with an error.",
        AskedAgain "keys_asked_again_total" "Keys asked once more because a link was lost.",
        Held "messages_held_total" "Messages held back because the server was silent.",
        Dropped "messages_dropped_total"
            "Messages that waited and were never sent, because their clients had left.",
        ConnectFailed "connect_failed_total" "Attempts to connect that were refused or timed out.",
        ConnectTimeout "connect_timeout_total"
            "Attempts to connect that timed out; `connect_failed_total` includes them.",
        ConnectUnable "connect_unable_total"
            "Attempts to connect that failed because the proxy could not make a socket.",
        QueueTimeout "queue_timeout_total" "Messages that waited too long to be sent.",
        QueueFull "queue_full_total" "Requests refused because the queue was full.",
        ReplyTimeout "reply_timeout_total" "Links closed because the server was silent.",
        LinkLost "link_lost_total" "Links that the server closed or reset.",
        LinkEnded "link_ended_total"
            "Links that the server closed without a reset; `link_lost_total` includes them.",
        LoginRefused "login_refused_total"
            "Links closed because the server refused the proxy's login.",
        SetupRefused "setup_refused_total"
            "Links closed because the server refused the database or protocol version.",
        Poisoned "poisoned_total" "Links closed because of a reply that fits no request.",
        RefusedDown "refused_down_total" "Requests refused at once because the server was down.",
        RefusedMaint "refused_maintenance_total"
            "Requests refused at once because an operator has the server in maintenance.",
        OutOfMemory "out_of_memory_total" "Replies dropped because `memory_max` was reached.",
        Ejections "ejections_total" "Times that the server was ejected from the ring.",
        Probes "probes_total" "Probes sent to find out whether the server is back.",
        AcksFlushed "acks_flushed_total" "ACKs sent at once because a reply was incomplete.",
        StallsCured "stalls_cured_total"
            "Such ACKs after which the server sent more within 5 ms; it might have stalled.",
        SubscriptionsLost "subscriptions_lost_total"
            "Subscriptions at the server that were lost with their link.",
        SubscriptionsJoined "subscriptions_joined_total"
            "Subscriptions made at the server later than at others, when it was there again.",
    }
}

table! {
    /// Counters of a tenant.
    TenantCounter, TENANT:
    now {
        ClientsNow "clients" "Clients connected now.",
        WaitingNow "waiting" "Clients that are not read now because of a limit of the tenant.",
        InflightBytesNow "inflight_bytes"
            "Bytes of requests, and of the answers that are expected to them, in flight now; \
             counted if the tenant has `inflight_max`.",
        PrivateLinksNow "private_links"
            "Links that serve one client of the tenant only; `private_links_max` limits them.",
    }
    total {
        ClientsTotal "clients_total" "Clients accepted, or logged in, as clients of the tenant.",
        ClientsRefused "clients_refused_total" "Clients refused because of `clients_max`.",
        Requests "requests_total" "Requests read, including those that were refused.",
        Denied "requests_denied_total"
            "Requests refused because of the tenant's databases, commands or key prefix.",
        Delayed "requests_delayed_total" "Requests read later because of a limit of the tenant.",
        Over "requests_over_total" "Requests refused because of a limit of the tenant.",
        ReceivedBytes "received_bytes_total" "Bytes of requests.",
        SentBytes "sent_bytes_total" "Bytes sent to clients.",
        Logins "logins_total" "Successful logins.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_place_of_its_own_and_names_differ() {
        check::<WorkerCounter>();
        check::<PoolCounter>();
        check::<ServerCounter>();
        check::<TenantCounter>();
    }

    fn check<C: Counter>() {
        let mut places = std::collections::BTreeSet::new();
        for (at, counter) in C::ALL.iter().enumerate() {
            let row = counter.metric();
            assert_eq!(row.name, C::TABLE[at].name);
            assert!(C::TABLE[..at].iter().all(|other| other.name != row.name), "{}", row.name);
            assert!(row.help.ends_with('.'));
            assert_eq!(row.name.ends_with("_total"), row.kind == Kind::Total, "{}", row.name);
            assert_eq!(counter.place() < GAUGES, row.kind == Kind::Now);
            assert!(counter.place() < registry::OWN_AT && places.insert(counter.place()));
            assert_ne!(counter.place(), registry::BUSY_AT);
        }
    }
}
