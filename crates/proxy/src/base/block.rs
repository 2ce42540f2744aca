//! Blocks: bytes that slices refer to. Sockets are read into blocks of one length, which come from
//! a pool and go back to it as soon as nothing refers to them.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::limits;

/// Bytes that slices refer to.
#[derive(Debug)]
pub struct Block {
    bytes: Vec<u8>,
    /// The list of its pool. A block of another origin has none.
    free: Option<Rc<FreeBlocks>>,
}

/// The blocks of a pool that nothing refers to, the one that was freed last at the end.
#[derive(Debug, Default)]
struct FreeBlocks(RefCell<Vec<Vec<u8>>>);

impl Block {
    fn take(free: &Rc<FreeBlocks>) -> Block {
        let last = free.0.borrow_mut().pop();
        let bytes = last.unwrap_or_else(|| vec![0; limits::BLOCK]);
        Block { bytes, free: Some(Rc::clone(free)) }
    }

    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.free = None;
        std::mem::take(&mut self.bytes)
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Block {
        Block { bytes, free: None }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(free) = &self.free {
            free.0.borrow_mut().push(std::mem::take(&mut self.bytes));
        }
    }
}

/// The block that sockets are read into, and those to come. While a part of a block is referred to,
/// another takes its place. They are mapped one by one, and a client that leaves may have had
/// thousands, so those that are too many go back to the system a part at a time.
pub struct BlockPool {
    current: Rc<Block>,
    free: Rc<FreeBlocks>,
}

impl Default for BlockPool {
    fn default() -> BlockPool {
        let free = Rc::default();
        BlockPool { current: Rc::new(Block::take(&free)), free }
    }
}

impl BlockPool {
    /// A block that nothing refers to, to be read into.
    pub fn writable(&mut self) -> &mut [u8] {
        if Rc::strong_count(&self.current) > 1 {
            self.current = Rc::new(Block::take(&self.free));
        }
        Rc::get_mut(&mut self.current).expect("nothing else refers to it")
    }

    /// The block that was last read into.
    pub fn current(&self) -> &Rc<Block> {
        &self.current
    }

    /// Gives back a part of those that are too many.
    pub fn give_back(&self) {
        let mut free = self.free.0.borrow_mut();
        let surplus = free.len().saturating_sub(limits::FREE_BLOCKS_MAX);
        if surplus > 0 {
            let part = (surplus / FREED_PART).clamp(FREED_LEAST, FREED_MOST);
            // Those at the end were used last, and may be in the processor's cache.
            free.drain(..part.min(surplus));
        }
    }

    /// Whether there are too many: the next turn is to begin at once.
    pub fn has_surplus(&self) -> bool {
        self.free.0.borrow().len() > limits::FREE_BLOCKS_MAX
    }
}

/// Of many that are too many, this part goes back in one turn, …
const FREED_PART: usize = 16;
/// … but no fewer than these, …
const FREED_LEAST: usize = limits::FREED_PER_TURN / limits::BLOCK;
/// … and no more than these.
const FREED_MOST: usize = limits::FREED_ABOVE_LIMIT / limits::BLOCK;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_held_is_left_alone_and_comes_back_when_it_is_not() {
        let mut pool = BlockPool::default();
        let first = pool.writable().as_ptr();
        assert_eq!(pool.writable().as_ptr(), first, "nobody holds it");
        let held = Rc::clone(pool.current());
        let second = pool.writable().as_ptr();
        assert_ne!(second, first);
        let other = Rc::clone(pool.current());
        drop(held);
        assert_eq!(pool.writable().as_ptr(), first, "it is free again");
        assert_eq!(other.as_ptr(), second);
    }

    #[test]
    fn a_block_comes_back_once_nothing_refers_to_it() {
        let free = Rc::default();
        let first = Rc::new(Block::take(&free));
        let (place, held) = (first.as_ptr(), Rc::clone(&first));
        drop(first);
        let second = Block::take(&free);
        assert_ne!(second.as_ptr(), place, "somebody holds it");
        drop(held);
        let again = Block::take(&free);
        assert_eq!((again.as_ptr(), again.len()), (place, limits::BLOCK));
        assert_ne!(Block::take(&free).as_ptr(), place);
    }

    #[test]
    fn bytes_that_are_taken_out_and_those_of_others_do_not_come_back() {
        let free: Rc<FreeBlocks> = Rc::default();
        assert_eq!(Block::take(&free).into_bytes().len(), limits::BLOCK);
        drop(Block::from(vec![0; limits::BLOCK]));
        assert!(free.0.borrow().is_empty());
    }

    #[test]
    fn each_turn_gives_a_part_back_of_those_that_are_too_many() {
        let pool = BlockPool::default();
        let free = &pool.free;
        let give_back = |held: usize| {
            drop((0..held).map(|_| Block::take(free)).collect::<Vec<_>>());
            let mut left = vec![free.0.borrow().len()];
            while pool.has_surplus() {
                pool.give_back();
                left.push(free.0.borrow().len());
            }
            pool.give_back();
            assert_eq!(Some(&free.0.borrow().len()), left.last());
            left
        };
        assert_eq!(give_back(32), [32]);
        assert_eq!(give_back(33), [33, 32]);
        assert_eq!(give_back(200), [200, 136, 72, 32]);
        assert_eq!(give_back(2_080)[..4], [2_080, 1_952, 1_832, 1_720]);
        assert_eq!(give_back(5_000)[..2], [5_000, 4_744]);
    }
}
