//! The job queues of three languages in front of real Redis, while quickack's workers are killed:
//! what is lost or done twice is not more than a queue allows whose connections are cut.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::process::{DEADLINE, Family, Process, Quickack, Redis, Speaker, send, wait_until};
use testkit::wire::resp::Reply;

use super::super::harness;
use super::{QUICKACK, addresses, config, servers};
use crate::peers::{peer_script, root, run};

/// A queue: how to run its script, and what it allows when a connection is cut.
struct Queue {
    name: &'static str,
    /// Arguments: the role, the port of the queue's Redis, the count, the ledger's port.
    command: fn(&str, &str, &str, &str) -> Command,
    /// Jobs that one process does at a time.
    at_once: usize,
    /// Jobs that a process may hold and do again, or another may, when its connection is cut.
    again: usize,
    /// Whether a job is lost whose connection is cut while it is handed over.
    loses: bool,
}

const RQ: Queue = Queue {
    name: "RQ",
    command: |role, port, count, ledger| python("rq_jobs.py", &[role, port, count, ledger]),
    at_once: 1,
    again: 0,
    loses: true,
};

const CELERY: Queue = Queue {
    name: "Celery",
    command: |role, port, count, ledger| python("celery_jobs.py", &[role, port, count, ledger]),
    at_once: 1,
    again: 8,
    loses: true,
};

const BULLMQ: Queue = Queue {
    name: "BullMQ",
    command: |role, port, count, ledger| {
        let mut command = Command::new("node");
        command.arg(peer_script("node/queue.js")).args([role, port, count, ledger]);
        command
    },
    at_once: 4,
    again: 4,
    loses: false,
};

const SIDEKIQ: Queue = Queue {
    name: "Sidekiq",
    command: |role, port, count, ledger| {
        let script = peer_script("queues/sidekiq_jobs.rb");
        if role == "produce" {
            let mut command = Command::new("ruby");
            command.arg(script).args([role, port, count, ledger]);
            return command;
        }
        let mut command = Command::new("sidekiq");
        command.arg("-r").arg(script).args(["-c", "4"]);
        command.env("PORT", port).env("LEDGER", ledger);
        command
    },
    at_once: 4,
    again: 0,
    loses: true,
};

fn python(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(root().join(".venv/bin/python"));
    command.arg(peer_script(&format!("queues/{script}"))).args(arguments);
    command
}

/// What became of the jobs.
#[derive(Debug)]
struct Outcome {
    lost: usize,
    doubled: usize,
}

/// Consumers that are started again when they end, as a supervisor would.
struct Consumers {
    start: Box<dyn Fn() -> Process>,
    processes: Vec<Process>,
}

impl Consumers {
    fn tend(&mut self) {
        for process in &mut self.processes {
            if testkit::process::facts::state_of(process.id()).is_none_or(|state| state == 'Z') {
                *process = (self.start)();
            }
        }
    }
}

const CONSUMERS: usize = 2;

/// Does `count` jobs of the queue at a port, and calls `cut` that many times meanwhile.
fn work(queue: &Queue, port: u16, count: usize, cuts: usize, mut cut: impl FnMut()) -> Outcome {
    let ledger = Redis::start(Family::Redis70);
    let done = || counts(&ledger).len();
    let (port, ledger_port) = (port.to_string(), ledger.address.port().to_string());
    let (command, name) = (queue.command, queue.name);
    run(&mut command("produce", &port, &count.to_string(), &ledger_port));
    let start = move || Process::start(name, &mut command("consume", &port, "0", &ledger_port));
    let processes = (0..CONSUMERS).map(|_| start()).collect();
    let mut consumers = Consumers { start: Box::new(start), processes };
    for nth in 1..=cuts {
        wait_until("the jobs go on", || {
            consumers.tend();
            done() >= count * nth / (cuts + 2)
        });
        cut();
    }
    // What is not done while nothing happens for so long is lost.
    let (mut last, mut since) = (0, Instant::now());
    while last < count && since.elapsed() < DEADLINE {
        consumers.tend();
        let now = done();
        if now > last {
            (last, since) = (now, Instant::now());
        }
        // Each look is a connection, and the jobs need the processors.
        std::thread::sleep(Duration::from_millis(20));
    }
    let counts = counts(&ledger);
    let numbers: BTreeSet<usize> = counts.iter().map(|(number, _)| *number).collect();
    assert!(numbers.iter().all(|number| *number < count), "a job that nobody asked for");
    let times: usize = counts.iter().map(|(_, times)| times).sum();
    Outcome { lost: count - numbers.len(), doubled: times - numbers.len() }
}

