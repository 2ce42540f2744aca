//! Real processes on loopback: quickack, and the peers in front of it and behind it.
//!
//! Each is started by its test, waited for by connecting to it, and killed by its own id when the
//! value is dropped, also while a test panics. What it says on stderr is kept, and is shown by
//! whatever gives up waiting.
//!
//! ```text
//!   test ──▶ Client ──▶ Quickack ──▶ Memcached | FakeMemcached | a thread of the test's
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal};
use tempfile::TempDir;

/// What has not come by then never comes: tests run on busy machines.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A child process, and what it has said on stderr.
pub struct Process {
    name: String,
    child: Child,
    said: Arc<Said>,
}

#[derive(Default)]
struct Said {
    text: Mutex<String>,
    more: Condvar,
}

impl Process {
    /// Starts it; its stdin and stdout are nobody's.
    pub fn start(name: &str, command: &mut Command) -> Process {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("{name}: {error}; `cargo xtask test` installs the peers"),
        };
        let said = Arc::new(Said::default());
        let stderr = child.stderr.take().expect("stderr was asked to be a pipe");
        let listener = Arc::clone(&said);
        thread::spawn(move || listener.hear(stderr));
        Process { name: name.to_string(), child, said }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has said so far.
    pub fn said(&self) -> String {
        self.said.lock().clone()
    }

    /// Waits until what it has said makes `find` happy, and returns what that found.
    pub fn wait_for<T>(&mut self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let start = Instant::now();
        let mut text = self.said.lock();
        loop {
            if let Some(found) = find(&text) {
                return found;
            }
            let ended = self.child.try_wait().expect("our own child can be asked");
            if ended.is_some() || start.elapsed() > DEADLINE {
                panic!("{} never said {what}; ended: {ended:?}; it said:\n{text}", self.name);
            }
            // The wait is bounded because an end makes no sound.
            let waited = self.said.more.wait_timeout(text, Duration::from_millis(20));
            text = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until somebody accepts there; false if the process ended instead.
    pub fn wait_to_accept(&mut self, address: SocketAddr) -> bool {
        let start = Instant::now();
        loop {
            if TcpStream::connect(address).is_ok() {
                return true;
            }
            if self.child.try_wait().expect("our own child can be asked").is_some() {
                return false;
            }
            let said = self.said();
            assert!(start.elapsed() < DEADLINE, "{}: nobody on {address}: {said}", self.name);
            // Between two attempts only: what is waited for is the accepted connection.
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("our own child can be signalled");
    }

    /// Stops it where it stands, and returns when it has stopped.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let start = Instant::now();
        while !self.status_text().lines().any(|line| line.starts_with("State:\tT")) {
            assert!(start.elapsed() < DEADLINE, "{} does not stop", self.name);
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Waits for its end.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child can be asked") {
                return status;
            }
            let said = self.said();
            assert!(start.elapsed() < DEADLINE, "{} does not end; it said:\n{said}", self.name);
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// One number of `/proc/ID/status`, such as `VmRSS` in KiB.
    pub fn status(&self, field: &str) -> u64 {
        let text = self.status_text();
        let rest = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no {field} in the status of {}", self.name))
    }

    fn status_text(&self) -> String {
        let path = format!("/proc/{}/status", self.id());
        std::fs::read_to_string(path).expect("our own child has a status")
    }

    /// CPU time it has used, in clock ticks (mostly 100 a second).
    pub fn cpu_ticks(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.id());
        let text = std::fs::read_to_string(path).expect("our own child has a stat");
        // The name may hold anything but ends at the last bracket; user and system time are the
        // 12th and 13th words after it.
        let words = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        words.skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum()
    }

    /// Copies of all sockets that it holds; an option read or set here is read or set there.
    pub fn sockets(&self) -> Vec<OwnedFd> {
        let pid = Pid::from_child(&self.child);
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd");
        let folder = format!("/proc/{}/fd", self.id());
        let entries = std::fs::read_dir(folder).expect("our own child has descriptors");
        let mut sockets = Vec::new();
        for entry in entries.flatten() {
            let is_socket = std::fs::read_link(entry.path())
                .is_ok_and(|link| link.to_string_lossy().starts_with("socket:"));
            let number = entry.file_name().to_string_lossy().parse();
            if let (true, Ok(number)) = (is_socket, number) {
                let flags = PidfdGetfdFlags::empty();
                // One that was closed between the two calls is not held any more.
                sockets.extend(rustix::process::pidfd_getfd(&process, number, flags));
            }
        }
        sockets
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("---- {} said:\n{}", self.name, self.said());
        }
    }
}

impl Said {
    fn lock(&self) -> MutexGuard<'_, String> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, stderr: impl Read) {
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            let mut text = self.lock();
            text.push_str(&String::from_utf8_lossy(&line));
            text.push('\n');
            self.more.notify_all();
        }
    }
}

/// quickack with a configuration of the test's.
pub struct Quickack {
    pub process: Process,
    /// Pool and where it listens, in the order of the file.
    pools: Vec<(String, SocketAddr)>,
    /// Holds the configuration file.
    _folder: TempDir,
}

impl Quickack {
    /// Starts `program` and waits until every TCP pool of `config` has said where it listens.
    pub fn start(program: &str, config: &str) -> Quickack {
        Quickack::start_by(Command::new(program), config)
    }

    /// The same behind a command that ends up as quickack, such as a shell that lowers a limit.
    pub fn start_by(mut command: Command, config: &str) -> Quickack {
        let folder = tempfile::tempdir().expect("a folder for the configuration");
        let file = folder.path().join("quickack.yml");
        std::fs::write(&file, config).expect("a new file in an own folder");
        command.args(["run", "-c"]).arg(&file);
        let mut process = Process::start("quickack", &mut command);
        let expected = config.lines().filter(|line| is_tcp_listener(line)).count();
        let pools = process.wait_for("where it listens", |text| {
            let pools: Vec<_> = text.lines().filter_map(parse_listening).collect();
            (pools.len() == expected).then_some(pools)
        });
        Quickack { process, pools, _folder: folder }
    }

