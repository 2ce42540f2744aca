//! The work that is done for one client in a turn of the loop, so that the others are not kept
//! waiting. Where few clients ask much, the share is large, since turns cost system calls. Where
//! many do, it is small, since all their shares together are the length of a turn. Now and then
//! larger shares are tried: clients that wait for answers may want a little more, and then no more.

use crate::base::limits;

/// A client's share of a turn, in units of work: see `limits::TURN_WORK_MAX`.
pub(crate) struct TurnShare {
    work: u32,
    /// The number of clients that have reached it in this turn.
    reached: u32,
    /// It doubles with each turn, until nobody reaches it or turns become too long.
    is_tried: bool,
}

impl TurnShare {
    pub(crate) fn new(most: u32) -> TurnShare {
        TurnShare { work: most, reached: 0, is_tried: false }
    }

    /// Returns the work that one client may cause in this turn.
    #[inline]
    pub(crate) fn work(&self) -> u32 {
        self.work
    }

    /// Whether a client has reached it in this turn.
    pub(crate) fn is_reached(&self) -> bool {
        self.reached > 0
    }

    /// Notes that a client has reached it, and may want more.
    pub(crate) fn note_reached(&mut self) {
        self.reached += 1;
    }

    /// Ends the turn with this number. A share is at most `most`.
    pub(crate) fn end_turn(&mut self, turn: u64, most: u32) {
        let reached = std::mem::take(&mut self.reached);
        let done = reached.saturating_mul(self.work);
        let is_long = self.work == most || done > TRIED_SHARES * most;
        if done > most && (is_long || !self.is_tried) {
            self.work = (most / reached).max(limits::TURN_WORK_MIN);
            self.is_tried = false;
        } else if reached == 0 || self.is_tried || turn.is_multiple_of(TRIED_TURNS) {
            self.is_tried = reached > 0;
            self.work *= 2;
        }
        self.work = self.work.min(most);
    }
}

/// Larger shares are tried in a few of so many turns.
const TRIED_TURNS: u64 = 128;
/// As many times the work of other turns may be done where larger shares are tried.
const TRIED_SHARES: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = limits::TURN_WORK_MAX;

    /// Plays turns with so many clients that each want so much work in each turn; returns the most
    /// and the average work of the last 256 turns.
    fn play(share: &mut TurnShare, clients: u32, wanted: u32) -> (u32, u32) {
        let mut done = Vec::new();
        for turn in 0..512 {
            let work = share.work();
            if wanted >= work {
                (0..clients).for_each(|_| share.note_reached());
            }
            done.push(clients * work.min(wanted));
            share.end_turn(turn, MOST);
        }
        (*done[256..].iter().max().unwrap(), done[256..].iter().sum::<u32>() / 256)
    }

    #[test]
    fn a_turn_is_as_long_however_many_clients_ask_all_they_can() {
        for clients in [1, 4, 5, 40, 300] {
            let (most, average) = play(&mut TurnShare::new(MOST), clients, u32::MAX);
            let least = MOST.max(clients * limits::TURN_WORK_MIN);
            assert!(most <= 2 * TRIED_SHARES * least, "{clients} clients: {most}");
            assert!(average <= least + least / 4, "{clients} clients: {average}");
        }
    }

    #[test]
    fn clients_that_ask_little_are_not_cut_short_for_long_after_others_have_left() {
        let mut share = TurnShare::new(MOST);
        play(&mut share, 40, u32::MAX);
        assert!(share.work() < 64);
        // So many wait for the answers to 16 requests each.
        assert_eq!(play(&mut share, 50, 64), (3_200, 3_200));
        assert_eq!(share.work(), MOST);
    }

    #[test]
    fn larger_shares_are_tried_now_and_then_where_turns_are_just_as_long_as_they_may_be() {
        let mut share = TurnShare::new(MOST);
        let mut work_after = |turn| {
            (0..4).for_each(|_| share.note_reached());
            share.end_turn(turn, MOST);
            share.work()
        };
        let works = [1, 2, TRIED_TURNS].map(&mut work_after);
        assert_eq!(works, [MOST / 4, MOST / 4, MOST / 2]);
    }
}
