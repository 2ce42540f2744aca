//! Stories of tenants: who a client belongs to, what its requests may be, and how much it may have.

use std::rc::Rc;

use metrics::{Latency, TenantCounter};
use proxy::plan::Plan;
use proxy::tenants::plan::{Over, RemovedUsers, TenantPlan, TenantRules};
use proxy::users::Users;
use proxy::{Closed, ConnId};

use crate::stage::{SECOND, Stage};

const ANNA: &str = "set any 0 0 6\r\nanna x\r\n";
const BOB: &str = "set any 0 0 5\r\nbob x\r\n";
/// The ids of the tenants: after the pool and its server.
const SHOP: u32 = 3;
const REST: u32 = 4;

fn users(names: &[&str]) -> Option<Rc<Users>> {
    let pairs = names.iter().map(|name| (*name, "x"));
    Some(Rc::new(Users::new(pairs).expect("short ones")))
}

/// A pool of users, of which anna is the shop's and all others are the rest's.
fn two_tenants(set: impl FnOnce(&mut Plan)) -> Stage {
    Stage::of(&["s0"], |plan| {
        plan.pools[0].users = users(&["anna", "bob"]);
        plan.pools[0].tenant = Some(1);
        let mut shop = TenantPlan::new("shop");
        shop.users = vec!["anna".to_string()];
        plan.tenants = vec![Rc::new(shop), Rc::new(TenantPlan::new("rest"))];
        plan.number();
        set(plan);
    })
}

/// A pool without users that belongs to one tenant.
fn one_tenant(set: impl FnOnce(&mut TenantPlan)) -> (Stage, ConnId) {
    let mut stage = Stage::of(&["s0"], |plan| {
        let mut tenant = TenantPlan::new("shop");
        set(&mut tenant);
        plan.clients_max = 99;
        plan.tenants = vec![Rc::new(tenant)];
        plan.pools[0].tenant = Some(0);
        plan.pools[0].preconnect = true;
        plan.number();
    });
    let link = stage.connect(0);
    (stage, link)
}

fn change(plan: &mut Plan, at: usize, change: impl FnOnce(&mut TenantPlan)) {
    change(Rc::make_mut(&mut plan.tenants[at]));
}

fn now(stage: &Stage, tenant: u32) -> u64 {
    stage.registry.total(tenant, TenantCounter::ClientsNow)
}

fn total(stage: &Stage, counter: TenantCounter) -> u64 {
    stage.registry.total(SHOP, counter)
}

fn log_in(stage: &mut Stage, login: &str) -> ConnId {
    let client = stage.client();
    stage.says(client, login);
    assert_eq!(stage.received(client), "STORED\r\n");
    client
}

/// They are recorded at once, in the end.
#[test]
fn answers_of_one_turn_that_took_the_same_time_are_all_counted() {
    let (mut stage, link) = one_tenant(|_| ());
    let client = stage.client();
    stage.says(client, &"delete key\r\n".repeat(3));
    stage.turn(link);
    stage.passes(500);
    stage.says(link, &"DELETED\r\n".repeat(3));
    stage.end_turn();
    assert_eq!(stage.registry.histogram(SHOP, Latency::REQUESTS).count(), 3);
}

#[test]
fn a_client_is_its_pools_until_its_user_says_otherwise() {
    let mut stage = two_tenants(|_| {});
    let client = stage.client();
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (0, 1));
    stage.says(client, ANNA);
    assert_eq!(stage.received(client), "STORED\r\n");
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (1, 0));
    log_in(&mut stage, BOB);
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (1, 1));
    // Another worker knows whose it is.
    let passed = stage.passed();
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (0, 0));
    assert_eq!(passed.iter().filter(|one| one.user.as_deref() == Some("anna")).count(), 1);
    for one in passed {
        stage.adopt(one);
    }
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (1, 1));
    // It counts as a client of that tenant once, wherever it is.
    assert_eq!(total(&stage, TenantCounter::ClientsTotal), 1);
}