    /// Where its first pool listens.
    pub fn address(&self) -> SocketAddr {
        self.pools[0].1
    }

    pub fn address_of(&self, pool: &str) -> SocketAddr {
        let found = self.pools.iter().find(|(name, _)| name == pool);
        found.unwrap_or_else(|| panic!("no pool {pool}")).1
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address())
    }
}

fn is_tcp_listener(line: &str) -> bool {
    line.trim().strip_prefix("listen:").is_some_and(|value| !value.trim().starts_with('/'))
}

/// `… listening on 127.0.0.1:4711 (pool alpha) …`
fn parse_listening(line: &str) -> Option<(String, SocketAddr)> {
    let (_, rest) = line.split_once("listening on ")?;
    let (address, rest) = rest.split_once(" (pool ")?;
    let (pool, _) = rest.split_once(')')?;
    Some((pool.to_string(), address.parse().ok()?))
}

/// Debian's memcached.
pub struct Memcached {
    pub process: Process,
    pub address: SocketAddr,
}

impl Memcached {
    pub fn start() -> Memcached {
        // A port that was free a moment ago may be taken; then the next one is tried.
        for _ in 0..20 {
            if let Some(memcached) = Memcached::start_on(free_address()) {
                return memcached;
            }
        }
        panic!("memcached finds no port");
    }

    /// None if the port is taken.
    pub fn start_on(address: SocketAddr) -> Option<Memcached> {
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", &address.port().to_string(), "-U", "0"]);
        command.args(["-t", "1", "-m", "64", "-u", "root"]);
        let mut process = Process::start("memcached", &mut command);
        process.wait_to_accept(address).then_some(Memcached { process, address })
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// One number of its `stats`.
    pub fn stat(&self, name: &str) -> u64 {
        let mut client = self.client();
        client.send("stats\r\n");
        let text = client.read_until("END\r\n");
        let row = text.lines().find_map(|line| {
            line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()
        });
        row.unwrap_or_else(|| panic!("no {name} in the stats of memcached:\n{text}"))
    }
}

/// The stand-in that has the fault of memcached 1.4: a long reply leaves in two writes under Nagle.
pub struct FakeMemcached {
    pub process: Process,
    pub address: SocketAddr,
}

impl FakeMemcached {
    pub fn start() -> FakeMemcached {
        for _ in 0..20 {
            let address = free_address();
            let mut command = Command::new("python3");
            let port = address.port().to_string();
            command.arg(script("fakemc.py")).args(["127.0.0.1", &port]);
            let mut process = Process::start("fakemc.py", &mut command);
            if process.wait_to_accept(address) {
                return FakeMemcached { process, address };
            }
        }
        panic!("fakemc.py finds no port");
    }
}

/// One of `testkit/acceptance/`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("acceptance").join(name)
}

/// A loopback port that nobody has, at this moment.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port on loopback");
    listener.local_addr().expect("a bound listener has an address")
}

/// A client that says exactly what the test says, and waits for exactly what the test expects.
pub struct Client {
    pub stream: TcpStream,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("somebody accepts");
        stream.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
        stream.set_write_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
        stream.set_nodelay(true).expect("TCP has the option");
        Client { stream }
    }

    pub fn send(&mut self, request: impl AsRef<[u8]>) {
        self.stream.write_all(request.as_ref()).expect("the other side reads");
    }

    /// Sends and expects; the usual line of a test.
    #[track_caller]
    pub fn ask(&mut self, request: &str, reply: &str) {
        self.send(request);
        self.expect(reply);
    }

    /// Reads as many bytes as `reply` has, which must be those.
    #[track_caller]
    pub fn expect(&mut self, reply: &str) {
        let mut bytes = vec![0; reply.len()];
        let mut len = 0;
        while len < bytes.len() {
            match self.stream.read(&mut bytes[len..]) {
                Ok(0) => panic!("closed after {:?}, expected {reply:?}", lossy(&bytes[..len])),
                Ok(n) => len += n,
                Err(error) => panic!("{error} after {:?}, not {reply:?}", lossy(&bytes[..len])),
            }
            if !reply.as_bytes().starts_with(&bytes[..len]) {
                break;
            }
        }
        assert_eq!(lossy(&bytes[..len]), reply);
    }

    /// Reads until the text so far ends with `end`.
    #[track_caller]
    pub fn read_until(&mut self, end: &str) -> String {
        let mut bytes = Vec::new();
        let mut chunk = [0; 16 * 1024];
        while !bytes.ends_with(end.as_bytes()) {
            match self.stream.read(&mut chunk) {
                Ok(0) => panic!("closed after {:?}, expected {end:?}", lossy(&bytes)),
                Ok(n) => bytes.extend_from_slice(&chunk[..n]),
                Err(error) => panic!("{error} after {:?}, expected {end:?}", lossy(&bytes)),
            }
        }
        lossy(&bytes)
    }

    /// One line, without its end; what follows it stays unread.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n") {
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(0) => panic!("closed after {:?}, expected a line", lossy(&bytes)),
                Ok(_) => bytes.extend_from_slice(&byte),
                Err(error) => panic!("{error} after {:?}, expected a line", lossy(&bytes)),
            }
        }
        lossy(&bytes).trim_end().to_string()
    }

    /// Everything until the other side closes.
    #[track_caller]
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Ok(_) => lossy(&bytes),
            Err(error) => panic!("{error} after {:?}", lossy(&bytes)),
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
