//! Subscriptions: what servers are told, when clients are answered, and where messages go.

use proto::protocol;
use proxy::plan::{OnSubscriptionLost, PoolPlan};
use proxy::{Closed, ConnId, Event};
use shard::Distribution;

use crate::stage::resp::BUSY;
use crate::stage::{SECOND, Stage};

const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
const WELCOME: &str = "*2\r\n$5\r\nproto\r\n:2\r\n";

fn resp(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}

/// What servers and clients are told of a topic.
fn told(verb: &str, topic: &str, count: u32) -> String {
    let (verb_len, topic_len) = (verb.len(), topic.len());
    format!("*3\r\n${verb_len}\r\n{verb}\r\n${topic_len}\r\n{topic}\r\n:{count}\r\n")
}

fn message(channel: &str, text: &str) -> String {
    resp(&format!("message {channel} {text}"))
}

fn pool(servers: &[&str], set: impl FnOnce(&mut PoolPlan)) -> Stage {
    Stage::new(servers, |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        pool.distribution = Distribution::Modula;
        set(pool);
    })
}

/// Brings the link up that was ordered first of those that are not.
fn up(stage: &mut Stage) -> ConnId {
    stage.end_turn();
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    link
}

/// Has a client subscribe on both servers; returns the links.
fn subscribed(stage: &mut Stage, client: ConnId) -> [ConnId; 2] {
    stage.says(client, "SUBSCRIBE c\r\n");
    let links = [up(stage), up(stage)];
    for link in links {
        assert_eq!(stage.turn(link), resp("SUBSCRIBE c"));
        assert_eq!(stage.received(client), "", "not before all have acknowledged it");
        stage.says(link, &told("subscribe", "c", 1));
    }
    assert_eq!(stage.received(client), told("subscribe", "c", 1));
    links
}

#[test]
fn servers_are_told_once_and_all_who_listen_hear_each_message() {
    let mut stage = pool(&["s0", "s1"], |_| {});
    let (one, other) = (stage.client(), stage.client());
    let links = subscribed(&mut stage, one);
    stage.says(other, "SUBSCRIBE c\r\n");
    assert_eq!(stage.received(other), told("subscribe", "c", 1));
    assert_eq!(links.map(|link| stage.turn(link)), ["", ""], "both servers know");
    // A message in two pieces, with the beginning of the next.
    let all = message("c", "first") + &message("c", "second");
    let (start, end) = all.split_at(all.len() - 9);
    stage.says(links[1], start);
    assert_eq!(stage.received(one), message("c", "first"));
    stage.says(links[1], end);
    assert_eq!(stage.received(one), message("c", "second"));
    assert_eq!(stage.received(other), all);
    stage.says(one, "UNSUBSCRIBE c\r\n");
    assert_eq!(stage.received(one), told("unsubscribe", "c", 0), "another still listens");
    stage.says(links[0], &message("c", "third"));
    assert_eq!(
        [stage.received(one), stage.received(other)],
        [String::new(), message("c", "third")]
    );
    stage.closes(other, Closed::Reset);
    stage.end_turn();
    for link in links {
        assert_eq!(stage.turn(link), resp("UNSUBSCRIBE c"));
        stage.says(link, &message("c", "late"));
        stage.says(link, &told("unsubscribe", "c", 0));
    }
    assert_eq!((stage.received(one), stage.memory()), (String::new(), 0));
}

/// A pattern stands there under one of its names, and channels go to both.
#[test]
fn subscribers_at_a_server_of_two_names_are_counted_by_either() {
    let mut stage = pool(&["s0", "s1"], |pool| pool.servers[1].twin_of = Some("s0".into()));
    let (one, other, publisher) = (stage.client(), stage.client(), stage.client());
    stage.says(one, "PSUBSCRIBE *\r\n");
    let link = up(&mut stage);
    assert_eq!(stage.turn(link), resp("PSUBSCRIBE *"));
    stage.says(link, &told("psubscribe", "*", 1));
    stage.says(other, "PSUBSCRIBE *\r\n");
    stage.end_turn();
    let mut links = Vec::new();
    for channel in ["a", "b", "c", "d", "e", "f"] {
        stage.says(publisher, &format!("PUBLISH {channel} x\r\n"));
        stage.end_turn();
        if !stage.connects.is_empty() {
            links.push(up(&mut stage));
        }
        let mut is_asked =
            |link: &&ConnId| stage.turn(**link) == resp(&format!("PUBLISH {channel} x"));
        let asked = *links.iter().find(&mut is_asked).expect("one of them");
        stage.says(asked, ":1\r\n");
        assert_eq!(stage.received(publisher), ":2\r\n", "{channel}");
    }
    assert_eq!(links.len(), 2, "both names were used");
}

