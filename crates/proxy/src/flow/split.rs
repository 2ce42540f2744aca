//! Requests whose keys may belong to several servers, of which each is asked for its own; the
//! replies are gathered into one answer. Whatever can reach one server alone goes there as it came.

use proto::{Ask, Carry, Class, Request, Skills, Span};

use super::ask::How;
use super::receive::Data;
use super::way::Way;
use crate::buffer::Outbox;
use crate::client::Client;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::plan::MultiKey;
use crate::{Proxy, Time, limits};

/// Bytes by which a key, with what belongs to it, may be longer in a message than in a line.
const KEY_FRAME_LEN: usize = 8;

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
                if writes
                    && !bug!(SendToSome)
                    && let Some(out) = self.out_of_reach(id, request, head, now)
                {
                    return self.refuse_unasked(id, request, head, out);
                }
                let row = self.desk.enqueue(id, request, head);
                let entry = &mut self.desk.rows[row];
                (entry.writes, entry.question.gathers, entry.question.each) = (writes, true, each);
                let how = How { ask, merge: false, idempotent, whole: true, sure: writes };
                return self.ask_keys(id, (request, head), row, how, now);
            }
        };
        let row = self.desk.enqueue(id, request, head);
        let entry = &mut self.desk.rows[row];
        (entry.writes, entry.left) = (writes, 1);
        entry.question.elements = each.then_some(self.keys.len() as u32);
        self.go(row, request, head, Data::Held(Outbox::default()), way, now);
    }

    /// The first server that a change cannot be sent to now, and why. Then it is sent to none of
    /// them: nothing would undo what the others did.
    fn out_of_reach(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        now: Time,
    ) -> Option<(Option<u32>, Fault)> {
        let pool = self.desk.clients.find(id).expect("it has just asked").pool as usize;
        // As many as one link may get of it: so that none finds its queue full when others have
        // theirs. A message ends with so many keys, or with so many bytes in it and the next.
        let bytes = head.len() + self.keys.len() * KEY_FRAME_LEN;
        let by_bytes = bytes / (limits::BATCH_BYTES_MAX / 2 - limits::BATCH_KEYS_MAX);
        let messages = 1 + self.keys.len() / limits::BATCH_KEYS_MAX + by_bytes;
        (0..self.keys.len()).find_map(|at| {
            let key = self.keys[at];
            let Some(server) = self.server_of(id, request, head, key) else {
                return Some((None, Fault::NoServer));
            };
            let fault = match self.link_for(pool, server, id, now) {
                Err(fault) => fault,
                Ok(link) => {
                    let link = self.links.find(link).expect("the router found it");
                    if link.has_room_for(messages, &self.desk.limits) {
                        return None;
                    }
                    Fault::QueueFull
                }
            };
            Some((Some(server as u32), fault))
        })
    }

    /// What the operator allows, of the server that all its keys belong to.
    pub(super) fn ask_of_keys(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        (ask, writes): (Ask, bool),
        now: Time,
    ) {
        let has_left = self.desk.clients.find(id).is_some_and(Client::gave_up);
        let way = match self.meet(id, request, head) {
            Ok(None) => Way::Fault(None, Fault::NoServer),
            Ok(_) if has_left => return self.drop_unasked(id, request, head),
            Ok(server) => Way::Go { ask, server },
            Err(apart) => Way::Apart(apart),
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
