//! Private links: whose they are, when they come, and when they go.

use std::rc::Rc;

use metrics::{TenantCounter, WorkerCounter};
use proto::protocol;
use proxy::plan::Plan;
use proxy::tenants::plan::TenantPlan;
use proxy::{Closed, ConnId};
use shard::Distribution;

use crate::stage::{SECOND, Stage};

const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
const WELCOME: &str = "*2\r\n$5\r\nproto\r\n:2\r\n";

fn resp(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}

fn pool(servers: &[&str], set: impl FnOnce(&mut Plan)) -> Stage {
    Stage::of(servers, |plan| {
        let pool = &mut plan.pools[0];
        pool.protocol = protocol("redis").expect("the table has it");
        (pool.distribution, pool.private) = (Distribution::Modula, true);
        set(plan);
    })
}

/// Brings the link up that has just been ordered.
fn up(stage: &mut Stage) -> ConnId {
    stage.end_turn();
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    link
}

fn count(stage: &Stage) -> u64 {
    stage.registry.total(0, WorkerCounter::PrivateLinksNow)
}

fn kept(stage: &Stage) -> u64 {
    stage.registry.total(0, WorkerCounter::KeptLinksNow)
}

#[test]
fn each_client_has_a_link_of_its_own_to_each_server_that_it_asks() {
    let mut stage = pool(&["s0"], |_| {});
    let (one, other) = (stage.client(), stage.client());
    assert_eq!(count(&stage), 0, "a client that asks nothing has none");
    stage.says(one, "SET k 1\r\nGET k\r\n");
    let link = up(&mut stage);
    assert_eq!(stage.turn(link), resp("SET k 1") + &resp("GET k"));
    stage.says(other, "GET k\r\n");
    let another = up(&mut stage);
    assert_eq!((stage.turn(another), stage.turn(link)), (resp("GET k"), String::new()));
    assert_eq!(count(&stage), 2);
    stage.says(another, "$1\r\n0\r\n");
    stage.says(link, "+OK\r\n$1\r\n1\r\n");
    assert_eq!(stage.received(one), "+OK\r\n$1\r\n1\r\n");
    assert_eq!(stage.received(other), "$1\r\n0\r\n");
    // It stays, and a request that may take long takes it as well.
    stage.says(one, "KEYS *\r\n");
    assert_eq!(stage.turn(link), resp("KEYS *"));
    stage.says(link, "*0\r\n");
    // It goes with its client, idle or not.
    stage.closes(one, Closed::Reset);
    stage.end_turn();
    assert!(stage.closed.contains(&link) && !stage.closed.contains(&another));
    stage.says(other, "GET k\r\n");
    stage.turn(another);
    stage.closes(other, Closed::Reset);
    stage.end_turn();
    assert!(stage.closed.contains(&another));
    assert_eq!((count(&stage), stage.memory()), (0, 0));
    assert_eq!(stage.healths(), ["s0 ready"], "that is no failure of the server");
}

#[test]
fn there_are_as_many_as_the_bound_says_and_the_error_names_it() {
    let mut stage = pool(&["s0"], |plan| plan.private_max = 1);
    let (one, other) = (stage.client(), stage.client());
    stage.says(one, "GET k\r\n");
    let link = up(&mut stage);
    stage.turn(link);
    stage.says(link, "$-1\r\n");
    stage.received(one);
    stage.says(other, "GET k\r\nPING\r\n");
    let told = stage.received(other);
    assert!(told.contains("private_connections_max") && told.ends_with("\r\n+PONG\r\n"), "{told}");
    stage.closes(one, Closed::Eof);
    stage.end_turn();
    stage.says(other, "GET k\r\n");
    assert_eq!(stage.received(other), "");
    let link = up(&mut stage);
    assert_eq!(stage.turn(link), resp("GET k"));
    // A bound that is lowered closes none.
    stage.install(|plan| plan.private_max = 0);
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(other), "$-1\r\n");
}

