//! Work of which nobody knows how long it takes, at a real server.

use rustix::process::Signal;
use testkit::process::{Family, Quickack, Redis, Speaker, send, wait_until};
use testkit::wire::resp::{Reply, command};

use super::with_workers;
use crate::harness;

const WORKERS: usize = 4;
/// So many clients of each.
const CLIENTS: u64 = 4;

/// A Redis that executes nothing for the moment shows how much would keep it deaf for others. Each
/// round has another script, of which nothing is known.
#[test]
fn of_work_that_nobody_has_measured_four_are_outstanding_at_a_redis() {
    let redis = Redis::start(Family::Redis70);
    let (quickack, mut clients) = beside(&redis);
    for round in 0..20 {
        let script = command(&["EVAL", &format!("return {round}"), "0"]).repeat(2);
        // The workers say so some time after the last answer.
        wait_until("nothing is read", || read(&quickack) == 0);
        redis.process.freeze();
        clients.iter_mut().for_each(|client| client.send(&script));
        wait_until("all is read", || read(&quickack) == 2 * clients.len() as u64);
        let outstanding = harness::total(&quickack, "inflight");
        assert!((1..=4).contains(&outstanding), "{outstanding} are outstanding in round {round}");
        redis.process.thaw();
        clients.iter_mut().for_each(|client| expect(client, 2, round));
    }
}

/// A hundred quick ones say little of a hundred at once, each of which may take long.
#[test]
fn of_a_script_that_was_quick_some_hundred_times_few_are_outstanding_at_a_redis() {
    const QUICK: usize = 100;
    let redis = Redis::start(Family::Redis70);
    let (quickack, mut clients) = beside(&redis);
    let most = WORKERS + QUICK * clients.len() / 256;
    for round in 0..5 {
        let script = command(&["EVAL", &format!("return {round}"), "0"]).repeat(QUICK);
        clients.iter_mut().for_each(|client| client.send(&script));
        clients.iter_mut().for_each(|client| expect(client, QUICK, round));
        wait_until("nothing is read", || read(&quickack) == 0);
        redis.process.freeze();
        clients.iter_mut().for_each(|client| client.send(&script));
        wait_until("all are sent or wait", || read(&quickack) >= 16 * clients.len() as u64);
        let outstanding = harness::total(&quickack, "inflight") as usize;
        assert!((1..=most).contains(&outstanding), "{outstanding} are outstanding, not {most}");
        redis.process.thaw();
        clients.iter_mut().for_each(|client| expect(client, QUICK, round));
    }
}

/// Otherwise less and less would leave for the server, and at last one of each worker.
#[test]
fn the_work_of_workers_that_are_killed_counts_no_more() {
    let redis = Redis::start(Family::Redis70);
    let (quickack, mut clients) = beside(&redis);
    let work = || harness::total(&quickack, "work_us");
    wait_until("nothing is read", || read(&quickack) == 0);
    redis.process.freeze();
    let script = command(&["EVAL", "return 1", "0"]);
    clients.iter_mut().for_each(|client| client.send(&script));
    wait_until("all is read", || read(&quickack) == clients.len() as u64);
    assert_ne!(work(), 0);
    for worker in harness::workers(&quickack).values() {
        send(worker.pid, Signal::KILL);
    }
    wait_until("it is forgotten", || work() == 0);
    redis.process.thaw();
    let mut client = Speaker::connect(quickack.address());
    wait_until("the server is asked again", || {
        client.ask(&["EVAL", "return 2", "0"]) == Reply::Integer(2)
    });
}

/// Returns the proxy of a server, and clients of each of its workers.
fn beside(redis: &Redis) -> (Quickack, Vec<Speaker>) {
    let quickack = with_workers(WORKERS, &[redis.address], &["timeout: 60s"]);
    let mut clients: Vec<Speaker> = Vec::new();
    wait_until("each worker has clients", || {
        let mut client = Speaker::connect(quickack.address());
        assert_eq!(client.say("GET k"), Reply::Null(b'$'));
        clients.push(client);
        let each = harness::wait_for_clients(&quickack, clients.len() as u64);
        each.iter().all(|count| *count >= CLIENTS)
    });
    (quickack, clients)
}

/// Reads so many answers of a client.
fn expect(client: &mut Speaker, count: usize, answer: i64) {
    for _ in 0..count {
        assert_eq!(client.reply(), Ok(Reply::Integer(answer)));
    }
}

/// Returns the number of requests that workers have read and not answered.
fn read(quickack: &Quickack) -> u64 {
    let workers = harness::stats(quickack)["workers"].clone();
    workers.as_array().into_iter().flatten().filter_map(|one| one["requests"].as_u64()).sum()
}
