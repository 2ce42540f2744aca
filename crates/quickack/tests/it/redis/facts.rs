//! Facts that servers and proxy report about themselves: INFO, CONFIG GET, HELLO, CLIENT INFO,
//! COMMAND DOCS and similar commands, in front of several servers; and the results in tools.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use testkit::process::{Family, Quickack, Redis, Speaker, free_address, wait_until};
use testkit::wire::resp::Reply;

use super::{addresses, quickack, servers};

const KEYS: usize = 200;
const LIMIT: u64 = 200 << 20;

fn speak(address: SocketAddr) -> Speaker {
    Speaker::connect(address)
}

/// Returns the text of INFO, in either version of RESP.
fn info(client: &mut Speaker, sections: &str) -> String {
    let line = format!("INFO {sections}");
    match client.say(line.trim_end()) {
        Reply::Bulk(text) => String::from_utf8(text).expect("text"),
        Reply::Other(b'=', text) => {
            let text = String::from_utf8(text).expect("text");
            text.strip_prefix("txt:").expect("a text").to_string()
        }
        other => panic!("INFO {sections}: {other:?}"),
    }
}

/// Returns one field of it.
#[track_caller]
fn field(info: &str, name: &str) -> String {
    let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {name} in\n{info}")).to_string()
}

fn config(client: &mut Speaker, name: &str) -> String {
    let reply = client.say(&format!("CONFIG GET {name}"));
    let value = reply.field(name).unwrap_or_else(|| panic!("CONFIG GET {name}: {reply:?}"));
    String::from_utf8_lossy(value.bytes().expect("a text")).into_owned()
}

/// Starts two servers with the same settings, and a proxy through which keys were set.
fn field_of(family: Family) -> (Vec<Redis>, Quickack) {
    let servers = servers(family, 2);
    for server in &servers {
        let mut direct = speak(server.address);
        direct.say(&format!("CONFIG SET maxmemory {LIMIT}"));
        direct.say("CONFIG SET maxmemory-policy allkeys-lru");
        direct.ask(&["CONFIG", "SET", "save", "60 1"]);
        // This test must not write any file.
        direct.say("CONFIG SET dir /tmp");
    }
    let quickack = quickack(&addresses(&servers), &["server_retry_timeout: 50ms"]);
    let mut client = speak(quickack.address());
    for n in 0..KEYS {
        assert_eq!(client.say(&format!("SET key{n} v")), Reply::Simple("OK".into()));
    }
    (servers, quickack)
}

#[test]
fn info_and_config_get_tell_what_the_servers_are() {
    for family in Family::ALL {
        let (servers, quickack) = field_of(family);
        for version in ["2", "3"] {
            let mut client = speak(quickack.address());
            client.say(&format!("HELLO {version}"));
            let text = info(&mut client, "");
            assert_eq!(field(&text, "maxmemory"), (2 * LIMIT).to_string());
            assert_eq!(field(&text, "maxmemory_human"), "400.00M");
            assert_eq!(field(&text, "maxmemory_policy"), "allkeys-lru");
            let keys = field(&text, "db0");
            assert!(keys.starts_with(&format!("keys={KEYS},expires=0,")), "{keys}");
            assert_eq!(field(&text, "loading"), "0");
            assert_eq!(field(&text, "role"), "master");
            assert_eq!(field(&text, "quickack_servers_up"), "2");
            let hits: u64 = servers.iter().map(|one| one.stat("keyspace_misses")).sum();
            assert_eq!(field(&text, "keyspace_misses"), hits.to_string());
            assert_eq!(config(&mut client, "maxmemory"), LIMIT.to_string());
            assert_eq!(config(&mut client, "maxmemory-policy"), "allkeys-lru");
            assert_eq!(config(&mut client, "save"), "60 1");
            assert_eq!(config(&mut client, "databases"), "16");
            // The answer for one section contains only that section.
            let text = info(&mut client, "keyspace");
            assert!(text.starts_with("# Keyspace\r\n") && !text.contains("quickack"), "{text}");
        }
        speak(servers[1].address).say("CONFIG SET maxmemory-policy noeviction");
        let mut client = speak(quickack.address());
        let each = "s1=allkeys-lru,s2=noeviction";
        assert_eq!(config(&mut client, "maxmemory-policy"), each);
        assert_eq!(field(&info(&mut client, "memory"), "maxmemory_policy"), each);
    }
}

