//! Whether a server executes transactions. If it takes no further link, the trial goes among the
//! requests on one that clients share.

use proto::protocol;
use proxy::plan::AdminState;
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::resp::{
    BUSY, NO_BLOCK, TOLD_FULL, all, answers_trial, comes_up, empty_block, ends, is_tried, refuses,
    request as resp,
};
use crate::stage::{SECOND, Stage};

const TRANSACTION: &str = "MULTI\r\nGET k\r\nEXEC\r\n";
const QUEUED: &str = "+OK\r\n+QUEUED\r\n";
const NO_BLOCKS: &str = "-ERR s0: does not execute MULTI";

fn block() -> String {
    all(&["MULTI", "GET k", "EXEC"])
}

/// A server, a link that two clients share, and these.
fn shared() -> (Stage, ConnId, [ConnId; 2]) {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.distribution, pool.preconnect) = (Distribution::Modula, true);
        (pool.class_links, pool.hold_after) = (0, None);
    });
    let link = comes_up(&mut stage);
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
    assert_eq!(stage.turn(link), ends());
    (stage, link, [client, other])
}

/// Brings up the next link, on which the server makes a client's change.
fn takes_change(stage: &mut Stage, client: ConnId) -> ConnId {
    stage.end_turn();
    let next = comes_up(stage);
    assert_eq!(stage.turn(next), resp("SET l 1"));
    stage.says(next, "+OK\r\n");
    assert_eq!(stage.received(client), "+OK\r\n");
    next
}

#[test]
fn a_transaction_at_a_full_server_takes_the_link_that_is_there() {
    let (mut stage, link, [client, other]) = tried();
    for byte in NO_BLOCK.chars() {
        assert_eq!(stage.turn(link), "");
        stage.says(link, &byte.to_string());
    }
    assert_eq!(stage.turn(link), empty_block());
    for byte in "+OK\r\n+OK\r\n".chars() {
        assert_eq!(stage.turn(link), "");
        stage.says(link, &byte.to_string());
    }
    assert_eq!(stage.turn(link), block());
    stage.says(link, &format!("{QUEUED}*1\r\n$-1\r\n"));
    assert_eq!(stage.received(client), format!("{QUEUED}*1\r\n$-1\r\n"));
    stage.says(other, TRANSACTION);
    assert_eq!(stage.turn(link), block(), "it is not tried again");
    assert_eq!(stage.connects, []);
}

