//! Directives of a pool with real servers: those of a nutcracker.yml, unchanged, and our own.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use testkit::process::{Client, Family, Quickack, Redis, Speaker, wait_until};
use testkit::wire::resp::Reply;

use super::super::QUICKACK;
use super::super::harness::wait_for_workers;
use super::{addresses, config, quickack, servers};

/// Sends one request as an array of bulk strings; the answer must begin with `reply`.
#[track_caller]
fn ask(client: &mut Client, words: &str, reply: &str) {
    client.send(resp(words));
    client.expect(reply);
}

fn resp(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{bulks}", words.len())
}

/// Sends a request whose answer must be an error line that contains `told`.
#[track_caller]
fn refused(client: &mut Client, words: &str, told: &str) {
    client.send(resp(words));
    let line = client.line();
    assert!(line.starts_with('-') && line.contains(told), "{words}: {line}");
}

/// Makes a typical file of nutcracker's.
fn nutcracker_yml(redis: &Redis, more: &str) -> String {
    let address = redis.address;
    format!(
        "alpha:\n  listen: 127.0.0.1:0\n  hash: fnv1a_64\n  distribution: ketama\n  \
         auto_eject_hosts: false\n  redis: true\n{more}  servers:\n   - {address}:1\n"
    )
}

#[test]
fn redis_auth_is_asked_of_clients_and_told_to_servers() {
    for family in Family::ALL {
        let redis = Redis::start_with(family, &["--requirepass", "sesame"]);
        let text = nutcracker_yml(&redis, "  redis_auth: sesame\n  redis_db: 3\n");
        let quickack = Quickack::start(QUICKACK, &text);
        let mut client = quickack.client();
        refused(&mut client, "GET k", "NOAUTH");
        refused(&mut client, "AUTH wrong", "WRONGPASS");
        ask(&mut client, "AUTH sesame", "+OK\r\n");
        ask(&mut client, "SET k v", "+OK\r\n");
        ask(&mut client, "GET k", "$1\r\nv\r\n");
        let mut direct = redis.client();
        ask(&mut direct, "AUTH sesame", "+OK\r\n");
        ask(&mut direct, "GET k", "$-1\r\n");
        ask(&mut direct, "SELECT 3", "+OK\r\n");
        ask(&mut direct, "GET k", "$1\r\nv\r\n");
        let mut other = quickack.client();
        ask(&mut other, "AUTH default sesame", "+OK\r\n");
        ask(&mut other, "GET k", "$1\r\nv\r\n");
    }
}

/// As in a server, a wrong password neither ends an earlier login nor makes one.
#[test]
fn a_wrong_password_after_a_right_one_changes_nothing_as_in_redis() {
    for family in Family::ALL {
        let redis = Redis::start_with(family, &["--requirepass", "sesame"]);
        let text = nutcracker_yml(&redis, "  redis_auth: sesame\n");
        let quickack = Quickack::start(QUICKACK, &text);
        // Each on its own connection, because the proxy ends one after too many failures.
        for wrong in ["AUTH wrong", "AUTH default wrong", "HELLO 2 AUTH default wrong"] {
            for mut client in [redis.client(), quickack.client()] {
                refused(&mut client, wrong, "WRONGPASS");
                refused(&mut client, "GET k", "NOAUTH");
                ask(&mut client, "AUTH sesame", "+OK\r\n");
                refused(&mut client, wrong, "WRONGPASS");
                ask(&mut client, "GET k", "$-1\r\n");
            }
        }
    }
}

/// nutcracker ignores a server's reply to its AUTH.
#[test]
fn a_server_without_a_password_serves_a_pool_with_redis_auth() {
    for family in Family::ALL {
        let redis = Redis::start(family);
        let quickack = Quickack::start(QUICKACK, &nutcracker_yml(&redis, "  redis_auth: sesame\n"));
        let mut client = quickack.client();
        ask(&mut client, "AUTH sesame", "+OK\r\n");
        ask(&mut client, "SET k v", "+OK\r\n");
        ask(&mut client, "GET k", "$1\r\nv\r\n");
    }
}

