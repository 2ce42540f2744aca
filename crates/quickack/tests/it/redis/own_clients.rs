//! CLIENT LIST, KILL and PAUSE before real Redis: about the clients of all workers, and of nobody
//! else.

use std::process::Command;

use testkit::process::{Family, Quickack, Redis, Speaker, wait_until};
use testkit::wire::resp::{Reply, push_command};

use super::super::harness::wait_for_workers;
use super::super::logins::private;
use super::{QUICKACK, addresses, config, servers};
use crate::peers::{peer_script, root, run};

const ALLOW: &str =
    "allow: [client|list, client|kill, client|pause, client|unblock, client|unpause]";

fn start(backs: &[Redis], more: &[&str], global: &str) -> Quickack {
    let text = format!("{}global:\n  workers: 4\n{global}", config(&addresses(backs), more));
    let quickack = Quickack::start(QUICKACK, &text);
    wait_for_workers(&quickack, 4);
    quickack
}

fn script(quickack: &Quickack, login: &[&str]) {
    let port = quickack.address().port().to_string();
    let mut command = Command::new(root().join(".venv/bin/python"));
    run(command.arg(peer_script("redis_py_clients.py")).arg(&port).args(login));
}

#[test]
fn redis_py_lists_kills_and_pauses_the_clients_of_all_workers() {
    let backs = servers(Family::Redis70, 1);
    script(&start(&backs, &[ALLOW], ""), &[]);
}

#[test]
fn redis_py_does_so_as_a_tenant_without_the_pools_permission() {
    let backs = servers(Family::Redis70, 1);
    let folder = private("users", "anna:x\nbob:y\n");
    let users = format!("users: {}", folder.path().join("users").display());
    let tenants = "  tenants: {shop: {users: [anna]}, rest: {users: [bob]}}\n";
    script(&start(&backs, &[&users], tenants), &["anna", "x"]);
}

