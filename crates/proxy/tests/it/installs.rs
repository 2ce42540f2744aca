//! Stories of plans with changes that must take effect at once.

use crate::stage::{S0, SECOND, Stage};
use proto::PROTOCOLS;
use proxy::plan::{OnFailure, PoolPlan, ServerPlan};

#[test]
fn a_pool_that_comes_with_links_to_its_servers_asks_for_them_at_once() {
    let (mut stage, _) = Stage::of_one();
    stage.install(|plan| {
        let mut pool = PoolPlan::new("next", PROTOCOLS[0], vec![ServerPlan::new("n0", "n0", 1)]);
        (pool.id, pool.servers[0].id, pool.preconnect) = (S0 + 1, S0 + 2, true);
        plan.pools.push(pool);
    });
    assert_eq!(stage.connects.iter().map(|(_, server)| *server).collect::<Vec<_>>(), [2]);
    stage.connect(2);
    let client = stage.accept_at(S0 + 1).expect("it has a pool");
    stage.says(client, "version\r\n");
    assert!(stage.received(client).starts_with("VERSION "));
}

#[test]
fn an_ejected_server_is_asked_sooner_once_the_plan_says_so() {
    for (next, is_asked) in [(SECOND, true), (20 * SECOND, false)] {
        let mut stage = Stage::new(&["s0", "s1"], |pool| {
            pool.on_failure = OnFailure::Eject;
            pool.server_retry_timeout = 20 * SECOND;
        });
        stage.set_ejected(S0, true);
        stage.install(|plan| plan.pools[0].server_retry_timeout = next);
        stage.passes(SECOND);
        assert_eq!(stage.connects.iter().any(|(_, server)| *server == 0), is_asked, "{next}");
    }
}

/// Plans may come often: each would begin the pause anew.
#[test]
fn a_plan_with_the_same_pause_does_not_put_off_the_probe_of_an_ejected_server() {
    let mut stage = Stage::new(&["s0", "s1"], |pool| {
        pool.on_failure = OnFailure::Eject;
        pool.server_retry_timeout = 10 * SECOND;
    });
    stage.set_ejected(S0, true);
    stage.passes(7 * SECOND);
    stage.install(|plan| plan.pools[0].timeouts.reply += 1);
    assert_eq!(stage.connects, []);
    stage.passes(3 * SECOND);
    assert_eq!(stage.connects.len(), 1);
}
