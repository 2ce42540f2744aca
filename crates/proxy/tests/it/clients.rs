//! The life of a client: it comes, holds memory, is turned away, goes to another worker, or is the
//! last of a worker that ends.

use proto::protocol;
use proxy::plan::QuickAck;
use proxy::{Closed, Event};

use crate::stage::{POOL, S0, SECOND, Stage};

#[test]
fn a_worker_has_ended_when_its_last_client_has_its_answers() {
    let (mut stage, link) = Stage::of_one();
    let (idle, asks) = (stage.client(), stage.client());
    stage.says(asks, "get x\r\n");
    stage.turn(link);
    assert!(!stage.is_drained());
    stage.drain();
    assert_eq!((&stage.closed[..], stage.is_drained()), (&[idle][..], false));
    assert_eq!(stage.accept(), Err(b"SERVER_ERROR shutting down\r\n".to_vec()));
    stage.says(link, "END\r\n");
    assert!(!stage.is_drained(), "it has not taken its answer");
    assert_eq!(stage.received(asks), "END\r\n");
    assert!(stage.is_drained());
    // A worker without clients is as any other until it is told to end.
    let (mut stage, _) = Stage::of_one();
    assert!(!stage.is_drained());
    stage.drain();
    assert!(stage.is_drained());
}

#[test]
fn so_many_clients_go_to_another_worker_and_no_more() {
    let (mut stage, _) = Stage::of_one();
    let clients = [stage.client(), stage.client(), stage.client()];
    assert_eq!(stage.hand_over_some(0), []);
    assert_eq!(stage.hand_over_some(2).len(), 2);
    let left = stage.hand_over_some(9);
    assert_eq!(left.len(), 1);
    assert!(clients.contains(&left[0]));
}

/// A request that has come in part, and an answer that is not taken, are held for a client.
#[test]
fn the_bytes_of_a_client_are_in_the_account() {
    let (mut stage, _) = Stage::of_one();
    let client = stage.client();
    stage.says(client, "version\r\nget x");
    let told = stage.received_some(client, 4);
    assert_eq!(told, "VERS");
    let (owed, head) = (stage.memory() - "get x".len(), "set k 0 0 100\r\n");
    assert_eq!(stage.received(client).len(), owed);
    assert_eq!(stage.memory(), "get x".len());
    // A value counts as it comes, with its head.
    let other = stage.client();
    stage.says(other, &format!("version\r\n{head}x"));
    assert_eq!(stage.received_some(other, 4), told);
    assert_eq!(stage.memory(), owed + "get x".len() + head.len() + 1);
    stage.closes(client, Closed::Reset);
    stage.received(other);
    assert_eq!(stage.memory(), head.len() + 1);
    stage.says(other, &"x".repeat(49));
    assert_eq!(stage.memory(), head.len() + 50);
    stage.closes(other, Closed::Reset);
    assert_eq!(stage.memory(), 0);
}

#[test]
fn the_bytes_of_a_link_are_in_the_account() {
    let (mut stage, link) = Stage::of_one();
    let (client, other) = (stage.client(), stage.client());
    stage.says(client, "get x\r\n");
    stage.turn(link);
    let asked = stage.memory();
    assert!(asked > "get x\r\n".len(), "its keys stay until it is answered");
    // The kernel takes nothing of a request.
    stage.says(other, "delete y\r\n");
    stage.end_turn();
    let unsent = asked + "delete y\r\n".len();
    assert_eq!(stage.memory(), unsent);
    let head = "VALUE x 0 100\r\n";
    stage.says(link, &head[..5]);
    assert_eq!(stage.memory(), unsent + 5);
    stage.says(link, &head[5..]);
    stage.says(link, "v");
    assert_eq!(stage.memory(), unsent + head.len() + 100 + "\r\n".len());
    stage.received(link);
    assert_eq!(stage.memory(), asked + head.len() + 100 + "\r\n".len());
    stage.says(link, &format!("{}\r\nEND\r\nDELETED\r\n", "v".repeat(99)));
    stage.received(client);
    stage.received(other);
    assert_eq!(stage.memory(), 0);
}

