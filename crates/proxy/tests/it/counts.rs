//! The counters of a worker, its pools and their servers. Operators and their alarms read these
//! numbers, so each is tested where it is counted.

use std::fmt::Debug;

use metrics::{Counter, PoolCounter, Process, ServerCounter, WorkerCounter};
use proto::protocol;
use proxy::Closed;
use shard::Distribution;

use crate::stage::{POOL, S0, SECOND, Stage};

const PUBLISHED: u64 = SECOND / 10;

/// Checks counters of one id.
#[track_caller]
fn check<C: Counter + Debug>(stage: &Stage, id: u32, expected: &[(C, u64)]) {
    for (counter, count) in expected {
        assert_eq!(stage.registry.total(id, *counter), *count, "{counter:?}");
    }
}

#[test]
fn what_clients_ask_is_counted_for_their_pool() {
    use PoolCounter::*;
    let (mut stage, link) = Stage::of_one();
    let (client, other) = (stage.client(), stage.client());
    let asked = "get x y\r\nset x 0 0 1\r\nX\r\nfoo\r\nversion\r\ndelete x noreply\r\n";
    stage.says(client, asked);
    assert_eq!(stage.turn(link), "get x y\r\nset x 0 0 1\r\nX\r\ndelete x\r\n");
    stage.says(link, "VALUE y 0 1\r\nY\r\nEND\r\nSTORED\r\nDELETED\r\n");
    let told = stage.received(client);
    let expected = [
        (ClientsNow, 2),
        (ClientsTotal, 2),
        (Requests, 5),
        (Refused, 1),
        (Local, 1),
        (KeysAsked, 2),
        (Fragments, 2),
        (Hits, 1),
        (Misses, 1),
        (Stores, 1),
        (ReceivedBytes, asked.len() as u64),
        (SentBytes, told.len() as u64),
        (Failed, 0),
        (Cancelled, 0),
        (Paused, 0),
    ];
    check(&stage, POOL, &expected);
    // A read of one key is no fragment. Clients that leave are told apart by how they do.
    stage.says(other, "get x\r\ndelete y\r\n");
    stage.turn(link);
    stage.closes(other, Closed::Reset);
    check(&stage, POOL, &[(ClientsLost, 1), (ClientsEnded, 0), (Cancelled, 2), (ClientsNow, 1)]);
    stage.closes(client, Closed::Eof);
    check(&stage, POOL, &[(ClientsLost, 1), (ClientsEnded, 1), (Cancelled, 2), (ClientsNow, 0)]);
    check(&stage, POOL, &[(KeysAsked, 3), (Fragments, 2), (ClientsTotal, 2)]);
}

