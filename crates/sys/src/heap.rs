//! The allocator's heap: memory that was freed goes back to the system. The allocator is glibc's;
//! with another one nothing is done here.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Buffers of this length, with the 16 bytes that the allocator adds, are mapped by themselves. The
/// blocks that sockets are read into are that long (`proxy::limits::BLOCK`): in the heap, those
/// that are free between others would be of no use to a long buffer. Beyond 65,536 of them they lie
/// in the heap.
#[cfg(target_env = "gnu")]
const MAPPED_MIN: libc::c_int = 64 * 1024;

/// Where the heap began when this process did.
static START: AtomicUsize = AtomicUsize::new(0);

/// Makes the allocator return freed memory to the system: buffers from `MAPPED_MIN` on are mapped
/// one by one, and the free end of the heap is returned above a megabyte. By default it keeps tens
/// of megabytes once it has seen a few large buffers.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two numbers and is called before any thread exists.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1024 * 1024);
    }
    START.store(end(), Ordering::Relaxed);
}

/// Returns the length of the heap; 0 if it is not known.
pub fn len() -> usize {
    end().saturating_sub(START.load(Ordering::Relaxed))
}

/// Returns the address at which the heap ends.
fn end() -> usize {
    #[cfg(target_env = "gnu")]
    // SAFETY: this tells where the heap ends, and moves nothing.
    unsafe {
        libc::sbrk(0).addr()
    }
    #[cfg(not(target_env = "gnu"))]
    0
}

/// Returns all free pages of the heap to the system, by a walk through it. It takes 60 us for each
/// MiB, and whoever calls it does nothing else meanwhile.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A free piece of the heap whose pages the system has. While it is held, the next one is another.
pub struct Piece {
    _bytes: Vec<u8>,
}

/// Takes a free piece of the heap of this length, and returns its pages to the system. Returns None
/// if there is none.
pub fn take_piece(len: usize) -> Option<Piece> {
    let heap = START.load(Ordering::Relaxed)..end();
    let mut bytes: Vec<u8> = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    let start = bytes.as_mut_ptr();
    // Where no free piece is as long, this one is mapped by itself, or the heap was made longer.
    if start.addr() < heap.start || start.addr() + len > heap.end {
        return None;
    }
    let page = rustix::param::page_size();
    let skip = start.addr().next_multiple_of(page) - start.addr();
    let whole = len.saturating_sub(skip) / page * page;
    if whole > 0 {
        // SAFETY: the pages are wholly within `bytes`, of which nothing is initialised or referred
        // to. If the call is refused, the pages stay.
        let _ = unsafe {
            let first = start.add(skip).cast();
            rustix::mm::madvise(first, whole, rustix::mm::Advice::LinuxDontNeed)
        };
    }
    Some(Piece { _bytes: bytes })
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Returns the memory of this process in KiB.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
        number.and_then(|number| number.parse().ok()).expect("it is in KiB")
    }

    /// Takes pieces of a length until there are no more, and returns how many there were.
    fn take_all(len: usize, pieces: &mut Vec<Piece>) -> usize {
        let before = pieces.len();
        while let Some(piece) = take_piece(len) {
            pieces.push(piece);
            assert!(pieces.len() < 10_000, "there is no end of pieces");
        }
        pieces.len() - before
    }

    #[test]
    fn free_pieces_of_the_heap_lose_their_pages_and_what_is_used_keeps_its_bytes() {
        const ONE_HEAP: &str = "MALLOC_ARENA_MAX";
        if std::env::var_os(ONE_HEAP).is_none() {
            // Other threads than the first have heaps of their own otherwise.
            let name = "heap::tests::free_pieces_of_the_heap_lose_their_pages_and_what_is_used_\
                        keeps_its_bytes";
            let program = std::env::current_exe().expect("it has a file");
            let mut again = std::process::Command::new(program);
            let status = again.args(["--exact", name]).env(ONE_HEAP, "1").status();
            return assert!(status.expect("it starts").success());
        }
        give_memory_back();
        let blocks: Vec<_> = (0..2_000u32).map(|at| vec![at as u8; 32 * 1024]).collect();
        let full = resident();
        assert!(len() > 60 << 20, "they are in the heap");
        // Every two-hundredth stays.
        let kept: Vec<_> =
            blocks.into_iter().enumerate().filter(|(at, _)| at % 200 == 199).collect();
        let mut pieces = Vec::new();
        assert!(take_all(4 << 20, &mut pieces) >= 9);
        assert!(take_all(64 * 1024, &mut pieces) > 0);
        assert_eq!(take_all(64 * 1024, &mut pieces), 0);
        let fallen = full - resident();
        assert!(fallen > 50 * 1024, "{fallen} KiB of {full}");
        assert!(kept.iter().all(|(at, block)| block.iter().all(|byte| *byte == *at as u8)));
        // They can be used again.
        drop(pieces);
        let again: Vec<_> = (0..100u8).map(|at| vec![at; 64 * 1024]).collect();
        assert!(again.iter().zip(0..).all(|(block, at): (_, u8)| block.iter().all(|b| *b == at)));
    }
}