#[test]
fn a_client_that_changes_its_database_has_another_link_and_not_two() {
    let mut stage = pool(&["s0"], |plan| plan.pools[0].databases = 16);
    let client = stage.client();
    stage.says(client, "GET k\r\n");
    let link = up(&mut stage);
    stage.turn(link);
    stage.says(client, "SELECT 3\r\nGET k\r\n");
    assert_eq!(stage.turn(link), "", "it waits for the answer before");
    stage.says(link, "$1\r\n0\r\n");
    stage.end_turn();
    let next = stage.establishes_with(&(resp("SELECT 3") + HELLO));
    assert!(stage.closed.contains(&link));
    stage.says(next, &format!("+OK\r\n{WELCOME}"));
    assert_eq!(stage.turn(next), resp("GET k"));
    assert_eq!(count(&stage), 1);
}

#[test]
fn a_plan_gives_clients_links_of_their_own_and_takes_them_back() {
    let mut stage = pool(&["s0"], |plan| plan.pools[0].private = false);
    let client = stage.client();
    stage.says(client, "GET k\r\n");
    let shared = up(&mut stage);
    stage.turn(shared);
    stage.install(|plan| plan.pools[0].private = true);
    stage.says(client, "GET l\r\n");
    assert_eq!(stage.turn(shared), "", "it waits for the answer before");
    stage.says(shared, "$-1\r\n");
    let own = up(&mut stage);
    assert_eq!(stage.turn(own), resp("GET l"));
    stage.says(own, "$-1\r\n");
    stage.install(|plan| plan.pools[0].private = false);
    stage.says(client, "GET m\r\n");
    assert_eq!(stage.turn(shared), resp("GET m"));
    stage.says(shared, "$-1\r\n");
    stage.passes(6 * SECOND);
    assert!(stage.closed.contains(&own));
    assert_eq!((count(&stage), kept(&stage)), (0, 0));
}

#[test]
fn a_server_that_leaves_the_plan_loses_its_private_links_as_they_become_idle() {
    let mut stage = pool(&["s0", "s1"], |_| {});
    let client = stage.client();
    let key = stage.key_of(0);
    stage.says(client, &format!("GET {key}\r\n"));
    let link = up(&mut stage);
    stage.turn(link);
    stage.install(|plan| plan.pools[0].servers.retain(|one| one.name == "s1"));
    assert!(!stage.closed.contains(&link), "an answer is still to come");
    stage.says(link, "$1\r\n1\r\n");
    assert_eq!(stage.received(client), "$1\r\n1\r\n");
    stage.end_turn();
    assert!(stage.closed.contains(&link));
    assert_eq!(count(&stage), 0);
}

#[test]
fn a_private_link_that_is_lost_is_no_other_clients_loss() {
    let mut stage = pool(&["s0"], |_| {});
    let (one, other) = (stage.client(), stage.client());
    stage.says(one, "GET k\r\n");
    let link = up(&mut stage);
    stage.turn(link);
    stage.says(link, "$-1\r\n");
    stage.received(one);
    stage.says(one, "SET k 1\r\n");
    stage.turn(link);
    stage.says(other, "GET k\r\n");
    let another = up(&mut stage);
    stage.turn(another);
    stage.passes(SECOND / 100);
    stage.closes(link, Closed::Reset);
    assert_eq!(stage.received(one), "-ERR s0: connection lost, outcome unknown\r\n");
    stage.says(another, "$1\r\n0\r\n");
    assert_eq!(stage.received(other), "$1\r\n0\r\n");
    stage.says(one, "GET k\r\n");
    let again = up(&mut stage);
    assert_eq!(stage.turn(again), resp("GET k"));
    assert_eq!(count(&stage), 2);
}

