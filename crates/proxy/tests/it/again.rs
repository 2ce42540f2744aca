//! Redis requests that are sent once more after an error that says that nothing was done, and the
//! connection keys on whose links requests go.

use proto::protocol;
use proxy::limits::{CONN_KEY_PAUSE_US, CONN_KEYS_MAX, HANDSHAKE_MAX, REPEAT_MAX};
use proxy::plan::ServerPlan;
use proxy::{Closed, ConnId, limits};
use shard::Distribution;

use crate::stage::{S0, SECOND, Stage};

const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";
const MASTER_DOWN: &str =
    "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n";
const CLUSTER_DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";
const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
const GET: &str = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
const SET: &str = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";

fn hello(database: usize) -> String {
    let hello = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n".to_string();
    match database {
        0 => hello,
        at => format!("*2\r\n$6\r\nSELECT\r\n${}\r\n{at}\r\n{hello}", at.to_string().len()),
    }
}

const WELCOME: &str = "*2\r\n$5\r\nproto\r\n:2\r\n";

/// A pool with one server, and the link to it.
fn redis() -> (Stage, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        plan.clients_max = 1_000;
        plan.pools[0].protocol = protocol("redis").expect("the table has it");
        (plan.pools[0].preconnect, plan.pools[0].databases) = (true, 1_000);
    });
    let link = stage.establishes_with(&hello(0));
    stage.says(link, WELCOME);
    (stage, link)
}

fn select(stage: &mut Stage, client: ConnId, database: usize) -> String {
    stage.says(client, &format!("SELECT {database}\r\n"));
    stage.end_turn();
    stage.received(client)
}

#[test]
fn what_a_server_could_not_do_yet_is_sent_again_after_ever_longer_pauses() {
    let errors = proto::protocol("redis").expect("the table has it").upstream().retryable_errors();
    for (line, counter) in [
        (LOADING, "again_loading_total"),
        (MASTER_DOWN, "again_master_down_total"),
        (CLUSTER_DOWN, "again_cluster_down_total"),
        (TRY_AGAIN, "again_try_again_total"),
    ] {
        let error = errors.iter().find(|one| one.counter == counter).expect("it has a counter");
        let (mut stage, link) = redis();
        let client = stage.client();
        stage.says(client, SET);
        assert_eq!(stage.turn(link), SET);
        for (nth, pause) in [5, 10, 20, 40, 80, 160, 320, 320].into_iter().enumerate() {
            stage.says(link, line);
            assert_eq!(stage.paused, [client], "what it sends next must not overtake");
            stage.passes(pause * 1_000 - 1);
            assert_eq!(stage.turn(link), "", "{pause} ms are not over");
            stage.passes(1);
            assert_eq!(stage.turn(link), SET, "after {pause} ms");
            assert_eq!(stage.registry.total_own(S0, error.place), nth as u64 + 1, "{line}");
        }
        // The next pause would end after the request's deadline.
        assert_eq!(stage.received(client), "");
        stage.says(link, line);
        assert_eq!(stage.received(client), line);
        stage.end_turn();
        assert_eq!(stage.paused, []);
        stage.expect_rows(0);
    }
}

/// Seed 21078: the server was called down, since there was no link to it yet.
#[test]
fn what_belongs_to_more_servers_when_it_is_sent_again_waits_for_their_links() {
    let (mut stage, link) = redis();
    stage.install(|plan| plan.pools[0].distribution = Distribution::Modula);
    let client = stage.client();
    stage.says(client, "MSET a 1 b 2 c 3 d 4\r\n");
    assert!(stage.turn(link).contains("MSET"));
    stage.says(link, LOADING);
    let more = ServerPlan { id: S0 + 1, ..ServerPlan::new("s1", "s1", 1) };
    stage.install(|plan| plan.pools[0].servers.push(more));
    stage.passes(5_000);
    stage.end_turn();
    assert_eq!(stage.received(client), "");
    let other = stage.establishes_with(&hello(0));
    stage.passes(4_000);
    stage.says(other, WELCOME);
    stage.passes(1_000);
    for link in [link, other] {
        let asked = stage.turn(link);
        assert!(asked.contains("mset"), "{asked}, {}", stage.received(client));
        stage.says(link, "+OK\r\n");
    }
    assert_eq!(stage.received(client), "+OK\r\n");
}

/// The second pause would end with the request's deadline.
#[test]
fn nothing_is_sent_again_at_its_deadline() {
    for (reply, is_sent) in [(15_000, false), (15_001, true)] {
        let (mut stage, link) = redis();
        stage.install(|plan| plan.pools[0].timeouts.reply = reply);
        let client = stage.client();
        stage.says(client, GET);
        stage.turn(link);
        stage.says(link, LOADING);
        stage.passes(5_000);
        assert_eq!(stage.turn(link), GET);
        stage.says(link, LOADING);
        assert_eq!(stage.received(client), if is_sent { "" } else { LOADING });
        stage.passes(10_000);
        assert_eq!(stage.turn(link), if is_sent { GET } else { "" });
    }
}

