//! Clients of other languages, each set up as its own people do, in text and in binary, with and
//! without a login: every word of theirs, its values and its misses, in front of four memcacheds.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use testkit::process::{Memcached, Quickack};

use super::{field, peer_script, root, run};

/// A client's script says its words to memcached itself, and then to four of them through us.
fn check(script: &Script, arguments: &[&str]) {
    let (memcacheds, quickack) = field(4, &[]);
    run(&mut script.command(memcacheds[0].address.port(), arguments));
    memcacheds[0].client().ask("flush_all\r\n", "OK\r\n");
    run(&mut script.command(quickack.address().port(), arguments));
}

/// The same words, after a login.
fn check_with_login(script: &Script, arguments: &[&str]) {
    let (_memcacheds, quickack, _folder) = field_with_login();
    run(&mut script.command(quickack.address().port(), &[arguments, &[NAME, PASSWORD]].concat()));
}

const NAME: &str = "shop";
const PASSWORD: &str = "open, sesame";

fn field_with_login() -> (Vec<Memcached>, Quickack, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder for the users");
    let users = folder.path().join("users");
    std::fs::write(&users, format!("{NAME}:old one\n{NAME}:{PASSWORD}\n")).expect("an own folder");
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&users, private).expect("the file is ours");
    let (memcacheds, quickack) = field(4, &[&format!("users: {}", users.display())]);
    (memcacheds, quickack, folder)
}

/// How a script is run.
enum Script {
    Python(&'static str),
    Php(&'static str),
    /// `testkit/peers/go`.
    Go,
    /// `testkit/peers/java`.
    Java,
}

impl Script {
    fn command(&self, port: u16, arguments: &[&str]) -> Command {
        let mut command = match self {
            Script::Python(name) => with(Command::new(root().join(".venv/bin/python")), name),
            Script::Php(name) => with(Command::new("php"), name),
            Script::Go => {
                let mut command = Command::new("go");
                command.args(["run", "."]).current_dir(peer_script("go"));
                command
            }
            Script::Java => {
                let mut command = Command::new("java");
                command.arg("-cp").arg(root().join(".java/*"));
                with(command, "java/ThroughSpymemcached.java")
            }
        };
        command.arg(port.to_string()).args(arguments);
        command
    }
}

fn with(mut command: Command, script: impl AsRef<Path>) -> Command {
    command.arg(peer_script("").join(script));
    command
}

const PYLIBMC: &Script = &Script::Python("through_pylibmc.py");
const BMEMCACHED: &Script = &Script::Python("through_bmemcached.py");
const PHP: &Script = &Script::Php("through_php.php");

#[test]
fn pylibmc_works_in_text_and_in_binary() {
    check(PYLIBMC, &["0"]);
    check(PYLIBMC, &["1"]);
}

#[test]
fn pylibmc_works_with_sasl() {
    check_with_login(PYLIBMC, &["1"]);
}

#[test]
fn bmemcached_works() {
    check(BMEMCACHED, &[]);
}

#[test]
fn bmemcached_works_with_sasl() {
    check_with_login(BMEMCACHED, &[]);
}

#[test]
fn gomemcache_works() {
    check(&Script::Go, &[]);
}

#[test]
fn spymemcached_works() {
    check(&Script::Java, &[]);
}

#[test]
fn spymemcached_works_with_sasl() {
    check_with_login(&Script::Java, &[]);
}

#[test]
fn php_memcached_works_in_binary_mode() {
    let (_memcacheds, quickack) = field(4, &[]);
    run(&mut PHP.command(quickack.address().port(), &["1"]));
}

#[test]
fn php_memcached_works_in_binary_mode_with_sasl() {
    check_with_login(PHP, &["1"]);
}