/// A pool of shared links, its link, and two clients.
fn shared(set: impl FnOnce(&mut Plan)) -> (Stage, ConnId, [ConnId; 2]) {
    let mut stage = pool(&["s0"], |plan| {
        (plan.pools[0].private, plan.pools[0].preconnect) = (false, true);
        set(plan);
    });
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    let clients = [stage.client(), stage.client()];
    (stage, link, clients)
}

#[test]
fn what_waits_at_a_server_waits_on_a_link_of_its_own_and_for_ever() {
    for wait in ["BLPOP k 0", "BLMOVE k l LEFT LEFT 0", "XREAD BLOCK 0 STREAMS k $"] {
        let (mut stage, link, [one, other]) = shared(|plan| {
            plan.pools[0].hold_after = Some(SECOND);
        });
        stage.says(one, &format!("GET a\r\n{wait}\r\nGET b\r\n"));
        assert_eq!(stage.turn(link), resp("GET a"));
        stage.says(link, "$-1\r\n");
        let own = up(&mut stage);
        assert_eq!(stage.turn(own), resp(wait), "and nothing behind it");
        assert_eq!(stage.received(one), "$-1\r\n");
        stage.passes(3_600 * SECOND);
        assert_eq!(stage.received(one), "", "{wait}");
        stage.says(other, "GET k\r\nKEYS *\r\n");
        assert_eq!(stage.turn(link), resp("GET k"), "the server is not taken for silent or busy");
        stage.says(link, "$-1\r\n");
        stage.says(own, "*-1\r\n");
        assert_eq!(stage.received(one), "*-1\r\n");
        stage.end_turn();
        assert_eq!(stage.turn(link), resp("GET b"));
        assert!(!stage.closed.contains(&own), "it may need its own link again soon");
        assert_eq!((count(&stage), kept(&stage)), (0, 1));
        stage.says(link, "$-1\r\n");
        stage.passes(6 * SECOND);
        assert!(stage.closed.contains(&own), "it did not");
        assert_eq!((count(&stage), kept(&stage)), (0, 0));
    }
    // What does not wait takes the usual links.
    let (mut stage, link, [one, _]) = shared(|_| {});
    stage.says(one, "XREAD COUNT 1 STREAMS k 0\r\n");
    assert_eq!(stage.turn(link), resp("XREAD COUNT 1 STREAMS k 0"));
}

/// A client that has waited for an element and has gone on; returns the link that it keeps.
fn keeps(stage: &mut Stage, link: ConnId, client: ConnId) -> ConnId {
    stage.says(client, "BRPOPLPUSH k l 0\r\nLREM l 1 x\r\n");
    let own = up(stage);
    assert_eq!(stage.turn(own), resp("BRPOPLPUSH k l 0"));
    stage.says(own, "$1\r\nx\r\n");
    stage.end_turn();
    assert_eq!(stage.turn(link), resp("LREM l 1 x"));
    stage.says(link, ":1\r\n");
    assert_eq!(stage.received(client), "$1\r\nx\r\n:1\r\n");
    own
}

#[test]
fn a_worker_of_jobs_opens_one_link_and_not_one_for_each_job() {
    let (mut stage, link, [one, other]) = shared(|_| {});
    let own = keeps(&mut stage, link, one);
    for _ in 0..1_000 {
        stage.passes(SECOND / 100);
        stage.says(one, "BRPOPLPUSH k l 0\r\n");
        assert_eq!(stage.turn(own), resp("BRPOPLPUSH k l 0"));
        assert_eq!((count(&stage), kept(&stage)), (1, 0));
        stage.says(own, "$1\r\nx\r\n");
        stage.says(one, "LREM l 1 x\r\n");
        stage.end_turn();
        assert_eq!(stage.turn(link), resp("LREM l 1 x"));
        stage.says(link, ":1\r\n");
        assert_eq!(stage.received(one), "$1\r\nx\r\n:1\r\n");
        assert_eq!((count(&stage), kept(&stage)), (0, 1));
    }
    // It is nobody else's.
    stage.says(other, "BLPOP k 0\r\n");
    let another = up(&mut stage);
    assert_eq!((stage.turn(another), stage.turn(own)), (resp("BLPOP k 0"), String::new()));
    // It goes with its client.
    stage.closes(one, Closed::Eof);
    stage.end_turn();
    assert!(stage.closed.contains(&own) && !stage.closed.contains(&another));
    assert_eq!((count(&stage), kept(&stage)), (1, 0));
}

