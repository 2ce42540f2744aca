//! The names by which running proxies are found: in a folder each has one, which follows from its
//! configuration's path. It is the admin socket itself, or a link to it where the file says
//! `admin: /path`.
//!
//! ```text
//!   quickack-1a2b3c4d.sock    the socket, or a link to it
//!   quickack-1a2b3c4d.lock    locked while its proxy lives: the kernel unlocks it at any end
//! ```
//!
//! Whether a proxy is there is never judged by what this process sees of its socket: in another
//! mount namespace a link leads nowhere. A name is replaced and removed by the owner of its lock
//! only.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Flock, FlockType, fcntl_getlk, geteuid};

/// Our name, until this is dropped.
pub struct Entry {
    path: PathBuf,
    lock: OwnedFd,
}

impl Entry {
    /// Takes the name that follows from the configuration's path. What a proxy that was killed has
    /// left there is removed, unless it answers.
    pub fn claim(file: Option<&Path>) -> io::Result<Entry> {
        let folder = own_folder();
        make(&folder)?;
        let path = folder.join(name(file));
        let entry = Entry { lock: lock(&lock_of(&path))?, path };
        if entry.path.is_symlink() {
            std::fs::remove_file(&entry.path)?;
        }
        Ok(entry)
    }

    /// Where our admin socket belongs, if the configuration names no place.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leads whoever looks here to where the socket really is: a file that cannot be read any more
    /// does not say so itself.
    pub fn point_to(&self, socket: &Path) -> io::Result<()> {
        if self.path.is_symlink() {
            return Ok(());
        }
        // A socket of a run in which the file named no place.
        let _ = sys::listen::remove_unix(&self.path);
        std::os::unix::fs::symlink(socket, &self.path)
    }

    /// Whether the lock is still the one that others find: somebody may have tidied up.
    pub fn is_ours(&self) -> bool {
        is_file_at(&self.lock, &lock_of(&self.path))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        if self.path.is_symlink() {
            let _ = std::fs::remove_file(&self.path);
        }
        // Last: from now on the name is whoever's takes it.
        let _ = std::fs::remove_file(lock_of(&self.path));
    }
}

/// A proxy that answers, and a conversation with it that has not begun.
pub struct Found {
    pub path: PathBuf,
    pub stream: UnixStream,
}

