//! Finding a proxy among names of which some belong to other users, or to another namespace.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use testkit::process::{DEADLINE, Process, wait_until};

use super::QUICKACK;
use super::running::{Answer, NAMES, RUNTIME, Site, kill};

/// Two services of an unprivileged user, each with the folder that systemd makes for it. Root asks
/// from outside, where nothing names these folders.
#[test]
fn root_finds_the_proxies_of_services_in_a_mount_namespace() {
    let site = Site::new();
    fs::set_permissions(site.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = site.path("quickack");
    fs::copy(QUICKACK, &program).unwrap();
    for name in ["one.yml", "two.yml"] {
        site.write(name, "");
    }
    let folders = "mount -t tmpfs tmpfs /run && mkdir -p /run/quickack/one /run/quickack/two && \
                   chown 65534:65534 /run/quickack/one /run/quickack/two && ";
    let service = |name: &str| {
        format!(
            "RUNTIME_DIRECTORY=/run/quickack/{name} exec setpriv --reuid=65534 --regid=65534 \
             --clear-groups {} run -c {}",
            program.display(),
            site.path(&format!("{name}.yml")).display()
        )
    };
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{folders}{}", service("one"))]);
    let mut one = Process::start("one", &mut command);
    one.wait_for("its socket", |said| {
        said.contains("admin socket: /run/quickack/one/one-").then_some(())
    });
    let inside = |words: &[&str]| {
        let mut command = Command::new("nsenter");
        command.args(["-m", "-t", &one.id().to_string(), QUICKACK]).args(words);
        command.env_remove(RUNTIME);
        Answer::of(&command.output().unwrap())
    };
    inside(&["workers"]).is_of(&one);
    let file = |name: &str| site.path(name).display().to_string();
    // The first service's user answers with the second one's file: a proxy without that name is not
    // believed.
    let mut command = Command::new("nsenter");
    let lie = service("two").replace("/run/quickack/two", "/run/quickack/one");
    command.args(["-m", "-t", &one.id().to_string(), "sh", "-c", &lie]);
    let mut impostor = Process::start("impostor", &mut command);
    impostor.wait_for("its socket", |said| {
        said.contains("admin socket: /run/quickack/one/two-").then_some(())
    });
    let asked = inside(&["workers", "-c", &file("two.yml")]);
    assert!(!asked.ok && asked.stderr.contains("no proxy that runs with"), "{}", asked.stdout);
    kill(impostor);
    let mut command = Command::new("nsenter");
    command.args(["-m", "-t", &one.id().to_string(), "sh", "-c", &service("two")]);
    let mut two = Process::start("two", &mut command);
    two.wait_for("its socket", |said| said.contains("admin socket").then_some(()));
    inside(&["workers", "-c", &file("one.yml")]).is_of(&one);
    inside(&["workers", "-c", &file("two.yml")]).is_of(&two);
    let reload = inside(&["reload", "-c", &file("two.yml")]);
    assert!(reload.ok && reload.stdout.contains("nothing changed"), "{}", reload.stderr);
    let both = inside(&["workers"]);
    assert!(both.stderr.contains("/run/quickack/one/one-"), "{}", both.stderr);
    assert!(both.stderr.contains("/run/quickack/two/two-"), "{}", both.stderr);
}

/// A pipe as a lock, a socket that is never accepted, a folder behind a user's link, and an answer
/// with terminal control characters: none of them blocks root, or reaches its terminal.
#[test]
fn what_a_user_has_put_among_the_names_keeps_root_neither_waiting_nor_fooled() {
    const NOBODY: u32 = 65534;
    let site = Site::new();
    let names = site.path(NAMES);
    let pipe = names.join("pipe.lock");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink(names.join("pipe"), names.join("pipe.sock")).unwrap();
    let full = names.join("full.sock");
    let _listener = sys::listen::unix(&full, None, 0).unwrap();
    let mut queue = Vec::new();
    loop {
        let fd = sys::connect::unix_socket().unwrap();
        match sys::connect::unix(&fd, &full) {
            Ok(_) => queue.push(fd),
            Err(error) => break assert_eq!(error, rustix::io::Errno::AGAIN),
        }
    }
    chown(&names, Some(NOBODY), None).unwrap();
    chown(&pipe, Some(NOBODY), None).unwrap();
    let asked = site.ask(&["workers"]);
    assert!(!asked.ok && asked.stderr.contains("no running proxy"), "{}", asked.stderr);
    let asked = site.ask(&["workers", "--admin", full.to_str().unwrap()]);
    assert!(!asked.ok && asked.stderr.contains("no answer from"), "{}", asked.stderr);
    // The answer is escaped.
    let told = site.path("told.sock");
    let listener = std::os::unix::net::UnixListener::bind(&told).unwrap();
    let teller = std::thread::spawn(move || {
        listener.set_nonblocking(true).unwrap();
        let mut found = None;
        wait_until("it connects", || {
            found = listener.accept().ok();
            found.is_some()
        });
        let (mut stream, _) = found.expect("it was waited for");
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        std::io::Write::write_all(&mut stream, b"one\x1b]0;two\x07\rthree\nfour\n").unwrap();
        let mut question = [0; 8];
        std::io::Read::read_exact(&mut stream, &mut question).unwrap();
    });
    let asked = site.ask(&["workers", "--admin", told.to_str().unwrap()]);
    teller.join().unwrap();
    assert_eq!(asked.stdout, "one\\u001b]0;two\\u0007\\u000dthree\nfour\n", "{}", asked.stderr);
}

/// The writer refuses such a folder too.
#[test]
fn a_folder_behind_a_users_link_is_not_looked_into() {
    let site = Site::new();
    site.write("plain.yml", "");
    let proxy = site.run("plain.yml");
    site.ask(&["workers"]).is_of(&proxy);
    let home = site.path("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::symlink(site.path(NAMES), home.join("quickack")).unwrap();
    chown(site.path(NAMES), Some(65534), None).unwrap();
    std::os::unix::fs::lchown(home.join("quickack"), Some(65534), None).unwrap();
    let program = site.path("quickack");
    fs::copy(QUICKACK, &program).unwrap();
    for path in [site.folder.path(), &home] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    command.args(["workers", "-c"]).arg(site.path("plain.yml"));
    command.env_remove(RUNTIME).env("XDG_RUNTIME_DIR", &home);
    let asked = Answer::of(&command.output().unwrap());
    assert!(!asked.ok && asked.stderr.contains("in no folder of this user;"), "{}", asked.stderr);
}

/// The kernel gives no process id for a peer in another PID namespace.
#[test]
fn a_proxy_is_found_from_another_pid_namespace_both_ways() {
    let site = Site::new();
    site.write("plain.yml", "");
    let apart = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-pf", "--mount-proc", "--kill-child"]).args(words);
        command.current_dir(site.folder.path()).env(RUNTIME, site.path(NAMES));
        command
    };
    let proxy = site.run("plain.yml");
    Answer::of(&apart(&[QUICKACK, "workers"]).output().unwrap()).is_of(&proxy);
    kill(proxy);
    let file = site.path("plain.yml");
    let mut command = apart(&[QUICKACK, "run", "-c", file.to_str().unwrap()]);
    let mut inside = Process::start("inside", &mut command);
    inside.wait_for("its socket", |said| said.contains("admin socket").then_some(()));
    let asked = site.ask(&["workers"]);
    assert!(asked.ok && asked.stdout.starts_with("master 1,"), "{}{}", asked.stdout, asked.stderr);
}
