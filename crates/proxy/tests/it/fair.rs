//! Stories of the queues at a link: whose turn it is, whose share is full, and what is dropped.

use metrics::ServerCounter;
use proxy::limits::{self, LARGE_MIN, QUANTUM, SHARE_LEN};
use proxy::plan::Plan;
use proxy::{Closed, ConnId};

use crate::stage::{S0, SECOND, Stage};

const HOLD_AFTER: u64 = 30_000;
/// A delay at which the in-flight limit does not grow, unless the server has nothing left to do.
const SLOW: u64 = 3_000;

/// A server behind a link that has this in-flight limit at first.
fn limited(limit: u64, set: impl FnOnce(&mut Plan)) -> (Stage, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.inflight = limit / 2;
        plan.memory_max = 64 << 20;
        plan.pools[0].preconnect = true;
        set(plan);
    });
    let link = stage.connect(0);
    stage.handshake(link);
    (stage, link)
}

/// As `limited`, for one message at a time at first. That of a client that has gone is in flight.
fn full(set: impl FnOnce(&mut Plan)) -> (Stage, ConnId) {
    let (mut stage, link) = limited(2, set);
    let other = stage.client();
    stage.says(other, "delete full\r\n");
    assert_eq!(stage.turn(link), "delete full\r\n");
    stage.closes(other, Closed::Reset);
    (stage, link)
}

/// Lets a server answer what it has received, with values of this length; returns what it then
/// receives.
fn answer(stage: &mut Stage, link: ConnId, received: &str, value: Option<&str>) -> String {
    stage.passes(SLOW);
    for line in received.lines() {
        let mut words = line.split(' ');
        match (words.next(), value) {
            (Some("get"), Some(value)) => {
                let hit = |key| format!("VALUE {key} 0 {}\r\n{value}\r\n", value.len());
                stage.says(link, &(words.map(hit).collect::<String>() + "END\r\n"));
            }
            (Some("get"), None) => stage.says(link, "END\r\n"),
            (Some("delete"), _) => stage.says(link, "DELETED\r\n"),
            (Some("set"), _) => stage.says(link, "STORED\r\n"),
            _ => {}
        }
    }
    stage.turn(link)
}

fn set(key: &str, len: usize) -> String {
    format!("set {key} 0 0 {len}\r\n{}\r\n", "v".repeat(len))
}

#[test]
fn two_clients_at_a_full_link_are_served_in_turn_by_cost() {
    let (mut stage, link) = full(|_| {});
    let (large, small) = (stage.client(), stage.client());
    stage.says(large, &set("large", 8_000).repeat(8));
    stage.says(small, &set("small", 1_000).repeat(60));
    let (mut received, mut served) = ("delete full\r\n".to_string(), [0_i64; 2]);
    while served[0] < 7 * 8_000 {
        received = answer(&mut stage, link, &received, None);
        assert!(received.starts_with("set"), "{received}");
        for message in received.split_inclusive("set ").skip(1) {
            let is_large = message.starts_with("large");
            let fixed = limits::COST_OF_MESSAGE as i64 + i64::from(limits::ANSWER_UNKNOWN);
            served[usize::from(!is_large)] += message.len() as i64 + fixed;
            // One has had a whole round more than the other, at most.
            let ahead = served[0] - served[1];
            assert!(ahead.abs() <= QUANTUM + 8_000 + 2_000, "{served:?}");
        }
    }
}

/// Four clients that always have more to ask, and a server at the end of a path of this round trip.
/// Returns what the server receives in each round.
fn play(
    stage: &mut Stage,
    (link, clients): (ConnId, &[ConnId]),
    (trip, rounds): (u64, usize),
    mut received: String,
) -> (Vec<usize>, String) {
    let mut all = Vec::new();
    for _ in 0..rounds {
        stage.passes(trip);
        for _ in 0..received.matches("set ").count() {
            stage.says(link, "STORED\r\n");
        }
        for client in clients {
            stage.received(*client);
            if !stage.paused.contains(client) {
                stage.says(*client, &set("key", 1_000).repeat(60));
            }
        }
        received = stage.turn(link);
        all.push(received.len());
    }
    (all, received)
}

