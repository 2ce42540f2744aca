//! A new configuration under a load that checks every reply: it applies to all workers or to none,
//! and no request is dropped.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::load::{Options, Trust};
use testkit::process::{Client, Facts, Memcached, free_address, freeze, send, silent, wait_until};

use super::harness::{self, Worker, wait_for_workers, workers};

fn paced() -> Options {
    Options { rate: Some(4_000), ..Options::default() }
}

/// Returns the epoch, which must be the same in all workers.
#[track_caller]
fn epoch(quickack: &testkit::process::Quickack) -> u64 {
    let epochs: Vec<u64> = workers(quickack).values().map(|worker| worker.epoch).collect();
    assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
    epochs[0]
}

fn pids(quickack: &testkit::process::Quickack) -> Vec<u32> {
    workers(quickack).values().map(|worker| worker.pid).collect()
}

#[test]
fn fifty_reloads_good_bad_and_identical_drop_nothing_before_memcached() {
    let memcached = Memcached::start();
    let servers = [memcached.address];
    let text = |n: usize| harness::text(4, &[], &servers, &[&format!("timeout: {}", 60_000 + n)]);
    let quickack = harness::start(4, &[], &servers, &["timeout: 60000"]);
    let mut idle: Vec<Client> = (0..8).map(|_| quickack.client()).collect();
    idle.iter_mut().for_each(|client| client.ask("get a\r\n", "END\r\n"));
    let load = harness::load(&quickack, 50, Options::default());
    let workers = pids(&quickack);
    let all = || Facts::of(quickack.workers().into_values().chain([quickack.process.id()]));
    let opened = memcached.stat("total_connections");
    let (held, (mut expected, start)) = (all().descriptors(), (epoch(&quickack), Instant::now()));
    for n in 1..=50 {
        match n % 3 {
            0 => {
                quickack.rewrite("alpha:\n  listne: 127.0.0.1:0\n");
                let answer = quickack.admin(&["reload"]);
                assert!(!answer.ok && answer.text.contains("did you mean `listen`"), "{answer:?}");
            }
            1 => {
                quickack.rewrite(&text(n));
                let said = quickack.admin_ok(&["reload"]);
                expected += 1;
                assert!(said.contains(&format!("epoch {expected} applied by 4/4")), "{said}");
            }
            _ => {
                quickack.rewrite(&text(n - 1));
                let said = quickack.admin_ok(&["reload"]);
                assert!(said.contains("nothing changed"), "{said}");
            }
        }
        assert_eq!(epoch(&quickack), expected);
        load.wait_for_everybody();
    }
    let took = start.elapsed();
    let tally = load.stop();
    println!("50 reloads in {took:?}: {tally}");
    tally.assert_unharmed();
    idle.iter_mut().for_each(|client| client.ask("get a\r\n", "END\r\n"));
    assert_eq!(pids(&quickack), workers);
    // Links are kept. A busy machine makes spare ones, but not with each change.
    let opened = memcached.stat("total_connections") - opened;
    assert!(opened < expected, "{opened} links were made up to epoch {expected}");
    wait_until("nothing is held of what was", || all().descriptors() <= held);
    // One of each worker, and the one that asks. Spare ones are kept for a while.
    wait_until("there are as many links as before", || memcached.stat("curr_connections") == 5);
}

#[test]
fn hup_reloads_without_a_word_to_the_clients_of_memcached() {
    let (memcached, quickack) = harness::field(2, &[], &["timeout: 60000"]);
    let load = harness::load(&quickack, 20, paced());
    for n in 1..=5 {
        let text =
            harness::text(2, &[], &[memcached.address], &[&format!("timeout: {}", 60_000 + n)]);
        quickack.rewrite(&text);
        let before = epoch(&quickack);
        quickack.process.signal(Signal::HUP);
        wait_until("all workers have the next configuration", || {
            workers(&quickack).values().all(|worker| worker.epoch == before + 1)
        });
    }
    load.wait_for_everybody();
    load.stop().assert_unharmed();
}

