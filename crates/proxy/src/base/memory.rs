//! The account of all bytes held in buffers, and the effect of its limit on a client.

use std::rc::{Rc, Weak};

use super::block::Block;
use super::limits::{self, Limits};
use crate::Event;

/// The account of all bytes held in buffers.
pub(crate) struct Memory {
    pub(crate) used: usize,
    pub(crate) max: usize,
    /// Large blocks that parts of requests refer to. Each is held until the last of them is sent,
    /// on whatever link.
    blocks: Vec<KeptBlock>,
    /// Whether the log says that little is left.
    is_told: bool,
    /// Blocks that nothing refers to any more, and that are given back little by little.
    freed: Vec<Vec<u8>>,
    /// The bytes of these: there is room for as many more.
    freeing: usize,
    /// The bytes of both.
    pub(crate) in_blocks: usize,
}

struct KeptBlock {
    block: Rc<Block>,
    /// It marks the block, for the slices of it.
    mark: Weak<Block>,
}

impl KeptBlock {
    /// Whether nothing refers to it any more.
    fn is_free(&self) -> bool {
        Rc::strong_count(&self.block) == 1
    }
}

impl Memory {
    pub(crate) fn new(max: usize) -> Memory {
        let (blocks, freed) = (Vec::new(), Vec::new());
        Memory { used: 0, max, is_told: false, blocks, freed, freeing: 0, in_blocks: 0 }
    }

    /// Accounts a block by itself, whoever refers to it. `mark` is older than any slice of it, so
    /// that no slice is counted where it lies.
    pub(crate) fn keep_block(&mut self, block: &Rc<Block>, mark: Weak<Block>) {
        self.used += block.len();
        self.in_blocks += block.len();
        self.blocks.push(KeptBlock { block: Rc::clone(block), mark });
    }

    /// Gives back a part of the blocks that nothing refers to any more. The kernel takes 60 us for
    /// each MiB, and the clients wait meanwhile.
    #[cold]
    fn free_some(&mut self) {
        for KeptBlock { block, mark } in self.blocks.extract_if(.., |block| block.is_free()) {
            drop(mark);
            self.freeing += block.len();
            self.freed.extend(Rc::into_inner(block).map(Block::into_bytes));
        }
        // Clients may write as fast as this gives back, and what is held is to stay in the limit.
        let excess = self.used.saturating_sub(self.max);
        let mut most = excess.clamp(limits::FREED_PER_TURN, limits::FREED_ABOVE_LIMIT);
        while let Some(block) = self.freed.last_mut().filter(|_| most > 0) {
            let part = block.len().min(most);
            most -= part;
            self.used -= part;
            self.in_blocks -= part;
            self.freeing -= part;
            block.truncate(block.len() - part);
            // Its end is given back where it lies; the rest is not moved.
            block.shrink_to_fit();
            self.freed.pop_if(|block| block.is_empty());
        }
    }

    /// Gives buffers back little by little. They are accounted here from now on.
    #[cold]
    pub(crate) fn free_later(&mut self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        for buffer in buffers {
            self.used += buffer.len();
            self.in_blocks += buffer.len();
            self.freeing += buffer.len();
            if !bug!(KeepFreed) {
                self.freed.push(buffer);
            }
        }
    }

    /// Notes the end of a turn, in which the last part of some block may have gone.
    #[inline]
    pub(crate) fn end_turn(&mut self) {
        if self.in_blocks > 0 {
            self.free_some();
        }
    }

    /// Whether there is more to give back.
    pub(crate) fn is_freeing(&self) -> bool {
        !self.freed.is_empty() || self.blocks.iter().any(KeptBlock::is_free)
    }

    /// Returns how much is held by somebody: what is being given back is not.
    #[inline]
    pub(crate) fn in_use(&self) -> usize {
        self.used - self.freeing
    }

    /// Whether half of it is in use.
    #[inline]
    pub(crate) fn is_little(&self) -> bool {
        self.in_use() >= self.max / 2
    }