/// Each of them is a request of its client, with an answer of its own.
#[test]
fn requests_that_are_refused_are_requests_wherever_they_are_refused() {
    use PoolCounter::*;
    let (mut stage, link) = Stage::of_one();
    stage.install(|plan| plan.pools[0].item_size_max = 9);
    let client = stage.client();
    for (request, answer) in [
        ("frobnicate\r\n", "ERROR\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("set x 0 0 1\r\nXYZ", "CLIENT_ERROR bad data chunk\r\n"),
        ("\r\n", "ERROR\r\n"),
    ] {
        let before = stage.registry.total(POOL, Requests);
        stage.says(client, request);
        assert_eq!(stage.received(client), answer, "{request}");
        check(&stage, POOL, &[(Requests, before + 1), (Refused, before + 1)]);
    }
    // The key of a value that is too large is removed.
    stage.says(client, "set x 0 0 10\r\n0123456789\r\n");
    assert_eq!(stage.turn(link), "delete x\r\n");
    stage.says(link, "DELETED\r\n");
    assert!(stage.received(client).starts_with("SERVER_ERROR object too large"));
    check(&stage, POOL, &[(Requests, 5), (Refused, 5)]);
    stage.says(client, &"x".repeat(5_000));
    check(&stage, POOL, &[(Requests, 6), (Refused, 6)]);
}

#[test]
fn quiet_reads_that_are_joined_count_as_many_requests() {
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let header = [0x80, 0x0d, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
    let asked = [b'x', b'y', b'z'].map(|key| [&header[..], &[0; 12], &[key]].concat()).concat();
    stage.says_bytes(client, &asked);
    assert_eq!(stage.turn(link), "gets x y z\r\n");
    check(&stage, POOL, &[(PoolCounter::Requests, 3), (PoolCounter::KeysAsked, 3)]);
}

#[test]
fn what_a_server_is_asked_and_answers_is_counted_for_it() {
    use ServerCounter::*;
    let mut stage = Stage::new(&["s0"], |pool| (pool.preconnect, pool.hold_after) = (true, None));
    let link = stage.connect(0);
    let (a, b) = (stage.client(), stage.client());
    check(&stage, S0, &[(Connects, 1), (Probes, 0), (Messages, 0)]);
    stage.says(a, "get x\r\n");
    stage.says(b, "get y\r\ndelete z\r\n");
    let sent = "get x y\r\ndelete z\r\n";
    assert_eq!(stage.turn(link), sent);
    stage.passes(PUBLISHED);
    let inflight = [(InflightNow, 2), (InflightBytesNow, sent.len() as u64)];
    check(&stage, S0, &inflight);
    // Of one request's keys none is merged.
    stage.says(a, "get x y\r\n");
    assert_eq!(stage.turn(link), "get x y\r\n");
    let replies = "END\r\nSERVER_ERROR no\r\nEND\r\n";
    stage.says(link, replies);
    let (hello, welcome) = ("version\r\n".len(), "VERSION 1.6.18\r\n".len());
    let expected = [
        (Messages, 3),
        (Merged, 2),
        (MessageBytes, (hello + sent.len() + 9) as u64),
        (Replies, 3),
        (Errors, 1),
        (ReplyBytes, (welcome + replies.len()) as u64),
        (AskedAlone, 0),
        (AskedAgain, 0),
        (LinkLost, 0),
        (Held, 0),
    ];
    check(&stage, S0, &expected);
    // Messages that the kernel does not take are pending.
    stage.says(a, "delete x\r\ndelete y\r\n");
    stage.end_turn();
    assert_eq!(stage.received_some(link, 3), "del");
    stage.passes(PUBLISHED);
    check(&stage, S0, &[(PendingNow, 1), (PendingBytesNow, 17), (InflightNow, 1)]);
    check(&stage, S0, &[(InflightBytesNow, 3), (LinksNow, 1)]);
}

#[test]
fn keys_that_are_asked_once_more_or_alone_are_counted() {
    use ServerCounter::*;
    let (mut stage, link) = Stage::of_one();
    let (a, b) = (stage.client(), stage.client());
    stage.handshake(link);
    stage.says(a, "get x\r\n");
    stage.says(b, "get y\r\n");
    stage.turn(link);
    stage.says(link, "SERVER_ERROR no\r\n");
    assert_eq!(stage.turn(link), "get x\r\nget y\r\n");
    check(&stage, S0, &[(AskedAlone, 2), (AskedAgain, 0), (Messages, 4)]);
    stage.closes(link, Closed::Eof);
    check(&stage, S0, &[(LinkLost, 1), (LinkEnded, 1), (AskedAgain, 2), (AskedAlone, 2)]);
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get x\r\nget y\r\n");
    stage.says(link, "END\r\nEND\r\n");
    stage.closes(link, Closed::Reset);
    check(&stage, S0, &[(LinkLost, 2), (LinkEnded, 1), (AskedAgain, 2), (AskedAlone, 2)]);
}

#[test]
fn connects_that_fail_are_counted_by_their_reason() {
    use ServerCounter::*;
    let reasons = [
        (Closed::Reset, [(ConnectFailed, 1), (ConnectUnable, 0), (ConnectTimeout, 0)]),
        (Closed::Eof, [(ConnectFailed, 1), (ConnectUnable, 0), (ConnectTimeout, 0)]),
        (Closed::Own, [(ConnectFailed, 0), (ConnectUnable, 1), (ConnectTimeout, 0)]),
    ];
    for (how, expected) in reasons {
        let mut stage = Stage::new(&["s0"], |pool| pool.preconnect = true);
        stage.closes(stage.connects[0].0, how);
        check(&stage, S0, &expected);
        check(&stage, S0, &[(Connects, 0)]);
        assert_eq!(stage.registry.total(0, WorkerCounter::Connects), 1);
    }
    // The first answer after a failure is a probe's.
    let mut stage = Stage::new(&["s0"], |pool| pool.preconnect = true);
    let (link, _) = stage.connects.remove(0);
    stage.closes(link, Closed::Reset);
    stage.passes(SECOND);
    stage.connect(0);
    check(&stage, S0, &[(Connects, 1), (Probes, 1)]);
}

#[test]
fn a_worker_counts_its_turns_plans_clients_and_bytes() {
    use WorkerCounter::*;
    let mut stage = Stage::of(&["s0"], |plan| plan.clients_max = 1);
    let client = stage.client();
    assert!(stage.accept().is_err());
    check(&stage, 0, &[(Accepts, 1), (AcceptsRefused, 1), (ClientsNow, 1), (Installs, 0)]);
    stage.install(|_| {});
    stage.says(client, &format!("set x 0 0 200\r\n{}", "X".repeat(101)));
    (0..3).for_each(|_| stage.end_turn());
    stage.passes(PUBLISHED);
    check(&stage, 0, &[(Installs, 1), (Turns, 3), (BufferBytesNow, stage.memory() as u64)]);
    assert!(stage.memory() > 100, "{} bytes", stage.memory());
    stage.says(client, &format!("{}\r\n", "X".repeat(99)));
    stage.end_turn();
    stage.passes(PUBLISHED);
    check(&stage, 0, &[(RequestsNow, 1), (LinksNow, 1), (Connects, 1)]);
    check(&stage, S0, &[(ServerCounter::LinksNow, 0)]);
}

/// A client that comes from another worker was counted there.
#[test]
fn a_client_from_another_worker_is_no_new_one() {
    let (mut stage, _) = Stage::of_one();
    stage.client();
    let passed = stage.passed().remove(0);
    assert_eq!(stage.registry.total(POOL, PoolCounter::ClientsNow), 0);
    stage.adopt(passed);
    check(&stage, POOL, &[(PoolCounter::ClientsTotal, 1), (PoolCounter::ClientsNow, 1)]);
    check(&stage, 0, &[(WorkerCounter::Accepts, 1), (WorkerCounter::ClientsNow, 1)]);
}

#[test]
fn a_pause_is_counted_once_and_a_fault_for_each_part() {
    use PoolCounter::*;
    let mut stage = Stage::of(&["s0"], |plan| plan.limits.pipeline = 2);
    let client = stage.client();
    stage.says(client, "get x\r\nget y\r\nget z\r\n");
    check(&stage, POOL, &[(Paused, 1), (Failed, 0)]);
    let mut stage = Stage::new(&["s0", "s1"], |pool| pool.distribution = Distribution::Modula);
    let other = stage.client();
    let keys = [stage.key_of(0), stage.key_of(1)];
    stage.says(other, &format!("get {} {}\r\n", keys[0], keys[1]));
    for (link, _) in std::mem::take(&mut stage.connects) {
        stage.closes(link, Closed::Reset);
    }
    assert!(stage.received(other).starts_with("SERVER_ERROR "));
    check(&stage, POOL, &[(Failed, 2), (Paused, 0), (Refused, 0)]);
}

/// A request that waits for what its server can do is paused, too, and a change that fails before
/// it is sent is timed as a failed change.
#[test]
fn a_change_for_every_server_that_fails_is_timed_as_a_change() {
    use metrics::Latency;
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        pool.allow = vec!["flushall".into()];
    });
    let client = stage.client();
    stage.says(client, "FLUSHALL\r\n");
    assert_eq!(stage.registry.total(POOL, PoolCounter::Paused), 1);
    for (link, _) in std::mem::take(&mut stage.connects) {
        stage.closes(link, Closed::Reset);
    }
    stage.end_turn();
    assert!(stage.received(client).starts_with("-ERR s0: down"));
    let count = |which| stage.registry.histograms(POOL, std::iter::once(which)).count();
    let failed = [false, true].map(|are| count(Latency::of_family(Latency::FAILED, are)));
    assert_eq!(failed, [0, 1]);
    let answered = Latency::all(false).chain(Latency::all(true));
    assert_eq!(stage.registry.histograms(POOL, answered).count(), 0);
}

