//! Whether a server that takes no further link executes transactions: a link that clients share is
//! tried, while what is asked meanwhile waits.

use proto::protocol;
use proxy::plan::AdminState;
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::resp::{
    BUSY, HELLO, TOLD_FULL, WELCOME, all, comes_up, refuses, request as resp,
};
use crate::stage::{SECOND, Stage};

const TRANSACTION: &str = "MULTI\r\nGET k\r\nEXEC\r\n";
const QUEUED: &str = "+OK\r\n+QUEUED\r\n";
const NO_BLOCKS: &str = "-ERR s0: does not execute MULTI";

fn trial() -> String {
    all(&["MULTI", "DISCARD", "MULTI", "EXEC"])
}

fn block() -> String {
    all(&["MULTI", "GET k", "EXEC"])
}

/// A server, a link that two clients share, and these.
fn shared() -> (Stage, ConnId, [ConnId; 2]) {
    shared_at(0)
}

fn far() -> (Stage, ConnId, [ConnId; 2]) {
    shared_at(SECOND / 4)
}

/// As `shared`, so far from the server.
fn shared_at(trip: u64) -> (Stage, ConnId, [ConnId; 2]) {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.distribution, pool.preconnect) = (Distribution::Modula, true);
        (pool.class_links, pool.hold_after) = (0, None);
    });
    let link = stage.establishes_with(HELLO);
    stage.passes(trip);
    stage.says(link, WELCOME);
    let clients = [stage.client(), stage.client()];
    stage.says(clients[0], "GET k\r\n");
    assert_eq!(stage.turn(link), resp("GET k"));
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(clients[0]), "$-1\r\n");
    (stage, link, clients)
}

/// A client whose first transaction has met a full server, and another one.
fn tried() -> (Stage, ConnId, [ConnId; 2]) {
    let (mut stage, link, [client, other]) = shared();
    stage.says(client, TRANSACTION);
    refuses(&mut stage);
    assert_eq!(stage.turn(link), trial());
    (stage, link, [client, other])
}

#[test]
fn a_transaction_at_a_full_server_takes_the_link_that_is_there() {
    let (mut stage, link, [client, other]) = tried();
    stage.says(other, "GET l\r\n");
    assert_eq!(stage.turn(link), "", "it waits");
    for byte in "+OK\r\n+OK\r\n+OK\r\n*0\r\n".chars() {
        assert_eq!(stage.turn(link), "");
        stage.says(link, &byte.to_string());
    }
    assert_eq!(stage.turn(link), HELLO);
    stage.says(link, WELCOME);
    assert_eq!(stage.turn(link), resp("GET l") + &block());
    stage.says(link, &format!("$-1\r\n{QUEUED}*1\r\n$-1\r\n"));
    assert_eq!(stage.received(other), "$-1\r\n");
    assert_eq!(stage.received(client), format!("{QUEUED}*1\r\n$-1\r\n"));
    stage.says(other, TRANSACTION);
    assert_eq!(stage.turn(link), block(), "it is not tried again");
    assert_eq!(stage.connects, []);
}

/// Others would never let it be idle.
#[test]
fn a_link_that_is_to_be_tried_takes_nothing_new_before() {
    let (mut stage, link, [client, other]) = shared();
    let late = stage.client();
    stage.says(other, "GET a\r\nGET b\r\n");
    assert_eq!(stage.turn(link), all(&["GET a", "GET b"]));
    stage.says(client, TRANSACTION);
    refuses(&mut stage);
    stage.end_turn();
    stage.says(late, "SET c 1\r\n");
    assert_eq!(stage.turn(link), "");
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.turn(link), "", "one reply is still to come");
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(other), "$-1\r\n$-1\r\n");
    assert_eq!(stage.turn(link), trial());
    stage.says(link, "+OK\r\n+OK\r\n+OK\r\n*0\r\n");
    assert_eq!(stage.turn(link), HELLO);
    stage.says(link, WELCOME);
    assert_eq!(stage.turn(link), resp("SET c 1") + &block());
}