    /// Whether so little is left that the log says it.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.in_use() >= self.max - self.max / 8
    }

    /// Whether it is to be looked at: half of it is in use, or the log says that little is left.
    #[inline]
    pub(crate) fn is_looked_at(&self) -> bool {
        self.is_little() || self.is_told
    }

    /// Returns news for the log: that little is left, or that half is free again.
    pub(crate) fn news(&mut self) -> Option<Event> {
        let (held, max, is_short) = (self.in_use(), self.max, self.is_short());
        let is_news = if self.is_told { !self.is_little() } else { is_short };
        self.is_told ^= is_news;
        let news = if is_short {
            Event::MemoryShort { held, max }
        } else {
            Event::MemoryFree { held, max }
        };
        is_news.then_some(news)
    }

    /// Whether `more` bytes are within the limit.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        let max = if bug!(HoardMemory) { self.max / 256 } else { self.max };
        self.in_use().saturating_add(more) <= max
    }

    /// Returns `limits` narrowed to the memory left: the nearer the limit, the sooner a client that
    /// does not read is paused.
    pub(crate) fn narrow(&self, limits: Limits) -> Limits {
        let outbox = limits.client_outbox;
        let client_outbox = match self.in_use() {
            held if held < self.max / 2 => outbox,
            held if held < self.max => (outbox / 16).max(limits::CLIENT_OUTBOX_SHORT).min(outbox),
            _ => limits::CLIENT_OUTBOX_SHORT.min(outbox),
        };
        Limits { client_outbox, ..limits }
    }

    /// Updates the account for a holder that held `*told` and now holds `now`.
    pub(crate) fn change(&mut self, told: &mut usize, now: usize) {
        self.used = self.used + now - *told;
        *told = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_nearer_the_ceiling_the_less_a_client_may_leave_unread() {
        let narrowed = |held: usize, client_outbox: usize| {
            let limits = Limits { client_outbox, pipeline: 77, ..Limits::default() };
            let narrow = Memory { used: held, ..Memory::new(8 * MIB) }.narrow(limits);
            assert_eq!(narrow, Limits { client_outbox: narrow.client_outbox, ..limits });
            narrow.client_outbox
        };
        for (held, outbox, expected) in [
            (0, MIB, MIB),
            (4 * MIB - 1, MIB, MIB),
            (4 * MIB, MIB, MIB / 16),
            (8 * MIB - 1, MIB, MIB / 16),
            (8 * MIB, MIB, 4096),
            (9 * MIB, MIB, 4096),
            // Never less than a little, and never more than the plan allows.
            (4 * MIB, 8192, 4096),
            (4 * MIB, 1000, 1000),
            (9 * MIB, 1000, 1000),
        ] {
            assert_eq!(narrowed(held, outbox), expected, "{held} held, {outbox} allowed");
        }
    }

    #[test]
    fn the_log_tells_once_that_little_is_left_and_once_that_half_is_free() {
        let mut memory = Memory::new(80);
        let mut news = |held: usize| {
            memory.used = held;
            memory.news()
        };
        assert_eq!([0, 40, 69].map(&mut news), [None, None, None]);
        assert_eq!(news(70), Some(Event::MemoryShort { held: 70, max: 80 }));
        assert_eq!([80, 90, 60, 70, 40].map(&mut news), [const { None }; 5]);
        assert_eq!(news(39), Some(Event::MemoryFree { held: 39, max: 80 }));
        assert_eq!([0, 40, 69].map(&mut news), [None, None, None]);
    }

    #[test]
    fn a_block_is_given_back_in_parts_once_nothing_refers_to_it() {
        let mut memory = Memory::new(100 * MIB);
        let block = Rc::new(Block::from(vec![0; 9 * MIB]));
        memory.keep_block(&block, Rc::downgrade(&block));
        memory.end_turn();
        assert_eq!((memory.used, memory.is_freeing()), (9 * MIB, false), "it is referred to");
        drop(block);
        assert!(memory.is_freeing());
        let mut turn = || {
            memory.end_turn();
            (memory.used, memory.in_blocks, memory.is_freeing())
        };
        assert_eq!(turn(), (5 * MIB, 5 * MIB, true));
        assert_eq!(turn(), (MIB, MIB, true));
        assert_eq!(turn(), (0, 0, false));
    }

    #[test]
    fn what_is_above_the_limit_is_given_back_sooner() {
        let mut memory = Memory::new(100 * MIB);
        memory.free_later([vec![0; 20 * MIB]]);
        memory.change(&mut 0, 90 * MIB);
        memory.end_turn();
        assert_eq!((memory.used, memory.in_use()), (100 * MIB, 90 * MIB));
        memory.end_turn();
        assert_eq!((memory.used, memory.in_use()), (96 * MIB, 90 * MIB));
        // A reload has lowered the limit.
        memory.max = 10 * MIB;
        memory.free_later([vec![0; 100 * MIB]]);
        memory.end_turn();
        assert_eq!((memory.used, memory.in_use()), (180 * MIB, 90 * MIB));
    }

    #[test]
    fn the_account_is_the_sum_of_what_each_holder_told_last() {
        let mut memory = Memory::new(100);
        let (mut first, mut second) = (0, 0);
        memory.change(&mut first, 60);
        memory.change(&mut second, 30);
        memory.change(&mut first, 10);
        assert_eq!((memory.used, first, second), (40, 10, 30));
        assert!(memory.has_room(60) && !memory.has_room(61) && !memory.has_room(usize::MAX));
    }
}
