//! What clients ask about clients: who may, what all workers are asked, and pauses.

use std::rc::Rc;

use proto::{ClientFilter, Inquiry, Told, protocol};
use proxy::plan::Plan;
use proxy::tenants::plan::TenantPlan;
use proxy::{Asking, Closed, ConnId};

use crate::stage::{SECOND, Stage};

const HELLO: &str = "*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n";
const WELCOME: &str = "*2\r\n$5\r\nproto\r\n:2\r\n";
const ALLOWED: &[&str] = &["client|list", "client|kill", "client|pause", "client|unpause"];

fn pool(set: impl FnOnce(&mut Plan)) -> Stage {
    Stage::of(&["s0"], |plan| {
        plan.pools[0].protocol = protocol("redis").expect("the table has it");
        plan.pools[0].allow = ALLOWED.iter().map(ToString::to_string).collect();
        set(plan);
    })
}

/// A pool of the tenant `shop` that allows nothing.
fn pool_of_a_tenant() -> Stage {
    pool(|plan| {
        plan.pools[0].allow.clear();
        plan.tenants = vec![Rc::new(TenantPlan::new("shop"))];
        plan.pools[0].tenant = Some(0);
        plan.number();
    })
}

fn resp(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}

/// Returns the last thing that was asked of all workers.
#[track_caller]
fn asked(stage: &mut Stage) -> (ConnId, Asking) {
    let asked = stage.asked.pop().expect("something was asked");
    assert!(stage.asked.is_empty(), "one thing");
    asked
}

fn lines(text: &str) -> Result<Told, String> {
    Ok(Told { lines: text.into(), ..Told::default() })
}

#[test]
fn who_has_no_tenant_needs_the_pools_permission() {
    let mut stage = pool(|plan| plan.pools[0].allow.clear());
    let client = stage.client();
    for command in ["LIST", "KILL ID 1", "PAUSE 5", "UNPAUSE"] {
        stage.says(client, &format!("CLIENT {command}\r\n"));
        let told = stage.received(client);
        assert!(told.starts_with("-ERR 'client|") || told.starts_with("-ERR 'client "), "{told}");
        assert!(told.contains("`allow: [client|"), "{told}");
    }
    assert!(stage.asked.is_empty());
    let mut stage = pool_of_a_tenant();
    let client = stage.client();
    stage.says(client, "CLIENT LIST\r\n");
    let (from, asking) = asked(&mut stage);
    assert_eq!((from, asking.tenant.as_deref()), (client, Some("shop")));
    assert_eq!(asking.inquiry, Inquiry::List(ClientFilter::default()));
}

#[test]
fn a_client_waits_for_all_workers_and_its_answers_keep_their_order() {
    let mut stage = pool(|_| {});
    let client = stage.client();
    stage.says(client, "PING\r\nCLIENT LIST TYPE normal\r\nECHO x\r\n");
    assert_eq!(stage.received(client), "+PONG\r\n");
    let (from, asking) = asked(&mut stage);
    assert_eq!((from, asking.pool.as_str(), asking.tenant), (client, "pool", None));
    stage.says(client, "PING\r\n");
    assert_eq!(stage.received(client), "", "it is not read meanwhile");
    stage.told(client, lines("id=1\n"));
    assert_eq!(stage.received(client), "$5\r\nid=1\n\r\n$1\r\nx\r\n+PONG\r\n");
    // The next question is another.
    stage.says(client, "CLIENT KILL ID 7\r\n");
    asked(&mut stage);
    stage.told(client, Err("worker 3 is missing".into()));
    assert_eq!(stage.received(client), "-ERR worker 3 is missing\r\n");
    // In RESP3 a list is a text.
    stage.says(client, "CLIENT KILL SKIPME no\r\n");
    asked(&mut stage);
    stage.told(client, Ok(Told { count: 4, ..Told::default() }));
    assert_eq!(stage.received(client), ":4\r\n");
    // One that leaves meanwhile harms nobody.
    stage.says(client, "CLIENT LIST\r\n");
    asked(&mut stage);
    stage.closes(client, Closed::Reset);
    stage.told(client, lines("id=1\n"));
    assert_eq!(stage.memory(), 0);
}

