//! The proxy's own side of an answer: what a protocol is told of it, as far as it asks.

use metrics::{Pool as Counter, Server as ServerCounter, Sheet};
use proto::{Facts, Ours, Totals};

use crate::pool::{Pool, Server, Stage};

/// A pool, with the counters of all workers.
///
/// Facts of the process (its id, the workers, the time that it has used) belong here as well: the
/// driver has to tell them, since nothing here can ask the system.
pub(crate) struct View<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) sheet: Sheet,
    /// How long this worker has run, microseconds.
    pub(crate) uptime: u64,
}

impl Ours for View<'_> {
    fn facts(&self) -> Facts<'_> {
        let View { pool, sheet, uptime } = self;
        Facts {
            pool: &pool.plan.name,
            version: VERSION,
            skills: pool.skills(),
            spaces: pool.plan.spaces,
            lane: pool.lanes.of(pool.lanes.home),
            servers: pool.planned(),
            clients: sheet.total(pool.plan.row, Counter::ClientsNow),
            uptime_s: uptime / 1_000_000,
            has_users: pool.plan.users.is_some(),
            // These are one client's.
            ends: None,
            age_s: 0,
        }
    }

    fn totals(&self) -> Totals {
        let View { pool, sheet, .. } = self;
        let of_pool = |counter| sheet.total(pool.plan.row, counter);
        let of_servers = |counter: ServerCounter| {
            // The row of a vacant place may mean something else by now.
            let servers = pool.servers.iter().filter(|one| one.stage != Stage::Vacant);
            let of_one = |one: &Server| sheet.total(one.plan.row, counter);
            servers.map(of_one).fold(0, u64::wrapping_add)
        };
        Totals {
            clients: of_pool(Counter::ClientsNow),
            clients_ever: of_pool(Counter::ClientsTotal),
            requests: of_pool(Counter::Requests),
            refused: of_pool(Counter::Refused),
            keys_asked: of_pool(Counter::KeysAsked),
            hits: of_pool(Counter::Hits),
            server_bytes_sent: of_servers(ServerCounter::MessageBytes),
            server_bytes_received: of_servers(ServerCounter::ReplyBytes),
        }
    }
}

/// Who we are; a protocol adds what its clients go by.
pub(crate) const VERSION: &str = concat!("quickack-", env!("CARGO_PKG_VERSION"));
