//! Workers that are killed, stopped or hang, under a load that checks every reply: the effect on
//! each client.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::load::{Counts, Load, Options, Tally, Trust};
use testkit::process::facts::command_line;
use testkit::process::{
    DEADLINE, Facts, Memcached, Quickack, freeze, send, wait_until, wait_until_within,
};

use super::harness::{self, Worker, wait_for_workers, workers};
use super::{QUICKACK, config};

/// Returns the counts of `after` minus those of `before`.
fn since(before: &Tally, after: &Tally) -> Tally {
    let rows = after.connections.iter().zip(&before.connections);
    let row = |(after, before): (&Counts, &Counts)| Counts {
        requests: after.requests - before.requests,
        gets: after.gets - before.gets,
        updates: after.updates - before.updates,
        failed: after.failed - before.failed,
        lost: after.lost - before.lost,
        closed: after.closed - before.closed,
        connected: after.connected - before.connected,
        refused: after.refused - before.refused,
    };
    Tally { connections: rows.map(row).collect(), errors: after.errors.clone() }
}

/// Kills a worker, and waits until its successor has a client. Only the dead worker's clients
/// notice, and each of them at most once. Returns the time taken.
fn kill_one(quickack: &Quickack, load: &Load, victim: usize) -> Duration {
    let (before, tally) = (workers(quickack), load.tally());
    let start = Instant::now();
    send(before[&victim].pid, Signal::KILL);
    let mut after = before.clone();
    wait_until("the successor has a client", || {
        // The clients that were cut off have already connected to other workers, so a new client
        // must connect.
        let mut probe = quickack.client();
        probe.ask("get nobody-has-this\r\n", "END\r\n");
        after = workers(quickack);
        let successor = after.get(&victim);
        successor.is_some_and(|one| one.pid != before[&victim].pid && one.clients > 0)
    });
    let took = start.elapsed();
    load.wait_for_everybody();
    let harm = since(&tally, &load.tally());
    harm.assert_lost_at_most(1);
    let clients = before[&victim].clients;
    assert!(harm.noticed() as u64 <= clients, "{clients} clients were the victim's: {harm}");
    assert_eq!(harm.total().connected, harm.total().lost + harm.total().closed, "{harm}");
    let pids = |workers: &std::collections::BTreeMap<usize, Worker>| -> Vec<(usize, u32)> {
        let others = workers.iter().filter(|(number, _)| **number != victim);
        others.map(|(number, worker)| (*number, worker.pid)).collect()
    };
    assert_eq!(pids(&before), pids(&after), "the others stay");
    took
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
fn forty_kills_cost_each_client_of_memcached_one_request_at_most() {
    let (_memcached, quickack) = harness::field(4, &["worker_cpu_affinity: auto"], &[]);
    let load = harness::load(&quickack, 64, Options { rate: Some(10_000), ..Options::default() });
    let cpus = |number: usize| Facts::of([workers(&quickack)[&number].pid]).cpus_allowed();
    let before: Vec<_> = (0..4).map(cpus).collect();
    assert!(before.iter().all(|cpus| !cpus[0].contains([',', '-'])), "{before:?}");
    let held = quickack.process.facts().descriptors();
    // A worker that repeatedly dies soon after its start gets pauses; these must be killed later.
    let mut served_since = [Instant::now(); 4];
    let (mut times, mut starts) = (Vec::new(), Vec::new());
    for victim in (0..4).cycle().take(40) {
        wait_until("it is no early death", || served_since[victim].elapsed() > YOUTH);
        times.push(kill_one(&quickack, &load, victim));
        starts.push(start_of_a_process());
        served_since[victim] = Instant::now();
    }
    wait_until("nothing is held of the dead", || quickack.process.facts().descriptors() <= held);
    let (median, longest) = (median(times.clone()), times.iter().max().copied());
    let tally = load.stop();
    println!("40 kills: successor's first client after {median:?}, {longest:?} at most; {tally}");
    let most = Duration::from_millis(100).max(20 * self::median(starts));
    assert!(median <= most, "{median:?} of {most:?}: {times:?}");
    assert_eq!((0..4).map(cpus).collect::<Vec<_>>(), before, "each on its processor again");
}

/// Returns the time that this machine takes at this moment to start the program and to see its end:
/// 2 ms if it has nothing else to do.
fn start_of_a_process() -> Duration {
    let start = Instant::now();
    let output = Command::new(QUICKACK).arg("--version").output();
    assert!(output.is_ok_and(|output| output.status.success()));
    start.elapsed()
}

/// A little longer than the limit of an early death in the master.
const YOUTH: Duration = Duration::from_millis(250);

#[test]
fn of_twenty_workers_before_memcached_one_takes_a_twentieth_with_it() {
    let (_memcached, quickack) = harness::field(20, &[], &[]);
    let load = harness::load(&quickack, 200, Options { rate: Some(4_000), ..Options::default() });
    let before = load.tally();
    for victim in [0, 7, 19] {
        let clients = workers(&quickack)[&victim].clients;
        assert!(clients <= 200 / 20 + 2, "{clients} of 200 clients at one of 20 workers");
        kill_one(&quickack, &load, victim);
    }
    let harm = since(&before, &load.stop());
    assert!(harm.noticed() <= 3 * (200 / 20 + 2), "{harm}");
}

#[test]
fn titles_say_which_process_is_which_before_memcached() {
    let (_memcached, quickack) = harness::field(3, &[], &[]);
    assert_eq!(command_line(quickack.process.id()), "quickack: master (quickack.yml)");
    let pids = quickack.workers();
    assert_eq!(pids.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
    let told: Vec<u32> = workers(&quickack).values().map(|worker| worker.pid).collect();
    assert_eq!(pids.into_values().collect::<Vec<_>>(), told);
}

/// Its heartbeat stands still: it is replaced, and only its own clients notice.
#[test]
fn a_stopped_worker_before_memcached_is_found_by_its_heartbeat() {
    let (_memcached, quickack) = harness::field(4, &["hang_timeout: 5s"], &[]);
    let load = harness::load(&quickack, 40, Options { rate: Some(4_000), ..Options::default() });
    let (before, tally) = (workers(&quickack), load.tally());
    let start = Instant::now();
    freeze(before[&2].pid);
    let mut after = before.clone();
    wait_until("the stopped worker is replaced", || {
        after = workers(&quickack);
        after.get(&2).is_some_and(|one| one.pid != before[&2].pid && one.is_serving())
    });
    let took = start.elapsed();
    // On a busy machine its last heartbeat was some time before it was stopped.
    assert!(took >= Duration::from_secs(3), "{took:?} is too soon to call it hung");
    assert!(took < Duration::from_secs(18), "{took:?} with a hang_timeout of 5 s");
    load.wait_for_everybody();
    let harm = since(&tally, &load.stop());
    harm.assert_lost_at_most(1);
    assert!(harm.noticed() as u64 <= before[&2].clients, "{harm}");
    for number in [0, 1, 3] {
        assert_eq!(before[&number].pid, after[&number].pid);
    }
    let said = quickack.process.stderr_text();
    assert!(said.contains("worker 2"), "{said}");
}

/// An idle worker turns rarely, which must not make it count as hung.
#[test]
fn workers_that_have_nothing_to_do_are_not_hung_before_memcached() {
    let (_memcached, quickack) = harness::field(3, &["hang_timeout: 1s"], &[]);
    let (mut before, mut start) = (quickack.workers(), Instant::now());
    wait_until_within(2 * DEADLINE, "all stay for five times as long", || {
        let now = quickack.workers();
        if now != before {
            // A very busy machine may have kept one from its turn for as long. If to be idle were
            // to hang, that would happen in each of these times.
            (before, start) = (now, Instant::now());
        }
        before.len() == 3 && start.elapsed() > Duration::from_secs(5)
    });
}

const EMBEDDED: &str = "alpha:\n  listen: 127.0.0.1:0\n  memory: 16m\n  servers: [embedded]\n";

#[test]
fn an_embedded_cache_that_is_killed_costs_its_items_and_no_worker() {
    let config = format!("global:\n  workers: 2\n{EMBEDDED}");
    let quickack = Quickack::start(QUICKACK, &config);
    let before = wait_for_workers(&quickack, 2);
    let options = Options { trust: Trust::Misses, rate: Some(2_000), ..Options::default() };
    let load = harness::load(&quickack, 20, options);
    for _ in 0..3 {
        let caches = quickack.caches();
        assert_eq!(caches.len(), 1);
        send(caches[0], Signal::KILL);
        wait_until("a new cache is there", || {
            quickack.caches().first().is_some_and(|id| *id != caches[0])
        });
        // The service is restored when every connection has an answer without an error.
        let mut failed = load.tally().total().failed;
        wait_until("nobody is refused any more", || {
            load.wait_for_everybody();
            let before = std::mem::replace(&mut failed, load.tally().total().failed);
            before == failed
        });
    }
    let tally = load.stop();
    println!("3 kills of the cache: {tally}");
    assert_eq!((tally.total().lost, tally.total().closed), (0, 0), "{tally}");
    let same = |one: &Worker, other: &Worker| one.pid == other.pid;
    assert!(before.values().zip(workers(&quickack).values()).all(|(a, b)| same(a, b)));
}

#[test]
fn what_an_embedded_cache_holds_outlives_workers_and_reloads() {
    let config = format!("global:\n  workers: 2\n{EMBEDDED}");
    let quickack = Quickack::start(QUICKACK, &config);
    wait_for_workers(&quickack, 2);
    let load = harness::load(&quickack, 10, Options { rate: Some(2_000), ..Options::default() });
    let cache = quickack.caches();
    let cas = store_with_marks(&quickack);
    for n in 0..4 {
        kill_one(&quickack, &load, n % 2);
        quickack
            .rewrite(&config.replace("  memory", &format!("  timeout: {}\n  memory", 60_000 + n)));
        quickack.admin_ok(&["reload"]);
    }
    load.stop().assert_lost_at_most(4);
    assert_eq!(quickack.caches(), cache);
    let mut client = quickack.client();
    client.ask("mg fresh v f c s h\r\n", &format!("VA 5 f7 c{cas} s5 h0\r\nhello\r\n"));
    client.ask("mg stale v\r\n", "VA 3 Z X\r\nold\r\n");
    client.ask("mg AAEK b v\r\n", "VA 1\r\n!\r\n");
    client.ask(&format!("cas fresh 0 0 1 {cas}\r\nx\r\n"), "STORED\r\n");
}

/// Stores items with all marks of meta commands; returns the cas of `fresh`.
fn store_with_marks(quickack: &Quickack) -> String {
    let mut client = quickack.client();
    client.send("ms fresh 5 F7 T1000 c\r\nhello\r\n");
    let line = client.line();
    let cas = line.strip_prefix("HD c").expect("it was stored").to_string();
    client.ask("ms stale 3\r\nold\r\nmd stale I\r\n", "HD\r\nHD\r\n");
    client.ask("mg stale v\r\n", "VA 3 X W\r\nold\r\n");
    client.ask("ms AAEK 1 b\r\n!\r\n", "HD\r\n");
    cas
}

/// By then the file on disk is another version, or missing.
#[test]
fn a_worker_before_memcached_is_started_again_from_the_masters_own_image() {
    let memcached = Memcached::start();
    let folder = tempfile::tempdir().expect("a folder for a copy of the program");
    let copy = folder.path().join("quickack");
    std::fs::copy(QUICKACK, &copy).expect("the program can be copied");
    let program = copy.to_str().expect("the folder has a plain name");
    let text = format!("global:\n  workers: 2\n{}", config(&[memcached.address], &[]));
    let quickack = Quickack::start_by(Command::new(program), program, &text);
    wait_for_workers(&quickack, 2);
    std::fs::remove_file(&copy).expect("it is ours");
    std::fs::write(&copy, "#!/bin/sh\nexit 7\n").expect("it is ours");
    let load = harness::load(&quickack, 10, Options { rate: Some(1_000), ..Options::default() });
    kill_one(&quickack, &load, 0);
    load.stop().assert_lost_at_most(1);
    let image = std::fs::read_link(format!("/proc/{}/exe", workers(&quickack)[&0].pid));
    assert!(image.as_deref().is_ok_and(|image| image != Path::new(program)), "{image:?}");
}

/// A worker that dies right after each start is started with growing pauses, and the others
/// continue.
#[test]
fn a_worker_that_dies_again_and_again_is_given_pauses_before_memcached() {
    let (_memcached, quickack) = harness::field(2, &[], &[]);
    let load = harness::load(&quickack, 10, Options { rate: Some(1_000), ..Options::default() });
    let (start, mut deaths) = (Instant::now(), 0);
    let mut last = 0;
    wait_until_within(Duration::from_secs(20), "six deaths", || {
        if let Some(pid) = quickack.workers().get(&0).filter(|pid| **pid != last) {
            last = *pid;
            deaths += 1;
            send(*pid, Signal::KILL);
        }
        deaths == 6
    });
    let took = start.elapsed();
    // The pauses between them: 0 + 0 + 100 + 200 + 400 ms.
    assert!(took > Duration::from_millis(500), "six deaths in {took:?}");
    wait_for_workers(&quickack, 2);
    load.wait_for_everybody();
    load.stop().assert_lost_at_most(6);
}
