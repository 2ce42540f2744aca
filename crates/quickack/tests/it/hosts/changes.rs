//! Names that change, and name servers that do not work: servers move for all workers at once, and
//! nothing else notices.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::load::Trust;
use testkit::process::{
    Family, Memcached, Process, Quickack, Redis, Speaker, answer_lines, children, free_address,
    freeze, on_free_port, send, wait_until,
};
use testkit::wire::resp::Reply;

use super::lists::load;
use super::name_server::{Answer, NameServer};
use super::{Place, number, pool, server};
use crate::harness;

const ONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const TWO: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const FAST: &str = "resolve_every: 100ms";

fn at(ip: Ipv4Addr) -> Answer {
    Answer::Addresses(vec![ip])
}

impl Place {
    /// A name server is asked as well, after `/etc/hosts`. It is given up after a second.
    pub fn with_name_server(name_server: &NameServer) -> Place {
        let place = Place::with_hosts("127.0.0.1 localhost\n");
        place.write("nsswitch.conf", "hosts: files dns\n");
        let ip = name_server.address.ip();
        let options = "options timeout:1 attempts:1";
        place.write("resolv.conf", &format!("nameserver {ip}\n{options}\n"));
        place
    }
}

/// The text of a pool whose names are looked up all the time.
fn fast(workers: usize, servers: &[String], more: &[&str]) -> String {
    let global = format!("workers: {workers}\n  {FAST}");
    pool(servers, more).replace("workers: 2", &global)
}

/// A memcached that can be reached at two addresses.
pub fn at_both() -> Memcached {
    let both = |address| Memcached::start_with(address, &["-l", "127.0.0.2", "-m", "64"]);
    on_free_port(both)
}

fn named(name: &str, port: u16) -> String {
    format!("{name}:{port}:1 {}", name.split('.').next().unwrap())
}

/// Waits until the server at this place is at this address.
#[track_caller]
fn wait_for(quickack: &Quickack, place: usize, ip: Ipv4Addr) {
    let mut last = server(quickack, place);
    wait_until(&format!("server {place} is at {ip}: {}", quickack.process.stderr_text()), || {
        last = server(quickack, place);
        last["at"].as_str().is_some_and(|at| at.starts_with(&format!("{ip}:")))
    });
}

/// Returns the epoch of all workers, once they agree: one may still be about to apply it.
pub fn epoch(quickack: &Quickack) -> u64 {
    let mut first = 0;
    wait_until("the workers have one epoch", || {
        let workers = harness::workers(quickack);
        first = workers[&0].epoch;
        workers.values().all(|worker| worker.epoch == first)
    });
    first
}

/// The process that looks up names.
pub fn resolver(quickack: &Quickack) -> Option<u32> {
    let mut all = children(quickack.process.id()).into_iter();
    all.find(|(_, title)| title.contains("resolver")).map(|(id, _)| id)
}

/// Both servers are the same at each address, so that a request which overtakes another on the way,
/// a key that moves, or an update that is lost would be a wrong answer.
#[test]
fn names_that_change_under_load_harm_no_request_before_memcached_as_root() {
    let (first, second) = (at_both(), at_both());
    let dns = NameServer::start(&[("first.test", at(ONE)), ("second.test", at(TWO))]);
    let place = Place::with_name_server(&dns);
    let servers =
        [named("first.test", first.address.port()), named("second.test", second.address.port())];
    let quickack = place.run(&fast(4, &servers, &["timeout: 60000"]));
    let load = load(&quickack, Trust::Whole);
    for round in 0..12 {
        let now = if round % 2 == 0 { [TWO, ONE] } else { [ONE, TWO] };
        let before = epoch(&quickack);
        dns.set("first.test", at(now[0]));
        if round % 3 == 0 {
            dns.set("second.test", at(now[1]));
            wait_for(&quickack, 1, now[1]);
        }
        wait_for(&quickack, 0, now[0]);
        wait_until("all workers have the epoch", || {
            let workers = harness::workers(&quickack);
            workers.values().all(|worker| worker.epoch > before)
        });
        load.wait_for_requests(500);
        load.wait_for_everybody();
    }
    load.stop().assert_unharmed();
    let stats = harness::stats(&quickack);
    assert!(stats["names"]["address_changes"].as_u64().unwrap() >= 12, "{}", stats["names"]);
    let told = quickack.process.stderr_text();
    let port = first.address.port();
    let line = format!(
        "server first of pool alpha: name first.test:{port} is now 127.0.0.2:{port} \
         (was 127.0.0.1:{port})"
    );
    assert!(told.contains(&line), "{told}");
}

/// A server at two addresses keeps an update that came to the first. The client's next request must
/// not be executed before it at the second.
#[test]
fn a_client_never_reads_past_its_own_update_while_its_server_moves_as_root() {
    check_order("", "STORED\r\n");
    check_order(" noreply", "");
}