/// Returns how often each job counted itself.
fn counts(ledger: &Redis) -> Vec<(usize, usize)> {
    let told = Speaker::connect(ledger.address).say("HGETALL done");
    let words = told.list();
    let number = |word: &Reply| {
        let text = std::str::from_utf8(word.bytes().expect("a string")).expect("digits");
        text.parse().expect("a number")
    };
    words.chunks(2).map(|pair| (number(&pair[0]), number(&pair[1]))).collect()
}

/// Plays the jobs through quickack, of which a worker is killed `deaths` times.
fn through(queue: &Queue, servers_count: usize, count: usize, deaths: usize) -> Outcome {
    let backs = servers(Family::Redis70, servers_count);
    let text = config(&addresses(&backs), &["timeout: 20s"]);
    let quickack = Quickack::start(QUICKACK, &format!("{text}global:\n  workers: 2\n"));
    harness::wait_for_workers(&quickack, 2);
    let mut victim = 0;
    work(queue, quickack.address().port(), count, deaths, || {
        let old = harness::workers(&quickack)[&victim].pid;
        send(old, Signal::KILL);
        wait_until("another worker serves", || {
            harness::workers(&quickack)
                .get(&victim)
                .is_some_and(|it| it.pid != old && it.is_serving())
        });
        victim = 1 - victim;
    })
}

/// The same without quickack: the server cuts all connections.
fn direct(queue: &Queue, count: usize, cuts: usize) -> Outcome {
    let back = Redis::start(Family::Redis70);
    work(queue, back.address.port(), count, cuts, || {
        let mut speaker = Speaker::connect(back.address);
        speaker.say("CLIENT KILL TYPE normal");
        speaker.say("CLIENT KILL TYPE pubsub");
    })
}

fn check(queue: &Queue, servers: usize, count: usize, deaths: usize) {
    let none = through(queue, servers, count.min(300), 0);
    assert_eq!((none.lost, none.doubled), (0, 0), "{}: without a fault", queue.name);
    let outcome = through(queue, servers, count, deaths);
    println!("{} before {servers}: {outcome:?} of {count}, {deaths} deaths", queue.name);
    allows(queue, deaths, &outcome);
}

fn allows(queue: &Queue, cuts: usize, outcome: &Outcome) {
    let each = |count: usize| count * cuts * CONSUMERS;
    let lost = if queue.loses { each(queue.at_once) } else { 0 };
    assert!(outcome.lost <= lost, "{}: {outcome:?}", queue.name);
    assert!(outcome.doubled <= each(queue.again), "{}: {outcome:?}", queue.name);
}

#[test]
fn rq_does_its_jobs_while_workers_are_killed() {
    check(&RQ, 1, 300, 3);
}

#[test]
fn celery_does_its_jobs_while_workers_are_killed_before_one_server_and_four() {
    [1, 4].iter().for_each(|servers| check(&CELERY, *servers, 300, 3));
}

#[test]
fn bullmq_does_its_jobs_while_workers_are_killed_before_one_server_and_four() {
    [1, 4].iter().for_each(|servers| check(&BULLMQ, *servers, 300, 3));
}

#[test]
fn sidekiq_does_its_jobs_while_workers_are_killed() {
    check(&SIDEKIQ, 1, 300, 3);
}

/// 10,000 jobs each; what is lost and doubled directly is printed beside.
#[test]
#[ignore = "takes minutes; `cargo xtask test --long` runs it"]
fn soak_rq_celery_bullmq_and_sidekiq_do_ten_thousand_jobs() {
    for (queue, servers) in
        [(&RQ, 1), (&CELERY, 1), (&CELERY, 4), (&BULLMQ, 1), (&BULLMQ, 4), (&SIDEKIQ, 1)]
    {
        let outcome = direct(queue, 10_000, 20);
        println!("{} directly: {outcome:?} of 10,000, 20 cuts", queue.name);
        check(queue, servers, 10_000, 20);
    }
}