#[test]
fn a_plan_moves_users_and_pools_with_the_clients_that_are_connected() {
    let mut stage = two_tenants(|_| {});
    log_in(&mut stage, ANNA);
    log_in(&mut stage, BOB);
    stage.install(|plan| change(plan, 0, |shop| shop.users = vec!["bob".to_string()]));
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (1, 1));
    stage.install(|plan| plan.pools[0].tenant = None);
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (1, 0));
    stage.install(|plan| {
        plan.tenants.remove(0);
        plan.pools[0].tenant = Some(0);
    });
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (0, 2));
    stage.install(|plan| {
        plan.tenants.clear();
        plan.pools[0].tenant = None;
    });
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (0, 0));
}

#[test]
fn a_removed_user_is_closed_when_it_has_its_answers_or_stays() {
    for removed_users in [RemovedUsers::Close, RemovedUsers::Keep] {
        let mut stage = two_tenants(|plan| plan.removed_users = removed_users);
        let (gone, stays) = (log_in(&mut stage, ANNA), log_in(&mut stage, BOB));
        stage.says(gone, "get a\r\n");
        let link = stage.connect(0);
        assert_eq!(stage.turn(link), "get a\r\n");
        stage.install(|plan| plan.pools[0].users = users(&["bob"]));
        assert_eq!(stage.closed, []);
        stage.says(gone, "get b\r\n");
        stage.says(link, "END\r\n");
        assert_eq!(stage.received(gone), "END\r\n");
        let is_closed = removed_users == RemovedUsers::Close;
        assert_eq!(stage.closed, if is_closed { vec![gone] } else { vec![] });
        assert_eq!(stage.turn(link), if is_closed { "" } else { "get b\r\n" });
        stage.says(stays, "version\r\n");
        assert!(stage.received(stays).starts_with("VERSION"));
    }
}

#[test]
fn a_removed_user_that_another_worker_hands_over_is_closed_here() {
    let mut stage = two_tenants(|_| {});
    log_in(&mut stage, ANNA);
    let passed = stage.passed();
    stage.install(|plan| plan.pools[0].users = users(&["bob"]));
    let adopted = stage.adopt(passed[0].clone());
    stage.end_turn();
    assert_eq!(stage.closed, [adopted]);
}

#[test]
fn one_client_too_many_is_refused_with_the_tenant_and_its_limit() {
    let mut stage = two_tenants(|plan| change(plan, 0, |shop| shop.clients_max = 1));
    log_in(&mut stage, ANNA);
    let second = stage.client();
    stage.says(second, ANNA);
    let told = "SERVER_ERROR tenant 'shop' has its limit of 1 client\r\n";
    assert_eq!(stage.received(second), told);
    stage.says(second, "get a\r\n");
    assert_eq!(stage.received(second), "CLIENT_ERROR unauthenticated\r\n");
    stage.says(second, BOB);
    assert_eq!(stage.received(second), "STORED\r\n");
    assert_eq!((now(&stage, SHOP), now(&stage, REST)), (1, 1));
    // A pool's tenant refuses them where they come.
    stage.install(|plan| change(plan, 1, |rest| rest.clients_max = 1));
    let told = "SERVER_ERROR tenant 'rest' has its limit of 1 client\r\n";
    assert_eq!(stage.accept().map_err(|told| String::from_utf8(told).unwrap()), Err(told.into()));
    stage.install(|plan| change(plan, 1, |rest| rest.clients_max = 2));
    assert!(stage.accept().is_ok());
    assert_eq!(total(&stage, TenantCounter::ClientsRefused), 1);
}

