//! Transactions: queued here, and sent as one block.

use std::rc::Rc;

use metrics::TenantCounter;
use proto::protocol;
use proxy::access::Outcome;
use proxy::plan::{PoolPlan, SlowKeys};
use proxy::tenants::plan::{Over, TenantPlan, TenantRules};
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::resp::{BUSY, NO_BLOCK, comes_up, ends, is_tried, tries};
use crate::stage::{SECOND, Stage};

const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
const WELCOME: &str = "*2\r\n$5\r\nproto\r\n:2\r\n";

/// Returns a request as servers receive it.
fn resp(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}

/// Returns requests as one block.
fn block(requests: &[&str]) -> String {
    let all = ["MULTI"].iter().chain(requests).chain(&["EXEC"]);
    all.map(|one| resp(one)).collect()
}

/// Returns the replies to a block of so many requests.
fn replies(requests: usize, last: &str) -> String {
    format!("+OK\r\n{}{last}", "+QUEUED\r\n".repeat(requests))
}

/// A pool of these servers, and the links to them.
fn pool(servers: &[&str], set: impl FnOnce(&mut PoolPlan)) -> (Stage, Vec<ConnId>) {
    let mut stage = Stage::new(servers, |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.distribution, pool.preconnect) = (Distribution::Modula, true);
        // All requests take the shared links.
        pool.class_links = 0;
        set(pool);
    });
    let links = servers.iter().map(|_| {
        let link = stage.establishes_with(HELLO);
        stage.says(link, WELCOME);
        link
    });
    let links = links.collect();
    (stage, links)
}

/// One server, its link, and a client.
fn one() -> (Stage, ConnId, ConnId) {
    let (mut stage, links) = pool(&["s0"], |_| {});
    let client = stage.client();
    (stage, links[0], client)
}

/// A server that has shown that it executes blocks.
fn tried() -> (Stage, ConnId, ConnId) {
    let (mut stage, link, client) = one();
    stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
    is_tried(&mut stage);
    assert_eq!(stage.turn(link), block(&["GET k"]));
    stage.says(link, &replies(1, "*1\r\n$-1\r\n"));
    assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
    (stage, link, client)
}

#[test]
fn a_transaction_leaves_as_one_block_and_has_one_answer() {
    let (mut stage, link, client) = tried();
    stage.says(client, "MULTI\r\n");
    stage.says(client, "SET k 1\r\n");
    stage.says(client, "INCR k\r\n");
    assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    assert_eq!(stage.turn(link), "", "nothing is sent before EXEC");
    stage.says(client, "EXEC\r\nGET k\r\n");
    assert_eq!(stage.turn(link), block(&["SET k 1", "INCR k"]) + &resp("GET k"));
    // Byte by byte, as a slow server answers.
    for byte in replies(2, "*2\r\n+OK\r\n:2\r\n$1\r\n2\r\n").chars() {
        stage.says(link, &byte.to_string());
    }
    assert_eq!(stage.received(client), "*2\r\n+OK\r\n:2\r\n$1\r\n2\r\n");
    stage.expect_rows(0);
}

#[test]
fn blocks_of_several_clients_stand_one_behind_the_other() {
    let (mut stage, link, one) = tried();
    let other = stage.client();
    stage.says(one, "MULTI\r\nSET a 1\r\n");
    stage.says(other, "MULTI\r\nSET b 1\r\nGET c\r\n");
    stage.says(one, "EXEC\r\n");
    stage.says(other, "EXEC\r\nGET d\r\n");
    let sent = stage.turn(link);
    assert_eq!(sent, block(&["SET a 1"]) + &block(&["SET b 1", "GET c"]) + &resp("GET d"));
    let (first, second) = (replies(1, "*1\r\n+OK\r\n"), replies(2, "*2\r\n+OK\r\n$-1\r\n"));
    stage.says(link, &format!("{first}{second}$-1\r\n"));
    assert!(stage.received(one).ends_with("*1\r\n+OK\r\n"));
    assert!(stage.received(other).ends_with("*2\r\n+OK\r\n$-1\r\n$-1\r\n"));
}

