//! The blocks that sockets are read into. If the service keeps a part of one, another takes its
//! place; it comes back as soon as the service lets go.

use std::rc::Rc;

use proxy::{Block, Spares};

/// The block that is read into, and those to come.
pub struct Blocks {
    current: Rc<Block>,
    spares: Rc<Spares>,
}

impl Blocks {
    pub fn new() -> Blocks {
        let spares = Rc::default();
        Blocks { current: Rc::new(Block::take(&spares)), spares }
    }

    /// A block that nobody holds, to be read into.
    pub fn writable(&mut self) -> &mut [u8] {
        if Rc::strong_count(&self.current) > 1 {
            self.current = Rc::new(Block::take(&self.spares));
        }
        Rc::get_mut(&mut self.current).expect("nobody else holds it")
    }

    /// Gives back a part of those that are too many. Nothing of them is used before the next turn.
    pub fn give_back(&self) {
        self.spares.give_back();
    }

    /// Whether the next turn is to begin at once, to give more back.
    pub fn has_surplus(&self) -> bool {
        self.spares.has_surplus()
    }

    /// The block that was last read into.
    pub fn current(&self) -> &Rc<Block> {
        &self.current
    }
}

/// Bytes of a block: what one read may bring.
pub const BLOCK: usize = proxy::limits::BLOCK;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_held_is_left_alone_and_comes_back_when_it_is_not() {
        let mut blocks = Blocks::new();
        let first = blocks.writable().as_ptr();
        assert_eq!(blocks.writable().as_ptr(), first, "nobody holds it");
        let held = Rc::clone(blocks.current());
        let second = blocks.writable().as_ptr();
        assert_ne!(second, first);
        let other = Rc::clone(blocks.current());
        drop(held);
        assert_eq!(blocks.writable().as_ptr(), first, "it is free again");
        assert_eq!(other.as_ptr(), second);
    }
}