#[test]
fn a_request_that_is_sent_again_is_answered_in_its_clients_order() {
    let (mut stage, link) = redis();
    let client = stage.client();
    stage.says(client, SET);
    stage.turn(link);
    stage.says(link, LOADING);
    stage.says(client, GET);
    assert_eq!(stage.turn(link), "");
    stage.passes(5_000);
    assert_eq!(stage.turn(link), SET);
    stage.says(link, "+OK\r\n");
    assert_eq!(stage.turn(link), GET);
    stage.says(link, "$1\r\nv\r\n");
    assert_eq!(stage.received(client), "+OK\r\n$1\r\nv\r\n");
    stage.expect_rows(0);
}

/// A request behind it would be executed before it.
#[test]
fn only_the_last_request_of_a_client_is_sent_again() {
    let off = "CLIENT REPLY SKIP\r\n";
    for (asked, sent) in [
        ([SET, GET].concat(), [SET, GET].concat()),
        ([SET, off, GET].concat(), [SET, GET].concat()),
    ] {
        let (mut stage, link) = redis();
        let client = stage.client();
        stage.says(client, &asked);
        assert_eq!(stage.turn(link), sent);
        stage.says(link, LOADING);
        assert_eq!(stage.received(client), LOADING);
        stage.passes(SECOND / 2);
        assert_eq!(stage.turn(link), "");
        stage.says(link, "$-1\r\n");
        assert_eq!(stage.received(client), if asked.contains(off) { "" } else { "$-1\r\n" });
        stage.expect_rows(0);
    }
    // A request that nobody waits for is not sent again, and nor is another error's.
    for (asked, sent, line) in [
        ([off, SET].concat(), SET, LOADING),
        (SET.to_string(), SET, "-LOADING of something else\r\n"),
        (SET.to_string(), SET, "-ERR no\r\n"),
    ] {
        let (mut stage, link) = redis();
        let client = stage.client();
        stage.says(client, &asked);
        assert_eq!(stage.turn(link), sent);
        stage.says(link, line);
        stage.passes(SECOND / 2);
        assert_eq!(stage.turn(link), "", "{line}");
        assert_eq!(stage.received(client), if asked == SET { line } else { "" });
        stage.expect_rows(0);
    }
}

/// Another plan moves its key to a server that owes its client something on a link that goes.
#[test]
fn what_is_sent_again_on_other_links_waits_for_what_its_client_is_owed() {
    for is_answered in [true, false] {
        let mut stage = Stage::new(&["s0", "s1"], |pool| {
            pool.protocol = protocol("redis").expect("the table has it");
            (pool.distribution, pool.server_connections) = (Distribution::Modula, 2);
        });
        let [_, client] = [stage.client(), stage.client()];
        let asks = [1, 0].map(|at| GET.replace('k', &stage.key_of(at)).replace("$1", "$LEN"));
        let asks = asks.map(|one| {
            let len = one.lines().last().expect("a key").len();
            one.replace("$LEN", &format!("${len}"))
        });
        let links = asks.each_ref().map(|ask| {
            stage.says(client, ask);
            let link = stage.establishes_with(&hello(0));
            stage.says(link, WELCOME);
            assert_eq!(&stage.turn(link), ask);
            link
        });
        stage.says(links[1], LOADING);
        stage.install(|plan| {
            plan.pools[0].server_connections = 1;
            plan.pools[0].servers.remove(0);
        });
        stage.passes(5_000);
        assert_eq!(stage.connects, [], "it would be answered before the one before it");
        if is_answered {
            stage.says(links[0], "$-1\r\n");
            assert_eq!(stage.received(client), "$-1\r\n");
            stage.passes(5_000);
            let link = stage.establishes_with(&hello(0));
            stage.says(link, WELCOME);
            assert_eq!(stage.turn(link), asks[1]);
            continue;
        }
        stage.passes(2 * SECOND);
        let told = stage.received(client);
        assert!(told.ends_with("-ERR s1: timed out in the queue, not sent\r\n"), "{told}");
        stage.expect_rows(0);
    }
}