#[test]
fn own_answers_have_their_places_among_those_of_the_server() {
    let (mut stage, link, client) = tried();
    stage.says(client, "MULTI\r\nPING\r\nGET k\r\nECHO x\r\nGET l\r\nPING y\r\nEXEC\r\n");
    assert_eq!(stage.turn(link), block(&["GET k", "GET l"]));
    stage.says(link, &replies(2, "*2\r\n$1\r\n1\r\n*0\r\n"));
    let expected = "*5\r\n+PONG\r\n$1\r\n1\r\n$1\r\nx\r\n*0\r\n$1\r\ny\r\n";
    let queued = "+QUEUED\r\n".repeat(5);
    assert_eq!(stage.received(client), format!("+OK\r\n{queued}{expected}"));
    // A transaction without any request for a server needs none.
    stage.says(client, "MULTI\r\nPING\r\nEXEC\r\nMULTI\r\nEXEC\r\n");
    assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n+OK\r\n*0\r\n");
    // The server refuses it, or another thing is in place of a list.
    stage.says(client, "MULTI\r\nPING\r\nGET k\r\nEXEC\r\n");
    stage.turn(link);
    stage.says(link, "+OK\r\n-OOM no\r\n-EXECABORT Transaction discarded\r\n");
    assert!(stage.received(client).ends_with("+QUEUED\r\n-EXECABORT Transaction discarded\r\n"));
    // Many libraries show only the reply to EXEC, and the client has not seen the first error.
    let aborted = "-EXECABORT Transaction discarded because of previous errors.";
    stage.says(client, "MULTI\r\nSET k 1\r\nSET l 1\r\nEXEC\r\nMULTI\r\nGET k\r\nEXEC\r\n");
    stage.turn(link);
    stage.says(link, &format!("+OK\r\n-OOM no\r\n-READONLY no\r\n{aborted}\r\n"));
    stage.says(link, &format!("+OK\r\n+QUEUED\r\n{aborted}\r\n"));
    let told = stage.received(client);
    assert!(told.contains(&format!("{aborted} The first: OOM no\r\n")), "{told}");
    assert!(told.ends_with(&format!("+QUEUED\r\n{aborted}\r\n")), "nothing is left of it: {told}");
    stage.expect_rows(0);
}

#[test]
fn an_error_while_queuing_spoils_the_transaction_and_discard_forgets_it() {
    let (mut stage, link, client) = tried();
    let aborted = "-EXECABORT Transaction discarded because of previous errors. The first: ";
    for bad in ["GET", "NOPE", "CLIENT SETNAME x", "SUBSCRIBE c", "SCAN 0", "FLUSHALL", "INFO"] {
        stage.says(client, &format!("MULTI\r\nSET k 1\r\n{bad}\r\nGET k\r\nEXEC\r\nPING\r\n"));
        let told = stage.received(client);
        let lines: Vec<&str> = told.split_inclusive("\r\n").collect();
        assert!(lines[2].starts_with("-ERR "), "{bad}: {told}");
        let told = format!("{aborted}{}", &lines[2][1..]);
        assert_eq!(lines[3..], ["+QUEUED\r\n", &told, "+PONG\r\n"], "{bad}");
    }
    stage.says(client, "MULTI\r\nSET k 1\r\nDISCARD\r\nPING\r\n");
    assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n+OK\r\n+PONG\r\n");
    stage.says(client, "EXEC\r\nDISCARD\r\nMULTI\r\nMULTI\r\nWATCH k\r\nEXEC x\r\nEXEC\r\n");
    let told = stage.received(client);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[..2], ["-ERR EXEC without MULTI", "-ERR DISCARD without MULTI"]);
    assert_eq!(lines[2..4], ["+OK", "-ERR MULTI calls can not be nested"]);
    assert_eq!(lines[4], "-ERR WATCH inside MULTI is not allowed");
    assert!(lines[5].contains("wrong number of arguments"), "{told}");
    assert_eq!(lines[6], "-ERR EXEC without MULTI");
    stage.says(client, "MULTI\r\nSET k 1\r\nRESET\r\nPING\r\nMULTI\r\nQUIT\r\n");
    let told = stage.received(client);
    assert_eq!(told, "+OK\r\n+QUEUED\r\n+RESET\r\n+PONG\r\n+OK\r\n+OK\r\n");
    assert!(stage.closed.contains(&client));
    assert_eq!(stage.turn(link), "", "nothing of all this was sent");
    assert_eq!(stage.memory(), 0);
}

