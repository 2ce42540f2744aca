//! A bounded in-memory store with memcached's rules: the store of `servers: [embedded]`.
//!
//! Pure: no socket, clock, thread or randomness. Time is an argument, in whole seconds since 1970,
//! like memcached's clock. The caller parses the protocol; this crate knows only items.
//!
//! # Memory
//!
//! All memory is allocated at the start, none afterwards: one arena of bytes and one index.
//!
//! ```text
//!   index   a tenth           pairs of 64-byte buckets: key's hash -> place in the arena, or ghost
//!   arena   the rest          |  small, a tenth  |                  main                    |
//!                                each a ring: items enter at the head, leave at the tail
//!
//!   new key ----------------> small ---- requested again, or main has room --> main --+
//!   key whose ghost is found -------------------------------------------------> main  | requested
//!                               |                                              ^  |  | since: once
//!                               +-- never requested: evicted, leaves a ghost    +--+--+ more round
//! ```
//!
//! That is the S3-FIFO policy. It was chosen over an LRU list because its queues are FIFO, and a
//! FIFO of items of any size is a ring of bytes: no size classes that starve each other, no free
//! lists, no list pointers, no fragmentation, and a hit writes two bits. A scan of keys that are
//! requested once passes through `small` and leaves `main` alone. An LRU list would cost eight more
//! bytes an item, two more cache misses a hit, and a separate allocator.
//!
//! One rule is added, because the hit ratio counts requests and not bytes. An item far below the
//! mean size always enters `main`, with one to three rounds to live. An item far above it must have
//! been requested twice or three times to stay. Among items of similar sizes nothing changes.
//!
//! `docs/benchmarks.md` compares the hit ratio with memcached's. `examples/hit_ratio.rs` compares,
//! with 8 MiB and values of 100 bytes, in percent of hits:
//!
//! | trace | this store | LRU list, same bytes | memcached 1.6.18 `-m 8` |
//! |---|---|---|---|
//! | zipf 1.0 | 86.5 | 84.3 | 84.1 |
//! | zipf 0.8 | 68.3 | 63.6 | 63.6 |
//! | zipf 1.0, a quarter scanned | 64.0 | 57.6 | 58.3 |
//! | zipf 0.8, a quarter scanned | 51.3 | 41.0 | 41.8 |
//! | zipf 1.0, the favourite dies every 20 asks | 76.0 | 80.4 | 75.0 |
//!
//! The last row is the price of the policy: a popular key stays for some rounds after requests for
//! it end. With at most one round the result would be 78.7 there, and up to 1.1 points lower in the
//! rows above.
//!
//! An item that is deleted, expired or overwritten in another size remains as a dead slot until a
//! tail passes it. No live item is evicted while an eighth of `main` is dead: the tail compacts
//! instead.
//!
//! The index never grows, so no request pays for a rehash. A lookup reads at most one pair of
//! buckets, so keys chosen to collide cost their owner hits but cost nobody time. With items below
//! some 20 bytes the index fills before the arena; then a full pair displaces an item.

mod clock;
mod hash;
mod index;
mod number;
mod ring;
mod slot;
mod store;

pub use clock::NEVER;
pub use store::{Count, Counted, Entry, Item, Mode, NewItem, Outcome, Standing, Stats, Store};

/// The longest key, as in memcached.
pub const KEY_LEN_MAX: usize = 250;
/// The smallest memory of a store; a smaller request is raised to this.
pub const MEMORY_MIN: usize = 64 * 1024;
/// The largest memory: a place is 31 bits of 8-byte words.
pub const MEMORY_MAX: usize = 16 * 1024 * 1024 * 1024;
