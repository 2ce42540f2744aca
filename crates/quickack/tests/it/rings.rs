//! Rings: every key stays on the server where twemproxy put it.
//!
//! ```text
//!                       ┌─> nutcracker ─┐
//!   100,000 keys a row ─┤               ├─> servers that answer a get with their own number
//!                       └─> quickack ───┘
//! ```
//!
//! One `nutcracker.yml` has a pool for each row of the table below. Both proxies start on that
//! file unchanged, and the answers to the same gets tell which server each of them asked for
//! each key. `shard`, called in this process, is the third opinion: where the proxies differ, it
//! says whether the ring is wrong or the way to it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use shard::{Distribution, Hash, Node, Ring};

#[test]
fn every_key_stays_where_twemproxy_put_it() {
    let (field, keys) = (Field::new(), keys());
    let mut nutcracker = Proxy::nutcracker(&field);
    let mut quickack = Proxy::quickack(&field);
    let (theirs, ours) = thread::scope(|scope| {
        let theirs = scope.spawn(|| nutcracker.ask_every_row(&field.rows, &keys));
        let ours = quickack.ask_every_row(&field.rows, &keys);
        (theirs.join().unwrap(), ours)
    });
    for (row, (theirs, ours)) in field.rows.iter().zip(theirs.iter().zip(&ours)) {
        row.compare(("shard", &row.owners_in_process(&keys)), ("nutcracker", theirs), &keys);
        row.compare(("quickack", ours), ("nutcracker", theirs), &keys);
    }
}

const KEY_COUNT: usize = 100_000;
/// So many keys of each row are asked for alone, the rest many to a line.
const SINGLE_COUNT: usize = 2_000;
const KEYS_PER_LINE: usize = 100;
/// What has not come by then never comes.
const DEADLINE: Duration = Duration::from_secs(30);

// ---- The table. ----

/// One pool of the file.
struct Row {
    name: String,
    hash: Hash,
    distribution: Distribution,
    tag: Option<&'static str>,
    servers: Vec<Server>,
    /// Where a proxy listens for this pool: a path is free without asking anybody.
    socket: String,
}

/// One line under `servers:`.
#[derive(Clone)]
struct Server {
    /// What the server answers with.
    number: u16,
    /// `host:port`, or a path.
    address: String,
    /// What the ring must hash where the line has no name.
    default_name: String,
    weight: u32,
    name: Option<String>,
    /// Nobody listens there, so the pool must eject it.
    dead: bool,
}

/// Neither sorted nor of one length: twemproxy sorts a pool by name, the shorter first.
const NAMES: [&str; 5] = ["cache-b", "cache-10", "z", "cache-a", "Cache-a"];

/// The 48 rows that are promised: each hash, ketama and modula, weights, names.
fn promised_rows(field: &mut Field) {
    for &hash in Hash::ALL {
        for distribution in [Distribution::Ketama, Distribution::Modula] {
            for (label, weights) in [("equal", [1; 5]), ("unequal", [3, 1, 70, 9, 2])] {
                let plain = field.tcp_servers(&weights);
                let named = with_names(&plain, &NAMES);
                let label = format!("{}-{}-{label}", hash.name(), distribution.name());
                field.add(format!("{label}-plain"), hash, distribution, None, plain);
                field.add(format!("{label}-names"), hash, distribution, None, named);
            }
        }
    }
}

/// Rules of twemproxy that the promised rows do not meet.
fn odd_rows(field: &mut Field, distribution: Distribution) {
    let hash = Hash::Murmur;
    let label = |what: &str| format!("{}-{what}", distribution.name());
    let five = field.tcp_servers(&[1; 5]);
    for (what, tag) in [("braces", "{}"), ("colons", "::")] {
        field.add(label(what), hash, distribution, Some(tag), with_names(&five, &NAMES));
    }
    // Of 25 equal nodes each gets 39 digests, not 40: single precision.
    field.add(label("many"), hash, distribution, None, field.tcp_servers(&[1; 25]));
    // Names beyond twemproxy's buffer. The last two differ behind its end: all their points tie.
    let long = |len: usize, end: &str| format!("{}{end}", "n".repeat(len));
    let names = [long(266, "a"), long(272, "b"), long(300, "d"), long(300, "c")];
    let servers = with_names(&five[..4], &names.each_ref().map(String::as_str));
    field.add(label("long"), hash, distribution, None, servers);
    field.add(label("unix"), hash, distribution, None, field.unix.clone());
    let mut servers = with_names(&five, &NAMES);
    servers[1] = Server { name: servers[1].name.clone(), weight: 4, ..field.nobody() };
    field.add(label("ejected"), hash, distribution, None, servers);
}

