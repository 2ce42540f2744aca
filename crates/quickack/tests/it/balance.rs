//! The distribution of clients over workers, when they connect and stay: one row for each method of
//! accepting.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::process::{Client, Facts, Quickack, send, wait_until};

use super::harness::{self, Worker, wait_for_workers, workers};

const WORKERS: usize = 8;

/// Returns each worker's clients after `count` of them connect in a burst and stay.
fn spread(accept: &str, count: usize) -> Vec<u64> {
    let (_memcached, quickack) =
        harness::field(WORKERS, &[&format!("accept: {accept}")], &["backlog: 4096"]);
    let mut clients: Vec<Client> = (0..count).map(|_| quickack.client()).collect();
    let spread = harness::wait_for_clients(&quickack, count as u64);
    // They are served, not only accepted.
    for client in clients.iter_mut().step_by(count / 16) {
        client.ask("get a\r\n", "END\r\n");
    }
    let (most, least) = (spread.iter().max(), spread.iter().min());
    println!(
        "{accept}, {count} clients: {spread:?}, {most:?} - {least:?}, {:.3}",
        evenness(&spread)
    );
    spread
}

/// Returns the largest number relative to the average.
fn evenness(spread: &[u64]) -> f64 {
    let sum: u64 = spread.iter().sum();
    let most = spread.iter().copied().max().unwrap_or(0);
    most as f64 * spread.len() as f64 / sum as f64
}

#[test]
fn the_gate_deals_64_clients_of_memcached_to_within_two() {
    let spread = spread("gate", 64);
    let (most, least) = (spread.iter().max(), spread.iter().min());
    assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 2), "{spread:?}");
}

#[test]
fn the_gate_deals_400_clients_of_memcached_evenly() {
    let spread = spread("gate", 400);
    assert!(evenness(&spread) <= 1.1, "{spread:?}");
}

#[test]
fn the_gate_deals_4000_clients_of_memcached_evenly() {
    let spread = spread("gate", 4_000);
    assert!(evenness(&spread) <= 1.1, "{spread:?}");
}

/// The kernel distributes by a hash of the addresses. With 64 clients only wide limits hold; with
/// 400 the result is random too, so one of three attempts must be within the limits.
#[test]
fn reuseport_deals_400_clients_of_memcached_as_the_kernel_hashes() {
    // Six sigma of 64 balls in 8 urns.
    let few = spread("reuseport", 64);
    let idle = few.iter().filter(|count| **count == 0).count();
    assert!(few.len() == WORKERS && evenness(&few) <= 3.0 && idle <= 2, "{few:?}");
    let throws: Vec<f64> = (0..3).map(|_| evenness(&spread("reuseport", 400))).collect();
    assert!(throws.iter().any(|evenness| *evenness <= 1.35), "{throws:?}");
}

#[test]
fn the_mutex_leaves_nobody_without_clients_of_memcached() {
    // A worker that a busy machine does not let run during the burst gets none of it.
    let is_even =
        |spread: &Vec<u64>| spread.iter().all(|count| *count > 0) && evenness(spread) <= 1.5;
    let mut tries = Vec::new();
    let found = (0..10).any(|_| {
        tries.push(spread("mutex", 400));
        tries.last().is_some_and(is_even)
    });
    assert!(found, "{tries:?}");
}

/// The distribution stays even when clients leave and connect again.
#[test]
fn the_gate_evens_out_what_left_one_worker_of_memcacheds_empty() {
    let (_memcached, quickack) = harness::field(4, &["accept: gate"], &[]);
    let mut clients: Vec<Option<(Client, usize)>> =
        (0..32).map(|_| Some(harness::client_of(&quickack))).collect();
    for client in &mut clients {
        if client.as_ref().is_some_and(|(_, worker)| *worker == 1) {
            *client = None;
        }
    }
    wait_until("worker 1 is empty", || workers(&quickack)[&1].clients == 0);
    // The gate may have given it one more or less than the others.
    let left = clients.iter().flatten().count() as u64;
    let new: Vec<Client> = (0..8).map(|_| quickack.client()).collect();
    wait_until("the new ones are taken", || {
        workers(&quickack).values().map(|worker| worker.clients).sum::<u64>() == left + 8
    });
    let counts: Vec<u64> = workers(&quickack).values().map(|worker| worker.clients).collect();
    assert!(counts[1] >= 6, "{counts:?}");
    drop(new);
}

/// Returns the number of writes to the worker's own eventfd: nobody reads it, because the kernel
/// reports each write. The worker's epoll identifies it by the wakeup token.
fn wakeups(worker: u32) -> u64 {
    let folder = format!("/proc/{worker}/fdinfo");
    let files = std::fs::read_dir(&folder).expect("the worker is there").map(|file| {
        std::fs::read_to_string(file.expect("a folder can be read").path()).unwrap_or_default()
    });
    let row = files
        .flat_map(|text| text.lines().map(str::to_string).collect::<Vec<_>>())
        .find(|line| line.starts_with("tfd:") && line.contains(POKE));
    let row = row.expect("its own eventfd is in its epoll");
    let fd = row.split_whitespace().nth(1).expect("a number");
    let text = std::fs::read_to_string(format!("{folder}/{fd}")).expect("it is open");
    let count = text.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
    u64::from_str_radix(count.expect("an eventfd").trim(), 16).expect("it is told in hex")
}

