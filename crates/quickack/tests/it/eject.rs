//! One decision on the servers in the ring applies to all workers: no two of them ever use
//! different rings, and a minimum share of a pool stays in it.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use testkit::load::{Options, Trust};
use testkit::process::{Client, DEADLINE, Memcached, Quickack, listen, wait_until};

use super::harness::{self, workers};

/// Three servers that return their own name for every key, and clients of every worker.
struct Field {
    memcacheds: Vec<Memcached>,
    quickack: Quickack,
    /// Two clients of each worker.
    clients: Vec<Client>,
}

const KEYS: usize = 60;
const WORKERS: usize = 4;
const RULES: &[&str] = &[
    "hash: md5",
    "auto_eject_hosts: true",
    "server_failure_limit: 2",
    "server_retry_timeout: 300",
];

impl Field {
    fn new(count: usize, more: &[&str]) -> Field {
        let memcacheds: Vec<Memcached> = (0..count).map(|_| Memcached::start()).collect();
        let addresses: Vec<_> = memcacheds.iter().map(|memcached| memcached.address).collect();
        let name = |line: &str| line.split(':').next().map(str::to_string);
        let said = |rule: &&&str| more.iter().any(|line| name(line) == name(rule));
        let rules: Vec<&str> =
            RULES.iter().filter(|rule| !said(rule)).chain(more).copied().collect();
        let quickack = harness::start(WORKERS, &[], &addresses, &rules);
        let (mut clients, mut counts) = (Vec::new(), [0; WORKERS]);
        while counts.iter().any(|count| *count < 2) {
            let (client, worker) = harness::client_of(&quickack);
            counts[worker] += 1;
            clients.push(client);
        }
        let field = Field { memcacheds, quickack, clients };
        (0..count).for_each(|server| field.fill(server));
        field
    }

    /// Stores every key on a server, with the server's number as its value.
    fn fill(&self, server: usize) {
        let mut client = self.memcacheds[server].client();
        for key in 0..KEYS {
            client.ask(&format!("set key{key} 0 0 1\r\n{server}\r\n"), "STORED\r\n");
        }
    }

    fn kill(&mut self, server: usize) {
        self.memcacheds[server].process.signal(rustix::process::Signal::KILL);
        self.memcacheds[server].process.wait_for_end();
    }

    fn restart(&mut self, server: usize) {
        let address = self.memcacheds[server].address;
        let start = Instant::now();
        self.memcacheds[server] = loop {
            match Memcached::start_on(address) {
                Some(memcached) => break memcached,
                None => assert!(start.elapsed() < DEADLINE, "its port is somebody else's now"),
            }
        };
    }

    /// Returns the number of ejected servers, as shown to the operator.
    fn ejected(&mut self) -> usize {
        // Only requests make workers notice a failure.
        for key in 0..KEYS {
            self.ask(key % self.clients.len(), key);
        }
        let json = harness::stats(&self.quickack);
        let servers = json["pools"][0]["servers"].as_array().cloned().unwrap_or_default();
        servers.iter().filter(|server| server["ejected"] == true).count()
    }

    /// Returns the number of the server that answered through a client's worker; None for an error.
    fn ask(&mut self, client: usize, key: usize) -> Option<usize> {
        let client = &mut self.clients[client];
        client.send(format!("get key{key}\r\n"));
        let line = client.line();
        match line.as_str() {
            // A server that came back without data.
            "END" => Some(EMPTY),
            line if line.starts_with("VALUE ") => {
                let value = client.line();
                client.expect("END\r\n");
                Some(value.parse().expect("a server's number"))
            }
            line if line.starts_with("SERVER_ERROR ") => None,
            line => panic!("key{key}: {line}"),
        }
    }

    /// Returns the server of each key, on which all workers agree.
    #[track_caller]
    fn owners(&mut self) -> Vec<Option<usize>> {
        let ask = |field: &mut Field, client| (0..KEYS).map(|key| field.ask(client, key)).collect();
        let first: Vec<Option<usize>> = ask(self, 0);
        for client in 1..self.clients.len() {
            assert_eq!(first, ask(self, client) as Vec<_>, "client {client} has another ring");
        }
        first
    }

