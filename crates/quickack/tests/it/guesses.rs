//! Guessers of passwords, on many connections at once: how many of their tries are looked at, and
//! how long other clients' logins take meanwhile.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use testkit::process::{Client, Memcached, Quickack, wait_until};

use super::harness::{self, replace_worker, stats, wait_for_workers};
use super::logins::private;

const USERS: &str = "anna:old-secret\nbob:secret\n";
const RIGHT: &str = "set any 0 0 15\r\nanna old-secret\r\n";
const WRONG: &str = "set any 0 0 9\r\nanna nope\r\n";
/// Addresses that only this test uses.
const GUESSER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 21);
const FRIEND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 22);

/// Connects from this address.
fn connect(from: Ipv4Addr, to: SocketAddr) -> Option<TcpStream> {
    // Otherwise the servers of other tests would inherit it.
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).ok()?;
    rustix::net::bind(&socket, &SocketAddr::from((from, 0))).ok()?;
    rustix::net::connect(&socket, &to).ok()?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    Some(stream)
}

fn client(from: Ipv4Addr, quickack: &Quickack) -> Client {
    Client { stream: connect(from, quickack.address()).expect("somebody accepts") }
}

/// Connections that guess as fast as they are answered.
struct Guessers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Guessers {
    fn start(count: usize, to: SocketAddr) -> Guessers {
        let stop = Arc::new(AtomicBool::new(false));
        let one = |_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = guess(to, &stop);
                }
            })
        };
        let threads = (0..count).map(one).collect();
        Guessers { stop, threads }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|one| one.join().expect("a guesser does not panic"));
    }
}

/// Sends wrong logins on one connection until it ends. Several are in one packet.
fn guess(to: SocketAddr, stop: &AtomicBool) -> Option<()> {
    let mut stream = connect(GUESSER, to)?;
    stream.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
    let mut block = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(WRONG.repeat(3).as_bytes()).ok()?;
        match stream.read(&mut block) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
    None
}

fn total(quickack: &Quickack, counter: &str) -> u64 {
    let text = stats(quickack).to_string();
    let at = text.split_once(&format!("\"{counter}\":")).expect("a pool has the counter").1;
    let digits = at.split(|letter: char| !letter.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).expect("it is a number")
}

/// The time of a right login, in the middle of several.
fn friends_time(quickack: &Quickack) -> Duration {
    let mut times: Vec<Duration> = (0..15)
        .map(|_| {
            let mut friend = client(FRIEND, quickack);
            let since = Instant::now();
            friend.ask(RIGHT, "STORED\r\n");
            since.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// No more than ten a second, whatever happens to the workers.
#[test]
fn fifty_guessers_are_ten_tries_a_second_and_others_log_in_before_memcached() {
    let (_memcached, folder) = (Memcached::start(), private("users", USERS));
    let users = format!("users: {}", folder.path().join("users").display());
    let text = |workers| harness::text(workers, &[], &[_memcached.address], &[&users]);
    let quickack = Quickack::start(super::QUICKACK, &text(2));
    wait_for_workers(&quickack, 2);
    let since = Instant::now();
    let guessers = Guessers::start(50, quickack.address());
    let check = |when: &str| {
        let evaluated = total(&quickack, "logins_failed_total");
        let most = since.elapsed().as_millis() as u64 / 100 + 1;
        assert!(evaluated <= most, "{when}: {evaluated} were looked at, of {most}");
        evaluated
    };
    wait_until("many wait", || total(&quickack, "logins_delayed_total") >= 49);
    let time = friends_time(&quickack);
    // Behind the guessers in one line, it would take five seconds.
    assert!(time < Duration::from_secs(1), "a friend's login takes {time:?}");
    // From the guessers' address, in its turn.
    let mut beside = client(GUESSER, &quickack);
    beside.ask(RIGHT, "STORED\r\n");
    check("at first");
    // A worker dies, and others come.
    replace_worker(&quickack, harness::workers(&quickack)[&0].pid, 2);
    quickack.admin_ok(&["reload"]);
    check("after a death");
    for workers in [4, 1, 3] {
        quickack.rewrite(&text(workers));
        quickack.admin_ok(&["reload"]);
        wait_for_workers(&quickack, workers);
        let before = check("after a change of workers");
        wait_until("guessing goes on", || total(&quickack, "logins_failed_total") >= before + 10);
        check("with other workers");
    }
    let time = friends_time(&quickack);
    assert!(time < Duration::from_secs(1), "a friend's login takes {time:?}");
    guessers.stop();
    let said = quickack.process.stderr_text();
    assert!(said.contains("from 127.0.0.21 as \"anna\""), "{said}");
    assert!(!said.contains("nope") && !said.contains("secret"), "{said}");
}

/// Right logins cost nothing.
#[test]
fn a_fleet_behind_one_address_logs_in_at_full_speed_before_memcached() {
    let folder = private("users", USERS);
    let users = format!("users: {}", folder.path().join("users").display());
    let (_memcached, quickack) = harness::field(2, &[], &[&users]);
    let mut fleet: Vec<Client> = (0..500).map(|_| client(FRIEND, &quickack)).collect();
    fleet.iter_mut().for_each(|client| client.send(RIGHT));
    fleet.iter_mut().for_each(|client| client.expect("STORED\r\n"));
    assert_eq!(total(&quickack, "logins_total"), 500);
    // Two workers may meet at the same word, and then one of them waits for its turn.
    assert_eq!(total(&quickack, "logins_failed_total"), 0);
    assert_eq!(total(&quickack, "logins_refused_total"), 0);
}
