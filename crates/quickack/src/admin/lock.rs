//! A file that its proxy has locked, from its start to its end, whatever end that is: the owner of
//! the lock alone replaces and removes what the lock stands beside.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock};
use rustix::io::Errno;

use crate::error::Error;

/// The lock. The file is removed with it, unless it is another by then.
pub struct FileLock {
    fd: OwnedFd,
    path: PathBuf,
}

impl FileLock {
    /// Locks the file, which is made if it is not there; `taken` is the error if another process
    /// has it. A process must not take a lock that it has: the kernel would give up both with one.
    pub fn take(path: &Path, taken: &str) -> Result<FileLock, Error> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        loop {
            let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
            match fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive) {
                // Else whoever had it has just removed it.
                Ok(()) if is_file_at(&fd, path) => {
                    return Ok(FileLock { fd, path: path.to_path_buf() });
                }
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::ACCESS) => return Err(Error::Config(taken.into())),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether it is still the file that others find: somebody may have tidied up.
    pub fn is_there(&self) -> bool {
        is_file_at(&self.fd, &self.path)
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn is_file_at(fd: impl AsFd, path: &Path) -> bool {
    let Ok(ours) = rustix::fs::fstat(fd) else { return false };
    rustix::fs::lstat(path).is_ok_and(|it| (it.st_dev, it.st_ino) == (ours.st_dev, ours.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_lock_is_a_file_at_its_name_and_no_link_and_stays_with_this_process() {
        let folder = tempfile::tempdir().unwrap();
        let [path, link] = ["one.lock", "other.lock"].map(|name| folder.path().join(name));
        let lock = FileLock::take(&path, "").unwrap();
        assert!(rustix::io::fcntl_getfd(&lock.fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(lock.is_there());
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(FileLock::take(&link, "").is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(!lock.is_there());
        std::fs::write(&path, "").unwrap();
        assert!(!lock.is_there(), "another file by now");
        drop(lock);
        assert!(path.exists(), "it is not ours to remove");
    }
}
