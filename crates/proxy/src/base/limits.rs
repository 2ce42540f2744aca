//! Every bound of the data plane, and how they relate.

/// The bounds that a plan may narrow: how much of each kind may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests of one client that wait for an answer; above it the client is not read.
    pub pipeline: usize,
    /// Unsent answer bytes of one client; above it the client is not read.
    pub client_outbox: usize,
    /// Messages of one client that wait for one link; above it its requests are refused.
    pub link_queue: usize,
    /// Bytes of one client that wait for one link; above it its requests are refused.
    pub link_outbox: usize,
    /// The least in-flight limit of a link, in cost; a new link has twice as much.
    pub inflight: u64,
    /// Bytes that the answers of unknown length on a link may have together: see `UNPROVEN_MAX`.
    pub unproven: u64,
    /// Parts of a client that may be in flight before it has shown more: see `DEPTH_MIN`.
    pub depth: u32,
    /// Bytes of a request's head.
    pub request_head: usize,
    /// A value from this length on may go to its client while it is still arriving.
    pub stream_min: usize,
    /// Work for one client in a turn: see `TURN_WORK_MAX`.
    pub turn_work: u32,
    /// Bytes of a request and of its answer from which on it takes a link for large ones.
    pub large_min: u64,
    /// Bytes that are kept in any case of a client that writes before it reads, and before its
    /// login.
    pub kept_least: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            pipeline: PIPELINE_MAX,
            client_outbox: CLIENT_OUTBOX_MAX,
            link_queue: LINK_QUEUE_MAX,
            link_outbox: LINK_OUTBOX_MAX,
            inflight: INFLIGHT_MIN,
            unproven: UNPROVEN_MAX,
            depth: DEPTH_MIN,
            request_head: REQUEST_HEAD_MAX,
            stream_min: STREAM_MIN,
            turn_work: TURN_WORK_MAX,
            large_min: LARGE_REQUEST_MIN,
            kept_least: BUFFER_KEEP_MAX,
        }
    }
}