#[test]
fn what_is_wrong_is_asked_of_nobody() {
    let mut stage = pool(|_| {});
    let client = stage.client();
    for (command, told) in [
        ("LIST TYPE odd", "-ERR Unknown client type 'odd'\r\n"),
        ("KILL USER nobody", "-ERR No such user 'nobody'\r\n"),
        ("KILL ID 0", "-ERR client-id should be greater than 0\r\n"),
        ("PAUSE x", "-ERR timeout is not an integer or out of range\r\n"),
        ("PAUSE -1", "-ERR timeout is negative\r\n"),
        ("PAUSE 1 some", "-ERR CLIENT PAUSE mode must be WRITE or ALL\r\n"),
    ] {
        stage.says(client, &format!("CLIENT {command}\r\n"));
        if let Some((client, _)) = stage.asked.pop() {
            stage.told(client, Ok(Told::default()));
        }
        assert_eq!(stage.received(client), told, "{command}");
    }
    stage.says(client, "MULTI\r\nCLIENT KILL ID 5\r\nEXEC\r\n");
    let told = stage.received(client);
    assert!(told.contains("inside MULTI") && told.contains("-EXECABORT"), "{told}");
}

#[test]
fn a_client_that_kills_itself_has_its_answer_first() {
    let mut stage = pool(|_| {});
    let client = stage.client();
    stage.says(client, "CLIENT KILL 192.0.2.1:5\r\nPING\r\n");
    let (_, asking) = asked(&mut stage);
    let from = Some("192.0.2.1:5".to_string());
    assert_eq!(asking.inquiry, Inquiry::Kill(ClientFilter { from, ..ClientFilter::default() }));
    stage.told(client, Ok(Told { count: 1, is_own: true, ..Told::default() }));
    assert_eq!(stage.received(client), "+OK\r\n");
    stage.end_turn();
    assert!(stage.closed.contains(&client));
}

#[test]
fn a_pause_holds_what_it_names_until_its_time_or_its_end() {
    let mut stage = pool(|_| {});
    let (client, other) = (stage.client(), stage.client());
    stage.says(other, "GET k\r\n");
    stage.end_turn();
    let link = stage.establishes_with(HELLO);
    stage.says(link, WELCOME);
    assert_eq!(stage.turn(link), resp("GET k"));
    stage.says(client, "CLIENT PAUSE 1000 WRITE\r\n");
    assert_eq!(stage.received(client), "+OK\r\n");
    stage.says(other, "GET l\r\nSET k 1\r\nGET m\r\n");
    assert_eq!(stage.turn(link), resp("GET l"), "what changes nothing is served");
    stage.says(link, "$-1\r\n$-1\r\n");
    assert_eq!(stage.received(other), "$-1\r\n$-1\r\n");
    stage.passes(SECOND - 50_000);
    assert_eq!(stage.turn(link), "");
    stage.passes(100_000);
    assert_eq!(stage.turn(link), resp("SET k 1") + &resp("GET m"));
    stage.says(link, "+OK\r\n$-1\r\n");
    stage.received(other);
    // All requests, but for those about clients.
    stage.says(client, "CLIENT PAUSE 100000\r\nPING\r\n");
    assert_eq!(stage.received(client), "+OK\r\n");
    stage.says(other, "GET n\r\n");
    assert_eq!(stage.turn(link), "");
    let third = stage.client();
    stage.says(third, "CLIENT UNPAUSE\r\nPING\r\n");
    assert_eq!(stage.received(third), "+OK\r\n+PONG\r\n");
    stage.passes(20_000);
    assert_eq!(stage.turn(link), resp("GET n"));
    assert_eq!(stage.received(client), "+PONG\r\n");
}