#[test]
fn keys_of_a_transaction_are_on_one_server() {
    let (mut stage, links) = pool(&["s0", "s1"], |pool| pool.hash_tag = Some(*b"{}"));
    let client = stage.client();
    let mut apart = None;
    for n in 0..20 {
        stage.says(client, &format!("MULTI\r\nSET a 1\r\nGET b{n}\r\nDISCARD\r\n"));
        let told = stage.received(client);
        if told.contains("-CROSSSLOT ") {
            assert!(told.contains("'a' is on ") && told.contains(&format!("'b{n}' on ")));
            apart = Some(n);
        }
    }
    let n = apart.expect("keys are on both servers");
    stage.says(client, &format!("MULTI\r\nSET a 1\r\nGET b{n}\r\nEXEC\r\n"));
    let told = stage.received(client);
    let because =
        "-EXECABORT Transaction discarded because of previous errors. The first: CROSSSLOT ";
    assert!(told.contains(because), "{told}");
    stage.says(client, "MULTI\r\nMGET {a}1 {a}2\r\nDEL {a}3\r\nTIME\r\nEXEC\r\n");
    is_tried(&mut stage);
    let sent: Vec<String> = links.iter().map(|link| stage.turn(*link)).collect();
    assert_eq!(sent.concat(), block(&["MGET {a}1 {a}2", "DEL {a}3", "TIME"]), "whole, to one");
    let told = stage.received(client);
    assert_eq!(told, "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    stage.says(client, "MULTI\r\nDBSIZE\r\n");
    let at = usize::from(sent[0].is_empty());
    stage.says(links[at], &replies(3, "*0\r\n"));
    assert!(stage.received(client).contains("-ERR 'dbsize' is not supported: inside MULTI"));
}

#[test]
fn a_server_is_tried_before_its_first_block_and_again_when_it_may_be_another() {
    let (mut stage, link, client) = tried();
    stage.closes(link, Closed::Reset);
    stage.end_turn();
    stage.says(client, "MULTI\r\nSET k 1\r\nEXEC\r\nGET k\r\n");
    let refused = "-ERR unknown command 'MULTI'\r\n-ERR DISCARD without MULTI\r\n";
    tries(&mut stage, &[NO_BLOCK, refused]);
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    assert_eq!(stage.turn(link), resp("GET k"), "no block, and no request of it");
    let told = stage.received(client);
    assert!(told.contains("-ERR s0: does not execute MULTI"), "{told}");
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(client), "$-1\r\n");
    // For a while it is not asked again.
    stage.says(client, "MULTI\r\nSET k 1\r\nEXEC\r\n");
    assert!(stage.received(client).contains("does not execute MULTI"));
    stage.passes(SECOND);
    stage.says(client, "MULTI\r\nSET k 1\r\nEXEC\r\n");
    is_tried(&mut stage);
    assert_eq!(stage.turn(link), block(&["SET k 1"]));
}

#[test]
fn a_first_block_that_meets_a_busy_server_reads_what_that_says() {
    let (mut stage, link, client) = one();
    // Redis 7.0 takes all but EXEC.
    let refuses_exec = ["-ERR DISCARD without MULTI\r\n", BUSY].concat();
    // As Redis 6.2 says it.
    let aborted = BUSY.replacen('-', "-EXECABORT Transaction discarded because of: ", 1);
    let aborts = ["-ERR DISCARD without MULTI\r\n", &aborted].concat();
    for answers in [&[&*refuses_exec][..], &[&aborts], &[NO_BLOCK, &BUSY.repeat(2)]] {
        stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
        tries(&mut stage, answers);
        assert_eq!(stage.received(client), format!("+OK\r\n+QUEUED\r\n{BUSY}"));
        stage.passes(SECOND / 10);
        stage.says(client, "GET k\r\n");
        assert_eq!(stage.turn(link), resp("GET k"));
        stage.says(link, "$-1\r\n");
        assert_eq!(stage.received(client), "$-1\r\n", "it is busy no more");
    }
    // It is tried again when that is over.
    stage.passes(SECOND / 10);
    stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
    is_tried(&mut stage);
    assert_eq!(stage.turn(link), block(&["GET k"]));
}

#[test]
fn a_transaction_that_was_sent_and_lost_has_an_unknown_outcome() {
    let (mut stage, link, client) = tried();
    stage.says(client, "MULTI\r\nSET k 1\r\nGET k\r\nEXEC\r\n");
    stage.turn(link);
    stage.says(link, "+OK\r\n+QUEUED\r\n");
    stage.closes(link, Closed::Reset);
    assert!(stage.received(client).ends_with("-ERR s0: connection lost, outcome unknown\r\n"));
    // Of one that only reads, everything is known.
    stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
    is_tried(&mut stage);
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    stage.turn(link);
    stage.closes(link, Closed::Reset);
    assert!(stage.received(client).ends_with("-ERR s0: connection lost\r\n"));
    stage.expect_rows(0);
}

/// What the server has not got whole, it does not execute.
#[test]
fn a_transaction_that_was_cut_is_not_executed() {
    let (mut stage, link, client) = tried();
    stage.says(client, "MULTI\r\nSET k 1\r\nEXEC\r\n");
    stage.end_turn();
    let some = stage.received_some(link, 40);
    assert!(some.starts_with("*1\r\n$5\r\nMULTI"));
    // A server answers what it has got.
    stage.says(link, "+OK\r\n");
    stage.closes(link, Closed::Reset);
    assert!(stage.received(client).ends_with("-ERR s0: connection lost, not sent\r\n"));
}

