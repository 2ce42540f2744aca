//! Servers' answers to the handshake: recorded from Redis 6.2 and 7.0 and from Valkey 9.1, and for
//! older ones taken from their sources.

use super::*;

const MAP_70: &str = "$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\n\
     proto\r\n:P\r\n$2\r\nid\r\n:139\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n\
     $6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";
const MAP_91: &str = "$6\r\nserver\r\n$6\r\nvalkey\r\n$7\r\nversion\r\n$5\r\n9.1.2\r\n$5\r\n\
     proto\r\n:P\r\n$2\r\nid\r\n:3\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n\
     $6\r\nmaster\r\n$7\r\nmodules\r\n*1\r\n%4\r\n$4\r\nname\r\n$3\r\nlua\r\n$3\r\nver\r\n:1\r\n\
     $4\r\npath\r\n$3\r\nlua\r\n$4\r\nargs\r\n*0\r\n";
const REDIS: Make = Make { name: "redis", version: [7, 0, 15], like: [7, 0, 15] };
const VALKEY_91: Make = Make { name: VALKEY, version: [9, 1, 2], like: [7, 2, 4] };
const PLAIN: ConnKey = ConnKey { proto_version: 2, database: 0 };
const THIRD: ConnKey = ConnKey { proto_version: 3, database: 0 };
const OTHER: ConnKey = ConnKey { proto_version: 2, database: 5 };
const UNKNOWN: &str = "-ERR unknown command `HELLO`, with args beginning with: `2`, \r\n";
const NO_PASSWORD: &str = "-ERR AUTH <password> called without any password configured for the \
     default user. Are you sure your configuration is correct?\r\n";
const NO_AUTH: &str = "-NOAUTH Authentication required.\r\n";

/// Returns the map in the format of HELLO 2 or 3.
fn map(text: &str, proto_version: u8) -> String {
    let head = if proto_version == 3 { "%7\r\n" } else { "*14\r\n" };
    let inner = if proto_version == 3 { text.to_string() } else { text.replace("%4", "*8") };
    format!("{head}{}", inner.replace(":P", &format!(":{proto_version}")))
}

/// Returns the result of an answer, and checks that there is none before all of it has come.
fn heard(credentials: bool, conn_key: ConnKey, said: &str) -> Parsed<HandshakeReply> {
    let whole = Servers.read_handshake(credentials, conn_key, said.as_bytes());
    let settled = (0..=said.len()).find(|len| {
        Servers.read_handshake(credentials, conn_key, &said.as_bytes()[..*len])
            != Parsed::Incomplete
    });
    assert!(settled.is_some() || whole == Parsed::Incomplete, "{said:?}");
    if let Parsed::Complete(HandshakeReply::Welcome { len, .. }) = whole {
        assert_eq!((len, settled), (said.len(), Some(said.len())), "{said:?}");
    }
    if let Some(settled) = settled {
        let early = Servers.read_handshake(credentials, conn_key, &said.as_bytes()[..settled]);
        assert_eq!(early, whole, "{said:?}");
    }
    whole
}

fn welcome(len: usize, resp3: bool, make: Make) -> Parsed<HandshakeReply> {
    let capabilities = if resp3 { RESP3 } else { Capabilities::default() }.made_by(make);
    Parsed::Complete(HandshakeReply::Welcome { len, capabilities })
}

#[test]
fn the_first_words_say_who_and_where() {
    let named = |name: &str| Credentials { name: name.to_string(), password: "pw".to_string() };
    for (credentials, conn_key, expected) in [
        (None, ConnKey::default(), "*2 $5 HELLO $1 2"),
        (None, PLAIN, "*2 $5 HELLO $1 2"),
        (None, THIRD, "*2 $5 HELLO $1 3"),
        (None, OTHER, "*2 $6 SELECT $1 5 *2 $5 HELLO $1 2"),
        (Some(named("")), PLAIN, "*2 $4 AUTH $2 pw *2 $5 HELLO $1 2"),
        (Some(named("anna")), PLAIN, "*3 $4 AUTH $4 anna $2 pw *2 $5 HELLO $1 2"),
    ] {
        let mut said = Vec::new();
        Servers.write_handshake(credentials.as_ref(), conn_key, &mut said);
        let said = String::from_utf8(said).expect("text");
        assert_eq!(said.replace("\r\n", " ").trim_end(), expected);
    }
}

