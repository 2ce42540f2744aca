//! The listening sockets. The master makes and keeps all of them, so that what waits in a queue
//! is served whatever becomes of a worker; workers are passed copies.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::config::{AcceptMode, Address, Config, Listener};
use crate::error::Error;
use crate::ipc::installation::ListenerEntry;

/// The sockets that are open now.
#[derive(Default)]
pub struct Listeners {
    open: Vec<Open>,
    next_id: u32,
}

/// One listening socket.
pub struct Open {
    pub id: u32,
    /// The key that finds it again after a reload.
    key: String,
    /// Where it is bound, for people.
    pub bound: String,
    /// The file of a unix socket.
    file: Option<SocketFile>,
    pub fd: Rc<OwnedFd>,
    /// Of several with one address, which.
    share: usize,
}

/// A listener that the configuration wants.
struct Wanted<'c> {
    listener: &'c Listener,
    key: String,
    /// Its address, as it was looked up.
    found: Option<&'c str>,
    /// Several sockets with its address.
    reuse: bool,
}

impl Listeners {
    /// Opens what `config` needs and is not open; says which socket is whose. On an error, what
    /// was opened is closed again.
    pub fn open(
        &mut self,
        config: &Config,
        addresses: &BTreeMap<String, String>,
        mode: AcceptMode,
    ) -> Result<Vec<ListenerEntry>, Error> {
        let before = self.next_id;
        let workers = config.process.worker_count();
        let mut entries = Vec::new();
        for listener in &config.listeners {
            let is_tcp = matches!(listener.address, Address::Tcp { .. });
            let is_shared = mode == AcceptMode::Reuseport && is_tcp;
            let key = key(config, listener);
            let found = addresses.get(&listener.address.to_string()).map(String::as_str);
            let wanted = Wanted { listener, key, found, reuse: is_shared || listener.reuseport };
            // A socket for each worker. The others look after those of workers that have gone for
            // good: if such a socket were closed, the clients in its queue would be reset.
            let there = self.open.iter().filter(|open| open.key == wanted.key).count();
            let shares = if is_shared { workers.max(there) } else { 1 };
            for share in 0..shares {
                let opened = self.find_or_open(&wanted, share);
                let id = opened.inspect_err(|_| self.open.retain(|open| open.id <= before))?;
                let slot = is_shared.then_some(share % workers);
                entries.push(ListenerEntry { id, pool: listener.pool, slot });
            }
        }
        Ok(entries)
    }

    fn find_or_open(&mut self, wanted: &Wanted<'_>, share: usize) -> Result<u32, Error> {
        let of_address = |open: &&Open| open.key == wanted.key && !open.is_gone();
        if let Some(open) = self.open.iter().filter(of_address).find(|open| open.share == share) {
            return Ok(open.id);
        }
        let first = self.open.iter().find(of_address).map(|open| open.bound.as_str());
        let Bound { fd, at, file } = bind(wanted, first).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => "; something else is bound there",
                io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege",
                _ => "",
            };
            Error::Os(format!("cannot listen on {}: {error}{hint}", wanted.listener.address))
        })?;
        self.next_id += 1;
        let (id, key) = (self.next_id, wanted.key.clone());
        self.open.push(Open { id, key, bound: at, fd: Rc::new(fd), share, file });
        Ok(id)
    }

    /// Lets clients in: from now on clients that connect wait for a worker. Before this none could,
    /// so that none is reset if the configuration never holds.
    pub fn start(&self, config: &Config, entries: &[ListenerEntry]) -> Result<(), Error> {
        for entry in entries {
            let listener = &config.listeners[entry.pool];
            let set_up = || {
                if let Address::Unix { path, mode: Some(mode) } = &listener.address {
                    sys::listen::set_mode(path, *mode)?;
                }
                sys::listen::listen(&self.find(entry.id).fd, listener.backlog)
            };
            set_up().map_err(Error::os(format!("cannot listen on {}", listener.address)))?;
        }
        Ok(())
    }

    /// The files of unix sockets that somebody has removed: nobody can connect to those any more.
    pub fn gone(&self) -> impl Iterator<Item = &Path> {
        let gone = self.open.iter().filter(|open| open.is_gone());
        gone.filter_map(|open| Some(open.file.as_ref()?.path.as_path()))
    }

    /// The files of unix sockets at whose paths others are by now, put there by somebody who knows
    /// what they are doing, or not: they are never removed.
    pub fn replaced(&self) -> impl Iterator<Item = &Path> {
        let files = self.open.iter().filter_map(|open| open.file.as_ref());
        let replaced = files.filter(|file| inode_of(&file.path).is_ok_and(|now| now != file.inode));
        replaced.map(|file| file.path.as_path())
    }

    /// Closes every socket that is not among `entries`.
    pub fn keep(&mut self, entries: &[ListenerEntry]) {
        self.open.retain(|open| entries.iter().any(|entry| entry.id == open.id));
    }

    /// Closes all; nobody is taken any more.
    pub fn close_all(&mut self) {
        self.open.clear();
    }

    /// The file of a unix socket, with its inode.
    pub fn socket_of(&self, id: u32) -> Option<(PathBuf, u64)> {
        let file = self.find(id).file.as_ref()?;
        Some((file.path.clone(), file.inode))
    }

    pub fn find(&self, id: u32) -> &Open {
        let found = self.open.iter().find(|open| open.id == id);
        found.expect("an entry names an open listener")
    }
}