#[test]
fn a_link_that_stays_in_a_transaction_is_closed_at_once() {
    for bad in [
        "-ERR unknown command\r\n",
        "+OK\r\n+OK\r\n",
        "+OK\r\n+QUEUED\r\n-ERR unknown command 'EXEC'\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n",
    ] {
        let (mut stage, link, client) = tried();
        stage.says(client, "MULTI\r\nSET k 1\r\nEXEC\r\n");
        stage.turn(link);
        stage.says(link, bad);
        assert!(stage.closed.contains(&link), "{bad}");
        assert!(stage.received(client).ends_with("connection closed, outcome unknown\r\n"));
    }
    let (mut stage, link, client) = tried();
    stage.says(client, "GET k\r\nGET l\r\n");
    stage.turn(link);
    stage.says(link, "+QUEUED\r\n$1\r\nx\r\n");
    assert!(stage.closed.contains(&link), "it is in a transaction that nobody knows of");
    // A script may write what it likes.
    let (mut stage, link, client) = tried();
    stage.says(client, "EVAL x 0\r\n");
    stage.turn(link);
    stage.says(link, "+QUEUED\r\n");
    assert_eq!(stage.received(client), "+QUEUED\r\n");
}

#[test]
fn a_client_in_a_transaction_stays_until_it_ends() {
    let (mut stage, _, client) = tried();
    stage.says(client, "MULTI\r\nSET k 1\r\n");
    stage.received(client);
    assert_eq!(stage.hand_over(), []);
    stage.says(client, "DISCARD\r\n");
    stage.received(client);
    assert_eq!(stage.hand_over(), [client]);
}

#[test]
fn a_large_value_that_comes_in_pieces_is_queued_and_counted() {
    let (mut stage, link, client) = tried();
    let before = stage.memory();
    let value = "x".repeat(100_000);
    let set = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n", value.len());
    stage.says(client, "MULTI\r\n");
    for piece in set.as_bytes().chunks(30_000) {
        stage.says_bytes(client, piece);
    }
    assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n");
    assert!(stage.memory() >= before + value.len());
    stage.says(client, "EXEC\r\n");
    assert_eq!(stage.turn(link), resp("MULTI") + &set + &resp("EXEC"));
    let long = format!("*1\r\n${}\r\n{value}\r\n", value.len());
    stage.says(link, &replies(1, &long));
    assert_eq!(stage.received(client), long);
    assert_eq!(stage.memory(), before);
    // One that is forgotten gives its memory back, and so does one whose client leaves.
    for end in ["DISCARD\r\n", "GET\r\n"] {
        stage.says(client, &format!("MULTI\r\n{set}{end}"));
        stage.received(client);
        assert_eq!(stage.memory(), before, "{end}");
    }
    stage.says(client, "DISCARD\r\n");
    stage.says(client, &format!("MULTI\r\n{set}"));
    stage.received(client);
    stage.closes(client, Closed::Reset);
    assert_eq!(stage.memory(), 0);
}

#[test]
fn a_plan_that_moves_the_keys_is_followed_by_the_block() {
    for keep in [0, 1] {
        let (mut stage, links) = pool(&["s0", "s1"], |_| {});
        let client = stage.client();
        stage.says(client, "MULTI\r\nSET a 1\r\nBLPOP a 0\r\n");
        stage.install(|plan| plan.pools[0].servers.retain(|one| one.name == format!("s{keep}")));
        stage.says(client, "EXEC\r\n");
        is_tried(&mut stage);
        assert_eq!(stage.turn(links[keep]), block(&["SET a 1", "BLPOP a 0"]));
        stage.says(links[keep], &replies(2, "*2\r\n+OK\r\n*-1\r\n"));
        assert!(stage.received(client).ends_with("*2\r\n+OK\r\n*-1\r\n"));
    }
}

/// A server that has shown that it executes blocks, before a tenant with these rules.
fn with_rules(rules: TenantRules) -> (Stage, ConnId, ConnId) {
    let (mut stage, links) = pool(&["s0"], |_| {});
    stage.install(|plan| {
        plan.tenants = vec![Rc::new(TenantPlan::new("shop"))];
        plan.pools[0].tenant = Some(0);
        plan.number();
    });
    let client = stage.client();
    stage.says(client, "MULTI\r\nGET a:k\r\nEXEC\r\n");
    is_tried(&mut stage);
    stage.turn(links[0]);
    stage.says(links[0], &replies(1, "*1\r\n$-1\r\n"));
    stage.received(client);
    stage.install(|plan| Rc::make_mut(&mut plan.tenants[0]).rules = Some(rules));
    (stage, links[0], client)
}

fn rules(deny: &[&str], prefix: &str) -> TenantRules {
    let deny = deny.iter().map(|word| word.to_string()).collect();
    TenantRules::new(Vec::new(), (Vec::new(), deny), prefix.as_bytes().to_vec())
}