/// Returns the names in a list of clients.
fn names(reply: &Reply) -> Vec<String> {
    let text = String::from_utf8_lossy(reply.bytes().unwrap_or_default()).into_owned();
    let name = |line: &str| {
        line.split(' ').find_map(|field| field.strip_prefix("name="))?.to_string().into()
    };
    let mut names: Vec<String> = text.lines().filter_map(name).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_tenant_neither_sees_nor_closes_nor_pauses_the_clients_of_others() {
    let backs = servers(Family::Redis70, 1);
    let folder = private("users", "anna:x\nbob:y\ncarl:z\n");
    let users = format!("users: {}", folder.path().join("users").display());
    let tenants = "  tenants: {shop: {users: [anna]}, rest: {users: [bob]}}\n";
    let quickack = start(&backs, &[&users, ALLOW], tenants);
    let connect = |login: &str, name: &str| {
        let mut client = Speaker::connect(quickack.address());
        assert_eq!(client.say(&format!("AUTH {login}")), Reply::Simple("OK".into()));
        client.say(&format!("CLIENT SETNAME {name}"));
        client
    };
    let mut annas: Vec<Speaker> = (0..6).map(|n| connect("anna x", &format!("a{n}"))).collect();
    let mut bobs: Vec<Speaker> = (0..6).map(|n| connect("bob y", &format!("b{n}"))).collect();
    let mut carl = connect("carl z", "c0");
    assert_eq!(names(&annas[0].say("CLIENT LIST")), ["a0", "a1", "a2", "a3", "a4", "a5"]);
    assert_eq!(names(&bobs[0].say("CLIENT LIST")), ["b0", "b1", "b2", "b3", "b4", "b5"]);
    assert_eq!(names(&carl.say("CLIENT LIST")), ["c0"], "the pool's, without its tenants'");
    let Reply::Integer(id) = bobs[1].say("CLIENT ID") else { panic!("a number") };
    assert_eq!(annas[0].say(&format!("CLIENT KILL ID {id}")), Reply::Integer(0));
    assert_eq!(names(&annas[0].say(&format!("CLIENT LIST ID {id}"))), [""; 0]);
    let address = bobs[1].stream.local_addr().expect("it is connected").to_string();
    assert!(annas[0].say(&format!("CLIENT KILL {address}")).error().contains("No such client"));
    assert_eq!(annas[0].say("CLIENT KILL USER bob"), Reply::Integer(0));
    assert_eq!(annas[0].say("CLIENT PAUSE 600000"), Reply::Simple("OK".into()));
    for bob in bobs.iter_mut().chain([&mut carl]) {
        assert_eq!(bob.say("SET k 1"), Reply::Simple("OK".into()));
    }
    // Others cannot end it, and its own can.
    assert_eq!(bobs[0].say("CLIENT UNPAUSE"), Reply::Simple("OK".into()));
    annas[3].send(b"GET k\r\n");
    assert_eq!(carl.say("GET k"), Reply::Bulk("1".into()));
    assert_eq!(annas[0].say("CLIENT UNPAUSE"), Reply::Simple("OK".into()));
    assert_eq!(annas[3].reply(), Ok(Reply::Bulk("1".into())));
    // All of its own but itself.
    assert_eq!(annas[0].say("CLIENT KILL TYPE normal"), Reply::Integer(5));
    assert_eq!(names(&annas[0].say("CLIENT LIST")), ["a0"]);
    assert_eq!(names(&bobs[0].say("CLIENT LIST")).len(), 6);
    assert_eq!(annas[0].say("CLIENT KILL USER anna SKIPME no"), Reply::Integer(1));
    assert!(annas[0].reply().is_err(), "it is closed when it has its answer");
    wait_until("it is gone", || !quickack.ask("clients --user anna").contains("anna"));
}

/// Commands whose errors are those of the server itself.
const WRONG: &[&str] = &[
    "CLIENT LIST TYPE",
    "CLIENT LIST TYPE odd",
    "CLIENT LIST ID",
    "CLIENT LIST ID x",
    "CLIENT LIST ID 1 x",
    "CLIENT LIST odd",
    "CLIENT LIST odd 1",
    "CLIENT KILL",
    "CLIENT KILL 1.1.1.1:1",
    "CLIENT KILL odd 1",
    "CLIENT KILL ID",
    "CLIENT KILL ID 0",
    "CLIENT KILL ID x",
    "CLIENT KILL ID 999999999",
    "CLIENT KILL ID 999999999 USER",
    "CLIENT KILL TYPE odd",
    "CLIENT KILL TYPE replica",
    "CLIENT KILL TYPE master",
    "CLIENT KILL TYPE pubsub",
    "CLIENT KILL USER nobody",
    "CLIENT KILL USER default SKIPME maybe",
    "CLIENT KILL ADDR 1.1.1.1:1 LADDR 2.2.2.2:2",
    "CLIENT PAUSE",
    "CLIENT PAUSE x",
    "CLIENT PAUSE -1",
    "CLIENT PAUSE 1 odd",
    "CLIENT PAUSE 1 WRITE more",
    "CLIENT PAUSE 99999999999999999999",
    "CLIENT PAUSE 1 all",
    "CLIENT UNPAUSE",
    "CLIENT UNPAUSE now",
    "CLIENT SETNAME a b",
    "CLIENT NO-EVICT maybe",
];

#[test]
fn errors_are_those_of_redis_in_resp2_and_resp3() {
    let backs = servers(Family::Redis70, 1);
    let quickack = start(&backs, &[ALLOW], "");
    for hello in ["HELLO 2", "HELLO 3"] {
        let mut direct = Speaker::connect(backs[0].address);
        let mut through = Speaker::connect(quickack.address());
        direct.say(hello);
        through.say(hello);
        for line in WRONG {
            assert_eq!(through.say(line), direct.say(line), "{line}");
        }
    }
}

#[test]
fn long_words_are_answered_as_by_redis() {
    let backs = servers(Family::Redis70, 1);
    let quickack = start(&backs, &[], "");
    let mut direct = Speaker::connect(backs[0].address);
    let mut through = Speaker::connect(quickack.address());
    let long = "x".repeat(3_000_000);
    for words in
        [&["PING", &long][..], &["ECHO", &long], &["AUTH", &long], &["COMMAND", "INFO", &long]]
    {
        assert!(through.ask(words) == direct.ask(words), "{words:.20?}");
    }
}

#[test]
fn a_monitor_is_shown_what_is_asked_at_all_workers() {
    let backs = servers(Family::Redis70, 1);
    let quickack = start(&backs, &["allow: [monitor]"], "");
    let mut monitor = Speaker::connect(quickack.address());
    assert_eq!(monitor.say("MONITOR"), Reply::Simple("OK".into()));
    let mut clients: Vec<Speaker> = (0..12).map(|_| Speaker::connect(quickack.address())).collect();
    let mut wanted = Vec::new();
    for (n, client) in clients.iter_mut().enumerate() {
        client.say(&format!("SET k{n} v"));
        let from = client.stream.local_addr().expect("it is connected");
        wanted.push(format!("[0 {from}] \"SET\" \"k{n}\" \"v\""));
    }
    let line = || match monitor.reply() {
        Ok(Reply::Simple(line)) => String::from_utf8_lossy(&line).into_owned(),
        other => panic!("{other:?}"),
    };
    let shown: Vec<String> = std::iter::repeat_with(line).take(12).collect();
    for request in wanted {
        let found = shown.iter().find(|line| line.ends_with(&request));
        let (time, _) = found.expect("it is shown").split_once(' ').expect("two words");
        assert!(time.parse::<f64>().is_ok_and(|time| time > 1e9), "{time}");
    }
}

fn send(client: &mut Speaker, line: &str) {
    let mut bytes = Vec::new();
    push_command(&line.split(' ').collect::<Vec<&str>>(), &mut bytes);
    client.send(&bytes);
}

#[test]
fn a_client_that_waits_at_any_worker_is_unblocked_and_loses_no_element() {
    for family in [Family::Redis70, Family::Valkey91] {
        let backs = servers(family, 2);
        let quickack = start(&backs, &[ALLOW], "");
        let mut other = Speaker::connect(quickack.address());
        let mut clients: Vec<(Speaker, i64)> = (0..12)
            .map(|_| {
                let mut client = Speaker::connect(quickack.address());
                let Reply::Integer(id) = client.say("CLIENT ID") else { panic!("a number") };
                (client, id)
            })
            .collect();
        let zero = Reply::Integer(0);
        assert_eq!(
            other.say(&format!("CLIENT UNBLOCK {}", clients[0].1)),
            zero,
            "it does not wait"
        );
        for (nth, (client, id)) in clients.iter_mut().enumerate() {
            send(client, &format!("BLPOP {{t{nth}}}l 0"));
            let (reason, told) = match nth % 3 {
                0 => ("", Reply::Null(b'*')),
                1 => (" TIMEOUT", Reply::Null(b'*')),
                _ => {
                    let words = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
                    (" ERROR", Reply::Error(words.into()))
                }
            };
            let line = format!("CLIENT UNBLOCK {id}{reason}");
            wait_until("it is unblocked", || other.say(&line) == Reply::Integer(1));
            assert_eq!(client.reply().expect("an answer"), told, "{family:?} {reason}");
            assert_eq!(other.say(&line), zero, "once");
            // Its connection is the same, and so is its element.
            assert_eq!(other.say(&format!("RPUSH {{t{nth}}}l v")), Reply::Integer(1));
            let element = client.say(&format!("BLPOP {{t{nth}}}l 0"));
            let expected = [Reply::Bulk(format!("{{t{nth}}}l").into()), Reply::Bulk("v".into())];
            assert_eq!(element, Reply::Array(expected.to_vec()));
        }
        assert!(other.say("CLIENT UNBLOCK x").error().starts_with("ERR value is not an integer"));
    }
    let backs = servers(Family::Redis70, 1);
    let refused = Speaker::connect(start(&backs, &[], "").address()).say("CLIENT UNBLOCK 1");
    assert!(refused.error().contains("`allow: [client|unblock]`"), "{refused:?}");
}
