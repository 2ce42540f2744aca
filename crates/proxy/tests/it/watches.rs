//! Keys that clients watch: the link that a client has meanwhile, and how a watch ends.

use proto::protocol;
use proxy::plan::{Plan, ServerPlan};
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::resp::is_tried;
use crate::stage::{SECOND, Stage};

const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
const WELCOME: &str = "*2\r\n$5\r\nproto\r\n:2\r\n";
const QUEUED: &str = "+OK\r\n+QUEUED\r\n";

fn resp(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}

fn all(requests: &[&str]) -> String {
    requests.iter().map(|one| resp(one)).collect()
}

/// A pool of these servers that have shown that they execute blocks, their shared links, and two
/// clients.
fn pool(servers: &[&str], set: impl FnOnce(&mut Plan)) -> (Stage, Vec<ConnId>, [ConnId; 2]) {
    let mut is_private = false;
    let mut stage = Stage::of(servers, |plan| {
        let pool = &mut plan.pools[0];
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.distribution, pool.preconnect) = (Distribution::Modula, true);
        (pool.class_links, pool.databases) = (0, 16);
        set(plan);
        is_private = plan.pools[0].private;
    });
    let links = servers.iter().map(|_| {
        let link = stage.establishes_with(HELLO);
        stage.says(link, WELCOME);
        link
    });
    let links: Vec<ConnId> = links.collect();
    let clients = [stage.client(), stage.client()];
    for (at, shared) in links.iter().enumerate() {
        let key = stage.key_of(at);
        stage.says(clients[1], &format!("MULTI\r\nGET {key}\r\nEXEC\r\n"));
        is_tried(&mut stage);
        let link = if is_private { up(&mut stage) } else { *shared };
        stage.turn(link);
        stage.says(link, "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
        stage.received(clients[1]);
    }
    (stage, links, clients)
}

/// Brings the link up that has just been ordered.
fn up(stage: &mut Stage) -> ConnId {
    stage.end_turn();
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    link
}

/// A client that watches a key, and its link.
fn watching(stage: &mut Stage, client: ConnId, key: &str) -> ConnId {
    stage.says(client, &format!("WATCH {key}\r\n"));
    let own = up(stage);
    assert_eq!(stage.turn(own), resp(&format!("WATCH {key}")));
    stage.says(own, "+OK\r\n");
    assert_eq!(stage.received(client), "+OK\r\n");
    own
}