fn with_names(servers: &[Server], names: &[&str]) -> Vec<Server> {
    let pairs = servers.iter().zip(names);
    pairs.map(|(server, name)| Server { name: Some(name.to_string()), ..server.clone() }).collect()
}

impl Row {
    fn alive(&self) -> Vec<bool> {
        self.servers.iter().map(|server| !server.dead).collect()
    }

    fn ring(&self, alive: &[bool]) -> Ring {
        let name = |server: &Server| server.name.as_ref().unwrap_or(&server.default_name).clone();
        let nodes: Vec<Node> = self
            .servers
            .iter()
            .map(|server| Node { name: name(server), weight: server.weight })
            .collect();
        Ring::build(self.distribution, &nodes, alive)
    }

    fn locate(&self, ring: &Ring, key: &[u8]) -> &Server {
        let tag = self.tag.map(|tag| tag.as_bytes().try_into().unwrap());
        &self.servers[ring.locate(self.hash.hash(shard::tagged(key, tag))).unwrap()]
    }

    fn owners_in_process(&self, keys: &[Vec<u8>]) -> Vec<u16> {
        let ring = self.ring(&self.alive());
        keys.iter().map(|key| self.locate(&ring, key).number).collect()
    }

    fn compare(&self, found: (&str, &[u16]), expected: (&str, &[u16]), keys: &[Vec<u8>]) {
        let ((who, found), (other, expected)) = (found, expected);
        if self.distribution == Distribution::Random {
            self.check_spread(who, found);
            return self.check_spread(other, expected);
        }
        let moved: Vec<usize> = (0..keys.len()).filter(|&i| found[i] != expected[i]).collect();
        let Some(&first) = moved.first() else { return };
        panic!(
            "pool {}: {} of {} keys differ; {} is on server {} for {who}, on {} for {other}",
            self.name,
            moved.len(),
            keys.len(),
            keys[first].escape_ascii(),
            found[first],
            expected[first],
        );
    }

    /// Each server has its even share, within a quarter: twemproxy draws once for each server of
    /// a line, not once for each key.
    fn check_spread(&self, who: &str, owners: &[u16]) {
        let even = owners.len() / self.servers.len();
        for server in &self.servers {
            let count = owners.iter().filter(|owner| **owner == server.number).count();
            let near = count.abs_diff(even) < even / 4;
            assert!(near, "{who}: server {} has {count} keys, even is {even}", server.number);
        }
    }

    fn write_yml(&self, folder: &Path, yml: &mut String) {
        writeln!(yml, "{}:", self.name).unwrap();
        writeln!(yml, "  listen: {}", folder.join(&self.socket).display()).unwrap();
        writeln!(yml, "  hash: {}", self.hash.name()).unwrap();
        writeln!(yml, "  distribution: {}", self.distribution.name()).unwrap();
        if let Some(tag) = self.tag {
            writeln!(yml, "  hash_tag: \"{tag}\"").unwrap();
        }
        if self.servers.iter().any(|server| server.dead) {
            let once_and_for_all = "server_failure_limit: 1\n  server_retry_timeout: 3600000";
            writeln!(yml, "  auto_eject_hosts: true\n  {once_and_for_all}").unwrap();
        }
        writeln!(yml, "  servers:").unwrap();
        for Server { address, weight, name, .. } in &self.servers {
            let name = name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            writeln!(yml, "   - {address}:{weight}{name}").unwrap();
        }
    }
}

// ---- The servers and the file. ----

/// Everything around a proxy: servers that run until the process ends, and the file.
struct Field {
    rows: Vec<Row>,
    tcp: Vec<Server>,
    unix: Vec<Server>,
    folder: tempfile::TempDir,
}

impl Field {
    fn new() -> Field {
        let folder = tempfile::tempdir().unwrap();
        let tcp = (0..25).map(start_tcp).collect();
        let unix = (100..104).map(|number| start_unix(number, folder.path())).collect();
        let mut field = Field { rows: Vec::new(), tcp, unix, folder };
        promised_rows(&mut field);
        odd_rows(&mut field, Distribution::Ketama);
        odd_rows(&mut field, Distribution::Modula);
        let servers = field.tcp_servers(&[1, 1, 90, 1, 1]);
        field.add("random".to_string(), Hash::Fnv64a, Distribution::Random, None, servers);
        let mut yml = String::new();
        field.rows.iter().for_each(|row| row.write_yml(&field.listen(), &mut yml));
        fs::write(field.yml(), yml).unwrap();
        field
    }

    fn yml(&self) -> PathBuf {
        self.folder.path().join("nutcracker.yml")
    }

    /// The folder that the file names for all sockets of the proxy.
    fn listen(&self) -> PathBuf {
        self.folder.path().join("listen")
    }

