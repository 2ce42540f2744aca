//! Proxies that run at the same time: finding the right one, and the remains of killed ones. Their
//! names are in a folder of the test's, set by `RUNTIME_DIRECTORY`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::Signal;
use tempfile::TempDir;
use testkit::process::{Process, facts, wait_until};

use super::QUICKACK;

/// A folder with configurations, and a folder in it for the names of running proxies.
pub(super) struct Site {
    pub(super) folder: TempDir,
}

/// The result of a verb.
pub(super) struct Answer {
    pub(super) ok: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Site {
    pub(super) fn new() -> Site {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(NAMES)).unwrap();
        fs::set_permissions(folder.path().join(NAMES), fs::Permissions::from_mode(0o700)).unwrap();
        Site { folder }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a configuration with an embedded cache; `global` are lines of its first block.
    pub(super) fn write(&self, name: &str, global: &str) {
        let text = format!(
            "global:\n  workers: 1\n{global}alpha:\n  listen: 127.0.0.1:0\n  memory: 1m\n  \
             servers: [embedded]\n"
        );
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs with the configuration of that name until it logs the place of its socket.
    pub(super) fn run(&self, name: &str) -> Process {
        self.run_by(Command::new(QUICKACK), name)
    }

    /// Runs it through a command that finally runs quickack.
    pub(super) fn run_by(&self, mut command: Command, name: &str) -> Process {
        command.args(["run", "-c"]).arg(self.path(name)).env(RUNTIME, self.path(NAMES));
        let mut process = Process::start(name, &mut command);
        process.wait_for("its admin socket", |said| said.contains("admin socket").then_some(()));
        process
    }

    pub(super) fn ask(&self, words: &[&str]) -> Answer {
        let mut command = Command::new(QUICKACK);
        command.args(words).current_dir(self.folder.path()).env(RUNTIME, self.path(NAMES));
        Answer::of(&command.output().unwrap())
    }

    /// Returns the entries of the folder of names.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path(NAMES)).unwrap().map(Result::unwrap);
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Answer {
    pub(super) fn of(output: &Output) -> Answer {
        let [stdout, stderr] = [&output.stdout, &output.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        Answer { ok: output.status.success(), stdout, stderr }
    }

    /// Checks that the answer is from this proxy.
    #[track_caller]
    pub(super) fn is_of(&self, process: &Process) {
        let start = format!("master {},", process.id());
        assert!(self.ok && self.stdout.starts_with(&start), "{}{}", self.stdout, self.stderr);
    }
}

pub(super) fn kill(mut process: Process) {
    process.signal(Signal::KILL);
    process.wait_for_end();
}

pub(super) const RUNTIME: &str = "RUNTIME_DIRECTORY";
pub(super) const NAMES: &str = "names";

/// A proxy with a default socket and one with a named socket are killed; a running one has the
/// second one's socket. Each kind of name is left over, and neither is mistaken for a running
/// proxy.
#[test]
fn proxies_that_were_killed_are_not_listed_and_their_places_are_taken_again() {
    let site = Site::new();
    let admin = format!("  admin: {}\n", site.path("admin.sock").display());
    site.write("plain.yml", "");
    for name in ["one.yml", "two.yml"] {
        site.write(name, &admin);
    }
    kill(site.run("plain.yml"));
    kill(site.run("one.yml"));
    let two = site.run("two.yml");
    assert_eq!(site.names().len(), 6, "a name and a lock each: {:?}", site.names());
    site.ask(&["workers"]).is_of(&two);
    site.ask(&["workers", "-c", "two.yml"]).is_of(&two);
    let dead = site.ask(&["workers", "-c", "plain.yml"]);
    assert!(!dead.ok && dead.stderr.contains("no proxy that runs with"), "{}", dead.stderr);
    let plain = site.run("plain.yml");
    site.ask(&["workers", "-c", "plain.yml"]).is_of(&plain);
    let both = site.ask(&["workers"]);
    assert!(both.stderr.contains("several proxies run"), "{}", both.stderr);
    assert_eq!(both.stderr.matches(".sock").count(), 2, "{}", both.stderr);
    // An orderly end removes the proxy's own names, and leaves those of others.
    for mut process in [plain, two] {
        process.signal(Signal::TERM);
        process.wait_for_end();
    }
    let left = site.names();
    assert!(left.len() == 2 && left.iter().all(|name| name.starts_with("one-")), "{left:?}");
}

/// A second proxy with the same file neither takes nor removes the first one's name.
#[test]
fn the_name_of_a_proxy_that_runs_is_not_taken_by_another_with_the_same_file() {
    let site = Site::new();
    site.write("plain.yml", "");
    let first = site.run("plain.yml");
    let mut command = Command::new(QUICKACK);
    command.args(["run", "-c"]).arg(site.path("plain.yml")).env(RUNTIME, site.path(NAMES));
    let mut second = Process::start("second", &mut command);
    second.wait_for("that it runs without", |said| {
        let told = said.contains("another proxy is running with this configuration; running");
        (told && said.contains("listening on")).then_some(())
    });
    site.ask(&["workers", "-c", "plain.yml"]).is_of(&first);
    // It tries again and again, and says so once.
    let said = second.stderr_text();
    let port = said.lines().find_map(|line| line.split("listening on ").nth(1));
    let port = port.and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap();
    let mut client = testkit::process::Client::connect(port);
    wait_until("it has tried twice more", || {
        client.send("stats\r\n");
        let facts = client.read_until("END\r\n");
        let uptime = facts.lines().find_map(|line| line.strip_prefix("STAT uptime "));
        uptime.unwrap().trim().parse::<u64>().unwrap() >= 2
    });
    assert_eq!(
        second.stderr_text().matches("another proxy is running").count(),
        1,
        "{}",
        second.stderr_text()
    );
    // It takes the name when that is free.
    let mut first = first;
    first.signal(Signal::TERM);
    first.wait_for_end();
    wait_until("the second is found", || site.ask(&["workers", "-c", "plain.yml"]).ok);
    site.ask(&["workers", "-c", "plain.yml"]).is_of(&second);
}

/// A second proxy does not see the socket of the first, and starts and ends repeatedly. The first
/// one's file no longer contains its socket's path, so only the name leads to it.
#[test]
fn a_proxy_in_a_mount_namespace_of_its_own_leaves_the_names_of_others() {
    let site = Site::new();
    fs::create_dir(site.path("hidden")).unwrap();
    let admin = format!("  admin: {}\n", site.path("hidden/admin.sock").display());
    site.write("first.yml", &admin);
    site.write("other.yml", "");
    let first = site.run("first.yml");
    site.write("first.yml", "");
    let away =
        format!("mount -t tmpfs tmpfs {} && exec {QUICKACK} \"$@\"", site.path("hidden").display());
    let mut answers = 0;
    for round in 0..5 {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &away, "sh"]);
        let mut other = site.run_by(command, "other.yml");
        for _ in 0..10 {
            site.ask(&["workers", "-c", "first.yml"]).is_of(&first);
            // The running state differs from the file, but only an answer matters here.
            let reload = site.ask(&["reload", "-c", "first.yml"]);
            let told = format!("{}{}", reload.stdout, reload.stderr);
            assert!(told.contains("admin"), "round {round}: {told}");
            answers += 1;
        }
        site.ask(&["workers", "-c", "other.yml"]).is_of(&other);
        other.signal(if round % 2 == 0 { Signal::TERM } else { Signal::KILL });
        other.wait_for_end();
    }
    assert_eq!(answers, 50);
    site.write("first.yml", &admin);
    let reload = site.ask(&["reload", "-c", "first.yml"]);
    assert!(reload.ok && reload.stdout.contains("nothing changed"), "{}", reload.stderr);
}

/// A reload makes removed sockets again where clients and operators look for them.
#[test]
fn a_reload_makes_removed_sockets_again_and_those_who_are_there_stay() {
    let site = Site::new();
    let (socket, admin) = (site.path("alpha.sock"), site.path("admin.sock"));
    let text = format!(
        "global:\n  workers: 2\n  admin: {}\nalpha:\n  listen: {} 0660\n  memory: 1m\n  \
         servers: [embedded]\n",
        admin.display(),
        socket.display()
    );
    fs::write(site.path("alpha.yml"), text).unwrap();
    let proxy = site.run("alpha.yml");
    let mut early = unix_client(&socket);
    ask(&mut early, "set k 0 0 1\r\nx\r\n", "STORED\r\n");
    fs::remove_file(&socket).unwrap();
    let reload = site.ask(&["reload", "-c", "alpha.yml"]);
    let told = format!("{} was removed and is created again", socket.display());
    assert!(reload.ok && reload.stdout.contains(&told), "{}{}", reload.stdout, reload.stderr);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    let mut late = unix_client(&socket);
    for client in [&mut early, &mut late] {
        ask(client, "get k\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n");
    }
    // A second reload changes nothing.
    let again = site.ask(&["reload", "-c", "alpha.yml"]);
    assert!(again.stdout.contains("nothing changed"), "{}{}", again.stdout, again.stderr);
    // Removes the admin socket and both its names at once.
    for entry in fs::read_dir(site.path(NAMES)).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::remove_file(&admin).unwrap();
    // Nobody can request a reload, so the proxy repairs them by itself.
    // The file of a socket is there before anybody can connect to it.
    wait_until("the admin socket and its name are there again", || {
        UnixStream::connect(&admin).is_ok() && site.names().len() == 2
    });
    site.ask(&["workers"]).is_of(&proxy);
    site.ask(&["workers", "-c", "alpha.yml"]).is_of(&proxy);
    // Another file in the place of the socket stays, and the reload reports a failure.
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "precious").unwrap();
    let reload = site.ask(&["reload", "-c", "alpha.yml"]);
    let told = format!("{} is now another file", socket.display());
    assert!(!reload.ok && reload.stderr.contains(&told), "{}{}", reload.stdout, reload.stderr);
    assert!(reload.stderr.contains("apart from that: nothing changed"), "{}", reload.stderr);
    assert_eq!(fs::read_to_string(&socket).unwrap(), "precious");
    fs::remove_file(&socket).unwrap();
    let reload = site.ask(&["reload", "-c", "alpha.yml"]);
    assert!(reload.ok && reload.stdout.contains("is created again"), "{}", reload.stderr);
    ask(&mut unix_client(&socket), "get k\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n");
}

/// The log is on a full disk; then the operator makes room and reloads.
#[test]
fn a_reload_reopens_the_log_and_a_full_disk_is_named() {
    let site = Site::new();
    let log = site.path("log");
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    site.write("alpha.yml", "");
    let mut proxy = site.run("alpha.yml");
    site.write("alpha.yml", &format!("  log: {}\n", log.display()));
    let reload = site.ask(&["reload", "-c", "alpha.yml"]);
    assert!(reload.ok, "{}", reload.stderr);
    proxy.wait_for("on stderr that the log is full", |said| {
        let told = format!("cannot write the log {}: No space left on device", log.display());
        said.contains(&told).then_some(())
    });
    fs::remove_file(&log).unwrap();
    let reload = site.ask(&["reload", "-c", "alpha.yml"]);
    assert!(reload.stdout.contains("the log is reopened"), "{}{}", reload.stdout, reload.stderr);
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("lines were lost: they could not be written: No space left"), "{text}");
    // The file is moved away, as logrotate does.
    let old = site.path("log.1");
    fs::rename(&log, &old).unwrap();
    assert!(site.ask(&["reload", "-c", "alpha.yml"]).ok);
    // The second occurrence within a second is counted, and reported after that second.
    wait_until("the new log says so", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("the log is reopened"))
    });
    assert_eq!(fs::read_to_string(&old).unwrap(), text);
    // If it cannot be opened, the reload's answer reports the error.
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    site.write("alpha.yml", &format!("  log: {}\n  clients_max: 100\n", log.display()));
    let reload = site.ask(&["reload", "-c", "alpha.yml"]);
    assert!(!reload.ok && reload.stderr.contains("cannot reopen the log"), "{}", reload.stdout);
    assert!(reload.stderr.contains("apart from that: epoch 3 applied"), "{}", reload.stderr);
}