/// It aborts at its deadline and names the worker; no worker has the new configuration. The
/// deadline alone ends it: nothing finds that the worker hangs.
#[test]
fn a_reload_with_a_stopped_worker_changes_nobody_before_memcached() {
    let global = ["hang_timeout: 0"];
    let (memcached, quickack) = harness::field(4, &global, &["timeout: 60000"]);
    let load = harness::load(&quickack, 40, paced());
    let (before, workers) = (epoch(&quickack), workers(&quickack));
    freeze(workers[&2].pid);
    quickack.rewrite(&harness::text(4, &global, &[memcached.address], &["timeout: 61000"]));
    let start = Instant::now();
    let answer = quickack.admin(&["reload"]);
    let took = start.elapsed();
    assert!(!answer.ok && answer.text.contains("worker 2"), "{answer:?}");
    // Workers may take ten seconds to prepare.
    assert!(took < Duration::from_secs(40), "{took:?}");
    assert_eq!(epoch(&quickack), before);
    send(workers[&2].pid, Signal::CONT);
    load.wait_for_everybody();
    assert_eq!(epoch(&quickack), before);
    let said = quickack.admin_ok(&["reload"]);
    assert!(said.contains("applied by 4/4"), "{said}");
    assert!(epoch(&quickack) > before);
    load.wait_for_everybody();
    load.stop().assert_unharmed();
}

/// It is found by its heartbeat, or, with the longer `hang_timeout` of tests, because it does not
/// read its messages. The change waits for its successor.
#[test]
fn a_worker_that_hangs_during_a_reload_does_not_end_the_change_before_memcached() {
    for global in [&["hang_timeout: 2s"][..], &[]] {
        let (memcached, quickack) = harness::field(2, global, &["timeout: 60000"]);
        let before = wait_for_workers(&quickack, 2);
        freeze(before[&1].pid);
        let text = harness::text(2, global, &[memcached.address], &["timeout: 61000"]);
        quickack.rewrite(&text);
        let said = quickack.admin_ok(&["reload"]);
        assert!(said.contains("applied by 2/2"), "{said}");
        assert_ne!(workers(&quickack)[&1].pid, before[&1].pid, "the one that hangs was replaced");
    }
}

/// Whatever only the master opens is tried before anything holds.
#[test]
fn a_reload_that_cannot_have_its_log_its_port_or_its_processor_changes_nothing_before_memcached() {
    let (memcached, quickack) = harness::field(2, &[], &["timeout: 60000"]);
    let before = workers(&quickack);
    let folder = quickack.folder().display();
    let table = [
        (format!("stats: {}", memcached.address), "cannot open the stats port"),
        (format!("log: {folder}"), "cannot open the new log"),
        ("worker_cpu_affinity: 1000".to_string(), "processor 1000 is not among"),
    ];
    for (line, told) in table {
        quickack.rewrite(&harness::text(2, &[&line], &[memcached.address], &["timeout: 61000"]));
        let answer = quickack.admin(&["reload"]);
        assert!(!answer.ok && answer.text.contains(told), "{line}: {answer:?}");
        assert_eq!(workers(&quickack), before, "{line}");
    }
    let file = quickack.file();
    let mut command = std::process::Command::new(super::QUICKACK);
    command.arg("check").arg(&file);
    quickack.rewrite(&harness::text(
        2,
        &[&format!("stats: {}", memcached.address)],
        &[memcached.address],
        &[],
    ));
    assert!(command.status().is_ok_and(|status| status.success()), "only a start finds that out");
    let mut command = std::process::Command::new(super::QUICKACK);
    command.args(["run", "-c"]).arg(file).env("RUNTIME_DIRECTORY", quickack.folder());
    let mut second = testkit::process::Process::start("second", &mut command);
    assert_eq!(second.wait_for_end().code(), Some(1));
}

/// The one that prepares is stopped, the other dies of what it is to prepare, or so it seems.
#[test]
fn a_death_during_the_preparation_ends_the_change_before_memcached() {
    let (_memcached, quickack) = harness::field(2, &["hang_timeout: 0"], &[]);
    let before = epoch(&quickack);
    wait_until("a change ends because a worker died", || {
        let now = wait_for_workers(&quickack, 2);
        freeze(now[&0].pid);
        let mut stream =
            std::os::unix::net::UnixStream::connect(quickack.folder().join("admin.sock"))
                .expect("it listens");
        std::io::Write::write_all(&mut stream, b"set log_level=debug\n").expect("it reads");
        assert_eq!(workers(&quickack).len(), 2, "it has been read");
        send(now[&1].pid, Signal::KILL);
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).expect("it answers and closes");
        send(now[&0].pid, Signal::CONT);
        assert!(answer.starts_with("error: ") && answer.contains("; nothing has changed"));
        // On a busy machine the time to prepare may be over before.
        answer.contains("worker 1 died during the preparation")
    });
    wait_for_workers(&quickack, 2);
    assert_eq!(epoch(&quickack), before);
    assert!(!quickack.admin_ok(&["config", "--diff"]).contains("debug"));
    assert!(quickack.admin_ok(&["set", "log_level=debug"]).contains("applied by 2/2"));
}