fn check_order(noreply: &str, stored: &str) {
    let server = TwoAddresses::start();
    let place = Place::with_hosts("127.0.0.1 cache.test\n");
    let quickack = place.run(&fast(1, &[named("cache.test", server.port)], &["timeout: 60000"]));
    let (mut client, mut other) = (quickack.client(), quickack.client());
    client.ask("get a\r\n", "END\r\n");
    client.send(format!("set a 0 0 1{noreply}\r\n1\r\n"));
    server.wait(|told| told.is_kept);
    place.write("hosts", "127.0.0.2 cache.test\n");
    wait_for(&quickack, 0, TWO);
    wait_until("the worker has it", || harness::workers(&quickack)[&0].epoch > 1);
    client.send("get a\r\n");
    // The only worker has read that request before this one is answered, at the other address.
    other.ask("get b\r\n", "END\r\n");
    server.let_go();
    client.expect(&format!("{stored}VALUE a 0 1\r\n1\r\nEND\r\n"));
}

/// Each client counts, in pipelines: an update that is lost, done twice or overtaken shows.
#[test]
fn a_name_that_changes_under_load_loses_no_update_before_redis_as_root() {
    let redis = on_free_port(|address| {
        Redis::start_on(Family::Redis70, address, &["--bind", "127.0.0.1", "127.0.0.2"])
    });
    let place = Place::with_hosts("127.0.0.1 redis.test\n");
    let servers = [named("redis.test", redis.address.port())];
    let more = ["protocol: redis", "timeout: 60000"];
    let quickack = place.run(&fast(4, &servers, &more));
    let ends = AtomicBool::new(false);
    let total: i64 = std::thread::scope(|scope| {
        let count = |client: usize| {
            let (quickack, ends) = (&quickack, &ends);
            move || {
                let mut speaker = Speaker::connect(quickack.address());
                let words = |line: String| -> Vec<Vec<u8>> {
                    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
                };
                let mut counted = 0;
                while !ends.load(Ordering::Relaxed) {
                    let pair = [words(format!("INCR n{client}")), words(format!("GET n{client}"))];
                    let batch: Vec<Vec<Vec<u8>>> = pair.iter().cycle().take(20).cloned().collect();
                    for replies in speaker.ask_all(&batch).chunks(2) {
                        counted += 1;
                        let value = Reply::Bulk(counted.to_string().into_bytes());
                        assert_eq!(replies, [Reply::Integer(counted), value]);
                    }
                }
                counted
            }
        };
        let clients: Vec<_> = (0..16).map(|client| scope.spawn(count(client))).collect();
        for round in 0..12 {
            let ip = if round % 2 == 0 { TWO } else { ONE };
            place.write("hosts", &format!("{ip} redis.test\n"));
            wait_for(&quickack, 0, ip);
        }
        ends.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(total > 0);
    let mut speaker = Speaker::connect(redis.address);
    let counters = (0..16).map(|client| match speaker.say(&format!("GET n{client}")) {
        Reply::Bulk(bytes) => String::from_utf8(bytes).unwrap().parse::<i64>().unwrap(),
        odd => panic!("{odd:?}"),
    });
    assert_eq!(counters.sum::<i64>(), total);
}

/// The name server answers wrongly in each way that there is, and dies: the server stays where it
/// was, the one that never had an address stays down, and the proxy does all else at once.
#[test]
fn name_servers_that_lie_hang_and_die_change_nothing_before_memcached_as_root() {
    let memcached = at_both();
    let mut dns = NameServer::start(&[("cache.test", at(ONE)), ("lost.test", Answer::Failure)]);
    let place = Place::with_name_server(&dns);
    let servers = [named("cache.test", memcached.address.port()), "lost.test:1:1 lost".to_string()];
    let text = fast(2, &servers, &["distribution: modula"]);
    let quickack = place.run(&text);
    let before = epoch(&quickack);
    let [mine, _] = keys(&quickack);
    let mut client = quickack.client();
    let failed = || harness::stats(&quickack)["names"]["lookups_failed"].as_u64().unwrap();
    let lies =
        [Answer::Failure, Answer::NoSuchName, Answer::Garbage, Answer::Empty, Answer::Silence];
    for lie in lies {
        let (at_first, asked) = (failed(), dns.questions());
        dns.set("cache.test", lie.clone());
        dns.set("lost.test", lie.clone());
        wait_until(&format!("{lie:?} is noticed"), || {
            failed() > at_first + 2 && dns.questions() > asked
        });
        client.ask(&format!("set {mine} 0 0 1\r\n1\r\n"), "STORED\r\n");
        assert_eq!(server(&quickack, 0)["health"], "up", "{lie:?}");
        assert_eq!(server(&quickack, 1)["health"], "down", "{lie:?}");
    }
    assert_eq!(epoch(&quickack), before);
    // An answer that is late is an answer.
    dns.set("cache.test", Answer::Late(Duration::from_millis(300), vec![TWO]));
    wait_for(&quickack, 0, TWO);
    // An address that is still in the answer is kept.
    let before = epoch(&quickack);
    dns.set("cache.test", Answer::Addresses(vec![ONE, TWO]));
    let asked = dns.questions();
    wait_until("it is asked again", || dns.questions() > asked + 8);
    assert_eq!(epoch(&quickack), before);
    dns.die();
    let at_first = failed();
    wait_until("its death is noticed", || failed() > at_first);
    client.ask(&format!("set {mine} 0 0 1\r\n1\r\n"), "STORED\r\n");
    assert_eq!(epoch(&quickack), before);
}

/// A look-up that takes minutes: neither start, requests, reloads nor the end wait for it.
#[test]
fn a_resolver_that_hangs_delays_nothing_before_memcached_as_root() {
    let memcached = Memcached::start();
    let dns = NameServer::start(&[("hung.test", Answer::Silence), ("new.test", Answer::Silence)]);
    let place = Place::with_name_server(&dns);
    let ip = dns.address.ip();
    place.write("resolv.conf", &format!("nameserver {ip}\noptions timeout:30 attempts:5\n"));
    let text = |more: &[&str], line: &str| {
        let mut servers = vec![number(memcached.address), "hung.test:1:1 second".to_string()];
        servers.extend(more.iter().map(|name| format!("{name}:1:1 {name}")));
        fast(2, &servers, &["distribution: modula", line])
    };
    let start = Instant::now();
    let mut quickack = place.run(&text(&[], "timeout: 60000"));
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    let why = server(&quickack, 1)["why"].clone();
    assert!(why.as_str().unwrap().contains("no answer within"), "{why}");
    let [mine, _] = keys(&quickack);
    let mut client = quickack.client();
    for n in 0..5 {
        client.ask(&format!("set {mine} 0 0 1\r\n{n}\r\n"), "STORED\r\n");
        quickack.rewrite(&text(&[], &format!("timeout: {}", 50_000 + n)));
        let start = Instant::now();
        let said = quickack.admin_ok(&["reload"]);
        assert!(said.contains("applied by 2/2"), "{said}");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
    // A name that is new is waited for, but not for long.
    quickack.rewrite(&text(&["new.test"], "timeout: 50000"));
    let said = quickack.admin_ok(&["reload", "--allow-remap"]);
    assert!(said.contains("applied by 2/2") && said.contains("new.test"), "{said}");
    let start = Instant::now();
    quickack.process.signal(Signal::TERM);
    drop(client);
    quickack.process.wait_for_end();
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
}

/// It is there while a server is written as a name, and is replaced when it dies or hangs.
#[test]
fn the_resolver_is_started_again_when_it_dies_or_hangs_before_memcached_as_root() {
    let memcached = at_both();
    let place = Place::with_hosts("127.0.0.1 cache.test\n");
    let port = memcached.address.port();
    let text = fast(2, &[named("cache.test", port)], &[]);
    let text = text.replace(FAST, &format!("{FAST}\n  hang_timeout: 5s"));
    let quickack = place.run(&text);
    let first = resolver(&quickack).expect("a server is written as a name");
    send(first, Signal::KILL);
    wait_until("another has begun", || resolver(&quickack).is_some_and(|id| id != first));
    place.write("hosts", "127.0.0.2 cache.test\n");
    wait_for(&quickack, 0, TWO);
    let second = resolver(&quickack).unwrap();
    freeze(second);
    let is_replaced = || resolver(&quickack).is_some_and(|id| id != second);
    wait_until("the one that hangs is replaced", is_replaced);
    place.write("hosts", "127.0.0.1 cache.test\n");
    wait_for(&quickack, 0, ONE);
    // The last name goes, and the process with it.
    quickack.rewrite(&fast(2, &[number(memcached.address)], &[]));
    quickack.admin_ok(&["reload", "--allow-remap"]);
    wait_until("it has ended", || resolver(&quickack).is_none());
    // A directive that is set brings a name: it is looked up then.
    let set = format!("alpha.servers=[{}]", named("cache.test", port));
    quickack.admin_ok(&["set", "--allow-remap", &set]);
    wait_for(&quickack, 0, ONE);
    assert!(resolver(&quickack).is_some());
}

/// Names that change together are one epoch. Only a machine that is very busy parts them.
#[test]
fn names_that_change_together_are_one_epoch_as_root() {
    let place = Place::with_hosts("127.0.0.1 a.test b.test c.test\n");
    let servers = ["a.test", "b.test", "c.test"].map(|name| named(name, 1));
    let quickack = place.run(&pool(&servers, &[]));
    let were_one = (0..10).any(|round| {
        let (before, ip) = (epoch(&quickack), if round % 2 == 0 { TWO } else { ONE });
        place.write("hosts", &format!("{ip} a.test b.test c.test\n"));
        // Nothing else has them looked up within half a minute.
        quickack.admin_ok(&["reload"]);
        (0..3).for_each(|at| wait_for(&quickack, at, ip));
        harness::workers(&quickack).values().map(|worker| worker.epoch).max() == Some(before + 1)
    });
    assert!(were_one, "{}", quickack.process.stderr_text());
}

/// A server that is dead at its old address: its clients get errors, and serve on when its name
/// has moved. `resolve_every` can be set at run time.
#[test]
fn a_server_that_dies_and_moves_is_found_by_its_name_before_memcached_as_root() {
    let address = free_address();
    let old = Memcached::start_on(address).unwrap();
    let place = Place::with_hosts("127.0.0.1 cache.test\n");
    let quickack = place.run(&pool(&[named("cache.test", address.port())], &[]));
    let mut client = quickack.client();
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    drop(old);
    client.send("get a\r\n");
    assert!(client.line().starts_with("SERVER_ERROR "));
    let port = address.port().to_string();
    let mut command = Command::new("memcached");
    command.args(["-l", "127.0.0.2", "-p", &port, "-U", "0", "-u", "root", "-t", "1"]);
    let mut new = Process::start("memcached", &mut command);
    assert!(new.wait_to_accept(SocketAddr::from((TWO, address.port()))));
    place.write("hosts", "127.0.0.2 cache.test\n");
    // Names are looked up each 30 s; a change of that looks them up at once.
    quickack.admin_ok(&["set", FAST.replace(": ", "=").as_str()]);
    wait_for(&quickack, 0, TWO);
    client.ask("set a 0 0 1\r\n2\r\n", "STORED\r\n");
    client.ask("get a\r\n", "VALUE a 0 1\r\n2\r\nEND\r\n");
}

/// A memcached at 127.0.0.1 and 127.0.0.2, which knows one key, `a`. It keeps back what is set at
/// the first address until it is let go.
struct TwoAddresses {
    port: u16,
    shared: Arc<(Mutex<Kept>, Condvar)>,
}

#[derive(Default)]
struct Kept {
    is_kept: bool,
    is_let_go: bool,
    is_set: bool,
}

impl TwoAddresses {
    fn start() -> TwoAddresses {
        let (listeners, port) = on_free_port(|address| {
            let bind = |ip| TcpListener::bind((ip, address.port())).ok();
            Some(([(bind(ONE)?, true), (bind(TWO)?, false)], address.port()))
        });
        let server = TwoAddresses { port, shared: Arc::default() };
        for (listener, keeps) in listeners {
            let shared = Arc::clone(&server.shared);
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let shared = Arc::clone(&shared);
                    let answer = move |line: &str| Some(answer(line, keeps, &shared));
                    std::thread::spawn(move || answer_lines(stream, answer));
                }
            });
        }
        server
    }

    fn wait(&self, is_so: impl Fn(&Kept) -> bool) {
        wait_until("the server is asked", || is_so(&self.shared.0.lock().unwrap()));
    }

    fn let_go(&self) {
        self.shared.0.lock().unwrap().is_let_go = true;
        self.shared.1.notify_all();
    }
}

fn answer(line: &str, keeps: bool, (kept, changed): &(Mutex<Kept>, Condvar)) -> String {
    let mut kept = kept.lock().unwrap();
    match line {
        "get a" if kept.is_set => "VALUE a 0 1\r\n1\r\nEND\r\n".to_string(),
        set if set.starts_with("set a ") => {
            kept.is_kept = true;
            while keeps && !kept.is_let_go {
                kept = changed.wait(kept).unwrap();
            }
            kept.is_set = true;
            "STORED\r\n".to_string()
        }
        // The value of the `set`, which has been answered.
        "1" => String::new(),
        _ => "END\r\n".to_string(),
    }
}

fn keys(quickack: &Quickack) -> [String; 2] {
    let key_of = |wanted: usize| {
        (0..).map(|n| format!("key{n}")).find(|key| {
            let mut command = Command::new(crate::QUICKACK);
            let said = command.args(["route", "-c"]).arg(quickack.file()).arg(key);
            let said = String::from_utf8(said.output().unwrap().stdout).unwrap();
            let label = server(quickack, wanted)["label"].as_str().unwrap().to_string();
            said.contains(&label)
        })
    };
    [0, 1].map(|wanted| key_of(wanted).unwrap())
}
