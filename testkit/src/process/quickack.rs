//! quickack with a test's configuration: the master, its workers, and its verbs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::facts::{self, Facts};
use super::{Client, Process, wait_until};

pub struct Quickack {
    pub process: Process,
    program: PathBuf,
    /// Pools with their listening addresses, in the order of the file.
    pools: Vec<(String, SocketAddr)>,
    /// Holds the configuration file, the admin socket, and files of the test.
    folder: TempDir,
}

/// The result of a verb.
#[derive(Debug)]
pub struct Answer {
    pub ok: bool,
    /// Its output, stdout followed by stderr.
    pub text: String,
}

impl Quickack {
    /// Starts `program` and waits until every TCP pool of `config` has logged its address and the
    /// workers are running.
    pub fn start(program: &str, config: &str) -> Quickack {
        Quickack::start_by(Command::new(program), program, config)
    }

    /// Starts it through a command that finally runs quickack, such as a shell that lowers a limit.
    pub fn start_by(mut command: Command, program: &str, config: &str) -> Quickack {
        let folder = tempfile::tempdir().expect("a folder for the configuration");
        let file = folder.path().join(FILE);
        let text = complete(config, folder.path());
        fs::write(&file, &text).expect("a new file in an own folder");
        command.args(["run", "-c"]).arg(&file).env(RUNTIME, folder.path());
        let mut process = Process::start("quickack", &mut command);
        let expected = config.lines().filter(|line| is_tcp_listener(line)).count();
        let pools = process.wait_for("where it listens", |text| {
            let pools: Vec<_> = text.lines().filter_map(parse_listening).collect();
            (pools.len() == expected).then_some(pools)
        });
        let quickack = Quickack { process, program: program.into(), pools, folder };
        if let Some(count) = text.lines().find_map(|line| line.trim().strip_prefix("workers:")) {
            quickack.wait_for_workers(count.trim().parse().expect("tests say a number of workers"));
        }
        quickack
    }

    /// Returns the address of its first pool.
    pub fn address(&self) -> SocketAddr {
        self.pools[0].1
    }

    pub fn address_of(&self, pool: &str) -> SocketAddr {
        let found = self.pools.iter().find(|(name, _)| name == pool);
        found.unwrap_or_else(|| panic!("no pool {pool}")).1
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// Returns its workers by number, from the process table: processes with a worker's title.
    pub fn workers(&self) -> BTreeMap<usize, u32> {
        let children = facts::children(self.process.id()).into_iter();
        let number =
            |title: &str| title.strip_prefix("quickack: worker ")?.split(' ').next()?.parse().ok();
        children.filter_map(|(id, title)| Some((number(&title)?, id))).collect()
    }

    /// Waits until there are exactly `count` workers, and returns their ids.
    #[track_caller]
    pub fn wait_for_workers(&self, count: usize) -> BTreeMap<usize, u32> {
        let mut workers = BTreeMap::new();
        wait_until(&format!("{count} workers are there: {}", self.process.stderr_text()), || {
            workers = self.workers();
            workers.len() == count
        });
        workers
    }

    /// Returns the ids of its embedded cache processes.
    pub fn caches(&self) -> Vec<u32> {
        let children = facts::children(self.process.id()).into_iter();
        children.filter(|(_, title)| title.contains("cache")).map(|(id, _)| id).collect()
    }

    /// Returns the kernel's data about all processes that serve clients.
    pub fn worker_process(&self) -> Facts {
        Facts::of(self.workers().into_values())
    }

    /// Runs one of its verbs, such as `reload`, with the path of its file.
    pub fn admin(&self, arguments: &[&str]) -> Answer {
        let mut command = self.admin_command(arguments);
        let output = command.output().expect("the program was built for this test");
        Answer::of(&output)
    }

    /// Returns the command of a verb, for a test that does not wait for its end.
    pub fn admin_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(arguments[0]).arg("-c").arg(self.file()).args(&arguments[1..]);
        command.stdin(Stdio::null()).env(RUNTIME, self.folder.path());
        command
    }

    /// Runs a verb that must succeed, and returns its output.
    #[track_caller]
    pub fn admin_ok(&self, arguments: &[&str]) -> String {
        let answer = self.admin(arguments);
        assert!(answer.ok, "{arguments:?}: {}\n{}", answer.text, self.process.stderr_text());
        answer.text
    }

    /// Sends one line to its admin socket, without a process for it; returns the answer.
    pub fn ask(&self, line: &str) -> String {
        Quickack::read_answer(self.begin_to_ask(line))
    }