/// A part of a value has left, and the server waits for the rest.
#[test]
fn a_message_that_has_begun_to_leave_is_sent_to_its_end_before_a_trial() {
    let (mut stage, link, [client, other]) = shared();
    let late = stage.client();
    stage.says(other, "GET a\r\n");
    stage.end_turn();
    let some = stage.received_some(link, 5);
    stage.says(client, TRANSACTION);
    refuses(&mut stage);
    stage.end_turn();
    stage.says(late, "GET b\r\n");
    assert_eq!(some + &stage.turn(link), resp("GET a"));
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.turn(link), trial());
}

#[test]
fn a_server_without_transactions_keeps_the_link_that_was_tried() {
    for replies in [
        "-ERR unknown command 'MULTI'\r\n-ERR DISCARD without MULTI\r\n\
         -ERR unknown command 'MULTI'\r\n-ERR EXEC without MULTI\r\n",
        "+OK\r\n-ERR unknown command 'DISCARD'\r\n-ERR MULTI calls can not be nested\r\n\
         -EXECABORT Transaction discarded because of previous errors.\r\n",
    ] {
        let (mut stage, link, [client, other]) = tried();
        stage.says(other, "GET l\r\n");
        let (first, rest) = replies.split_at(replies.len() - 1);
        stage.says(link, first);
        assert_eq!((stage.turn(link), stage.received(client)), ("".into(), QUEUED.into()));
        stage.says(link, rest);
        assert_eq!(stage.turn(link), HELLO);
        stage.says(link, WELCOME);
        assert_eq!(stage.turn(link), resp("GET l"), "no block, and no request of it");
        assert!(stage.received(client).contains(NO_BLOCKS));
        assert!(!stage.closed.contains(&link));
        // For a while nothing is tried.
        stage.says(client, TRANSACTION);
        assert!(stage.received(client).contains(NO_BLOCKS));
        assert_eq!((stage.turn(link), stage.connects.len()), ("".into(), 0));
    }
}

/// Where EXEC has another name, the link stays in the transaction.
#[test]
fn a_link_that_a_trial_leaves_in_a_transaction_is_taken_out_of_it() {
    for last in ["-ERR unknown command 'EXEC'\r\n", "-NOPERM this user has no permissions\r\n"] {
        let (mut stage, link, [client, other]) = tried();
        stage.says(other, "SET l 1\r\n");
        stage.says(link, &format!("+OK\r\n+OK\r\n+OK\r\n{last}"));
        assert_eq!(stage.turn(link), resp("DISCARD"));
        stage.says(link, "+OK\r\n");
        assert_eq!(stage.turn(link), HELLO);
        stage.says(link, WELCOME);
        assert_eq!(stage.turn(link), resp("SET l 1"));
        assert!(stage.received(client).contains(NO_BLOCKS));
        assert!(!stage.closed.contains(&link));
    }
}

/// Nothing ends the transaction. An old server knows no HELLO, and would answer that within one as
/// it does outside.
#[test]
fn a_link_that_stays_in_the_transaction_of_a_trial_is_closed_and_not_tried_for_long() {
    const REFUSED: &str = "-NOPERM this user has no permissions\r\n";
    let (mut stage, link, [client, other]) = tried();
    stage.says(other, "SET l 1\r\n");
    stage.says(link, &format!("+OK\r\n{REFUSED}-ERR MULTI calls can not be nested\r\n{REFUSED}"));
    assert_eq!(stage.turn(link), resp("DISCARD"));
    stage.says(link, REFUSED);
    assert!(stage.closed.contains(&link));
    stage.end_turn();
    let next = comes_up(&mut stage);
    assert_eq!(stage.turn(next), resp("SET l 1"));
    stage.says(next, "+OK\r\n");
    assert!(stage.received(client).contains(NO_BLOCKS));
    stage.passes(30 * SECOND);
    stage.says(client, TRANSACTION);
    assert!(stage.received(client).contains(NO_BLOCKS));
    assert_eq!(stage.connects, []);
}

#[test]
fn a_server_that_is_busy_is_asked_again_when_that_is_over() {
    let aborted = BUSY.replacen('-', "-EXECABORT Transaction discarded because of: ", 1);
    for answer in [BUSY.repeat(4), format!("+OK\r\n+OK\r\n+OK\r\n{aborted}")] {
        let (mut stage, link, [client, _]) = tried();
        stage.says(link, &answer);
        assert_eq!(stage.turn(link), HELLO);
        stage.says(link, WELCOME);
        stage.end_turn();
        assert_eq!(stage.received(client), format!("{QUEUED}{BUSY}"));
        stage.passes(SECOND / 10);
        stage.says(client, TRANSACTION);
        refuses(&mut stage);
        assert_eq!(stage.turn(link), trial());
        assert!(!stage.closed.contains(&link));
    }
}

