//! Servers behind quickack: memcached, and a stand-in with the fault of an old version.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::{Client, Process};

/// Debian's memcached.
pub struct Memcached {
    pub process: Process,
    pub address: SocketAddr,
}

impl Memcached {
    pub fn start() -> Memcached {
        on_free_port(Memcached::start_on)
    }

    /// Starts one without background threads and with ample memory. A thread may hold an item for a
    /// moment, and a `decr` in that moment does not pad the number with spaces as it usually does.
    pub fn quiet() -> Memcached {
        let more = ["-m", "1024", "-o", "no_lru_maintainer,no_lru_crawler,no_slab_reassign"];
        on_free_port(|address| Memcached::start_with(address, &more))
    }

    /// Starts one at the address; None if the port is taken.
    pub fn start_on(address: SocketAddr) -> Option<Memcached> {
        Memcached::start_with(address, &["-m", "64"])
    }

    /// Starts one with more arguments; None if the port is taken.
    pub fn start_with(address: SocketAddr, more: &[&str]) -> Option<Memcached> {
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", &address.port().to_string(), "-U", "0"]);
        command.args(["-t", "1", "-u", "root"]).args(more);
        let mut process = Process::start("memcached", &mut command);
        process.wait_to_accept(address).then_some(Memcached { process, address })
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns one number of its `stats`.
    pub fn stat(&self, name: &str) -> u64 {
        self.client().stat(name)
    }
}

/// The stand-in with the fault of memcached 1.4: it sends a long reply in two writes under Nagle.
pub struct FakeMemcached {
    pub process: Process,
    pub address: SocketAddr,
}

impl FakeMemcached {
    pub fn start() -> FakeMemcached {
        on_free_port(|address| {
            let mut command = Command::new("python3");
            let port = address.port().to_string();
            command.arg(script("fakemc.py")).args(["127.0.0.1", &port]);
            let mut process = Process::start("fakemc.py", &mut command);
            process.wait_to_accept(address).then_some(FakeMemcached { process, address })
        })
    }
}

/// Returns the path of a script in `testkit/acceptance/`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("acceptance").join(name)
}

/// Starts a server. Another program of this machine may take the port first; then the next one is
/// tried.
#[track_caller]
pub fn on_free_port<T>(start: impl Fn(SocketAddr) -> Option<T>) -> T {
    let mut tries = (0..20).map(|_| start(free_address()));
    tries.find_map(|started| started).expect("one of twenty ports is free")
}

/// Returns a loopback port that is free on all addresses, for a server that starts later or for
/// nobody. No other test gets it while this process lives: it holds a lock for it. And the kernel
/// gives it to nobody who binds port 0 or connects, because it is below the ports for that; unless
/// a machine is set to give nearly all its ports so (`net.ipv4.ip_local_port_range`).
pub fn free_address() -> SocketAddr {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let folder = format!("quickack-ports-{}", rustix::process::getuid().as_raw());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).expect("a folder for the locks of ports");
    let count = u32::from(first_of_the_kernel() - FIRST_PORT);
    // Tests that run at once begin to look at different places.
    let start = std::process::id().wrapping_mul(61);
    for n in 0..count {
        let port = FIRST_PORT + (start.wrapping_add(n) % count) as u16;
        let lock = File::create(folder.join(port.to_string())).expect("a lock for a port");
        let is_free = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
        if lock.try_lock().is_ok() && is_free() {
            HELD.lock().unwrap_or_else(PoisonError::into_inner).push(lock);
            return SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        }
    }
    panic!("no port is free");
}

/// The first port that the kernel may give to whoever names none.
fn first_of_the_kernel() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = text.ok().and_then(|text| text.split_whitespace().next()?.parse().ok());
    first.filter(|port| *port > FIRST_PORT + 1000).unwrap_or(32_768)
}

const FIRST_PORT: u16 = 10_000;