/// Quiet reads of one key that are joined into one read.
pub const JOINED_MAX: usize = 128;
/// Keys in one merged get.
pub const BATCH_KEYS_MAX: usize = 100;
/// Bytes of one merged get's line.
pub const BATCH_BYTES_MAX: usize = 8 * 1024;
/// The fixed part of the cost of a message, beside its bytes: about what a server could send in
/// the time that a small request takes it.
pub const COST_OF_MESSAGE: u64 = 256;
/// Bytes that an answer is expected to have as long as none has come.
pub const ANSWER_UNKNOWN: u32 = 1024;
/// How long requests may wait at a server beyond the shortest round trip, in microseconds.
pub const QUEUEING_US: u64 = 1_000;
/// Questions for statistics in flight on a link, and one more for each `DEPTH_TRIP_US` of its round
/// trip: memcached answers one in some 40 us, and others wait behind them.
pub const STATISTICS_INFLIGHT: u64 = 4;
/// The least in-flight limit of a link: some 300 small requests.
pub const INFLIGHT_MIN: u64 = 128 * 1024;
/// The largest in-flight limit of a link.
pub const INFLIGHT_MAX: u64 = 64 * 1024 * 1024;
/// The cost that a waiting client may have served before it is the next one's turn.
pub const QUANTUM: i64 = 4 * 1024;
/// Answers that are not wholly written to their clients and whose time is taken when they are.
pub const UNWRITTEN_MAX: usize = 16_384;
/// Slow requests of a worker's clients that may be outstanding at a server: it does one after the
/// other, and nothing between those that it has read.
pub const SLOW_INFLIGHT_MAX: usize = 1;
/// Requests outstanding at a server whose work was never tried: of all workers, if they are no
/// more than that, and of each client one.
pub const UNTRIED_INFLIGHT_MAX: usize = 4;
/// The unit in which the time of quick works is known.
pub const WORK_UNIT_US: u64 = 100;
/// Works that take less are not told to other workers; their number is bounded.
pub const WORK_TIMED_US: u64 = 300;
/// So many works of a kind that was quick may leave before any of them is answered. At first they
/// are as many as of one that was never tried; what is quick while many of it are outstanding is
/// trusted more.
pub const QUICK_MAX: u16 = 1024;
/// Quick answers that make room for one more, while there is too little. Each counts once more for
/// each `DEPTH_TRIP_US` of the round trip, or a distant server would be idle for long.
pub const WINDOW_STEP: u32 = 256;
/// Half of the room that nobody has needed for so long goes.
pub const WINDOW_KEPT_US: u64 = 1_000_000;
/// A work that was never tried counts as one of so long.
pub const WORK_UNTRIED_US: u64 = 5_000;
/// All works that are outstanding at a server, of all workers, take no longer than this; or there
/// is one of this worker.
pub const WORK_MAX_US: u64 = 20_000;
/// Each worker may have as much work of microseconds at a server, whatever others have there.
pub const WORK_SHARE_US: u64 = 5_000;
/// Work that waits for others' is looked at so often.
pub const WORK_LOOK_US: u64 = 1_000;
/// Works that a worker knows to have been quick at one server.
pub const TRIED_MAX: usize = 64;
/// Bytes of other messages that may leave ahead of gets that wait for company, and of the answers
/// to them.
pub const OVERTAKEN_MAX: u64 = 4 * 1024;
/// How many times as much as a client may leave unread may be gathered of the answer that is next
/// and waits for a slower server. Few answers are as long; it bounds those of which a server never
/// sends its part.
pub const AWAITED_SHARES: u64 = 16;
/// An answer from this length on is large: it may hold up others.
pub const LARGE_MIN: u32 = 64 * 1024;
/// A request of which so many bytes are sent, or expected in answer, takes a link for large ones.
pub const LARGE_REQUEST_MIN: u64 = 1024 * 1024;
/// Bytes that the answers of unknown length on a link to a near server may have together, if each
/// is as long as the longest to its command of late, or 512 KiB.
pub const UNPROVEN_MAX: u64 = 2 * 1024 * 1024;
/// Messages and keys of a client that may be in flight before it has shown more: small answers to
/// one request at a time say nothing of 400 keys at once. Beyond this, and beyond what its answers
/// have added to it, the length of an answer is unproven.
pub const DEPTH_MIN: u32 = 2;
/// So many more on a link for each time that its round trip takes this long, in microseconds.
pub const DEPTH_TRIP_US: u64 = 250;
/// What each answer adds, while a client asks for more: it has 4 times as much in each round.
pub const DEPTH_GROWTH: u32 = 3;
/// The most that a client can show. Nothing that is deeper is told apart.
pub const DEPTH_SHOWN_MAX: u32 = 1 << 20;
/// How many times sooner small answers prove something of a client that asks for one thing at a
/// time.
pub const IDLE_PROOF: u64 = 10;
/// Messages and keys of one client that may wait for a link; above it the client is not read.
pub const SHARE_LEN: usize = 64;
/// Bytes of one client that may wait for a link; above it the client is not read.
pub const SHARE_BYTES: usize = 256 * 1024;
/// Bytes of a request's head, where its end is not known before it has come. A get may hold any
/// number of keys up to this: 100,000 keys of 250 bytes fit.
pub const REQUEST_HEAD_MAX: usize = 32 * 1024 * 1024;
/// Parts of a request's head, where they are counted. A place is kept for each: 32 MiB.
pub const PARTS_MAX: u32 = 4 * 1024 * 1024;
/// Bytes of a request's head whose parts are counted, however much memory there is: positions in it
/// are numbers of 32 bits.
pub const COUNTED_HEAD_MAX: usize = 2 * 1024 * 1024 * 1024;
/// Bytes of a whole request of a client that has not logged in. Redis takes words of 16 KiB from
/// it, memcached a value of 2 KiB.
pub const LOGIN_LEN_MAX: usize = 32 * 1024;
/// Wrong logins of a client that count where logins wait: those with fewer come first.
pub const MISTAKES_MAX: u8 = 5;
/// How long a login waits for its turn, in microseconds. After that it is refused, and its password
/// is not looked at.
pub const LOGIN_WAIT_US: u64 = 10_000_000;
/// Bytes of a user's name that are logged.
pub const NAME_LOGGED_MAX: usize = 64;
/// Requests of one client that wait for an answer; above it the client is not read.
pub const PIPELINE_MAX: usize = 4096;
/// Unsent answer bytes of one client; above it the client is not read.
pub const CLIENT_OUTBOX_MAX: usize = 1024 * 1024;
/// Work for one client in a turn: 128 requests of one key, or 32 KiB of the proxy's own answers, or
/// a mixture. A client that has had so much goes on in the next turn, behind the others that may go
/// on. Where many clients ask as much as they can, each has less: this is then the work of a turn
/// for all of them, which takes 0.3 ms or so.
pub const TURN_WORK_MAX: u32 = 512;
/// The least work for one client in a turn, however many clients there are.
pub const TURN_WORK_MIN: u32 = 8;
/// Work of a request. Each of its keys is one more.
pub const REQUEST_WORK: u32 = 3;
/// Bytes of an answer of the proxy's own that are as much work as a key.
pub const ANSWER_WORK_BYTES: usize = 64;
/// Requests of one client that wait for one link.
pub const LINK_QUEUE_MAX: usize = 65_536;
/// Bytes of one client that wait for one link.
pub const LINK_OUTBOX_MAX: usize = 64 * 1024 * 1024;
/// How many times the reply deadline a reply may take that keeps coming.
pub const REPLY_STRETCH: u64 = 16;
/// Bytes of most heads of replies.
pub const REPLY_HEAD_MAX: usize = 2048;
/// Bytes of the answer to the handshake.
pub const HANDSHAKE_MAX: usize = 64 * 1024;
/// A value of at least this length is kept by reference to the block it arrived in; a shorter one
/// is copied.
pub const REFERENCE_MIN: usize = 4 * 1024;
/// Bytes of large blocks that are given back in one turn: the first while all that is held is
/// within `memory_max`, and up to the second otherwise.
pub const FREED_PER_TURN: usize = 4 * 1024 * 1024;
pub const FREED_ABOVE_LIMIT: usize = 4 * FREED_PER_TURN;
/// Positions of keys kept for the next request.
pub const KEYS_KEEP_MAX: usize = 16 * 1024;
/// Above the memory limit, a client may have this many unsent bytes before it is paused.
pub const CLIENT_OUTBOX_SHORT: usize = 4 * 1024;
/// Databases that clients may choose, unless the file says otherwise: Redis's own default.
pub const DATABASES_DEFAULT: u32 = 16;
/// Connection keys of a pool: the databases in use, times the protocol versions used in each. A
/// server can have this many times its number of links.
pub const CONN_KEYS_MAX: usize = 64;
/// How long a connection key that a server has refused is not tried again.
pub const CONN_KEY_PAUSE_US: u64 = 1_000_000;
/// How long no link that clients share is tried of a server that has ended a link, or said nothing,
/// when it read a trial: at first, and at most.
pub const TRAP_PAUSE_FIRST_US: u64 = 10_000_000;
pub const TRAP_PAUSE_LAST_US: u64 = 600_000_000;
/// Bytes of a local command, unless its protocol allows more.
pub const OWN_LEN_MAX: usize = 64 * 1024;
/// A request up to this length is kept until it is answered, so that it can be sent again after a
/// retryable error.
pub const REPEAT_MAX: usize = 1024;
/// Links that serve one client only, if the plan names no other bound.
pub const PRIVATE_LINKS_MAX: u64 = 1_000;
/// How long a client keeps such a link that it does not need any more: it may soon need it again.
pub const PRIVATE_KEPT_US: u64 = 5_000_000;
/// Channels and patterns of one client.
pub const CLIENT_TOPICS_MAX: usize = 65_536;
/// Bytes of the names of all channels and patterns of a pool at one worker, and a place for each.
pub const TOPICS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes that a place in the tables of topics takes, about.
pub const TOPIC_PLACE_LEN: usize = 256;
/// Bytes of a request to listen to topics.
pub const TOPICS_LEN_MAX: usize = 1024 * 1024;
/// Unsent bytes of a client that is pushed more: it is closed above this, as by a server of Redis.
/// When memory is short, the bound is that of other clients.
pub const SUBSCRIBER_OUTBOX_MAX: usize = 32 * 1024 * 1024;
/// How often a server is asked on such a link whether it is there.
pub const TOPICS_PING_US: u64 = 10_000_000;
/// The pause before a link for subscriptions is opened again that was lost soon.
pub const TOPICS_PAUSE_US: u64 = 100_000;
/// Requests of a transaction, the proxy's own answers included.
pub const TRANSACTION_REQUESTS_MAX: u32 = 65_536;
/// Bytes of the requests of a transaction, and of the proxy's own answers in it.
pub const TRANSACTION_BYTES_MAX: usize = LINK_OUTBOX_MAX;
/// A transaction of more requests may take long, even if each of them is quick.
pub const TRANSACTION_QUICK_MAX: u32 = 1_000;
/// Bytes of the first key of a transaction that are kept, to be named in errors.
pub const TRANSACTION_KEY_MAX: usize = 256;
/// Works of a transaction by which its own time is known.
pub const TRANSACTION_WORKS_MAX: usize = 8;
/// The first pause before a request is sent again; it doubles each time.
pub const REPEAT_FIRST_US: u64 = 5_000;
/// Bytes of a pool's definitions, names included.
pub const DEFINITIONS_MAX: usize = 1024 * 1024;
/// Bytes of empty buffers kept for reuse.
pub const SPARES_BYTES_MAX: usize = 1024 * 1024;
/// As `REFERENCE_MIN`, for bytes that may have to wait: a quarter of a block, since a reference
/// pins all of it.
pub const KEEP_REFERENCE_MIN: usize = BLOCK / 4;
/// Bytes of the blocks that the program reads into. With the 16 that the allocator adds, they use
/// whole pages, and are mapped by themselves (`sys::heap`).
pub const BLOCK: usize = 64 * 1024 - 16;
/// Blocks that nothing refers to, kept for the next reads.
pub const FREE_BLOCKS_MAX: usize = 32;
/// A value longer than one block comes in several reads and is streamed to its client.
pub const STREAM_MIN: usize = BLOCK;
/// Unsent bytes from which on further bytes will have to wait.
pub const BACKLOG_MIN: usize = 64 * 1024;
/// As `SPARES_BYTES_MAX`, while there is little to do.
pub const SPARES_REST_MAX: usize = 256 * 1024;
/// Entries of the request table kept while no request waits.
pub const REQUESTS_REST_MAX: usize = 512;
/// A freed pending request keeps buffers up to this size for its next request.
pub const REQUEST_KEEP_MAX: usize = 1024;
/// Empty batches kept for reuse.
pub const BATCHES_MAX: usize = 1024;
/// An empty buffer larger than this goes back to the allocator.
pub const BUFFER_KEEP_MAX: usize = 16 * 1024;
/// Bytes that all buffers together may hold, unless the file says otherwise.
pub const MEMORY_DEFAULT: usize = 1024 * 1024 * 1024;
/// Bytes of an error that are kept to be told again.
pub const ERROR_KEPT_MAX: usize = 512;
/// The largest value of an embedded cache, unless the file says otherwise: memcached's own
/// default.
pub const ITEM_SIZE_DEFAULT: usize = 1024 * 1024;
/// The same in a pool of Redis servers, if a worker may hold as much.
pub const REDIS_ITEM_SIZE_DEFAULT: usize = 128 * 1024 * 1024;
/// The largest value that a file may allow: that of `memcached -I`, …
pub const ITEM_SIZE_MAX: usize = 1024 * 1024 * 1024;
/// … and that of Redis.
pub const REDIS_ITEM_SIZE_MAX: usize = 512 * 1024 * 1024;
/// Bytes of a client's requests that are kept while it reads nothing, where the file names none.
pub const CLIENT_BUFFER_DEFAULT: usize = 64 * 1024 * 1024;
/// How long a client that is stopped may take nothing before its socket is read on.
pub const AHEAD_AFTER_US: u64 = 10_000;
/// How long no more can be kept of a client, at least, before it is closed for it.
pub const AHEAD_FULL_US: u64 = 5_000_000;
/// How long nothing comes of a request, before it is given up where there is little memory.
pub const STALLED_US: u64 = 10_000_000;
/// So much of it has come.
pub const STALLED_MIN: usize = 1 << 10;
/// All of them hold at least this part of what is in use.
pub const STALLED_PART: usize = 8;
/// So many of them are given up at once: ten milliseconds later there may be more.
pub const STALLED_CLOSED_MAX: usize = 64;
/// How many blocks of a client's kept input are read in a turn.
pub const KEPT_BLOCKS_MAX: usize = 16;
/// How often a client of which no more is kept is looked at.
pub const AHEAD_LOOK_US: u64 = 1_000_000;
/// How long such a client may read nothing where the file names nothing.
pub const TIMEOUT_WRITE_DEFAULT_US: u64 = 60_000_000;
/// Deadline of a connect where the file names none.
pub const TIMEOUT_CONNECT_DEFAULT_US: u64 = 1_000_000;
/// Deadline in the queue where the file names none.
pub const TIMEOUT_QUEUE_DEFAULT_US: u64 = 1_000_000;
/// After a flushed ACK, what comes within this time was held back by Nagle's algorithm.
pub(crate) const STALL_CURED_US: u64 = 5_000;
/// Deadline of a reply where the file names none.
pub const TIMEOUT_REPLY_DEFAULT_US: u64 = 1_000_000;
/// Deadline of a slow request where the file names none, unless that of a reply is longer.
pub const TIMEOUT_SLOW_DEFAULT_US: u64 = 10_000_000;
/// A request that may be slow is slow if it takes longer than this.
pub const SLOW_US: u64 = 10_000;
/// Works that a worker knows to be slow at one server; the one not used for longest makes room.
pub const SLOW_WORKS_MAX: usize = 256;
/// A work that has been quick this many times in a row is slow no more.
pub const QUICK_AGAIN: u8 = 8;
/// A work that was not asked for this long is slow no more.
pub const SLOW_FORGET_US: u64 = 60_000_000;
/// Silence after which a server that owes an answer gets nothing more, unless the file says
/// otherwise.
pub const HOLD_AFTER_DEFAULT_US: u64 = 30_000;
/// At most one of the replies in so long tells of its round trip.
pub const TRIPS_NOTED_US: u64 = 1_000;
/// The length of a window in which the shortest round trip to a server is sought.
pub const TRIPS_WINDOW_US: u64 = 10_000_000;
/// The path to a server has become longer if each of its round trips takes longer for so long.
pub const TRIPS_LONGER_US: u64 = 1_000_000;
/// It has not if they are fewer than this.
pub const TRIPS_LONGER_MIN: u32 = 4;
/// A request that takes so much longer than a round trip keeps others waiting.
pub const OCCUPIED_US: u64 = 10_000;
/// The pause before the next look where no spare link could be made.
pub const AROUND_AGAIN_US: u64 = 50_000;
/// How long a link stays with which clients went around another.
pub const SPARE_KEPT_US: u64 = 1_000_000;
/// A server that has been busy for as long is asked itself whether it is there.
pub const BUSY_ASKED_US: u64 = 100_000;
/// So long after it has said whether it is busy, a server is not asked again.
pub const BUSY_FRESH_US: u64 = 10_000;
/// The pause before a handshake is repeated that a busy server has answered.
pub const BUSY_PAUSE_US: u64 = 100_000;
/// The first pause before another attempt after a failure; it doubles with each failure. A server
/// that is down counts one failure more after each such pause.
pub const BACKOFF_FIRST_US: u64 = 50_000;
/// The pause before a probe, or before a link that could not be made is tried again, is this part
/// of the time for which that has failed. So its return is noticed late by no more than that part,
/// and a long outage costs little.
pub const PROBE_FRACTION: u64 = 16;
/// The shortest such pause; `BACKOFF_LAST_US` is the longest.
pub const PROBE_FIRST_US: u64 = 10_000;
/// So many links, one after the other, may end with a wrong reply to their first request: a client
/// may ask again and again for what its server answers in a wrong form.
pub const FRUITLESS_MAX: u8 = 8;
/// A read may be sent again so often, because its links have ended with wrong replies to others.
pub const ASKED_AGAIN_MAX: u8 = 4;
/// A link that was up for this long was no failure to connect, whether it was used or not.
pub const LINK_STOOD_US: u64 = 1_000_000;
/// Links lost while a request waited that needs a capability, before the capability is disbelieved.
pub const DOUBTS_MAX: u8 = 2;
/// A client that closes its half no later than this behind its last bytes has not waited for an
/// answer: it has no more requests.
pub const ENDS_WITHIN_US: u64 = 5_000;
/// How long a client that is to end, and is at the boundary of a request, may go on sending.
pub const FINISH_US: u64 = 100_000;
/// How long the clients of a pool that has left the plan may take for their last answers.
pub const RETIRE_US: u64 = 10_000_000;
/// How long gauges may be out of date in the metrics registry.
pub const PUBLISH_PAUSE_US: u64 = 100_000;
/// Places of one server that rest at once, since no link could be made there. One more takes the
/// place of another.
pub const RESTS_MAX: usize = 128;
/// Timers that one call of `handle_timeout` may run, for each timer that was set when it began.
/// Nearly all timers are set for later times; a call that runs more than this would never end.
pub const TIMERS_IN_A_CALL: usize = 64;
/// The longest pause before another attempt.
pub const BACKOFF_LAST_US: u64 = 1_000_000;