/// A pool's clients must not get the servers' own passwords.
#[test]
fn config_get_tells_no_password_of_a_server() {
    let redis = Redis::start_with(Family::Redis70, &["--requirepass", "sesame"]);
    let quickack = quickack(&[redis.address], &["redis_auth: sesame"]);
    let mut client = speak(quickack.address());
    assert!(client.say("CONFIG GET requirepass").is_error(), "a login comes first");
    client.say("AUTH sesame");
    assert_eq!(client.say("CONFIG GET requirepass"), Reply::Array(Vec::new()));
    let all = client.say("CONFIG GET *");
    assert!(all.elements().len() > 100 && all.field("requirepass").is_none());
    assert!(!format!("{all:?}").contains("sesame"));
}

#[test]
fn a_server_that_is_down_is_named_and_the_others_tell_what_they_know() {
    let (mut servers, quickack) = field_of(Family::Redis70);
    drop(servers.pop());
    let mut client = speak(quickack.address());
    let text = info(&mut client, "");
    assert_eq!(field(&text, "maxmemory"), LIMIT.to_string());
    assert_eq!(field(&text, "loading"), "0");
    assert_eq!(field(&text, "role"), "master");
    assert_eq!(field(&text, "quickack_servers"), "2");
    assert_eq!(field(&text, "quickack_servers_up"), "1");
    let one = field(&text, "quickack_server0");
    assert!(one.starts_with("name=s1,state=up,role=master,redis_version=7.0.15"), "{one}");
    let two = field(&text, "quickack_server1");
    assert!(two.starts_with("name=s2,state=down,why="), "{two}");
    // Also in sections that do not concern the proxy.
    let text = info(&mut client, "memory");
    assert!(field(&text, "quickack_server1").starts_with("name=s2,state=down,"), "{text}");
    let reply = client.say("CONFIG GET save");
    assert_eq!(reply.field("save"), Some(&Reply::Bulk("60 1".into())));
    let told = reply.field("quickack-unanswered").and_then(Reply::bytes).unwrap_or_default();
    assert!(told.starts_with(b"s2: "), "{reply:?}");
    // These replies have no field for the server's name, so different answers give an error.
    for line in ["LASTSAVE", "MODULE LIST", "FUNCTION STATS"] {
        let error = client.say(line).error();
        assert!(error.starts_with("ERR s2: "), "{line}: {error}");
    }
    drop(servers);
    wait_until("nobody is left", || client.say("INFO").is_error());
    let error = client.say("INFO").error();
    assert!(error.starts_with("ERR s1: ") || error.starts_with("ERR s2: "), "{error}");
}

#[test]
fn lastsave_module_list_and_function_stats_work_over_several_servers() {
    for family in Family::ALL {
        let servers = servers(family, 3);
        let quickack = quickack(&addresses(&servers), &[]);
        for version in ["2", "3"] {
            let mut client = speak(quickack.address());
            let mut direct: Vec<Speaker> = servers.iter().map(|one| speak(one.address)).collect();
            client.say(&format!("HELLO {version}"));
            direct.iter_mut().for_each(|one| drop(one.say(&format!("HELLO {version}"))));
            let saves = direct.iter_mut().map(|one| match one.say("LASTSAVE") {
                Reply::Integer(time) => time,
                other => panic!("{other:?}"),
            });
            let oldest = saves.min().expect("three servers");
            assert_eq!(client.say("LASTSAVE"), Reply::Integer(oldest));
            assert_eq!(client.say("MODULE LIST"), direct[0].say("MODULE LIST"));
            if family == Family::Redis62 {
                assert!(client.say("FUNCTION STATS").is_error());
                continue;
            }
            let library = "#!lua name=facts\nredis.register_function('f', function() end)";
            client.ask(&["FUNCTION", "LOAD", "REPLACE", library]);
            assert_eq!(client.say("FUNCTION STATS"), direct[2].say("FUNCTION STATS"));
        }
    }
}

