//! Real clients in front, real memcached behind: a dialogue between them must be the same through
//! the proxy.

mod binary;
mod clients;
mod keys;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::process::{Client, Memcached, Quickack};

use super::quickack;

/// Starts quickack in front of that many memcacheds.
fn field(servers: usize, more: &[&str]) -> (Vec<Memcached>, Quickack) {
    let memcacheds: Vec<Memcached> = (0..servers).map(|_| Memcached::start()).collect();
    let addresses: Vec<_> = memcacheds.iter().map(|memcached| memcached.address).collect();
    // md5 spreads even keys that differ in one digit; fnv1a_64 keeps those together.
    let quickack = quickack(&addresses, &[&["hash: md5"][..], more].concat());
    (memcacheds, quickack)
}

/// Sends each request in turn and expects exactly the given answer; first with memcached itself, so
/// that the expectation is memcached's and not ours.
fn check(dialogue: &[(&str, &str)]) {
    let (memcacheds, quickack) = field(1, &[]);
    for mut client in [memcacheds[0].client(), quickack.client()] {
        for (request, reply) in dialogue {
            client.ask(request, reply);
        }
        // No further answer was waiting.
        client.ask("get the-end-of-the-dialogue\r\n", "END\r\n");
        memcacheds[0].client().ask("flush_all\r\n", "OK\r\n");
    }
}

