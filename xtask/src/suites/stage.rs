//! The environment of a suite: its own network, /tmp, /run and process tree. So the ports and paths
//! in the tests are free, and nothing is left when it ends.
//!
//! ```text
//!   tests ──▶ 127.0.0.1:11211, /tmp/memcached.sock ──▶ memcached     directly
//!   tests ──▶ 127.0.0.1:6379                       ──▶ redis-server
//!   tests ──▶ the same places, quickack            ──▶ the same servers, elsewhere
//! ```

use std::fs::File;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{fs, thread};

use testkit::process::Process;

use super::{FOLDER, Runner, SUITES, Suite, fetch, said};
use crate::{Outcome, root};

/// The first argument of the part of this program that runs inside.
pub const INSIDE: &str = "--inside";

/// Runs the suite, through `program` if there is one; returns the tests' output.
pub fn play(suite: &Suite, folder: &Path, program: Option<&Path>) -> Result<String, String> {
    let way = if program.is_some() { "through" } else { "directly" };
    let path = fetch::below().join(format!("{}.{way}.txt", suite.name));
    println!("running {} {way}; what it says: {}", suite.name, path.display());
    let said = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let errors = said.try_clone().map_err(|error| error.to_string())?;
    let words = "--map-root-user --net --mount --pid --fork --kill-child --mount-proc";
    let mut command = Command::new("unshare");
    command.args(words.split(' '));
    command.arg(std::env::current_exe().map_err(|error| error.to_string())?);
    command.args(["suites", INSIDE, suite.name]).arg(folder).args(program);
    let command = command.stdin(Stdio::null()).stdout(said).stderr(errors);
    let mut child = command.spawn().map_err(|error| format!("cannot run unshare: {error}"))?;
    let ended = wait(&mut child, SUITE_MAX);
    let said = fs::read(&path).map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&said).into_owned();
    match ended && said.contains(WHOLE) {
        true => Ok(said),
        false => Err(format!("{} {way} did not end; it said:\n{}", suite.name, tail(&said))),
    }
}

/// Waits for its end; kills it at the deadline, with all its descendants.
fn wait(child: &mut Child, deadline: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// The inner part of `play`: SUITE FOLDER [PROGRAM].
pub fn inside(arguments: &[String]) -> Outcome {
    let [name, folder, program @ ..] = arguments else { return Err("SUITE FOLDER".into()) };
    let suite = SUITES.iter().find(|suite| suite.name == name).ok_or("no such suite")?;
    let program = program.first().map(Path::new);
    fetch::finish(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    fetch::finish(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/tmp"]))?;
    fetch::finish(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]))?;
    let mut command = match &suite.runner {
        Runner::Tap => return tap(folder, program),
        Runner::Pytest(words) => pytest(words)?,
        Runner::Phpt => phpt(),
        Runner::Units => return units(folder, program),
    };
    let _servers = start_servers(program)?;
    command.current_dir(folder).stdin(Stdio::null());
    command.env("MEMCACHED_HOST", "127.0.0.1").env("MEMCACHED_PORT", "11211");
    // Failed tests are a result of the suite, not a failure of the run.
    command.status().map_err(|error| error.to_string())?;
    println!("{WHOLE}");
    Ok(())
}

fn pytest(words: &[&str]) -> Result<Command, String> {
    let mut command = Command::new(fetch::python()?);
    // The projects' own options would measure coverage.
    command.args(["-m", "pytest", "-q", "-rpfE", "--tb=line", "--timeout=30", "--color=no"]);
    // Otherwise one that takes too long ends all.
    command.arg("--timeout-method=signal");
    command.args(["-p", "no:cacheprovider", "-o", "addopts=", "--show-capture=no"]).args(words);
    // On a narrower terminal it truncates its summary.
    command.env("COLUMNS", "250");
    Ok(command)
}

fn phpt() -> Command {
    let mut command = Command::new("php");
    command.args(["run-tests.php", "-q", "--no-color", "tests"]);
    command.env("NO_INTERACTION", "1").env("TEST_TIMEOUT", "30");
    command
}

/// Runs each file alone, several at a time, because most of them wait most of the time.
fn tap(folder: &str, program: Option<&Path>) -> Outcome {
    let files = fs::read_dir(Path::new(folder).join("t")).map_err(|error| error.to_string())?;
    let names = files.flatten().map(|file| format!("t/{}", file.file_name().to_string_lossy()));
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".t")).collect();
    names.sort();
    let real = Path::new(folder).join("memcached-real");
    let stand_in = root().join(FOLDER).join("memcached-debug");
    let started = if program.is_some() { stand_in } else { real };
    let debug = Path::new(folder).join("memcached-debug");
    fs::copy(started, debug).map_err(|error| error.to_string())?;
    let names = Mutex::new(names.into_iter());
    thread::scope(|scope| {
        for _ in 0..FILES_AT_A_TIME {
            scope.spawn(|| {
                // The lock is held only to take the next name.
                let next = || names.lock().expect("nobody panics with it").next();
                while let Some(name) = next() {
                    print!("{}", tap_file(folder, &name, program));
                }
            });
        }
    });
    println!("{WHOLE}");
    Ok(())
}

