//! Memory that processes share, and text that cannot be changed: memfd_create(2), mmap(2).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate,
};
use rustix::mm::{MapFlags, ProtFlags};

/// Makes memory of `words` 64-bit words, all zero, to be mapped by several processes. Its size is
/// fixed, so no process can shrink a mapping of another.
pub fn shared(name: &str, words: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags)?;
    ftruncate(&fd, (words * size_of::<u64>()) as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Maps memory made by `shared` for the rest of this process's life, so users of the mapping need
/// not check that it still exists.
pub fn map(fd: impl AsFd) -> io::Result<&'static [AtomicU64]> {
    map_as(fd.as_fd(), ProtFlags::READ | ProtFlags::WRITE)
}

/// As [`map`], for a process that only loads: a store would end it.
pub fn map_to_read(fd: impl AsFd) -> io::Result<&'static [AtomicU64]> {
    map_as(fd.as_fd(), ProtFlags::READ)
}

/// Opens shared memory once more, so that the descriptor can be passed to a process that must not
/// write to it.
pub fn open_to_read(fd: impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn map_as(fd: BorrowedFd<'_>, protection: ProtFlags) -> io::Result<&'static [AtomicU64]> {
    let len = rustix::fs::fstat(fd)?.st_size as usize;
    if len < size_of::<u64>() || !fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) {
        return Err(io::Error::other("not the shared memory of quickack"));
    }
    // SAFETY: a new mapping at a place of the kernel's choice; it is never unmapped and its file,
    // sealed, never shrinks, so every word stays valid; any bits are a valid `AtomicU64`, and the
    // mapping is aligned to a page.
    unsafe {
        let start =
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0)?;
        // Most of the memory is never touched, and a core dump with all of it would take gigabytes.
        // If this call is refused, core dumps are large.
        let _ = rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxDontDump);
        Ok(std::slice::from_raw_parts(start.cast(), len / size_of::<u64>()))
    }
}

/// Makes a file with bytes that nobody can change any more, ready to be passed to other processes.
pub fn sealed(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create(name, flags)?);
    file.write_all(bytes)?;
    let fd = OwnedFd::from(file);
    fcntl_add_seals(&fd, ALL_SEALS)?;
    Ok(fd)
}

/// Returns the bytes given to `sealed`. Bytes that could still be changed are refused.
pub fn read_sealed(fd: OwnedFd) -> io::Result<Vec<u8>> {
    if !fcntl_get_seals(&fd)?.contains(ALL_SEALS) {
        return Err(io::Error::other("a text that is not sealed"));
    }
    let file = File::from(fd);
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    // Reads by offset: processes that were passed the same descriptor share its position.
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

const ALL_SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_are_the_same_memory() {
        let fd = shared("test", 1024).unwrap();
        let (one, other) = (map(&fd).unwrap(), map(&fd).unwrap());
        assert_eq!(one.len(), 1024);
        one[7].store(42, Ordering::Relaxed);
        assert_eq!(other[7].load(Ordering::Relaxed), 42);
        assert!(ftruncate(&fd, 8).is_err(), "its size is fixed");
    }

    #[test]
    fn a_reader_sees_what_is_written_and_cannot_map_it_to_write() {
        let fd = shared("test", 8).unwrap();
        let reading = open_to_read(&fd).unwrap();
        let (one, other) = (map(&fd).unwrap(), map_to_read(&reading).unwrap());
        one[7].store(42, Ordering::Relaxed);
        assert_eq!(other[7].load(Ordering::Relaxed), 42);
        assert!(map(&reading).is_err());
    }

    #[test]
    fn a_sealed_text_arrives_and_cannot_be_changed() {
        let fd = sealed("test", b"text").unwrap();
        assert!(rustix::io::write(&fd, b"more").is_err());
        assert_eq!(read_sealed(fd).unwrap(), b"text");
    }

    #[test]
    fn a_text_that_can_be_changed_is_refused() {
        let fd = shared("test", 1).unwrap();
        assert!(read_sealed(fd).is_err());
    }
}