const _: () = assert!(BATCH_BYTES_MAX < LINK_OUTBOX_MAX);
const _: () = assert!(ITEM_SIZE_DEFAULT <= ITEM_SIZE_MAX);
const _: () = assert!(REDIS_ITEM_SIZE_DEFAULT <= ITEM_SIZE_MAX);
const _: () = assert!(REFERENCE_MIN <= BUFFER_KEEP_MAX);
const _: () = assert!(REPLY_HEAD_MAX >= 250 + 64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Literal numbers, so that a slip in one of the products above is noticed.
    #[test]
    fn every_bound_is_as_long_as_it_is_meant_to_be() {
        for (bound, expected) in [
            (REQUEST_HEAD_MAX, 33_554_432),
            (CLIENT_OUTBOX_MAX, 1_048_576),
            (LINK_OUTBOX_MAX, 67_108_864),
            (BATCH_BYTES_MAX, 8_192),
            (HANDSHAKE_MAX, 65_536),
            (REFERENCE_MIN, 4_096),
            (FREED_PER_TURN, 4_194_304),
            (FREED_ABOVE_LIMIT, 16_777_216),
            (KEYS_KEEP_MAX, 16_384),
            (CLIENT_OUTBOX_SHORT, 4_096),
            (OWN_LEN_MAX, 65_536),
            (DEFINITIONS_MAX, 1_048_576),
            (TOPICS_BYTES_MAX, 67_108_864),
            (TOPICS_LEN_MAX, 1_048_576),
            (SUBSCRIBER_OUTBOX_MAX, 33_554_432),
            (SPARES_BYTES_MAX, 1_048_576),
            (KEEP_REFERENCE_MIN, 16_380),
            (BLOCK, 65_520),
            (STREAM_MIN, 65_520),
            (BACKLOG_MIN, 65_536),
            (SPARES_REST_MAX, 262_144),
            (BUFFER_KEEP_MAX, 16_384),
            (MEMORY_DEFAULT, 1_073_741_824),
            (ITEM_SIZE_DEFAULT, 1_048_576),
            (REDIS_ITEM_SIZE_DEFAULT, 134_217_728),
            (ITEM_SIZE_MAX, 1_073_741_824),
            (COUNTED_HEAD_MAX, 2_147_483_648),
        ] {
            assert_eq!(bound, expected);
        }
        let limits = Limits::default();
        assert_eq!((limits.pipeline, limits.client_outbox), (4_096, 1_048_576));
        assert_eq!((limits.link_queue, limits.link_outbox), (65_536, 67_108_864));
        assert_eq!((limits.request_head, limits.stream_min), (33_554_432, 65_520));
        assert_eq!((limits.turn_work, limits.large_min), (512, 1_048_576));
    }
}