/// All of them have waited for their turn, and the delay at the server is known all the same.
#[test]
fn the_limit_opens_for_a_distant_server_though_every_request_has_waited() {
    let (mut stage, link) = limited(16 << 10, |_| {});
    let clients: Vec<ConnId> = (0..4).map(|_| stage.client()).collect();
    let (all, _) = play(&mut stage, (link, &clients), (20_000, 30), String::new());
    assert!(all.iter().any(|bytes| *bytes > 100_000), "{all:?}");
}

/// The first long delays look like requests that queue at the server. Ten seconds later nobody
/// remembers the short way.
#[test]
fn the_limit_opens_again_after_the_way_to_a_server_has_become_longer() {
    const TRIP: u64 = 100_000;
    let (mut stage, link) = limited(16 << 10, |plan| plan.pools[0].hold_after = None);
    let clients: Vec<ConnId> = (0..4).map(|_| stage.client()).collect();
    let near = play(&mut stage, (link, &clients), (100, 20), String::new());
    let rounds = (10 * SECOND / TRIP) as usize;
    let (far, _) = play(&mut stage, (link, &clients), (TRIP, rounds + 15), near.1);
    assert!(far[20..rounds / 2].iter().all(|bytes| *bytes < 20_000), "{far:?}");
    assert!(far[rounds..].iter().any(|bytes| *bytes > 100_000), "{far:?}");
}

/// Nothing is sent meanwhile, so nothing else looks at what the link holds.
#[test]
fn the_memory_of_reads_that_wait_is_free_when_their_client_leaves() {
    let (mut stage, link) = full(|_| {});
    let client = stage.client();
    let before = stage.memory();
    stage.says(client, &format!("get {}\r\n", "k".repeat(200)).repeat(20));
    assert_eq!(stage.turn(link), "");
    assert!(stage.memory() > before + 20 * 200);
    stage.closes(client, Closed::Reset);
    stage.end_turn();
    assert!(stage.memory() <= before, "{} of {before}", stage.memory());
}

/// Keys of one client that wait are one message only if they came at the same time.
#[test]
fn a_key_that_came_later_may_wait_as_much_longer() {
    let (mut stage, link) = full(|plan| {
        let pool = &mut plan.pools[0];
        (pool.timeouts.queue, pool.timeouts.reply) = (SECOND, 9 * SECOND);
        pool.hold_after = None;
    });
    let client = stage.client();
    stage.says(client, "get early\r\n");
    stage.turn(link);
    stage.passes(SECOND / 2);
    stage.says(client, "get late\r\n");
    stage.turn(link);
    stage.passes(SECOND / 2);
    assert!(stage.received(client).starts_with("SERVER_ERROR"), "the first has had its time");
    assert_eq!(answer(&mut stage, link, "delete full\r\n", None), "get late\r\n");
}

/// A few larger messages cost less than many small ones.
#[test]
fn what_waits_is_sent_when_a_quarter_of_the_limit_is_free() {
    let (mut stage, link) = limited(16 << 10, |_| {});
    let client = stage.client();
    stage.says(client, &set("key", 1_000).repeat(20));
    let sent = stage.turn(link).matches("set ").count();
    let answer = |stage: &mut Stage| {
        stage.says(link, "STORED\r\n");
        stage.turn(link).matches("set ").count()
    };
    let more: Vec<usize> =
        (0..sent).map(|_| answer(&mut stage)).take_while(|more| *more == 0).collect();
    assert_eq!((sent, more.len()), (7, 1));
}

#[test]
fn one_clients_requests_never_change_places() {
    let (mut stage, link) = limited(4_000, |_| {});
    let clients = [stage.client(), stage.client()];
    let names = ["a", "b"];
    let mut asked = [0, 0];
    let (mut received, mut all) = (String::new(), String::new());
    for round in 0..40 {
        for (at, (client, name)) in clients.iter().zip(names).enumerate() {
            // Some find room, and some have to wait.
            for _ in 0..(round + at) % 3 {
                asked[at] += 1;
                let verb = if (asked[at] + round) % 3 == 0 { "delete" } else { "get" };
                stage.says(*client, &format!("{verb} {name}{:03}\r\n", asked[at]));
            }
        }
        let more = stage.turn(link);
        all += &more;
        received = answer(&mut stage, link, &(received + &more), None);
        all += &received;
    }
    while !received.is_empty() {
        received = answer(&mut stage, link, &received, None);
        all += &received;
    }
    for (name, asked) in names.into_iter().zip(asked) {
        let keys = all.split_whitespace().filter(|word| word.starts_with(name));
        let expected: Vec<String> = (1..=asked).map(|nth| format!("{name}{nth:03}")).collect();
        assert_eq!(keys.collect::<Vec<_>>(), expected);
    }
    stage.expect_rows(0);
}

