//! Large requests: how much one may take that arrives in several reads and whose parts are counted,
//! or that is answered here, and what becomes of the rest of one that is refused.
//!
//! ```text
//!   *4  $3 SET  $1 k  $900000000  ──▶ too large: answered at once
//!                     <its bytes>  $2 EX  ──▶ skipped, part by part
//! ```

use proto::{Local, Parsed, Request, Resume};

use super::Clients;
use super::forms::mute;
use super::input::Next;
use super::session::Intake;
use crate::base::buffer::Source;
use crate::base::id::ConnId;
use crate::base::part::Requester;
use crate::base::room::NoRoom;
use crate::base::{Base, limits};

/// How much of the request that is arriving was found to fit, when its length was known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Admitted {
    /// How many requests had come before it.
    request: u64,
    needs: usize,
}

impl Admitted {
    /// Notes that a request needs so many bytes; returns how many were known before.
    fn note(&mut self, request: u64, needs: usize) -> usize {
        let before = if self.request == request { self.needs } else { 0 };
        *self = Admitted { request, needs };
        before
    }
}

impl Clients {
    /// Refuses an unfinished request if one of its parts is too large, or if there is no memory for
    /// what has come of it, or for all of a part when its length comes; returns how many bytes are
    /// used by that. Where the parts of a head are counted, the rest can be skipped.
    pub(super) fn check_parts(&mut self, base: &mut Base, id: ConnId, come: usize) -> usize {
        let Some(client) = self.table.find_mut(id) else { return 0 };
        if client.must_log_in(base) {
            // Its bound is smaller than any of these.
            client.resume.needs = 0;
        }
        let Resume { scanned, needs, longest, .. } = client.resume;
        if needs == 0 {
            return 0;
        }
        let before = client.admitted.note(client.record.tally.requests, needs);
        // The bytes that had come before are counted.
        let more = if needs > before { needs } else { come }.saturating_sub(client.counted);
        let has_room = || match before {
            0 => base.has_room(client.group, more),
            _ => base.has_room_to_go_on(client.group, more),
        };
        let is_small = needs <= limits::BUFFER_KEEP_MAX;
        let no_room = if longest as usize > base.pools[client.pool as usize].plan.item_size_max
            || client.resume.parts_left() > limits::PARTS_MAX && !is_small
            || needs > limits::COUNTED_HEAD_MAX
        {
            NoRoom::TooLarge
        } else if !is_small && !has_room() {
            NoRoom::NoMemory
        } else {
            return 0;
        };
        client.resume = Resume { left: client.resume.parts_left(), ..Resume::default() };
        client.intake = Intake::Skip(0);
        // The next one has the same number.
        client.admitted = Admitted::default();
        client.charge(limits::REQUEST_WORK);
        client.account(&mut base.memory);
        let mut request = Request::placeholder();
        if !client.session.reply_mode.is_on() {
            mute(client, &mut request);
        }
        base.pools[client.pool as usize].count_refused();
        if let Some(tenant) = base.tenants.find_mut(client.tenant) {
            tenant.charge(1, scanned as u64, base.now);
        }
        self.answer(base, id, &request, b"", &no_room.answer());
        if self.is_in_transaction(id) {
            self.abort_transaction(base, id);
        }
        self.pause_if_full(base, id);
        scanned
    }

    /// Skips the rest of a head that is refused.
    #[cold]
    pub(super) fn skip_head(&mut self, base: &mut Base, id: ConnId, rest: Source<'_>) -> Next {
        let Some(client) = self.table.find_mut(id) else { return Next::Used(0) };
        let Intake::Skip(left) = &mut client.intake else { return Next::Used(0) };
        if *left == 0 {
            match client.protocol.skip_part(rest.bytes, &mut client.resume) {
                Parsed::Complete(len) => *left = len,
                Parsed::Incomplete => return Next::Used(0),
                Parsed::Malformed(why) => {
                    return Next::Used(self.close_malformed(base, id, rest.bytes, why));
                }
            }
        }
        let used = rest.len_within(*left);
        *left -= used as u64;
        if *left == 0 && client.resume.left == 0 {
            client.intake = Intake::Head;
            client.resume = Resume::default();
        }
        if let Some(tenant) = base.tenants.find_mut(client.tenant) {
            tenant.charge(0, used as u64, base.now);
        }
        Next::Used(used)
    }
}

/// Returns why a local command is not answered because of its length, if it is not.
pub(super) fn no_room_for_local(
    base: &Base,
    asks: &Requester,
    request: &Request,
    local: Local,
) -> Option<NoRoom> {
    let len = request.head as usize;
    let [most, answer] = match local {
        Local::Subscribe => [limits::TOPICS_LEN_MAX, 0],
        _ => asks.protocol.local_bounds(request, limits::OWN_LEN_MAX),
    };
    if len > most {
        return Some(NoRoom::TooLarge);
    }
    // It is written before it is put into the output.
    let is_long = answer > limits::OWN_LEN_MAX;
    (is_long && !base.has_room_for(asks, 2 * answer)).then_some(NoRoom::NoMemory)
}
