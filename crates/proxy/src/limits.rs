//! Every bound of the data plane, and how they relate.

/// The bounds that a plan may narrow: how much of one kind may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests of one client that wait for an answer; above it the client is not read.
    pub pipeline: usize,
    /// Unsent answer bytes of one client; above it the client is not read.
    pub client_outbox: usize,
    /// Messages that wait for one link, sent or not; above it requests are refused.
    pub link_queue: usize,
    /// Unsent bytes of one link; above it requests are refused.
    pub link_outbox: usize,
    /// Bytes of a request's head.
    pub request_head: usize,
    /// A value from this length on may go to its client while it is still arriving.
    pub stream_min: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            pipeline: PIPELINE_MAX,
            client_outbox: CLIENT_OUTBOX_MAX,
            link_queue: LINK_QUEUE_MAX,
            link_outbox: LINK_OUTBOX_MAX,
            request_head: REQUEST_HEAD_MAX,
            stream_min: STREAM_MIN,
        }
    }
}

/// Quiet reads of one key that are taken for one read.
pub const JOINED_MAX: usize = 128;
/// Keys in one merged get.
pub const BATCH_KEYS_MAX: usize = 100;
/// Bytes of one merged get's line.
pub const BATCH_BYTES_MAX: usize = 8 * 1024;
/// Gets that are on their way to a server at once before the next waits for company. Two keep a
/// server busy while its answers travel; four leave room for a longer way.
pub const FETCHES_IN_FLIGHT_MAX: usize = 4;
/// Bytes of a request's head. A get may hold any number of keys up to this: 100,000 keys of 250
/// bytes fit.
pub const REQUEST_HEAD_MAX: usize = 32 * 1024 * 1024;
/// Bytes of a whole request of a client that has not logged in; memcached takes as many.
pub const LOGIN_LEN_MAX: usize = 2048;
/// Requests of a client that are no login before it has logged in, and wrong logins; with the last
/// it is closed.
pub const LOGIN_STRIKES_MAX: u8 = 5;
/// Requests of one client that wait for an answer; above it the client is not read.
pub const PIPELINE_MAX: usize = 4096;
/// Unsent answer bytes of one client; above it the client is not read.
pub const CLIENT_OUTBOX_MAX: usize = 1024 * 1024;
/// Requests that wait for one link, sent or not.
pub const LINK_QUEUE_MAX: usize = 65_536;
/// Unsent bytes of one link.
pub const LINK_OUTBOX_MAX: usize = 64 * 1024 * 1024;
/// A reply that keeps coming may take so many times the deadline that silence has.
pub const REPLY_STRETCH: u64 = 16;
/// Bytes of most heads of replies.
pub const REPLY_HEAD_MAX: usize = 2048;
/// Bytes of the answer to our first words.
pub const GREETING_MAX: usize = 64 * 1024;
/// A value at least this long is kept by reference to the block it arrived in; below it is copied.
pub const REFERENCE_MIN: usize = 4 * 1024;
/// Places of keys kept for the next request.
pub const KEYS_KEEP_MAX: usize = 16 * 1024;
/// When the memory ceiling is reached, a client may have this much unsent before it is paused.
pub const CLIENT_OUTBOX_SHORT: usize = 4 * 1024;
/// Databases that clients may choose, unless the file says otherwise: Redis's own default.
pub const SPACES_DEFAULT: u32 = 16;
/// Lanes of a pool: databases in use, times the versions of the protocol in which they are. So
/// many times its links a server can have.
pub const LANES_MAX: usize = 64;
/// How long a server that has refused a lane is not asked for it again.
pub const LANE_PAUSE_US: u64 = 1_000_000;
/// Bytes of a request that its protocol answers by itself.
pub const OWN_LEN_MAX: usize = 64 * 1024;
/// A request up to this length is kept until it is answered, so that it can be asked again when its
/// server says that it did nothing.
pub const REPEAT_MAX: usize = 1024;
/// The first pause before it is asked again; it doubles each time.
pub const REPEAT_FIRST_US: u64 = 5_000;
/// Bytes of texts that a pool has learnt from its clients, names included.
pub const LORE_MAX: usize = 1024 * 1024;
/// Bytes of empty buffers kept for reuse.
pub const SPARES_BYTES_MAX: usize = 1024 * 1024;
/// The same for bytes that may have to wait: a quarter of a block, of which a reference holds all.
pub const KEEP_REFERENCE_MIN: usize = BLOCK / 4;
/// Bytes of the blocks that the program reads into.
pub const BLOCK: usize = 64 * 1024;
/// A value longer than one block comes in several reads: its client gets it as it comes.
pub const STREAM_MIN: usize = BLOCK;
/// Unsent bytes from which on whatever is added will have to wait.
pub const BACKLOG_MIN: usize = 64 * 1024;
/// The same while there is little to do.
pub const SPARES_REST_MAX: usize = 256 * 1024;
/// Rows kept while no request waits.
pub const ROWS_REST_MAX: usize = 512;
/// Empty batches kept for reuse.
pub const BATCHES_MAX: usize = 1024;
/// An empty buffer larger than this goes back to the allocator.
pub const BUFFER_KEEP_MAX: usize = 16 * 1024;
/// Bytes that all buffers together may hold, unless the file says otherwise.
pub const MEMORY_DEFAULT: usize = 1024 * 1024 * 1024;
/// The largest value, unless the file says otherwise: memcached's own default.
pub const ITEM_SIZE_DEFAULT: usize = 1024 * 1024;
/// The largest value that a file may allow.
pub const ITEM_SIZE_MAX: usize = 128 * 1024 * 1024;
/// Deadline of a connect where the file names none.
pub const TIMEOUT_CONNECT_DEFAULT_US: u64 = 1_000_000;
/// Deadline in the queue where the file names none.
pub const TIMEOUT_QUEUE_DEFAULT_US: u64 = 1_000_000;
/// Deadline of a reply where the file names none.
pub const TIMEOUT_REPLY_DEFAULT_US: u64 = 1_000_000;
/// Silence after which a server that owes an answer is sent nothing more, unless the file says
/// otherwise.
pub const HOLD_AFTER_DEFAULT_US: u64 = 30_000;
/// The first pause before something is tried again that we failed at; it doubles with each failure.
/// A server that is down has failed once more each time that such a pause is over.
pub const BACKOFF_FIRST_US: u64 = 50_000;
/// A server that is down is probed after a pause of this part of the time for which it has failed.
/// So its return is noticed late by no more than that, and one that is away for long costs little.
pub const PROBE_FRACTION: u64 = 16;
/// The shortest such pause; `BACKOFF_LAST_US` is the longest.
pub const PROBE_FIRST_US: u64 = 10_000;
/// A link that has stood for so long was no failure to connect, whether it was used or not.
pub const LINK_STOOD_US: u64 = 1_000_000;
/// Links lost while something waited that needs a skill, before the skill is not believed in.
pub const DOUBTS_MAX: u8 = 2;
/// How long the clients of a pool that has left the plan may take for their last answers.
pub const RETIRE_US: u64 = 10_000_000;
/// How long what is "now" may be out of date in the book of counters.
pub const PUBLISH_PAUSE_US: u64 = 100_000;
/// Timers that one call may see to, for each that was set when it began. Nearly all are set for
/// later; more than this never end.
pub const TIMERS_IN_A_CALL: usize = 64;
/// The longest such pause.
pub const BACKOFF_LAST_US: u64 = 1_000_000;

const _: () = assert!(BATCH_BYTES_MAX < LINK_OUTBOX_MAX);
const _: () = assert!(ITEM_SIZE_DEFAULT <= ITEM_SIZE_MAX);
const _: () = assert!(REFERENCE_MIN <= BUFFER_KEEP_MAX);
const _: () = assert!(REPLY_HEAD_MAX >= 250 + 64);
