//! Whole replies of several servers, from which one answer is made when the last has come: see ADR
//! 17.

use metrics::WorkerMetrics;
use proto::Answer;

use super::facts::PoolFacts;
use super::{Pipelines, Value};
use crate::batch::Batch;
use crate::buffer::Outbox;
use crate::fault::Fault;
use crate::pool::Pool;
use crate::request::{Kind, Origin, PendingRequest, RequestId};

impl Pipelines {
    /// Keeps a server's whole reply, to be merged with those of others into one answer.
    pub(crate) fn keep_reply(
        &mut self,
        (id, slot): (RequestId, u32),
        server: u32,
        value: Value<'_>,
    ) {
        let pending = &mut self.requests[id];
        let is_there = self.clients.find(pending.client).is_some();
        let fits =
            self.memory.has_room(value.len()) && pending.has_room(value.len() + Origin::LEN_MAX);
        if is_there && !fits {
            let writes = pending.writes;
            return self.fail_part((id, slot), Some(server), Fault::OutOfMemory, writes);
        }
        if is_there {
            let plan = &self.pools[pending.pool as usize].servers[server as usize].plan;
            let origin = Origin { place: Some(server), label: &plan.label };
            pending.keep_part(slot, origin, |info, out| value.flatten((info, slot), out));
            self.account_request(id);
        }
        self.part_done(id);
    }

    /// Puts the server's own error line in place of an answer.
    pub(crate) fn server_error(&mut self, (id, slot): (RequestId, u32), server: u32, line: &[u8]) {
        let pending = &mut self.requests[id];
        if pending.info.gathers {
            return self.keep_error((id, slot), Some(server), Kind::Error, line);
        }
        pending.fail(slot, &Answer::Error(line));
        self.settle_error(id);
    }

    /// Keeps a server's error, to be merged with others' replies into one answer.
    pub(super) fn keep_error(
        &mut self,
        (id, slot): (RequestId, u32),
        server: Option<u32>,
        kind: Kind,
        text: &[u8],
    ) {
        let pending = &mut self.requests[id];
        let pool = &self.pools[pending.pool as usize];
        let label = server.map_or(&pool.plan.name, |at| &pool.servers[at as usize].plan.label);
        pending.keep_bad_part(slot, Origin { place: server, label }, kind, text);
        self.settle_error(id);
    }

    /// Settles a message of several keys: the reply to its first key answers the others as well.
    pub(crate) fn settle_rest_of_batch(&mut self, batch: &Batch) {
        let first = batch.entries[0];
        let pending = &mut self.requests[first.pending];
        if pending.info.element_per_key {
            batch.entries[1..].iter().for_each(|entry| pending.follow(entry.slot, first.slot));
        }
        // All keys are of one request, so the request exists until the last of them is settled.
        batch.entries[1..].iter().for_each(|entry| self.part_done(entry.pending));
    }
}

/// Makes one answer when every server has answered. The script cache may learn from it.
pub(super) fn gather(
    pending: &mut PendingRequest,
    pool: &mut Pool,
    (metrics, uptime): (WorkerMetrics, u64),
    out: &mut Outbox,
) {
    let words = out.copied();
    let start = words.len();
    let is_good = pending.gather(&PoolFacts { pool, metrics, uptime }, words);
    let script_cache = &mut pool.script_cache;
    let asked = pending.info.asked();
    let learnt = pending.info.protocol.learn(&asked, &words[start..]).filter(|_| is_good);
    if pending.info.protocol.forgets(&asked) {
        // Once more, since a script that was being loaded meanwhile may have been learned.
        script_cache.forget();
    } else if let Some((name, text)) = learnt.filter(|_| !bug!(NeverLearn)) {
        script_cache.learn(name, &text);
    }
}
