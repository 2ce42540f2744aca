//! Requests that are read in another form than they came: quiet reads that are joined, and reads
//! that show marks.

use metrics::PoolCounter;
use proto::{Class, MarkUse, Quiet, Request};

use super::input::KEY_HELD;
use super::session::Client;
use crate::base::part::Requester;
use crate::base::tenants::plan::Over;
use crate::base::{Base, limits};
use crate::{Action, Event};

/// Joins consecutive quiet reads of one key into one read, with one pending request and one answer.
pub(super) fn join(base: &mut Base, asks: &Requester, request: &mut Request, input: &[u8]) {
    let Class::Fetch { merge: true, .. } = request.class else { return };
    // With less memory, the joined read might have to be refused whole.
    let has_room = base.has_room_for(asks, input.len() + limits::JOINED_MAX * KEY_HELD);
    // A refused read has one answer, and the reads joined to it would look like misses.
    let tenant = base.tenants.find(asks.tenant);
    let is_never_refused =
        tenant.is_none_or(|one| one.plan.rules.is_none() && one.plan.over == Over::Delay);
    if base.pools[asks.pool()].plan.merge_gets && has_room && is_never_refused {
        asks.protocol.join(request, input, &mut base.keys, limits::JOINED_MAX);
    }
}

/// Requests marks once they are in use in a pool, by any worker: a read that would show marks is
/// sent in the form that does. A read that would not be merged anyway always takes that form.
pub(super) fn apply_marks(base: &mut Base, pool: usize, request: &mut Request) {
    let entry = &mut base.pools[pool];
    // Once marks are known to be in use, nothing more is to be learned from other workers.
    let total = if entry.marked {
        1
    } else {
        base.metrics.total(entry.plan.id, PoolCounter::MarkingRequests)
    };
    match request.marks {
        MarkUse::None => {}
        MarkUse::Sets => {
            if !entry.marked && total == 0 {
                base.actions.push_back(Action::Log(Event::Marked { pool: entry.plan.id }));
            }
            entry.marked = true;
            entry.counters.add(PoolCounter::MarkingRequests, 1);
        }
        MarkUse::Shows => {
            entry.marked |= total > 0;
            let as_it_is = entry.marked || !entry.plan.merge_gets;
            if as_it_is && !bug!(HideMarks) {
                request.class = Class::Single { writes: false };
            }
        }
    }
}

/// Silences a request of a client that has turned replies off.
pub(super) fn mute(client: &mut Client, request: &mut Request) {
    if !bug!(SkipForEver) {
        client.session.reply_mode = client.session.reply_mode.after_request();
    }
    if !bug!(IgnoreMute) {
        request.quiet = Quiet::Silent;
    }
}
