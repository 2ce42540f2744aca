//! The places for links that the proxy does not try to fill for a while.

use proxy::fault::Fault;
use proxy::{Time, limits};

use super::conn::Conn;
use super::world::World;

/// The places for links to a server that are not filled for a while: those who need them are told
/// why the last attempt failed. Their pauses are those of the place that was first not filled.
#[derive(Default)]
pub struct Rest {
    since: Option<Time>,
    until: Time,
    /// As long as an attempt to make a link for one client may take, if it began soon after: others
    /// are told so meanwhile.
    beside_until: Time,
}

impl Rest {
    /// Notes that a link was not made.
    pub fn note(&mut self, now: Time) {
        let is_over = now.since(self.until) >= limits::BACKOFF_LAST_US;
        let since = self.since.filter(|_| !is_over).unwrap_or(now);
        self.since = Some(since);
        self.until = self.until.max(now.after(longest_pause(now.since(since))));
    }

    /// Notes that an attempt to make a link for one client begins, and how long it may take.
    pub fn note_private(&mut self, now: Time, most: u64) {
        if self.has_been() && now.since(self.until) < 2 * limits::BACKOFF_LAST_US {
            self.beside_until = self.beside_until.max(now.after(most));
        }
    }

    /// Whether a link has ever stood in at the place of another.
    pub fn has_been(&self) -> bool {
        self.since.is_some()
    }

    pub fn until(&self) -> Time {
        self.until
    }

    /// Whether a request of that time may have met such a place.
    pub fn lasts(&self, time: Time) -> bool {
        self.has_been() && self.until.max(self.beside_until) >= time
    }
}

impl World {
    /// Returns whether what has waited half of its time for a link has another.
    pub fn gives_way(&self, conn: &Conn) -> bool {
        let half = self.pools[conn.pool].deadlines_since(conn.since).queue / 2;
        let mut others = self.conns.iter().flatten();
        conn.is_beside
            && conn.up.0 == 0
            && self.now.since(conn.since) >= half
            && others.any(|one| {
                (one.pool, one.server, one.is_private) == (conn.pool, conn.server, false)
                    && one.up.0 > 0
            })
    }
}

/// Returns the longest pause before another attempt at what has failed for so long.
pub fn longest_pause(failing: u64) -> u64 {
    (failing / limits::PROBE_FRACTION).clamp(limits::PROBE_FIRST_US, limits::BACKOFF_LAST_US)
}

/// Whether requests fail with it when an attempt to make a link does.
pub fn is_of_attempt(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::ConnectFailed
            | Fault::ConnectClosed
            | Fault::ConnectTimeout
            | Fault::ReplyTimeout
            | Fault::Refused
            | Fault::Poisoned
            | Fault::LinkLost
    )
}