/// The client may ask again on another connection: then its change would be made twice.
#[test]
fn a_change_whose_client_leaves_in_the_pause_is_not_sent_again_and_a_read_is() {
    let dropped = "-ERR s0: dropped while it waited, not sent\r\n";
    for (asked, how, is_sent, told) in [
        (SET, Closed::Eof, false, dropped),
        (SET, Closed::Reset, false, ""),
        (GET, Closed::Eof, true, ""),
        (GET, Closed::Reset, false, ""),
    ] {
        let (mut stage, link) = redis();
        let client = stage.client();
        stage.says(client, asked);
        assert_eq!(stage.turn(link), asked);
        stage.passes(limits::ENDS_WITHIN_US + 1);
        stage.says(link, LOADING);
        stage.closes(client, how);
        stage.passes(5_000);
        assert_eq!(stage.turn(link), if is_sent { asked } else { "" }, "{how:?}");
        assert_eq!(stage.received(client), told, "{how:?}");
        if is_sent {
            stage.says(link, "$-1\r\n");
            assert_eq!(stage.received(client), "$-1\r\n");
        }
        stage.end_turn();
        assert_eq!(stage.closed.contains(&client), how == Closed::Eof);
        stage.expect_rows(0);
    }
}

#[test]
fn a_read_that_was_sent_again_finds_its_server_gone() {
    let (mut stage, link) = redis();
    let client = stage.client();
    stage.says(client, GET);
    stage.turn(link);
    stage.says(link, LOADING);
    stage.closes(link, Closed::Eof);
    stage.passes(5_000);
    let (link, _) = stage.connects.pop().expect("it is asked on another link");
    stage.closes(link, Closed::Reset);
    assert_eq!(stage.received(client), "-ERR s0: connect failed\r\n");
    stage.expect_rows(0);
}

#[test]
fn each_database_has_links_of_its_own_and_there_are_so_many() {
    let (mut stage, home) = redis();
    let clients: Vec<ConnId> = (0..CONN_KEYS_MAX).map(|_| stage.client()).collect();
    let mut links = vec![home];
    for (database, client) in clients.iter().enumerate().skip(1) {
        assert_eq!(select(&mut stage, *client, database), "+OK\r\n");
        stage.says(*client, GET);
        let link = stage.establishes_with(&hello(database));
        stage.says(link, &format!("+OK\r\n{WELCOME}"));
        assert_eq!(stage.turn(link), GET);
        stage.says(link, "$-1\r\n");
        assert_eq!(stage.received(*client), "$-1\r\n");
        links.push(link);
    }
    let more = CONN_KEYS_MAX;
    let late = stage.client();
    let refused = "-ERR too many databases are in use through this proxy\r\n";
    assert_eq!(select(&mut stage, late, more), refused);
    // A client that wants no answers would take it for the answer to its next request.
    let silent = stage.client();
    stage.says(silent, &format!("CLIENT REPLY SKIP\r\nSELECT {more}\r\nPING\r\n"));
    assert_eq!(stage.received(silent), "+PONG\r\n");
    // It is still where it was.
    stage.says(late, GET);
    assert_eq!(stage.turn(home), GET);
    stage.says(home, "$-1\r\n");
    assert_eq!(stage.received(late), "$-1\r\n");
    // A link that is owed an answer keeps its place until it has it. The home's is nobody else's.
    stage.says(clients[5], SET);
    assert_eq!(stage.turn(links[5]), SET);
    stage.closes(clients[5], Closed::Reset);
    stage.closes(clients[0], Closed::Reset);
    assert_eq!(select(&mut stage, late, more), refused);
    assert_eq!(stage.closed, []);
    stage.says(links[5], "+OK\r\n");
    assert_eq!(stage.closed, [links[5]]);
    assert_eq!(select(&mut stage, late, more), "+OK\r\n");
    stage.says(late, GET);
    let link = stage.establishes_with(&hello(more));
    stage.says(link, &format!("+OK\r\n{WELCOME}"));
    assert_eq!(stage.turn(link), GET);
    // And now the others still have theirs.
    stage.says(clients[6], GET);
    assert_eq!(stage.turn(links[6]), GET);
}

/// The client is in a database for which this worker has no room.
#[test]
fn a_client_of_another_worker_whose_database_has_no_room_is_not_taken() {
    let (mut there, _) = redis();
    let client = there.client();
    assert_eq!(select(&mut there, client, 500), "+OK\r\n");
    let passed = there.passed().remove(0);
    let (mut stage, _) = redis();
    let clients: Vec<ConnId> = (0..CONN_KEYS_MAX).map(|_| stage.client()).collect();
    for (database, client) in clients.iter().enumerate().skip(1) {
        assert_eq!(select(&mut stage, *client, database), "+OK\r\n");
    }
    assert!(stage.try_adopt(passed.clone()).is_err());
    let now = stage.registry.total(crate::stage::POOL, metrics::PoolCounter::ClientsNow);
    assert_eq!(now, CONN_KEYS_MAX as u64);
    stage.closes(clients[9], Closed::Reset);
    let client = stage.adopt(passed);
    stage.says(client, GET);
    stage.establishes_with(&hello(500));
}

