//! Where a proxy puts its name and where others look for it: by user and environment. In a mount
//! namespace with an empty `/run`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use testkit::process::Process;

use super::QUICKACK;
use super::running::{Answer, NAMES, RUNTIME, Site, kill};

const NOBODY: u32 = 65534;
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";

/// A site that an unprivileged user may enter, with the program in it.
fn site() -> (Site, PathBuf) {
    let site = Site::new();
    fs::set_permissions(site.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = site.path("quickack");
    fs::copy(QUICKACK, &program).unwrap();
    site.write("plain.yml", "");
    (site, program)
}

/// A shell command with an empty `/run`.
fn shell(line: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("mount -t tmpfs tmpfs /run && {line}")]);
    command.env_remove(RUNTIME).env_remove("XDG_RUNTIME_DIR");
    command
}

#[test]
fn a_name_is_in_the_services_folder_or_in_the_users_own_as_root() {
    let (site, program) = site();
    let own = site.path("own");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
    let own = own.display();
    let run = format!("{} run -c {}", program.display(), site.path("plain.yml").display());
    let table = [
        (run.clone(), "/run/quickack".to_string()),
        (format!("XDG_RUNTIME_DIR={own} {run}"), "/run/quickack".to_string()),
        (format!("RUNTIME_DIRECTORY=odd:{own}/one:{own}/two {run}"), format!("{own}/one")),
        (format!("RUNTIME_DIRECTORY=odd TMPDIR={own} {run}"), "/run/quickack".to_string()),
        (format!("XDG_RUNTIME_DIR={own}/run {AS_NOBODY} {run}"), format!("{own}/run/quickack")),
        (
            format!("XDG_RUNTIME_DIR=odd TMPDIR={own} {AS_NOBODY} {run}"),
            format!("{own}/quickack-65534"),
        ),
        (format!("TMPDIR={own} {AS_NOBODY} {run}"), format!("{own}/quickack-65534")),
    ];
    for (line, folder) in table {
        let mut command = shell(&format!("exec env {line}"));
        let mut proxy = Process::start("proxy", &mut command);
        proxy.wait_for(&format!("{line}: its socket is in {folder}"), |said| {
            said.contains(&format!("admin socket: {folder}/plain-")).then_some(())
        });
        // A command that asks in the same way finds it.
        let mut command = Command::new("nsenter");
        let ask = format!("env {line}").replace(&run, &format!("{} workers", program.display()));
        command.args(["-m", "-t", &proxy.id().to_string(), "sh", "-c", &ask]);
        command.env_remove(RUNTIME).env_remove("XDG_RUNTIME_DIR");
        Answer::of(&command.output().unwrap()).is_of(&proxy);
        proxy.signal(Signal::TERM);
        proxy.wait_for_end();
    }
}