/// nutcracker would continue in database 0.
#[test]
fn a_database_that_the_server_lacks_is_an_error_and_never_another() {
    let redis = Redis::start_with(Family::Redis70, &["--databases", "4"]);
    let quickack = Quickack::start(QUICKACK, &nutcracker_yml(&redis, "  redis_db: 9\n"));
    let mut client = quickack.client();
    refused(&mut client, "SET k v", "refuses this database");
    ask(&mut client, "SELECT 1", "+OK\r\n");
    ask(&mut client, "SET k v", "+OK\r\n");
    ask(&mut redis.client(), "DBSIZE", ":0\r\n");
}

#[test]
fn clients_choose_among_the_databases_of_the_file() {
    let redis = servers(Family::Valkey91, 2);
    let quickack = quickack(&addresses(&redis), &["databases: 4", "redis_db: 1"]);
    let mut client = quickack.client();
    ask(&mut client, "SET k one", "+OK\r\n");
    ask(&mut client, "SELECT 3", "+OK\r\n");
    ask(&mut client, "GET k", "$-1\r\n");
    refused(&mut client, "SELECT 4", "out of range");
    ask(&mut client, "SELECT 1", "+OK\r\n");
    ask(&mut client, "GET k", "$3\r\none\r\n");
}

/// `check` warns of it. What is told of all servers must not tell of this one four times.
#[test]
fn one_redis_under_four_names_is_counted_walked_and_emptied_once() {
    for family in Family::ALL {
        let redis = Redis::start(family);
        let quickack = quickack(&[redis.address; 4], &["allow: [flushall]"]);
        let (mut client, mut direct) =
            (Speaker::connect(quickack.address()), Speaker::connect(redis.address));
        let sorted = |mut keys: Vec<String>| {
            keys.sort();
            keys
        };
        let keys = sorted((0..100).map(|at| format!("k{at}")).collect());
        for key in &keys {
            assert_eq!(client.say(&format!("SET {key} v")), Reply::Simple("OK".into()));
        }
        assert_eq!(client.say("DBSIZE"), Reply::Integer(100));
        assert_eq!(sorted(client.say("KEYS *").texts()), keys);
        let (mut cursor, mut walked) = ("0".to_string(), Vec::new());
        loop {
            let reply = client.say(&format!("SCAN {cursor} COUNT 7"));
            walked.extend(reply.list()[1].texts());
            cursor = reply.list()[0].text().to_string();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(sorted(walked), keys);
        let keyspace = client.say("INFO keyspace");
        assert!(keyspace.text().contains("db0:keys=100,"), "{}", keyspace.text());
        direct.say("CONFIG RESETSTAT");
        assert_eq!(client.say("FLUSHALL"), Reply::Simple("OK".into()));
        let calls = direct.say("INFO commandstats");
        assert!(calls.text().contains("cmdstat_flushall:calls=1,"), "{}", calls.text());
        assert_eq!(client.say("DBSIZE"), Reply::Integer(0));
    }
}

#[test]
fn keys_apart_are_refused_where_the_file_says_so() {
    let redis = servers(Family::Redis70, 4);
    let quickack = quickack(&addresses(&redis), &["multi_key: refuse"]);
    let mut client = quickack.client();
    let keys: Vec<String> = (0..20).map(|at| format!("k{at}")).collect();
    let together: Vec<String> = (0..20).map(|at| format!("{{t}}k{at}")).collect();
    for name in ["MGET", "DEL", "EXISTS", "TOUCH", "UNLINK"] {
        refused(&mut client, &format!("{name} {}", keys.join(" ")), "CROSSSLOT");
    }
    refused(&mut client, &format!("MSET {}", keys.join(" ")), "CROSSSLOT");
    ask(&mut client, &format!("MSET {}", together.join(" ")), "+OK\r\n");
    ask(&mut client, &format!("EXISTS {}", together.join(" ")), ":10\r\n");
    // Of the refused requests nothing was sent.
    let calls = redis.iter().map(|server| server.stat("total_commands_processed")).sum::<u64>();
    assert!(calls < 20, "{calls}");
}

/// In a pool without `hash_tag` a tag has no effect, so the error names the missing directive.
#[test]
fn keys_apart_are_told_what_would_bring_them_together() {
    let redis = servers(Family::Redis70, 4);
    let keys: Vec<String> = (0..20).map(|at| format!("k{at}")).collect();
    let tagged: Vec<String> = (0..20).map(|at| format!("{{t}}k{at}")).collect();
    let keys = [keys.join(" "), tagged.join(" ")];
    for rule in ["multi_key: split", "multi_key: refuse"] {
        let with = config(&addresses(&redis), &[rule]);
        let without = with.replace("  hash_tag: \"{}\"\n", "");
        let other = with.replace("\"{}\"", "\"[]\"");
        assert!(with != without && with != other);
        for (text, advice) in [
            (&with, "; a hash tag in both brings them together, as in {user:1}:name"),
            (&other, "; a hash tag in both brings them together, as in [user:1]:name"),
            (&without, "; the pool has no `hash_tag`: with `hash_tag: \"{}\"` a hash tag in both"),
        ] {
            let quickack = Quickack::start(QUICKACK, text);
            let mut client = quickack.client();
            let asked = ["SUNION", if rule.ends_with("refuse") { "MGET" } else { "SINTER" }];
            for name in asked {
                refused(&mut client, &format!("{name} {}", keys[0]), advice);
            }
            if text == &with {
                ask(&mut client, &format!("SUNION {}", keys[1]), "*0\r\n");
            } else {
                refused(&mut client, &format!("SUNION {}", keys[1]), advice);
            }
        }
    }
}

/// Quotes and escapes in an inline command, as typed by a person, with a password that needs them.
#[test]
fn a_password_in_quotes_is_read_as_redis_reads_it() {
    let password = "p a's\\\"s";
    let redis = Redis::start_with(Family::Redis70, &["--requirepass", password]);
    let row = "  redis_auth: \"p a's\\\\\\\"s\"\n";
    let quickack = Quickack::start(QUICKACK, &nutcracker_yml(&redis, row));
    for (line, is_right) in [
        (r#"AUTH "p a's\\\"s""#, true),
        (r#"AUTH "\x70\x20\x61\x27\x73\x5c\x22\x73""#, true),
        (r#"AUTH "\p a's\\\x22\x73""#, true),
        (r#"AUTH default "p a's\x5C\"s""#, true),
        (r#"auth "default" 'p a\'s\"s'"#, true),
        (r#"AUTH 'p a\'s\"s'"#, true),
        (r#"AUTH 'p a\x27s\"s'"#, false),
        (r#"AUTH "p a's\n\\\"s""#, false),
        (r#"AUTH "p\ta's\\\"s""#, false),
        (r#"HELLO 2 AUTH default "p a's\\\"s" nonsense"#, false),
    ] {
        let said = [redis.client(), quickack.client()].map(|mut client| {
            client.send(format!("{line}\r\n"));
            client.line()
        });
        assert_eq!(said[0], said[1], "{line}");
        assert_eq!(said[0] == "+OK", is_right, "{line}: {}", said[0]);
    }
}

/// A command that quickack does not know: the server has it under another name.
#[test]
fn a_command_of_the_file_goes_to_its_keys_server() {
    let renamed = ["--rename-command", "GETRANGE", "acme.range"];
    let redis: Vec<Redis> = (0..4).map(|_| Redis::start_with(Family::Redis70, &renamed)).collect();
    let row = "commands: {ACME.Range: {key: 1, access: read}}";
    let quickack = quickack(&addresses(&redis), &[row]);
    let mut client = quickack.client();
    for at in 0..20 {
        ask(&mut client, &format!("SET key:{at} value-{at}"), "+OK\r\n");
        ask(&mut client, &format!("acme.range key:{at} 0 4"), "$5\r\nvalue\r\n");
    }
    refused(&mut client, "acme.other key:1", "unknown command 'acme.other'");
    refused(&mut client, "acme.range", "too few arguments");
    ask(&mut client, "PING", "+PONG\r\n");
}

#[test]
fn a_reload_changes_what_may_be_changed_and_refuses_another_protocol() {
    let redis = servers(Family::Redis70, 4);
    let quickack = quickack(&addresses(&redis), &[]);
    let mut client = quickack.client();
    ask(&mut client, "MSET a 1 b 2 c 3 d 4 e 5 f 6 g 7 h 8", "+OK\r\n");
    refused(&mut client, "FLUSHALL", "");
    refused(&mut client, "SELECT 20", "out of range");
    let more = ["multi_key: refuse", "databases: 32", "allow: [flushall]"];
    quickack.rewrite(&config(&addresses(&redis), &more));
    let told = quickack.admin_ok(&["reload"]);
    assert!(told.contains("multi_key"), "{told}");
    refused(&mut client, "MGET a b c d e f g h", "CROSSSLOT");
    ask(&mut client, "FLUSHALL", "+OK\r\n");
    ask(&mut client, "DBSIZE", ":0\r\n");
    let memcached = config(&addresses(&redis), &[]).replace("protocol: redis", "timeout: 1s");
    quickack.rewrite(&memcached);
    let answer = quickack.admin(&["reload"]);
    assert!(!answer.ok && answer.text.contains("protocol: redis -> memcached"), "{answer:?}");
    ask(&mut client, "PING", "+PONG\r\n");
}

#[test]
fn a_reload_moves_where_new_clients_begin_and_leaves_the_others_where_they_are() {
    let renamed = ["--rename-command", "GETRANGE", "acme.range"];
    let redis = vec![Redis::start_with(Family::Redis62, &renamed)];
    let quickack = quickack(&addresses(&redis), &["redis_db: 1"]);
    let mut old = quickack.client();
    ask(&mut old, "SET k one", "+OK\r\n");
    refused(&mut old, "acme.range k 0 0", "unknown command");
    let more = ["redis_db: 2", "commands: {acme.range: {key: 1, access: read}}"];
    quickack.rewrite(&config(&addresses(&redis), &more));
    quickack.admin_ok(&["reload"]);
    ask(&mut old, "GET k", "$3\r\none\r\n");
    ask(&mut old, "acme.range k 0 0", "$1\r\no\r\n");
    let mut new = quickack.client();
    ask(&mut new, "GET k", "$-1\r\n");
    ask(&mut new, "SELECT 1", "+OK\r\n");
    ask(&mut new, "GET k", "$3\r\none\r\n");
    ask(&mut new, "RESET", "+RESET\r\n");
    ask(&mut new, "GET k", "$-1\r\n");
    quickack.rewrite(&config(&addresses(&redis), &["databases: 2"]));
    quickack.admin_ok(&["reload"]);
    refused(&mut new, "SELECT 2", "out of range");
    refused(&mut new, "acme.range k 0 0", "unknown command");
}

/// The file of users is for the clients' logins; the links still use the servers' password.
#[test]
fn users_of_a_file_and_redis_auth_for_the_servers() {
    let redis = Redis::start_with(Family::Valkey91, &["--requirepass", "sesame"]);
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    let write = |text: &str| {
        fs::write(&users, text).unwrap();
        fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("anna:two words\n");
    let more = format!("  redis_auth: sesame\n  users: {}\n", users.display());
    let quickack = Quickack::start(QUICKACK, &nutcracker_yml(&redis, &more));
    let mut client = quickack.client();
    refused(&mut client, "AUTH sesame", "WRONGPASS");
    refused(&mut client, "GET k", "NOAUTH");
    client.send("*3\r\n$4\r\nAUTH\r\n$4\r\nanna\r\n$9\r\ntwo words\r\n");
    client.expect("+OK\r\n");
    ask(&mut client, "SET k v", "+OK\r\n");
    ask(&mut client, "ACL WHOAMI", "$4\r\nanna\r\n");
    let mut hello = quickack.client();
    write("anna:other\nbob:x\n");
    quickack.admin_ok(&["reload"]);
    refused(&mut hello, "HELLO 3 AUTH anna wrong", "WRONGPASS");
    hello.send(resp("HELLO 3 AUTH bob x"));
    hello.read_until("$7\r\nmodules\r\n*0\r\n");
    ask(&mut hello, "GET none", "_\r\n");
    ask(&mut client, "GET k", "$1\r\nv\r\n");
}

/// Database, version of RESP and client name go with the connection to another worker.
#[test]
fn a_client_that_changes_its_worker_stays_who_it_is() {
    let redis = servers(Family::Redis70, 2);
    let text =
        |workers| format!("global:\n  workers: {workers}\n{}", config(&addresses(&redis), &[]));
    let quickack = Quickack::start(QUICKACK, &text(1));
    let mut clients: Vec<Client> = (0..16).map(|_| quickack.client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send(resp("HELLO 3"));
        client.send(resp("ECHO done"));
        client.read_until("$4\r\ndone\r\n");
        ask(client, &format!("CLIENT SETNAME name-{at}"), "+OK\r\n");
        ask(client, &format!("SELECT {at}"), "+OK\r\n");
        ask(client, &format!("SET here {at}"), "+OK\r\n");
    }
    // New workers get some of the clients, and hand them back when they retire.
    for count in [4, 1, 3] {
        quickack.rewrite(&text(count));
        quickack.admin_ok(&["reload"]);
        wait_until("each worker has its share", || {
            let workers = wait_for_workers(&quickack, count);
            workers.values().all(|worker| worker.clients >= 16 / count as u64 - 1)
        });
        clients.iter_mut().enumerate().for_each(|(at, client)| still_is(client, at));
    }
}

/// Checks its database, RESP3 and its name.
#[track_caller]
fn still_is(client: &mut Client, at: usize) {
    let (digits, name) = (at.to_string(), format!("name-{at}"));
    ask(client, "GET here", &format!("${}\r\n{digits}\r\n", digits.len()));
    ask(client, "GET none", "_\r\n");
    ask(client, "CLIENT GETNAME", &format!("${}\r\n{name}\r\n", name.len()));
}

/// They look at its name and the number of its arguments first.
#[test]
fn a_malformed_command_before_login_reads_what_servers_say() {
    let redis = Redis::start_with(Family::Redis70, &["--requirepass", "sesame"]);
    let text = nutcracker_yml(&redis, "  redis_auth: sesame\n");
    let quickack = Quickack::start(QUICKACK, &text);
    let requests: [&[&str]; 13] = [
        &["AUTH"],
        &["GET"],
        &["get", "k", "l"],
        &["NOPE", "a", "b"],
        &["CLIENT"],
        &["CLIENT", "NOPE"],
        &["CLIENT", "SETNAME"],
        &["RESET", "x"],
        &["GET", "k"],
        &["CLIENT", "ID"],
        &["EVAL", "x", "2", "k"],
        &["PING", "a", "b"],
        &["MULTI"],
    ];
    let [mut ours, mut its] =
        [quickack.address(), redis.address].map(testkit::process::Speaker::connect);
    for words in requests {
        assert_eq!(ours.ask(words), its.ask(words), "{words:?}");
    }
    assert_eq!(ours.ask(&["AUTH", "sesame"]), its.ask(&["AUTH", "sesame"]));
    assert_eq!(ours.ask(&["GET"]), its.ask(&["GET"]));
}
