//! Whole replies of several servers, from which one answer is made when the last has come: see ADR
//! 17.

use metrics::WorkerMetrics;
use proto::Answer;

use super::Clients;
use super::facts::{ClientFacts, PoolFacts};
use super::request::{Kind, Origin, PendingRequest};
use super::value::Value;
use crate::base::Base;
use crate::base::buffer::Outbox;
use crate::base::fault::Fault;
use crate::base::part::Part;
use crate::base::pool::Pool;

impl Clients {
    /// Keeps a server's whole reply, to be merged with those of others into one answer.
    pub(crate) fn keep_reply(
        &mut self,
        base: &mut Base,
        part: Part,
        server: u32,
        value: Value<'_>,
    ) {
        let Part { request: id, slot } = part;
        let pending = &mut self.requests[id];
        let is_there = self.table.find(pending.client).is_some();
        let fits =
            base.memory.has_room(value.len()) && pending.has_room(value.len() + Origin::LEN_MAX);
        if is_there && !fits {
            return self.fail(base, part, Some(server), Fault::OutOfMemory, true);
        }
        if is_there {
            let plan = &base.pools[pending.pool as usize].servers[server as usize].plan;
            let origin = Origin { place: Some(server), label: &plan.label };
            pending.keep_part(slot, origin, |info, out| value.flatten((info, slot), out));
            self.account_request(base, id);
        }
        self.settle_part(base, id);
    }

    /// Puts the server's own error line in place of an answer.
    pub(crate) fn server_error(&mut self, base: &mut Base, part: Part, server: u32, line: &[u8]) {
        let Part { request: id, slot } = part;
        let pending = &mut self.requests[id];
        if pending.info.gathers {
            return self.keep_error(base, part, Some(server), Kind::Error, line);
        }
        pending.fail(slot, &Answer::Error(line));
        self.settle_error(base, id);
    }

    /// Keeps a server's error, to be merged with others' replies into one answer.
    pub(super) fn keep_error(
        &mut self,
        base: &mut Base,
        Part { request: id, slot }: Part,
        server: Option<u32>,
        kind: Kind,
        text: &[u8],
    ) {
        let pending = &mut self.requests[id];
        let pool = &base.pools[pending.pool as usize];
        let label = server.map_or(&pool.plan.name, |at| &pool.servers[at as usize].plan.label);
        pending.keep_bad_part(slot, Origin { place: server, label }, kind, text);
        self.settle_error(base, id);
    }

    /// The one reply to several keys has settled the first of them: settles the others.
    pub(crate) fn settle_others(&mut self, base: &mut Base, parts: impl Iterator<Item = Part>) {
        let mut first = None;
        for part in parts {
            let Some(first) = first else {
                first = Some(part.slot);
                continue;
            };
            let pending = &mut self.requests[part.request];
            if pending.info.element_per_key {
                pending.follow(part.slot, first);
            }
            // All keys are of one request, which exists until the last of them is settled.
            self.settle_part(base, part.request);
        }
    }
}

/// Makes one answer when every server has answered. A definition may be learned from it.
pub(super) fn gather(
    pending: &mut PendingRequest,
    pool: &mut Pool,
    (metrics, uptime): (WorkerMetrics, u64),
    out: &mut Outbox,
) {
    let words = out.copied();
    let start = words.len();
    let client = ClientFacts::default();
    let is_good = pending.gather(&PoolFacts { pool, metrics, uptime, client, told: None }, words);
    let definitions = &mut pool.definitions;
    let asked = pending.info.asked();
    let learnt = pending.info.protocol.learn(&asked, &words[start..]).filter(|_| is_good);
    if pending.info.protocol.forgets(&asked) {
        // Once more, since one that was on its way meanwhile may have been learned.
        definitions.forget();
    } else if let Some((name, text)) = learnt.filter(|_| !bug!(NeverLearn)) {
        definitions.learn(name, &text);
    }
}