impl Open {
    /// Whether its file was removed.
    fn is_gone(&self) -> bool {
        let gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        self.file.as_ref().is_some_and(|file| inode_of(&file.path).is_err_and(gone))
    }
}

/// The address as the configuration writes it. Port 0 is any free one, and a pool's own.
fn key(config: &Config, listener: &Listener) -> String {
    match &listener.address {
        address @ Address::Tcp { port: 0, .. } => {
            format!("{address} of {}", config.plan.pools[listener.pool].name)
        }
        Address::Unix { path, mode: _ } => path.display().to_string(),
        address @ Address::Tcp { .. } => address.to_string(),
    }
}

/// A new listening socket, where it is, and its file if it has one.
struct Bound {
    fd: OwnedFd,
    at: String,
    file: Option<SocketFile>,
}

/// `first`: the address to which another socket of this listener is bound; port 0 means any free
/// one only once.
fn bind(wanted: &Wanted<'_>, first: Option<&str>) -> io::Result<Bound> {
    match &wanted.listener.address {
        Address::Unix { path, mode } => {
            let fd = sys::listen::unix_bound(path, *mode)?;
            let file = Some(SocketFile::of(path)?);
            Ok(Bound { fd, at: path.display().to_string(), file })
        }
        Address::Tcp { .. } => {
            let resolved = first.or(wanted.found).and_then(|found| found.parse().ok());
            let resolved = resolved.ok_or(io::ErrorKind::AddrNotAvailable)?;
            if wanted.reuse && first.is_none() && !wanted.listener.reuseport {
                // Sockets that share an address let any process of the same user share it: a second
                // proxy would take half of the clients. So a socket that does not share is tried
                // first.
                drop(sys::listen::tcp(resolved, 1, false)?);
            }
            let fd = sys::listen::tcp_bound(resolved, wanted.reuse)?;
            let bound = sys::listen::local_address(&fd)?;
            Ok(Bound { fd, at: bound.to_string(), file: None })
        }
    }
}

/// The file of a unix socket of ours. It is removed with this, unless it is another by then:
/// whoever has removed or replaced it knows what they are doing. It goes before its socket, which
/// keeps other files from getting its inode.
pub struct SocketFile {
    pub path: PathBuf,
    inode: u64,
}

impl SocketFile {
    pub fn of(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_path_buf(), inode: inode_of(path)? })
    }

    /// Whether it is still there.
    pub fn is_there(&self) -> bool {
        inode_of(&self.path).is_ok_and(|now| now == self.inode)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the inode of the file at a path.
fn inode_of(path: &Path) -> io::Result<u64> {
    Ok(std::fs::symlink_metadata(path)?.ino())
}
