//! Blocks: bytes that slices refer to. The program reads into blocks of one length. As soon as
//! nothing refers to one any more, it is there for the next read.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use super::limits;

/// Bytes that slices refer to.
#[derive(Debug)]
pub struct Block {
    bytes: Vec<u8>,
    /// What they go back to.
    spares: Option<Rc<Spares>>,
}

/// Blocks that nothing refers to, for the next reads. They are mapped one by one, and a client that
/// leaves may have thousands, so those that are too many go back to the system a part at a time.
#[derive(Debug, Default)]
pub struct Spares(RefCell<Vec<Vec<u8>>>);

impl Spares {
    /// Gives back a part of those that are too many.
    pub fn give_back(&self) {
        let mut spares = self.0.borrow_mut();
        let surplus = spares.len().saturating_sub(limits::SPARE_BLOCKS_MAX);
        if surplus > 0 {
            let [least, most] = limits::BLOCKS_FREED_PER_TURN;
            let part = (surplus / BLOCKS_FREED_PART).clamp(least, most);
            // Those at the end were used last, and may be in the processor's cache.
            spares.drain(..part.min(surplus));
        }
    }

    /// Whether there are too many.
    pub fn has_surplus(&self) -> bool {
        self.0.borrow().len() > limits::SPARE_BLOCKS_MAX
    }
}

impl Block {
    /// Returns a block to be read into, the one that was free last where there is one.
    pub fn take(spares: &Rc<Spares>) -> Block {
        let spare = spares.0.borrow_mut().pop();
        let bytes = spare.unwrap_or_else(|| vec![0; limits::BLOCK]);
        Block { bytes, spares: Some(Rc::clone(spares)) }
    }

    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.spares = None;
        std::mem::take(&mut self.bytes)
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Block {
        Block { bytes, spares: None }
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
        if let Some(spares) = &self.spares {
            spares.0.borrow_mut().push(std::mem::take(&mut self.bytes));
        }
    }
}

/// Of many that are too many, this part goes back in one turn.
const BLOCKS_FREED_PART: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_once_nothing_refers_to_it() {
        let spares = Rc::default();
        let first = Rc::new(Block::take(&spares));
        let (place, held) = (first.as_ptr(), Rc::clone(&first));
        drop(first);
        let second = Block::take(&spares);
        assert_ne!(second.as_ptr(), place, "somebody holds it");
        drop(held);
        let again = Block::take(&spares);
        assert_eq!((again.as_ptr(), again.len()), (place, limits::BLOCK));
        assert_ne!(Block::take(&spares).as_ptr(), place);
    }

    #[test]
    fn bytes_that_are_taken_out_and_those_of_others_do_not_come_back() {
        let spares: Rc<Spares> = Rc::default();
        assert_eq!(Block::take(&spares).into_bytes().len(), limits::BLOCK);
        drop(Block::from(vec![0; limits::BLOCK]));
        assert!(spares.0.borrow().is_empty());
    }

    #[test]
    fn each_turn_gives_a_part_back_of_those_that_are_too_many() {
        let spares: Rc<Spares> = Rc::default();
        let give_back = |held: usize| {
            drop((0..held).map(|_| Block::take(&spares)).collect::<Vec<_>>());
            let mut left = vec![spares.0.borrow().len()];
            while spares.has_surplus() {
                spares.give_back();
                left.push(spares.0.borrow().len());
            }
            spares.give_back();
            assert_eq!(Some(&spares.0.borrow().len()), left.last());
            left
        };
        assert_eq!(give_back(32), [32]);
        assert_eq!(give_back(33), [33, 32]);
        assert_eq!(give_back(200), [200, 136, 72, 32]);
        assert_eq!(give_back(2_080)[..4], [2_080, 1_952, 1_832, 1_720]);
        assert_eq!(give_back(5_000)[..2], [5_000, 4_744]);
    }
}
