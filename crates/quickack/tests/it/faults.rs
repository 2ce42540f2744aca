//! Servers that die, freeze, restart and send wrong replies: the cost to clients, the error texts,
//! and that no request that may have been executed is sent again.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::process::{
    Client, DEADLINE, Firewall, Memcached, answer_lines, free_address, freeze, listen,
    on_free_port, send, silent, wait_until,
};

use super::{harness, quickack};

/// A server of the test's own, which records every line and behaves as the test decides.
struct Server {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts one that answers a line as `rule` says, or closes if that is None.
    fn start(rule: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Server {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&lines);
        let address = listen(move |stream| {
            answer_lines(stream, |line| {
                notes.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_string());
                rule(line)
            });
        });
        Server { address, lines }
    }

    /// Returns every line so far, except probes.
    fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| *line != "version").cloned().collect()
    }

    fn count(&self, wanted: &str) -> usize {
        self.lines().iter().filter(|line| line.starts_with(wanted)).count()
    }
}

fn say(text: &str) -> Option<String> {
    Some(text.into())
}

/// Repeats a request until the server is back, and returns its first answer.
fn ask_until_back(client: &mut Client, request: &str, end: &str) -> String {
    let start = Instant::now();
    loop {
        client.send(request);
        let first = client.read_until("\r\n");
        if !first.starts_with("SERVER_ERROR") {
            let done = first.ends_with(end);
            return if done { first } else { first + &client.read_until(end) };
        }
        assert!(start.elapsed() < DEADLINE, "the server never came back: {first}");
    }
}

/// Checks an update that is executed and never answered: the client is told, and it happened once.
fn check_never_twice(request: &str, word: &str) {
    let value = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&value);
    let update = word.to_string();
    let server = Server::start(move |line| {
        let mut counter = counter.lock().unwrap_or_else(PoisonError::into_inner);
        if line.starts_with(&update) && !update.starts_with("incr") {
            return say("");
        }
        if line.starts_with("incr") || line == "data" {
            *counter += 1;
            return None;
        }
        say(&format!("VALUE n 0 1\r\n{counter}\r\nEND\r\n"))
    });
    let quickack = quickack(&[server.address], &["server_retry_timeout: 50ms"]);
    let mut client = quickack.client();
    client.ask("get n\r\n", "VALUE n 0 1\r\n0\r\nEND\r\n");
    client.send(request);
    let expected = format!("SERVER_ERROR {}: connection lost, outcome unknown\r\n", server.address);
    client.expect(&expected);
    let answer = ask_until_back(&mut client, "get n\r\n", "END\r\n");
    assert_eq!(answer, "VALUE n 0 1\r\n1\r\nEND\r\n");
    assert_eq!(server.count(word), 1, "{:?}", server.lines());
}

#[test]
fn an_incr_that_was_executed_is_never_sent_again() {
    check_never_twice("incr n 1\r\n", "incr n");
}

#[test]
fn an_append_that_was_executed_is_never_sent_again() {
    check_never_twice("append n 0 0 4\r\ndata\r\n", "append n");
}

#[test]
fn a_cas_that_was_executed_is_never_sent_again() {
    check_never_twice("cas n 0 0 4 17\r\ndata\r\n", "cas n");
}

#[test]
fn a_quiet_incr_that_was_executed_is_never_sent_again() {
    let server = Server::start(|line| match line {
        line if line.starts_with("incr") => None,
        _ => say("END\r\n"),
    });
    let quickack = quickack(&[server.address], &["server_retry_timeout: 50ms"]);
    let mut client = quickack.client();
    client.ask("get n\r\n", "END\r\n");
    client.send("incr n 1 noreply\r\n");
    assert_eq!(ask_until_back(&mut client, "get n\r\n", "END\r\n"), "END\r\n");
    assert_eq!(server.count("incr"), 1, "{:?}", server.lines());
}

/// The only request that may be sent again: a get whose link died.
#[test]
fn a_get_whose_link_died_is_asked_at_most_once_more() {
    let server = Server::start(|line| match line {
        line if line.starts_with("get poison") => None,
        _ => say("END\r\n"),
    });
    let quickack = quickack(&[server.address], &["server_retry_timeout: 50ms"]);
    let mut client = quickack.client();
    client.ask("get n\r\n", "END\r\n");
    client.send("get poison\r\n");
    let line = client.line();
    let expected = format!("SERVER_ERROR {}: ", server.address);
    assert!(line.starts_with(&expected), "{line}");
    assert!((1..=2).contains(&server.count("get poison")), "{:?}", server.lines());
    assert_eq!(ask_until_back(&mut client, "get n\r\n", "END\r\n"), "END\r\n");
    assert!((1..=2).contains(&server.count("get poison")), "{:?}", server.lines());
}