/// Libraries compare these words. The login is right: it does not count as a mistake.
#[test]
fn one_login_too_many_reads_what_redis_says_when_it_is_full() {
    let mut stage = two_tenants(|plan| {
        plan.pools[0].protocol = proto::protocol("redis").expect("the table has it");
        change(plan, 0, |shop| shop.clients_max = 1);
    });
    let [first, second] = [stage.client(), stage.client()];
    stage.says(first, "AUTH anna x\r\n");
    assert_eq!(stage.received(first), "+OK\r\n");
    for _ in 0..3 {
        stage.says(second, "AUTH anna x\r\n");
        assert_eq!(stage.received(second), "-ERR max number of clients reached\r\n");
    }
    stage.closes(first, Closed::Reset);
    stage.says(second, "AUTH anna x\r\n");
    assert_eq!(stage.received(second), "+OK\r\n");
}

#[test]
fn what_a_rule_forbids_reaches_no_server_and_what_is_beside_it_does() {
    let rules = TenantRules::new(Vec::new(), (vec![], vec!["delete".into()]), b"a:".to_vec());
    let (mut stage, link) = one_tenant(|shop| shop.rules = Some(rules));
    let client = stage.client();
    let text = "get a:1\r\nget b:1\r\nset b:1 0 0 5\r\nget x\r\ndelete a:1\r\nflush_all\r\n\
                set b:2 0 0 1 noreply\r\nx\r\nget a:2 b:2\r\nmg Yjox b v\r\nget a:3\r\n";
    stage.says(client, text);
    assert_eq!(stage.turn(link), "get a:1 a:3\r\n");
    stage.says(link, "END\r\n");
    let key = "CLIENT_ERROR tenant 'shop' may only access keys that begin with its key prefix\r\n";
    let expected = [
        "END\r\n",
        key,
        key,
        "CLIENT_ERROR tenant 'shop' may not run the 'delete' command\r\n",
        "CLIENT_ERROR tenant 'shop' may not run 'flush_all' like this: not all keys that it \
         reaches are known to begin with its key prefix\r\n",
        key,
        key,
        "END\r\n",
    ];
    assert_eq!(stage.received(client), expected.concat());
    assert_eq!(total(&stage, TenantCounter::Denied), 7);
}

/// A quiet read that is refused without an error would look like a miss.
#[test]
fn quiet_reads_that_come_together_are_refused_one_by_one() {
    let rules = TenantRules::new(Vec::new(), Default::default(), b"a:".to_vec());
    let (mut stage, link) = one_tenant(|shop| shop.rules = Some(rules));
    let client = stage.client();
    let get = |key: &[u8; 3]| {
        let mut packet = [0; 24].to_vec();
        (packet[0], packet[1], packet[3], packet[11]) = (0x80, 0x09, 3, 3);
        packet.extend_from_slice(key);
        packet
    };
    let noop = [&[0x80, 0x0a][..], &[0; 22]].concat();
    let text = [get(b"a:1"), get(b"b:1"), get(b"a:2"), get(b"b:2"), noop].concat();
    stage.says_bytes(client, &text);
    assert_eq!(stage.turn(link), "gets a:1 a:2\r\n");
    stage.says(link, "END\r\n");
    let said = stage.received_bytes(client);
    let told = String::from_utf8_lossy(&said).matches("may only access keys").count();
    assert_eq!(told, 2);
}

#[test]
fn a_value_that_is_too_large_removes_no_key_of_others() {
    let rules = TenantRules::new(Vec::new(), Default::default(), b"a:".to_vec());
    let (mut stage, link) = one_tenant(|shop| shop.rules = Some(rules));
    let client = stage.client();
    stage.says(client, "set b:1 0 0 2000000\r\n");
    assert_eq!(stage.turn(link), "");
    assert!(stage.received(client).starts_with("CLIENT_ERROR tenant"));
}