#[test]
fn clients_that_are_refused_are_told_of_once_a_second() {
    let mut stage = Stage::of(&["s0"], |plan| plan.clients_max = 1);
    stage.client();
    let why = "too many client connections";
    let told = |stage: &mut Stage| {
        assert!(stage.accept().is_err());
        stage.end_turn();
        std::mem::take(&mut stage.events)
    };
    let event = Event::ClientsRefused { pool: POOL, why };
    assert_eq!(told(&mut stage), std::slice::from_ref(&event));
    assert_eq!(told(&mut stage), []);
    stage.passes(SECOND - 1);
    assert_eq!(told(&mut stage), []);
    stage.passes(1);
    assert_eq!(told(&mut stage), [event]);
    assert_eq!(told(&mut stage), []);
}

/// A browser that a hostile page has send its requests here reads no answer.
#[test]
fn http_is_closed_without_an_answer_and_told_of() {
    let mut stage = Stage::new(&["s0"], |pool| {
        pool.protocol = protocol("redis").expect("the table has it");
    });
    let client = stage.client();
    stage.says(client, "POST / HTTP/1.1\r\nHost: x\r\n\r\nSET k v\r\n");
    assert_eq!((stage.received(client), &stage.closed), (String::new(), &vec![client]));
    assert!(matches!(stage.events[..], [Event::ClientsRefused { pool: POOL, .. }]));
    assert_eq!(stage.connects, []);
}

#[test]
fn a_client_that_has_turned_answers_off_is_closed_without_one() {
    for (off, is_told) in [("CLIENT REPLY OFF\r\n", false), ("", true)] {
        for wrong in ["*x\r\n".to_string(), "x".repeat(200)] {
            let mut stage = Stage::of(&["s0"], |plan| {
                plan.limits.request_head = 100;
                plan.pools[0].protocol = protocol("redis").expect("the table has it");
            });
            let client = stage.client();
            stage.says(client, off);
            stage.says(client, &wrong);
            assert_eq!(stage.received(client).starts_with("-ERR "), is_told, "{off}{wrong}");
            assert_eq!(stage.closed, [client]);
        }
    }
}

#[test]
fn a_servers_ack_is_flushed_as_its_pool_says() {
    for (switch, counts) in
        [(QuickAck::Partial, [1, 1]), (QuickAck::Always, [1, 2]), (QuickAck::Off, [0, 0])]
    {
        let mut stage = Stage::new(&["s0"], |pool| pool.preconnect = true);
        let link = stage.connect(0);
        stage.install(|plan| plan.pools[0].server_quickack = switch);
        let client = stage.client();
        stage.says(client, "get x\r\n");
        stage.turn(link);
        stage.flushes.clear();
        for (piece, count) in ["EN", "D\r\n"].into_iter().zip(counts) {
            stage.says(link, piece);
            assert_eq!(stage.flushes, vec![link; count], "{switch:?} after {piece:?}");
        }
    }
}

#[test]
fn operators_are_shown_the_servers_of_the_plan_and_how_they_are() {
    let mut stage = Stage::new(&["s0", "s1", "s2"], |pool| pool.preconnect = true);
    assert_eq!(stage.healths(), ["s0 ready", "s1 ready", "s2 ready"]);
    let (link, _) = stage.connects.remove(0);
    stage.closes(link, Closed::Reset);
    stage.set_ejected(S0 + 1, true);
    assert_eq!(stage.healths(), ["s0 down", "s1 ejected", "s2 ready"]);
    stage.set_ejected(S0, true);
    stage.install(|plan| drop(plan.pools[0].servers.pop()));
    assert_eq!(stage.healths(), ["s0 ejected", "s1 ejected"]);
}