/// Returns the output of one file, after a line with its name.
fn tap_file(folder: &str, name: &str, program: Option<&Path>) -> String {
    // Not a pipe: a process started by the test may live longer and would hold it open.
    let path = format!("/tmp/{}.said", name.replace('/', "-"));
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", TAP_FILE_MAX, "perl", name]).current_dir(folder);
    command.env("MEMCACHED_DEBUG", Path::new(folder).join("memcached-real"));
    command.env("ALLOW", allowed("memcached"));
    command.envs(program.map(|program| ("QUICKACK", program)));
    let ended = File::create(&path).and_then(|said| {
        let errors = said.try_clone()?;
        command.stdin(Stdio::null()).stdout(said).stderr(errors).status()
    });
    let ended = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
    let said = fs::read(&path).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    // Some print values of a megabyte.
    let lines = said.lines().map(|line| line.chars().take(LINE_MAX).chain(['\n']));
    format!("{}{name}\n{}# ended: {ended}\n", said::FILE, lines.flatten().collect::<String>())
}

/// Runs each unit alone, with a new server, since some leave it changed. A failed test does not end
/// its unit (`--durable`).
fn units(folder: &str, program: Option<&Path>) -> Outcome {
    let file = root().join(FOLDER).join("redis.units");
    let names =
        fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    for name in names.lines().filter(|line| !line.starts_with('#')) {
        let _servers = start_servers(program)?;
        println!("{}{name}", said::FILE);
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", UNIT_MAX, "tclsh", "tests/test_helper.tcl"]);
        command.args(["--host", "127.0.0.1", "--port", "6379", "--durable", "--single", name]);
        super::SKIPPED.iter().for_each(|test| {
            command.args(["--skiptest", test]);
        });
        command.envs(program.map(|_| ("PAST", "16379")));
        let said = command.current_dir(folder).output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&said.stdout);
        // Each line has the colours of a terminal.
        let bare = |part: &str| match part.split_once('m') {
            Some((code, rest)) if code.starts_with('[') => rest.to_string(),
            _ => part.to_string(),
        };
        for line in said.lines() {
            println!("{}", line.split('\x1b').map(bare).collect::<String>());
        }
    }
    println!("{WHOLE}");
    Ok(())
}

/// Starts the servers on the tests' addresses, or quickack there and the servers elsewhere.
fn start_servers(program: Option<&Path>) -> Result<Vec<Process>, String> {
    let [tcp, socket, redis] = match program {
        None => ["11211", "/tmp/memcached.sock", "6379"],
        Some(_) => ["21211", "/tmp/server.sock", "16379"],
    };
    let mut servers = vec![
        start(Command::new("memcached").args(["-u", "root", "-l", "127.0.0.1", "-p", tcp]), tcp),
        start(Command::new("memcached").args(["-u", "root", "-s", socket]), socket),
        start(
            Command::new("redis-server")
                .args(["--port", redis, "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp"])
                .args(["--enable-debug-command", "yes"]),
            redis,
        ),
    ];
    if let Some(program) = program {
        // One worker counts all who get a message.
        let config = [
            "global:\n  workers: 1\n".to_string(),
            pool("127.0.0.1:11211", &format!("127.0.0.1:{tcp}"), "memcached"),
            pool("/tmp/memcached.sock", socket, "memcached"),
            pool("127.0.0.1:6379", &format!("127.0.0.1:{redis}"), "redis"),
        ];
        fs::write("/tmp/quickack.yml", config.concat()).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        servers.push(start(command.args(["run", "-c", "/tmp/quickack.yml"]), "6379"));
    }
    Ok(servers)
}

fn pool(listen: &str, server: &str, protocol: &str) -> String {
    let name = listen.replace(['/', '.', ':'], "_");
    let allow = allowed(protocol);
    format!(
        "{name}:\n  listen: {listen}\n  protocol: {protocol}\n  allow: {allow}\n  \
         servers:\n    - {server}:1\n"
    )
}

/// Starts a server and waits until it accepts on a loopback port or a socket.
fn start(command: &mut Command, place: &str) -> Process {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut server = Process::start(&name, command);
    server.wait_for(&format!("that it accepts on {place}"), |_| {
        let accepted = match place.starts_with('/') {
            true => UnixStream::connect(place).is_ok(),
            false => TcpStream::connect(format!("127.0.0.1:{place}")).is_ok(),
        };
        accepted.then_some(())
    });
    server
}

/// Returns a pool's `allow:`, from the file with one name per line.
fn allowed(protocol: &str) -> String {
    let file = root().join(FOLDER).join(format!("{protocol}.allow"));
    let text = fs::read_to_string(file).unwrap_or_default();
    format!("{:?}", text.lines().collect::<Vec<_>>())
}

/// The last line of a complete run.
const WHOLE: &str = "-- whole --";
/// Limit for the whole suite. Each test also has its runner's own limit.
const SUITE_MAX: Duration = Duration::from_secs(1800);
/// Seconds for one file of memcached's tests; directly to the server the longest takes 25.
const TAP_FILE_MAX: &str = "90";
/// Seconds for one of Redis' units.
const UNIT_MAX: &str = "300";
const LINE_MAX: usize = 200;
const FILES_AT_A_TIME: usize = 6;
