//! A client's share of a turn: what one client asks at once does not keep the others waiting.

use proto::protocol;
use proxy::{Closed, ConnId};

use crate::stage::Stage;

/// A pool of memcached in which a client's share is this many requests of one key.
fn shares(requests: u32) -> (Stage, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.limits.turn_work = 4 * requests;
        plan.pools[0].preconnect = true;
        plan.pools[0].merge_gets = false;
    });
    let link = stage.connect(0);
    (stage, link)
}

/// Returns gets of the keys with these numbers.
fn gets(numbers: std::ops::Range<usize>) -> String {
    numbers.map(|nth| format!("get k{nth}\r\n")).collect()
}

#[test]
fn another_client_is_served_between_the_turns_of_one_that_asks_much() {
    let (mut stage, link) = shares(10);
    let (greedy, other) = (stage.client(), stage.client());
    stage.says(greedy, &gets(0..35));
    stage.says(other, "get x\r\n");
    assert_eq!(stage.turn(link), gets(0..10) + "get x\r\n");
    assert!(stage.wants_turn());
    stage.says(other, "get y\r\n");
    assert_eq!(stage.turn(link), "get y\r\n".to_string() + &gets(10..20));
    stage.says(link, &"END\r\n".repeat(22));
    assert_eq!(stage.received(other), "END\r\n".repeat(2));
    assert_eq!(stage.received(greedy), "END\r\n".repeat(20));
    assert_eq!(stage.turn(link), gets(20..30));
    assert_eq!(stage.turn(link), gets(30..35));
    assert!(!stage.wants_turn());
    stage.says(link, &"END\r\n".repeat(15));
    assert_eq!(stage.received(greedy), "END\r\n".repeat(15));
    assert_eq!((stage.memory(), &stage.paused), (0, &vec![]));
}

/// However many clients ask much, a turn in which they go on ends after one share, and the next
/// begins with the client that has waited longest.
#[test]
fn clients_that_ask_much_take_turns() {
    let (mut stage, link) = shares(2);
    let clients: Vec<ConnId> = (0..6).map(|_| stage.client()).collect();
    for (nth, client) in clients.iter().enumerate() {
        stage.says(*client, &gets(10 * nth..10 * nth + 6));
    }
    let of = |nths: &[usize], from: usize| -> String {
        nths.iter().map(|nth| gets(10 * nth + from..10 * nth + from + 2)).collect()
    };
    assert_eq!(stage.turn(link), of(&[0, 1, 2, 3, 4, 5], 0));
    stage.says(link, &"END\r\n".repeat(12));
    for from in [2, 4] {
        for nth in 0..6 {
            assert!(stage.wants_turn());
            assert_eq!(stage.turn(link), of(&[nth], from));
        }
    }
    assert!(!stage.wants_turn());
}

const ASKED: &str = "get x y\r\nset z 0 0 1\r\nZ\r\nmg k t v\r\nmd k q\r\nmn\r\nversion\r\n\
    set q 0 0 3 noreply\r\nabc\r\nbad\r\ngat 0 x y\r\n";
const SENT: &str = "get x y\r\nset z 0 0 1\r\nZ\r\nmg k t v\r\nmd k\r\nset q 0 0 3\r\nabc\r\n\
    gat 0 x y\r\n";
const REPLIES: &str = "VALUE x 0 2\r\nab\r\nEND\r\nSTORED\r\nVA 1 t-1\r\na\r\nHD\r\nSTORED\r\n\
    VALUE y 0 0\r\n\r\nEND\r\n";

/// Runs a pipeline with this share, in two pieces; returns the bytes for server and client.
fn run(share: u32, cut: usize) -> (String, String) {
    let (mut stage, link) = shares(10);
    stage.install(|plan| plan.limits.turn_work = share);
    let client = stage.client();
    stage.says(client, &ASKED[..cut]);
    let mut sent = stage.turn(link);
    stage.says(client, &ASKED[cut..]);
    // Each turn pays for a share, and a request may take several.
    for turns in 0.. {
        assert!(turns < 100, "share {share}");
        if !stage.wants_turn() {
            break;
        }
        sent += &stage.turn(link);
    }
    sent += &stage.turn(link);
    stage.says(link, REPLIES);
    let told = stage.received(client);
    assert_eq!((stage.memory(), &stage.paused, &stage.closed), (0, &vec![], &vec![]));
    stage.expect_rows(0);
    (sent, told)
}