#[test]
fn a_database_that_a_server_refuses_is_tried_again_after_a_second_and_others_at_once() {
    let (mut stage, home) = redis();
    let clients = [stage.client(), stage.client()];
    let refused = "-ERR s0: refuses this database, or this version of the protocol: not sent\r\n";
    for _ in 0..2 {
        select(&mut stage, clients[0], 7);
        stage.says(clients[0], GET);
        let link = stage.establishes_with(&hello(7));
        stage.says(link, "-ERR DB index is out of range\r\n");
        assert_eq!(stage.received(clients[0]), refused);
        stage.passes(CONN_KEY_PAUSE_US - 1);
        stage.says(clients[0], GET);
        assert_eq!((stage.connects.len(), stage.received(clients[0])), (0, refused.to_string()));
        stage.says(clients[1], GET);
        assert_eq!(stage.turn(home), GET, "the server is well");
        stage.says(home, "$-1\r\n");
        stage.received(clients[1]);
        stage.passes(1);
    }
    select(&mut stage, clients[1], 8);
    stage.says(clients[1], GET);
    stage.establishes_with(&hello(8));
}

#[test]
fn new_clients_begin_in_the_database_of_the_latest_plan_and_others_stay_in_theirs() {
    let (mut stage, home) = redis();
    let old = stage.client();
    stage.install(|plan| plan.pools[0].database = 3);
    let new = stage.client();
    stage.says(old, GET);
    assert_eq!(stage.turn(home), GET);
    stage.says(new, GET);
    let link = stage.establishes_with(&hello(3));
    stage.says(link, &format!("+OK\r\n{WELCOME}"));
    assert_eq!(stage.turn(link), GET);
}

#[test]
fn a_server_may_refuse_several_databases_at_once() {
    let (mut stage, _) = redis();
    let clients = [stage.client(), stage.client()];
    for (client, database) in clients.into_iter().zip([7, 8]) {
        select(&mut stage, client, database);
        stage.says(client, GET);
        let link = stage.establishes_with(&hello(database));
        stage.says(link, "-ERR DB index is out of range\r\n");
        assert!(stage.received(client).starts_with("-ERR s0: refuses this database"));
        stage.passes(CONN_KEY_PAUSE_US / 2 - 1);
    }
    for client in clients {
        stage.says(client, GET);
        assert!(stage.received(client).starts_with("-ERR s0: refuses this database"));
        assert_eq!(stage.connects, []);
    }
}

/// A longer one is not kept until it is answered.
#[test]
fn a_request_up_to_its_bound_is_sent_again() {
    let of = |len: usize| {
        let value = "v".repeat(len - SET.len() - 2);
        format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{value}\r\n", value.len())
    };
    for more in [0, 1] {
        let (mut stage, link) = redis();
        let client = stage.client();
        let mut set = of(REPEAT_MAX + more);
        if set.len() < REPEAT_MAX + more {
            set = of(2 * (REPEAT_MAX + more) - set.len());
        }
        assert_eq!(set.len(), REPEAT_MAX + more);
        stage.says(client, &set);
        assert_eq!(stage.turn(link), set);
        stage.says(link, LOADING);
        assert_eq!(stage.received(client), if more == 0 { "" } else { LOADING });
        stage.passes(5_000);
        assert_eq!(stage.turn(link), if more == 0 { set } else { String::new() });
    }
}

#[test]
fn a_handshake_has_an_end() {
    let (mut stage, _) = redis();
    let client = stage.client();
    select(&mut stage, client, 3);
    stage.says(client, GET);
    let link = stage.establishes_with(&hello(3));
    let endless = format!("*2\r\n$100000\r\n{}", "x".repeat(HANDSHAKE_MAX));
    stage.says(link, &endless[..HANDSHAKE_MAX]);
    assert_eq!(stage.closed, []);
    stage.says(link, "x");
    assert_eq!(stage.closed, [link]);
    assert!(stage.received(client).contains("unexpected reply"));
}

/// It could overtake an earlier change on the links that the client took before.
#[test]
fn a_lost_read_of_a_client_that_takes_other_links_since_is_not_sent_again() {
    for (more_links, told) in [(false, ""), (true, "-ERR s0: connection lost\r\n")] {
        let (mut stage, link) = redis();
        let client = stage.client();
        stage.says(client, GET);
        stage.turn(link);
        stage.says(link, "$-1\r\n");
        stage.received(client);
        stage.says(client, GET);
        assert_eq!(stage.turn(link), GET);
        if more_links {
            stage.install(|plan| plan.pools[0].server_connections = 2);
        }
        stage.closes(link, Closed::Reset);
        assert_eq!(stage.received(client), told);
    }
}