/// The proxies that answer, of all or of one configuration.
pub fn find(file: Option<&Path>) -> Vec<Found> {
    let wanted = file.map(|file| name(Some(file)));
    let mut found: Vec<Found> = Vec::new();
    let mut sockets = Vec::new();
    for folder in folders() {
        let Ok(owner) = std::fs::metadata(&folder).map(|metadata| metadata.uid()) else { continue };
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if wanted.as_ref().is_some_and(|wanted| **wanted != *entry.file_name()) {
                continue;
            }
            // Several names may lead to one proxy.
            let socket = path.canonicalize().unwrap_or_else(|_| path.clone());
            if !sockets.contains(&socket)
                && let Some(stream) = answering(&path, owner)
            {
                sockets.push(socket);
                found.push(Found { path, stream });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// Where proxies are looked for, in words.
pub fn places() -> String {
    let folders: Vec<String> = folders().iter().map(|it| it.display().to_string()).collect();
    folders.join(", ")
}

/// A connection to the proxy behind a name, if one answers. It must be of the user whose folder it
/// is: a link may lead anywhere.
fn answering(path: &Path, owner: u32) -> Option<UnixStream> {
    if path.is_symlink() && !is_locked(&lock_of(path)) {
        // Its proxy has ended; the socket may be another's by now.
        return None;
    }
    let stream = UnixStream::connect(path).ok()?;
    let peer = socket_peercred(&stream).ok()?;
    (peer.uid.as_raw() == owner).then_some(stream)
}

/// Where we are found: what systemd made for the service, or a folder of the user's.
fn own_folder() -> PathBuf {
    let user = geteuid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match service_folder() {
        Some(folder) => folder,
        None if user.is_root() => PathBuf::from(SERVICES),
        None => match runtime.filter(|path| path.is_absolute()) {
            Some(runtime) => runtime.join("quickack"),
            None => std::env::temp_dir().join(format!("quickack-{}", user.as_raw())),
        },
    }
}

/// `RuntimeDirectory=` of the service that we are a part of; the first of several.
fn service_folder() -> Option<PathBuf> {
    let folders = std::env::var_os("RUNTIME_DIRECTORY")?;
    std::env::split_paths(&folders).find(|path| path.is_absolute())
}

/// Where whoever asks looks: in the own folder, and outside of a service for services too, of
/// which each has a folder of its own user's.
fn folders() -> Vec<PathBuf> {
    let mut folders = vec![own_folder()];
    if service_folder().is_none() {
        let services = Path::new(SERVICES);
        folders.push(services.to_path_buf());
        // In a folder that is not root's, who knows what leads where.
        if std::fs::metadata(services).is_ok_and(|metadata| metadata.uid() == 0) {
            let below = std::fs::read_dir(services).into_iter().flatten().flatten();
            folders.extend(below.map(|entry| entry.path()));
        }
    }
    let user = geteuid();
    folders.retain(|folder| {
        std::fs::metadata(folder).is_ok_and(|it| {
            let is_open = it.mode() & OF_OTHERS != 0;
            it.is_dir() && !is_open && (it.uid() == user.as_raw() || user.is_root())
        })
    });
    folders.sort();
    folders.dedup();
    folders
}

/// Makes a folder in which nobody else may put anything, or finds it.
fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // A link is for systemd to make.
    let metadata = match service_folder() {
        Some(_) => std::fs::metadata(folder)?,
        None => std::fs::symlink_metadata(folder)?,
    };
    let ours = geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != ours || metadata.mode() & OF_OTHERS != 0 {
        return Err(io::Error::other(format!(
            "{} is not a folder of ours alone; say `admin: /path/of/socket` in the file",
            folder.display()
        )));
    }
    Ok(())
}

/// Locks the file of this name, for as long as the descriptor is open.
fn lock(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
        match fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive) {
            // Else whoever had it has just removed it.
            Ok(()) if is_file_at(&fd, path) => return Ok(fd),
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => {
                return Err(io::Error::other("another proxy runs with this configuration"));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether somebody holds the lock: the one that runs.
fn is_locked(path: &Path) -> bool {
    let Ok(fd) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    matches!(fcntl_getlk(fd, &Flock::from(FlockType::ReadLock)), Ok(Some(_)))
}

fn is_file_at(fd: impl AsFd, path: &Path) -> bool {
    let Ok(ours) = rustix::fs::fstat(fd) else { return false };
    rustix::fs::lstat(path).is_ok_and(|it| (it.st_dev, it.st_ino) == (ours.st_dev, ours.st_ino))
}

fn lock_of(path: &Path) -> PathBuf {
    path.with_extension("lock")
}

/// The file's name, for people, and a hash of its whole path: files of one name are told apart.
fn name(file: Option<&Path>) -> String {
    let Some(file) = file else { return "quickack.sock".to_string() };
    // Through links, as long as it is there.
    let file = file.canonicalize().or_else(|_| std::path::absolute(file));
    let file = file.unwrap_or_default();
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let stem: String = stem.chars().take(STEM_LEN_MAX).collect();
    let hash = shard::Hash::Fnv64a.hash(file.as_os_str().as_encoded_bytes());
    format!("{stem}-{hash:08x}.sock")
}

/// Root's folder, in which services have theirs; it may itself be the only service's.
const SERVICES: &str = "/run/quickack";
/// Writing, for the group and everybody.
const OF_OTHERS: u32 = 0o022;
/// A socket's path is short.
const STEM_LEN_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_have_sockets_of_their_own() {
        let one = name(Some(Path::new("/etc/one/quickack.yml")));
        let other = name(Some(Path::new("/etc/other/quickack.yml")));
        assert!(one.starts_with("quickack-") && one.ends_with(".sock") && one != other);
        assert!(name(Some(Path::new(&"x".repeat(300)))).len() < 50);
    }
}
