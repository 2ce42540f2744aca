//! Requests whose keys may belong to several servers, of which each is asked for its own; the
//! replies are gathered into one answer. Whatever can reach one server alone goes there as it came.

use proto::{Carry, Class, Request, Skills, Span};

use super::ask::How;
use super::receive::Data;
use super::way::Way;
use crate::buffer::Outbox;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::plan::MultiKey;
use crate::{Proxy, Time};

impl Proxy {
    /// To one server if it can be, else to each server for its keys.
    pub(super) fn ask_split(&mut self, id: ConnId, request: &Request, head: &[u8], now: Time) {
        let Class::Split { ask, each, writes, idempotent } = request.class else {
            unreachable!("judged by its class")
        };
        let client = self.desk.clients.find(id).expect("it has just asked");
        let (pool, protocol) = (client.pool as usize, client.protocol);
        let gave_up = client.gave_up();
        let way = match self.meet(id, request, head) {
            Ok(None) => Way::Fault(None, Fault::NoServer),
            Ok(_) if gave_up => return self.drop_unasked(id, request, head),
            Ok(server) => match protocol.carry(request, head, Some(Skills::default())) {
                Carry::Ask(ask) => Way::Go { ask, server },
                Carry::Refused(refusal) => Way::Refused(refusal),
                Carry::Unknown => unreachable!("the skills were told"),
            },
            Err(apart) if self.desk.pools[pool].plan.multi_key == MultiKey::Refuse => {
                Way::Apart(apart)
            }
            Err(_) => {
                let row = self.desk.enqueue(id, request, head);
                let entry = &mut self.desk.rows[row];
                (entry.writes, entry.question.gathers, entry.question.each) = (writes, true, each);
                let how = How { ask, merge: false, idempotent, whole: true };
                return self.ask_keys(id, (request, head), row, how, now);
            }
        };
        let none = Data::Held(Outbox::default());
        self.ask_single(id, request, head, none, (way, writes), now);
    }

    /// What its server needs after a key, beyond the key.
    pub(super) fn push_rest(
        &mut self,
        link: ConnId,
        (request, head): (&Request, &[u8]),
        keys: &[Span],
        nth: usize,
    ) {
        let link = self.links.find_mut(link).expect("the router found it");
        let batch = link.own.as_mut().expect("a key has just been added");
        let row = batch.entries.last().expect("a key has just been added").row;
        let protocol = self.desk.rows[row].question.protocol;
        let nth = if bug!(ShiftRests) { (nth + 1) % keys.len() } else { nth };
        protocol.push_rest(request, head, keys, nth, &mut batch.text);
    }
}