#[test]
fn a_tenant_pauses_its_own_clients_alone() {
    let mut stage = pool(|plan| {
        let mut other = plan.pools[0].clone();
        other.name = "other".into();
        other.servers.clear();
        plan.pools.push(other);
        plan.pools[0].allow.clear();
        plan.tenants = vec![Rc::new(TenantPlan::new("shop"))];
        plan.pools[0].tenant = Some(0);
        plan.number();
    });
    let shop = stage.client();
    let other = stage.accept_at(3).expect("there is room");
    stage.says(shop, "CLIENT PAUSE 1000\r\nPING\r\n");
    assert_eq!(stage.received(shop), "+OK\r\n");
    stage.says(other, "PING\r\n");
    assert_eq!(stage.received(other), "+PONG\r\n");
    stage.passes(SECOND + 20_000);
    stage.end_turn();
    assert_eq!(stage.received(shop), "+PONG\r\n");
}

#[test]
fn a_monitor_is_shown_what_the_clients_of_its_pool_ask_and_nobody_pays_without_one() {
    let mut stage = pool(|plan| plan.pools[0].allow.push("monitor".into()));
    let (client, monitor) = (stage.client(), stage.client());
    stage.says(client, "PING\r\n");
    stage.says(monitor, "ECHO x\r\nMONITOR\r\n");
    assert_eq!(stage.received(monitor), "$1\r\nx\r\n+OK\r\n");
    stage.says(client, "ECHO a\r\nNOSUCH\r\nAUTH secret\r\nCLIENT LIST\r\n");
    stage.passes(10_000);
    let told = "+\"ECHO\" \"a\"\r\n+\"NOSUCH\"\r\n";
    assert_eq!(stage.received(monitor), told);
    // What is read again is shown once.
    asked(&mut stage);
    stage.told(client, lines("id=1\n"));
    stage.passes(10_000);
    assert_eq!(stage.received(monitor), "+\"CLIENT\" \"LIST\"\r\n");
    // It may ask, and stays where it is.
    stage.says(monitor, "PING\r\n");
    stage.passes(10_000);
    assert_eq!(stage.received(monitor), "+PONG\r\n+\"PING\"\r\n");
    stage.received(client);
    assert_eq!(stage.passed().len(), 1, "the other goes to another worker");
    stage.says(monitor, "RESET\r\n");
    stage.passes(10_000);
    assert_eq!(stage.received(monitor), "+RESET\r\n");
    stage.passes(2 * SECOND);
    assert!(!stage.registry.is_special(stage.next_timeout().map_or(u64::MAX, |at| at.0)));
}

#[test]
fn a_monitor_needs_permission_even_in_a_tenant_and_is_shown_its_tenants_requests_alone() {
    let mut stage = pool_of_a_tenant();
    let client = stage.client();
    stage.says(client, "MONITOR\r\n");
    assert!(stage.received(client).contains("`allow: [monitor]` in its pool permits it"));
    stage.install(|plan| plan.pools[0].allow.push("monitor".into()));
    stage.says(client, "MONITOR\r\n");
    assert_eq!(stage.received(client), "+OK\r\n");
    let (own, none) = ((1, 3), (1, 0));
    stage.registry.tap(0).push(own.0, own.1, b"mine");
    stage.registry.tap(0).push(none.0, none.1, b"another's");
    stage.passes(10_000);
    assert_eq!(stage.received(client), "+mine\r\n");
}

#[test]
fn a_monitor_that_does_not_read_or_cannot_be_shown_everything_is_closed() {
    for many in [1_000, 60_000] {
        let mut stage = pool(|plan| {
            plan.pools[0].allow.push("monitor".into());
            plan.limits.client_outbox = 64 << 10;
        });
        let monitor = stage.client();
        stage.says(monitor, "MONITOR\r\n");
        assert_eq!(stage.received(monitor), "+OK\r\n");
        for n in 0..many {
            stage.registry.tap(0).push(1, 0, &[b'x'; 500]);
            if many == 1_000 && n % 50 == 0 {
                stage.passes(5_000);
            }
        }
        stage.passes(10_000);
        assert!(stage.closed.contains(&monitor));
    }
}