#[test]
fn a_link_that_is_kept_gives_way_and_counts_only_while_it_is_used() {
    let (mut stage, link, [one, other]) = shared(|plan| plan.private_max = 1);
    let own = keeps(&mut stage, link, one);
    stage.says(other, "BLPOP k 0\r\n");
    let another = up(&mut stage);
    assert!(stage.closed.contains(&own), "there may be one link");
    assert_eq!(stage.turn(another), resp("BLPOP k 0"));
    stage.says(one, "BLPOP k 0\r\n");
    assert!(stage.received(one).contains("private_connections_max"));
    stage.says(another, "*-1\r\n");
    stage.says(other, "PING\r\nGET k\r\n");
    stage.turn(link);
    stage.says(link, "$-1\r\n");
    assert_eq!((count(&stage), kept(&stage)), (0, 1));
    // A server may close it, and a plan or a client that has another database do too.
    stage.closes(another, Closed::Eof);
    assert_eq!((count(&stage), kept(&stage)), (0, 0));
    assert_eq!(stage.healths(), ["s0 ready"]);
    stage.expect_rows(0);
}

/// Applications keep their connections. One that watches has to be told of changes, and one that
/// waits of elements.
#[test]
fn a_client_that_asks_nothing_gives_its_own_link_up() {
    let (mut stage, link, [one, other]) = shared(|plan| plan.private_max = 1);
    let quiet = |stage: &mut Stage| (0..11).for_each(|_| stage.passes(SECOND));
    stage.says(one, "WATCH k\r\n");
    let own = up(&mut stage);
    assert_eq!(stage.turn(own), resp("WATCH k"));
    stage.says(own, "+OK\r\n");
    quiet(&mut stage);
    assert!(!stage.closed.contains(&own), "it watches");
    stage.says(one, "UNWATCH\r\n");
    quiet(&mut stage);
    assert!(stage.closed.contains(&own));
    assert_eq!((count(&stage), kept(&stage)), (0, 0));
    stage.says(other, "BLPOP k 0\r\n");
    let own = up(&mut stage);
    assert_eq!(stage.turn(own), resp("BLPOP k 0"));
    quiet(&mut stage);
    assert!(!stage.closed.contains(&own), "it waits");
    stage.says(own, "*-1\r\n");
    for _ in 0..3 {
        // It takes job after job.
        stage.passes(4 * SECOND);
        stage.says(other, "BLPOP k 0\r\n");
        assert_eq!(stage.turn(own), resp("BLPOP k 0"));
        stage.says(own, "*-1\r\n");
    }
    quiet(&mut stage);
    assert!(stage.closed.contains(&own));
    stage.received(one);
    stage.says(one, "GET k\r\n");
    assert_eq!(stage.turn(link), resp("GET k"));
    stage.says(link, "$-1\r\n");
    assert_eq!(stage.received(one), "$-1\r\n");
    stage.expect_rows(0);
}

#[test]
fn what_waits_behind_other_requests_on_a_link_of_its_own_makes_no_server_silent() {
    let mut stage = pool(&["s0"], |plan| plan.pools[0].hold_after = Some(SECOND));
    let (one, other) = (stage.client(), stage.client());
    stage.says(one, "GET a\r\nBLPOP k 0\r\n");
    let own = up(&mut stage);
    assert_eq!(stage.turn(own), resp("GET a") + &resp("BLPOP k 0"));
    stage.says(own, "$-1\r\n");
    stage.passes(3_600 * SECOND);
    stage.says(other, "GET k\r\n");
    let another = up(&mut stage);
    assert_eq!(stage.turn(another), resp("GET k"), "nothing is held");
    stage.says(own, "*-1\r\n");
    assert_eq!(stage.received(one), "$-1\r\n*-1\r\n");
}