#[test]
fn a_trial_on_a_shared_link_believes_nothing_that_was_not_asked_for() {
    for (is_asked, words) in [
        (false, "+OK\r\n"),
        (true, "+OK\r\n+OK\r\n+OK\r\n*0\r\n+OK\r\n"),
        (true, "+OK\r\n:1\r\n"),
        (true, "+OK\r\n+QUEUED\r\n"),
    ] {
        let (mut stage, link, [client, _]) = shared();
        stage.says(client, TRANSACTION);
        refuses(&mut stage);
        if is_asked {
            assert_eq!(stage.turn(link), trial());
        } else {
            stage.end_turn();
        }
        stage.says(link, words);
        assert!(stage.closed.contains(&link), "{words}");
    }
}

/// Its server may be one that ends every link with a transaction on it.
#[test]
fn a_link_that_ends_within_its_trial_loses_nothing_and_the_next_is_not_tried() {
    let (mut stage, link, [client, other]) = tried();
    stage.says(other, "SET l 1\r\n");
    stage.says(link, "+OK\r\n");
    stage.closes(link, Closed::Reset);
    stage.end_turn();
    let next = comes_up(&mut stage);
    assert_eq!(stage.turn(next), resp("SET l 1"));
    stage.says(next, "+OK\r\n");
    assert_eq!(stage.received(other), "+OK\r\n");
    assert_eq!(stage.received(client), format!("{QUEUED}{TOLD_FULL}"));
    for _ in 0..3 {
        stage.passes(SECOND);
        stage.says(client, TRANSACTION);
        refuses(&mut stage);
        assert_eq!(stage.turn(next), "");
        assert_eq!(stage.received(client), format!("{QUEUED}{TOLD_FULL}"));
    }
}

/// It ends, or does not answer, what is there for the trial alone: those who share a link are
/// spared that.
#[test]
fn a_server_that_reads_a_trial_and_does_not_answer_is_tried_on_no_shared_link() {
    for is_silent in [false, true] {
        let (mut stage, link, [client, other]) = shared();
        stage.says(client, TRANSACTION);
        stage.end_turn();
        let one = stage.establishes_with(&(HELLO.to_string() + &trial()));
        stage.says(one, WELCOME);
        if is_silent {
            stage.passes(stage.plan.pools[0].timeouts.reply);
        } else {
            stage.closes(one, Closed::Eof);
        }
        stage.says(other, "GET l\r\n");
        assert_eq!(stage.turn(link), HELLO, "idle links are asked whether the server works");
        stage.says(link, WELCOME);
        assert_eq!(stage.turn(link), resp("GET l"));
        let told = stage.received(client);
        assert!(told.contains("-ERR s0: ") && !stage.closed.contains(&link), "{told}");
    }
}

/// Requests that wait for the round trips of a trial would not be sent in time.
#[test]
fn a_link_that_is_far_is_not_tried() {
    let (mut stage, link, [client, other]) = far();
    stage.says(client, TRANSACTION);
    refuses(&mut stage);
    stage.says(other, "GET l\r\n");
    assert_eq!(stage.turn(link), resp("GET l"));
    assert_eq!(stage.received(client), format!("{QUEUED}{TOLD_FULL}"));
}

/// No link of its own worker is there.
#[test]
fn a_transaction_without_any_link_reads_why() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.preconnect, pool.hold_after) = (false, None);
    });
    let client = stage.client();
    for _ in 0..2 {
        stage.says(client, TRANSACTION);
        if !stage.connects.is_empty() {
            refuses(&mut stage);
        }
        stage.end_turn();
        assert_eq!(stage.received(client), format!("{QUEUED}{TOLD_FULL}"));
        assert_eq!(stage.connects, [], "not at once again");
    }
    // There is room again.
    stage.passes(SECOND);
    stage.says(client, TRANSACTION);
    stage.end_turn();
    let one = stage.establishes_with(&(HELLO.to_string() + &trial()));
    stage.says(one, &format!("{WELCOME}+OK\r\n+OK\r\n+OK\r\n*0\r\n"));
    stage.end_turn();
    let link = comes_up(&mut stage);
    assert_eq!(stage.turn(link), block());
}

