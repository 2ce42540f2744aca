//! The common behaviour of all protocols, and the defaults of the traits.

use super::*;

const TEXT: &dyn Protocol = &memcached::Text;
const REDIS: &dyn Protocol = &redis::Redis;

/// Parses a request; returns it with its keys.
fn parsed(protocol: &dyn Protocol, input: &[u8]) -> (Request, Vec<Span>) {
    let mut keys = Vec::new();
    match protocol.parse_request(input, &mut Resume::default(), &mut keys) {
        Parsed::Complete(request) => (request, keys),
        other => panic!("{}: {other:?}", String::from_utf8_lossy(input)),
    }
}

fn inline(line: &str) -> (Request, String) {
    let line = format!("{line}\r\n");
    (parsed(REDIS, line.as_bytes()).0, line)
}

pub(crate) const FACTS: Facts<'static> = Facts {
    pool: "cache",
    version: "0.1.0",
    capabilities: None,
    databases: 16,
    conn_key: ConnKey { proto_version: 2, database: 0 },
    servers: 1,
    clients: 1,
    uptime_s: 1,
    has_users: false,
    endpoints: None,
    age_s: 0,
    topics: [0; 3],
};

/// Returns the Redis protocol's answer to a local command, and the client's connection key after
/// it.
fn says(line: &str, facts: &Facts<'_>) -> (String, ConnKey) {
    let (request, head) = inline(line);
    let mut session = Session { conn_key: facts.conn_key, ..Session::default() };
    let mut out = Vec::new();
    REDIS.local(&request, head.as_bytes(), &mut session, facts, &mut out);
    (String::from_utf8(out).expect("an answer of ours is text"), session.conn_key)
}

#[test]
fn each_protocol_has_a_name_and_words_of_its_own() {
    for (at, one) in PROTOCOLS.iter().enumerate() {
        assert!(one.about().len() > 100, "{} is told about", one.name());
        for other in &PROTOCOLS[..at] {
            assert_ne!((one.name(), one.about()), (other.name(), other.about()));
        }
    }
    for named in NAMED {
        assert_eq!(protocol(named.name()).map(|found| found.name()), Some(named.name()));
    }
    assert!(protocol("memcached-binary").is_none() && protocol("").is_none());
}

/// The text protocol has no local commands of its own, no scripts and no lists. The defaults that
/// it takes must not change the handling of its requests.
#[test]
fn what_a_protocol_does_not_know_is_nothing() {
    let head = b"set k 0 0 1\r\n";
    let (mut request, mut keys) = parsed(TEXT, head);
    let asked = Asked {
        command: request.command,
        quiet: request.quiet,
        ask: Ask::default(),
        head,
        at: 0,
        next: None,
    };
    let mut out = Vec::new();
    assert_eq!(TEXT.conn_key(0), ConnKey::default());
    assert!(!TEXT.shows_endpoints(&request) && !TEXT.forgets(&asked));
    assert_eq!(TEXT.learn(&asked, b"STORED\r\n"), None);
    let error = &REDIS.upstream().retryable_errors()[0];
    assert_eq!(TEXT.recovery(&asked, error, &|_| Some(vec![1]), &mut out), None);
    assert!(!TEXT.recognize(&mut request, head, &mut keys, &[]));
    TEXT.push_rest(&request, head, &keys, 0, &mut out);
    assert_eq!(out, b"");
    let upstream = TEXT.upstream();
    assert_eq!(upstream.elements(b"*1\r\n$1\r\na\r\n"), None);
    assert_eq!(upstream.element_len(b"$1\r\na\r\n"), None);
    assert_eq!(upstream.retryable(b"SERVER_ERROR busy\r\n"), None);
    assert_eq!(upstream.retryable_errors(), []);
}

#[test]
fn what_can_do_more_includes_what_can_do_less() {
    let [first, last] = [Capabilities::one(0), Capabilities::one(31)];
    let all = [Capabilities::default(), first, last, first.and(last)];
    for (more, one) in all.iter().enumerate() {
        for (less, other) in all.iter().enumerate() {
            assert_eq!(one.include(*other), more & less == less, "{one:?}, {other:?}");
            assert_eq!(one.common(*other), all[more & less]);
        }
    }
}

#[test]
fn only_meta_commands_need_meta_and_servers_without_it_are_named() {
    let servers = TEXT.upstream();
    for (at, command) in TEXT.commands().iter().enumerate() {
        let ask = Ask { command: at as u16 };
        let is_meta = matches!(command.name, "mg" | "ms" | "md" | "ma" | "mn" | "me");
        // `mn` is answered by the proxy.
        if command.name != "mn" {
            assert_eq!(servers.needs(ask).include(memcached::META), is_meta, "{}", command.name);
        }
    }
    assert!(servers.lacks(Capabilities::default()).is_some_and(|words| words.contains("meta")));
    assert_eq!(servers.lacks(memcached::META), None);
}

#[test]
fn only_one_command_tells_where_a_connection_begins_and_ends() {
    for line in ["CLIENT ID", "CLIENT GETNAME", "HELLO 2", "PING", "CLIENT LIST"] {
        assert!(!REDIS.shows_endpoints(&inline(line).0), "{line}");
    }
    assert!(REDIS.shows_endpoints(&inline("CLIENT INFO").0));
}

#[test]
fn a_database_is_chosen_by_a_plain_number_below_their_count() {
    let conn_key = |database| ConnKey { proto_version: 2, database };
    for database in [0, 1, 9, 15] {
        assert_eq!(
            says(&format!("SELECT {database}"), &FACTS),
            ("+OK\r\n".into(), conn_key(database))
        );
    }
    let integer = "-ERR value is not an integer or out of range\r\n";
    let invalid = "-ERR invalid DB index\r\n";
    for (text, words) in [
        ("00", integer),
        ("01", integer),
        ("-01", integer),
        ("x", integer),
        ("9223372036854775808", integer),
    ] {
        assert_eq!(says(&format!("SELECT {text}"), &FACTS), (words.into(), conn_key(0)), "{text}");
    }
    for text in ["16", "-1", "-0", "2147483647"] {
        let (words, now) = says(&format!("SELECT {text}"), &FACTS);
        assert!(words.starts_with("-ERR DB index is out of range"), "{text}: {words}");
        assert_eq!(now, conn_key(0));
    }
    for text in ["2147483648", "9223372036854775807"] {
        let (words, now) = says(&format!("SELECT {text}"), &FACTS);
        assert!(words.starts_with("-ERR") && words != invalid, "{text}: {words}");
        assert_eq!(now, conn_key(0));
    }
}

/// Before a server is known, every server may have RESP3. A server without it is noticed at once.
#[test]
fn resp3_is_given_where_every_known_server_has_it() {
    let capabilities = |is_in| Some(if is_in { redis::RESP3 } else { Capabilities::default() });
    for (capabilities, line, proto_version) in [
        (None, "HELLO 3", Some(3)),
        (capabilities(true), "HELLO 3", Some(3)),
        (capabilities(false), "HELLO 3", None),
        (capabilities(false), "HELLO 2", Some(2)),
        (capabilities(false), "HELLO", Some(2)),
        (None, "HELLO 2", Some(2)),
    ] {
        let (words, conn_key) = says(line, &Facts { capabilities, ..FACTS });
        assert_eq!(words.starts_with("-NOPROTO"), proto_version.is_none(), "{line}: {words}");
        assert_eq!(conn_key.proto_version, proto_version.unwrap_or(2), "{line}: {words}");
    }
}
