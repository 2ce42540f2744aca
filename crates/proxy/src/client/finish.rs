//! Clients that are to end, because their worker or their pool does. A client may be in the middle
//! of a request: it is closed at the boundary of one, with everything that it asked answered. A
//! transaction counts as one request.
//!
//! ```text
//!   at rest ─────────────────────────▶ one more turn brings nothing ──▶ leaves
//!   set b 0 0 5\r\nhe │ drain │ llo\r\n ──▶ the request is whole ──────▶ leaves
//!   MULTI, SET a 1   │ drain │ EXEC ───▶ the transaction is answered ─▶ leaves
//! ```
//!
//! Whoever asked for the end decides how long it may take, and then closes those that are left.

use super::Clients;
use super::session::{Client, State};
use crate::Time;
use crate::base::id::ConnId;
use crate::base::{Base, limits};

/// The clients that are to end.
#[derive(Default)]
pub(super) struct Finishing {
    clients: Vec<Asked>,
    /// Some of them are at the boundary of a request, and only a turn is waited for.
    is_near: bool,
}

struct Asked {
    id: ConnId,
    turn: u64,
    since: Time,
}

impl Clients {
    /// Has a client end at the boundary of a request.
    pub(super) fn ask_to_finish(&mut self, base: &mut Base, id: ConnId) {
        let Some(client) = self.table.find_mut(id) else { return };
        if client.awaits_elements() {
            return self.end_wait(base, id);
        }
        if client.state != State::Open {
            return;
        }
        client.state = State::Finishing;
        self.finishing.clients.push(Asked { id, turn: base.turn, since: base.now });
        self.finishing.is_near = true;
    }

    /// Lets clients leave that were asked to finish, at the end of a turn: those that are not in
    /// the middle of a request. What had come by then is read in one more turn. A client that goes
    /// on sending is waited for a while only: it may never stop.
    pub(crate) fn end_finishing(&mut self, base: &mut Base) {
        if self.finishing.clients.is_empty() {
            self.finishing.is_near = false;
            return;
        }
        let mut all = std::mem::take(&mut self.finishing.clients);
        let mut is_near = false;
        all.retain(|asked| {
            let client = self.table.find(asked.id);
            let Some(client) = client.filter(|one| one.state == State::Finishing) else {
                return false;
            };
            if client.awaits_elements() {
                self.end_wait(base, asked.id);
                return false;
            }
            if client.is_unfinished() {
                return true;
            }
            let is_patient = base.now < asked.since.after(limits::FINISH_US);
            let comes = client.received > base.turn_since && is_patient;
            if base.turn == asked.turn || comes {
                is_near = true;
                return true;
            }
            self.leave(base, asked.id);
            false
        });
        self.finishing = Finishing { clients: all, is_near };
    }

    /// Whether the next turn, which nothing else may begin, lets clients leave.
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.is_near
    }

    /// Returns how many clients are owed answers or are in the middle of a request, and how many of
    /// them are in the middle of one.
    pub(crate) fn unfinished(&self) -> (usize, usize) {
        count(self.table.iter().map(|(_, client)| client))
    }
}

/// Returns how many clients are owed answers or are in the middle of a request, and how many of
/// them are in the middle of one.
pub(super) fn count<'c>(clients: impl Iterator<Item = &'c Client>) -> (usize, usize) {
    let all = clients.map(|client| (client.is_settled(), client.has_begun()));
    all.fold((0, 0), |(clients, half), (is_settled, is_mid)| {
        (clients + usize::from(!is_settled || is_mid), half + usize::from(is_mid))
    })
}

impl Client {
    /// Whether it has sent a part of a request, or requests that wait to be read.
    fn is_unfinished(&self) -> bool {
        let is_begun = self.has_begun() && !bug!(CutHalfAsked);
        self.is_paused() || self.is_stopped() || self.resumable || is_begun
    }

    /// Whether it has sent a part of a request, or of a transaction.
    fn has_begun(&self) -> bool {
        self.is_mid_request() || self.transaction.is_some()
    }
}