#[test]
fn what_a_tenant_may_not_do_it_may_not_queue() {
    let (mut stage, link, client) = with_rules(rules(&["del"], "a:"));
    let aborted = "-EXECABORT Transaction discarded because of previous errors. The first: ";
    for bad in [
        "GET b:k",
        "MSET a:1 1 b:1 1",
        "DEL a:k",
        "EVAL x 0",
        "EVAL x 1 a:k",
        "DBSIZE",
        "KEYS *",
        "BLPOP a:k b:k 0",
        "BLMOVE a:k b:k LEFT LEFT 0",
        "XREAD BLOCK 0 STREAMS a:k b:k 0 0",
        "SORT a:k BY b:*",
    ] {
        stage.says(client, &format!("MULTI\r\nSET a:k 1\r\n{bad}\r\nGET a:k\r\nEXEC\r\n"));
        let told = stage.received(client);
        let lines: Vec<&str> = told.split_inclusive("\r\n").collect();
        let is_refused = lines[2].starts_with("-NOPERM ") || bad.starts_with("SORT");
        assert!(is_refused && lines[2].starts_with('-'), "{bad}: {told}");
        assert_eq!(lines[3..], ["+QUEUED\r\n", &format!("{aborted}{}", &lines[2][1..])], "{bad}");
    }
    assert_eq!(stage.turn(link), "", "nothing of all this was sent");
    let good = ["SET a:k 1", "MGET a:k a:l", "BLPOP a:k a:l 0", "KEYS a:*", "TIME"];
    stage.says(client, &format!("MULTI\r\n{}\r\nPING\r\nEXEC\r\n", good.join("\r\n")));
    is_tried(&mut stage);
    assert_eq!(stage.turn(link), block(&good), "{}", stage.received(client));
    stage.says(link, &replies(5, &format!("*5\r\n{}", "+x\r\n".repeat(5))));
    assert!(stage.received(client).ends_with("+x\r\n+PONG\r\n"));
}

/// What may not be done any more at EXEC is not done.
#[test]
fn rules_that_change_before_exec_hold_for_what_is_queued() {
    let (mut stage, link, client) = with_rules(rules(&[], ""));
    for change in [rules(&["del"], ""), rules(&[], "a:")] {
        stage.says(client, "MULTI\r\nSET a:k 1\r\nDEL b:k\r\nBLPOP a:k 0\r\n");
        stage.received(client);
        stage.install(|plan| Rc::make_mut(&mut plan.tenants[0]).rules = Some(change));
        stage.says(client, "EXEC\r\nPING\r\n");
        let told = stage.received(client);
        assert!(told.starts_with("-NOPERM ") && told.ends_with("\r\n+PONG\r\n"), "{told}");
        stage.install(|plan| Rc::make_mut(&mut plan.tenants[0]).rules = None);
    }
    stage.says(client, "MULTI\r\nFLUSHALL\r\nDISCARD\r\n");
    assert!(stage.received(client).contains("\r\n-ERR "), "it was never allowed");
    stage.install(|plan| plan.pools[0].allow = vec!["flushall".into()]);
    stage.says(client, "MULTI\r\nFLUSHALL\r\n");
    assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n");
    stage.install(|plan| plan.pools[0].allow = Vec::new());
    stage.says(client, "EXEC\r\n");
    assert!(stage.received(client).starts_with("-ERR "));
    // Other changes do not matter.
    stage.says(client, "MULTI\r\nSET a:k 1\r\nBLPOP a:k 0\r\n");
    stage.install(|plan| plan.pools[0].allow = vec!["flushdb".into()]);
    stage.says(client, "EXEC\r\n");
    is_tried(&mut stage);
    assert_eq!(stage.turn(link), block(&["SET a:k 1", "BLPOP a:k 0"]));
    stage.says(link, &replies(2, "*2\r\n+OK\r\n*-1\r\n"));
    assert!(stage.received(client).ends_with("*2\r\n+OK\r\n*-1\r\n"));
    assert_eq!(stage.memory(), 0);
}

#[test]
fn a_database_that_is_taken_away_before_exec_is_not_selected() {
    let (mut stage, link, client) = with_rules(rules(&[], ""));
    let only_the_first = TenantRules::new(vec![(0, 0)], (Vec::new(), Vec::new()), Vec::new());
    let queue = |stage: &mut Stage| {
        stage.says(client, "MULTI\r\nSELECT 3\r\nSET a:k 1\r\n");
        assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    };
    queue(&mut stage);
    stage.install(|plan| Rc::make_mut(&mut plan.tenants[0]).rules = Some(only_the_first));
    stage.says(client, "EXEC\r\n");
    let told = stage.received(client);
    assert!(told.starts_with("-NOPERM "), "{told}");
    stage.install(|plan| Rc::make_mut(&mut plan.tenants[0]).rules = None);
    queue(&mut stage);
    stage.install(|plan| plan.pools[0].databases = 2);
    stage.says(client, "EXEC\r\nPING\r\n");
    let told = stage.received(client);
    assert_eq!(told, "-ERR DB index is out of range\r\n+PONG\r\n");
    assert_eq!(stage.turn(link), "", "nothing was sent");
    assert_eq!(stage.memory(), 0);
}

