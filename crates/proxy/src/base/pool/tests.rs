//! The server that is asked: by a key, by its index, or any.

use metrics::Registry;

use super::*;

/// Makes a pool of this many servers.
fn pool(servers: usize, set: impl FnOnce(&mut PoolPlan)) -> Pool {
    let server = |at| ServerPlan::new(&format!("s{at}"), &format!("s{at}"), 1);
    let servers = (0..servers).map(server).collect();
    let mut plan = PoolPlan::new("pool", proto::PROTOCOLS[0], servers);
    (plan.id, plan.distribution) = (1, Distribution::Modula);
    plan.servers.iter_mut().zip(2..).for_each(|(server, id)| server.id = id);
    set(&mut plan);
    Pool::new(plan, &Registry::private(1, 16).metrics(0), crate::Time(0))
}

#[test]
fn a_random_ring_is_asked_with_a_random_number_and_no_other_is() {
    let random = pool(3, |plan| plan.distribution = Distribution::Random);
    for number in 0..9 {
        let place = random.route(b"the same key", || number);
        assert_eq!(place, Some(number as usize % 3));
    }
    let by_key = pool(3, |_| {});
    let place = by_key.route(b"key", || unreachable!("no chance is needed"));
    assert!((0..9).all(|number| by_key.route(b"key", || number) == place));
    let tagged = pool(3, |plan| plan.hash_tag = Some(*b"{}"));
    for key in ["a", "b", "c", "d", "e", "f"] {
        let whole = tagged.route(key.as_bytes(), || 0);
        assert_eq!(tagged.route(format!("x{{{key}}}y").as_bytes(), || 0), whole, "{key}");
    }
}

#[test]
fn a_place_is_the_first_of_the_plan_from_there_on() {
    let mut pool = pool(4, |_| {});
    pool.servers[1].stage = Stage::Retired;
    pool.servers[3].stage = Stage::Vacant;
    let places = [0, 1, 2, 3, 4].map(|first| pool.place_from(first));
    assert_eq!(places, [Some(0), Some(2), Some(2), None, None]);
    assert_eq!(pool.planned(), 2);
}

#[test]
fn anybody_is_who_can_be_asked_and_the_same_for_the_same_number() {
    let mut pool = pool(4, |_| {});
    let places = |pool: &Pool| [0, 1, 2, 3, 4].map(|number| pool.any_place(number));
    assert_eq!(places(&pool), [0, 1, 2, 3, 0].map(Some));
    pool.servers[0].ejected = true;
    assert_eq!(places(&pool), [1, 1, 2, 3, 1].map(Some));
    pool.servers[1].health = Health::Down;
    assert_eq!(places(&pool), [2, 2, 2, 3, 2].map(Some));
    pool.servers[2].stage = Stage::Retired;
    assert_eq!(places(&pool), [3; 5].map(Some));
    pool.servers[3].health = Health::Down;
    assert_eq!(places(&pool), [0; 5].map(Some), "nobody can: the first says so");
}

#[test]
fn what_is_known_is_of_those_who_are_in_the_plan() {
    let mut pool = pool(4, |_| {});
    let one = Capabilities::one(0);
    assert_eq!((pool.unknown(), pool.capabilities()), (Some(0), None));
    pool.servers[0].capabilities = Some(one);
    assert_eq!((pool.unknown(), pool.capabilities()), (Some(1), Some(one)));
    pool.servers[1].ejected = true;
    assert_eq!(pool.unknown(), Some(2));
    pool.servers[2].health = Health::Down;
    assert_eq!(pool.unknown(), Some(3));
    pool.servers[3].capabilities = Some(Capabilities::default());
    assert_eq!((pool.unknown(), pool.capabilities()), (None, Some(Capabilities::default())));
    pool.servers[3].stage = Stage::Retired;
    assert_eq!(pool.capabilities(), Some(one));
}

#[test]
fn a_client_begins_in_the_database_and_the_dialect_of_its_pool() {
    let conn_key = |pool: &Pool| pool.conn_keys.of(pool.conn_keys.home);
    let redis = |database| {
        pool(1, |plan| {
            (plan.protocol, plan.database) = (proto::protocol("redis").expect("it is"), database)
        })
    };
    for database in [0, 5] {
        let expected = ConnKey { proto_version: 2, database };
        assert_eq!(conn_key(&redis(database)), expected);
    }
}
