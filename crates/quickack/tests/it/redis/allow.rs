//! Administrative commands that the operator allows, in front of real Redis: each goes to all
//! servers, and their answers become one.

use testkit::process::{Family, Quickack, Redis, Speaker};
use testkit::wire::resp::Reply;

use super::{addresses, quickack, servers};

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.into())
}

fn error(text: &str) -> Reply {
    Reply::Error(text.into())
}

fn entry(server: &str, said: Reply) -> Reply {
    Reply::Array(vec![bulk(server), said])
}

fn speak(quickack: &Quickack) -> Speaker {
    Speaker::connect(quickack.address())
}

/// Returns each server's own answer.
fn direct(backs: &[Redis], line: &str) -> Vec<Reply> {
    backs.iter().map(|back| Speaker::connect(back.address).say(line)).collect()
}

#[test]
fn an_allowed_change_is_made_on_every_redis_and_answered_once() {
    let backs = servers(Family::Redis70, 2);
    let allow = ["allow: [config|set, acl, save, memory|purge]"];
    let quickack = quickack(&addresses(&backs), &allow);
    let mut client = speak(&quickack);
    assert_eq!(client.say("CONFIG SET maxmemory 200mb"), ok());
    let told = Reply::Array(vec![bulk("maxmemory"), bulk("209715200")]);
    assert_eq!(direct(&backs, "CONFIG GET maxmemory"), [told.clone(), told]);
    assert_eq!(client.say("ACL SETUSER bob on nopass +get"), ok());
    assert_eq!(client.say("ACL DELUSER bob"), Reply::Integer(1));
    assert_eq!(client.say("MEMORY PURGE"), ok());
    // All servers send the same error, and none executes the command.
    let wrong = client.say("CONFIG SET nosuch 1");
    let Reply::Error(text) = &wrong else { panic!("{wrong:?}") };
    let text = String::from_utf8_lossy(text);
    assert!(text.starts_with("ERR Unknown option") && !text.contains("agree"), "{text}");
    // Other commands are refused, including those of a container of which one subcommand is
    // allowed.
    let refused = client.say("CONFIG REWRITE");
    let words = "ERR 'config rewrite' is not supported: refused by the proxy: `allow: \
                 [config|rewrite]` in its pool permits it";
    assert_eq!(refused, error(words));
}

#[test]
fn servers_that_do_not_agree_are_named_with_what_they_say() {
    let backs = servers(Family::Redis70, 2);
    let quickack = quickack(&addresses(&backs), &["allow: [acl]"]);
    let mut client = speak(&quickack);
    Speaker::connect(backs[1].address).say("ACL SETUSER bob");
    let words = "ERR the servers do not agree: s1 says '0'; s2 says '1'";
    assert_eq!(client.say("ACL DELUSER bob"), error(words));
    // Both servers have executed it; now they agree.
    assert_eq!(client.say("ACL DELUSER bob"), Reply::Integer(0));
    Speaker::connect(backs[0].address).say("ACL SETUSER ann");
    let users = |names: &[&str]| Reply::Array(names.iter().map(|name| bulk(name)).collect());
    let entries = vec![entry("s1", users(&["ann", "default"])), entry("s2", users(&["default"]))];
    assert_eq!(client.say("ACL USERS"), Reply::Array(entries.clone()));
    let mut resp3 = speak(&quickack);
    resp3.say("HELLO 3");
    assert_eq!(resp3.say("ACL USERS"), Reply::Array(entries));
    assert_eq!(client.say("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn a_read_names_the_redis_that_is_down_and_tells_what_the_other_says() {
    let mut backs = servers(Family::Redis70, 2);
    let quickack = quickack(&addresses(&backs), &["allow: [acl|log, bgsave, config]"]);
    let mut client = speak(&quickack);
    let none = Reply::Array(Vec::new());
    let both = vec![entry("s1", none.clone()), entry("s2", none.clone())];
    assert_eq!(client.say("ACL LOG"), Reply::Array(both));
    drop(backs.pop());
    let said = client.say("ACL LOG");
    let Reply::Array(entries) = &said else { panic!("{said:?}") };
    assert_eq!(entries[0], entry("s1", none));
    let Reply::Array(second) = &entries[1] else { panic!("{said:?}") };
    assert!(second[0] == bulk("s2") && second[1].is_error(), "{said:?}");
    let said = client.say("CONFIG RESETSTAT");
    let Reply::Error(text) = &said else { panic!("{said:?}") };
    assert!(String::from_utf8_lossy(text).contains("s2: "), "{said:?}");
    drop(backs.pop());
    let said = client.say("ACL LOG");
    assert!(said.is_error(), "{said:?}");
}

#[test]
fn what_has_a_key_goes_to_the_server_of_its_key() {
    let debug = ["--enable-debug-command", "yes"];
    let backs: Vec<Redis> = (0..2).map(|_| Redis::start_with(Family::Redis70, &debug)).collect();
    let allow = ["allow: [debug, pfdebug]"];
    let quickack = quickack(&addresses(&backs), &allow);
    let mut client = speak(&quickack);
    for n in 0..20 {
        assert_eq!(client.say(&format!("SET k{n} v")), ok());
        let said = client.say(&format!("DEBUG OBJECT k{n}"));
        let Reply::Simple(text) = &said else { panic!("k{n}: {said:?}") };
        assert!(text.starts_with(b"Value at:"), "k{n}: {said:?}");
        client.say(&format!("PFADD h{n} a"));
        assert_eq!(client.say(&format!("PFDEBUG ENCODING h{n}")), simple("sparse"));
    }
    // A digest of one server's keys is one value; keys on two servers are refused.
    let said = client.say("DEBUG DIGEST-VALUE {k1}a {k1}b");
    assert!(matches!(&said, Reply::Array(digests) if digests.len() == 2), "{said:?}");
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let said = client.say(&format!("DEBUG DIGEST-VALUE {}", keys.join(" ")));
    assert!(matches!(&said, Reply::Error(text) if text.starts_with(b"CROSSSLOT")), "{said:?}");
    assert_eq!(client.say("DEBUG SET-ACTIVE-EXPIRE 1"), ok());
    for (line, why) in [
        ("DEBUG PROTOCOL string", "it would change the replies on a connection that clients share"),
        ("DEBUG SEGFAULT", "it would end the server, or harm it; ask the server itself"),
    ] {
        let said = client.say(line);
        let Reply::Error(text) = &said else { panic!("{said:?}") };
        assert!(String::from_utf8_lossy(text).ends_with(why), "{said:?}");
    }
}

fn simple(text: &str) -> Reply {
    Reply::Simple(text.into())
}

/// Tools for one server get the answers that they know.
#[test]
fn a_pool_of_one_redis_answers_as_that_redis_does() {
    let backs = servers(Family::Redis70, 1);
    let quickack = quickack(&addresses(&backs), &["allow: [acl, latency, memory]"]);
    let mut client = speak(&quickack);
    for line in ["ACL LIST", "ACL USERS", "ACL GETUSER default", "ACL LOG", "ACL CAT hash"] {
        assert_eq!(client.say(line), direct(&backs, line)[0], "{line}");
    }
    let said = client.say("ACL GETUSER");
    assert_eq!(said, error("ERR wrong number of arguments for 'acl|getuser' command"));
}
