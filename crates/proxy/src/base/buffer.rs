//! Bytes to be sent. Small pieces are copied into one buffer (cheaper than an iovec each); large
//! ones are kept by reference to the block in which they arrived.
//!
//! ```text
//!   bytes   [ head | head | END ]          copied, in order
//!                  ^at    ^at
//!   shared        [block]  [block]         each goes out before bytes[at..]
//! ```

use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

use super::block::Block;
use super::limits;

/// A part of a block that a read has filled. A slice keeps its block alive.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    block: Rc<Block>,
    start: usize,
    end: usize,
}

impl Slice {
    pub(crate) fn new(block: &Rc<Block>, start: usize, end: usize) -> Slice {
        assert!(start <= end && end <= block.len());
        Slice { block: Rc::clone(block), start, end }
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    fn bytes(&self) -> &[u8] {
        &self.block[self.start..self.end]
    }

    /// Whether the account has its block by itself (`Memory::keep_block`): a weak reference is kept
    /// there. Its bytes are not counted once more where it lies.
    fn is_accounted(&self) -> bool {
        Rc::weak_count(&self.block) > 0
    }
}

/// The place of bytes that the proxy was given: a plain slice, or a part of a block that may be
/// kept.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) bytes: &'a [u8],
    /// The block, and the offset of `bytes` in it.
    block: Option<(&'a Rc<Block>, usize)>,
}

impl<'a> Source<'a> {
    pub(crate) fn block(block: &'a Rc<Block>, len: usize) -> Source<'a> {
        Source { bytes: &block[..len], block: Some((block, 0)) }
    }

    pub(crate) fn plain(bytes: &'a [u8]) -> Source<'a> {
        Source { bytes, block: None }
    }

    /// Returns how many of the bytes belong to something of which so many are still to come.
    pub(crate) fn len_within(self, left: u64) -> usize {
        self.bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Returns it as a part of its block, if it is worth a reference.
    pub(crate) fn slice(self) -> Option<Slice> {
        let (block, at) = self.block.filter(|_| self.bytes.len() >= limits::REFERENCE_MIN)?;
        Some(Slice::new(block, at, at + self.bytes.len()))
    }

    pub(crate) fn part(self, start: usize, end: usize) -> Source<'a> {
        let block = self.block.map(|(block, at)| (block, at + start));
        Source { bytes: &self.bytes[start..end], block }
    }
}

/// Whether `bytes` end with a frame's trailer. Nearly always there is no trailer, and nothing is
/// compared. An empty slice points at no memory, and glibc's `memcmp` for AVX-512 loads from there
/// under a mask, which costs some processors a tenth of a microsecond.
pub(crate) fn has_trailer(bytes: &[u8], trailer: &[u8]) -> bool {
    trailer.is_empty() || bytes.ends_with(trailer)
}

/// The longest trailer of any protocol.
const TRAILER_MAX: usize = 8;

/// The last bytes of a stream, which are all that a trailer needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End([u8; TRAILER_MAX]);

impl End {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let last = &bytes[bytes.len().saturating_sub(TRAILER_MAX)..];
        self.0.copy_within(last.len().., 0);
        self.0[TRAILER_MAX - last.len()..].copy_from_slice(last);
    }

    /// Whether the stream ends with `trailer`.
    pub(crate) fn is(self, trailer: &[u8]) -> bool {
        assert!(trailer.len() <= TRAILER_MAX, "no protocol has a longer trailer");
        self.0.ends_with(trailer)
    }
}

/// A queue of bytes, copied and shared.
#[derive(Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// The number of bytes at the front of `bytes` that have been sent.
    gone: usize,
    shared: VecDeque<Shared>,
    /// The sum of the lengths of `shared`.
    shared_len: usize,
    /// The part of it whose blocks the account has by themselves.
    accounted_len: usize,
}

struct Shared {
    at: usize,
    slice: Slice,
}

impl Outbox {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.gone + self.shared_len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that it holds: those to be sent, and the rest of the blocks that it keeps.
    /// `keep` bounds that rest; slices that leave soon may share a block, and count for less than
    /// they seem to. Bytes whose blocks the account has by themselves are not counted.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        if self.shared.is_empty() {
            return self.len();
        }
        if self.accounted_len > 0 {
            return self.len() - self.accounted_len;
        }
        let blocks = self.shared.len() * limits::BLOCK;
        let rest = blocks.saturating_sub(self.shared_len + limits::BLOCK);
        self.len() + rest.min(self.shared_len / 8)
    }

    /// Returns the buffer for copied bytes. Only append to it.
    pub(crate) fn copied(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Drops everything; returns the buffer of the copied bytes.
    pub(crate) fn take_copied(&mut self) -> Vec<u8> {
        let buffer = std::mem::take(&mut self.bytes);
        self.clear();
        buffer
    }

    /// Gives an empty outbox a buffer from `spares`, since an idle connection holds none.
    #[inline]
    pub(crate) fn open(&mut self, spares: &mut Spares) {
        if self.bytes.capacity() == 0 {
            self.bytes = spares.take();
        }
    }

    /// Appends by copy.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends bytes that leave soon: by reference where that is cheaper, and otherwise by copy.
    /// Behind a long backlog, bytes do not leave soon.
    pub(crate) fn push(&mut self, source: Source<'_>) {
        if self.len() >= limits::BACKLOG_MIN {
            return self.keep(source);
        }
        self.push_above(limits::REFERENCE_MIN, source);
    }

    /// Appends bytes that may have to wait: by reference only if they fill much of their block, so
    /// that the memory pinned stays near the memory counted.
    pub(crate) fn keep(&mut self, source: Source<'_>) {
        let pinned = (self.shared.len() + 1) * limits::BLOCK;
        let held = self.shared_len + source.bytes.len();
        let is_near = pinned <= held + held / 8 + limits::BLOCK;
        self.push_above(if is_near { limits::KEEP_REFERENCE_MIN } else { usize::MAX }, source);
    }

    fn push_above(&mut self, reference_min: usize, source: Source<'_>) {
        match source.block {
            Some((block, at)) if source.bytes.len() >= reference_min => {
                self.share(self.bytes.len(), Slice::new(block, at, at + source.bytes.len()));
            }
            _ => self.bytes.extend_from_slice(source.bytes),
        }
    }

    /// Puts a slice among the copied bytes, behind all slices.
    fn share(&mut self, at: usize, slice: Slice) {
        self.shared_len += slice.len();
        if slice.is_accounted() {
            self.accounted_len += slice.len();
        }
        self.shared.push_back(Shared { at, slice });
    }

    /// Puts slices among the last `len` copied bytes, each at its offset in these.
    pub(crate) fn insert(&mut self, len: usize, slices: impl Iterator<Item = (usize, Slice)>) {
        let start = self.bytes.len() - len;
        slices.for_each(|(at, slice)| self.share(start + at, slice));
    }

    /// Moves everything from `other` to the end.
    pub(crate) fn append(&mut self, other: &mut Outbox) {
        if other.is_empty() {
            return;
        }
        if other.bytes.len() - other.gone >= limits::KEEP_REFERENCE_MIN {
            return self.take_over(other);
        }
        let mut from = other.gone;
        for shared in other.shared.drain(..) {
            self.bytes.extend_from_slice(&other.bytes[from..shared.at]);
            from = shared.at;
            self.shared.push_back(Shared { at: self.bytes.len(), slice: shared.slice });
        }
        self.bytes.extend_from_slice(&other.bytes[from..]);
        self.shared_len += std::mem::take(&mut other.shared_len);
        self.accounted_len += std::mem::take(&mut other.accounted_len);
        other.clear();
    }

    /// As `append`, without copying: the other's copied bytes become a block of their own.
    fn take_over(&mut self, other: &mut Outbox) {
        let block = Rc::new(Block::from(std::mem::take(&mut other.bytes)));
        let mut from = other.gone;
        let end = Some(block.len());
        let shared = std::mem::take(&mut other.shared);
        let pieces = shared.into_iter().map(|shared| (shared.at, Some(shared.slice)));
        for (to, slice) in pieces.chain(end.map(|end| (end, None))) {
            let own = (to > from).then(|| Slice::new(&block, from, to));
            own.into_iter().chain(slice).for_each(|slice| self.share(self.bytes.len(), slice));
            from = to;
        }
        (other.gone, other.shared_len, other.accounted_len) = (0, 0, 0);
    }

    /// Collects the bytes to write, in order, in as many slices as one call may hold.
    pub(crate) fn slices<'a>(&'a self, out: &mut Slices<'a>) {
        self.slices_within(usize::MAX, out);
    }

    /// As `slices`, for the first `max` bytes at most.
    pub(crate) fn slices_within<'a>(&'a self, max: usize, out: &mut Slices<'a>) {
        let mut left = max;
        let mut push = |bytes: &'a [u8]| {
            let bytes = &bytes[..bytes.len().min(left)];
            left -= bytes.len();
            if !bytes.is_empty() {
                out.push(bytes);
            }
        };
        let mut from = self.gone;
        for shared in self.shared.iter().take(SHARED_MAX) {
            push(&self.bytes[from..shared.at]);
            from = shared.at;
            push(shared.slice.bytes());
        }
        let to = self.shared.get(SHARED_MAX).map_or(self.bytes.len(), |next| next.at);
        push(&self.bytes[from..to]);
    }

    /// Removes the first `n` bytes, which have been sent.
    pub(crate) fn advance(&mut self, mut n: usize) {
        assert!(n <= self.len(), "more went than was there");
        while let Some(shared) = self.shared.front_mut() {
            let copied = (shared.at - self.gone).min(n);
            self.gone += copied;
            n -= copied;
            if n == 0 && shared.at > self.gone {
                return;
            }
            let gone = n.min(shared.slice.end - shared.slice.start);
            shared.slice.start += gone;
            self.shared_len -= gone;
            if shared.slice.is_accounted() {
                self.accounted_len -= gone;
            }
            n -= gone;
            if shared.slice.start < shared.slice.end {
                return;
            }
            self.shared.pop_front();
        }
        self.gone += n;
        self.tidy();
    }

    /// Removes these ranges of offsets, which are in ascending order: bytes that will not be sent
    /// after all.
    pub(crate) fn cut(&mut self, parts: &[(usize, usize)]) {
        let mut flat = Vec::with_capacity(self.len());
        let mut rest = std::mem::take(self);
        while !rest.is_empty() {
            let before = flat.len();
            let mut slices = Slices::default();
            rest.slices(&mut slices);
            slices.iter().for_each(|slice| flat.extend_from_slice(slice));
            rest.advance(flat.len() - before);
        }
        let mut at = 0;
        for (start, end) in parts {
            self.bytes.extend_from_slice(&flat[at..*start]);
            at = *end;
        }
        match at {
            0 => self.bytes = flat,
            at => self.bytes.extend_from_slice(&flat[at..]),
        }
    }

    /// Copies the bytes held by reference if they pin far more than they hold. For slow readers.
    pub(crate) fn settle(&mut self) {
        let (held, pinned) = (self.shared_len, self.shared.len() * limits::BLOCK);
        let small = held < self.shared.len() * limits::KEEP_REFERENCE_MIN;
        // Slices of a block that is accounted by itself may be small.
        if self.accounted_len > 0 {
            return;
        }
        if small || pinned > held + held / 4 + limits::BLOCK {
            self.cut(&[]);
        }
    }

    /// Moves everything to `out`.
    pub(crate) fn drain_into(&mut self, out: &mut Vec<u8>) {
        while !self.is_empty() {
            let before = out.len();
            let mut slices = Slices::default();
            self.slices(&mut slices);
            slices.iter().for_each(|slice| out.extend_from_slice(slice));
            self.advance(out.len() - before);
        }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.gone = 0;
        if !self.shared.is_empty() {
            self.clear_shared();
        }
    }

    #[cold]
    fn clear_shared(&mut self) {
        self.shared.clear();
        (self.shared_len, self.accounted_len) = (0, 0);
    }

    /// Returns the buffer to `spares` when nothing is left in it.
    pub(crate) fn close(&mut self, spares: &mut Spares) {
        if self.is_empty() {
            self.clear();
            spares.give(std::mem::take(&mut self.bytes));
        }
    }

    /// Drops the sent part when it is most of the buffer, so that a slow reader's buffer does not
    /// grow with all bytes it ever got. No shared block is left by then.
    fn tidy(&mut self) {
        if self.gone == self.bytes.len() {
            self.bytes.clear();
            self.gone = 0;
        } else if self.gone > limits::BUFFER_KEEP_MAX && self.gone > self.bytes.len() / 2 {
            self.bytes.drain(..self.gone);
            self.gone = 0;
        }
    }
}