#[test]
fn keys_that_wait_are_merged_in_the_order_of_turns() {
    let (mut stage, link) = limited(32 << 10, |_| {});
    let (other, clients) = (stage.client(), [stage.client(), stage.client()]);
    let fills = set("full", 40_000);
    stage.says(other, &fills);
    assert_eq!(stage.turn(link), fills);
    // Of unknown length, four keys are more than a round.
    for (client, name) in clients.into_iter().zip(["a", "b"]) {
        let keys: String = (0..6).map(|nth| format!(" {name}{nth}")).collect();
        stage.says(client, &format!("gets{keys}\r\n"));
        assert_eq!(stage.turn(link), "");
    }
    stage.says(link, "STORED\r\n");
    assert_eq!(stage.turn(link), "gets a0 a1 a2 a3 b0 b1 b2 b3 a4 a5 b4 b5\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(clients.map(|client| stage.received(client)), ["END\r\n", "END\r\n"]);
}

/// A key that has had its turn may have to wait for company. It has waited before.
#[test]
fn a_get_waits_for_its_turn_and_for_company_no_longer_than_one_queue_deadline() {
    const FASTER: u64 = 2_000;
    let (mut stage, link) = limited(40_000, |plan| {
        plan.pools[0].hold_after = None;
        plan.pools[0].timeouts.reply = 10 * SECOND;
    });
    let (other, client) = (stage.client(), stage.client());
    // The shortest way is known.
    stage.says(other, "delete x\r\n");
    assert_eq!(stage.turn(link), "delete x\r\n");
    stage.says(link, "DELETED\r\n");
    let (first, second) = (set("first", 14_500), set("second", 22_500));
    stage.says(other, &(first.clone() + &second));
    assert_eq!(stage.turn(link), first + &second);
    stage.says(client, "get late\r\n");
    assert_eq!(stage.turn(link), "");
    // At this delay the limit stays, and what is still in flight is more than half of it.
    stage.passes(FASTER);
    stage.says(link, "STORED\r\n");
    assert_eq!(stage.turn(link), "");
    stage.passes(SECOND - FASTER - 1);
    assert_eq!(stage.turn(link), "");
    stage.passes(1);
    assert_eq!(stage.turn(link), "get late\r\n");
}

#[test]
fn a_client_whose_share_is_full_is_paused_and_goes_on_at_half() {
    let (mut stage, link) = full(|_| {});
    let client = stage.client();
    let all: Vec<String> = (0..SHARE_LEN + 20).map(|nth| format!("delete k{nth}\r\n")).collect();
    stage.says(client, &all[..SHARE_LEN - 1].concat());
    assert_eq!(stage.paused, []);
    stage.says(client, &all[SHARE_LEN - 1..].concat());
    assert_eq!(stage.paused, [client]);
    // Nobody else is.
    let other = stage.client();
    stage.says(other, "delete mine\r\n");
    assert_eq!(stage.paused, [client]);
    let (mut received, mut sent) = ("delete full\r\n".to_string(), String::new());
    while !received.is_empty() {
        let before = sent.matches(" k").count();
        received = answer(&mut stage, link, &received, None);
        sent += &received;
        let now = sent.matches(" k").count();
        // It goes on in the turn after the one in which the half of it had left.
        let half = SHARE_LEN / 2;
        assert!(stage.paused.is_empty() || before < half, "{before} have left");
        assert!(!stage.paused.is_empty() || now >= half, "{now} have left");
    }
    assert_eq!(sent.replace("delete mine\r\n", ""), all.concat());
    assert_eq!(stage.received(client), "DELETED\r\n".repeat(all.len()));
    assert_eq!(stage.received(other), "DELETED\r\n");
    assert_eq!((stage.memory(), &stage.paused), (0, &vec![]));
}

#[test]
fn one_who_reads_gets_all_large_values_though_few_are_in_flight() {
    let value = "v".repeat(10_000);
    let (mut stage, link) = limited(8 << 20, |plan| plan.limits.client_outbox = 40_000);
    let client = stage.client();
    // Now the length of its answers is known.
    stage.says(client, "get k0\r\n");
    let received = stage.turn(link);
    assert_eq!(answer(&mut stage, link, &received, Some(&value)), "");
    stage.received(client);
    let keys: String = (0..50).map(|nth| format!(" k{nth}")).collect();
    stage.says(client, &format!("get{keys}\r\n"));
    let (mut received, mut told) = (stage.turn(link), String::new());
    while !received.is_empty() {
        assert!(received.matches(" k").count() <= 4, "{received}");
        received = answer(&mut stage, link, &received, Some(&value));
        told += &stage.received(client);
        received += &stage.turn(link);
    }
    told += &stage.received(client);
    let hits: Vec<&str> = told.lines().filter(|line| line.starts_with("VALUE")).collect();
    let expected: Vec<String> = (0..50).map(|nth| format!("VALUE k{nth} 0 10000")).collect();
    assert_eq!(hits, expected);
    assert!(told.ends_with("\r\nEND\r\n"));
    stage.end_turn();
    assert_eq!((stage.memory(), &stage.paused), (0, &vec![]));
}

#[test]
fn nothing_more_is_fetched_for_a_client_that_does_not_read() {
    let value = "v".repeat(10_000);
    let (mut stage, link) = full(|plan| plan.limits.client_outbox = 40_000);
    let client = stage.client();
    stage.says(client, "get a b c d e f\r\nget g h\r\n");
    let (mut received, mut asked) = ("delete full\r\n".to_string(), String::new());
    while !received.is_empty() {
        received = answer(&mut stage, link, &received, Some(&value));
        asked += &received;
    }
    assert_eq!(asked, "get a\r\nget b\r\nget c\r\nget d\r\nget e\r\nget f\r\n");
    // No deadline ends that: the client alone can.
    stage.passes(2 * SECOND);
    assert_eq!(stage.turn(link), "");
    let (bytes, most) = (7 * 10_000, 6);
    assert_eq!(stage.received_some(client, bytes).matches("VALUE").count(), most);
    assert!(stage.wants_turn());
    let received = stage.turn(link);
    assert_eq!(received, "get g\r\n");
    assert_eq!(answer(&mut stage, link, &received, None), "get h\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(client), "END\r\n");
    assert_eq!(stage.memory(), 0);
}

#[test]
fn a_reset_drops_waiting_reads_and_keeps_changes_that_are_not_late() {
    for (waited, sent, dropped) in
        [(HOLD_AFTER - 1, vec!["set y", "set z"], 1), (HOLD_AFTER, vec!["set z"], 2)]
    {
        let (mut stage, link) = full(|_| {});
        let client = stage.client();
        let asked = "get x\r\nset y 0 0 1\r\nY\r\nset z 0 0 1 noreply\r\nZ\r\n";
        stage.says(client, asked);
        assert_eq!(stage.turn(link), "");
        // The server is not silent.
        stage.passes(waited / 2);
        stage.says(link, "DELE");
        stage.passes(waited - waited / 2);
        stage.closes(client, Closed::Reset);
        stage.end_turn();
        assert_eq!(stage.registry.total(S0, ServerCounter::Dropped), dropped, "after {waited} us");
        stage.says(link, "TED\r\n");
        let mut received = stage.turn(link);
        for expected in sent {
            assert!(received.starts_with(expected), "after {waited} us: {received}");
            received = answer(&mut stage, link, "set", None);
        }
        assert_eq!((received.as_str(), stage.memory()), ("", 0));
        stage.expect_rows(0);
    }
}

#[test]
fn a_change_that_waits_for_room_at_a_silent_server_is_dropped_and_counted_once() {
    let (mut stage, link) = full(|_| {});
    stage.passes(HOLD_AFTER);
    let client = stage.client();
    stage.says(client, "delete y\r\n");
    assert_eq!(stage.turn(link), "");
    stage.closes(client, Closed::Reset);
    stage.end_turn();
    assert_eq!(stage.registry.total(S0, ServerCounter::Dropped), 0);
    stage.passes(HOLD_AFTER);
    stage.end_turn();
    assert_eq!(stage.registry.total(S0, ServerCounter::Dropped), 1);
    stage.says(link, "DELETED\r\n");
    assert_eq!(stage.turn(link), "");
    stage.expect_rows(0);
}

#[test]
fn waiting_reads_of_a_half_closed_client_go_one_by_one() {
    for (is_closed, expected) in [(false, "get a b c\r\n"), (true, "get a\r\n")] {
        let (mut stage, link) = limited(32 << 10, |_| {});
        let (other, client) = (stage.client(), stage.client());
        stage.says(other, &set("full", 40_000));
        let received = stage.turn(link);
        stage.says(client, "get a\r\nget b\r\nget c\r\n");
        if is_closed {
            stage.closes(client, Closed::Eof);
        }
        let mut received = answer(&mut stage, link, &received, None);
        assert_eq!(received, expected);
        let mut all = String::new();
        while !received.is_empty() {
            all += &received;
            received = answer(&mut stage, link, &received, None);
        }
        assert_eq!(all.matches("get").count(), if is_closed { 3 } else { 1 });
        assert_eq!(stage.received(client), "END\r\n".repeat(3));
        assert_eq!(stage.closed.contains(&client), is_closed);
    }
}

/// A half-closed client that goes has nothing more fetched for it.
#[test]
fn a_reset_after_an_end_of_file_drops_what_waits() {
    let (mut stage, link) = full(|_| {});
    let client = stage.client();
    stage.says(client, "get a\r\nget b\r\nget c\r\n");
    stage.closes(client, Closed::Eof);
    assert_eq!(answer(&mut stage, link, "delete", None), "get a\r\n");
    stage.closes(client, Closed::Reset);
    assert_eq!(answer(&mut stage, link, "get", None), "");
    assert_eq!(stage.memory(), 0);
    stage.expect_rows(0);
}

#[test]
fn a_dead_link_gives_back_what_waited_for_it() {
    let (mut stage, link) = full(|_| {});
    let (reader, writer) = (stage.client(), stage.client());
    stage.says(reader, "get x\r\n");
    stage.says(writer, "delete y\r\n");
    assert_eq!(stage.turn(link), "");
    stage.closes(link, Closed::Eof);
    assert_eq!([stage.received(reader), stage.received(writer)], ["", ""]);
    stage.end_turn();
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get x\r\n");
    stage.says(link, "END\r\n");
    assert_eq!(stage.turn(link), "delete y\r\n");
    stage.says(link, "DELETED\r\n");
    assert_eq!([stage.received(reader), stage.received(writer)], ["END\r\n", "DELETED\r\n"]);
    assert_eq!(stage.memory(), 0);
    stage.expect_rows(0);
}

#[test]
fn what_waits_has_the_deadline_of_the_queue() {
    let late = "SERVER_ERROR s0: timed out in the queue, not sent\r\n";
    let silent = "SERVER_ERROR s0: silent, timed out in the queue, not sent\r\n";
    for (hold_after, told) in [(None, late), (Some(HOLD_AFTER), silent)] {
        let (mut stage, link) = full(|plan| {
            plan.pools[0].hold_after = hold_after;
            plan.pools[0].timeouts.reply = 10 * SECOND;
        });
        let client = stage.client();
        stage.says(client, "get x\r\ndelete y\r\n");
        assert_eq!(stage.turn(link), "");
        stage.passes(SECOND - 1);
        assert_eq!(stage.received(client), "");
        stage.passes(1);
        assert_eq!(stage.received(client), told.repeat(2));
        stage.says(link, "DELETED\r\n");
        assert_eq!(stage.turn(link), "");
        assert_eq!(stage.memory(), 0);
        stage.expect_rows(0);
    }
}

#[test]
fn the_keys_of_a_new_client_do_not_all_leave_at_once_where_values_are_large() {
    let (mut stage, link) = limited(8 << 20, |_| {});
    let (small, large, new) = (stage.client(), stage.client(), stage.client());
    stage.says(small, "get small\r\n");
    let received = stage.turn(link);
    answer(&mut stage, link, &received, Some("v"));
    // It has shown small values for a while.
    stage.passes(11 * SECOND);
    stage.says(large, "get large\r\n");
    let received = stage.turn(link);
    answer(&mut stage, link, &received, Some(&"v".repeat(2 * LARGE_MIN as usize)));
    let keys: String = (0..400).map(|nth| format!(" k{nth}")).collect();
    stage.says(new, &format!("get{keys}\r\n"));
    let mut received = stage.turn(link);
    let most = (stage.plan.limits.unproven / u64::from(2 * LARGE_MIN)) as usize;
    let count = |received: &str| received.matches(" k").count();
    assert!((1..=most).contains(&count(&received)), "{} keys", count(&received));
    // One whose answers are known passes those keys.
    stage.says(small, "get small\r\n");
    assert_eq!(stage.turn(link), "get small\r\n");
    received += "get small\r\n";
    let mut asked = count(&received);
    while !received.is_empty() {
        received = answer(&mut stage, link, &received, None);
        asked += count(&received);
        // A round trip here is twice a near one.
        let most = 2 * (stage.plan.limits.unproven / u64::from(2 * LARGE_MIN)) as usize;
        assert!(count(&received) <= most, "{} keys", count(&received));
    }
    assert_eq!(asked, 400);
    assert_eq!(stage.received(new), "END\r\n");
}

/// A pool in which as few answers of unknown length are in flight as by default, and its link.
fn with_few_unproven() -> (Stage, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.unproven = 2 * 1024 * 1024;
        plan.memory_max = 1 << 30;
        plan.pools[0].preconnect = true;
    });
    let link = stage.connect(0);
    (stage, link)
}

