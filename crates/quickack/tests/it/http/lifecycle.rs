//! The process and its socket through deaths, reloads, and other proxies.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use testkit::load::Options;
use testkit::process::{Memcached, free_address, freeze, send, wait_until};

use super::client::{samples, try_get};
use super::*;
use crate::harness::workers;

#[test]
fn the_process_dies_again_and_again_and_no_worker_notices_before_memcached() {
    let memcached = Memcached::start();
    let quickack = start(2, &[], &[memcached.address], &[]);
    harness::wait_for_workers(&quickack, 2);
    let (before, http) = (workers(&quickack), address(&quickack));
    let load = harness::load(&quickack, 10, Options { rate: Some(2_000), ..Options::default() });
    for n in 1..=4 {
        let old = running(&quickack);
        send(old, if n % 2 == 0 { Signal::KILL } else { Signal::TERM });
        wait_until("another one serves", || {
            try_get(http, "/metrics").is_some_and(|page| page.status == 200)
                && helper(&quickack).is_some_and(|pid| pid != old)
        });
    }
    load.wait_for_everybody();
    load.stop().assert_unharmed();
    let after = workers(&quickack);
    let pids = |all: &std::collections::BTreeMap<usize, harness::Worker>| {
        all.values().map(|one| one.pid).collect::<Vec<u32>>()
    };
    assert_eq!(pids(&before), pids(&after));
    let page = page(&quickack, "/metrics");
    assert_eq!(samples(&page)["quickack_http_restarts_total"], 4.0);
}

/// Nothing but a message that is not acknowledged shows that a process stands still.
#[test]
fn a_process_that_stands_still_is_replaced_before_memcached() {
    let memcached = Memcached::start();
    let quickack = start(1, &["hang_timeout: 5s"], &[memcached.address], &[]);
    let (http, old) = (address(&quickack), running(&quickack));
    wait_until("it serves", || try_get(http, "/healthz").is_some());
    let before = workers(&quickack);
    freeze(old);
    wait_until("another one serves", || {
        helper(&quickack).is_some_and(|pid| pid != old)
            && try_get(http, "/healthz").is_some_and(|page| page.status == 200)
    });
    let log = quickack.process.stderr_text();
    assert!(log.contains(&format!("the HTTP process (pid {old}) is hung")), "{log}");
    assert_eq!(samples(&page(&quickack, "/metrics"))["quickack_http_restarts_total"], 1.0);
    assert_eq!(before[&0].pid, workers(&quickack)[&0].pid);
}

/// One that stands still cannot notice that the proxy has ended, and would keep the address.
#[test]
fn a_process_that_stands_still_ends_with_the_proxy_before_memcached() {
    let memcached = Memcached::start();
    let mut quickack = start(1, &[], &[memcached.address], &[]);
    let (http, pid) = (address(&quickack), running(&quickack));
    wait_until("it serves", || try_get(http, "/healthz").is_some());
    let listed = quickack.ask("workers");
    assert!(listed.contains(&format!("  http  {pid:>7}\n")), "{listed}");
    freeze(pid);
    quickack.process.signal(Signal::TERM);
    quickack.process.wait_for_end();
    assert_eq!(testkit::process::facts::state_of(pid), None, "it stands still and has the address");
}

/// The master looks at the process whenever anything happens, but a refusal says that the next
/// start will be refused too.
#[test]
fn a_start_that_the_system_refuses_is_tried_twice_a_second_before_memcached() {
    let memcached = Memcached::start();
    let quickack = start(1, &[], &[memcached.address], &[]);
    let (http, old) = (address(&quickack), running(&quickack));
    let master = quickack.process.id();
    let (id, most) = (Pid::from_raw(master as i32), getrlimit(Resource::Nofile).maximum);
    let limit = |current| {
        let new = Rlimit { current, maximum: most };
        prlimit(id, Resource::Nofile, new).expect("the master is ours");
    };
    limit(Some(3));
    let began = std::time::Instant::now();
    send(old, Signal::KILL);
    let mut tries = 0;
    wait_until("a start was refused again", || {
        send(master, Signal::CHILD);
        let log = quickack.process.stderr_text();
        let again = log.lines().filter(|line| line.contains("cannot start the HTTP process"));
        let again = again.filter_map(|line| line.split_once("(repeated ")?.1.split_once(" times"));
        tries = again.map(|(count, _)| count.parse::<u128>().expect("a number")).sum();
        tries > 0
    });
    let most_tries = began.elapsed().as_millis() / 500;
    assert!(tries <= most_tries, "{tries} further tries: {}", quickack.process.stderr_text());
    limit(most);
    wait_until("it serves again", || try_get(http, "/healthz").is_some());
}