/// Asks for a key again and again for so long, as soon as it is answered; returns how often it was.
fn ask_for(stage: &mut Stage, link: ConnId, clients: &[ConnId], time: u64) -> usize {
    let mut answered = 0;
    clients.iter().for_each(|client| stage.says(*client, "get a\r\n"));
    for _ in 0..time / 500 {
        for _ in 0..50 {
            let asked = stage.turn(link);
            if asked.is_empty() {
                break;
            }
            stage.says(link, "END\r\n");
            for client in clients {
                if !stage.received(*client).is_empty() {
                    answered += 1;
                    stage.says(*client, "get a\r\n");
                }
            }
        }
        stage.passes(500);
    }
    answered
}

#[test]
fn a_rate_of_requests_is_held_within_five_percent_and_changes_at_once() {
    let (mut stage, link) = one_tenant(|shop| shop.rates[0] = 1_000);
    let clients: Vec<ConnId> = (0..5).map(|_| stage.client()).collect();
    let answered = ask_for(&mut stage, link, &clients, SECOND);
    assert!((950..=1_050).contains(&answered), "{answered}");
    assert!(total(&stage, TenantCounter::Delayed) > 900);
    assert!(stage.registry.histogram(SHOP, Latency::QUEUE).count() > 900);
    stage.install(|plan| change(plan, 0, |shop| shop.rates[0] = 4_000));
    let answered = ask_for(&mut stage, link, &clients, SECOND);
    assert!((3_800..=4_200).contains(&answered), "{answered}");
    stage.install(|plan| change(plan, 0, |shop| shop.rates[0] = u64::MAX));
    let answered = ask_for(&mut stage, link, &clients, SECOND / 10);
    assert!(answered > 5_000, "{answered}");
}

#[test]
fn clients_that_wait_are_served_in_turn_however_much_one_of_them_asks() {
    let (mut stage, link) = one_tenant(|shop| shop.rates[0] = 1_000);
    let (greedy, modest) = (stage.client(), stage.client());
    stage.says(greedy, &"get a\r\n".repeat(2_000));
    stage.says(modest, "get m\r\n");
    let mut waited = 0;
    loop {
        let asked = stage.turn(link);
        if !asked.is_empty() {
            stage.says(link, "END\r\n");
        }
        if asked.contains(" m") {
            break;
        }
        stage.received(greedy);
        stage.passes(500);
        waited += 500;
        assert!(waited < 20_000, "it waits for {waited} us");
    }
}

/// Each of 12 clients asks again when it is answered; there is one request for them in 50 ms.
#[test]
fn no_client_of_a_tenant_that_is_over_its_rate_waits_longer_than_its_turn() {
    let (mut stage, link) = one_tenant(|shop| shop.rates[0] = 20);
    let clients: Vec<ConnId> = (0..12).map(|_| stage.client()).collect();
    let mut counts = vec![0; clients.len()];
    clients.iter().for_each(|client| stage.says(*client, "get a\r\n"));
    for _ in 0..6 * SECOND / 500 {
        while !stage.turn(link).is_empty() {
            stage.says(link, "END\r\n");
            for (client, count) in clients.iter().zip(&mut counts) {
                if !stage.received(*client).is_empty() {
                    *count += 1;
                    stage.says(*client, "get a\r\n");
                }
            }
        }
        stage.passes(500);
    }
    assert!(counts.iter().all(|count| (9..=11).contains(count)), "{counts:?}");
}

#[test]
fn what_a_removed_user_has_sent_and_waits_for_a_limit_is_not_done() {
    let mut stage = two_tenants(|plan| change(plan, 0, |shop| shop.rates[0] = 1));
    let gone = log_in(&mut stage, ANNA);
    stage.passes(2 * SECOND);
    stage.says(gone, &"get a\r\n".repeat(9));
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "get a\r\n");
    stage.install(|plan| plan.pools[0].users = users(&["bob"]));
    stage.says(link, "END\r\n");
    assert_eq!(stage.received(gone), "END\r\n");
    assert_eq!(stage.closed, [gone], "and not when the others have had their turns");
    stage.passes(9 * SECOND);
    assert_eq!(stage.turn(link), "");
}