/// One in which clients must show how much they ask for at once, too.
fn with_depth() -> (Stage, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.unproven = 2 * 1024 * 1024;
        plan.limits.depth = limits::DEPTH_MIN;
        plan.memory_max = 1 << 30;
        plan.pools[0].preconnect = true;
    });
    let link = stage.connect(0);
    stage.handshake(link);
    (stage, link)
}

/// Lets a server answer the gets that it has received, with values of so many bytes, which their
/// client reads; returns what the server then receives.
fn answer_and_read(
    stage: &mut Stage,
    (link, client): (ConnId, ConnId),
    asked: &str,
    value: usize,
) -> String {
    for line in asked.lines() {
        let hit = |key| format!("VALUE {key} 0 {value}\r\n{}\r\n", "v".repeat(value));
        let hits: String = line.split(' ').skip(1).map(hit).collect();
        stage.says(link, &(hits + "END\r\n"));
        stage.received(client);
    }
    stage.turn(link)
}

/// Returns a get of this many keys.
fn get_of(keys: usize) -> String {
    (0..keys).fold("get".to_string(), |get, nth| format!("{get} k{nth}")) + "\r\n"
}

#[test]
fn what_waits_costs_what_the_first_answers_have_shown() {
    for (value, then) in [("v".to_string(), 36..=36), ("v".repeat(100_000), 1..=4)] {
        let (mut stage, link) = with_few_unproven();
        let new = stage.client();
        let keys: String = (0..40).map(|nth| format!(" k{nth}")).collect();
        stage.says(new, &format!("get{keys}\r\n"));
        let asked = stage.turn(link);
        assert_eq!(asked, "get k0 k1 k2 k3\r\n");
        let asked = answer(&mut stage, link, &asked, Some(&value));
        let count = asked.matches(" k").count();
        assert!(then.contains(&count), "{count} keys after values of {} bytes", value.len());
    }
}