#[test]
fn the_number_of_workers_changes_without_a_dropped_request_to_memcached() {
    let (memcached, quickack) = harness::field(4, &[], &[]);
    let load = harness::load(&quickack, 64, Options::default());
    for count in [1, 8, 3, 4] {
        quickack.rewrite(&harness::text(count, &[], &[memcached.address], &[]));
        let said = quickack.admin_ok(&["reload"]);
        assert!(said.contains(&format!("applied by {count}/{count}")), "{said}");
        assert!(!said.contains("not confirmed"), "{said}");
        wait_for_workers(&quickack, count);
        load.wait_for_everybody();
    }
    let tally = load.stop();
    println!("4 -> 1 -> 8 -> 3 -> 4 workers: {tally}");
    tally.assert_unharmed();
}

/// Those that come are given some by the others; those that go deal theirs out evenly.
#[test]
fn clients_are_dealt_anew_when_the_number_of_workers_changes_before_memcached() {
    const CLIENTS: u64 = 48;
    for accept in ["accept: gate", "accept: reuseport"] {
        let (memcached, quickack) = harness::field(2, &[accept], &[]);
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| quickack.client()).collect();
        harness::wait_for_clients(&quickack, CLIENTS);
        for count in [4, 3] {
            quickack.rewrite(&harness::text(count, &[accept], &[memcached.address], &[]));
            quickack.admin_ok(&["reload"]);
            wait_until(&format!("{accept}: {count} workers have their part each"), || {
                let clients: Vec<u64> =
                    workers(&quickack).values().map(|one| one.clients).collect();
                let most = clients.iter().copied().max().unwrap_or_default();
                let is_dealt = clients.len() == count && clients.iter().sum::<u64>() == CLIENTS;
                is_dealt && most <= CLIENTS / count as u64 + 2
            });
        }
        for client in &mut clients {
            client.ask("get nobody-has-this\r\n", "END\r\n");
        }
    }
}

#[test]
fn set_holds_for_all_workers_and_for_their_successors_before_memcached() {
    let (_memcached, quickack) = harness::field(3, &[], &["timeout: 60000"]);
    let load = harness::load(&quickack, 30, paced());
    let before = epoch(&quickack);
    let said = quickack.admin_ok(&["set", "memory_max=2g", "alpha.timeout_reply=70s"]);
    assert!(said.contains("applied by 3/3"), "{said}");
    assert_eq!(epoch(&quickack), before + 1);
    for shown in
        [quickack.admin_ok(&["config", "--running"]), quickack.admin_ok(&["config", "--diff"])]
    {
        assert!(shown.contains("memory_max") && shown.contains("2g"), "{shown}");
        assert!(shown.contains("timeout_reply") && shown.contains("70s"), "{shown}");
    }
    let refused = [
        ("memory_max=lots", "memory_max"),
        ("alpha.timeout_reply=0", "timeout_reply"),
        ("alpha.reuseport=on", "reuseport"),
        ("nobody.timeout_reply=1s", "nobody"),
        ("memori_max=1g", "memory_max"),
        ("workers=0", "workers"),
    ];
    for (word, named) in refused {
        let answer = quickack.admin(&["set", word]);
        assert!(!answer.ok && answer.text.contains(named), "{word}: {answer:?}");
    }
    assert_eq!(epoch(&quickack), before + 1);
    load.wait_for_everybody();
    load.stop().assert_unharmed();
    let old = workers(&quickack)[&1].pid;
    send(old, Signal::KILL);
    wait_until("worker 1 is there again", || {
        workers(&quickack).get(&1).is_some_and(|one| one.pid != old)
    });
    wait_for_workers(&quickack, 3);
    assert_eq!(epoch(&quickack), before + 1);
    // A reload of the same file keeps it, and one command removes it.
    quickack.admin_ok(&["reload"]);
    assert!(quickack.admin_ok(&["config", "--diff"]).contains("2g"));
    quickack.admin_ok(&["set", "memory_max=", "alpha.timeout_reply="]);
    assert!(!quickack.admin_ok(&["config", "--diff"]).contains("2g"));
}