#[test]
fn a_server_tells_what_it_is() {
    for proto_version in [2, 3] {
        let conn_key = ConnKey { proto_version, database: 0 };
        let said = map(MAP_70, proto_version);
        assert_eq!(heard(false, conn_key, &said), welcome(said.len(), true, REDIS));
        // Beside its own version it sends that of the Redis which it is compatible with.
        let said = map(MAP_91, proto_version);
        assert_eq!(heard(false, conn_key, &said), welcome(said.len(), true, VALKEY_91));
    }
    let said = format!("+OK\r\n+OK\r\n{}", map(MAP_70, 2));
    assert_eq!(heard(true, OTHER, &said), welcome(said.len(), true, REDIS));
}

#[test]
fn servers_of_a_pool_are_what_all_of_them_are() {
    let capabilities = |make| RESP3.made_by(make);
    let older = Make { version: [8, 0, 1], ..VALKEY_91 };
    assert_eq!(capabilities(VALKEY_91).common(capabilities(older)), capabilities(older));
    let both = capabilities(REDIS).common(capabilities(VALKEY_91)).make;
    assert_eq!(both, Make { name: "", version: [7, 0, 15], like: [7, 0, 15] });
    let newer = Make { name: "redis", version: [8, 2, 0], like: [8, 2, 0] };
    assert_eq!(capabilities(newer).common(capabilities(VALKEY_91)).make.like, [7, 2, 4]);
}

#[test]
fn a_server_without_hello_speaks_the_second_protocol() {
    assert_eq!(heard(false, PLAIN, UNKNOWN), welcome(UNKNOWN.len(), false, Make::default()));
    assert_eq!(heard(false, THIRD, UNKNOWN), Parsed::Complete(HandshakeReply::SetupRefused));
    let said = "-NOPROTO unsupported protocol version\r\n";
    assert_eq!(heard(false, THIRD, said), Parsed::Complete(HandshakeReply::SetupRefused));
}

#[test]
fn a_login_is_taken_or_refused() {
    let refused = Parsed::Complete(HandshakeReply::LoginRefused);
    for said in [
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
        "-ERR invalid password\r\n",
        "-ERR wrong number of arguments for 'auth' command\r\n",
    ] {
        assert_eq!(heard(true, PLAIN, said), refused, "{said}");
    }
    // A server without a password accepts a client that sends one: nutcracker's users rely on it.
    for no_password in [NO_PASSWORD, "-ERR Client sent AUTH, but no password is set\r\n"] {
        let said = format!("{no_password}{}", map(MAP_70, 2));
        assert_eq!(heard(true, PLAIN, &said), welcome(said.len(), true, REDIS));
    }
    // The same for a server that requires a login which we did not try.
    assert_eq!(heard(false, OTHER, NO_AUTH), refused);
    let said = "-NOAUTH HELLO must be called with the client already authenticated, otherwise\r\n";
    assert_eq!(heard(false, PLAIN, said), refused);
}

#[test]
fn a_lane_that_is_not_there_is_no_fault_of_the_server() {
    for said in [
        "-ERR DB index is out of range\r\n",
        "-ERR SELECT is not allowed in cluster mode\r\n",
        "-NOPERM this user has no permissions to run the 'select' command\r\n",
    ] {
        assert_eq!(
            heard(false, OTHER, said),
            Parsed::Complete(HandshakeReply::SetupRefused),
            "{said}"
        );
        let after_login = format!("+OK\r\n{said}");
        let found = heard(true, OTHER, &after_login);
        assert_eq!(found, Parsed::Complete(HandshakeReply::SetupRefused), "{said}");
    }
}