    /// Lets clients request `key` in turn, until one gets an answer that is not `old`. From then on
    /// no client may get the old one: all workers changed at once. It uses two keys, because one
    /// worker's answer for one key determines the others' answers for any key.
    #[track_caller]
    fn change(&mut self, keys: &[usize], is_old: impl Fn(Option<usize>) -> bool) {
        let start = Instant::now();
        let (mut turn, mut new) = (0, 0);
        while new < 20 * self.clients.len() {
            let client = turn % self.clients.len();
            let key = keys[turn / 3 % keys.len()];
            turn += 1;
            let answer = self.ask(client, key);
            let old = is_old(answer);
            assert!(
                !old || new == 0,
                "client {client} has {answer:?} for key{key} after {new} answers of the new ring"
            );
            new += usize::from(!old);
            assert!(
                start.elapsed() < DEADLINE,
                "it never changes: {}",
                self.quickack.process.stderr_text()
            );
        }
    }
}

/// A number that no server has.
const EMPTY: usize = usize::MAX;

/// The first changed answer decides: each later request sees the same ring, on any worker.
#[test]
fn a_server_of_memcacheds_leaves_and_returns_for_all_workers_at_once() {
    let mut field = Field::new(3, &[]);
    let owners = field.owners();
    for round in 0..3 {
        let gone = round % 3;
        let keys: Vec<usize> = (0..KEYS).filter(|key| owners[*key] == Some(gone)).collect();
        assert!(keys.len() >= 3, "{owners:?}");
        field.kill(gone);
        field.change(&keys, |answer| answer.is_none());
        let without = field.owners();
        for key in 0..KEYS {
            let stayed = owners[key] != Some(gone);
            assert!(!stayed || without[key] == owners[key], "key{key} moved for nothing");
            assert_ne!(without[key], Some(gone));
        }
        let epochs: Vec<u64> = workers(&field.quickack).values().map(|one| one.health).collect();
        assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
        field.restart(gone);
        // It comes back without data, for all workers or for none.
        field.change(&keys, |answer| answer != Some(EMPTY));
        field.fill(gone);
        assert_eq!(field.owners(), owners);
    }
}

/// A worker that starts meanwhile has the ring of the others.
#[test]
fn a_new_worker_before_memcached_begins_with_the_ring_of_the_others() {
    let mut field = Field::new(3, &["server_retry_timeout: 60000"]);
    let owners = field.owners();
    let keys: Vec<usize> = (0..KEYS).filter(|key| owners[*key] == Some(1)).collect();
    field.kill(1);
    field.change(&keys, |answer| answer.is_none());
    let without = field.owners();
    let old = workers(&field.quickack)[&0].pid;
    testkit::process::send(old, rustix::process::Signal::KILL);
    wait_until("worker 0 is there again", || {
        workers(&field.quickack).get(&0).is_some_and(|one| one.pid != old && one.is_serving())
    });
    field.clients.clear();
    wait_until("nobody is counted any more", || harness::clients(&field.quickack) == 0);
    let mut seen = [false; WORKERS];
    wait_until("each worker has a client", || {
        let (client, worker) = harness::client_of(&field.quickack);
        seen[worker] = true;
        field.clients.push(client);
        seen == [true; WORKERS]
    });
    assert_eq!(field.owners(), without);
}

/// Most have not met its failure, and one starts later.
#[test]
fn each_worker_says_why_the_only_server_is_out_before_memcached() {
    let mut field = Field::new(1, &["server_failure_limit: 1", "server_retry_timeout: 60000"]);
    field.kill(0);
    wait_until("it is ejected", || field.ejected() == 1);
    let address = field.memcacheds[0].address;
    let why = format!("SERVER_ERROR alpha: no server in the ring ({address}: ");
    let says_why = |client: &mut Client| {
        client.send("get key0\r\n");
        client.line().starts_with(&why)
    };
    for client in &mut field.clients {
        wait_until("it says why", || says_why(client));
    }
    field.clients.clear();
    wait_until("nobody is counted any more", || harness::clients(&field.quickack) == 0);
    harness::replace_worker(&field.quickack, workers(&field.quickack)[&0].pid, WORKERS);
    let of_new = || {
        let (client, worker) = harness::with_worker(&field.quickack, || field.quickack.client());
        field.clients.push(client);
        worker == 0
    };
    wait_until("the new worker has a client", of_new);
    let client = field.clients.last_mut().expect("it was waited for");
    wait_until("it says why, too", || says_why(client));
}