#[test]
fn a_large_answer_is_paid_for_by_the_time_that_passes_without_requests() {
    let (mut stage, link) = one_tenant(|shop| shop.rates[2] = 1_000_000);
    let client = stage.client();
    let ask = |stage: &mut Stage, len: usize| {
        stage.says(client, "get a\r\n");
        for waited in 0.. {
            if !stage.turn(link).is_empty() {
                let value = "x".repeat(len);
                stage.says(link, &format!("VALUE a 0 {len}\r\n{value}\r\nEND\r\n"));
                stage.received(client);
                return waited;
            }
            assert!(waited < 1_000, "it is read in a second");
            stage.passes(1_000);
        }
        unreachable!()
    };
    ask(&mut stage, 900_000);
    stage.passes(2 * SECOND);
    let waited: Vec<u64> = (0..3).map(|_| ask(&mut stage, 600)).collect();
    assert!(waited.iter().all(|ms| *ms < 20), "{waited:?}");
}

#[test]
fn what_is_refused_is_not_in_flight() {
    let (mut stage, link) =
        one_tenant(|shop| (shop.inflight_max, shop.over) = (2_000, Over::Refuse));
    let a = stage.client();
    stage.says(a, "get a\r\n");
    assert_eq!(stage.turn(link), "get a\r\n");
    let before = total(&stage, TenantCounter::InflightBytesNow);
    stage.says(a, &format!("set b 0 0 5000\r\n{}\r\n", "x".repeat(5_000)));
    assert_eq!(total(&stage, TenantCounter::InflightBytesNow), before);
    stage.says(link, "END\r\n");
    assert!(stage.received(a).starts_with("END\r\nSERVER_ERROR tenant 'shop'"));
}

#[test]
fn a_request_above_a_rate_is_refused_by_name_where_that_is_wanted() {
    let (mut stage, link) = one_tenant(|shop| (shop.rates[0], shop.over) = (10, Over::Refuse));
    let client = stage.client();
    stage.says(client, &"get a\r\n".repeat(3));
    assert_eq!(stage.turn(link), "get a\r\n");
    stage.says(link, "END\r\n");
    let told = "SERVER_ERROR tenant 'shop' is over its limit of 10 requests a second\r\n";
    assert_eq!(stage.received(client), format!("END\r\n{told}{told}"));
    stage.passes(SECOND / 10);
    stage.says(client, "get b\r\n");
    assert_eq!(stage.turn(link), "get b\r\n");
}

#[test]
fn bytes_of_requests_and_of_answers_have_rates() {
    for (at, size) in [(1, 500), (2, 4_000)] {
        let (mut stage, link) = one_tenant(|shop| shop.rates[at] = 1_000_000);
        let client = stage.client();
        let (text, reply) = match at {
            1 => {
                (format!("set a 0 0 {size}\r\n{}\r\n", "x".repeat(size)), "STORED\r\n".to_string())
            }
            _ => ("get a\r\n".to_string(), {
                format!("VALUE a 0 {size}\r\n{}\r\nEND\r\n", "x".repeat(size))
            }),
        };
        let (mut count, each) = (0, if at == 1 { text.len() } else { reply.len() });
        stage.says(client, &text);
        for _ in 0..2_000 {
            for _ in 0..20 {
                if stage.turn(link).is_empty() {
                    break;
                }
                stage.says(link, &reply);
                if !stage.received(client).is_empty() {
                    count += 1;
                    stage.says(client, &text);
                }
            }
            stage.passes(500);
        }
        let bytes = count * each;
        assert!((950_000..=1_050_000).contains(&bytes), "rate {at}: {bytes}");
    }
}