/// It accepts, because the kernel does, but sends nothing.
#[test]
fn a_server_that_never_answers_costs_each_client_one_deadline() {
    let (_silent, address) = silent();
    let quickack = quickack(&[address], &["timeout: 4000"]);
    let mut clients = [quickack.client(), quickack.client(), quickack.client()];
    let start = Instant::now();
    for client in &mut clients {
        client.send("get a\r\nset b 0 0 1\r\n1\r\nget c\r\nincr d 1\r\nget e\r\n");
    }
    for client in &mut clients {
        for _ in 0..5 {
            let line = client.line();
            assert!(line.starts_with(&format!("SERVER_ERROR {address}: ")), "{line}");
        }
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(4), "gave up after {took:?}");
    assert!(took < Duration::from_secs(12), "five requests cost {took:?}");
}

/// The kernel drops the SYN if the queue of a listener is full: a connect that never ends.
#[test]
fn a_connect_that_never_ends_costs_one_deadline() {
    let (_server, address) = silent();
    let mut firewall = Firewall::start(address);
    firewall.drop_new();
    let address = firewall.address;
    let quickack = quickack(&[address], &["timeout_connect: 4s", "timeout_queue: 60s"]);
    let start = Instant::now();
    quickack.client().ask("get a\r\n", &format!("SERVER_ERROR {address}: connect timed out\r\n"));
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(4), "gave up after {took:?}");
    assert!(took < Duration::from_secs(8), "it cost {took:?}");
}

#[test]
fn a_frozen_memcached_costs_one_deadline_and_thaws_with_all_it_held() {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &["timeout: 4000", "server_retry_timeout: 100"]);
    let mut client = quickack.client();
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    memcached.process.freeze();
    let start = Instant::now();
    client.send("get a\r\n");
    let line = client.line();
    assert_eq!(line, format!("SERVER_ERROR {}: no reply in time", memcached.address));
    assert!(start.elapsed() >= Duration::from_secs(4), "{:?}", start.elapsed());
    // While the server is known to be down, a request does not wait.
    let start = Instant::now();
    for _ in 0..10 {
        client.send("get a\r\n");
        let line = client.line();
        assert!(line.starts_with("SERVER_ERROR"), "{line}");
    }
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    memcached.process.thaw();
    let answer = ask_until_back(&mut client, "get a\r\n", "END\r\n");
    assert_eq!(answer, "VALUE a 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn a_memcached_that_was_restarted_comes_back() {
    let memcached = Memcached::start();
    let address = memcached.address;
    let quickack = quickack(&[address], &["server_retry_timeout: 100"]);
    let mut client = quickack.client();
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    drop(memcached);
    client.send("set a 0 0 1\r\n2\r\n");
    let line = client.line();
    assert!(line.starts_with(&format!("SERVER_ERROR {address}: ")), "{line}");
    let _memcached = Memcached::start_on(address).expect("its port is still free");
    assert_eq!(ask_until_back(&mut client, "get a\r\n", "END\r\n"), "END\r\n");
    client.ask("set a 0 0 1\r\n3\r\n", "STORED\r\n");
    client.ask("get a\r\n", "VALUE a 0 1\r\n3\r\nEND\r\n");
}

/// The first request on a new link to a failed server is the proxy's own, not a client's.
#[test]
fn a_server_comes_back_through_a_probe() {
    let server = Server::start(|line| match line {
        line if line.starts_with("incr") => None,
        _ => say("END\r\n"),
    });
    let quickack = quickack(&[server.address], &["server_retry_timeout: 50ms"]);
    let mut client = quickack.client();
    client.send("incr n 1\r\n");
    assert!(client.line().starts_with("SERVER_ERROR"));
    ask_until_back(&mut client, "get n\r\n", "END\r\n");
    let lines = server.lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let lost = lines.iter().position(|line| line.starts_with("incr")).expect("it was asked");
    assert_eq!(lines[lost + 1], "version", "{lines:?}");
}