#[test]
fn memcached_answers_through_us_in_its_own_words() {
    check(&[
        ("get a\r\n", "END\r\n"),
        ("set a 7 0 3\r\nabc\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 7 3\r\nabc\r\nEND\r\n"),
        ("get a b a\r\n", "VALUE a 7 3\r\nabc\r\nVALUE a 7 3\r\nabc\r\nEND\r\n"),
        ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("add b 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("replace b 0 0 1\r\ny\r\n", "STORED\r\n"),
        ("replace c 0 0 1\r\ny\r\n", "NOT_STORED\r\n"),
        ("append b 0 0 1\r\nz\r\n", "STORED\r\n"),
        ("prepend b 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("get b\r\n", "VALUE b 0 3\r\nxyz\r\nEND\r\n"),
        ("set n 0 0 2\r\n10\r\n", "STORED\r\n"),
        ("incr n 5\r\n", "15\r\n"),
        ("decr n 20\r\n", "0\r\n"),
        ("incr missing 1\r\n", "NOT_FOUND\r\n"),
        ("incr a 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        ("touch a 100\r\n", "TOUCHED\r\n"),
        ("touch missing 100\r\n", "NOT_FOUND\r\n"),
        ("gat 100 a missing\r\n", "VALUE a 7 3\r\nabc\r\nEND\r\n"),
        ("delete a\r\n", "DELETED\r\n"),
        ("delete a\r\n", "NOT_FOUND\r\n"),
        ("cas missing 0 0 1 1\r\nx\r\n", "NOT_FOUND\r\n"),
        ("set empty 0 0 0\r\n\r\n", "STORED\r\n"),
        ("get empty\r\n", "VALUE empty 0 0\r\n\r\nEND\r\n"),
        ("set line 0 0 13\r\nEND\r\nSTORED\r\n\r\n", "STORED\r\n"),
        ("get line\r\n", "VALUE line 0 13\r\nEND\r\nSTORED\r\n\r\nEND\r\n"),
        ("set gone 0 -1 1\r\nx\r\n", "STORED\r\n"),
        ("get gone\r\n", "END\r\n"),
        ("nonsense\r\n", "ERROR\r\n"),
        ("get\r\n", "ERROR\r\n"),
    ]);
}

/// memcached continues parsing in the middle of bytes that may be data. The proxy cannot know where
/// the next request begins, so it ends the connection.
#[test]
fn a_length_that_memcached_cannot_read_ends_the_conversation() {
    let (_memcacheds, quickack) = field(1, &[]);
    let mut client = quickack.client();
    client.send("set a 0 0 abc\r\nflush_all\r\n");
    assert_eq!(client.rest(), "CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn memcached_is_told_of_every_noreply() {
    check(&[
        ("set a 0 0 1 noreply\r\n1\r\nget a\r\n", "VALUE a 0 1\r\n1\r\nEND\r\n"),
        ("incr a 4 noreply\r\nget a\r\n", "VALUE a 0 1\r\n5\r\nEND\r\n"),
        ("append a 0 0 1 noreply\r\n0\r\nget a\r\n", "VALUE a 0 2\r\n50\r\nEND\r\n"),
        ("add a 0 0 1 noreply\r\n1\r\nget a\r\n", "VALUE a 0 2\r\n50\r\nEND\r\n"),
        ("touch a 100 noreply\r\nget a\r\n", "VALUE a 0 2\r\n50\r\nEND\r\n"),
        ("delete a noreply\r\nget a\r\n", "END\r\n"),
        ("delete a noreply\r\ndecr a 1 noreply\r\nget a\r\n", "END\r\n"),
    ]);
}

/// A cas number is the server's own, so the dialogue cannot be fixed in advance.
#[test]
fn memcached_cas_numbers_pass_unchanged() {
    let (_memcacheds, quickack) = field(1, &[]);
    let mut client = quickack.client();
    client.ask("set a 0 0 1\r\n1\r\n", "STORED\r\n");
    client.send("gets a\r\n");
    let reply = client.read_until("END\r\n");
    let number = reply.lines().next().and_then(|head| head.rsplit(' ').next()).expect("a number");
    client.ask(&format!("cas a 0 0 1 {number}\r\n2\r\n"), "STORED\r\n");
    client.ask(&format!("cas a 0 0 1 {number}\r\n3\r\n"), "EXISTS\r\n");
    client.send("gats 100 a\r\n");
    let reply = client.read_until("END\r\n");
    assert!(reply.starts_with("VALUE a 0 1 "), "{reply}");
    client.ask("get a\r\n", "VALUE a 0 1\r\n2\r\nEND\r\n");
}

#[test]
fn a_get_of_many_keys_is_gathered_from_four_memcacheds() {
    let (memcacheds, quickack) = field(4, &[]);
    let mut client = quickack.client();
    for n in 0..400 {
        client.ask(&format!("set key{n} {n} 0 4\r\n{n:04}\r\n"), "STORED\r\n");
    }
    for memcached in &memcacheds {
        assert!(memcached.stat("curr_items") > 20, "the ring leaves a server out");
    }
    // In a random order, with misses and with each key twice.
    let asked: Vec<usize> = (0..1000).map(|n| n * 367 % 500).collect();
    let mut request = String::from("get");
    let mut reply = String::new();
    for n in asked {
        request.push_str(&format!(" key{n}"));
        if n < 400 {
            reply.push_str(&format!("VALUE key{n} {n} 4\r\n{n:04}\r\n"));
        }
    }
    client.ask(&format!("{request}\r\n"), &format!("{reply}END\r\n"));
}

#[test]
fn large_values_pass_whole_to_memcached_and_back() {
    let (_memcacheds, quickack) = field(2, &[]);
    let mut clients = [quickack.client(), quickack.client()];
    for (at, len) in [4_095, 4_096, 65_537, 500_000, 1_000_000].into_iter().enumerate() {
        let value: String =
            (0..len).map(|n| char::from(b'a' + (n * (at + 3) % 23) as u8)).collect();
        let set = format!("set big{at} 0 0 {len}\r\n{value}\r\n");
        let reply = format!("VALUE big{at} 0 {len}\r\n{value}\r\n");
        clients[0].ask(&set, "STORED\r\n");
        // Both clients send before either reads, and a small value is between two large ones.
        let request = format!("get big{at} small big{at}\r\nget small\r\n");
        clients.iter_mut().for_each(|client| client.send(&request));
        for client in &mut clients {
            client.expect(&format!("{reply}{reply}END\r\nEND\r\n"));
        }
    }
}

#[test]
fn memcached_sees_gets_of_many_clients_merged_and_each_gets_its_own() {
    let (memcacheds, quickack) = field(1, &[]);
    let mut clients: Vec<Client> = (0..20).map(|_| quickack.client()).collect();
    for n in 0..40 {
        clients[0].ask(&format!("set k{n} 0 0 2\r\n{n:02}\r\n"), "STORED\r\n");
    }
    for round in 0..200 {
        for (at, client) in clients.iter_mut().enumerate() {
            let (one, two) = ((at + round) % 50, (at * 7) % 50);
            client.send(format!("get k{one}\r\nget k{two}\r\nget none\r\n"));
        }
        for (at, client) in clients.iter_mut().enumerate() {
            let expected = |n: usize| match n {
                0..40 => format!("VALUE k{n} 0 2\r\n{n:02}\r\nEND\r\n"),
                _ => String::from("END\r\n"),
            };
            let (one, two) = ((at + round) % 50, (at * 7) % 50);
            client.expect(&format!("{}{}END\r\n", expected(one), expected(two)));
        }
    }
    // Every requested key was requested once: merging neither drops nor repeats one.
    assert_eq!(memcacheds[0].stat("cmd_get"), 200 * 20 * 3);
}

#[test]
fn pymemcache_works_with_all_its_defaults() {
    let (_memcacheds, quickack) = field(4, &[]);
    let mut command = Command::new(root().join(".venv/bin/python"));
    command.arg(peer_script("through_pymemcache.py")).arg(quickack.address().port().to_string());
    run(&mut command);
}

#[test]
fn php_memcached_works_in_text_mode() {
    let (_memcacheds, quickack) = field(4, &[]);
    let mut command = Command::new("php");
    command.arg(peer_script("through_php.php")).arg(quickack.address().port().to_string());
    run(&mut command);
}

/// Runs memcapable's tests: all that pass on memcached must pass on one memcached behind the proxy,
/// except those in the list (test and reason).
fn check_capable(protocol: &str, exceptions: &[(&str, &str)]) {
    let (memcacheds, quickack) = field(1, &["allow: [flush_all]"]);
    let ask = |address: std::net::SocketAddr| {
        let mut command = Command::new("memccapable");
        command.args(["-h", "127.0.0.1", "-p", &address.port().to_string(), protocol]);
        let output = finish(&mut command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let results = text.lines().filter_map(|line| {
            let (name, result) = line.split_once("  ")?;
            Some((name.to_string(), result.trim().to_string()))
        });
        (results.collect::<Vec<_>>(), text)
    };
    let (direct, _) = ask(memcacheds[0].address);
    let (ours, text) = ask(quickack.address());
    assert!(direct.len() > 20, "memccapable says less than expected: {direct:?}");
    for (theirs, ours) in direct.iter().zip(&ours) {
        let excepted = exceptions.iter().any(|(name, _)| *name == theirs.0);
        assert!(theirs == ours || excepted, "{theirs:?} directly, {ours:?} through us\n{text}");
    }
    assert_eq!(direct.len(), ours.len(), "it stopped in the middle:\n{text}");
}

#[test]
fn memccapable_finds_what_it_finds_in_memcached() {
    check_capable("-a", &[]);
}

#[test]
fn memccapable_finds_in_binary_what_it_finds_in_memcached() {
    check_capable("-b", &[]);
}

#[test]
fn memcp_copies_files_and_memcat_gives_them_back() {
    let (_memcacheds, quickack) = field(4, &[]);
    let folder = tempfile::tempdir().expect("a folder for the files");
    let server = format!("--servers=127.0.0.1:{}", quickack.address().port());
    let mut names = Vec::new();
    for (at, len) in [0, 1, 1_000, 8_190, 100_000, 900_000].into_iter().enumerate() {
        let name = format!("file{at}");
        let content: String = (0..len).map(|n| char::from(b'!' + (n % 90) as u8)).collect();
        std::fs::write(folder.path().join(&name), &content).expect("an own folder");
        names.push((name, content));
    }
    let mut copy = Command::new(tool("memcp", "memccp"));
    copy.current_dir(folder.path()).arg("--set").arg(&server);
    run(copy.args(names.iter().map(|(name, _)| name)));
    for (name, content) in names {
        let output = run(Command::new(tool("memcat", "memccat")).arg(&server).arg(&name));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.trim_end_matches('\n') == content, "{name}: {} bytes", text.len());
    }
}

/// Debian gives the tools other names than their authors do.
fn tool<'a>(name: &'a str, debian: &'a str) -> &'a str {
    let found = |name: &str| Path::new("/usr/bin").join(name).exists();
    if found(debian) { debian } else { name }
}

pub fn peer_script(name: &str) -> PathBuf {
    root().join("testkit/peers").join(name)
}

/// Returns the workspace's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a command, which must succeed.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let output = finish(command);
    let (said, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{stderr}", output.status);
    output
}

fn finish(command: &mut Command) -> Output {
    match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?}: {error}; `cargo xtask test` installs the peers"),
    }
}