/// The proxy runs without a name, and says why.
#[test]
fn a_folder_that_is_not_the_users_own_is_not_used_for_names_as_root() {
    let (site, _) = site();
    let folder = |name: &str, mode: u32| {
        let path = site.path(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let (own, foreign) = (folder("own", 0o755), folder("foreign", 0o700));
    chown(&foreign, Some(NOBODY), None).unwrap();
    symlink(&own, site.path("link")).unwrap();
    let table = [
        (own, true),
        (site.path("link"), true),
        (foreign, false),
        (folder("group", 0o720), false),
        (folder("all", 0o702), false),
    ];
    for (place, is_used) in table {
        let mut command = Command::new(QUICKACK);
        command.args(["run", "-c"]).arg(site.path("plain.yml")).env(RUNTIME, &place);
        let mut proxy = Process::start("proxy", &mut command);
        let place = place.display();
        proxy.wait_for(&format!("{place}: whether it is used"), |said| {
            let used = said.contains(&format!("admin socket: {place}/plain-"));
            let refused = said.contains(&format!("{place} is not a private folder of this user"));
            assert!(if is_used { !refused } else { !used }, "{said}");
            (used || refused).then_some(())
        });
        kill(proxy);
    }
}

#[test]
fn folders_are_looked_into_if_nobody_else_can_have_put_anything_there_as_root() {
    let (site, program) = site();
    let home = site.path("home");
    fs::create_dir_all(home.join("quickack")).unwrap();
    fs::set_permissions(home.join("quickack"), fs::Permissions::from_mode(0o700)).unwrap();
    chown(home.join("quickack"), Some(NOBODY), None).unwrap();
    let linked = site.path("linked");
    fs::create_dir(&linked).unwrap();
    symlink(home.join("quickack"), linked.join("quickack")).unwrap();
    lchown(linked.join("quickack"), Some(NOBODY), None).unwrap();
    let (home, linked) = (home.display(), linked.display());
    let services = "mkdir -m 755 /run/quickack && cd /run/quickack && \
                    mkdir -m 700 one two open root && chown 65534 one open && chown 1 two && \
                    chmod 770 open && touch file && ln -s one link && ln -s one theirs && \
                    chown -h 65534 theirs && mkdir -m 700 /run/own && ln -s /run/own /run/ours";
    let asks = format!("{} workers -c /none.yml", program.display());
    let table = [
        // Root looks into all of them; into its own first.
        (
            "",
            "/run/quickack, /run/quickack/link, /run/quickack/one, /run/quickack/root, \
              /run/quickack/two"
                .to_string(),
        ),
        ("chown 65534 /run/quickack &&", "/run/quickack".to_string()),
        ("rm -r /run/quickack &&", "no folder of this user".to_string()),
        ("RUNTIME_DIRECTORY=/run/own", "/run/own".to_string()),
        // It is systemd that makes links for services.
        ("RUNTIME_DIRECTORY=/run/ours", "/run/ours".to_string()),
        ("chown -h 65534 /run/ours && RUNTIME_DIRECTORY=/run/ours", "/run/ours".to_string()),
    ];
    let users = [
        (
            format!("XDG_RUNTIME_DIR={home}"),
            format!("/run/quickack/link, /run/quickack/one, {home}/quickack"),
        ),
        (format!("XDG_RUNTIME_DIR={linked}"), "/run/quickack/link, /run/quickack/one".to_string()),
        (format!("RUNTIME_DIRECTORY={linked}/quickack"), format!("{linked}/quickack")),
    ];
    let lines = table.map(|(before, places)| (format!("{before} {asks}"), places)).into_iter();
    let users = users.map(|(before, places)| (format!("{before} {AS_NOBODY} {asks}"), places));
    for (line, places) in lines.chain(users) {
        let asked = Answer::of(&shell(&format!("{services} && {line}")).output().unwrap());
        let told = format!("no proxy that runs with /none.yml answers in {places}; if one runs");
        assert!(!asked.ok && asked.stderr.contains(&told), "{line}: {}", asked.stderr);
    }
}

/// A link needs the lock of a living proxy of the folder's user; other names are no names.
#[test]
fn a_name_counts_with_the_lock_of_a_living_proxy_of_the_same_user_as_root() {
    let site = Site::new();
    let admin = format!("  admin: {}\n", site.path("admin.sock").display());
    site.write("alpha.yml", &admin);
    site.write("beta.yml", "");
    let proxy = site.run("alpha.yml");
    let names: Vec<PathBuf> =
        fs::read_dir(site.path(NAMES)).unwrap().map(|entry| entry.unwrap().path()).collect();
    let lock = names.iter().find(|path| path.extension().unwrap() == "lock").unwrap();
    // Only the name leads to it now.
    site.write("alpha.yml", "");
    let is_found = || site.ask(&["workers", "-c", "alpha.yml"]).ok;
    // Two names of one proxy are no two proxies, and a socket by another name is none.
    symlink(site.path("admin.sock"), lock.with_file_name("other.sock")).unwrap();
    symlink(lock, lock.with_file_name("other.lock")).unwrap();
    let _listener =
        std::os::unix::net::UnixListener::bind(lock.with_file_name("odd.socket")).unwrap();
    site.ask(&["workers"]).is_of(&proxy);
    assert!(is_found());
    // The name of another configuration that leads here, with a lock that does so, too.
    let beta = site.run("beta.yml");
    let name = fs::read_dir(site.path(NAMES)).unwrap().map(|entry| entry.unwrap().path());
    let name = name
        .filter(|path| path.extension().unwrap() == "sock")
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with("beta-"));
    let name = name.expect("its socket");
    kill(beta);
    for (from, to) in
        [(site.path("admin.sock"), &name), (lock.clone(), &name.with_extension("lock"))]
    {
        fs::remove_file(to).unwrap();
        symlink(from, to).unwrap();
    }
    assert!(!site.ask(&["workers", "-c", "beta.yml"]).ok, "a link is no lock");
    chown(lock, Some(NOBODY), None).unwrap();
    assert!(!is_found(), "the lock is another user's");
    chown(lock, Some(0), None).unwrap();
    assert!(is_found());
}