/// Neither a key among others nor a quiet one leaves an answer whose length says so.
#[test]
fn a_client_that_misses_asks_for_the_rest_at_once() {
    let quiet: String = (0..40).map(|nth| format!("mg k{nth} v q\r\n")).collect();
    for (asks, told) in [(quiet + "mn\r\n", "MN\r\n"), (get_of(40), "END\r\n")] {
        let (mut stage, link) = with_few_unproven();
        let new = stage.client();
        stage.says(new, &asks);
        let mut asked = stage.turn(link);
        assert_eq!(asked.matches(" k").count(), 4, "{asked}");
        asked = answer(&mut stage, link, &asked, None);
        assert_eq!(asked.matches(" k").count(), 36, "{asked}");
        answer(&mut stage, link, &asked, None);
        assert_eq!(stage.received(new), told);
    }
}

#[test]
fn a_client_that_missed_a_while_ago_or_sets_a_key_asks_for_few_again() {
    let (mut stage, link) = with_few_unproven();
    let new = stage.client();
    let set = format!("set k1 0 0 1000\r\n{}\r\n", "v".repeat(1000));
    for (us, set) in [(0, ""), (100_000, ""), (0, &set)] {
        stage.passes(us);
        if !set.is_empty() {
            stage.says(new, set);
            assert_eq!(stage.turn(link), set);
            stage.says(link, "STORED\r\n");
            assert_eq!(stage.received(new), "STORED\r\n");
        }
        stage.says(new, &get_of(40));
        let mut asked = stage.turn(link);
        assert_eq!(asked.matches(" k").count(), 4, "{asked}");
        while !asked.is_empty() {
            asked = answer(&mut stage, link, &asked, None);
        }
        assert_eq!(stage.received(new), "END\r\n");
    }
}