/// Files that others may change, or that belong to others, are used with a warning, even for root,
/// who could read any file.
#[test]
fn files_that_others_may_change_are_warned_of_as_root_too() {
    let site = Site::new();
    let (file, users) = (site.path("alpha.yml"), site.path("users"));
    fs::write(&file, "alpha:\n  listen: 127.0.0.1:0\n  users: users\n  servers: [embedded]\n")
        .unwrap();
    fs::write(&users, "anna:secret\n").unwrap();
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let told = || {
        let checked = site.ask(&["check", "alpha.yml"]);
        assert!(checked.ok && !checked.stderr.contains("secret"), "{}", checked.stderr);
        checked.stderr
    };
    mode(&users, 0o600);
    mode(&file, 0o644);
    assert_eq!(told(), "");
    for open in [0o664, 0o646] {
        mode(&file, open);
        let words = format!("warning: the mode {open:04o} of this file lets other users");
        assert!(told().contains(&words), "{}", told());
    }
    mode(&file, 0o644);
    chown(&file, Some(65534), None).unwrap();
    assert!(told().contains("this file belongs to user 65534"), "{}", told());
    chown(&file, Some(0), None).unwrap();
    chown(&users, Some(65534), None).unwrap();
    assert!(told().contains("users: `users`: this file belongs to user 65534"), "{}", told());
    // The running proxy logs the warning too.
    let mut proxy = site.run("alpha.yml");
    proxy.wait_for("the warning", |said| said.contains("belongs to user 65534").then_some(()));
    // A reload repeats the warning, even if nothing else has changed.
    mode(&file, 0o664);
    let reload = site.ask(&["reload", "-c", "alpha.yml"]);
    assert!(reload.ok && reload.stdout.contains("nothing changed"), "{}", reload.stderr);
    assert!(reload.stdout.contains("the mode 0664 of this file"), "{}", reload.stdout);
    proxy.wait_for("it in the log", |said| {
        let line = said.lines().find(|line| line.contains("nothing changed"))?;
        assert!(!line.contains("\\n"), "{line}");
        Some(())
    });
}

