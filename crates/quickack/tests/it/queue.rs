//! Clients that connect while their worker dies or a configuration changes: the listen queue is the
//! master's, and every client in it is served.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::process::Signal;
use testkit::process::{Client, DEADLINE, freeze, send, wait_until};

use super::harness::{self, Worker, workers};

/// Number of clients that wait at a time.
const WAITING: usize = 200;

/// Runs a test in a network namespace of its own: this program starts itself there for that one
/// test. The kernel counts overflows for each namespace, and other programs have them, too.
#[track_caller]
fn in_own_network<T: FnOnce()>(test: T) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    // The type of a closure has the name of its test: `it::queue::NAME::{{closure}}`.
    let path = std::any::type_name::<T>().trim_end_matches("::{{closure}}");
    let name = path.split_once("::").expect("a test is in a module").1;
    let is_root = rustix::process::getuid().is_root();
    let mut command = Command::new("unshare");
    command.arg(if is_root { "-n" } else { "-rn" });
    command.args(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command.arg(std::env::current_exe().expect("a program has a file"));
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, "yes");
    let output = command.output().expect("unshare is there");
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{said}{errors}");
    assert!(output.status.success() && said.contains("1 passed"), "{name} in its own network");
}

const INSIDE: &str = "QUICKACK_TEST_HAS_ITS_NETWORK";

/// Returns the connections that the kernel refused because a queue was full, in this namespace.
fn overflows() -> u64 {
    let text = std::fs::read_to_string("/proc/net/netstat").expect("the kernel counts");
    let mut rows = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, numbers) = (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
    let mut columns = names.split(' ').zip(numbers.split(' '));
    let found = columns.find(|(name, _)| *name == "ListenOverflows");
    found.and_then(|(_, number)| number.parse().ok()).expect("it counts ListenOverflows")
}

/// Connects clients that send a request and do not wait; no worker has accepted them yet.
fn connect(address: SocketAddr) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..WAITING).map(|_| Client::connect(address)).collect();
    clients.iter_mut().for_each(|client| client.send("get nobody-has-this\r\n"));
    clients
}

fn all_are_served(mut clients: Vec<Client>) {
    clients.iter_mut().for_each(|client| client.expect("END\r\n"));
}

/// Stops two workers with clients at their listeners, and kills them.
fn check_kill(accept: &str) {
    let (_memcached, quickack) =
        harness::field(2, &[&format!("accept: {accept}"), "hang_timeout: 0"], &["backlog: 1024"]);
    let before = overflows();
    for _ in 0..3 {
        let workers = workers(&quickack);
        workers.values().for_each(|worker| freeze(worker.pid));
        let clients = connect(quickack.address());
        workers.values().for_each(|worker| send(worker.pid, Signal::KILL));
        all_are_served(clients);
        // One that died may still be in the list, and cannot be stopped any more.
        wait_until("both have successors", || {
            let now = harness::workers(&quickack);
            let is_new = |one: &Worker| workers.values().all(|old| old.pid != one.pid);
            now.len() == 2 && now.values().all(|one| one.is_serving() && is_new(one))
        });
    }
    assert_eq!(overflows(), before, "the kernel turned somebody away");
}

#[test]
fn two_hundred_wait_at_the_gate_before_memcached_while_its_workers_are_killed() {
    in_own_network(|| check_kill("gate"));
}

#[test]
fn two_hundred_wait_with_reuseport_before_memcached_while_its_workers_are_killed() {
    in_own_network(|| check_kill("reuseport"));
}

#[test]
fn two_hundred_wait_for_the_mutex_before_memcached_while_its_workers_are_killed() {
    in_own_network(|| check_kill("mutex"));
}

