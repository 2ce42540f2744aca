//! Links of a client's own before real servers.

use testkit::process::{Family, Quickack, Redis, Speaker, wait_until};
use testkit::wire::resp::Reply;

use super::super::harness::{replace_worker, stats, wait_for_workers};
use super::{QUICKACK, addresses, config, servers};

fn start(servers: &[Redis], more: &[&str], workers: usize, most: usize) -> Quickack {
    let text = config(&addresses(servers), more);
    let global = format!("global:\n  workers: {workers}\n  private_connections_max: {most}\n");
    Quickack::start(QUICKACK, &format!("{text}{global}"))
}

/// Returns how many connections a server has, beside the one that asks.
fn connections(server: &Redis) -> usize {
    let Some(list) = Speaker::connect(server.address).say("CLIENT LIST").bytes().map(Vec::from)
    else {
        return 0;
    };
    String::from_utf8_lossy(&list).lines().count() - 1
}

#[test]
fn each_client_has_connections_of_its_own_before_redis() {
    let backs = servers(Family::Redis70, 2);
    let quickack = start(&backs, &["timeout: 20s", "links: private"], 2, 1_000);
    let mut clients: Vec<Speaker> = (0..20).map(|_| Speaker::connect(quickack.address())).collect();
    for (nth, client) in clients.iter_mut().enumerate() {
        for n in 0..20 {
            assert_eq!(client.say(&format!("SET key{n} {nth}")), Reply::Simple("OK".into()));
        }
        assert_eq!(client.say("MULTI"), Reply::Simple("OK".into()));
        client.say("INCR n");
        assert_eq!(client.say("EXEC"), Reply::Array(vec![Reply::Integer(nth as i64 + 1)]));
    }
    for server in &backs {
        assert!(connections(server) >= 20, "{}", connections(server));
    }
    drop(clients);
    wait_until("they are closed", || backs.iter().all(|server| connections(server) < 20));
}

#[test]
fn no_more_than_the_bound_before_redis_with_two_workers() {
    let backs = servers(Family::Redis70, 1);
    let quickack = start(&backs, &["timeout: 20s", "links: private"], 2, 5);
    let mut clients: Vec<Speaker> = (0..9).map(|_| Speaker::connect(quickack.address())).collect();
    let told: Vec<Reply> = clients.iter_mut().map(|client| client.say("SET k 1")).collect();
    let refused = |reply: &&Reply| reply.error().contains("`private_connections_max`");
    assert_eq!(told.iter().filter(refused).count(), 4, "{told:?}");
    let at = told.iter().position(|reply| !refused(&reply)).expect("five are served");
    let late = told.iter().position(|reply| refused(&reply)).expect("four are not");
    drop(clients.remove(at));
    let late = if late > at { late - 1 } else { late };
    wait_until("there is room", || clients[late].say("SET k 2") == Reply::Simple("OK".into()));
}

#[test]
fn a_tenants_private_links_are_bounded_over_all_workers_and_their_deaths() {
    let backs = servers(Family::Redis70, 1);
    let text = config(&addresses(&backs), &["timeout: 20s", "links: private"]);
    let tenants = "tenants: {shop: {pools: [alpha], private_links_max: 4}}";
    let global = format!("global:\n  workers: 2\n  {tenants}\n");
    let quickack = Quickack::start(QUICKACK, &format!("{text}{global}"));
    wait_for_workers(&quickack, 2);
    let mut clients: Vec<Speaker> = (0..7).map(|_| Speaker::connect(quickack.address())).collect();
    let told: Vec<Reply> = clients.iter_mut().map(|client| client.say("SET k 1")).collect();
    let words = "tenant 'shop' has its limit of 4 private links, not sent";
    let refused = |reply: &&Reply| reply.error().ends_with(words);
    assert_eq!(told.iter().filter(refused).count(), 3, "{told:?}");
    let links = || stats(&quickack)["tenants"][0]["private_links"].as_u64();
    assert_eq!(links(), Some(4));
    quickack.ask("set tenants.shop.private_links_max=5");
    let late: Vec<usize> = (0..7).filter(|at| refused(&&told[*at])).collect();
    assert_eq!(clients[late[0]].say("SET k 2"), Reply::Simple("OK".into()));
    assert!(clients[late[1]].say("SET k 2").error().contains("its limit of 5"));
    // What a worker had counted ends with it.
    for worker in quickack.workers().into_values() {
        replace_worker(&quickack, worker, 2);
    }
    assert_eq!(links(), Some(0));
    let mut clients: Vec<Speaker> = (0..5).map(|_| Speaker::connect(quickack.address())).collect();
    for client in &mut clients {
        assert_eq!(client.say("SET k 3"), Reply::Simple("OK".into()));
    }
}

#[test]
fn what_a_connection_has_written_is_waited_for_before_redis() {
    let backs = servers(Family::Redis70, 1);
    let quickack = start(&backs, &["timeout: 20s", "links: private"], 1, 100);
    let mut client = Speaker::connect(quickack.address());
    assert_eq!(client.say("SET k 1"), Reply::Simple("OK".into()));
    assert_eq!(client.say("WAIT 0 0"), Reply::Integer(0));
    assert_eq!(client.say("WAIT 1 100"), Reply::Integer(0), "it has no replica");
    let shared = start(&backs, &["timeout: 20s"], 1, 100);
    let refused = Speaker::connect(shared.address()).say("WAIT 0 0");
    assert!(refused.error().contains("`links: private`"), "{refused:?}");
}