/// As memcached's own `stats`, with the numbers of the proxy: each field has a count of its own.
#[test]
fn stats_of_memcached_are_those_of_the_whole_proxy() {
    use PoolCounter::*;
    let (mut stage, link) = Stage::of_one();
    let client = stage.client();
    let other = stage.registry.metrics(1).counters::<PoolCounter>(POOL);
    let counts = [
        (ClientsNow, 10),
        (ClientsTotal, 20),
        (ClientsRefused, 30),
        (Hits, 40),
        (Misses, 50),
        (Stores, 60),
        (Logins, 70),
        (LoginsFailed, 80),
    ];
    counts.iter().for_each(|(counter, count)| other.add(*counter, *count));
    let worker = stage.registry.metrics(1).counters::<WorkerCounter>(0);
    worker.add(WorkerCounter::UserUs, 1_500_000);
    worker.add(WorkerCounter::SystemUs, 2_250_000);
    // A clock that was set back makes no age below zero.
    for (started_s, uptime) in [(100, 150), (300, 0)] {
        let told =
            Process { pid: 7, told_s: 250, workers: 3, clients_max: 44, ..Process::default() };
        stage.registry.tell_process(Process { started_s, ..told });
        stage.says(client, "stats\r\n");
        assert_eq!(stage.turn(link), "stats\r\n");
        stage.says(link, "STAT pid 99\r\nSTAT cmd_touch 5\r\nEND\r\n");
        let told = stage.received(client);
        for line in [
            "pid 7",
            &format!("uptime {uptime}"),
            "time 250",
            "threads 3",
            "max_connections 44",
            "rusage_user 1.500000",
            "rusage_system 2.250000",
            "curr_connections 11",
            "total_connections 21",
            "rejected_connections 30",
            "cmd_get 90",
            "get_hits 40",
            "get_misses 50",
            "cmd_set 60",
            "cmd_touch 5",
            "auth_cmds 150",
            "auth_errors 80",
        ] {
            assert!(told.contains(&format!("STAT {line}\r\n")), "{line} is not in {told}");
        }
    }
}