/// They wait while the file is read and the workers reply; no client is forgotten.
#[test]
fn two_hundred_wait_before_memcached_while_the_configuration_changes() {
    in_own_network(|| {
        let (memcached, quickack) = harness::field(2, &["hang_timeout: 0"], &["backlog: 1024"]);
        let before = overflows();
        for n in 0..5 {
            let more = ["backlog: 1024", &format!("timeout: {}", 60_000 + n)];
            quickack.rewrite(&harness::text(2, &["hang_timeout: 0"], &[memcached.address], &more));
            let workers = workers(&quickack);
            workers.values().for_each(|worker| freeze(worker.pid));
            let clients = connect(quickack.address());
            let mut reload = quickack.admin_command(&["reload"]);
            let mut reload =
                reload.stdout(std::process::Stdio::null()).spawn().expect("it was built");
            workers.values().for_each(|worker| send(worker.pid, Signal::CONT));
            assert!(reload.wait().expect("it ends").success());
            all_are_served(clients);
        }
        assert_eq!(overflows(), before, "the kernel turned somebody away");
    });
}

/// Threads of a storm.
const THREADS: usize = 24;

/// Clients that connect, send one request and close, many at a time and all the time.
struct Storm {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    failed: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Storm {
    fn start(address: SocketAddr) -> Storm {
        let stop: Arc<AtomicBool> = Arc::default();
        let served: Arc<AtomicU64> = Arc::default();
        let failed: Arc<Mutex<Vec<String>>> = Arc::default();
        let threads = (0..THREADS).map(|_| {
            let (stop, served, failed) =
                (Arc::clone(&stop), Arc::clone(&served), Arc::clone(&failed));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match visit(address) {
                        Ok(()) => drop(served.fetch_add(1, Ordering::Relaxed)),
                        Err(why) => failed.lock().expect("nobody panics with it").push(why),
                    }
                }
            })
        });
        let threads = threads.collect();
        Storm { stop, served, failed, threads }
    }

    fn wait_for(&self, more: u64) {
        let goal = self.served.load(Ordering::Relaxed) + more;
        wait_until(&format!("{more} more visits: {:?}", self.failed), || {
            self.served.load(Ordering::Relaxed) >= goal
        });
    }

    /// Returns the number of clients served, and the errors of the others.
    fn stop(self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        let failed = std::mem::take(&mut *self.failed.lock().expect("nobody panics with it"));
        (self.served.load(Ordering::Relaxed), failed)
    }
}

fn visit(address: SocketAddr) -> Result<(), String> {
    let start = Instant::now();
    let text = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let mut stream = TcpStream::connect(address).map_err(|error| text("connect", error))?;
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    stream.write_all(b"get nobody-has-this\r\n").map_err(|error| text("write", error))?;
    let mut reply = [0; 5];
    match stream.read_exact(&mut reply) {
        Ok(()) if &reply == b"END\r\n" => Ok(()),
        Ok(()) => Err(format!("answered {}", reply.escape_ascii())),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err("closed".to_string()),
        Err(error) => Err(format!("read after {:?}: {error}", start.elapsed())),
    }
}

/// Runs short connections all the time: none is dropped when workers end and start in an orderly
/// way.
fn check_storm(accept: &str) {
    let global = format!("accept: {accept}");
    let (memcached, quickack) = harness::field(4, &[&global], &["backlog: 1024"]);
    let before = overflows();
    let storm = Storm::start(quickack.address());
    for count in [2, 4, 1, 3] {
        storm.wait_for(200);
        let text = harness::text(count, &[&global], &[memcached.address], &["backlog: 1024"]);
        quickack.rewrite(&text);
        quickack.admin_ok(&["reload"]);
    }
    storm.wait_for(200);
    let (served, failed) = storm.stop();
    println!("{accept}: {served} short connections, 4 -> 2 -> 4 -> 1 -> 3 workers, {failed:?}");
    assert!(failed.is_empty(), "{} of {served}: {failed:?}", failed.len());
    assert_eq!(overflows(), before, "the kernel turned somebody away");
}

#[test]
fn short_connections_to_memcached_pass_the_gate_while_workers_come_and_go() {
    in_own_network(|| check_storm("gate"));
}

#[test]
fn short_connections_to_memcached_pass_reuseport_while_workers_come_and_go() {
    in_own_network(|| check_storm("reuseport"));
}

#[test]
fn short_connections_to_memcached_pass_the_mutex_while_workers_come_and_go() {
    in_own_network(|| check_storm("mutex"));
}