/// A miss says nothing of 400 keys at once.
#[test]
fn a_client_that_misses_asks_for_little_more_than_it_has_shown() {
    let (mut stage, link) = with_depth();
    let client = stage.client();
    let keys = |asked: &str| asked.matches(" k").count();
    stage.says(client, "get k0 k1\r\n");
    let asked = stage.turn(link);
    answer(&mut stage, link, &asked, None);
    stage.received(client);
    stage.says(client, &get_of(400));
    let asked = stage.turn(link);
    assert_eq!(keys(&asked), 6, "two as short as a miss, and four of unknown length");
    let asked = answer_and_read(&mut stage, (link, client), &asked, 1_000_000);
    assert_eq!(keys(&asked), 1, "{asked}");
}

/// One message can be neither bounded nor taken back.
#[test]
fn keys_of_unknown_length_that_leave_together_are_few() {
    let (mut stage, link) = with_few_unproven();
    let new = stage.client();
    let keys: String = (0..40).map(|nth| format!(" k{nth}")).collect();
    // Where others have large values, a miss proves nothing.
    let large = stage.client();
    stage.says(large, "gat 0 large\r\n");
    assert_eq!(stage.turn(link), "gat 0 large\r\n");
    stage.says(link, &format!("VALUE large 0 250000\r\n{}\r\nEND\r\n", "v".repeat(250_000)));
    stage.says(new, &format!("gat 0{keys}\r\n"));
    for first in (0..40).step_by(4) {
        let keys: String = (first..first + 4).map(|nth| format!(" k{nth}")).collect();
        assert_eq!(stage.turn(link), format!("gat 0{keys}\r\n"));
        stage.says(link, "END\r\n");
    }
    assert_eq!(stage.received(new), "END\r\n");
    stage.expect_rows(0);
}