#[test]
fn a_client_that_leaves_or_closes_its_half_ends_its_wait() {
    for how in [Closed::Reset, Closed::Eof] {
        let (mut stage, _, [one, other]) = shared(|_| {});
        stage.says(one, "BLPOP k 0\r\n");
        let own = up(&mut stage);
        stage.turn(own);
        stage.says(other, "BLPOP k 0\r\n");
        let another = up(&mut stage);
        stage.turn(another);
        stage.closes(one, how);
        stage.end_turn();
        assert!(stage.closed.contains(&own) && !stage.closed.contains(&another), "{how:?}");
        assert_eq!((count(&stage), stage.closed.contains(&one)), (1, how == Closed::Eof));
        stage.says(another, "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
        assert_eq!(stage.received(other), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
        stage.expect_rows(0);
    }
}

#[test]
fn a_private_link_that_ends_idle_is_followed_by_another_of_the_same_client() {
    let mut stage = pool(&["s0"], |_| {});
    let (one, other) = (stage.client(), stage.client());
    let blpop = resp("BLPOP k 0");
    stage.says(one, &blpop);
    let own = up(&mut stage);
    assert_eq!(stage.turn(own), blpop);
    stage.says(own, "*-1\r\n");
    assert_eq!(stage.received(one), "*-1\r\n");
    stage.says(one, &blpop);
    stage.closes(own, Closed::Eof);
    let again = up(&mut stage);
    assert_eq!(stage.turn(again), blpop);
    // It is not the other's, and counts once.
    stage.says(other, &blpop);
    let others = up(&mut stage);
    assert_eq!((stage.turn(others), stage.turn(again)), (blpop, String::new()));
    assert_eq!(count(&stage), 2);
    stage.says(again, "*-1\r\n");
    assert_eq!((stage.received(one), stage.received(other)), ("*-1\r\n".into(), String::new()));
    stage.closes(one, Closed::Reset);
    stage.end_turn();
    assert!(stage.closed.contains(&again));
    assert_eq!(count(&stage), 1);
}

#[test]
fn a_wait_ends_with_its_connection_or_its_server() {
    let (mut stage, _, [one, _]) = shared(|_| {});
    stage.says(one, "BLPOP k 0\r\n");
    let own = up(&mut stage);
    stage.turn(own);
    stage.passes(60 * SECOND);
    stage.closes(own, Closed::Reset);
    assert_eq!(stage.received(one), "-ERR s0: connection lost, outcome unknown\r\n");
    // What came meanwhile would be missed by a second one.
    stage.says(one, "XREAD BLOCK 0 STREAMS k $\r\n");
    let own = up(&mut stage);
    stage.turn(own);
    stage.passes(60 * SECOND);
    stage.closes(own, Closed::Reset);
    assert_eq!(stage.received(one), "-ERR s0: connection lost\r\n");
    // No time is too late for another try, so there is none.
    stage.says(one, "BLPOP k 0.1\r\n");
    let own = up(&mut stage);
    stage.turn(own);
    stage.says(own, "-LOADING Redis is loading the dataset in memory\r\n");
    assert!(stage.received(one).starts_with("-LOADING "));
    stage.says(one, "BLPOP k 0\r\n");
    stage.turn(own);
    stage.install(|plan| {
        plan.pools[0].servers[0] = {
            let mut server = proxy::plan::ServerPlan::new("s9", "s9", 1);
            server.id = 9;
            server
        }
    });
    assert!(stage.received(one).starts_with("-ERR s0: connection lost"));
    assert!(stage.closed.contains(&own));
    stage.end_turn();
    // A server that is asked for nothing else may come and go as it likes.
    assert_eq!(count(&stage), 0);
}

#[test]
fn a_drain_and_a_retired_worker_do_not_wait_for_elements() {
    let (mut stage, _, [one, other]) = shared(|_| {});
    stage.says(one, "BLPOP k 0\r\n");
    let own = up(&mut stage);
    stage.turn(own);
    assert_eq!(stage.hand_over(), [other], "what it waits for comes on a link of this worker");
    stage.drain();
    assert!(stage.closed.contains(&one) && stage.closed.contains(&own));
    assert!(stage.is_drained());
}

#[test]
fn a_drain_closes_a_client_with_requests_behind_its_wait() {
    for behind in ["GET a\r\n", "QUIT\r\n", "MULTI\r\nGET a\r\nEXEC\r\n", "SET b 0"] {
        let (mut stage, _, [one, _]) = shared(|_| {});
        stage.says(one, &format!("BLPOP k 0\r\n{behind}"));
        let own = up(&mut stage);
        stage.turn(own);
        stage.drain();
        assert!(stage.closed.contains(&one) && stage.closed.contains(&own), "{behind:?}");
        assert!(stage.is_drained());
        assert_eq!(count(&stage), 0);
    }
}

#[test]
fn a_client_that_leaves_ends_its_wait_whatever_it_has_sent_behind_it() {
    for how in [Closed::Reset, Closed::Eof] {
        for behind in ["GET a\r\n", "QUIT\r\n", "BLPOP l 0\r\nBLPOP m 0\r\n", "SET b 0"] {
            let (mut stage, link, [one, _]) = shared(|_| {});
            stage.says(one, &format!("BLPOP k 0\r\n{behind}"));
            let own = up(&mut stage);
            stage.turn(own);
            stage.closes(one, how);
            stage.end_turn();
            assert!(stage.closed.contains(&own), "{how:?} {behind:?}");
            assert_eq!((count(&stage), stage.turn(link)), (0, String::new()), "{behind:?}");
        }
    }
}

#[test]
fn several_waits_of_one_client_come_one_after_the_other() {
    let (mut stage, link, [one, _]) = shared(|_| {});
    stage.says(one, "BLPOP k 1\r\nBLPOP l 1\r\nMULTI\r\nBLPOP m 0\r\nDISCARD\r\nGET a\r\n");
    let own = up(&mut stage);
    assert_eq!(stage.turn(own), resp("BLPOP k 1"));
    stage.says(own, "*-1\r\n");
    stage.end_turn();
    assert_eq!(stage.turn(own), resp("BLPOP l 1"), "on the same link");
    stage.says(own, "*-1\r\n");
    stage.end_turn();
    assert_eq!(stage.turn(link), resp("GET a"));
    assert_eq!(stage.received(one), "*-1\r\n*-1\r\n+OK\r\n+QUEUED\r\n+OK\r\n");
}

const LINKS: TenantCounter = TenantCounter::PrivateLinksNow;

/// A pool of the tenant `shop`, which may have so many links that serve one client alone.
fn pool_of_a_tenant(most: u64) -> Stage {
    pool(&["s0"], |plan| {
        let mut shop = TenantPlan::new("shop");
        shop.private_links_max = most;
        plan.tenants = vec![Rc::new(shop), Rc::new(TenantPlan::new("rest"))];
        plan.pools[0].tenant = Some(0);
        plan.number();
    })
}

#[test]
fn a_tenant_has_as_many_private_links_as_it_may_and_the_error_names_it() {
    let mut stage = pool_of_a_tenant(1);
    let (shop, rest) = (3, 4);
    let (one, other) = (stage.client(), stage.client());
    stage.says(one, "GET k\r\n");
    let link = up(&mut stage);
    stage.turn(link);
    stage.says(link, "$-1\r\n");
    stage.received(one);
    stage.says(other, "GET k\r\nPING\r\n");
    let told = stage.received(other);
    let words = "tenant 'shop' has its limit of 1 private link, not sent\r\n+PONG\r\n";
    assert!(told.ends_with(words), "{told}");
    assert_eq!((stage.registry.total(shop, LINKS), count(&stage)), (1, 1));
    // A limit that is raised counts at once.
    stage.install(|plan| Rc::make_mut(&mut plan.tenants[0]).private_links_max = 2);
    stage.says(other, "GET k\r\n");
    let another = up(&mut stage);
    assert_eq!(stage.turn(another), resp("GET k"));
    stage.says(another, "$-1\r\n");
    assert_eq!((stage.received(other).as_str(), stage.registry.total(shop, LINKS)), ("$-1\r\n", 2));
    // Links go to another tenant with their clients, and are taken back with them.
    stage.install(|plan| plan.pools[0].tenant = Some(1));
    assert_eq!((stage.registry.total(shop, LINKS), stage.registry.total(rest, LINKS)), (0, 2));
    stage.install(|plan| {
        plan.tenants.clear();
        plan.pools[0].tenant = None;
    });
    stage.install(|plan| {
        let mut shop = TenantPlan::new("shop");
        (shop.private_links_max, shop.id) = (1, 3);
        plan.tenants = vec![Rc::new(shop)];
        plan.pools[0].tenant = Some(0);
    });
    assert_eq!(stage.registry.total(shop, LINKS), 2, "a lower limit closes none");
    stage.closes(one, Closed::Eof);
    stage.closes(other, Closed::Eof);
    stage.end_turn();
    assert_eq!((stage.registry.total(shop, LINKS), count(&stage)), (0, 0));
}

/// Behind a balancer, the number may be that of a stranger at another server.
#[test]
fn an_unblocking_does_not_move_with_what_waits_on_a_link_that_ends() {
    let welcome = "*4\r\n$5\r\nproto\r\n:2\r\n$2\r\nid\r\n:77\r\n";
    let (mut stage, link, [one, other]) = shared(|_| {});
    stage.says(other, "INCR n\r\n");
    stage.turn(link);
    stage.says(link, ":1\r\n");
    stage.says(one, "BLPOP k 0\r\n");
    stage.end_turn();
    let own = stage.establishes_with(HELLO);
    stage.says(own, welcome);
    stage.turn(own);
    assert!(stage.unblock(one, false));
    stage.says(other, "INCR n\r\n");
    stage.closes(link, Closed::Eof);
    let another = up(&mut stage);
    assert_eq!(stage.turn(another), resp("INCR n"));
}

#[test]
fn a_client_is_unblocked_by_its_server_on_another_link() {
    let welcome = "*4\r\n$5\r\nproto\r\n:2\r\n$2\r\nid\r\n:77\r\n";
    let (mut stage, link, [one, other]) = shared(|_| {});
    assert!(!stage.unblock(one, false), "it waits for nothing");
    stage.says(one, "BLPOP k 0\r\n");
    stage.end_turn();
    let own = stage.establishes_with(HELLO);
    assert!(!stage.unblock(one, false), "its wait is not at the server yet");
    stage.says(own, welcome);
    stage.turn(own);
    for (with_error, words) in [(false, "TIMEOUT"), (true, "ERROR")] {
        assert!(stage.unblock(one, with_error));
        assert_eq!(stage.turn(link), resp(&format!("CLIENT UNBLOCK 77 {words}")));
        stage.says(link, ":1\r\n");
    }
    assert_eq!(stage.received(one), "", "the server has the last word");
    stage.says(own, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    assert_eq!(stage.received(one), "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    assert!(!stage.unblock(one, false) && !stage.unblock(other, false));
    // A server may not know the number any more.
    stage.says(one, "BLPOP k 0\r\n");
    assert_eq!(stage.turn(own), resp("BLPOP k 0"));
    assert!(stage.unblock(one, false));
    stage.turn(link);
    stage.says(link, "-ERR no such client\r\n");
    stage.says(own, "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    assert_eq!(stage.received(one), "*2\r\n$1\r\nk\r\n$1\r\nv\r\n");
    // Nor give one.
    stage.says(other, "BLPOP k 0\r\n");
    let another = up(&mut stage);
    stage.turn(another);
    assert!(!stage.unblock(other, false));
}

#[test]
fn what_is_about_one_connections_writes_needs_links_of_its_clients() {
    let (mut stage, link, [one, _]) = shared(|_| {});
    stage.says(one, "WAIT 1 0\r\nWAITAOF 1 0 0\r\nMULTI\r\nWAIT 1 0\r\nEXEC\r\n");
    let told = stage.received(one);
    // The reply to EXEC repeats the first error.
    assert_eq!(told.matches("`links: private`").count(), 4, "{told}");
    assert!(told.contains("-EXECABORT "), "{told}");
    assert_eq!(stage.turn(link), "");
    let mut stage = pool(&["s0"], |plan| plan.pools[0].hold_after = Some(SECOND));
    let (one, other) = (stage.client(), stage.client());
    stage.says(one, "SET k 1\r\nWAIT 1 0\r\nGET k\r\n");
    let own = up(&mut stage);
    assert_eq!(stage.turn(own), resp("SET k 1") + &resp("WAIT 1 0"));
    stage.says(own, "+OK\r\n");
    stage.passes(3_600 * SECOND);
    stage.says(other, "GET k\r\n");
    let another = up(&mut stage);
    assert_eq!(stage.turn(another), resp("GET k"), "its server is not silent");
    stage.says(own, ":1\r\n");
    stage.end_turn();
    assert_eq!(stage.turn(own), resp("GET k"));
    assert_eq!(stage.received(one), "+OK\r\n:1\r\n");
    let mut stage = pool(&["s0", "s1"], |_| {});
    let one = stage.client();
    stage.says(one, "WAIT 1 0\r\n");
    assert!(stage.received(one).contains("only in a pool of one server"));
}

/// A relay may close at what one client asks, as often as it asks.
#[test]
fn a_request_that_ends_its_private_link_keeps_no_other_client_from_one() {
    let mut stage = pool(&["s0"], |plan| plan.pools[0].private = false);
    let [blames, other] = [stage.client(), stage.client()];
    stage.says(other, "GET k\r\n");
    let shared = up(&mut stage);
    assert_eq!(stage.turn(shared), resp("GET k"));
    stage.says(shared, "$-1\r\n");
    stage.received(other);
    for _ in 0..2 {
        stage.says(blames, "BLPOP k 0\r\n");
        let own = up(&mut stage);
        assert_eq!(stage.turn(own), resp("BLPOP k 0"));
        stage.closes(own, Closed::Eof);
        assert!(stage.received(blames).contains("connection lost, outcome unknown"));
        stage.says(blames, "BLPOP k 0\r\n");
        assert!(stage.received(blames).contains("(the last one was lost"), "it rests");
        assert_eq!(stage.connects, []);
        stage.says(other, "BLPOP l 0\r\n");
        let own = up(&mut stage);
        assert_eq!(stage.turn(own), resp("BLPOP l 0"));
        stage.says(own, "*2\r\n$1\r\nl\r\n$1\r\n1\r\n");
        assert_eq!(stage.received(other), "*2\r\n$1\r\nl\r\n$1\r\n1\r\n");
        // The link of the other ends nothing for the first.
        stage.says(blames, "BLPOP k 0\r\n");
        assert!(stage.received(blames).contains("(the last one was lost"), "it rests");
        stage.passes(SECOND / 10);
        stage.closes(own, Closed::Eof);
    }
}