#[test]
fn a_client_that_is_cut_off_leaves_nothing_that_is_expected_for_it() {
    let (mut stage, link) = one_tenant(|shop| shop.rates[2] = 1_000_000);
    stage.install(|plan| plan.limits.stream_min = 10);
    stage.handshake(link);
    let (a, b) = (stage.client(), stage.client());
    stage.says(a, "get x\r\nget y\r\n");
    stage.turn(link);
    stage.says(link, "VALUE x 0 12\r\nabcde");
    stage.received(a);
    stage.closes(link, proxy::Closed::Reset);
    // Its expected answers would keep others of the tenant from being read, for ever. What is kept
    // of each tenant is compared with its clients' after each step.
    stage.says(b, "get z\r\n");
}

#[test]
fn so_many_bytes_are_in_flight_and_no_more() {
    let (mut stage, link) = one_tenant(|shop| shop.inflight_max = 3_200);
    let client = stage.client();
    // Each is expected to have 1 KiB in answer.
    stage.says(client, &"get a\r\nset b 0 0 1\r\nx\r\n".repeat(4));
    let asked = stage.turn(link);
    assert_eq!(asked.matches('\n').count(), 4, "{asked}");
    let inflight = |stage: &Stage| total(stage, TenantCounter::InflightBytesNow);
    assert!(inflight(&stage) <= 3_200 && inflight(&stage) > 0, "{}", inflight(&stage));
    for _ in 0..8 {
        stage.says(link, "END\r\n");
        stage.says(link, "STORED\r\n");
        stage.received(client);
        stage.passes(0);
        stage.end_turn();
        stage.turn(link);
        if inflight(&stage) == 0 {
            break;
        }
    }
    assert_eq!(inflight(&stage), 0, "all is given back");
    // One that is larger than the limit goes alone.
    stage.says(client, &format!("set b 0 0 5000\r\n{}\r\n", "x".repeat(5_000)));
    assert!(stage.turn(link).starts_with("set b"));
}

#[test]
fn what_is_read_again_is_charged_once() {
    let mut stage = Stage::of(&["s0"], |plan| {
        let mut tenant = TenantPlan::new("shop");
        tenant.rates[0] = 1_000;
        plan.tenants = vec![Rc::new(tenant)];
        plan.pools[0].tenant = Some(0);
        plan.number();
    });
    let client = stage.client();
    // What the server can do is not known, so the request is read again when it is.
    stage.says(client, "mg a v N30\r\n");
    let link = stage.connect(0);
    assert_eq!(stage.turn(link), "mg a v N30\r\n");
    assert_eq!(total(&stage, TenantCounter::Requests), 1);
}

#[test]
fn those_that_wait_when_a_tenant_begins_to_refuse_are_answered_and_hold_up_nobody() {
    let (mut stage, link) = one_tenant(|shop| shop.rates[0] = 10);
    let (one, other) = (stage.client(), stage.client());
    stage.says(one, &"get a\r\n".repeat(3));
    assert_eq!(stage.turn(link), "get a\r\n");
    stage.says(link, "END\r\n");
    stage.received(one);
    stage.install(|plan| change(plan, 0, |shop| shop.over = Over::Refuse));
    for client in [other, one] {
        stage.passes(SECOND);
        while !stage.turn(link).is_empty() {
            stage.says(link, "END\r\n");
        }
        stage.received(one);
        stage.passes(SECOND);
        stage.says(client, "get b\r\n");
        assert_eq!(stage.turn(link), "get b\r\n", "it is below the rate again");
        stage.says(link, "END\r\n");
        assert_eq!(stage.received(client), "END\r\n");
    }
}