#[test]
fn a_large_value_that_nobody_waits_for_any_more_is_remembered() {
    let (mut stage, link) = with_few_unproven();
    let gone = stage.client();
    stage.says(gone, "get big\r\n");
    assert_eq!(stage.turn(link), "get big\r\n");
    stage.closes(gone, Closed::Reset);
    stage.says(link, &format!("VALUE big 0 1000000\r\n{}", "v".repeat(900_000)));
    stage.says(link, &format!("{}\r\nEND\r\n", "v".repeat(100_000)));
    for nth in 0..4 {
        let client = stage.client();
        stage.says(client, &format!("get k{nth}\r\n"));
    }
    assert_eq!(stage.turn(link), "get k0\r\n");
}

/// What a client has shown is how much it asked for at once. Otherwise 50 that have been modest for
/// a while could ask for 400 large values each in the same moment.
#[test]
fn a_client_asks_for_little_more_at_once_than_it_has_shown_to_be_small() {
    for (value, rest) in [(10, [24, 96, 274]), (1_000_000, [1, 1, 1])] {
        let (mut stage, link) = with_depth();
        let client = stage.client();
        for _ in 0..50 {
            stage.says(client, "get small\r\n");
            assert_eq!(stage.turn(link), "get small\r\n");
            stage.says(link, "VALUE small 0 1\r\nv\r\nEND\r\n");
            stage.passes(SECOND / 4);
        }
        stage.received(client);
        let keys: String = (0..400).map(|nth| format!(" k{nth}")).collect();
        stage.says(client, &format!("get{keys}\r\n"));
        let mut asked = stage.turn(link);
        let count = |asked: &str| asked.matches(" k").count();
        // As many as each client may, and four of unknown length.
        assert_eq!(count(&asked), 6);
        for rest in rest {
            asked = answer_and_read(&mut stage, (link, client), &asked, value);
            assert_eq!(count(&asked), rest, "values of {value} bytes");
        }
    }
}