/// Clients derive the available commands from name and version.
#[test]
fn hello_and_info_tell_name_and_version_of_the_servers() {
    for (families, server, version, like) in [
        (&[Family::Redis62][..], "redis", "6.2.5", "6.2.5"),
        (&[Family::Redis70], "redis", "7.0.15", "7.0.15"),
        (&[Family::Valkey91, Family::Valkey91], "valkey", "9.1.2", "7.2.4"),
        (&[Family::Valkey91, Family::Redis70], "redis", "7.0.15", "7.0.15"),
        (&[Family::Redis70, Family::Redis62, Family::Valkey91], "redis", "6.2.5", "6.2.5"),
    ] {
        let servers: Vec<Redis> = families.iter().map(|family| Redis::start(*family)).collect();
        let quickack = quickack(&addresses(&servers), &[]);
        for line in ["HELLO", "HELLO 2", "HELLO 3"] {
            let mut client = speak(quickack.address());
            let hello = client.say(line);
            let told = |name| hello.field(name).and_then(Reply::bytes).map(<[u8]>::to_vec);
            assert_eq!(told("server"), Some(server.into()), "{families:?} {line}: {hello:?}");
            assert_eq!(told("version"), Some(version.into()), "{families:?} {line}: {hello:?}");
            let text = info(&mut client, "server");
            assert_eq!(field(&text, "redis_version"), like, "{families:?}");
            let is_valkey = server == "valkey";
            assert_eq!(text.contains("server_name:valkey\r\n"), is_valkey, "{text}");
            assert_eq!(text.contains("valkey_version:9.1.2\r\n"), is_valkey, "{text}");
        }
    }
}

#[test]
fn readonly_is_refused_where_redis_refuses_it() {
    for family in Family::ALL {
        let server = Redis::start(family);
        let quickack = quickack(&[server.address], &[]);
        // The first request of all waits for the server's handshake.
        for line in ["READONLY", "READWRITE"] {
            let ours = speak(quickack.address()).say(line);
            assert_eq!(ours, speak(server.address).say(line), "{} {line}", family.name());
        }
    }
}

#[test]
fn client_info_has_every_field_that_redis_has() {
    let names = |text: &str| -> Vec<String> {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, _)| name.to_string()).collect()
    };
    let servers = servers(Family::Redis70, 2);
    let quickack = quickack(&addresses(&servers), &[]);
    let direct = speak(servers[0].address).say("CLIENT INFO");
    let direct = String::from_utf8_lossy(direct.bytes().expect("a line")).into_owned();
    // Later requests in the pipeline are answered in order.
    let mut client = speak(quickack.address());
    client.send(b"SET a 1\r\nCLIENT INFO\r\nGET a\r\nCLIENT INFO\r\nMGET a b c\r\n");
    let mut reply = || client.reply().expect("an answer to each");
    assert_eq!(reply(), Reply::Simple("OK".into()));
    let line = reply();
    let line = String::from_utf8_lossy(line.bytes().expect("a line")).into_owned();
    assert_eq!(reply(), Reply::Bulk("1".into()));
    assert!(reply().bytes().is_some());
    assert_eq!(reply().elements().len(), 3);
    let ours = names(&line);
    let missing: Vec<String> = names(&direct).into_iter().filter(|it| !ours.contains(it)).collect();
    assert!(missing.is_empty(), "no {missing:?} in {line}");
    let own = client.stream.local_addr().expect("it is connected");
    assert!(line.contains(&format!(" addr={own} laddr={} fd=", quickack.address())), "{line}");
    assert!(line.contains(" user=default ") && line.contains(" cmd=client|info "), "{line}");
}