#[test]
fn a_dead_server_leaves_the_hits_of_memcached_and_its_own_name() {
    let (memcached, dead) = (Memcached::start(), free_address());
    for (partial, ends) in [("error", format!("SERVER_ERROR {dead}: ")), ("miss", "END".into())] {
        let directive = format!("partial: {partial}");
        let quickack = quickack(&[memcached.address, dead], &["hash: md5", &directive]);
        let mut client = quickack.client();
        let mut hits = String::new();
        let mut request = String::from("get");
        for n in 0..50 {
            client.send(format!("set key{n} 0 0 2\r\n{n:02}\r\n"));
            if client.line() == "STORED" {
                hits.push_str(&format!("VALUE key{n} 0 2\r\n{n:02}\r\n"));
            }
            request.push_str(&format!(" key{n}"));
        }
        assert!(hits.matches("VALUE").count() > 5, "the ring gives all keys to the dead server");
        assert!(hits.matches("VALUE").count() < 45, "the ring gives no key to the dead server");
        client.send(request + "\r\n");
        client.expect(&hits);
        let last = client.line();
        assert!(last.starts_with(&ends), "partial: {partial}: {last}");
        assert!(partial != "miss" || last == "END", "{last}");
    }
}

#[test]
fn an_ejected_memcached_leaves_its_keys_to_the_others_and_comes_back() {
    let memcacheds = [Memcached::start(), Memcached::start()];
    let addresses = memcacheds.each_ref().map(|memcached| memcached.address);
    let more = [
        "hash: md5",
        "auto_eject_hosts: true",
        "server_failure_limit: 1",
        "server_retry_timeout: 200",
    ];
    let quickack = quickack(&addresses, &more);
    let mut client = quickack.client();
    let mut is_stored = |n: u32| {
        client.send(format!("set key{n} 0 0 1\r\n1\r\n"));
        client.line() == "STORED"
    };
    assert!((0..50).all(&mut is_stored));
    let [survivor, killed] = memcacheds;
    let before = survivor.stat("curr_items");
    assert!((5..45).contains(&before), "the ring is not a ring: {before} of 50");
    drop(killed);
    let start = Instant::now();
    while !(0..50).all(&mut is_stored) {
        assert!(start.elapsed() < DEADLINE, "it is never ejected");
    }
    assert_eq!(survivor.stat("curr_items"), 50);
    let back = Memcached::start_on(addresses[1]).expect("its port is still free");
    let start = Instant::now();
    while back.stat("curr_items") == 0 {
        assert!((0..50).all(&mut is_stored), "its return costs a client an error");
        assert!(start.elapsed() < DEADLINE, "it never comes back");
    }
}

/// A reply that is impossible for the request is not believed, nor is anything after it.
#[test]
fn a_server_that_answers_something_else_is_not_believed() {
    let server = Server::start(|line| match line {
        "get a" => say("VALUE b 0 1\r\nx\r\nEND\r\n"),
        "get c" => say("STORED\r\n"),
        "incr d 1" => say("STORED\r\n"),
        _ => say("END\r\n"),
    });
    let words = "unexpected reply, connection closed";
    for (request, words) in [
        ("get a\r\n", words.to_string()),
        ("get c\r\n", words.to_string()),
        ("incr d 1\r\n", format!("{words}, outcome unknown")),
    ] {
        let quickack = quickack(&[server.address], &[]);
        quickack.client().ask(request, &format!("SERVER_ERROR {}: {words}\r\n", server.address));
    }
}

#[test]
fn a_server_that_speaks_unasked_loses_its_link() {
    let server = Server::start(|line| match line {
        "get twice" => say("END\r\nVALUE a 0 6\r\nforged\r\nEND\r\n"),
        _ => say("VALUE a 0 4\r\ntrue\r\nEND\r\n"),
    });
    let quickack = quickack(&[server.address], &["server_retry_timeout: 50ms"]);
    let mut client = quickack.client();
    client.ask("get twice\r\n", "END\r\n");
    let answer = ask_until_back(&mut client, "get a\r\n", "END\r\n");
    assert_eq!(answer, "VALUE a 0 4\r\ntrue\r\nEND\r\n");
}

/// The kernel detects a peer that vanished silently; no waiting client is needed for that.
#[test]
fn links_to_memcached_have_keepalive_and_a_user_timeout() {
    use rustix::net::{getpeername, sockopt};
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &[]);
    quickack.client().ask("get a\r\n", "END\r\n");
    let mut links = 0;
    for socket in quickack.worker_process().sockets() {
        let peer = getpeername(&socket).ok().and_then(|peer| SocketAddr::try_from(peer?).ok());
        if peer == Some(memcached.address) {
            links += 1;
            assert!(sockopt::socket_keepalive(&socket).expect("the option exists"));
            assert!(sockopt::tcp_user_timeout(&socket).expect("the option exists") > 0);
        }
    }
    assert_eq!(links, 1);
}