#[test]
fn a_pipeline_is_the_same_wherever_the_share_ends() {
    let (_, whole) = run(1000, 0);
    for share in (1..10).chain([15, 33]) {
        for cut in (0..ASKED.len()).step_by(5) {
            let (sent, told) = run(share, cut);
            assert_eq!((sent.as_str(), &told), (SENT, &whole), "share {share}, cut at {cut}");
        }
    }
}

#[test]
fn quiet_changes_beyond_the_share_are_sent_in_order() {
    let (mut stage, link) = shares(3);
    let client = stage.client();
    let set = |nth: usize, end: &str| format!("set k{nth} 0 0 1{end}\r\n{}\r\n", nth % 10);
    let asked: String = (0..10).map(|nth| set(nth, " noreply")).collect();
    stage.says(client, &asked);
    let sent: String = (0..5).map(|_| stage.turn(link)).collect();
    assert_eq!(sent, (0..10).map(|nth| set(nth, "")).collect::<String>());
    stage.says(link, &"STORED\r\n".repeat(10));
    assert_eq!((stage.received(client), stage.memory()), (String::new(), 0));
    stage.expect_rows(0);
}

#[test]
fn a_client_that_closes_its_half_gets_the_answers_to_all_it_has_asked() {
    let (mut stage, link) = shares(3);
    let client = stage.client();
    stage.says(client, &gets(0..8));
    stage.closes(client, Closed::Eof);
    assert_eq!(stage.turn(link), gets(0..3));
    assert_eq!(stage.turn(link), gets(3..6));
    stage.says(link, &"END\r\n".repeat(6));
    assert_eq!(stage.received(client), "END\r\n".repeat(6));
    assert_eq!(stage.closed, []);
    assert_eq!(stage.turn(link), gets(6..8));
    stage.says(link, &"END\r\n".repeat(2));
    assert_eq!(stage.received(client), "END\r\n".repeat(2));
    assert_eq!((&stage.closed, stage.memory()), (&vec![client], 0));
}

#[test]
fn the_rest_of_a_client_that_is_gone_is_not_sent() {
    let (mut stage, link) = shares(3);
    let (client, other) = (stage.client(), stage.client());
    stage.says(client, &gets(0..8));
    assert_eq!(stage.turn(link), gets(0..3));
    stage.closes(client, Closed::Reset);
    stage.says(other, "get x\r\n");
    assert_eq!(stage.turn(link), "get x\r\n");
    assert!(!stage.wants_turn());
    stage.says(link, &"END\r\n".repeat(4));
    assert_eq!((stage.received(other).as_str(), stage.memory()), ("END\r\n", 0));
    stage.expect_rows(0);
}

/// Its input waits up to a bound, and the rest of it in its socket.
#[test]
fn a_client_that_has_had_its_share_is_not_read_further() {
    let (mut stage, _) = shares(3);
    let client = stage.client();
    stage.says(client, &"version\r\n".repeat(5));
    assert_eq!(stage.paused, []);
    stage.says(client, &"version\r\n".repeat(2000));
    assert_eq!(stage.paused, [client]);
    assert_eq!(stage.received(client).lines().count(), 4);
    stage.install(|plan| plan.limits.turn_work = 1 << 20);
    // The share doubles in a turn in which nobody needs it whole.
    while !stage.paused.is_empty() {
        stage.end_turn();
    }
    assert_eq!(stage.received(client).lines().count(), 2001);
    assert_eq!((stage.memory(), &stage.paused), (0, &vec![]));
}