/// The memory shared by all processes is mapped whole, though little of it is used.
#[test]
fn a_limit_on_address_space_is_named_with_a_figure_that_is_enough() {
    let site = Site::new();
    site.write("alpha.yml", "");
    let start = |limit: &str| {
        let mut command = Command::new("sh");
        let words = format!("ulimit -v {limit} && exec {QUICKACK} \"$@\"");
        command.args(["-c", &words, "sh"]);
        command
    };
    let mut command = start("900000");
    command.args(["run", "-c"]).arg(site.path("alpha.yml")).env(RUNTIME, site.path(NAMES));
    let refused = Answer::of(&command.output().unwrap());
    let told = refused.stderr;
    assert!(!refused.ok && told.contains("Cannot allocate memory"), "{told}");
    for word in ["RLIMIT_AS", "900000k", "pools and servers", "LimitAS=infinity"] {
        assert!(told.contains(word), "{word} is not in: {told}");
    }
    let enough = told.split("(`ulimit -v ").nth(2).and_then(|rest| rest.split('`').next());
    let enough = enough.unwrap_or_else(|| panic!("no figure in: {told}"));
    let mut proxy = site.run_by(start(enough), "alpha.yml");
    wait_until("its worker and its cache are there", || facts::children(proxy.id()).len() == 2);
    site.ask(&["workers", "-c", "alpha.yml"]).is_of(&proxy);
    // An allocation that fails later ends a process with ABRT.
    for (child, _) in facts::children(proxy.id()) {
        let child = rustix::process::Pid::from_raw(child as i32).unwrap();
        rustix::process::kill_process(child, Signal::ABORT).unwrap();
    }
    for who in ["worker 0 (pid ", "the embedded cache ended"] {
        proxy.wait_for("the limit by name", |said| {
            let line =
                said.lines().find(|line| line.contains(who) && line.contains("RLIMIT_AS"))?;
            line.contains("LimitAS=infinity").then_some(())
        });
    }
    let mut command = start("900000");
    command.args(["cache", "--listen", "127.0.0.1:0", "--memory", "2g"]);
    let mut cache = Process::start("cache", &mut command);
    cache.wait_for("that 2g are too many", |said| {
        (said.contains("RLIMIT_AS") && said.contains("2g")).then_some(())
    });
}