/// Empty buffers kept for reuse, so that the steady state allocates nothing.
#[derive(Default)]
pub(crate) struct Spares {
    buffers: Vec<Vec<u8>>,
    /// Their total capacity.
    bytes: usize,
}

impl Spares {
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Frees the buffers beyond those needed lately, after some time.
    pub(crate) fn rest(&mut self) {
        while self.bytes > limits::SPARES_REST_MAX
            && let Some(buffer) = self.buffers.pop()
        {
            self.bytes -= buffer.capacity();
        }
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let fits = (1..=limits::BUFFER_KEEP_MAX).contains(&capacity);
        if fits && self.bytes + capacity <= limits::SPARES_BYTES_MAX {
            buffer.clear();
            self.bytes += capacity;
            self.buffers.push(buffer);
        }
    }
}

/// The slices of one write, in order.
pub struct Slices<'a> {
    list: [IoSlice<'a>; SLICES_MAX],
    len: usize,
}

impl<'a> Slices<'a> {
    /// Adds a slice; there are at most `SLICES_MAX`.
    pub fn push(&mut self, bytes: &'a [u8]) {
        self.list[self.len] = IoSlice::new(bytes);
        self.len += 1;
    }
}

impl Default for Slices<'_> {
    fn default() -> Self {
        Slices { list: [IoSlice::new(&[]); SLICES_MAX], len: 0 }
    }
}

impl<'a> std::ops::Deref for Slices<'a> {
    type Target = [IoSlice<'a>];
    fn deref(&self) -> &[IoSlice<'a>] {
        &self.list[..self.len]
    }
}

/// The most large values in one write.
const SHARED_MAX: usize = 16;
/// The most slices in one write: a copied one may stand before each large value and after the last.
const SLICES_MAX: usize = 2 * SHARED_MAX + 1;

#[cfg(test)]
mod tests;
