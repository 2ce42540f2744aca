//! Values that there is no room for: what is stored under their keys is removed, as memcached does
//! it, so that nobody goes on reading what was to be replaced.
//!
//! ```text
//!   set k 0 0 9000000 ──▶ too large ──▶ delete k ──▶ DELETED ──▶ "too large" is told
//!   <its data>        ──▶ passed over      │
//!                                          └─ not sent ──▶ "too large, old value kept"
//! ```
//!
//! The removal is a change of that client like any other: it goes to its key's server in the
//! client's order, never twice, and what it becomes is told when that is known.

use proto::{Class, Parsed, Quiet, Request, Resume};

use super::receive::Data;
use super::way::Way;
use crate::Proxy;
use crate::Time;
use crate::buffer::Outbox;
use crate::fault::Fault;
use crate::id::ConnId;

impl Proxy {
    /// Refuses a request whose data there is no room for, and removes its key. Returns how many
    /// bytes were used: none, if its client has to wait. `None`: nothing is to be removed.
    pub(super) fn remove(
        &mut self,
        id: ConnId,
        request: &Request,
        head: &[u8],
        now: Time,
    ) -> Option<usize> {
        let Class::Single { writes: true } = request.class else { return None };
        let client = self.desk.clients.find(id).expect("it has just asked");
        let (protocol, gave_up) = (client.protocol, client.gave_up());
        let no_room = self.no_room(client.pool as usize, request)?;
        let mut words = self.desk.spares.take();
        if !protocol.removal(request, head, &mut words) || bug!(ForgetRemoval) {
            self.desk.spares.give(words);
            return None;
        }
        let parsed = protocol.parse_request(&words, &mut Resume::default(), &mut self.keys);
        let Parsed::Complete(removal) = parsed else { unreachable!("the protocol has written it") };
        let way = self.way(id, &removal, &words, now).expect("a request about one key has a way");
        if let Way::Wait(server) = way {
            self.desk.spares.give(words);
            return Some(self.await_skills(id, server));
        }
        self.pass_over(id, request);
        // Its answer is told in its own words, not in those of the removal.
        let row = self.desk.enqueue(id, &Request { keep: true, ..*request }, head);
        let entry = &mut self.desk.rows[row];
        (entry.writes, entry.left) = (true, 1);
        entry.question.no_room = Some(no_room);
        match gave_up && request.quiet != Quiet::Silent {
            true => self.desk.fail_part((row, 0), None, Fault::Dropped, false),
            false => self.go(row, &removal, &words, Data::Held(Outbox::default()), way, now),
        }
        self.desk.spares.give(words);
        self.pause_if_full(id);
        Some(head.len())
    }
}