#[test]
fn the_newest_of_what_crosses_is_waited_for() {
    let mut stage = pool(&["s0"], |_| {});
    let (one, other) = (stage.client(), stage.client());
    stage.says(one, "SUBSCRIBE c\r\n");
    let link = up(&mut stage);
    stage.turn(link);
    stage.says(link, &told("subscribe", "c", 1));
    stage.received(one);
    stage.says(one, "UNSUBSCRIBE c\r\n");
    assert_eq!(stage.turn(link), resp("UNSUBSCRIBE c"));
    stage.says(other, "SUBSCRIBE c\r\nPING\r\n");
    assert_eq!(stage.turn(link), resp("SUBSCRIBE c"));
    // A message for the old one: nobody has been told of the new one yet.
    stage.says(link, &message("c", "between"));
    assert_eq!([stage.received(one), stage.received(other)], ["", ""]);
    stage.says(link, &told("unsubscribe", "c", 0));
    assert_eq!([stage.received(one), stage.received(other)], ["", ""]);
    stage.says(link, &told("subscribe", "c", 1));
    assert_eq!(stage.received(one), told("unsubscribe", "c", 0));
    let expected = told("subscribe", "c", 1) + &message("c", "between");
    assert_eq!(stage.received(other), expected);
    stage.end_turn();
    assert_eq!(stage.received(other), "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
}

#[test]
fn a_message_never_stands_within_an_answer_and_the_end_of_a_topic_is_behind_it() {
    let mut stage = pool(&["s0"], |_| {});
    let client = stage.client();
    stage.says(client, "SUBSCRIBE c\r\n");
    let link = up(&mut stage);
    stage.turn(link);
    stage.says(link, &told("subscribe", "c", 1));
    stage.received(client);
    stage.says(client, "HELLO 3\r\n");
    let hello = stage.received(client);
    assert!(hello.is_empty() || hello.contains("only (P|S)SUBSCRIBE"), "{hello}");
    let client = stage.client();
    stage.says(client, "HELLO 3\r\n");
    assert!(stage.received(client).starts_with('%') || !stage.connects.is_empty());
    stage.says(client, "SUBSCRIBE c\r\n");
    let push = |text: &str| text.replacen('*', ">", 1);
    assert_eq!(stage.received(client), push(&told("subscribe", "c", 1)));
    stage.says(client, "GET k\r\nGET l\r\n");
    stage.end_turn();
    let three = stage.establishes_with("*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n");
    stage.says(three, "%1\r\n$5\r\nproto\r\n:3\r\n");
    assert_eq!(stage.turn(three), resp("GET k") + &resp("GET l"));
    // It is not kept waiting by answers that are to come.
    stage.says(link, &message("c", "one"));
    assert_eq!(stage.received(client), push(&message("c", "one")));
    let value = "v".repeat(100_000);
    stage.says(three, &format!("$100000\r\n{}", &value[..70_000]));
    let start = stage.received(client);
    assert!(start.len() > 60_000, "it is streamed");
    stage.says(link, &message("c", "two"));
    stage.says(link, &message("c", "three"));
    assert_eq!(stage.received(client), "");
    stage.says(three, &format!("{}\r\n", &value[70_000..]));
    let rest = stage.received(client);
    assert_eq!(start + &rest, format!("$100000\r\n{value}\r\n"), "the next answer is before them");
    stage.says(three, "$1\r\nl\r\n");
    let pushes = push(&message("c", "two")) + &push(&message("c", "three"));
    assert_eq!(stage.received(client), "$1\r\nl\r\n".to_string() + &pushes);
    stage.says(client, "UNSUBSCRIBE c\r\nGET k\r\n");
    assert_eq!(stage.received(client), push(&told("unsubscribe", "c", 0)));
    assert_eq!(stage.turn(three), resp("GET k"));
}

#[test]
fn a_server_that_is_lost_is_not_waited_for_and_joined_later() {
    let mut stage = pool(&["s0", "s1"], |pool| {
        pool.on_subscription_lost = OnSubscriptionLost::Keep;
    });
    let client = stage.client();
    stage.says(client, "SUBSCRIBE c\r\n");
    let first = up(&mut stage);
    stage.turn(first);
    stage.says(first, &told("subscribe", "c", 1));
    assert_eq!(stage.received(client), "");
    let (second, _) = stage.connects.remove(0);
    stage.closes(second, Closed::Unmade(111));
    assert_eq!(stage.received(client), told("subscribe", "c", 1), "of those that are there");
    // Its probe is answered: it is told what clients listen to.
    stage.passes(SECOND);
    let probe = up(&mut stage);
    let second = up(&mut stage);
    assert_eq!([stage.turn(probe), stage.turn(second)], [String::new(), resp("SUBSCRIBE c")]);
    stage.says(second, &told("subscribe", "c", 1));
    stage.says(second, &message("c", "here"));
    assert_eq!(stage.received(client), message("c", "here"));
    // A link that is lost is made again, and the client stays.
    stage.passes(2 * SECOND);
    stage.closes(first, Closed::Eof);
    let lost = stage
        .events
        .iter()
        .any(|event| matches!(event, Event::SubscriptionsLost { subscriptions: 1, closed: 0, .. }));
    assert!(lost, "{:?}", stage.events);
    let again = up(&mut stage);
    assert_eq!(stage.turn(again), resp("SUBSCRIBE c"));
    assert!(!stage.closed.contains(&client));
}

#[test]
fn a_lost_link_closes_those_who_listened_and_nobody_else() {
    let mut stage = pool(&["s0", "s1"], |_| {});
    let (one, other) = (stage.client(), stage.client());
    let links = subscribed(&mut stage, one);
    stage.says(other, "PING\r\n");
    stage.received(other);
    stage.closes(links[1], Closed::Reset);
    stage.end_turn();
    assert!(stage.closed.contains(&one) && !stage.closed.contains(&other));
    assert_eq!(stage.turn(links[0]), resp("UNSUBSCRIBE c"));
}

#[test]
fn what_a_server_refuses_is_ended_everywhere() {
    let mut stage = pool(&["s0", "s1"], |_| {});
    let client = stage.client();
    stage.says(client, "SUBSCRIBE a b\r\n");
    let links = [up(&mut stage), up(&mut stage)];
    for link in links {
        assert_eq!(stage.turn(link), resp("SUBSCRIBE a") + &resp("SUBSCRIBE b"));
    }
    stage.says(links[0], &(told("subscribe", "a", 1) + "-NOPERM no\r\n"));
    stage.says(links[1], &(told("subscribe", "a", 1) + "-NOPERM no\r\n"));
    assert_eq!(stage.turn(links[0]), resp("UNSUBSCRIBE a"));
    assert_eq!(stage.turn(links[1]), resp("UNSUBSCRIBE a") + &resp("UNSUBSCRIBE b"));
    stage.says(links[0], &told("unsubscribe", "a", 0));
    stage.says(links[1], &(told("unsubscribe", "a", 0) + &told("unsubscribe", "b", 0)));
    assert_eq!(stage.received(client), "-NOPERM no\r\n");
    stage.says(client, "PING\r\n");
    assert_eq!(stage.received(client), "+PONG\r\n", "it listens to nothing");
    // What was not asked for poisons the link.
    stage.says(links[0], &told("subscribe", "z", 1));
    assert!(stage.closed.contains(&links[0]));
}

#[test]
fn a_subscriber_stays_at_its_worker_and_a_drain_closes_it() {
    let mut stage = pool(&["s0", "s1"], |_| {});
    let (one, other) = (stage.client(), stage.client());
    let links = subscribed(&mut stage, one);
    stage.says(other, "PING\r\n");
    stage.received(other);
    assert_eq!(stage.hand_over(), [other]);
    stage.says(one, "UNSUBSCRIBE c\r\n");
    for link in links {
        stage.turn(link);
        stage.says(link, &told("unsubscribe", "c", 0));
    }
    stage.received(one);
    assert_eq!(stage.hand_over(), [one]);
    let client = stage.client();
    stage.says(client, "SUBSCRIBE d\r\n");
    for link in links {
        assert_eq!(stage.turn(link), resp("SUBSCRIBE d"));
        stage.says(link, &told("subscribe", "d", 1));
    }
    stage.received(client);
    stage.drain();
    assert!(stage.closed.contains(&client) && stage.is_drained());
}

#[test]
fn a_server_that_leaves_the_plan_closes_nobody_and_a_new_one_is_told() {
    let mut stage = pool(&["s0", "s1"], |_| {});
    let client = stage.client();
    let links = subscribed(&mut stage, client);
    stage.install(|plan| {
        plan.pools[0].servers[1].id = 9;
    });
    stage.end_turn();
    assert!(stage.closed.contains(&links[1]) && !stage.closed.contains(&client));
    let new = up(&mut stage);
    assert_eq!(stage.turn(new), resp("SUBSCRIBE c"));
    stage.says(new, &told("subscribe", "c", 1));
    stage.says(new, &message("c", "new"));
    assert_eq!(stage.received(client), message("c", "new"));
}

#[test]
fn a_server_that_is_silent_is_asked_whether_it_is_there_and_lost_if_it_is_not() {
    let mut stage = pool(&["s0", "s1"], |pool| pool.hold_after = None);
    let client = stage.client();
    let links = subscribed(&mut stage, client);
    stage.passes(11 * SECOND);
    for link in links {
        assert_eq!(stage.turn(link), "*1\r\n$4\r\nPING\r\n");
    }
    stage.says(links[0], "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    stage.passes(5 * SECOND);
    stage.end_turn();
    let is_closed = |id: &ConnId| stage.closed.contains(id);
    assert_eq!([links[0], links[1], client].map(|id| is_closed(&id)), [false, true, true]);
}

/// The server works on the links that it has, and takes no more.
#[test]
fn a_subscriber_at_a_full_server_reads_what_that_says() {
    let mut stage = pool(&["s0"], |_| {});
    let (client, other) = (stage.client(), stage.client());
    stage.says(other, "GET a\r\n");
    let link = up(&mut stage);
    assert_eq!(stage.turn(link), resp("GET a"));
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(other), "$-1\r\n");
    stage.says(client, "SUBSCRIBE c\r\n");
    stage.end_turn();
    let further = stage.establishes_with(HELLO);
    stage.says(further, "-ERR max number of clients reached\r\n");
    let full =
        "-ERR s0: takes no further connection: ERR max number of clients reached; not sent\r\n";
    assert_eq!(stage.received(client), full);
    // The next one, before it is tried again.
    stage.says(client, "SUBSCRIBE d\r\n");
    assert_eq!(stage.received(client), full);
    // There is room again.
    stage.passes(SECOND);
    stage.says(client, "SUBSCRIBE c\r\n");
    let further = up(&mut stage);
    assert_eq!(stage.turn(further), resp("SUBSCRIBE c"));
    stage.says(further, &told("subscribe", "c", 1));
    assert_eq!(stage.received(client), told("subscribe", "c", 1));
    assert_eq!(stage.healths(), ["s0 ready"]);
}

/// Its topics stay, since nobody tells it again.
#[test]
fn subscriptions_wait_for_a_server_that_is_busy() {
    let mut stage = pool(&["s0"], |pool| (pool.databases, pool.database) = (16, 1));
    let client = stage.client();
    stage.says(client, "SUBSCRIBE c\r\n");
    stage.end_turn();
    let link = stage.establishes_with(&(resp("SELECT 1") + HELLO));
    stage.says(link, &format!("{BUSY}{BUSY}"));
    stage.passes(SECOND / 10);
    assert_eq!(stage.turn(link), resp("SELECT 1") + HELLO);
    stage.says(link, &format!("+OK\r\n{WELCOME}"));
    assert_eq!(stage.turn(link), resp("SUBSCRIBE c"));
    stage.says(link, &told("subscribe", "c", 1));
    assert_eq!(stage.received(client), told("subscribe", "c", 1));
}

/// A relay closes at what one client listens to.
#[test]
fn who_subscribes_after_another_has_ended_the_link_waits_for_the_next() {
    let mut stage = pool(&["s0"], |_| {});
    let [evil, other] = [stage.client(), stage.client()];
    stage.says(other, "GET a\r\n");
    let shared = up(&mut stage);
    assert_eq!(stage.turn(shared), resp("GET a"));
    stage.says(shared, "$-1\r\n");
    stage.received(other);
    stage.says(evil, "SUBSCRIBE evil\r\n");
    let link = up(&mut stage);
    assert_eq!(stage.turn(link), resp("SUBSCRIBE evil"));
    stage.closes(link, Closed::Eof);
    assert_eq!(stage.received(evil), "-ERR s0: connection lost\r\n");
    stage.says(other, "SUBSCRIBE c\r\n");
    assert_eq!((stage.received(other), stage.connects.len()), (String::new(), 0));
    stage.passes(SECOND / 10);
    let link = up(&mut stage);
    assert_eq!(stage.turn(link), resp("SUBSCRIBE c"));
    stage.says(link, &told("subscribe", "c", 1));
    assert_eq!(stage.received(other), told("subscribe", "c", 1));
}

/// It could wait for a link that does not come.
#[test]
fn who_waits_for_the_next_link_is_told_when_there_is_none() {
    let mut stage = pool(&["s0"], |_| {});
    let [evil, other] = [stage.client(), stage.client()];
    stage.says(evil, "SUBSCRIBE evil\r\n");
    let link = up(&mut stage);
    stage.turn(link);
    stage.closes(link, Closed::Eof);
    stage.says(other, "SUBSCRIBE c\r\n");
    stage.says(evil, "GET k\r\n");
    stage.end_turn();
    let (shared, _) = stage.connects.remove(0);
    stage.closes(shared, Closed::Unmade(111));
    assert_eq!(stage.healths(), ["s0 down"]);
    stage.passes(SECOND / 10);
    assert_eq!(stage.received(other), "-ERR s0: down, waiting for it to come back\r\n");
}