#[test]
fn one_that_waited_as_its_tenant_was_removed_holds_up_nobody_when_it_is_back() {
    let (mut stage, link) = one_tenant(|shop| shop.rates[0] = 10);
    let (one, other) = (stage.client(), stage.client());
    stage.says(one, &"get a\r\n".repeat(2));
    assert_eq!(stage.turn(link), "get a\r\n");
    stage.says(link, "END\r\n");
    stage.install(|plan| plan.pools[0].tenant = None);
    assert_eq!(stage.turn(link), "get a\r\n", "it has no tenant");
    stage.says(link, "END\r\n");
    stage.install(|plan| plan.pools[0].tenant = Some(0));
    stage.passes(SECOND);
    stage.says(other, "get b\r\n");
    assert_eq!(stage.turn(link), "get b\r\n", "at once");
    assert_eq!(stage.registry.histogram(SHOP, Latency::QUEUE).count(), 0);
}

#[test]
fn all_answers_to_a_read_of_many_keys_are_in_flight() {
    let (mut stage, link) = one_tenant(|shop| shop.inflight_max = 1 << 20);
    let client = stage.client();
    let keys: String = (0..100).map(|key| format!(" k{key}")).collect();
    stage.says(client, &format!("get{keys}\r\n"));
    // Each is expected to have 1 KiB.
    let inflight = |stage: &Stage| total(stage, TenantCounter::InflightBytesNow);
    assert!((100 << 10..101 << 10).contains(&inflight(&stage)), "{}", inflight(&stage));
    while !stage.turn(link).is_empty() {
        stage.says(link, "END\r\n");
    }
    assert_eq!(stage.received(client), "END\r\n");
    assert_eq!(inflight(&stage), 0, "and all is given back");
}

#[test]
fn a_request_is_in_flight_while_its_body_arrives() {
    let (mut stage, link) = one_tenant(|shop| shop.inflight_max = 10_000);
    let clients: Vec<ConnId> = (0..5).map(|_| stage.client()).collect();
    let (head, rest) = ("set a 0 0 6000\r\nx", "x".repeat(5_999) + "\r\n");
    clients.iter().for_each(|client| stage.says(*client, head));
    let inflight = |stage: &Stage| total(stage, TenantCounter::InflightBytesNow);
    assert!((6_000..10_000).contains(&inflight(&stage)), "one of them: {}", inflight(&stage));
    clients.iter().for_each(|client| stage.says(*client, &rest));
    let asked = stage.turn(link);
    assert_eq!(asked.matches("set a").count(), 1, "the others wait for it");
    // One that leaves in the middle of its request gives back what it has.
    stage.says(link, "STORED\r\n");
    stage.passes(10_000);
    for client in clients {
        stage.closes(client, proxy::Closed::Reset);
        stage.end_turn();
    }
    stage.passes(SECOND);
    while !stage.turn(link).is_empty() {
        stage.says(link, "STORED\r\n");
    }
    assert_eq!(inflight(&stage), 0);
}