#[test]
fn all_that_a_client_asks_while_it_watches_takes_its_own_link() {
    let (mut stage, links, [one, other]) = pool(&["s0"], |_| {});
    let own = watching(&mut stage, one, "k");
    stage.says(one, "GET k\r\nWATCH l\r\nMULTI\r\nSET k 1\r\nPING\r\n");
    assert_eq!(stage.turn(own), all(&["GET k", "WATCH l"]));
    stage.says(own, "$1\r\n0\r\n+OK\r\n");
    assert_eq!(stage.received(one), "$1\r\n0\r\n+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    stage.says(other, "SET k 2\r\n");
    assert_eq!(stage.turn(links[0]), resp("SET k 2"));
    stage.says(links[0], "+OK\r\n");
    stage.says(one, "EXEC\r\nGET k\r\n");
    assert_eq!(stage.turn(own), all(&["MULTI", "SET k 1", "EXEC"]), "one block");
    stage.says(own, "+OK\r\n+QUEUED\r\n*-1\r\n");
    assert_eq!(stage.received(one), "*-1\r\n", "the server says that it has changed");
    stage.end_turn();
    assert_eq!(stage.turn(links[0]), resp("GET k"), "nothing is watched any more");
    assert_eq!(stage.turn(own), "");
    stage.expect_rows(1);
}

#[test]
fn a_transaction_without_requests_asks_whether_what_is_watched_has_changed() {
    for (queued, reply, answer) in [
        ("", "*0\r\n", "+OK\r\n*0\r\n"),
        ("", "*-1\r\n", "+OK\r\n*-1\r\n"),
        ("PING\r\n", "*0\r\n", "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n"),
        ("PING\r\n", "*-1\r\n", "+OK\r\n+QUEUED\r\n*-1\r\n"),
    ] {
        let (mut stage, _, [one, _]) = pool(&["s0"], |_| {});
        let own = watching(&mut stage, one, "k");
        stage.says(one, &format!("MULTI\r\n{queued}EXEC\r\n"));
        assert_eq!(stage.turn(own), all(&["MULTI", "EXEC"]));
        stage.says(own, &format!("+OK\r\n{reply}"));
        assert_eq!(stage.received(one), answer);
    }
}

#[test]
fn a_lost_link_or_another_owner_of_the_key_is_a_change() {
    type Change = fn(&mut Stage, ConnId, ConnId);
    let changes: [(&str, Change); 6] = [
        ("lost", |stage, _, own| stage.closes(own, Closed::Reset)),
        ("reload", |stage, _, _| stage.install(|_| {})),
        ("address", |stage, _, _| {
            stage.install(|plan| {
                plan.pools[0].servers[0] = ServerPlan::new("s9", "s9", 1);
                plan.pools[0].servers[0].id = 9;
            });
        }),
        ("ejected", |stage, _, _| stage.set_ejected(2, true)),
        ("database", |stage, one, _| {
            stage.says(one, "SELECT 3\r\n");
            assert_eq!(stage.received(one), "+OK\r\n");
        }),
        ("lost, and watched again", |stage, one, own| {
            stage.closes(own, Closed::Reset);
            stage.says(one, "WATCH k\r\n");
            let own = up(stage);
            stage.turn(own);
            stage.says(own, "+OK\r\n");
            assert_eq!(stage.received(one), "+OK\r\n");
        }),
    ];
    for (name, change) in changes {
        for early in [true, false] {
            // Where one may be ejected, there is another.
            let servers: &[&str] = if name == "ejected" { &["s0", "s1"] } else { &["s0"] };
            let (mut stage, _, [one, _]) = pool(servers, |_| {});
            let key = stage.key_of(0);
            let own = watching(&mut stage, one, &key);
            if early {
                change(&mut stage, one, own);
            }
            stage.says(one, &format!("MULTI\r\nSET {key} 1\r\n"));
            assert_eq!(stage.received(one), QUEUED, "{name}");
            if !early && !name.starts_with("database") && !name.ends_with("again") {
                change(&mut stage, one, own);
            } else if !early {
                continue;
            }
            stage.says(one, "EXEC\r\n");
            assert_eq!(stage.received(one), "*-1\r\n", "{name}");
            if stage.closed.contains(&own) {
                continue;
            }
            assert_eq!(stage.turn(own), "", "{name}: nothing is sent");
        }
    }
}

#[test]
fn in_resp3_a_transaction_that_is_not_executed_has_a_null() {
    let (mut stage, _, [one, _]) = pool(&["s0"], |_| {});
    stage.says(one, "HELLO 3\r\n");
    stage.received(one);
    stage.says(one, "WATCH k\r\n");
    stage.end_turn();
    let own = stage.establishes_with("*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n");
    stage.says(own, "%1\r\n$5\r\nproto\r\n:3\r\n");
    stage.turn(own);
    stage.says(own, "+OK\r\n");
    stage.closes(own, Closed::Eof);
    stage.says(one, "MULTI\r\nGET k\r\nEXEC\r\n");
    assert!(stage.received(one).ends_with("+QUEUED\r\n_\r\n"));
}

#[test]
fn keys_of_another_server_are_refused_before_anything_is_sent() {
    let (mut stage, links, [one, _]) = pool(&["s0", "s1"], |_| {});
    let (here, there) = (stage.key_of(0), stage.key_of(1));
    let own = watching(&mut stage, one, &here);
    stage.says(one, &format!("WATCH {there}\r\nWATCH {here} {there}\r\n"));
    let told = stage.received(one);
    assert_eq!(told.matches("-CROSSSLOT ").count(), 2, "{told}");
    assert!(told.contains(&here) && told.contains(&there), "{told}");
    // The rest of what it asks of others takes links of its own too, and is no part of it.
    stage.says(one, &format!("GET {there}\r\n"));
    let second = up(&mut stage);
    assert_eq!(stage.turn(second), resp(&format!("GET {there}")));
    stage.says(second, "$-1\r\n");
    assert_eq!(stage.received(one), "$-1\r\n");
    stage.says(one, &format!("MULTI\r\nSET {there} 1\r\nEXEC\r\n"));
    let told = stage.received(one);
    assert!(told.starts_with("+OK\r\n-CROSSSLOT ") && told.contains("-EXECABORT "), "{told}");
    assert_eq!(stage.turn(own) + &stage.turn(second) + &stage.turn(links[1]), "");
}

#[test]
fn what_is_watched_no_more_is_forgotten_by_the_server_too() {
    for end in ["UNWATCH", "MULTI\r\nDISCARD", "MULTI\r\nNOPE\r\nEXEC", "RESET"] {
        for private in [false, true] {
            let (mut stage, links, [one, _]) =
                pool(&["s0"], |plan| plan.pools[0].private = private);
            let own = watching(&mut stage, one, "k");
            stage.says(one, &format!("GET a\r\n{end}\r\n"));
            assert_eq!(stage.turn(own), resp("GET a"), "{end}: nobody waits for it");
            stage.says(own, "$-1\r\n");
            stage.received(one);
            stage.says(one, "MULTI\r\nSET k 1\r\nEXEC\r\n");
            stage.end_turn();
            let sent = all(&["MULTI", "SET k 1", "EXEC"]);
            match private {
                true => {
                    assert_eq!(stage.turn(own), resp("UNWATCH") + &sent, "{end}");
                    stage.says(own, "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
                }
                false => {
                    assert_eq!(stage.turn(links[0]), sent, "{end}");
                    stage.says(links[0], "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
                }
            }
            assert!(stage.received(one).ends_with("+QUEUED\r\n*1\r\n+OK\r\n"), "{end}");
            stage.expect_rows(0);
        }
    }
}

#[test]
fn a_watch_of_before_is_not_ended_before_its_transaction() {
    let (mut stage, _, [one, _]) = pool(&["s0"], |_| {});
    let own = watching(&mut stage, one, "k");
    stage.says(one, "MULTI\r\nSET k 1\r\nEXEC\r\nWATCH l\r\nUNWATCH\r\nWATCH m\r\n");
    assert_eq!(stage.turn(own), all(&["MULTI", "SET k 1", "EXEC", "WATCH l"]));
    stage.says(own, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    stage.end_turn();
    assert_eq!(stage.turn(own), "", "what is watched next waits until nothing is owed");
    stage.says(own, "+OK\r\n");
    stage.end_turn();
    assert_eq!(stage.turn(own), all(&["UNWATCH", "WATCH m"]));
    stage.says(own, "+OK\r\n+OK\r\n");
    assert_eq!(stage.received(one), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
}

/// Found by the simulator at seed 9509.
#[test]
fn the_links_of_a_pool_that_was_private_end_with_their_client() {
    let (mut stage, links, [client, _]) = pool(&["one"], |plan| plan.pools[0].private = true);
    stage.says(client, &resp("GET k"));
    let own = up(&mut stage);
    assert_eq!(stage.turn(own), resp("GET k"));
    stage.says(own, "$-1\r\n");
    stage.install(|plan| plan.pools[0].private = false);
    stage.says(client, &resp("GET k"));
    assert_eq!(stage.turn(links[0]), resp("GET k"));
    stage.says(links[0], "$-1\r\n");
    assert_eq!(stage.received(client), "$-1\r\n$-1\r\n");
    assert!(!stage.closed.contains(&own), "it is kept for a while");
    stage.closes(client, Closed::Eof);
    stage.end_turn();
    assert!(stage.closed.contains(&own));
}

/// A client whose watch another plan has ended, so that its transaction was not executed. Its
/// server has not been told yet.
fn watched_in_vain() -> (Stage, Vec<ConnId>, ConnId, ConnId) {
    let (mut stage, links, [client, _]) = pool(&["s0"], |_| {});
    let own = watching(&mut stage, client, "k");
    stage.install(|_| {});
    stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
    assert_eq!(stage.received(client), format!("{QUEUED}*-1\r\n"));
    (stage, links, client, own)
}

/// Found by the simulator: what was to end the watch had waited too long behind a full socket.
#[test]
fn a_link_is_not_kept_on_which_the_end_of_a_watch_cannot_be_sent() {
    let (mut stage, links, client, own) = watched_in_vain();
    stage.says(client, &resp("GET k"));
    assert_eq!(stage.turn(links[0]), resp("GET k"));
    stage.says(links[0], "$-1\r\n");
    assert!(!stage.closed.contains(&own), "it is kept for a while");
    stage.passes(2 * SECOND);
    stage.end_turn();
    assert!(stage.closed.contains(&own));
    stage.says(client, "WATCH k\r\n");
    assert_ne!(up(&mut stage), own);
}

/// Found by the simulator: the watch after it waited as long, and the transaction did not depend on
/// either as its client knew them.
#[test]
fn a_client_does_not_use_a_link_on_which_the_end_of_a_watch_could_not_be_sent() {
    let (mut stage, _, client, own) = watched_in_vain();
    // Nothing leaves.
    stage.says(client, "WATCH l\r\n");
    stage.passes(2 * SECOND);
    stage.end_turn();
    let told = stage.received(client);
    assert!(told.ends_with("not sent\r\n"), "{told}");
    assert!(stage.closed.contains(&own));
    stage.says(client, "MULTI\r\nGET k\r\nEXEC\r\n");
    assert_eq!(stage.received(client), format!("{QUEUED}{}", aborted_for(&told)));
}

#[test]
fn a_server_that_cannot_forget_what_is_watched_loses_the_link() {
    let (mut stage, _, [one, _]) = pool(&["s0"], |plan| plan.pools[0].private = true);
    let own = watching(&mut stage, one, "k");
    stage.says(one, "UNWATCH\r\nMULTI\r\nSET k 1\r\nEXEC\r\n");
    stage.turn(own);
    stage.says(own, "-NOPERM no\r\n");
    assert!(stage.closed.contains(&own));
    let told = stage.received(one);
    assert!(told.ends_with("s0: connection lost, outcome unknown\r\n"), "{told}");
}

#[test]
fn a_transaction_that_was_sent_and_lost_may_have_been_executed() {
    let (mut stage, _, [one, _]) = pool(&["s0"], |_| {});
    let own = watching(&mut stage, one, "k");
    stage.says(one, "MULTI\r\nSET k 1\r\nEXEC\r\n");
    stage.turn(own);
    stage.closes(own, Closed::Reset);
    let told = stage.received(one);
    assert!(told.ends_with("-ERR s0: connection lost, outcome unknown\r\n"), "{told}");
}

/// Nothing is watched on another link. Found by the simulator at seed 7028.
#[test]
fn a_transaction_that_meets_the_end_of_its_link_does_not_move_to_another() {
    for (how, request) in
        [(Closed::Eof, "SET k 1"), (Closed::Reset, "SET k 1"), (Closed::Eof, "GET k")]
    {
        let (mut stage, _, [one, _]) = pool(&["s0"], |_| {});
        let own = watching(&mut stage, one, "k");
        stage.passes(2 * SECOND);
        stage.says(one, &format!("MULTI\r\n{request}\r\nEXEC\r\n"));
        stage.closes(own, how);
        let told = stage.received(one);
        assert!(told.ends_with("-ERR s0: connection lost, not sent\r\n"), "{request}: {told}");
        stage.end_turn();
        assert_eq!(stage.connects, []);
        stage.expect_rows(0);
    }
}

/// Its server was silent meanwhile, and watches the key still.
#[test]
fn what_was_watched_for_a_transaction_that_is_given_up_unsent_is_forgotten_too() {
    let (mut stage, links, [one, other]) = pool(&["s0"], |plan| {
        let timeouts = &mut plan.pools[0].timeouts;
        (timeouts.queue, timeouts.reply) = (SECOND, 10 * SECOND);
    });
    let own = watching(&mut stage, one, "k");
    stage.says(other, "GET x\r\n");
    assert_eq!(stage.turn(links[0]), resp("GET x"));
    stage.waits(SECOND / 10);
    stage.says(one, "MULTI\r\nSET k 1\r\nEXEC\r\n");
    assert_eq!(stage.turn(own), HELLO, "its server is silent");
    stage.waits(stage.plan.pools[0].timeouts.queue);
    let told = stage.received(one);
    assert!(told.contains("-ERR s0: "), "{told}");
    stage.says(own, WELCOME);
    stage.end_turn();
    stage.says(one, "GET k\r\n");
    stage.end_turn();
    assert!(!stage.closed.contains(&own));
    assert_eq!(stage.turn(own), resp("UNWATCH"));
}

#[test]
fn a_watch_that_is_lost_on_its_way_is_not_sent_again() {
    let (mut stage, _, [one, _]) = pool(&["s0"], |_| {});
    stage.says(one, "WATCH k\r\n");
    let own = up(&mut stage);
    stage.turn(own);
    stage.passes(SECOND / 100);
    stage.closes(own, Closed::Reset);
    assert_eq!(stage.received(one), "-ERR s0: connection lost\r\n");
    stage.says(one, "MULTI\r\nGET k\r\nEXEC\r\n");
    let aborted = aborted_for("-ERR s0: connection lost\r\n");
    assert_eq!(stage.received(one), format!("{QUEUED}{aborted}"));
}

/// A server that answers neither is silent, and busy with nothing.
#[test]
fn a_watch_that_is_not_answered_is_no_slow_work() {
    let (mut stage, _, [one, other]) = pool(&["s0"], |plan| {
        let timeouts = &mut plan.pools[0].timeouts;
        (timeouts.queue, timeouts.reply) = (SECOND, SECOND);
    });
    stage.says(one, "WATCH k\r\n");
    let own = up(&mut stage);
    assert_eq!(stage.turn(own), resp("WATCH k"));
    stage.waits(SECOND / 2);
    stage.says(other, "WATCH k\r\n");
    stage.waits(SECOND / 2);
    assert_eq!(stage.received(one), "-ERR s0: no reply in time\r\n");
    stage.waits(SECOND / 2);
    let told = stage.received(other);
    assert!(told.starts_with("-ERR s0: ") && !told.contains("busy"), "{told}");
}

/// It waited for a link behind what was to be watched for it, and would have more time.
#[test]
fn a_transaction_does_not_run_without_the_watch_that_waited_too_long() {
    for is_up in [true, false] {
        let (mut stage, links, [one, other]) = pool(&["s0"], |plan| {
            let timeouts = &mut plan.pools[0].timeouts;
            (timeouts.queue, timeouts.reply) = (SECOND, 10 * SECOND);
            timeouts.connect = 10 * SECOND;
        });
        if is_up {
            // It is kept, and its server is silent elsewhere.
            let own = watching(&mut stage, one, "k");
            stage.says(one, "MULTI\r\nGET k\r\nEXEC\r\n");
            stage.turn(own);
            stage.says(own, "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
            stage.received(one);
            stage.says(other, "GET x\r\n");
            assert_eq!(stage.turn(links[0]), resp("GET x"));
            stage.waits(SECOND / 10);
        }
        stage.says(one, "WATCH k\r\n");
        stage.end_turn();
        stage.waits(SECOND / 2);
        stage.says(one, "MULTI\r\nSET k 1\r\nEXEC\r\n");
        stage.waits(SECOND / 2);
        let told = stage.received(one);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 4, "{told}");
        assert_eq!(lines[0], lines[3], "{told}");
        assert!(lines[0].ends_with(", not sent"), "{told}");
        stage.says(one, "MULTI\r\nGET k\r\nEXEC\r\n");
        assert!(!stage.received(one).contains("EXECABORT"), "it is over");
    }
}

/// The answer to a transaction for which keys could not be watched.
fn aborted_for(error: &str) -> String {
    let error = error.strip_prefix('-').expect("it is an error");
    format!("-EXECABORT Transaction discarded because of previous errors. The first: {error}")
}

#[test]
fn a_client_that_watches_stays_at_its_worker_until_its_transaction_ends() {
    let (mut stage, _, [one, other]) = pool(&["s0"], |_| {});
    let own = watching(&mut stage, one, "k");
    assert_eq!(stage.hand_over(), [other]);
    stage.says(one, "UNWATCH\r\n");
    stage.received(one);
    assert_eq!(stage.hand_over(), [one]);
    stage.end_turn();
    assert!(stage.closed.contains(&own));
}

#[test]
fn a_watch_that_finds_no_place_for_a_link_binds_nothing() {
    let (mut stage, links, [one, _]) = pool(&["s0"], |plan| plan.private_max = 0);
    stage.says(one, "WATCH k\r\nMULTI\r\nGET k\r\nEXEC\r\n");
    let told = stage.received(one);
    let (error, rest) = told.split_once("\r\n").expect("there are lines");
    assert!(error.contains("private_connections_max"), "{told}");
    assert_eq!(rest, format!("{QUEUED}{}", aborted_for(&format!("{error}\r\n"))));
    assert_eq!(stage.turn(links[0]), "");
    stage.says(one, "MULTI\r\nGET k\r\nEXEC\r\n");
    stage.end_turn();
    assert_eq!(stage.turn(links[0]), all(&["MULTI", "GET k", "EXEC"]));
}

/// Each ends what was asked for in vain: with no transaction, one that is given up, another watch.
#[test]
fn what_ends_a_watch_ends_one_that_was_refused() {
    for ends in ["UNWATCH\r\n", "MULTI\r\nDISCARD\r\n", "RESET\r\n"] {
        let (mut stage, links, [one, _]) = pool(&["s0"], |plan| plan.private_max = 0);
        stage.says(one, "WATCH k\r\n");
        assert_eq!(stage.hand_over().len(), 1, "it stays until that has ended");
        stage.says(one, ends);
        stage.received(one);
        stage.says(one, "MULTI\r\nGET k\r\nEXEC\r\n");
        stage.end_turn();
        assert_eq!(stage.turn(links[0]), all(&["MULTI", "GET k", "EXEC"]), "{ends}");
    }
}

/// A library that was told so asks again, and its transaction depends on the second watch.
#[test]
fn a_watch_that_is_refused_may_be_asked_for_again() {
    let (mut stage, _, [one, _]) = pool(&["s0", "s1"], |_| {});
    let keys = [stage.key_of(0), stage.key_of(1)];
    stage.says(one, &format!("WATCH {} {}\r\n", keys[0], keys[1]));
    assert!(stage.received(one).starts_with("-CROSSSLOT "));
    stage.passes(1);
    let own = watching(&mut stage, one, &keys[0]);
    stage.says(one, &format!("MULTI\r\nGET {}\r\nEXEC\r\n", keys[0]));
    assert_eq!(stage.turn(own), all(&["MULTI", &format!("GET {}", keys[0]), "EXEC"]));
}

/// Nothing of it could be read before all of it was sent.
#[test]
fn a_watch_that_is_refused_stays_refused_in_one_pipeline() {
    let (mut stage, _, [one, _]) = pool(&["s0", "s1"], |_| {});
    let keys = [stage.key_of(0), stage.key_of(1)];
    let [a, b] = &keys;
    stage.says(one, &format!("WATCH {a} {b}\r\nWATCH {a}\r\nMULTI\r\nGET {a}\r\nEXEC\r\n"));
    let own = up(&mut stage);
    stage.turn(own);
    stage.says(own, "+OK\r\n");
    let told = stage.received(one);
    assert!(told.contains("+QUEUED\r\n-EXECABORT "), "{told}");
}

/// The requests that a server gets, after it has said that it is there.
fn asked(stage: &mut Stage, link: ConnId) -> String {
    let sent = stage.turn(link);
    if sent != HELLO {
        return sent;
    }
    stage.says(link, WELCOME);
    stage.turn(link)
}

/// The first of these end the watch; the refusal comes later.
#[test]
fn a_watch_that_fails_after_its_end_stops_no_other_transaction() {
    for ends in ["UNWATCH", "RESET", "MULTI\r\nDISCARD", "CLIENT REPLY SKIP\r\nUNWATCH"] {
        let (mut stage, links, [one, _]) = pool(&["s0"], |_| {});
        stage.says(one, "WATCH k\r\n");
        stage.end_turn();
        stage.says(one, &format!("{ends}\r\n"));
        stage.passes(2 * SECOND);
        let told = stage.received(one);
        assert!(told.contains("-ERR s0: connect timed out\r\n"), "{ends}: {told}");
        stage.says(one, "MULTI\r\nGET k\r\nEXEC\r\n");
        stage.end_turn();
        assert_eq!(asked(&mut stage, links[0]), all(&["MULTI", "GET k", "EXEC"]), "{ends}");
    }
    // These end nothing.
    for ends_not in ["EXEC", "DISCARD"] {
        let (mut stage, links, [one, _]) = pool(&["s0"], |_| {});
        stage.says(one, "WATCH k\r\n");
        stage.end_turn();
        stage.says(one, &format!("{ends_not}\r\nMULTI\r\nGET k\r\n"));
        stage.passes(2 * SECOND);
        stage.says(one, "EXEC\r\n");
        let told = stage.received(one);
        assert!(told.contains("+QUEUED\r\n-EXECABORT "), "{told}");
        assert_eq!(asked(&mut stage, links[0]), "");
    }
}

/// A library that was told of the error has given the connection to somebody else.
#[test]
fn a_watch_that_was_refused_long_ago_stops_no_transaction() {
    for fails_at_once in [true, false] {
        let (mut stage, links, [one, other]) = pool(&["s0"], |plan| {
            if fails_at_once {
                plan.private_max = 0;
            }
        });
        stage.says(one, "WATCH k\r\n");
        stage.end_turn();
        stage.passes(2 * SECOND);
        let told = stage.received(one);
        assert!(told.starts_with("-ERR s0: "), "{told}");
        assert_eq!(stage.hand_over(), [other], "it may not know yet");
        stage.passes(10 * SECOND);
        stage.says(one, "MULTI\r\nGET k\r\nEXEC\r\n");
        stage.end_turn();
        let sent = asked(&mut stage, links[0]);
        assert_eq!(sent, all(&["MULTI", "GET k", "EXEC"]), "{fails_at_once}");
        stage.says(links[0], "+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
        stage.received(one);
        assert_eq!(stage.hand_over(), [one]);
    }
}

#[test]
fn a_transaction_is_refused_that_would_depend_on_a_part_of_what_was_asked_for() {
    let (mut stage, _, [one, _]) = pool(&["s0", "s1"], |_| {});
    let keys = [stage.key_of(0), stage.key_of(1)];
    let own = watching(&mut stage, one, &keys[0]);
    stage.says(one, &format!("WATCH {}\r\n", keys[1]));
    let error = stage.received(one);
    assert!(error.starts_with("-CROSSSLOT "), "{error}");
    stage.says(one, &format!("MULTI\r\nGET {}\r\nEXEC\r\n", keys[0]));
    assert_eq!(stage.received(one), format!("{QUEUED}{}", aborted_for(&error)));
    assert_eq!(stage.turn(own), "");
}