    fn add(
        &mut self,
        name: String,
        hash: Hash,
        distribution: Distribution,
        tag: Option<&'static str>,
        servers: Vec<Server>,
    ) {
        let socket = format!("{}.sock", self.rows.len());
        self.rows.push(Row { name, hash, distribution, tag, servers, socket });
    }

    fn tcp_servers(&self, weights: &[u32]) -> Vec<Server> {
        let pairs = self.tcp.iter().zip(weights);
        pairs.map(|(server, &weight)| Server { weight, ..server.clone() }).collect()
    }

    fn nobody(&self) -> Server {
        let path = self.folder.path().join("nobody");
        Server { dead: true, ..server(u16::MAX, path.display().to_string(), String::new()) }
    }
}

fn server(number: u16, address: String, default_name: String) -> Server {
    Server { number, address, default_name, weight: 1, name: None, dead: false }
}

fn start_tcp(number: u16) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for link in listener.incoming().map(Result::unwrap) {
            link.set_nodelay(true).unwrap();
            thread::spawn(move || serve(&link, &link, number));
        }
    });
    server(number, format!("127.0.0.1:{port}"), shard::default_node_name("127.0.0.1", port))
}

fn start_unix(number: u16, folder: &Path) -> Server {
    let path = folder.join(format!("server-{number}")).display().to_string();
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for link in listener.incoming().map(Result::unwrap) {
            thread::spawn(move || serve(&link, &link, number));
        }
    });
    let default_name = shard::default_node_name_unix(&path);
    server(number, path, default_name)
}

/// As much of memcached as gets need: every key is there and holds the server's number. Returns
/// when the proxy closes the link, in whatever way.
fn serve(input: impl Read, mut output: impl Write, number: u16) {
    let mut input = BufReader::with_capacity(65_536, input);
    let (mut line, mut replies) = (Vec::new(), Vec::new());
    let value = number.to_string();
    while matches!(input.read_until(b'\n', &mut line), Ok(len) if len > 0) {
        match line.trim_ascii_end().strip_prefix(b"get ") {
            Some(keys) => {
                for key in keys.split(|byte| *byte == b' ').filter(|key| !key.is_empty()) {
                    replies.extend_from_slice(b"VALUE ");
                    replies.extend_from_slice(key);
                    write!(replies, " 0 {}\r\n{value}\r\n", value.len()).unwrap();
                }
                replies.extend_from_slice(b"END\r\n");
            }
            None if line.starts_with(b"version") => replies.extend_from_slice(b"VERSION 1.6\r\n"),
            None => replies.extend_from_slice(b"ERROR\r\n"),
        }
        line.clear();
        if !input.buffer().contains(&b'\n') {
            if output.write_all(&replies).is_err() {
                return;
            }
            replies.clear();
        }
    }
}

// ---- The proxies. ----

struct Proxy {
    child: Child,
    /// What it printed, and then its sockets.
    folder: PathBuf,
}

impl Proxy {
    fn nutcracker(field: &Field) -> Proxy {
        // Its statistics need a port: this one was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("nutcracker");
        command.env("PATH", "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin");
        command.arg("-c").arg(field.yml()).args(["-a", "127.0.0.1", "-s", &free.to_string()]);
        Proxy::start(command, field, "nutcracker")
    }

    fn quickack(field: &Field) -> Proxy {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quickack"));
        command.args(["run", "-c"]).arg(field.yml());
        Proxy::start(command, field, "quickack")
    }