/// The token in an epoll's `fdinfo`.
const POKE: &str = "data: fffffffffffffffd ";

/// A dead worker's waiting connections are not left alone: the other workers are woken. A worker
/// that begins to serve is also woken, because the others may have left connections to it.
#[test]
fn the_master_wakes_the_others_of_a_dead_worker_before_memcached_and_its_successor() {
    let (_memcached, quickack) = harness::field(3, &["accept: gate"], &[]);
    let before = workers(&quickack);
    let counts = |of: &BTreeMap<usize, Worker>| -> Vec<u64> {
        of.values().map(|worker| wakeups(worker.pid)).collect()
    };
    wait_until("each was told to look when it began", || {
        counts(&before).iter().all(|count| *count > 0)
    });
    // There are no clients, so the workers have no reason to wake each other.
    let old = counts(&before);
    send(before[&1].pid, Signal::KILL);
    let mut after = before.clone();
    wait_until("a successor serves", || {
        after = workers(&quickack);
        after.get(&1).is_some_and(|one| one.pid != before[&1].pid && one.is_serving())
    });
    // Its eventfd is that of the dead worker: the master keeps them.
    wait_until("all three are told", || counts(&after).iter().zip(&old).all(|(a, b)| a > b));
    let new: Vec<u64> = counts(&after).iter().zip(&old).map(|(after, old)| after - old).collect();
    assert_eq!(new, [1, 1, 1]);
}

#[test]
fn there_is_a_wakeup_for_each_worker_and_no_more_before_memcached() {
    let (memcached, quickack) = harness::field(2, &[], &[]);
    let wakeups = |process: u32| {
        let folder = format!("/proc/{process}/fd");
        let files = std::fs::read_dir(folder).expect("the process is there");
        let links = files.map(|file| std::fs::read_link(file.expect("it can be read").path()));
        links
            .filter(|link| link.as_ref().is_ok_and(|it| it.ends_with("anon_inode:[eventfd]")))
            .count()
    };
    for count in [2, 4, 3] {
        quickack.rewrite(&harness::text(count, &[], &[memcached.address], &[]));
        quickack.admin_ok(&["reload"]);
        let workers = harness::wait_for_workers(&quickack, count);
        // They are kept for workers that come again.
        let kept = count.max(if count == 3 { 4 } else { 2 });
        assert_eq!(wakeups(quickack.process.id()), kept, "{count} workers");
        assert!(workers.values().all(|one| wakeups(one.pid) == kept), "{count} workers");
    }
}

/// Returns the worker that holds the accept mutex, if there is one.
fn holder(quickack: &Quickack) -> Option<u32> {
    let locks = std::fs::read_to_string("/proc/locks").expect("the kernel lists its locks");
    let workers: Vec<u32> = quickack.workers().into_values().collect();
    let pids = locks.lines().filter(|line| line.contains("POSIX") && !line.contains("->"));
    let pids = pids.filter_map(|line| line.split_whitespace().nth(4)?.parse().ok());
    pids.into_iter().find(|pid| workers.contains(pid))
}

/// While all workers are idle, one waits at the listener, and a client wakes only that one. A
/// worker with more than its share wakes the one that is to wait in its place. A thundering herd
/// would wake all eight.
#[test]
fn in_mutex_mode_a_client_of_memcached_wakes_one_idle_worker() {
    let global = ["accept: mutex", "epoll_timeout: 5s", "hang_timeout: 0"];
    let (_memcached, quickack) = harness::field(WORKERS, &global, &[]);
    wait_until("somebody holds the mutex", || holder(&quickack).is_some());
    let workers = Facts::of(quickack.workers().into_values());
    let start = Instant::now();
    const COUNT: u64 = 100;
    let (mut clients, before) = (Vec::new(), workers.wakeups());
    for n in 1..=COUNT {
        clients.push(TcpStream::connect(quickack.address()).expect("somebody accepts"));
        wait_until("it is taken, and somebody waits for the next", || {
            harness::clients(&quickack) == n && holder(&quickack).is_some()
        });
    }
    let woken = workers.wakeups() - before;
    println!("mutex: {COUNT} clients woke {woken} workers");
    // One for each client, one for the next holder at every second or third, and the heartbeats.
    let beats = WORKERS as u64 * (start.elapsed().as_secs() / 5);
    assert!(woken <= 2 * COUNT + beats, "{woken} wake-ups for {COUNT} clients");
}

/// The kernel releases the lock of a dead process, and another one soon takes it.
#[test]
fn a_killed_holder_of_the_mutex_before_memcached_is_followed_by_another() {
    let epoll_timeout = Duration::from_millis(500);
    let global = ["accept: mutex", "epoll_timeout: 500ms"];
    let (_memcached, quickack) = harness::field(4, &global, &[]);
    for _ in 0..5 {
        let mut found = None;
        wait_until("somebody holds the mutex", || {
            found = holder(&quickack);
            found.is_some()
        });
        let old = found.expect("it was waited for");
        send(old, Signal::KILL);
        let start = Instant::now();
        wait_until("another holds it", || holder(&quickack).is_some_and(|now| now != old));
        let took = start.elapsed();
        // The others check after that time; the rest is for a busy machine.
        assert!(took <= 20 * epoll_timeout, "{took:?} after the holder's death");
        let mut client = quickack.client();
        client.ask("get a\r\n", "END\r\n");
        wait_for_workers(&quickack, 4);
    }
}