/// Two clients of large values never let those of small ones wait for long.
#[test]
fn a_client_with_small_answers_that_asks_for_one_at_a_time_passes_unknown_ones_after_a_second() {
    for (age, fetched) in [(SECOND / 2, ""), (SECOND, "get small\r\n")] {
        let (mut stage, link) = with_few_unproven();
        let (quiet, other) = (stage.client(), stage.client());
        stage.says(quiet, "get small\r\n");
        assert_eq!(stage.turn(link), "get small\r\n");
        stage.says(link, "VALUE small 0 1\r\nv\r\nEND\r\n");
        stage.passes(age);
        stage.says(other, "get big\r\n");
        assert_eq!(stage.turn(link), "get big\r\n");
        stage.says(link, &format!("VALUE big 0 1000000\r\n{}\r\nEND\r\n", "v".repeat(1_000_000)));
        for nth in 0..4 {
            let new = stage.client();
            stage.says(new, &format!("get k{nth}\r\n"));
        }
        assert_eq!(stage.turn(link), "get k0 k1\r\n");
        stage.says(quiet, "get small\r\n");
        assert_eq!(stage.turn(link), fetched, "{age}");
    }
}

/// A server needs ten times as long for them as for a value of as many bytes.
#[test]
fn statistics_have_few_places_on_a_link_and_keep_no_others_from_it() {
    for (round_trip, most) in [(0, 4), (10_000, 4 + 40)] {
        let (mut stage, link) = with_few_unproven();
        let answer = "STAT pid 1\r\nEND\r\n";
        let (greedy, other) = (stage.client(), stage.client());
        // Some answers are samples of the round trip.
        for _ in 0..100 {
            stage.says(greedy, "stats\r\n");
            assert_eq!(stage.turn(link), "stats\r\n");
            stage.passes(round_trip);
            stage.says(link, answer);
            stage.received(greedy);
        }
        stage.says(greedy, &"stats\r\n".repeat(60));
        let sent = stage.turn(link) + &stage.turn(link);
        assert_eq!(sent, "stats\r\n".repeat(most), "{round_trip} us");
        // Nothing is known of these: they have room of their own, and do not wait.
        stage.says(other, "stats\r\n");
        assert_eq!(stage.turn(link), "");
        for new in [stage.client(), stage.client()] {
            stage.says(new, "get a\r\n");
            assert_eq!(stage.turn(link), "get a\r\n");
        }
        // Each has its turn.
        stage.says(link, &answer.repeat(2));
        assert_eq!(stage.turn(link), "stats\r\n".repeat(2));
        stage.says(link, &answer.repeat(most));
        assert!(stage.received(other).ends_with("END\r\n"));
    }
}

/// They wait for a place, and not for bytes: where they raised the limit, the large values of
/// others would fill it at once.
#[test]
fn statistics_that_wait_do_not_raise_the_in_flight_limit() {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.inflight = 64 * 1024;
        plan.pools[0].preconnect = true;
    });
    let link = stage.connect(0);
    let (greedy, other) = (stage.client(), stage.client());
    for _ in 0..20 {
        stage.says(greedy, &"stats\r\n".repeat(20));
        for _ in 0..5 {
            let sent = stage.turn(link) + &stage.turn(link);
            let answers = sent.matches("stats").count();
            stage.says(link, &"STAT pid 1\r\nEND\r\n".repeat(answers));
        }
        stage.received(greedy);
    }
    let value = "v".repeat(40_000);
    stage.says(other, &format!("set a 0 0 40000\r\n{value}\r\n").repeat(20));
    let sent = stage.turn(link) + &stage.turn(link);
    assert!((1..=4).contains(&sent.matches("set a").count()), "{}", sent.len());
}

#[test]
fn changes_to_all_servers_do_not_wait_behind_statistics() {
    let mut stage = Stage::new(&["s0"], |pool| {
        (pool.preconnect, pool.allow) = (true, vec!["flush_all".into()]);
    });
    let link = stage.connect(0);
    let client = stage.client();
    stage.says(client, &"stats\r\n".repeat(10));
    assert_eq!(stage.turn(link), "stats\r\n".repeat(4));
    let changes = stage.client();
    stage.says(changes, &"flush_all\r\n".repeat(10));
    assert_eq!(stage.turn(link), "flush_all\r\n".repeat(10));
}

#[test]
fn what_waits_is_accounted() {
    let (mut stage, link) = full(|_| {});
    let client = stage.client();
    let before = stage.memory();
    let text = set("x", 10_000);
    stage.says(client, &text);
    stage.end_turn();
    assert_eq!(stage.memory() - before, text.len());
    let fetched = answer(&mut stage, link, "delete", None);
    assert_eq!((fetched, stage.memory()), (text, 0));
    stage.says(link, "STORED\r\n");
    assert_eq!(stage.received(client), "STORED\r\n");
    stage.expect_rows(0);
}