#[test]
fn a_tenant_pays_for_what_it_queues_and_is_in_flight_with_the_whole_block() {
    let (mut stage, link, client) = with_rules(rules(&[], ""));
    let inflight = |stage: &Stage| stage.registry.total(3, TenantCounter::InflightBytesNow);
    stage.install(|plan| {
        let shop = Rc::make_mut(&mut plan.tenants[0]);
        (shop.inflight_max, shop.over) = (1 << 20, Over::Refuse);
    });
    let before = stage.registry.total(3, TenantCounter::Requests);
    let set = format!("SET k {}", "v".repeat(5_000));
    stage.says(client, &format!("MULTI\r\n{set}\r\n{set}\r\n"));
    assert!(inflight(&stage) < 5_000, "nothing is on its way");
    stage.says(client, "EXEC\r\n");
    is_tried(&mut stage);
    assert!(inflight(&stage) >= 10_000, "{}", inflight(&stage));
    assert_eq!(stage.registry.total(3, TenantCounter::Requests) - before, 4);
    stage.turn(link);
    stage.says(link, &replies(2, "*2\r\n+OK\r\n+OK\r\n"));
    stage.received(client);
    assert_eq!(inflight(&stage), 0);
}

/// EXEC has the time and the bytes of its transaction, and each command a row of its own.
#[test]
fn a_transaction_has_rows_in_the_logs() {
    let (mut stage, link, client) = tried();
    stage.install(|plan| {
        let pool = &mut plan.pools[0];
        (pool.access_one_in, pool.slow.after, pool.slow.keys) = (1, 1_000, SlowKeys::Full);
    });
    stage.says(client, "MULTI\r\nSET k 1\r\nPING\r\nEXEC\r\n");
    is_tried(&mut stage);
    stage.turn(link);
    stage.passes(2_000);
    stage.says(link, &replies(1, "*1\r\n+OK\r\n"));
    stage.says(client, "MULTI\r\nGET\r\nEXEC\r\nMULTI\r\nGET k\r\nEXEC\r\n");
    stage.turn(link);
    stage.passes(3_000);
    stage.says(link, &replies(1, "*1\r\n$1\r\n1\r\n"));
    stage.received(client);
    let told: Vec<_> =
        stage.access.iter().map(|line| (&*line.entry.command, line.outcome)).collect();
    use Outcome::{Error, Ok};
    let expected = [
        ("multi", Ok),
        ("set", Ok),
        ("ping", Ok),
        ("exec", Ok),
        ("multi", Ok),
        ("get", Error),
        ("exec", Error),
        ("multi", Ok),
        ("get", Ok),
        ("exec", Ok),
    ];
    assert_eq!(told, expected);
    let slow: Vec<_> = stage.slow.iter().map(|entry| (&*entry.command, entry.phases[2])).collect();
    assert_eq!(slow, [("exec", 2_000), ("exec", 3_000)]);
}

#[test]
fn a_transaction_that_is_too_large_is_refused_by_name() {
    let (mut stage, link, client) = tried();
    stage.install(|plan| plan.memory_max = 256 << 20);
    stage.says(client, "MULTI\r\n");
    stage.received(client);
    let queued = "+QUEUED\r\n";
    for _ in 0..64 {
        stage.says(client, &format!("{}PING\r\n", "GET k\r\n".repeat(1_023)));
        let mut count = 0;
        while count < 1_024 {
            stage.end_turn();
            count += stage.received(client).matches(queued).count();
        }
        assert_eq!(count, 1_024);
    }
    stage.says(client, "GET k\r\n");
    assert_eq!(stage.received(client), "-ERR a transaction has at most 65536 commands here\r\n");
    assert_eq!(stage.memory(), 0, "nothing of it is kept");
    stage.says(client, "EXEC\r\nMULTI\r\n");
    stage.received(client);
    let set = format!("SET k {}\r\n", "v".repeat(65_000));
    let mut told = String::new();
    for _ in 0..1_100 {
        stage.says(client, &set);
        stage.end_turn();
        told = stage.received(client);
        if told != queued {
            break;
        }
    }
    assert_eq!(told, "-ERR a transaction has at most 67108864 bytes here\r\n");
    // All clients together have no more than the ceiling.
    stage.install(|plan| plan.memory_max = 1 << 20);
    stage.says(client, "DISCARD\r\nMULTI\r\n");
    stage.received(client);
    for _ in 0..17 {
        stage.says(client, &set);
        told = stage.received(client);
    }
    assert!(told.starts_with("-ERR ") && told.contains("memory"), "{told}");
    stage.says(client, "EXEC\r\n");
    assert!(stage.received(client).starts_with("-EXECABORT "));
    assert_eq!((stage.turn(link), stage.memory()), (String::new(), 0));
}