/// A change cannot be undone on the other server.
#[test]
fn a_flush_all_is_done_at_no_memcached_if_one_is_down() {
    let (one, other) = (Memcached::start(), Memcached::start());
    let quickack = quickack(&[one.address, other.address], &["allow: [flush_all]"]);
    let mut direct = one.client();
    direct.ask("set here 0 0 1\r\nX\r\n", "STORED\r\n");
    let dead = other.address;
    drop(other);
    let told = format!("SERVER_ERROR {dead}: down, waiting for it to come back\r\n");
    let mut client = quickack.client();
    // The first request to the dead server detects the failure.
    let start = Instant::now();
    for n in 0.. {
        client.send(format!("get k{n}\r\n"));
        if format!("{}\r\n", client.line()) == told {
            break;
        }
        assert!(start.elapsed() < DEADLINE, "it is not missed");
    }
    client.ask("flush_all\r\n", &told);
    client.ask("flush_all 10\r\n", &told);
    direct.ask("get here\r\n", "VALUE here 0 1\r\nX\r\nEND\r\n");
}

/// A worker that has not noticed the failure has no link to the dead server, or one that only
/// begins.
#[test]
fn a_flush_all_on_new_connections_is_done_at_no_memcached_if_one_was_killed() {
    const FLUSHES: usize = 24;
    let backs = [Memcached::start(), Memcached::start(), Memcached::start()];
    let addresses = backs.each_ref().map(|back| back.address);
    let quickack = harness::start(3, &[], &addresses, &["allow: [flush_all]"]);
    let [one, other, dead] = backs;
    let address = dead.address;
    drop(dead);
    let mut clients: Vec<Client> = (0..FLUSHES).map(|_| quickack.client()).collect();
    clients.iter_mut().for_each(|client| client.send("flush_all\r\n"));
    for client in &mut clients {
        let told = client.line();
        assert!(told.starts_with(&format!("SERVER_ERROR {address}: ")), "{told}");
    }
    clients.iter_mut().for_each(|client| client.send("flush_all noreply\r\nmn\r\n"));
    clients.iter_mut().for_each(|client| client.expect("MN\r\n"));
    assert_eq!([one.stat("cmd_flush"), other.stat("cmd_flush")], [0, 0]);
}

/// Without `maxconns_fast`, it takes no more and says nothing: connects to it hang.
#[test]
fn a_full_memcached_costs_nobody_the_link_that_is_there() {
    for fast in ["maxconns_fast", "no_maxconns_fast"] {
        let start = |address| Memcached::start_with(address, &["-c", "16", "-o", fast]);
        let memcached = on_free_port(start);
        let more = ["server_connections: 2", "auto_eject_hosts: true", "server_failure_limit: 1"];
        let quickack = harness::start(1, &[], &[memcached.address], &more);
        let mut clients = [quickack.client(), quickack.client()];
        clients[0].ask("set k 0 0 1\r\nv\r\n", "STORED\r\n");
        let (mut watcher, mut direct) = (memcached.client(), Vec::new());
        wait_until("it is full", || {
            let patience = Duration::from_millis(50);
            direct.extend(TcpStream::connect_timeout(&memcached.address, patience));
            memcached_is_full(&mut watcher)
        });
        for _ in 0..200 {
            for client in &mut clients {
                client.ask("get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
            }
        }
        let servers = quickack.admin_ok(&["servers"]);
        assert!(!servers.contains("ejected") && !servers.contains("down"), "{servers}");
    }
}

fn memcached_is_full(client: &mut Client) -> bool {
    client.send("stats\r\n");
    let stats = client.read_until("END\r\n");
    !stats.contains("rejected_connections 0\r\n") || stats.contains("accepting_conns 0")
}

/// The worker finds both in one turn, the request first or the end first.
#[test]
fn a_change_that_meets_the_end_of_an_idle_link_to_memcached_is_done_once() {
    let memcached = Memcached::start();
    let firewall = Firewall::start(memcached.address);
    let quickack = harness::start(1, &[], &[firewall.address], &[]);
    let mut client = quickack.client();
    client.ask("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    let worker = harness::workers(&quickack)[&0].pid;
    let mut made = 0;
    for round in 0..100 {
        freeze(worker);
        if round % 2 == 0 {
            client.send("incr n 1\r\n");
        }
        made = firewall.cut_last(made);
        if round % 2 == 1 {
            client.send("incr n 1\r\n");
        }
        send(worker, Signal::CONT);
        assert_eq!(client.line(), (round + 1).to_string());
    }
}