#[test]
fn a_trial_on_a_shared_link_keeps_nobody_waiting() {
    let (mut stage, link, [client, other]) = shared();
    let third = stage.client();
    stage.says(other, "GET a\r\n");
    assert_eq!(stage.turn(link), resp("GET a"));
    stage.says(client, TRANSACTION);
    refuses(&mut stage);
    assert_eq!(stage.turn(link), ends());
    stage.says(third, "SET b 1\r\n");
    assert_eq!(stage.turn(link), resp("SET b 1"));
    stage.says(link, &format!("$-1\r\n{NO_BLOCK}"));
    assert_eq!(stage.turn(link), empty_block());
    stage.says(other, "GET c\r\n");
    assert_eq!(stage.turn(link), resp("GET c"));
    stage.says(link, "+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!((stage.received(third), stage.turn(link)), ("+OK\r\n".into(), block()));
    stage.says(link, &format!("$-1\r\n{QUEUED}*1\r\n$-1\r\n"));
    assert_eq!(stage.received(other), "$-1\r\n$-1\r\n");
    assert_eq!(stage.received(client), format!("{QUEUED}*1\r\n$-1\r\n"));
}

/// A command of the trial has another name there, or is forbidden. No block begins on the link
/// before those that end it are known.
#[test]
fn a_server_without_transactions_keeps_the_link_that_was_tried() {
    const NO_PERMISSION: &str = "-NOPERM this user has no permissions\r\n";
    let [discard, exec] = NO_BLOCK.split_inclusive("\r\n").collect::<Vec<_>>()[..] else {
        panic!("two lines");
    };
    for answers in [
        &[format!("-ERR unknown command 'DISCARD'\r\n{exec}")][..],
        &[format!("{discard}{NO_PERMISSION}")],
        &[NO_PERMISSION.repeat(2)],
        &[NO_BLOCK.to_string(), format!("-ERR unknown command 'MULTI'\r\n{discard}")],
    ] {
        let (mut stage, link, [client, other]) = shared();
        stage.says(client, TRANSACTION);
        refuses(&mut stage);
        answers_trial(&mut stage, link, &answers.iter().map(String::as_str).collect::<Vec<_>>());
        stage.says(other, "GET l\r\n");
        assert_eq!(stage.turn(link), resp("GET l"), "no block, and no request of it");
        assert!(stage.received(client).contains(NO_BLOCKS));
        assert!(!stage.closed.contains(&link));
        // For a while nothing is tried.
        stage.says(client, TRANSACTION);
        assert!(stage.received(client).contains(NO_BLOCKS));
        assert_eq!((stage.turn(link), stage.connects.len()), ("".into(), 0));
    }
}

/// It knew DISCARD a moment ago, and refuses it now.
#[test]
fn a_link_that_stays_in_the_transaction_of_a_trial_is_closed_and_no_other_is_tried() {
    let (mut stage, link, [client, other]) = tried();
    stage.says(link, NO_BLOCK);
    assert_eq!(stage.turn(link), empty_block());
    stage.says(other, "SET l 1\r\n");
    stage.says(link, "+OK\r\n-NOPERM this user has no permissions\r\n");
    assert!(stage.closed.contains(&link));
    let next = takes_change(&mut stage, other);
    assert_eq!(stage.received(client), format!("{QUEUED}{TOLD_FULL}"));
    stage.passes(SECOND);
    stage.says(client, TRANSACTION);
    refuses(&mut stage);
    assert_eq!(stage.turn(next), "");
    assert_eq!(stage.received(client), format!("{QUEUED}{TOLD_FULL}"));
}

/// The first time it may have been chance: a frozen server, or a restart.
#[test]
fn a_server_that_ends_shared_links_at_a_trial_is_tried_on_them_less_and_less_often() {
    let transacts = |stage: &mut Stage, client: ConnId| {
        stage.says(client, TRANSACTION);
        stage.end_turn();
        if !stage.connects.is_empty() {
            refuses(stage);
        }
    };
    let (mut stage, mut link, [client, other]) = shared();
    for pause in [10, 20, 40] {
        transacts(&mut stage, client);
        assert_eq!(stage.turn(link), ends());
        stage.closes(link, Closed::Reset);
        stage.says(other, "GET k\r\n");
        stage.end_turn();
        link = comes_up(&mut stage);
        assert_eq!(stage.turn(link), resp("GET k"));
        stage.says(link, "$-1\r\n");
        stage.passes((pause - 1) * SECOND);
        transacts(&mut stage, client);
        assert_eq!(stage.turn(link), "");
        let told = stage.received(client);
        assert_eq!(told, format!("{QUEUED}{TOLD_FULL}").repeat(2));
        stage.passes(SECOND);
    }
}

#[test]
fn a_server_that_is_busy_is_asked_again_when_that_is_over() {
    let refuses_exec = ["-ERR DISCARD without MULTI\r\n", BUSY].concat();
    // As Redis 6.2 says it.
    let aborted = BUSY.replacen('-', "-EXECABORT Transaction discarded because of: ", 1);
    let aborts = ["-ERR DISCARD without MULTI\r\n", &aborted].concat();
    for answers in [&[&*refuses_exec][..], &[&aborts], &[NO_BLOCK, &BUSY.repeat(2)]] {
        let (mut stage, link, [client, _]) = shared();
        stage.says(client, TRANSACTION);
        refuses(&mut stage);
        answers_trial(&mut stage, link, answers);
        stage.end_turn();
        assert_eq!(stage.received(client), format!("{QUEUED}{BUSY}"));
        stage.passes(SECOND / 10);
        stage.says(client, TRANSACTION);
        refuses(&mut stage);
        assert_eq!(stage.turn(link), ends());
        assert!(!stage.closed.contains(&link));
    }
}

#[test]
fn a_trial_believes_nothing_that_was_not_asked_for() {
    for (answers, wrong) in [
        (&[][..], "+OK\r\n"),
        (&[], "-ERR DISCARD without MULTI\r\n*0\r\n"),
        (&[NO_BLOCK], ":1\r\n"),
        (&[NO_BLOCK], "+OK\r\n+QUEUED\r\n"),
    ] {
        let (mut stage, link, [client, _]) = shared();
        stage.says(client, TRANSACTION);
        refuses(&mut stage);
        answers_trial(&mut stage, link, answers);
        stage.turn(link);
        stage.says(link, wrong);
        assert!(stage.closed.contains(&link), "{answers:?}, {wrong}");
    }
}

/// Its server may be one that ends every link with a transaction on it.
#[test]
fn a_link_that_ends_within_its_trial_is_followed_by_none_that_is_tried() {
    let (mut stage, link, [client, other]) = tried();
    stage.closes(link, Closed::Reset);
    stage.end_turn();
    assert_eq!(stage.received(client), format!("{QUEUED}{TOLD_FULL}"));
    stage.says(other, "SET l 1\r\n");
    let next = takes_change(&mut stage, other);
    for _ in 0..3 {
        stage.passes(SECOND);
        stage.says(client, TRANSACTION);
        refuses(&mut stage);
        assert_eq!(stage.turn(next), "");
        assert_eq!(stage.received(client), format!("{QUEUED}{TOLD_FULL}"));
    }
}

/// A request before it may keep the server silent, or have it end the link.
#[test]
fn a_link_that_ends_before_it_comes_to_its_trial_says_nothing_of_that() {
    let (mut stage, link, [client, other]) = shared();
    stage.says(other, "GET a\r\n");
    assert_eq!(stage.turn(link), resp("GET a"));
    stage.says(client, TRANSACTION);
    refuses(&mut stage);
    assert_eq!(stage.turn(link), ends());
    stage.closes(link, Closed::Reset);
    stage.end_turn();
    let next = comes_up(&mut stage);
    assert_eq!(stage.turn(next), resp("GET a") + &ends());
    stage.says(next, &format!("$-1\r\n{NO_BLOCK}"));
    assert_eq!(stage.turn(next), empty_block());
    stage.says(next, "+OK\r\n+OK\r\n");
    assert_eq!(stage.turn(next), block());
}

/// Nothing of the trial has left, or a part. What others ask behind it moves, and the trial does
/// not.
#[test]
fn requests_behind_a_trial_that_was_not_sent_move_without_it() {
    for sent in [0, 5] {
        let (mut stage, link, [client, other]) = shared();
        stage.says(client, TRANSACTION);
        refuses(&mut stage);
        stage.end_turn();
        assert_eq!(stage.received_some(link, sent).len(), sent);
        stage.says(other, "SET l 1\r\n");
        stage.end_turn();
        stage.closes(link, Closed::Eof);
        // Nobody wants another.
        stage.closes(client, Closed::Reset);
        takes_change(&mut stage, other);
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
        let one = comes_up(&mut stage);
        assert_eq!(stage.turn(one), ends());
        if is_silent {
            stage.passes(stage.plan.pools[0].timeouts.reply);
        } else {
            stage.closes(one, Closed::Eof);
        }
        stage.says(other, "GET l\r\n");
        assert_eq!(stage.turn(link), resp("GET l"));
        let told = stage.received(client);
        assert!(told.contains("-ERR s0: ") && !stage.closed.contains(&link), "{told}");
    }
}

/// It answers nothing else meanwhile.
#[test]
fn a_server_that_ends_each_link_on_which_it_is_tried_is_not_down() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.class_links, pool.preconnect, pool.hold_after) = (0, false, None);
    });
    let client = stage.client();
    let mut links = Vec::new();
    for _ in 0..proxy::limits::FRUITLESS_MAX {
        stage.passes(30 * SECOND);
        stage.says(client, TRANSACTION);
        stage.end_turn();
        let one = comes_up(&mut stage);
        assert_eq!(stage.turn(one), ends());
        stage.closes(one, Closed::Eof);
        stage.end_turn();
        if !stage.connects.is_empty() {
            // It shows whether the server works.
            links.push(comes_up(&mut stage));
        }
        assert!(stage.received(client).contains("takes no further connection"));
    }
    assert_eq!(links.len(), 1);
    stage.closes(links[0], Closed::Eof);
    stage.says(client, "GET k\r\n");
    stage.end_turn();
    let fresh = comes_up(&mut stage);
    assert_eq!(stage.turn(fresh), resp("GET k"));
    stage.closes(fresh, Closed::Eof);
    assert_eq!(stage.healths(), ["s0 ready"]);
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
    is_tried(&mut stage);
    let link = comes_up(&mut stage);
    assert_eq!(stage.turn(link), block());
}

/// Its server is taken out of service, and the next transaction is tried anew.
#[test]
fn a_link_that_retires_within_its_trial_is_no_trial_for_ever() {
    for is_shared in [true, false] {
        let (mut stage, link, [client, other]) = shared();
        stage.says(client, TRANSACTION);
        let link = match is_shared {
            true => {
                refuses(&mut stage);
                link
            }
            false => {
                stage.end_turn();
                comes_up(&mut stage)
            }
        };
        assert_eq!(stage.turn(link), ends());
        stage.install(|plan| plan.pools[0].servers[0].admin = AdminState::Maint);
        assert!(!stage.closed.contains(&link), "an answer is to come");
        stage.says(link, NO_BLOCK);
        assert_eq!(stage.turn(link), empty_block());
        stage.says(link, "+OK\r\n+OK\r\n");
        assert!(stage.closed.contains(&link));
        stage.end_turn();
        let told = stage.received(client);
        assert!(told.contains("in maintenance, not sent"), "{told}");
        stage.install(|plan| plan.pools[0].servers[0].admin = AdminState::Ready);
        let link = comes_up(&mut stage);
        stage.says(other, TRANSACTION);
        is_tried(&mut stage);
        assert_eq!(stage.turn(link), block());
    }
}
