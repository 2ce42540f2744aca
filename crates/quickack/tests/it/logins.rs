//! Names and passwords: the files that hold them, clients that must log in, and servers that
//! require a login from the proxy.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use testkit::process::{Client, Memcached, Quickack, free_address};
use testkit::wire::binary::{GET, HEAD_LEN, Head, NOOP, NOT_FOUND, Packet, REPLY};

/// Makes a folder with a file that no other user may read.
pub fn private(name: &str, contents: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), name, contents, 0o600);
    folder
}

fn write(folder: &Path, name: &str, contents: &str, mode: u32) {
    let file = folder.join(name);
    fs::write(&file, contents).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs `quickack check` on a pool with these directives, in a folder with the files of `private`.
fn check(folder: &Path, directives: &[&str]) -> String {
    let servers = ["127.0.0.1:11211".parse().unwrap()];
    let text = format!("global: {{workers: 1}}\n{}", super::config(&servers, directives));
    fs::write(folder.join("quickack.yml"), text).unwrap();
    let mut command = Command::new(super::QUICKACK);
    let output = command.args(["check", "quickack.yml"]).current_dir(folder).output().unwrap();
    let all = [output.stderr, output.stdout].concat();
    String::from_utf8(all).unwrap()
}

#[test]
fn check_says_how_many_users_there_are_and_what_is_wrong_with_their_file() {
    let folder = private("users", "anna:old-secret\nanna:new-secret\nbob:secret\n");
    let folder = folder.path();
    write(folder, "open", "anna:secret\n", 0o640);
    write(folder, "open to all", "anna:secret\n", 0o602);
    write(folder, "wrong", "# secret\nsecret\nanna:\n:secret\nanna:secret\n", 0o600);
    write(folder, "empty", "\n# secret\n", 0o600);
    fs::write(folder.join("latin1"), b"anna:secr\xe9t\n").unwrap();
    fs::set_permissions(folder.join("latin1"), fs::Permissions::from_mode(0o400)).unwrap();
    fs::create_dir(folder.join("folder")).unwrap();
    let mut all = String::new();
    let files = ["users", "open", "open to all", "wrong", "empty", "latin1", "folder", "none"];
    for file in files {
        all += &check(folder, &[&format!("users: {file}")]);
    }
    super::verbs::compare(&super::verbs::folder().join("golden/logins.txt"), &all);
    assert!(!all.contains("secret"), "{all}");
}

const USERS: &str = "# Of this test.\nanna:old-secret\nanna:new-secret\nbob:se cret\n";

/// Makes a login in memcached's text protocol.
fn login(name: &str, password: &str) -> String {
    format!("set any 0 0 {}\r\n{name} {password}\r\n", name.len() + 1 + password.len())
}

/// Makes a request of the binary protocol without extras.
fn binary(opcode: u8, key: &str, value: &str) -> Vec<u8> {
    let (key, value) = (key.as_bytes(), value.as_bytes());
    Packet { key, value, ..Packet::new(opcode, MARK) }.bytes()
}

/// Returns the status and the body of its answer.
#[track_caller]
fn answer(client: &mut Client) -> (u16, String) {
    let mut head = [0; HEAD_LEN];
    client.stream.read_exact(&mut head).unwrap();
    let head = Head::read(&head).unwrap();
    assert_eq!((head.magic, head.opaque), (REPLY, MARK));
    let mut body = vec![0; head.body_len];
    client.stream.read_exact(&mut body).unwrap();
    (head.status, String::from_utf8(body).unwrap())
}

const MARK: u32 = 0x4d41_524b;
const SASL_LIST: u8 = 0x20;
const SASL_AUTH: u8 = 0x21;
const OK: u16 = 0;
const AUTH_ERROR: u16 = 0x20;

#[test]
fn before_a_login_memcached_hears_nothing_of_a_client() {
    let (memcached, folder) = (Memcached::start(), private("users", USERS));
    let users = format!("users: {}", folder.path().join("users").display());
    let mut quickack = super::quickack(&[memcached.address], &[&users, "preconnect: on"]);
    let mut client = quickack.client();
    for request in ["get a\r\n", "mg a v\r\n", "mn\r\n", "version\r\n"] {
        client.ask(request, "CLIENT_ERROR unauthenticated\r\n");
    }
    client.ask(&login("anna", "no-secret"), "CLIENT_ERROR authentication failure\r\n");
    client.ask("get a\r\n", "CLIENT_ERROR unauthenticated\r\n");
    let mut stranger = quickack.client();
    stranger.send([binary(SASL_LIST, "", ""), binary(GET, "a", "")].concat());
    assert_eq!(answer(&mut stranger), (OK, "PLAIN".to_string()));
    assert_eq!(answer(&mut stranger).0, AUTH_ERROR);
    for (mechanism, words) in [("PLAIN", "\0anna\0no-secret"), ("CRAM-MD5", "anna")] {
        stranger.send(binary(SASL_AUTH, mechanism, words));
        assert_eq!(answer(&mut stranger).0, AUTH_ERROR);
    }
    for name in ["cmd_get", "cmd_set", "cmd_touch", "cmd_meta"] {
        assert_eq!(memcached.stat(name), 0, "{name}");
    }
    for password in ["old-secret", "new-secret"] {
        let mut client = quickack.client();
        client.ask(&login("anna", password), "STORED\r\n");
        client.ask("mg a v\r\nget a\r\n", "EN\r\nEND\r\n");
    }
    quickack.client().ask(&login("bob", "se cret"), "STORED\r\n");
    stranger.send(binary(SASL_AUTH, "PLAIN", "\0anna\0new-secret"));
    assert_eq!(answer(&mut stranger), (OK, "Authenticated".to_string()));
    stranger.send([binary(GET, "a", ""), binary(NOOP, "", "")].concat());
    assert_eq!(answer(&mut stranger).0, NOT_FOUND);
    assert_eq!(answer(&mut stranger).0, OK);
    assert_eq!(memcached.stat("curr_items"), 0, "a login is no item");
    let stats = super::harness::stats(&quickack).to_string();
    assert!(stats.contains("\"logins_total\":4"), "{stats}");
    assert!(stats.contains("\"logins_failed_total\":3"), "{stats}");
    // The last failure is reported without a fourth one.
    let said = quickack.process.wait_for("the three that failed", |said| {
        let counts = said.lines().filter_map(|line| {
            let (before, _) = line.split_once(" to pool alpha failed, from 127.0.0.1")?;
            let mut words = before.rsplit(' ');
            match words.next()? {
                "login" => Some(1),
                _ => words.next()?.parse::<u64>().ok(),
            }
        });
        (counts.sum::<u64>() == 3).then(|| said.to_string())
    });
    let shown = [said, stats, quickack.admin_ok(&["config", "--running"])].concat();
    assert!(!shown.contains("secret"), "{shown}");
}

/// A wrong password ends an earlier login: later requests reach no server.
#[test]
fn a_wrong_password_after_a_right_one_takes_the_login_away_before_memcached() {
    let (memcached, folder) = (Memcached::start(), private("users", USERS));
    let users = format!("users: {}", folder.path().join("users").display());
    let quickack = super::quickack(&[memcached.address], &[&users]);
    let wrong_ones = [("PLAIN", "\0anna\0no-secret"), ("PLAIN", "\0nobody\0old-secret")];
    for (mechanism, words) in wrong_ones.into_iter().chain([("CRAM-MD5", "anna")]) {
        let mut client = quickack.client();
        client.send(binary(SASL_AUTH, "PLAIN", "\0anna\0old-secret"));
        assert_eq!(answer(&mut client), (OK, "Authenticated".to_string()));
        client.send(binary(GET, "a", ""));
        assert_eq!(answer(&mut client).0, NOT_FOUND);
        let asked = memcached.stat("cmd_get");
        client.send([binary(SASL_AUTH, mechanism, words), binary(GET, "a", "")].concat());
        assert_eq!(answer(&mut client).0, AUTH_ERROR, "{mechanism} {words:?}");
        assert_eq!(answer(&mut client).0, AUTH_ERROR, "nobody may ask: {mechanism} {words:?}");
        client.send(binary(GET, "a", ""));
        assert_eq!(answer(&mut client).0, AUTH_ERROR);
        assert_eq!(memcached.stat("cmd_get"), asked, "no server heard of it");
        // The client logs in again.
        client.send(binary(SASL_AUTH, "PLAIN", "\0bob\0se cret"));
        assert_eq!(answer(&mut client).0, OK);
        client.send(binary(GET, "a", ""));
        assert_eq!(answer(&mut client).0, NOT_FOUND);
    }
}

/// Each answer must equal the real one's. Every request has its own connection, because memcached
/// 1.6.18 loses all answers but the last of input that arrives at once before a login. (For a login
/// without a password it reports a bad format; the proxy reports a failure.)
#[test]
fn the_words_of_a_login_are_those_of_memcached() {
    let folder = private("users", "anna:old-secret\nanna:new-secret\n");
    let users = folder.path().join("users");
    let behind = Memcached::start();
    let quickack = super::quickack(&[behind.address], &[&format!("users: {}", users.display())]);
    let memcached = memcached_with(&users);
    for requests in [
        [login("anna", "old-secret"), "get a\r\n".into(), "nonsense\r\n".into()],
        [login("anna", "no-secret"), "get a\r\n".into(), login("anna", "new-secret")],
        [login("anna", "x"), "\r\n".into(), "set a 0 0 x\r\n".into()],
        [login("nobody", "old-secret"), "set a 0 0\r\n".into(), "ms a S4\r\n".into()],
        ["set a 0 0 15 noreply\r\nanna new-secret\r\n".into(), "mn\r\n".into(), "mg a\r\n".into()],
    ] {
        let (mut here, mut there) = (quickack.client(), memcached.client());
        for request in requests {
            here.send(&request);
            there.send(&request);
            assert_eq!(here.line(), there.line(), "{request}");
        }
    }
}

/// Behind a balancer the address is the client's, not the balancer's. A unix socket has none.
#[test]
fn a_login_that_fails_is_logged_with_the_clients_address_and_name() {
    let folder = private("users", USERS);
    let (users, socket) = (folder.path().join("users"), folder.path().join("socket"));
    let pool = |name: &str, listen: &str, more: &str| {
        format!(
            "{name}:\n  listen: {listen}\n{more}  users: {}\n  memory: 1m\n  servers: [embedded]\n",
            users.display()
        )
    };
    let balanced = pool("alpha", "127.0.0.1:0", "  proxy_protocol: from [127.0.0.0/8]\n");
    let plain = pool("beta", "127.0.0.1:0", "");
    let unix = pool("gamma", &socket.display().to_string(), "");
    let text = format!("{balanced}{plain}{unix}");
    let mut quickack = Quickack::start(super::QUICKACK, &text);
    let wrong = login("anna", "no-secret");
    let header = "PROXY TCP4 203.0.113.7 203.0.113.8 56324 11211\r\n";
    let failed = "CLIENT_ERROR authentication failure\r\n";
    quickack.client().ask(&format!("{header}{wrong}"), failed);
    Client::connect(quickack.address_of("beta")).ask(&wrong, failed);
    let mut local = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    local.write_all(wrong.as_bytes()).unwrap();
    for told in [
        "alpha failed, from 203.0.113.7 as \"anna\"",
        "beta failed, from 127.0.0.1 as \"anna\"",
        "gamma failed, from a unix socket as \"anna\"",
    ] {
        quickack.process.wait_for(told, |said| said.contains(told).then_some(()));
    }
    let said = quickack.process.stderr_text();
    assert!(!said.contains("secret"), "{said}");
}

fn memcached_with(users: &Path) -> Memcached {
    let with = ["-Y", users.to_str().unwrap()];
    let tries = (0..20).find_map(|_| Memcached::start_with(free_address(), &with));
    tries.expect("memcached finds a port")
}

#[test]
fn a_reload_takes_other_passwords_and_who_is_logged_in_stays_before_memcached() {
    let folder = private("users", USERS);
    let users = format!("users: {}", folder.path().join("users").display());
    let (_memcached, quickack) = super::harness::field(2, &["removed_users: keep"], &[&users]);
    let mut clients: Vec<Client> = (0..6).map(|_| quickack.client()).collect();
    clients.iter_mut().for_each(|client| client.ask(&login("anna", "old-secret"), "STORED\r\n"));
    assert!(quickack.admin_ok(&["reload"]).contains("nothing changed"));
    write(folder.path(), "users", "carl:new-secret\n", 0o600);
    let said = quickack.admin_ok(&["reload"]);
    let told = "other users or passwords: 2 users with 3 passwords, now 1 user with 1 password";
    assert!(said.contains("applied by 2/2") && said.contains(told), "{said}");
    clients.iter_mut().for_each(|client| client.ask("get a\r\n", "END\r\n"));
    let mut late = quickack.client();
    late.ask(&login("anna", "old-secret"), "CLIENT_ERROR authentication failure\r\n");
    late.ask(&login("carl", "new-secret"), "STORED\r\n");
    // A file that others may read is refused, and the current configuration stays.
    write(folder.path(), "users", "carl:other-secret\n", 0o644);
    let refused = quickack.admin(&["reload"]);
    assert!(!refused.ok && refused.text.contains("its mode 0644 lets other users"), "{refused:?}");
    quickack.client().ask(&login("carl", "new-secret"), "STORED\r\n");
    // A value set at run time is compiled with the files that were read earlier.
    quickack.admin_ok(&["set", "alpha.timeout=3s"]);
    quickack.client().ask(&login("carl", "new-secret"), "STORED\r\n");
    // A worker that is started later has them too.
    let pid = super::harness::workers(&quickack)[&0].pid;
    super::harness::replace_worker(&quickack, pid, 2);
    (0..8).for_each(|_| quickack.client().ask(&login("carl", "new-secret"), "STORED\r\n"));
    let shown =
        format!("{}{}{refused:?}", quickack.process.stderr_text(), command_lines(&quickack));
    assert!(!shown.contains("secret"), "{shown}");
}

/// Returns the command lines of the master and all its children.
fn command_lines(quickack: &Quickack) -> String {
    let workers = quickack.workers().into_values();
    let all = workers.chain([quickack.process.id()]);
    all.map(|id| fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap()).collect()
}

#[test]
fn a_login_goes_with_its_client_from_worker_to_worker_before_memcached() {
    let folder = private("users", USERS);
    let users = format!("users: {}", folder.path().join("users").display());
    let (memcached, quickack) = super::harness::field(4, &[], &[&users]);
    let mut known: Vec<Client> = (0..16).map(|_| quickack.client()).collect();
    let mut strangers: Vec<Client> = (0..4).map(|_| quickack.client()).collect();
    for (at, client) in known.iter_mut().enumerate() {
        if at % 2 == 0 {
            client.ask(&login("anna", "new-secret"), "STORED\r\n");
        } else {
            client.send(binary(SASL_AUTH, "PLAIN", "\0anna\0new-secret"));
            assert_eq!(answer(client).0, OK);
        }
    }
    for count in [1, 3] {
        let text = super::harness::text(count, &[], &[memcached.address], &[&users]);
        quickack.rewrite(&text);
        quickack.admin_ok(&["reload"]);
        super::harness::wait_for_workers(&quickack, count);
        super::harness::wait_for_clients(&quickack, 20);
        for (at, client) in known.iter_mut().enumerate() {
            if at % 2 == 0 {
                client.ask("get a\r\n", "END\r\n");
            } else {
                client.send(binary(GET, "a", ""));
                assert_eq!(answer(client).0, NOT_FOUND);
            }
        }
        for client in &mut strangers {
            client.ask("get a\r\n", "CLIENT_ERROR unauthenticated\r\n");
        }
    }
}

#[test]
fn a_memcached_that_wants_a_login_hears_it_before_anything_else() {
    let folder = private("users", "proxy:pass\n");
    let ours = folder.path();
    write(ours, "right", "proxy:pass\n", 0o600);
    let memcached = memcached_with(&ours.join("users"));
    let directive = format!("server_login: {}", ours.join("right").display());
    let quickack = super::quickack(&[memcached.address], &[&directive]);
    let mut client = quickack.client();
    client.ask("set a 0 0 1\r\nx\r\nget a\r\n", "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    client.ask("get quickack:login\r\n", "END\r\n");
    client.ask("mg a v\r\n", "VA 1\r\nx\r\n");
}

#[test]
fn a_memcached_that_refuses_the_login_is_down_until_the_file_is_mended() {
    let folder = private("users", "proxy:pass-word\n");
    let ours = folder.path();
    write(ours, "ours", "proxy:wrong-word\n", 0o600);
    let memcached = memcached_with(&ours.join("users"));
    let directive = format!("server_login: {}", ours.join("ours").display());
    let mut quickack = super::quickack(&[memcached.address], &[&directive]);
    let server = memcached.address;
    let mut client = quickack.client();
    client.send("get a\r\n");
    let told = client.line();
    let expected = format!("SERVER_ERROR {server}: login refused: CLIENT_ERROR ");
    assert!(told.starts_with(&expected), "{told}");
    quickack.process.wait_for("that it is down", |said| {
        said.contains(&format!(
            "server {server} of pool alpha is down (login refused: CLIENT_ERROR unauthenticated)"
        ))
        .then_some(())
    });
    write(ours, "ours", "proxy:pass-word\n", 0o600);
    let said = quickack.admin_ok(&["reload"]);
    assert!(said.contains("pool alpha: another login to its servers"), "{said}");
    quickack.process.wait_for("that it is back", |said| said.contains("is back").then_some(()));
    client.ask("get a\r\n", "END\r\n");
    let said = quickack.process.stderr_text();
    assert!(!said.contains("-word"), "{said}");
}

#[test]
fn a_server_that_wants_no_login_does_not_keep_it() {
    let (memcached, folder) = (Memcached::start(), private("ours", "proxy:pass\n"));
    let directive = format!("server_login: {}", folder.path().join("ours").display());
    let config = super::config(&[memcached.address], &[&directive, "distribution: modula"]);
    let quickack = Quickack::start(super::QUICKACK, &format!("{config}   - embedded\n"));
    let mut client = quickack.client();
    let keys: Vec<String> = (0..20).map(|at| format!("key{at}")).collect();
    for key in &keys {
        client.ask(&format!("set {key} 0 0 1\r\nx\r\n"), "STORED\r\n");
    }
    client.ask("get quickack:login\r\n", "END\r\n");
    memcached.client().ask("get quickack:login\r\n", "END\r\n");
    let here = memcached.stat("curr_items");
    assert!((1..20).contains(&here), "{here} of 20 items are in memcached");
}