/// A limit set at run time takes effect, also in the successor of a killed worker.
#[test]
fn a_timeout_that_is_set_is_kept_by_a_server_that_never_answers() {
    let (_silent, address) = silent();
    let quickack = harness::start(1, &[], &[address], &["timeout: 60000"]);
    quickack.admin_ok(&["set", "alpha.timeout_reply=100ms"]);
    for _ in 0..2 {
        let start = Instant::now();
        let mut client = quickack.client();
        client.send("get a\r\n");
        assert!(client.line().starts_with("SERVER_ERROR "));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let old = workers(&quickack)[&0].pid;
        send(old, Signal::KILL);
        wait_until("a successor", || workers(&quickack).get(&0).is_some_and(|one| one.pid != old));
        wait_for_workers(&quickack, 1);
    }
}

#[test]
fn a_change_of_owners_is_refused_with_the_number_of_keys_before_memcached() {
    let memcacheds = [Memcached::start(), Memcached::start(), Memcached::start()];
    let addresses = memcacheds.each_ref().map(|memcached| memcached.address);
    let quickack = harness::start(2, &[], &addresses[..2], &["hash: md5"]);
    let options = Options { trust: Trust::Old, ..paced() };
    let load = harness::load(&quickack, 20, options);
    let before = epoch(&quickack);
    quickack.rewrite(&harness::text(2, &[], &addresses, &["hash: md5"]));
    let answer = quickack.admin(&["reload"]);
    assert!(!answer.ok && answer.text.contains("--allow-remap"), "{answer:?}");
    // A third server takes about a third of the keys.
    let moved =
        number_before(&answer.text, "of 100,000").or(number_before(&answer.text, "of 100000"));
    assert!(moved.is_some_and(|moved| (25_000..45_000).contains(&moved)), "{answer:?}");
    assert_eq!(epoch(&quickack), before);
    assert_eq!(memcacheds[2].stat("cmd_get") + memcacheds[2].stat("cmd_set"), 0);
    let said = quickack.admin_ok(&["reload", "--allow-remap"]);
    assert!(said.contains("applied by 2/2"), "{said}");
    load.wait_for_everybody();
    wait_until("the third is asked", || memcacheds[2].stat("cmd_get") > 0);
    // And back to two servers.
    quickack.rewrite(&harness::text(2, &[], &addresses[..2], &["hash: md5"]));
    assert!(!quickack.admin(&["reload"]).ok);
    quickack.admin_ok(&["reload", "--allow-remap"]);
    load.wait_for_everybody();
    load.stop().assert_unharmed();
    drop(memcacheds);
}

/// Returns the number before some words, with any separators of thousands.
fn number_before(text: &str, words: &str) -> Option<u64> {
    let before = text.split(words).next().filter(|before| before.len() < text.len())?;
    let digit = |c: char| c.is_ascii_digit() || c == ',';
    let number: Vec<char> = before.trim_end().chars().rev().take_while(|c| digit(*c)).collect();
    number.into_iter().rev().filter(char::is_ascii_digit).collect::<String>().parse().ok()
}

#[test]
fn pools_come_and_go_beside_one_that_stays_before_memcached() {
    let (memcached, quickack) = harness::field(2, &[], &[]);
    let load = harness::load(&quickack, 20, paced());
    let alone = harness::text(2, &[], &[memcached.address], &[]);
    for _ in 0..3 {
        let beta = free_address();
        let text =
            format!("{alone}beta:\n  listen: {beta}\n  servers:\n   - {}:1\n", memcached.address);
        quickack.rewrite(&text);
        quickack.admin_ok(&["reload"]);
        let mut client = Client::connect(beta);
        client.ask("get a\r\n", "END\r\n");
        quickack.rewrite(&alone);
        quickack.admin_ok(&["reload"]);
        assert_eq!(client.rest(), "", "the clients of a pool that is gone are let go");
        wait_until("nobody listens there", || std::net::TcpStream::connect(beta).is_err());
    }
    load.stop().assert_unharmed();
}

/// Requests sent to a pool before its removal are answered.
#[test]
fn a_pool_that_goes_answers_what_it_was_asked_by_hesitant_clients() {
    let server = super::shutdown::Hesitant::start();
    let memcached = Memcached::start();
    let beta = free_address();
    let alone = harness::text(2, &[], &[memcached.address], &[]);
    let both = format!(
        "{alone}beta:\n  listen: {beta}\n  timeout: 60000\n  servers:\n   - {}:1\n",
        server.address
    );
    let quickack = harness::start(2, &[], &[memcached.address], &[]);
    quickack.rewrite(&both);
    quickack.admin_ok(&["reload"]);
    let mut client = Client::connect(beta);
    client.send("get a\r\n");
    assert_eq!(server.asked.recv_timeout(testkit::process::DEADLINE).as_deref(), Ok("get a"));
    quickack.rewrite(&alone);
    quickack.admin_ok(&["reload"]);
    server.answer.send(()).expect("the server waits for it");
    assert_eq!(client.rest(), "END\r\n");
}