/// Its server is taken out of service: what waits on it is sent all the same, and the next
/// transaction is tried anew.
#[test]
fn a_link_that_retires_within_its_trial_loses_nothing_and_is_no_trial_for_ever() {
    let (mut stage, link, [client, other]) = tried();
    stage.says(other, "SET l 1\r\n");
    stage.end_turn();
    stage.install(|plan| plan.pools[0].servers[0].admin = AdminState::Maint);
    stage.says(link, "+OK\r\n+OK\r\n+OK\r\n*0\r\n");
    assert_eq!(stage.turn(link), HELLO);
    stage.says(link, WELCOME);
    assert_eq!(stage.turn(link), resp("SET l 1"));
    stage.says(link, "+OK\r\n");
    assert!(stage.closed.contains(&link));
    assert_eq!(stage.received(other), "+OK\r\n");
    assert!(stage.received(client).contains("in maintenance, not sent"));
    // One on which nothing waits is closed at once.
    let (mut stage, link, [client, _]) = tried();
    stage.install(|plan| plan.pools[0].servers[0].admin = AdminState::Maint);
    assert!(stage.closed.contains(&link));
    stage.end_turn();
    assert!(stage.received(client).contains("in maintenance, not sent"));
    stage.install(|plan| plan.pools[0].servers[0].admin = AdminState::Ready);
    let link = comes_up(&mut stage);
    stage.says(client, TRANSACTION);
    stage.end_turn();
    let one = stage.establishes_with(&(HELLO.to_string() + &trial()));
    stage.says(one, &format!("{WELCOME}+OK\r\n+OK\r\n+OK\r\n*0\r\n"));
    assert_eq!(stage.turn(link), block());
}

/// Parts of it would be made at the others alone if the link was lost.
#[test]
fn a_change_at_several_servers_waits_for_a_link_that_is_to_be_tried() {
    for is_earlier in [false, true] {
        let mut stage = Stage::new(&["s0", "s1"], |pool| {
            pool.protocol = protocol("redis").expect("the table has it");
            (pool.distribution, pool.preconnect) = (Distribution::Modula, true);
            (pool.class_links, pool.hold_after) = (0, None);
        });
        let links = [comes_up(&mut stage), comes_up(&mut stage)];
        let [client, other, third] = [(); 3].map(|()| stage.client());
        let keys = [stage.key_of(0), stage.key_of(1)];
        let get = format!("GET {}", keys[0]);
        let change = format!("MSET {} 1 {} 2\r\n", keys[0], keys[1]);
        stage.says(other, &format!("{get}\r\n"));
        assert_eq!(stage.turn(links[0]), resp(&get));
        stage.says(client, &format!("MULTI\r\n{get}\r\nEXEC\r\n"));
        refuses(&mut stage);
        if !is_earlier {
            stage.end_turn();
        }
        stage.says(third, &change);
        let sent = [stage.turn(links[0]), stage.turn(links[1])];
        let is_sent = sent.iter().map(|text| text.contains("mset"));
        assert_eq!(is_sent.collect::<Vec<_>>(), [is_earlier; 2], "both or none: {sent:?}");
        stage.says(links[0], if is_earlier { "$-1\r\n+OK\r\n" } else { "$-1\r\n" });
        assert_eq!([stage.turn(links[0]), stage.turn(links[1])], [trial(), String::new()]);
        stage.says(links[0], "+OK\r\n+OK\r\n+OK\r\n*0\r\n");
        assert_eq!([stage.turn(links[0]), stage.turn(links[1])], [HELLO, ""]);
        stage.says(links[0], WELCOME);
        let sent = [stage.turn(links[0]), stage.turn(links[1])];
        let is_sent = sent.iter().map(|text| text.contains("mset"));
        assert_eq!(is_sent.collect::<Vec<_>>(), [!is_earlier; 2], "both or none: {sent:?}");
    }
}