/// The new socket is there before the old one goes, also if one address contains the other.
#[test]
fn the_address_moves_while_it_is_scraped_and_no_connection_is_refused_before_memcached() {
    let memcached = Memcached::start();
    let port = free_address().port();
    let at = |host: &str| {
        harness::text(1, &[&format!("http: '{host}:{port}'")], &[memcached.address], &[])
    };
    let quickack = Quickack::start(QUICKACK, &at("127.0.0.1"));
    let http = SocketAddr::from(([127, 0, 0, 1], port));
    wait_until("it serves", || try_get(http, "/healthz").is_some());
    let process = running(&quickack);
    let over = Arc::new(AtomicBool::new(false));
    let scraper = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let mut pages = 0;
            while !over.load(Ordering::Relaxed) {
                // A connection that the kernel gave to a socket in its last moment may be reset,
                // also before `connect` has returned. It is never refused.
                match std::net::TcpStream::connect(http) {
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                    other => drop(other.expect("somebody listens")),
                }
                pages += usize::from(try_get(http, "/healthz").is_some());
            }
            pages
        }
    });
    for host in ["0.0.0.0", "127.0.0.1", "[::]", "0.0.0.0", "127.0.0.1"] {
        quickack.rewrite(&at(host));
        let said = quickack.admin_ok(&["reload"]);
        assert!(said.contains("applied by 1/1"), "{host}: {said}");
        wait_until("it serves", || try_get(http, "/healthz").is_some());
    }
    over.store(true, Ordering::Relaxed);
    let pages = scraper.join().expect("no connection was refused");
    println!("{pages} pages while the address moved five times");
    assert_eq!(helper(&quickack), Some(process), "the same process all the time");
    quickack.rewrite(&harness::text(1, &[], &[memcached.address], &[]));
    quickack.admin_ok(&["reload"]);
    wait_until("it has ended", || helper(&quickack).is_none() && try_get(http, "/").is_none());
}

/// A reload that cannot have the address is refused before anything holds.
#[test]
fn a_reload_to_an_address_that_is_taken_changes_nothing_before_memcached() {
    let memcached = Memcached::start();
    let quickack = start(1, &[], &[memcached.address], &["timeout: 60000"]);
    let other = start(1, &[], &[memcached.address], &[]);
    let folder = quickack.folder();
    std::fs::write(folder.join("precious"), "text").unwrap();
    let http = address(&quickack);
    for (place, told) in [
        (memcached.address.to_string(), "something else is bound there"),
        // That one shares its address with its own successor, and with nobody else.
        (address(&other).to_string(), "something else is bound there"),
        (format!("{}/precious", folder.display()), "Address already in use"),
        (format!("{}/no/such/folder", folder.display()), "No such file"),
    ] {
        let line = format!("http: {place}");
        let text = harness::text(1, &[&line], &[memcached.address], &["timeout: 61000"]);
        quickack.rewrite(&text);
        let answer = quickack.admin(&["reload"]);
        let said = format!("cannot serve HTTP on {place}");
        assert!(!answer.ok && answer.text.contains(&said), "{answer:?}");
        assert!(answer.text.contains(told), "{answer:?}");
        assert_eq!(workers(&quickack)[&0].epoch, 1);
        assert_eq!(try_get(http, "/readyz").map(|page| page.status), Some(200));
    }
    assert_eq!(std::fs::read_to_string(folder.join("precious")).unwrap(), "text");
    wait_until("the failed reloads are counted", || {
        let page = page(&quickack, "/metrics");
        let all = samples(&page);
        all["quickack_config_reloads_failed_total"] == 4.0
            && all["quickack_config_last_reload_successful"] == 0.0
    });
    quickack.admin_ok(&["set", "log_level=debug"]);
    assert!(!quickack.admin(&["set", "log_level=none"]).ok);
    quickack.rewrite(&text(1, &[], &[memcached.address], &["timeout: 60000"]));
    quickack.admin_ok(&["reload"]);
    wait_until("the reload is counted, and no `set`", || {
        let all = samples(&page(&quickack, "/metrics"));
        all["quickack_config_reloads_total"] == 1.0
            && all["quickack_config_reloads_failed_total"] == 4.0
            && all["quickack_config_last_reload_successful"] == 1.0
    });
}

#[test]
fn a_socket_of_a_dead_proxy_is_replaced_and_that_of_a_living_one_is_not_before_memcached() {
    let memcached = Memcached::start();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("http.sock");
    let line = format!("http: {} 0660", socket.display());
    let text = harness::text(1, &[&line], &[memcached.address], &[]);
    let get = || {
        let Ok(mut stream) = UnixStream::connect(&socket) else { return String::new() };
        let request = "GET /healthz HTTP/1.0\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers and closes");
        answer.split_once("\r\n\r\n").expect("a head").1.to_string()
    };
    let mut first = Quickack::start(QUICKACK, &text);
    wait_until("it serves", || get() == "healthy\n");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o660);
    // Another proxy is refused at its start, and takes nothing away.
    let file = folder.path().join("other.yml");
    std::fs::write(
        &file,
        format!("global:\n  admin: off\n  {line}\n{}", crate::config(&[memcached.address], &[])),
    )
    .unwrap();
    let other = Command::new(QUICKACK).arg("run").arg("-c").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success(), "{said}");
    assert!(said.contains("another proxy serves there"), "{said}");
    assert_eq!(get(), "healthy\n");
    // A file that was removed is made again by a reload.
    std::fs::remove_file(&socket).unwrap();
    let said = first.admin_ok(&["reload"]);
    assert!(said.contains("was removed and is created again"), "{said}");
    wait_until("it serves again", || get() == "healthy\n");
    first.process.signal(Signal::KILL);
    first.process.wait_for_end();
    assert!(socket.exists(), "a proxy that was killed leaves it");
    let second = Quickack::start(QUICKACK, &text);
    wait_until("the next one serves", || get() == "healthy\n");
    second.admin_ok(&["quit"]);
    wait_until("and tidies up", || std::fs::read_dir(folder.path()).unwrap().count() == 1);
}
