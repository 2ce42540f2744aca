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
//!
//! Root reads folders of other users. What lies there may be anything, put there to make root wait
//! or to answer for another's proxy: nothing is opened that could block, no folder gets more than a
//! second, and a folder has a say about a configuration only if [`may_speak_for`] says so.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{Flock, FlockType, fcntl_getlk, geteuid};

use super::lock::FileLock;
use crate::error::Error;

/// Our name, until this is dropped.
pub struct Entry {
    path: PathBuf,
    lock: FileLock,
}

impl Entry {
    /// Takes the name that follows from the configuration's path. What a proxy that was killed has
    /// left there is removed, unless it answers.
    pub fn claim(file: Option<&Path>) -> Result<Entry, Error> {
        let folder = own_folder();
        make(&folder)?;
        let path = folder.join(name(file));
        let taken = "another proxy is running with this configuration";
        let lock = FileLock::take(&lock_of(&path), taken);
        let lock = lock.map_err(|error| error.within(&path.display().to_string()))?;
        let entry = Entry { lock, path };
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
        self.lock.is_there()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // The lock goes after it: from then on the name is whoever's takes it.
        if self.is_ours() && self.path.is_symlink() {
            let _ = std::fs::remove_file(&self.path);
        }
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
        if file.is_some_and(|file| !may_speak_for(&folder, owner, file)) {
            continue;
        }
        let until = Instant::now() + PATIENCE;
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if Instant::now() >= until {
                break;
            }
            let path = entry.path();
            let is_wanted = match &wanted {
                Some(wanted) => **wanted == *entry.file_name(),
                None => path.extension().is_some_and(|it| it == "sock"),
            };
            if !is_wanted {
                continue;
            }
            // Several names may lead to one proxy.
            let socket = path.canonicalize().unwrap_or_else(|_| path.clone());
            if !sockets.contains(&socket)
                && let Some(stream) = answering(&path, owner, until)
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
    match folders.is_empty() {
        true => "no folder of this user".to_string(),
        false => folders.join(", "),
    }
}

/// A connection to the proxy behind a name, if one answers. It must be of the user whose folder it
/// is: a link may lead anywhere.
fn answering(path: &Path, owner: u32, until: Instant) -> Option<UnixStream> {
    if path.is_symlink() && !is_locked(&lock_of(path), owner) {
        // Its proxy has ended; the socket may be another's by now.
        return None;
    }
    let rest = until.saturating_duration_since(Instant::now());
    let stream = sys::connect::unix_within(path, rest).ok()?;
    (sys::listen::peer_user(&stream).ok()? == owner).then(|| stream.into())
}

/// Whether what is in the folder is believed to be a proxy of this configuration: root must not
/// take the word of any user for another's proxy. The folder is our own, or of the user whose the
/// file is, or it is one that root has made for a service: `RUNTIME_DIRECTORY`, `/run/quickack`
/// itself, or `/run/quickack/NAME` for the configuration `NAME.yml`.
fn may_speak_for(folder: &Path, owner: u32, file: &Path) -> bool {
    let services = Path::new(SERVICES);
    owner == geteuid().as_raw()
        || folder == services
        || service_folder().is_some_and(|ours| ours == folder)
        || std::fs::metadata(file).is_ok_and(|file| file.uid() == owner)
        || (folder.parent() == Some(services) && folder.file_name() == file.file_stem())
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
    let is_in_a_service = service_folder().is_some();
    folders.retain(|folder| {
        // A link is for systemd to make: as a service's folder, or as root.
        let is_link_of_others = std::fs::symlink_metadata(folder)
            .is_ok_and(|it| it.is_symlink() && it.uid() != 0 && !is_in_a_service);
        !is_link_of_others
            && std::fs::metadata(folder).is_ok_and(|it| {
                let is_open = it.mode() & OF_OTHERS != 0;
                it.is_dir() && !is_open && (it.uid() == user.as_raw() || user.is_root())
            })
    });
    folders.sort();
    folders.dedup();
    folders
}

/// Makes a folder in which nobody else may put anything, or finds it.
fn make(folder: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // A link is for systemd to make.
    let metadata = match service_folder() {
        Some(_) => std::fs::metadata(folder)?,
        None => std::fs::symlink_metadata(folder)?,
    };
    let ours = geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != ours || metadata.mode() & OF_OTHERS != 0 {
        return Err(Error::Config(format!(
            "{} is not a private folder of this user; set `admin: /path/of/socket` in the file",
            folder.display()
        )));
    }
    Ok(())
}

/// Whether somebody holds the lock: the one that runs. The folder is its owner's, and the file may
/// be a pipe, a device, or a link to one.
fn is_locked(path: &Path, owner: u32) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(fd) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    let is_theirs = rustix::fs::fstat(&fd).is_ok_and(|it| {
        FileType::from_raw_mode(it.st_mode) == FileType::RegularFile && it.st_uid == owner
    });
    is_theirs && matches!(fcntl_getlk(fd, &Flock::from(FlockType::ReadLock)), Ok(Some(_)))
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
/// How long one folder's names may keep who asks from the others'.
const PATIENCE: Duration = Duration::from_secs(1);
/// A socket's path is short.
const STEM_LEN_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_that_others_may_write_to_is_not_one_for_names() {
        let folder = tempfile::tempdir().unwrap();
        let ours = folder.path().join("ours");
        assert!(make(&ours).is_ok() && make(&ours).is_ok(), "made, and found");
        std::fs::set_permissions(&ours, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(make(&ours).is_err());
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(make(&file).is_err());
        assert!(!is_locked(&file, geteuid().as_raw()), "nobody holds it");
    }

    #[test]
    fn files_of_one_name_have_sockets_of_their_own() {
        let one = name(Some(Path::new("/etc/one/quickack.yml")));
        let other = name(Some(Path::new("/etc/other/quickack.yml")));
        assert!(one.starts_with("quickack-") && one.ends_with(".sock") && one != other);
        assert!(name(Some(Path::new(&"x".repeat(300)))).len() < 50);
        assert_eq!(name(None), "quickack.sock");
        assert_eq!(lock_of(Path::new("/run/quickack.sock")), Path::new("/run/quickack.lock"));
    }

    #[test]
    fn a_folder_is_believed_about_its_users_files_and_about_its_own_service() {
        const NOBODY: u32 = 65534;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("alpha.yml");
        std::fs::write(&file, "").unwrap();
        let speaks = |folder: &str, owner| may_speak_for(Path::new(folder), owner, &file);
        assert!(speaks("/home/names", geteuid().as_raw()), "our own");
        assert!(speaks("/run/quickack", NOBODY) && speaks("/run/quickack/alpha", NOBODY));
        for folder in ["/home/names", "/run/quickack/beta", "/run/alpha", "/run"] {
            assert!(!speaks(folder, NOBODY), "{folder}");
        }
        // Root may give a file away; the others find one of root's.
        let (file, owner) = match geteuid().is_root() {
            true => {
                std::os::unix::fs::chown(&file, Some(NOBODY), None).unwrap();
                (file.as_path(), NOBODY)
            }
            false => (Path::new("/etc/passwd"), 0),
        };
        assert!(may_speak_for(Path::new("/home/names"), owner, file));
    }

    #[test]
    fn a_socket_answers_for_the_user_of_its_folder_and_a_link_for_a_proxy_that_lives() {
        let folder = tempfile::tempdir().unwrap();
        let [socket, link] = ["one.sock", "other.sock"].map(|name| folder.path().join(name));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let (ours, until) = (geteuid().as_raw(), Instant::now() + 60 * PATIENCE);
        assert!(answering(&socket, ours, until).is_some());
        assert!(answering(&socket, ours + 1, until).is_none());
        assert!(answering(&link, ours, until).is_none(), "nobody holds its lock");
    }

    #[test]
    fn a_name_is_removed_by_the_owner_of_its_lock_and_by_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        for is_ours in [true, false] {
            let path = folder.path().join(format!("{is_ours}.sock"));
            let entry =
                Entry { lock: FileLock::take(&lock_of(&path), "").unwrap(), path: path.clone() };
            // A socket that a run left there, then a link; the first one stays.
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            for place in ["/first", "/second"] {
                entry.point_to(Path::new(place)).unwrap();
            }
            assert_eq!(std::fs::read_link(&path).unwrap(), Path::new("/first"));
            if !is_ours {
                std::fs::remove_file(lock_of(&path)).unwrap();
                std::fs::write(lock_of(&path), "").unwrap();
            }
            assert_eq!(entry.is_ours(), is_ours);
            drop(entry);
            assert_eq!((path.is_symlink(), lock_of(&path).exists()), (!is_ours, !is_ours));
        }
        // An entry that is no link is not the name's to remove.
        let path = folder.path().join("socket.sock");
        std::fs::write(&path, "").unwrap();
        drop(Entry { lock: FileLock::take(&lock_of(&path), "").unwrap(), path: path.clone() });
        assert!(path.exists() && !lock_of(&path).exists());
    }
}
