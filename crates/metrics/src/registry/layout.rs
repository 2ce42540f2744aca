//! The digest of the layout, by which builds that lay the memory out differently are told apart.

use super::{HEADS_AT, OWN_AT, PAGE, ROW};
use crate::histogram::{BUCKETS, HEAD};
use crate::{
    Counter, GAUGES, HISTOGRAMS, PoolCounter, ServerCounter, TenantCounter, WorkerCounter, logins,
    slow_log, tap, tenants,
};

/// One number for the meaning of every word. Builds with other tables have another number.
pub(super) const LAYOUT: u64 = {
    let mut hash = NO_NAMES;
    let tables = [
        WorkerCounter::TABLE,
        PoolCounter::TABLE,
        ServerCounter::TABLE,
        TenantCounter::TABLE,
        crate::LATENCY_TABLE,
    ];
    let mut table = 0;
    while table < tables.len() {
        let mut row = 0;
        while row < tables[table].len() {
            hash = digest(hash, tables[table][row].name.as_bytes());
            row += 1;
        }
        hash = digest(hash, b"/");
        table += 1;
    }
    let shape = [
        VERSION,
        PAGE,
        ROW,
        HEADS_AT,
        HEAD,
        HISTOGRAMS,
        BUCKETS,
        GAUGES,
        OWN_AT,
        slow_log::WORDS,
        tap::WORDS,
        logins::WORDS,
        tenants::WORDS,
    ];
    let mut at = 0;
    while at < shape.len() {
        hash = digest(hash, &shape[at].to_le_bytes());
        at += 1;
    }
    hash
};

/// The digest of no name.
pub const NO_NAMES: u64 = 0xcbf2_9ce4_8422_2325;

/// Raise this when the same words change their meaning.
pub(super) const VERSION: usize = 6;

/// FNV-1a over names, one after the other: each call adds one to the digest of those before.
pub const fn digest(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    (hash ^ 0xff).wrapping_mul(0x0100_0000_01b3)
}