/// The work of a request with many keys is paid for by the turns after it.
#[test]
fn many_keys_are_more_than_one_share() {
    let (mut stage, link) = shares(10);
    let client = stage.client();
    // From now on the lengths of its answers are known, and so many keys may leave at once.
    stage.says(client, "get x\r\n");
    assert_eq!(stage.turn(link), "get x\r\n");
    stage.says(link, "END\r\n");
    stage.received(client);
    let keys: String = (0..90).map(|nth| format!(" k{nth}")).collect();
    let many = format!("get{keys}\r\n");
    stage.says(client, &(many.clone() + "get x\r\n"));
    assert_eq!(stage.turn(link), many);
    assert_eq!(stage.turn(link), "");
    assert!(stage.wants_turn());
    assert_eq!(stage.turn(link), "get x\r\n");
}

fn redis(turn_work: u32) -> Stage {
    Stage::of(&["s0"], |plan| {
        plan.limits.turn_work = turn_work;
        plan.pools[0].protocol = protocol("redis").expect("the table has it");
    })
}

/// The text of `COMMAND` is 80 KB and more.
#[test]
fn the_proxys_own_answers_take_shares_as_well() {
    let mut stage = redis(100);
    let (greedy, other) = (stage.client(), stage.client());
    stage.says(greedy, "COMMAND\r\n");
    let text = stage.received(greedy);
    assert!(text.len() > 80_000, "{} bytes", text.len());
    // The first turns pay for that.
    stage.says(greedy, "COMMAND\r\nPING\r\n");
    stage.says(other, "PING\r\n");
    assert_eq!(stage.received(greedy).len(), 0);
    assert_eq!(stage.received(other), "+PONG\r\n");
    let mut turns = 0;
    let mut told = String::new();
    while told.len() < text.len() + 7 {
        stage.end_turn();
        told += &stage.received(greedy);
        turns += 1;
        assert!(turns < 1000, "{} bytes", told.len());
    }
    assert!(turns > 10, "{turns} turns");
    assert!(told == text + "+PONG\r\n", "the answers are right");
}

/// `stats proxy` is made anew each time.
#[test]
fn counters_take_shares_as_well() {
    let (mut stage, _) = shares(4);
    let client = stage.client();
    stage.says(client, "stats proxy\r\nversion\r\n");
    let told = stage.received(client);
    assert!(told.ends_with("END\r\n"), "{told}");
    assert!(told.len() > 4 * 256, "{} bytes", told.len());
    (0..1000).for_each(|_| stage.end_turn());
    assert!(stage.received(client).starts_with("VERSION"));
}

#[test]
fn a_text_that_never_changes_is_the_same_each_time_and_for_each_version() {
    let mut stage = redis(u32::MAX);
    stage.install(|plan| plan.limits.client_outbox = 1 << 30);
    let client = stage.client();
    for asked in ["COMMAND", "COMMAND INFO", "COMMAND DOCS", "COMMAND LIST"] {
        let mut told = |words: &str| {
            stage.says(client, words);
            stage.received(client)
        };
        let first = told(&format!("{asked}\r\n"));
        assert!(first.starts_with('*'), "{asked}");
        assert!(told(&format!("{asked}\r\n{asked}\r\n")) == first.repeat(2), "{asked}");
        // One that is told of some commands, or silent, is another.
        let silent = format!("CLIENT REPLY SKIP\r\n{asked}\r\nPING\r\n");
        assert_eq!(told(&silent), "+PONG\r\n");
    }
    let some = "*2\r\n$7\r\nCOMMAND\r\n$5\r\nCOUNT\r\n";
    stage.says(client, some);
    assert!(stage.received(client).starts_with(':'));
    stage.says(client, "COMMAND LIST FILTERBY PATTERN lran*\r\n");
    assert_eq!(stage.received(client), "*1\r\n$6\r\nlrange\r\n");
    // In a transaction it is an element like any other.
    stage.says(client, "MULTI\r\nCOMMAND COUNT\r\nEXEC\r\n");
    assert!(stage.received(client).starts_with("+OK\r\n+QUEUED\r\n*1\r\n:"));
}