/// memcached 1.4 has no meta commands. The log names the server when a request needs them, not
/// before.
#[test]
fn a_server_without_meta_is_named_when_it_is_met() {
    let server = super::shutdown::Hesitant::start_as("1.4.39");
    let mut quickack = super::quickack(&[server.address], &["preconnect: on"]);
    let told = format!("server {} of pool alpha has no meta commands", server.address);
    quickack.process.wait_for("that it has none", |said| said.contains(&told).then_some(()));
    let known = super::shutdown::Hesitant::start_as("1.6.18");
    let mut other = super::quickack(&[known.address], &[]);
    let mut client = other.client();
    client.send("get a\r\n");
    known.asked.recv_timeout(testkit::process::DEADLINE).unwrap();
    known.answer.send(()).unwrap();
    client.expect("END\r\n");
    other.process.signal(Signal::TERM);
    other.process.wait_for_end();
    assert!(!other.process.stderr_text().contains("meta"), "{}", other.process.stderr_text());
}

/// In a network of its own: the built-in configuration names a port.
#[test]
fn without_a_file_a_cache_is_served_and_there_is_nothing_to_reload_as_root() {
    let site = Site::new();
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", &format!("ip link set lo up && exec {QUICKACK} run")]);
    command.env(RUNTIME, site.path(NAMES));
    let mut proxy = Process::start("proxy", &mut command);
    proxy.wait_for("how to try it", |said| said.contains("| nc 127.0.0.1 22121\n").then_some(()));
    proxy.wait_for("its admin socket", |said| said.contains("quickack.sock").then_some(()));
    site.ask(&["workers"]).is_of(&proxy);
    let reload = site.ask(&["reload"]);
    assert!(!reload.ok && reload.stderr.contains("there is no file"), "{}", reload.stderr);
    let set = site.ask(&["set", "log_level=debug"]);
    assert!(set.ok && set.stdout.contains(" applied by "), "{}{}", set.stdout, set.stderr);
    let mut command = Command::new("nsenter");
    let talk = "printf 'set k 0 0 1\\r\\nx\\r\\nget k\\r\\nquit\\r\\n' | \
                python3 -c 'import socket, sys; \
                s = socket.create_connection((\"127.0.0.1\", 22121)); \
                s.sendall(sys.stdin.buffer.read()); print(s.makefile().read())'";
    command.args(["-n", "-t", &proxy.id().to_string(), "sh", "-c", talk]);
    let told = Answer::of(&command.output().unwrap());
    assert!(told.stdout.starts_with("STORED\nVALUE k 0 1\nx\nEND\n"), "{}", told.stdout);
    kill(proxy);
}

fn unix_client(path: &Path) -> std::os::unix::net::UnixStream {
    let stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(testkit::process::DEADLINE)).unwrap();
    stream
}

#[track_caller]
fn ask(client: &mut std::os::unix::net::UnixStream, request: &str, reply: &str) {
    std::io::Write::write_all(client, request.as_bytes()).unwrap();
    let mut bytes = vec![0; reply.len()];
    std::io::Read::read_exact(client, &mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), reply);
}