/// A pool of Redis that belongs to one tenant, and its link.
fn redis(set: impl FnOnce(&mut TenantPlan)) -> (Stage, ConnId) {
    let (mut stage, _) = one_tenant(|_| {});
    stage.install(|plan| {
        let mut pool = plan.pools[0].clone();
        pool.protocol = proto::protocol("redis").expect("the table has it");
        pool.id = 9;
        plan.pools = vec![pool];
        change(plan, 0, set);
    });
    let link = stage.establishes_with("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
    stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
    (stage, link)
}

#[test]
fn a_request_that_is_too_large_counts_with_all_its_bytes() {
    let (mut stage, _) = redis(|shop| shop.rates[1] = 1_000_000);
    stage.install(|plan| plan.pools[0].item_size_max = 10_000);
    let client = stage.accept_at(9).expect("there is room");
    let value = "x".repeat(50_000);
    let words = ["SET", "k", &value, "EX", "100"];
    let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let text = format!("*5\r\n{}", words.concat());
    for part in text.as_bytes().chunks(9_000) {
        stage.says_bytes(client, part);
    }
    assert!(stage.received(client).starts_with('-'));
    assert_eq!(total(&stage, TenantCounter::Requests), 1);
    assert_eq!(total(&stage, TenantCounter::ReceivedBytes), text.len() as u64);
}

/// Requests that are answered before they come to a server count as all others do.
#[test]
fn no_request_within_a_transaction_or_of_a_subscriber_is_free() {
    let subscribed = "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    for (first, then) in [
        ("MULTI\r\n", "MULTI\r\n"),
        ("MULTI\r\n", "DISCARD\r\nMULTI\r\n"),
        ("SUBSCRIBE c\r\n", "PING\r\n"),
        ("SUBSCRIBE c\r\n", "GET k\r\n"),
        // What waits for the end of a subscription was not charged before.
        ("SUBSCRIBE c\r\n", "SUBSCRIBE c\r\nPING\r\n"),
    ] {
        let (mut stage, _) = redis(|shop| (shop.rates[0], shop.over) = (1_000, Over::Refuse));
        let client = stage.accept_at(9).expect("there is room");
        stage.says(client, first);
        if first.starts_with("SUB") {
            stage.end_turn();
            let link = stage.establishes_with("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
            stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
            stage.turn(link);
            stage.says(link, subscribed);
            assert_eq!(stage.received(client), subscribed);
        }
        for _ in 0..100 {
            stage.passes(1_000);
            stage.says(client, &then.repeat(20));
            for _ in 0..20 {
                stage.end_turn();
                stage.received(client);
            }
        }
        let counted = total(&stage, TenantCounter::Requests) as usize;
        assert!(counted <= 130, "{then:?}: {counted} requests in 0.1 s");
        assert!(total(&stage, TenantCounter::Over) > 1_000, "{then:?} is above the limit");
    }
}

#[test]
fn what_a_transaction_has_queued_is_in_flight_from_its_end_on() {
    let (mut stage, link) = redis(|shop| (shop.inflight_max, shop.over) = (10_000, Over::Refuse));
    let (one, other) = (stage.accept_at(9).unwrap(), stage.accept_at(9).unwrap());
    stage.says(one, "GET k\r\n");
    stage.turn(link);
    let value = "x".repeat(20_000);
    stage.says(
        other,
        &format!("MULTI\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000\r\n{}\r\n", &value[..5_000]),
    );
    stage.says(other, &format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000\r\n{}\r\n", &value[..5_000]));
    assert_eq!(stage.received(other), "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    stage.says(other, "EXEC\r\n");
    let told = "-ERR tenant 'shop' is over its limit of 10000 bytes in flight\r\n";
    assert_eq!(stage.received(other), told);
}

#[test]
fn a_subscriber_is_closed_when_a_plan_forbids_what_it_listens_to() {
    let (mut stage, _) = redis(|_| {});
    let heard = |topic: &str| format!("*3\r\n$9\r\nsubscribe\r\n$3\r\n{topic}\r\n:1\r\n");
    let clients = ["a:c", "b:c"].map(|topic| {
        let client = stage.accept_at(9).expect("there is room");
        stage.says(client, &format!("SUBSCRIBE {topic}\r\n"));
        client
    });
    stage.end_turn();
    let link = stage.establishes_with("*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
    stage.says(link, "*2\r\n$5\r\nproto\r\n:2\r\n");
    stage.turn(link);
    stage.says(link, &(heard("a:c") + &heard("b:c")));
    for (client, topic) in clients.into_iter().zip(["a:c", "b:c"]) {
        assert_eq!(stage.received(client), heard(topic));
    }
    let rules = TenantRules::new(Vec::new(), Default::default(), b"a:".to_vec());
    stage.install(|plan| change(plan, 0, |shop| shop.rules = Some(rules)));
    assert_eq!(stage.closed.last(), Some(&clients[1]));
    assert!(!stage.closed.contains(&clients[0]));
    stage.end_turn();
    assert_eq!(stage.turn(link), "*2\r\n$11\r\nUNSUBSCRIBE\r\n$3\r\nb:c\r\n");
}