/// At most half of a pool is ejected by default; further failed servers stay and fail fast.
#[test]
fn no_more_memcacheds_leave_the_ring_than_may() {
    let mut field = Field::new(4, &[]);
    let owners = field.owners();
    (0..4).filter(|server| *server != 3).for_each(|server| field.kill(server));
    let start = Instant::now();
    loop {
        match field.ejected() {
            2 => break,
            ejected => assert!(ejected < 2, "{ejected} of 4 are out"),
        }
        assert!(start.elapsed() < DEADLINE, "{}", field.quickack.process.stderr_text());
    }
    // The third server that failed keeps its keys, and their requests get errors. The live server
    // has its own keys; the two share those of the two ejected servers.
    let lost = |owner: Option<usize>| owner.is_some_and(|owner| owner != 3);
    for _ in 0..5 {
        let after = field.owners();
        assert_eq!(field.ejected(), 2);
        for key in 0..KEYS {
            assert!(matches!(after[key], None | Some(3)), "key{key} of {after:?}");
            assert!(lost(owners[key]) || after[key] == Some(3), "key{key} moved for nothing");
        }
        assert!(after.contains(&None), "{after:?}");
        let moved = (0..KEYS).filter(|key| lost(owners[*key]) && after[*key] == Some(3)).count();
        assert!(moved > 0, "{after:?}");
    }
}

/// An ejection needs two failures, reported by live workers. A dead worker's report is forgotten,
/// and then no worker reports the server as down.
#[test]
fn what_a_dead_worker_has_reported_before_memcached_counts_no_more() {
    let memcached = Memcached::start();
    // It closes as many connections as it is told to, and says nothing to the others. A probe that
    // waits for an answer is no further failure, however long the test takes.
    let (closes, probes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (to_close, held) = (Arc::clone(&closes), Arc::clone(&probes));
    let second = listen(move |mut stream| {
        let less = |count: usize| count.checked_sub(1);
        if to_close.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
            held.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let servers = [memcached.address, second];
    let rules = [&RULES[..3], &["server_retry_timeout: 60000"]].concat();
    let quickack = harness::start(3, &[], &servers, &rules);
    // They have sent nothing yet: the workers know nothing of the second server.
    let (mut clients, mut spare) = (BTreeMap::new(), Vec::new());
    while clients.len() < 3 {
        assert!(spare.len() < 100, "a worker gets no client");
        let before = workers(&quickack);
        let client: Client = quickack.client();
        let mut found = None;
        wait_until("one worker has one client more", || {
            let after = workers(&quickack);
            found = before.keys().copied().find(|n| after[n].clients > before[n].clients);
            found.is_some()
        });
        // Each client stays: one that left might hide the next.
        spare.extend(clients.insert(found.expect("it was waited for"), client));
    }
    let health = || harness::stats(&quickack)["pools"][0]["servers"][1]["health"].clone();
    let mut fail = |worker: usize| {
        let client = clients.get_mut(&worker).expect("each has one");
        closes.store(1, Ordering::SeqCst);
        for key in 0..KEYS {
            client.send(format!("get key{key}\r\n"));
            match client.line().as_str() {
                "END" => {}
                line => {
                    assert!(line.starts_with("SERVER_ERROR "), "{line}");
                    return;
                }
            }
        }
        panic!("none of {KEYS} keys belongs to the second server");
    };
    // The next connection is another worker's then.
    let wait_for_probes = |count: usize| {
        wait_until("the probe waits for an answer", || probes.load(Ordering::SeqCst) == count);
    };
    assert_eq!(health(), "up");
    fail(0);
    wait_until("one worker says that it is down", || health() == "down");
    wait_for_probes(1);
    let old = workers(&quickack)[&0].pid;
    testkit::process::send(old, rustix::process::Signal::KILL);
    wait_until("worker 0 is there again", || {
        workers(&quickack).get(&0).is_some_and(|one| one.pid != old && one.is_serving())
    });
    assert_eq!(health(), "up", "nobody who is there has met it");
    fail(1);
    wait_until("another worker says that it is down", || health() != "up");
    assert_eq!(health(), "down", "one failure of a worker that lives is not two");
    wait_for_probes(2);
    fail(2);
    wait_until("two workers that live are enough", || health() == "ejected");
}

/// Under load: keys move, but no client gets another client's value or a mangled one.
#[test]
fn servers_of_memcacheds_that_come_and_go_under_load_mix_nothing_up() {
    let mut field = Field::new(3, &[]);
    let options = Options { trust: Trust::Old, rate: Some(3_000), ..Options::default() };
    let load = harness::load(&field.quickack, 40, options);
    for server in [0, 1] {
        field.kill(server);
        load.wait_for_requests(1_500);
        field.restart(server);
        load.wait_for_requests(1_500);
    }
    let tally = load.stop();
    println!("two servers went and came: {tally}");
    assert_eq!((tally.total().lost, tally.total().closed), (0, 0), "{tally}");
}
