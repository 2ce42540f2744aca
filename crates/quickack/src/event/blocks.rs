//! The blocks that sockets are read into. If the service keeps a part of one, it is set aside until
//! it lets go; the next free one takes its place. In the steady state nothing is allocated.

use std::rc::Rc;

/// A pool of blocks.
pub struct Blocks {
    current: Rc<Vec<u8>>,
    aside: Vec<Rc<Vec<u8>>>,
}

impl Blocks {
    pub fn new() -> Blocks {
        Blocks { current: Rc::new(vec![0; BLOCK]), aside: Vec::new() }
    }

    /// A block that nobody holds, to be read into.
    pub fn writable(&mut self) -> &mut [u8] {
        if Rc::strong_count(&self.current) > 1 {
            let free = self.aside.iter().position(|block| Rc::strong_count(block) == 1);
            let next = match free {
                Some(at) => self.aside.swap_remove(at),
                None => Rc::new(vec![0; BLOCK]),
            };
            let kept = std::mem::replace(&mut self.current, next);
            if self.aside.len() < ASIDE_MAX {
                self.aside.push(kept);
            }
        }
        Rc::get_mut(&mut self.current).expect("it was chosen because nobody holds it")
    }

    /// The block that was last read into.
    pub fn current(&self) -> &Rc<Vec<u8>> {
        &self.current
    }
}

/// Bytes of a block: what one read may bring.
pub const BLOCK: usize = proxy::limits::BLOCK;
/// Blocks remembered while others hold them; any more are freed by their last holder.
const ASIDE_MAX: usize = 16;

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
        drop(held);
        let held = Rc::clone(blocks.current());
        assert_eq!(blocks.writable().as_ptr(), first, "it is free again");
        drop(held);
        let held: Vec<_> = (0..20)
            .map(|_| {
                blocks.writable()[0] = 1;
                Rc::clone(blocks.current())
            })
            .collect();
        assert_eq!(blocks.aside.len(), ASIDE_MAX);
        assert!(held.iter().enumerate().all(|(at, one)| {
            held[..at].iter().all(|other| !Rc::ptr_eq(one, other)) && one.len() == BLOCK
        }));
    }
}