#[test]
fn a_configuration_of_two_thousand_servers_passes_before_memcached() {
    let memcached = Memcached::start();
    let port = memcached.address.port();
    let mut text = harness::text(2, &[], &[memcached.address], &[]);
    let quickack = harness::start(2, &[], &[memcached.address], &[]);
    let load = harness::load(&quickack, 10, Options { rate: Some(500), ..Options::default() });
    let beta = free_address();
    text.push_str(&format!("beta:\n  listen: {beta}\n  servers:\n"));
    for n in 0..2_000 {
        text.push_str(&format!("   - 127.0.0.1:{port}:1 server-{n:04}\n"));
    }
    quickack.rewrite(&text);
    let start = Instant::now();
    let said = quickack.admin_ok(&["reload"]);
    println!("2,000 servers in {:?}", start.elapsed());
    assert!(said.contains("applied by 2/2"), "{said}");
    let mut client = Client::connect(beta);
    for n in 0..100 {
        client.ask(&format!("set key{n} 0 0 1\r\nv\r\n"), "STORED\r\n");
    }
    let tally = load.stop();
    tally.assert_unharmed();
}

/// Workers end up with the current configuration, even if some die while it changes.
#[test]
fn kills_between_reloads_leave_all_workers_with_one_epoch_before_memcached() {
    let (memcached, quickack) = harness::field(4, &[], &["timeout: 60000"]);
    let load = harness::load(&quickack, 40, paced());
    for n in 0..12 {
        let more = format!("timeout: {}", 60_001 + n);
        quickack.rewrite(&harness::text(4, &[], &[memcached.address], &[&more]));
        let reload =
            quickack.admin_command(&["reload"]).stdout(std::process::Stdio::null()).spawn();
        let victim = workers(&quickack).get(&(n % 4)).map(|worker| worker.pid);
        if let Some(pid) = victim.filter(|pid| quickack.workers().values().any(|id| id == pid)) {
            send(pid, Signal::KILL);
        }
        reload.expect("the program was built for this test").wait().expect("it ends");
        wait_until("all workers serve with one epoch", || {
            let workers = workers(&quickack);
            let epochs: Vec<u64> = workers.values().map(|worker| worker.epoch).collect();
            let serving = workers.values().all(Worker::is_serving);
            serving && epochs.len() == 4 && epochs.iter().all(|epoch| *epoch == epochs[0])
        });
        load.wait_for_everybody();
    }
    load.stop().assert_lost_at_most(12);
}

/// Alternates calm periods with five reloads a second: one pair of three must be alike.
#[test]
#[ignore = "wants a machine to itself; `cargo xtask test --long` runs it"]
fn soak_reloads_move_the_99th_percentile_by_less_than_a_millisecond_before_memcached() {
    let (memcached, quickack) = harness::field(2, &[], &["timeout: 60000"]);
    let load = harness::load(&quickack, 100, Options { rate: Some(8_000), ..Options::default() });
    let mut moved = Vec::new();
    for n in 0..30 {
        if n % 10 == 0 {
            drop(load.take_latencies());
            load.wait_for_requests(16_000);
            moved.push((load.take_latencies(), None));
        }
        let more = format!("timeout: {}", 60_001 + n);
        quickack.rewrite(&harness::text(2, &[], &[memcached.address], &[&more]));
        quickack.admin_ok(&["reload"]);
        load.wait_for_requests(1_600);
        if n % 10 == 9 {
            let last = moved.last_mut().expect("it was pushed nine rounds ago");
            last.1 = Some(load.take_latencies());
        }
    }
    load.stop().assert_unharmed();
    let mut least = u32::MAX;
    for (calm, busy) in &moved {
        let busy = busy.as_ref().expect("it was measured");
        let (before, after) = (calm.quantile(0.99), busy.quantile(0.99));
        println!("p99 calm {before} us, with reloads {after} us; longest {} us", busy.max());
        least = least.min(after.saturating_sub(before));
    }
    assert!(least < 1_000, "{least} us");
}