/// Redis and Valkey answer AUTH and HELLO all the same, but not SELECT.
#[test]
fn a_server_that_takes_no_further_connection_says_so() {
    for said in [
        "-ERR max number of clients reached\r\n",
        "-ERR max number of clients + cluster connections reached\r\n",
        "-DENIED Redis is running in protected mode because\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    ] {
        let refused = Parsed::Complete(HandshakeReply::Refused);
        assert_eq!(heard(false, ConnKey::default(), said), refused, "{said}");
        assert_eq!(heard(true, ConnKey::default(), said), refused, "{said}");
    }
}

#[test]
fn a_busy_server_refuses_neither_a_login_nor_a_database() {
    let busy = Parsed::Complete(HandshakeReply::Busy);
    let said = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN \
        NOSAVE.\r\n";
    for conn_key in [PLAIN, OTHER, THIRD] {
        let steps = 1 + usize::from(conn_key.database != 0);
        assert_eq!(heard(false, conn_key, &said.repeat(steps)), busy);
        assert_eq!(heard(true, conn_key, &said.repeat(steps + 1)), busy);
    }
    let begun = format!("+OK\r\n{said}");
    assert_eq!(heard(true, OTHER, &begun), Parsed::Incomplete);
    assert_eq!(heard(true, OTHER, &(begun + &map(MAP_70, 2))), busy);
}

#[test]
fn a_server_in_trouble_is_not_welcome() {
    let sentinel = map(MAP_70, 2).replace("$10\r\nstandalone", "$8\r\nsentinel");
    for (said, why) in [
        ("+OK\r\n", NO_WELCOME),
        ("*14\r\n", ""),
        ("*1\r\n+a\r\n", NO_WELCOME),
        (&map(MAP_70, 3), NO_WELCOME),
        (&sentinel, NO_DATA),
    ] {
        let expected = if why.is_empty() { Parsed::Incomplete } else { Parsed::Malformed(why) };
        assert_eq!(heard(false, PLAIN, said), expected, "{said}");
    }
    assert_eq!(heard(true, PLAIN, ":1\r\n"), Parsed::Malformed(NO_WELCOME));
}

/// The texts compiled into Redis 6.2 and 7.0 and Valkey 9.1.
#[test]
fn an_excuse_is_a_whole_sentence() {
    for (line, expected) in [
        ("LOADING Redis is loading the dataset in memory", Some(LOADING)),
        ("LOADING Valkey is loading the dataset in memory", Some(LOADING)),
        (
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            Some(MASTER_DOWN),
        ),
        (
            "MASTERDOWN Link with MASTER is down, replica-serve-stale-data is set to 'no' and \
             'allow-stale' flag is not set on the script.",
            Some(MASTER_DOWN),
        ),
        ("CLUSTERDOWN The cluster is down", Some(CLUSTER_DOWN)),
        ("CLUSTERDOWN Hash slot not served", Some(CLUSTER_DOWN)),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Some(TRY_AGAIN)),
        ("NOSCRIPT No matching script. Please use EVAL.", Some(NO_SCRIPT)),
        ("NOSCRIPT No matching script.", Some(NO_SCRIPT)),
        ("ERR no", None),
        ("LOADING", None),
        ("NOSCRIPT", None),
        ("BUSY Redis is busy running a script.", None),
        // A script that had changed something before it met this error.
        (
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'. \
             script: 0a1b, on @user_script:1.",
            None,
        ),
        ("TRYAGAIN later", None),
    ] {
        assert_eq!(Servers.retryable(format!("-{line}\r\n").as_bytes()), expected, "{line}");
        assert_eq!(Servers.retryable(format!("+{line}\r\n").as_bytes()), None);
    }
}