    /// Returns when every pool can be connected to. The sockets then move to a folder of the
    /// proxy's own, where they still work: the next proxy finds their places free.
    fn start(mut command: Command, field: &Field, name: &str) -> Proxy {
        let folder = field.folder.path().join(name);
        fs::create_dir(field.listen()).unwrap();
        let log = fs::File::create(field.listen().join("log")).unwrap();
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let mut proxy = Proxy { child, folder };
        let start = Instant::now();
        for row in &field.rows {
            while let Err(error) = UnixStream::connect(field.listen().join(&row.socket)) {
                let ended = proxy.child.try_wait().unwrap();
                if ended.is_some() || start.elapsed() > DEADLINE {
                    let log = fs::read_to_string(field.listen().join("log")).unwrap();
                    panic!("{command:?}: pool {}: {error}, {ended:?}\n{log}", row.name);
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        fs::rename(field.listen(), &proxy.folder).unwrap();
        proxy
    }

    /// For each row and key, the number of the server that answered.
    fn ask_every_row(&mut self, rows: &[Row], keys: &[Vec<u8>]) -> Vec<Vec<u16>> {
        let places: HashMap<&[u8], usize> = keys.iter().map(|k| k.as_slice()).zip(0..).collect();
        rows.iter()
            .map(|row| {
                let stream = UnixStream::connect(self.folder.join(&row.socket)).unwrap();
                stream.set_read_timeout(Some(DEADLINE)).unwrap();
                if row.servers.iter().any(|server| server.dead) {
                    wait_for_ejection(&stream, row, keys);
                }
                ask(&stream, &row.name, keys, &places)
            })
            .collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Asks for a key of the dead server until another answers it.
fn wait_for_ejection(mut stream: &UnixStream, row: &Row, keys: &[Vec<u8>]) {
    let ring = row.ring(&vec![true; row.servers.len()]);
    let key = keys.iter().find(|key| row.locate(&ring, key).dead).unwrap();
    let request = [b"get ", key.as_slice(), b"\r\n"].concat();
    let mut replies = BufReader::new(stream);
    let start = Instant::now();
    for round in 0.. {
        stream.write_all(&request).unwrap();
        let mut line = Vec::new();
        replies.read_until(b'\n', &mut line).unwrap();
        if line.starts_with(b"VALUE") {
            assert!(round > 0, "pool {}: the dead server's key was never asked of it", row.name);
            while !line.ends_with(b"END\r\n") {
                replies.read_until(b'\n', &mut line).unwrap();
            }
            return;
        }
        assert!(line.starts_with(b"SERVER_ERROR"), "pool {}: {line:?}", row.name);
        assert!(start.elapsed() < DEADLINE, "pool {}: the dead server stays", row.name);
    }
}

/// Gets all keys, pipelined, and returns who answered each.
fn ask(
    stream: &UnixStream,
    pool: &str,
    keys: &[Vec<u8>],
    places: &HashMap<&[u8], usize>,
) -> Vec<u16> {
    const UNANSWERED: u16 = u16::MAX;
    let (single, many) = keys.split_at(SINGLE_COUNT);
    let lines = single.chunks(1).chain(many.chunks(KEYS_PER_LINE));
    let mut owners = vec![UNANSWERED; keys.len()];
    thread::scope(|scope| {
        let requests = lines.clone();
        scope.spawn(move || send(stream, requests));
        let mut replies = BufReader::with_capacity(65_536, stream);
        let mut line = Vec::new();
        let mut next_line = |line: &mut Vec<u8>| {
            line.clear();
            let received = replies.read_until(b'\n', line);
            assert!(matches!(received, Ok(len) if len > 0), "pool {pool}: {received:?}");
            line.truncate(line.trim_ascii_end().len());
        };
        for _ in lines {
            next_line(&mut line);
            while line != b"END" {
                let key = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
                let place = places.get(key).filter(|_| line.starts_with(b"VALUE "));
                let place = *place.unwrap_or_else(|| panic!("{pool}: {}", line.escape_ascii()));
                assert_eq!(owners[place], UNANSWERED, "pool {pool}: two answers for one key");
                next_line(&mut line);
                owners[place] = str::from_utf8(&line).unwrap().parse().unwrap();
                next_line(&mut line);
            }
        }
    });
    let unanswered = owners.iter().filter(|owner| **owner == UNANSWERED).count();
    assert_eq!(unanswered, 0, "pool {pool}: keys without an answer");
    owners
}

fn send<'k>(stream: &UnixStream, lines: impl Iterator<Item = &'k [Vec<u8>]>) {
    let mut requests = BufWriter::with_capacity(16_384, stream);
    for keys in lines {
        requests.write_all(b"get").unwrap();
        for key in keys {
            requests.write_all(b" ").unwrap();
            requests.write_all(key).unwrap();
        }
        requests.write_all(b"\r\n").unwrap();
    }
    requests.flush().unwrap();
}

// ---- The keys. ----

/// Distinct keys, the same in every run: counters, tags, and random bytes of all lengths, of
/// which those above 0x7f matter: C reads them as negative numbers in some of the hashes.
fn keys() -> Vec<Vec<u8>> {
    let mut random = SplitMix(1);
    (0..KEY_COUNT)
        .map(|index| match index % 4 {
            0 => format!("key:{index}").into_bytes(),
            1 => format!("item:{{user-{}}}:{index}", random.below(5_000)).into_bytes(),
            2 => format!("{index:x}{}", "-}{:{}::"[..random.below(9)].repeat(2)).into_bytes(),
            _ => {
                let len_max = if index % 100 == 3 { 240 } else { 40 };
                let mut key = index.to_string().into_bytes();
                let len = key.len() + random.below(len_max);
                key.resize_with(len, || printable(random.below(256) as u8));
                key
            }
        })
        .collect()
}

/// A byte that may stand in a key.
fn printable(byte: u8) -> u8 {
    if byte <= b' ' || byte == 0x7f { byte | 0x80 } else { byte }
}

struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