/// What it has queued is executed, or forgotten, as it says. Until then it has begun something.
#[test]
fn the_end_of_a_worker_or_a_pool_waits_for_transactions_that_have_begun() {
    for (end, retires) in [("EXEC", false), ("EXEC", true), ("DISCARD", false), ("DISCARD", true)] {
        let (mut stage, link, client) = tried();
        let (idle, gone) = (stage.client(), stage.client());
        stage.says(gone, "MULTI\r\n");
        stage.says(client, "MULTI\r\nINCR a\r\n");
        let closed = stage.closed.len();
        match retires {
            true => stage.install(|plan| plan.pools.clear()),
            false => stage.drain_only(),
        }
        (0..3).for_each(|_| stage.end_turn());
        assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n");
        assert_eq!(stage.closed[closed..], [idle], "two have begun something");
        // One of them leaves by itself.
        assert_eq!(stage.received(gone), "+OK\r\n");
        stage.closes(gone, Closed::Eof);
        (0..3).for_each(|_| stage.end_turn());
        assert_eq!(stage.closed[closed..], [idle, gone]);
        stage.says(client, &format!("GET b\r\n{end}\r\n"));
        let answer = match end {
            "EXEC" => {
                assert_eq!(stage.turn(link), block(&["INCR a", "GET b"]));
                stage.says(link, &replies(2, "*2\r\n:1\r\n$-1\r\n"));
                "+QUEUED\r\n*2\r\n:1\r\n$-1\r\n"
            }
            _ => "+QUEUED\r\n+OK\r\n",
        };
        (0..3).for_each(|_| stage.end_turn());
        assert_eq!(stage.received(client), answer);
        assert_eq!(stage.closed[closed..closed + 3], [idle, gone, client]);
    }
}

/// A client in database 0 whose transaction selects database 3, and the link that it is sent on.
fn selecting() -> (Stage, ConnId, ConnId, ConnId) {
    let (mut stage, links) = pool(&["s0"], |pool| (pool.databases, pool.class_links) = (16, 0));
    let client = stage.client();
    stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
    is_tried(&mut stage);
    stage.turn(links[0]);
    stage.says(links[0], &replies(1, "*1\r\n$-1\r\n"));
    stage.received(client);
    stage.says(client, "MULTI\r\nSET k 1\r\nSELECT 3\r\nSET k 2\r\nEXEC\r\nGET k\r\n");
    assert_eq!(stage.received(client), "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n");
    stage.end_turn();
    let own = stage.establishes_with(HELLO);
    stage.says(own, WELCOME);
    assert_eq!(stage.turn(own), block(&["SET k 1", "SELECT 3", "SET k 2"]));
    assert_eq!(stage.turn(links[0]), "", "the next one waits");
    (stage, links[0], client, own)
}

#[test]
fn a_transaction_that_selects_a_database_has_a_link_of_its_own_and_takes_its_client_there() {
    let (mut stage, _, client, own) = selecting();
    stage.says(own, &replies(3, "*3\r\n+OK\r\n+OK\r\n+OK\r\n"));
    assert_eq!(stage.received(client), "*3\r\n+OK\r\n+OK\r\n+OK\r\n");
    assert!(stage.closed.contains(&own), "no other request meets its database");
    stage.end_turn();
    let third = stage.establishes_with(&(resp("SELECT 3") + HELLO));
    stage.says(third, &format!("+OK\r\n{WELCOME}"));
    assert_eq!(stage.turn(third), resp("GET k"));
    stage.says(third, "$1\r\n2\r\n");
    assert_eq!(stage.received(client), "$1\r\n2\r\n");
    stage.expect_rows(0);
}

/// Its link has been used, and its server closes it before a byte of the transaction has left.
#[test]
fn a_transaction_that_moves_to_another_link_unsent_takes_its_client_to_its_database() {
    let (mut stage, _) = pool(&["s0"], |pool| (pool.databases, pool.private) = (16, true));
    let client = stage.client();
    stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
    is_tried(&mut stage);
    stage.end_turn();
    let own = stage.establishes_with(HELLO);
    stage.says(own, WELCOME);
    stage.turn(own);
    stage.says(own, &replies(1, "*1\r\n$-1\r\n"));
    stage.received(client);
    stage.says(client, "MULTI\r\nSELECT 3\r\nSET k 2\r\nEXEC\r\n");
    stage.received(client);
    stage.closes(own, Closed::Eof);
    let anew = stage.establishes_with(HELLO);
    stage.says(anew, WELCOME);
    assert_eq!(stage.turn(anew), block(&["SELECT 3", "SET k 2"]));
    stage.says(anew, &replies(2, "*2\r\n+OK\r\n+OK\r\n"));
    assert_eq!(stage.received(client), "*2\r\n+OK\r\n+OK\r\n");
    assert!(stage.closed.contains(&anew), "no other request meets its database");
    stage.says(client, "GET k\r\n");
    stage.end_turn();
    let third = stage.establishes_with(&(resp("SELECT 3") + HELLO));
    stage.says(third, &format!("+OK\r\n{WELCOME}"));
    assert_eq!(stage.turn(third), resp("GET k"));
}