/// The table is made from Valkey's answers.
#[test]
fn command_docs_tell_arguments_as_the_server_does() {
    let server = Redis::start(Family::Valkey91);
    let quickack = quickack(&[server.address], &[]);
    for version in ["2", "3"] {
        let (mut ours, mut direct) = (speak(quickack.address()), speak(server.address));
        ours.say(&format!("HELLO {version}"));
        direct.say(&format!("HELLO {version}"));
        let (ours, direct) = (ours.say("COMMAND DOCS"), direct.say("COMMAND DOCS"));
        let told = ours.elements();
        assert!(told.len() > 400, "{} names and documents", told.len());
        let mut count = 0;
        for pair in told.chunks(2) {
            let name = String::from_utf8_lossy(pair[0].bytes().expect("a name")).into_owned();
            let theirs = direct.field(&name).expect("the server has it");
            assert_eq!(pair[1].field("arguments"), theirs.field("arguments"), "{name}");
            count += usize::from(theirs.field("arguments").is_some());
        }
        assert!(count > 150, "{count} commands have arguments");
    }
}

/// A program that runs until the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn redis_cli_stat_shows_the_pool() {
    let (_servers, quickack) = field_of(Family::Redis70);
    let _idle = speak(quickack.address()).say("PING");
    let port = quickack.address().port().to_string();
    let mut command = Command::new("redis-cli");
    command.args(["-p", &port, "--stat", "-i", "0.01"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = Running(child.expect("redis-cli is there"));
    let lines = BufReader::new(child.0.stdout.take().expect("a pipe")).lines();
    // The first row has no difference from an earlier one.
    let mut rows = lines.map_while(Result::ok).filter(|line| line.starts_with(char::is_numeric));
    let row = rows.nth(1).expect("a row");
    let words: Vec<&str> = row.split_whitespace().collect();
    // Columns: keys, mem, clients, blocked, requests, connections.
    assert_eq!(words[0], KEYS.to_string(), "{row}");
    assert!(words[1].ends_with('M'), "{row}");
    assert_eq!(words[3], "0", "{row}");
    let clients: u64 = words[2].parse().expect("a number of clients");
    assert!((1..=3).contains(&clients), "its own, and some that have just left: {row}");
    let requests: usize = words[4].parse().expect("a number of requests");
    assert!(requests > KEYS, "{row}");
}

#[test]
fn prometheus_redis_exporter_shows_the_pool() {
    let (mut servers, quickack) = field_of(Family::Redis70);
    let web = free_address();
    let mut command = Command::new("prometheus-redis-exporter");
    command.arg(format!("--redis.addr=redis://{}", quickack.address()));
    command.arg(format!("--web.listen-address={web}"));
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _child = Running(child.expect("the exporter is there; `cargo xtask test` installs it"));
    let mut text = String::new();
    wait_until("the exporter answers", || {
        text = scrape(web).unwrap_or_default();
        text.contains("redis_up ")
    });
    let check = |text: &str, line: &str| {
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    };
    check(&text, "redis_up 1");
    check(&text, &format!("redis_db_keys{{db=\"db0\"}} {KEYS}"));
    check(&text, "redis_db_keys{db=\"db15\"} 0");
    // The exporter uses this format for numbers.
    check(&text, "redis_memory_max_bytes 4.194304e+08");
    check(&text, "redis_config_maxmemory 2.097152e+08");
    check(&text, "redis_connected_clients 1");
    check(&text, "redis_exporter_last_scrape_error{err=\"\"} 0");
    let info = text.lines().find(|line| line.starts_with("redis_instance_info{")).expect("a line");
    for label in ["maxmemory_policy=\"allkeys-lru\"", "redis_version=\"7.0.15\"", "role=\"master\""]
    {
        assert!(info.contains(label), "{info}");
    }
    // It continues with one server less.
    drop(servers.pop());
    wait_until("the exporter shows one server", || {
        text = scrape(web).unwrap_or_default();
        text.contains("redis_memory_max_bytes 2.097152e+08")
    });
    check(&text, "redis_up 1");
}

/// Returns the exporter's page.
fn scrape(web: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(web)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
