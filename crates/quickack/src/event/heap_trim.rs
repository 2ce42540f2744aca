//! Heap trim: memory that was freed is given back to the kernel. The allocator keeps what lies
//! between pieces in use, so after many large values it would hold their memory for the rest of its
//! life. The kernel takes 60 us for each MiB, so a little is given back in each turn.

use proxy::Time;
use sys::heap::Piece;

/// Watches how much is held, and gives the rest back when so much less of it is that it is worth
/// it.
pub struct HeapTrim<P = Piece> {
    high: u64,
    /// When the last run began.
    last: Time,
    /// When the next one may.
    due: Option<Time>,
    run: Option<Run<P>>,
}

/// Takes free pieces of the heap, the largest first, until there are no more. They are held, so
/// that each is another; what needs memory meanwhile has the heap made longer.
struct Run<P> {
    pieces: Vec<P>,
    /// The length of the next one.
    len: usize,
    /// At most so many bytes are taken. More than the heap has are those of a heap that grows.
    left: usize,
    /// How much was in buffers at the beginning.
    held: u64,
}

impl<P> HeapTrim<P> {
    pub fn new() -> HeapTrim<P> {
        HeapTrim { high: 0, last: Time(0), due: None, run: None }
    }

    /// Notes how much is in buffers, as last summed up. Returns whether `go_on` has something to
    /// do.
    pub fn is_due(&mut self, held: u64, now: Time) -> bool {
        self.high = self.high.max(held);
        if let Some(run) = &self.run {
            // The free memory is needed again.
            let is_needed = held >= run.held + WORTH;
            self.run.take_if(|_| is_needed);
            return !is_needed;
        }
        let fallen = self.high - held >= WORTH && held <= self.high / 2;
        self.due = fallen.then(|| self.last.after(PAUSE_US));
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        (self.high, self.last, self.due) = (held, now, None);
        self.run = Some(Run { pieces: Vec::new(), len: PART, left: usize::MAX, held });
        true
    }

    /// Whether the next turn is to begin at once.
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// When `is_due` is to be asked again, although nothing else happens.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// Gives a part back. `take` takes a free piece of a length, from a heap that is so long.
    /// Returns true when no piece is left that is worth a call: the rest may be given back at once.
    pub fn go_on(&mut self, heap_len: usize, mut take: impl FnMut(usize) -> Option<P>) -> bool {
        let Some(run) = &mut self.run else { return false };
        run.left = run.left.min(heap_len);
        let mut part = 0;
        while part < PART && run.left > 0 {
            match take(run.len) {
                Some(piece) => {
                    run.pieces.push(piece);
                    part += run.len;
                    run.left = run.left.saturating_sub(run.len);
                }
                None if run.len > LEAST => run.len /= 2,
                None => run.left = 0,
            }
        }
        let is_over = run.left == 0;
        self.run.take_if(|_| is_over);
        is_over
    }
}

/// Bytes for which giving back is worth it.
const WORTH: u64 = 16 * 1024 * 1024;
/// Bytes that are given back in a turn.
const PART: usize = 4 * 1024 * 1024;
/// The shortest piece that is taken.
const LEAST: usize = 16 * 1024;
/// The shortest time from one run to the next, microseconds.
const PAUSE_US: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const HEAP: usize = 200 << 20;

    /// Whether a trim begins; if so, it ends at once.
    fn begins(trim: &mut HeapTrim<usize>, held: u64, now: Time) -> bool {
        trim.is_due(held, now) && trim.go_on(HEAP, |_| None) && !trim.is_running()
    }

    #[test]
    fn a_great_fall_is_worth_one_trim_and_not_too_often() {
        let mut trim = HeapTrim::new();
        let mut begins = |held: u64, at: u64| begins(&mut trim, held * MIB, Time(at * 1_000));
        assert!(!begins(100, 1_000));
        assert!(!begins(60, 2_000), "most of it is still there");
        assert!(begins(10, 3_000));
        assert!(!begins(0, 4_000), "the rest is not worth it");
        assert!(!begins(50, 5_000));
        assert!(begins(0, 6_000));
        assert!(!begins(50, 6_000) && !begins(0, 6_000));
        assert!(begins(0, 7_000));
    }

    #[test]
    fn just_enough_and_just_half_are_worth_it() {
        let mut trim = HeapTrim::new();
        assert!(!begins(&mut trim, 32 * MIB, Time(1_000_000)));
        assert!(!begins(&mut trim, 16 * MIB + 1, Time(2_000_000)));
        assert!(begins(&mut trim, 16 * MIB, Time(2_000_000)));
        assert!(!begins(&mut trim, 0, Time(2_999_999)));
        assert!(begins(&mut trim, 0, Time(3_000_000)));
    }

    /// Takes a free piece of a length from a heap.
    fn take_from(free: &mut [usize], len: usize) -> Option<usize> {
        let piece = free.iter_mut().find(|piece| **piece >= len)?;
        *piece -= len;
        Some(len)
    }

    #[test]
    fn each_turn_gives_back_a_part_until_only_small_pieces_are_left() {
        let mut free = [10 << 20, (3 << 20) + 100, LEAST + 1, LEAST - 1];
        let mut trim = HeapTrim::new();
        assert!(!trim.is_due(100 * MIB, Time(1_000_000)) && trim.is_due(0, Time(2_000_000)));
        let mut parts = Vec::new();
        let mut is_over = false;
        while !is_over {
            assert!(trim.is_due(0, Time(2_000_000)), "it goes on");
            let before = free.iter().sum::<usize>();
            is_over = trim.go_on(HEAP, |len| take_from(&mut free, len));
            parts.push(before - free.iter().sum::<usize>());
        }
        assert_eq!(parts, [PART, PART, PART, (1 << 20) + LEAST]);
        assert_eq!(free, [0, 100, 1, LEAST - 1]);
        assert!(!trim.is_running());
    }

    #[test]
    fn what_is_freed_meanwhile_does_not_make_it_endless() {
        let mut trim = HeapTrim::new();
        assert!(!trim.is_due(100 * MIB, Time(1_000_000)) && trim.is_due(0, Time(2_000_000)));
        // The heap grows meanwhile.
        let over: Vec<_> = (0..HEAP / PART).map(|at| trim.go_on(HEAP + at * PART, Some)).collect();
        assert_eq!(over.iter().position(|is_over| *is_over), Some(HEAP / PART - 1));
        assert!(!trim.is_running());
    }

    #[test]
    fn it_ends_when_the_memory_is_needed_again_and_may_begin_later() {
        let mut trim = HeapTrim::new();
        assert!(!trim.is_due(100 * MIB, Time(1_000_000)) && trim.is_due(20 * MIB, Time(2_000_000)));
        assert!(!trim.go_on(HEAP, Some) && trim.is_due(36 * MIB - 1, Time(2_000_000)));
        assert!(!trim.is_due(36 * MIB, Time(2_000_000)) && !trim.is_running());
        assert_eq!(trim.due(), None);
        assert!(!trim.is_due(18 * MIB, Time(2_100_000)));
        assert_eq!(trim.due(), Some(Time(3_000_000)), "nothing else may wake the worker");
        assert!(trim.is_due(18 * MIB, Time(3_000_000)));
        assert_eq!(trim.due(), None);
    }
}