#[test]
fn a_client_stays_in_its_database_where_its_transaction_was_not_executed() {
    for last in ["*-1\r\n", "-EXECABORT Transaction discarded\r\n"] {
        let (mut stage, link, client, own) = selecting();
        stage.says(own, &replies(3, last));
        assert_eq!(stage.received(client), last);
        assert_eq!(stage.turn(link), resp("GET k"), "{last}");
    }
}

#[test]
fn a_client_whose_transaction_may_have_selected_a_database_is_closed() {
    let (mut stage, link, client, own) = selecting();
    stage.closes(own, Closed::Reset);
    let told = stage.received(client);
    assert!(told.contains("outcome unknown"), "{told}");
    stage.end_turn();
    assert!(stage.closed.contains(&client), "its next request might meet the wrong database");
    assert_eq!(stage.turn(link), "");
}

/// The proxy's own answers take memory, and more than the requests for them.
#[test]
fn a_transaction_of_the_proxys_own_answers_has_the_room_of_any_other() {
    let (mut stage, _) = pool(&["s0"], |_| {});
    stage.install(|plan| plan.memory_max = 1 << 20);
    let client = stage.client();
    stage.says(client, &resp("MULTI"));
    assert_eq!(stage.received(client), "+OK\r\n");
    let mut queued = 0;
    loop {
        stage.says(client, &resp("COMMAND DOCS"));
        (0..10).for_each(|_| stage.end_turn());
        match &stage.received(client)[..] {
            "+QUEUED\r\n" => queued += 1,
            told => break assert_eq!(told, "-ERR out of memory to queue it\r\n"),
        }
        assert!(queued < 100 && stage.memory() <= 1 << 20, "{queued}");
    }
    assert!(queued > 1, "{queued}");
    let other = stage.client();
    stage.says(other, &resp("PING"));
    assert_eq!(stage.received(other), "+PONG\r\n");
    stage.says(client, &resp("EXEC"));
    assert!(stage.received(client).starts_with("-EXECABORT "));
    assert_eq!(stage.memory(), 0);
}

/// The works in them decide how long they take.
#[test]
fn a_slow_transaction_says_nothing_of_others() {
    const MS: u64 = SECOND / 1_000;
    let (mut stage, links) = pool(&["s0"], |pool| pool.class_links = 3);
    let (link, [slow, quick]) = (links[0], [stage.client(), stage.client()]);
    let says = |stage: &mut Stage, client, script: &str| {
        let script = format!("EVAL {script} 1 a");
        stage.says(client, &format!("MULTI\r\n{script}\r\nSET b 1\r\nEXEC\r\n"));
        let expected = block(&[&script, "SET b 1"]);
        stage.turn(link) == expected
    };
    let reply = replies(2, "*2\r\n:1\r\n+OK\r\n");
    stage.says(quick, "MULTI\r\nGET k\r\nEXEC\r\n");
    is_tried(&mut stage);
    assert_eq!(stage.turn(link), block(&["GET k"]));
    stage.says(link, &replies(1, "*1\r\n$-1\r\n"));
    assert!(says(&mut stage, slow, "slow"));
    stage.passes(100 * MS);
    stage.says(link, &reply);
    assert!(says(&mut stage, quick, "quick"));
    stage.passes(MS / 10);
    stage.says(link, &reply);
    assert!(stage.connects.is_empty());
    assert!(!says(&mut stage, slow, "slow"));
    assert_eq!(stage.connects.len(), 1, "it takes a link for slow requests");
}

/// Its server is busy, so the trial is not answered either.
#[test]
fn a_first_transaction_waits_no_longer_than_any_request() {
    let (mut stage, link, client) = one();
    let script = stage.client();
    stage.says(script, "EVAL endless 1 a\r\n");
    assert_eq!(stage.turn(link), resp("EVAL endless 1 a"));
    stage.says(client, "MULTI\r\nSET k 1\r\nEXEC\r\nGET k\r\n");
    stage.end_turn();
    let one = comes_up(&mut stage);
    assert_eq!((stage.turn(one), stage.received(client)), (ends(), "+OK\r\n+QUEUED\r\n".into()));
    stage.waits(SECOND / 2);
    // A link that comes up has all look again who wait for their server.
    let other = stage.client();
    stage.says(other, "SELECT 1\r\nGET a\r\n");
    stage.end_turn();
    let second = stage.establishes_with(&[resp("SELECT 1").as_str(), HELLO].concat());
    stage.says(second, &format!("+OK\r\n{WELCOME}"));
    stage.waits(SECOND / 2 - 1);
    stage.end_turn();
    assert_eq!((stage.turn(link), stage.received(client)), (String::new(), String::new()));
    stage.waits(1);
    stage.end_turn();
    let said = stage.received(client);
    assert_eq!(said, "-ERR s0: busy with EVAL for 1.0 s, not sent\r\n");
    // The request behind it is no part of the transaction.
    stage.says(link, ":1\r\n");
    assert_eq!((stage.received(script), stage.turn(link)), (":1\r\n".into(), resp("GET k")));
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(client), "$-1\r\n");
}