    /// Sends one line to its admin socket; the answer comes there, and then its end.
    pub fn begin_to_ask(&self, line: &str) -> UnixStream {
        let socket = UnixStream::connect(self.folder.path().join(SOCKET));
        let mut socket = socket.expect("it listens on its admin socket");
        socket.set_read_timeout(Some(ANSWER)).expect("a deadline that is not zero");
        socket.write_all(format!("{line}\n").as_bytes()).expect("it reads");
        socket
    }

    /// Waits for the answer to what was asked on that connection.
    pub fn read_answer(mut asked: UnixStream) -> String {
        let mut text = String::new();
        asked.read_to_string(&mut text).expect("it answers in text");
        text
    }

    /// Replaces the text of its file; quickack does not notice until it is told to reload.
    pub fn rewrite(&self, config: &str) {
        let text = complete(config, self.folder.path());
        fs::write(self.file(), text).expect("the file is ours");
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join(FILE)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Answer {
    fn of(output: &Output) -> Answer {
        let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        Answer { ok: output.status.success(), text: text.concat() }
    }
}

/// Adds settings that every test needs to `config`: the number of workers, from the environment or
/// one, its own admin socket, and deadlines that no busy machine reaches. The test's own settings
/// win.
fn complete(config: &str, folder: &Path) -> String {
    let config = patient(config);
    let admin = folder.join(SOCKET).display().to_string();
    let mut settings = String::new();
    let has = |name: &str| config.lines().any(|line| line.trim_start().starts_with(name));
    if !has("workers:") {
        settings.push_str(&format!("  workers: {}\n", any_number_of_workers()));
    }
    for (name, value) in [("admin", admin), ("hang_timeout", "20s".into())] {
        if !has(&format!("{name}:")) {
            settings.push_str(&format!("  {name}: {value}\n"));
        }
    }
    match config.split_once("global:\n") {
        Some((before, after)) => format!("{before}global:\n{settings}{after}"),
        None if config.ends_with('\n') || config.is_empty() => {
            format!("{config}global:\n{settings}")
        }
        None => format!("{config}\nglobal:\n{settings}"),
    }
}

/// Returns the number of workers for a test that names none, and notes that this test does:
/// `cargo xtask test four` runs those with four.
fn any_number_of_workers() -> String {
    let noted = std::env::var_os("QUICKACK_ANY_WORKERS");
    if let (Some(folder), Ok(test)) = (noted, std::env::var("NEXTEST_TEST_NAME")) {
        fs::write(Path::new(&folder).join(test), "").expect("the runner has made the folder");
    }
    std::env::var("QUICKACK_WORKERS").unwrap_or_else(|_| "1".to_string())
}

/// Adds a long deadline to each pool without one. The default of a second may pass before a busy
/// machine has answered, and the test is not about that.
fn patient(config: &str) -> String {
    let is_top = |line: &str| line.starts_with(|c: char| !c.is_whitespace() && c != '#');
    let lines: Vec<&str> = config.split_inclusive('\n').collect();
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        text.push_str(line);
        let is_listen = line.starts_with(' ') && line.trim_start().starts_with("listen:");
        let start = lines[..at].iter().rposition(|line| is_top(line)).unwrap_or(0);
        let block =
            lines[start..=at].iter().chain(lines[at + 1..].iter().take_while(|it| !is_top(it)));
        let is_said = |line: &&str| line.trim_start().starts_with("timeout");
        if is_listen && !block.copied().any(|line| is_said(&line)) {
            let indent = &line[..line.len() - line.trim_start().len()];
            text.push_str(&format!("{indent}timeout: {LONG}\n"));
        }
    }
    text
}

fn is_tcp_listener(line: &str) -> bool {
    line.trim().strip_prefix("listen:").is_some_and(|value| !value.trim().starts_with('/'))
}

/// `… listening on 127.0.0.1:4711 (pool alpha) …`
fn parse_listening(line: &str) -> Option<(String, SocketAddr)> {
    let (_, rest) = line.split_once("listening on ")?;
    let (address, rest) = rest.split_once(" (pool ")?;
    let (pool, _) = rest.split_once(')')?;
    Some((pool.to_string(), address.parse().ok()?))
}

/// How long an answer may take: a change reads its file and asks all workers twice.
const ANSWER: Duration = Duration::from_secs(60);
/// Longer than any test waits.
const LONG: &str = "60s";
/// The directory of proxies' admin sockets: never the machine's own in a test.
const RUNTIME: &str = "RUNTIME_DIRECTORY";
const FILE: &str = "quickack.yml";
const SOCKET: &str = "admin.sock";
