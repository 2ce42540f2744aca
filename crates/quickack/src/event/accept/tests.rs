//! Doors of several workers in one process, at the same listeners.

use std::cell::RefCell;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

use rustix::event::{Timespec, epoll};
use rustix::process::Resource;

use super::super::{LISTENER, POKE, token};
use super::*;
use crate::board::Board;

/// What each of `slots` serving workers knows of the others.
pub(super) fn crowd(slots: usize) -> Vec<Crowd> {
    let memory = sys::memory::shared("test", Board::words(slots, 1)).unwrap();
    let board = Board::create(sys::memory::map(&memory).unwrap(), slots, 1);
    let pokes: Vec<OwnedFd> = (0..slots).map(|_| sys::poke::new().unwrap()).collect();
    let pokes = Rc::new(RefCell::new(pokes));
    let one = |slot| {
        board.set_serving(slot, true);
        Crowd { board: board.clone(), slot, pokes: Rc::clone(&pokes) }
    };
    (0..slots).map(one).collect()
}

/// A worker: its door, and the kernel's list of what it watches.
struct Post {
    epoll: OwnedFd,
    door: Door,
    clients: Vec<Arrival>,
}

/// The workers of a proxy, each a step at a time.
struct Row {
    posts: Vec<Post>,
    address: SocketAddr,
    listener: OwnedFd,
    clients: Vec<TcpStream>,
    now: Time,
}

impl Post {
    /// What a loop does when its wait ends; whether there was anything to wake it.
    fn step(&mut self, now: Time) -> bool {
        self.door.before_wait(&self.epoll, now);
        self.take(now)
    }

    fn take(&mut self, now: Time) -> bool {
        let events = wait_on(&self.epoll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        for token in &events {
            match *token {
                POKE => self.door.poked(&self.epoll, now),
                listener => self.door.knock((listener - LISTENER) as usize),
            }
        }
        let woken = !events.is_empty() || self.door.is_knocked();
        while let Some(arrival) = self.door.next(&self.epoll, now) {
            self.clients.push(arrival);
        }
        woken
    }
}

impl Row {
    fn new(workers: usize, policy: impl Fn() -> Policy) -> Row {
        let listener = sys::listen::tcp("127.0.0.1:0".parse().unwrap(), 4096, false).unwrap();
        let address = sys::listen::local_address(&listener).unwrap();
        let post = |crowd: Crowd| {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, &crowd.pokes.borrow()[crowd.slot], token(POKE), flags).unwrap();
            let mut door = Door::new(&epoll).unwrap();
            door.share(crowd, policy());
            door.set_listeners(&epoll, vec![shared(1, Some(&listener))]);
            Post { epoll, door, clients: Vec::new() }
        };
        let posts = crowd(workers).into_iter().map(post).collect();
        Row { posts, address, listener, clients: Vec::new(), now: Time(1) }
    }

    fn connect(&mut self) {
        self.clients.push(TcpStream::connect(self.address).unwrap());
    }

    /// Lets the workers that `runs` names do what they have to, until nobody has anything.
    fn settle(&mut self, runs: impl Fn(usize) -> bool) {
        while (0..self.posts.len()).rev().filter(|at| runs(*at)).fold(false, |woken, at| {
            // Each of them, whoever was woken before.
            self.posts[at].step(self.now) | woken
        }) {}
    }

    fn counts(&self) -> Vec<usize> {
        self.posts.iter().map(|post| post.clients.len()).collect()
    }

    fn served(&self) -> usize {
        self.counts().iter().sum()
    }
}

fn shared(id: u32, fd: Option<&OwnedFd>) -> Listener {
    Listener {
        id,
        fd: fd.map(|fd| fd.try_clone().unwrap()),
        pool: 1,
        tcp: true,
        nodelay: true,
        keepalive: false,
        shared: true,
        proxy_protocol: Vec::new(),
    }
}

fn spread(counts: &[usize]) -> usize {
    counts.iter().max().unwrap() - counts.iter().min().unwrap()
}

#[test]
fn the_gate_deals_one_by_one_and_in_a_burst() {
    let mut row = Row::new(8, || Policy::Gate);
    for _ in 0..64 {
        row.connect();
        row.settle(|_| true);
    }
    assert_eq!(row.served(), 64);
    assert!(spread(&row.counts()) <= 2, "{:?}", row.counts());
    (0..336).for_each(|_| row.connect());
    row.settle(|_| true);
    assert_eq!(row.served(), 400);
    assert!(*row.counts().iter().max().unwrap() <= 55, "{:?}", row.counts());
}

/// Who was woken for a client that came while all slept; the others are poked.
fn sleep_through_a_client(row: &mut Row) -> Vec<usize> {
    let pokes = Rc::clone(&row.posts[0].door.crowd().unwrap().pokes);
    let pokes = pokes.borrow();
    let address = row.address;
    let epolls: Vec<&OwnedFd> = row.posts.iter().map(|post| &post.epoll).collect();
    let (client, woken) = std::thread::scope(|scope| {
        let (say, heard) = std::sync::mpsc::channel();
        let sleep = |epoll| {
            let say = say.clone();
            scope.spawn(move || {
                say.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
                wait_on(epoll, None)
            })
        };
        let threads: Vec<_> = epolls.into_iter().map(sleep).collect();
        for id in heard.iter().take(threads.len()) {
            let stat = format!("/proc/self/task/{id}/stat");
            while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                std::thread::yield_now();
            }
        }
        let client = TcpStream::connect(address).unwrap();
        // Whoever is woken has been by now: it happens within the call to connect.
        pokes.iter().for_each(sys::poke::poke);
        let woken: Vec<Vec<u64>> =
            threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        (client, woken)
    });
    row.clients.push(client);
    let listener = |tokens: &Vec<u64>| tokens.iter().any(|token| *token < POKE);
    woken.iter().enumerate().filter(|(_, tokens)| listener(tokens)).map(|(at, _)| at).collect()
}

/// The tokens of what is ready.
fn wait_on(epoll: &OwnedFd, timeout: Option<&Timespec>) -> Vec<u64> {
    let mut events = Vec::with_capacity(8);
    epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), timeout).unwrap();
    events.iter().map(|event| event.data.u64()).collect()
}

#[test]
fn a_client_wakes_one_worker_and_when_that_is_stopped_a_poke_brings_another() {
    let mut row = Row::new(4, || Policy::Gate);
    row.settle(|_| true);
    let woken = sleep_through_a_client(&mut row);
    assert_eq!(woken.len(), 1);
    // Whoever pokes it, one of the others looks for itself. (The master does when one dies: see
    // `the_master_wakes_the_others_of_a_dead_worker_before_memcached_and_its_successor`.)
    let stopped = woken[0];
    let other = (stopped + 1) % 4;
    sys::poke::poke(&row.posts[other].door.crowd().unwrap().pokes.borrow()[other]);
    row.settle(|at| at == other);
    assert_eq!((row.served(), row.counts()[other]), (1, 1));
}

/// Each has declined a client while the others had fewer, and nobody has the fewest by now who
/// watches. `is_taken`: what waited has been taken elsewhere.
fn check_a_poke_is_passed_on(is_taken: bool) {
    let mut row = Row::new(3, || Policy::Gate);
    row.settle(|_| true);
    for (at, clients) in [(2, 5), (1, 4), (0, 20)] {
        // They were handed over by others.
        (0..clients).for_each(|_| row.posts[at].door.entered());
        row.connect();
        assert!(row.posts[at].step(row.now), "it was told of the client");
        // At the end of its turn it does not have the fewest, and goes to sleep.
        assert!(!row.posts[at].step(row.now) && row.counts()[at] == 0);
        let taken = (at > 0 || is_taken).then(|| sys::listen::accept(&row.listener).unwrap());
        assert_eq!(taken.is_some(), at > 0 || is_taken);
    }
    // The last one has poked slot 1, which has got more clients than slot 2 in the meantime.
    (0..10).for_each(|_| row.posts[1].door.entered());
    let board = row.posts[0].door.crowd().unwrap().board.clone();
    assert_eq!([0, 1, 2].map(|at| board.connections(at)), [20, 14, 5]);
    assert_eq!([0, 1, 2].map(|at| board.watching(at)), [false; 3]);
    row.posts[1].step(row.now);
    assert_eq!(row.counts(), [0; 3]);
    // No time passes, so nobody looks unasked.
    row.posts[2].take(row.now);
    assert!(board.watching(2), "who has the fewest was poked");
    assert_eq!(row.counts(), [0, 0, usize::from(!is_taken)]);
    row.connect();
    row.posts[2].take(row.now);
    assert_eq!(row.counts(), [0, 0, 1 + usize::from(!is_taken)]);
}

#[test]
fn who_is_poked_and_over_the_gate_by_then_passes_the_poke_on() {
    check_a_poke_is_passed_on(false);
    check_a_poke_is_passed_on(true);
}

#[test]
fn a_stopped_worker_with_the_fewest_clients_does_not_keep_the_others_from_accepting() {
    let mut row = Row::new(4, || Policy::Gate);
    for _ in 0..8 {
        row.connect();
    }
    row.settle(|at| at != 2);
    let early = row.served();
    assert!(early < 8 && row.counts()[2] == 0, "they wait for slot 2: {:?}", row.counts());
    // Until it has not answered for long enough.
    row.now = row.posts.iter().filter_map(|post| post.door.due(row.now)).max().unwrap();
    row.settle(|at| at != 2);
    assert_eq!(row.served(), 8);
    assert!(spread(&[row.counts()[0], row.counts()[1], row.counts()[3]]) <= 2);
}

#[test]
fn whoever_shares_looks_unasked_now_and_then() {
    let mut row = Row::new(2, || Policy::Gate);
    row.settle(|_| true);
    // The one that is woken is stopped. The other sleeps, for a second at most.
    let woken = sleep_through_a_client(&mut row);
    let sleeper = 1 - woken[0];
    assert!(!row.posts[sleeper].step(row.now));
    row.now = row.posts[sleeper].door.due(row.now).unwrap();
    assert!(row.now.0 <= 1 + LOOK_US);
    row.settle(|at| at == sleeper);
    assert_eq!(row.counts()[sleeper], 1);
}

#[test]
fn who_stood_aside_watches_again_when_it_has_the_fewest() {
    let mut row = Row::new(2, || Policy::Gate);
    for _ in 0..8 {
        row.connect();
    }
    row.settle(|_| true);
    let heavy = usize::from(row.counts()[1] > row.counts()[0]);
    // All clients of one leave: it must be the one who takes the next.
    let post = &mut row.posts[heavy];
    post.clients.drain(..).for_each(|_| post.door.left());
    row.settle(|_| true);
    assert!(row.posts[heavy].door.crowd().unwrap().board.watching(heavy));
    (0..3).for_each(|_| row.connect());
    row.settle(|_| true);
    assert!(row.counts()[heavy] >= 2, "{:?}", row.counts());
}

#[test]
fn a_listener_that_goes_is_emptied_first() {
    let mut row = Row::new(2, || Policy::Gate);
    let other = sys::listen::tcp("127.0.0.1:0".parse().unwrap(), 64, false).unwrap();
    (0..100).for_each(|_| row.connect());
    let now = row.now;
    let post = &mut row.posts[0];
    post.door.set_listeners(&post.epoll, vec![shared(2, Some(&other))]);
    while let Some(arrival) = post.door.next(&post.epoll, now) {
        post.clients.push(arrival);
    }
    assert_eq!(row.counts(), [100, 0]);
    // The new one is watched, and the old one is not: another process has it open still.
    row.connect();
    assert!(!row.posts[0].take(now));
    let address = sys::listen::local_address(&other).unwrap();
    row.clients.push(TcpStream::connect(address).unwrap());
    assert!(row.posts[0].take(now));
    drop(row.listener);
}

#[test]
fn a_listener_that_stays_keeps_its_socket() {
    let mut row = Row::new(1, || Policy::Alone);
    let now = row.now;
    let post = &mut row.posts[0];
    post.door.set_listeners(&post.epoll, vec![shared(1, None)]);
    row.connect();
    assert!(row.posts[0].step(now));
    assert_eq!(row.served(), 1);
}

#[test]
fn with_the_lock_a_client_wakes_its_holder_only() {
    let lock = sys::lock::new().unwrap();
    let mut row = Row::new(4, || Policy::Mutex(lock.try_clone().unwrap()));
    let now = row.now;
    // In one process everybody gets the lock; here only one tries.
    let post = &mut row.posts[2];
    post.door.before_wait(&post.epoll, now);
    assert_eq!(sleep_through_a_client(&mut row), [2]);
    assert!(row.posts[2].take(now));
    assert_eq!(row.counts(), [0, 0, 1, 0]);
}

#[test]
fn with_the_lock_nobody_stays_at_nothing() {
    let lock = sys::lock::new().unwrap();
    let mut row = Row::new(8, || Policy::Mutex(lock.try_clone().unwrap()));
    for _ in 0..400 {
        row.connect();
        // Whoever tries first has it; the others are asleep, unless they are poked.
        row.settle(|_| true);
    }
    let counts = row.counts();
    assert_eq!(row.served(), 400);
    assert!(counts.iter().all(|count| (1..=75).contains(count)), "{counts:?}");
}

/// Of two that there were, one has gone, and its place is empty.
#[test]
fn a_poke_leads_to_the_listener_at_which_somebody_waits() {
    let mut row = Row::new(1, || Policy::Alone);
    let (now, post) = (row.now, &mut row.posts[0]);
    let other = sys::listen::tcp("127.0.0.1:0".parse().unwrap(), 8, false).unwrap();
    let address = sys::listen::local_address(&other).unwrap();
    post.door.set_listeners(&post.epoll, vec![shared(1, None), shared(2, Some(&other))]);
    post.door.set_listeners(&post.epoll, vec![shared(2, None)]);
    post.step(now);
    post.door.poked(&post.epoll, now);
    assert!(!post.door.is_knocked(), "nobody waits");
    let _client = TcpStream::connect(address).unwrap();
    post.door.poked(&post.epoll, now);
    assert_eq!(post.door.knocking, [1]);
    post.step(now);
    assert_eq!(post.clients.len(), 1);
}

/// In a process of its own: descriptors are counted for a process.
#[test]
#[ignore = "run by the test below, in a process of its own"]
fn without_a_descriptor() {
    let mut row = Row::new(1, || Policy::Alone);
    let now = row.now;
    (0..3).for_each(|_| row.connect());
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = Some(64);
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
    let mut all = Vec::new();
    while let Ok(fd) = row.listener.try_clone() {
        all.push(fd);
    }
    // Each is told why. Nobody is left waiting, and nothing spins.
    assert!(row.posts[0].step(now));
    for mut client in row.clients.drain(..) {
        let mut words = String::new();
        client.read_to_string(&mut words).unwrap();
        assert_eq!(words.as_bytes(), OUT_OF_DESCRIPTORS);
    }
    assert!(!row.posts[0].step(now));
    // Without even the reserve: it looks away for a while, and the client waits.
    drop(all.split_off(all.len() - 1));
    row.connect();
    row.posts[0].door.reserve = None;
    while let Ok(fd) = row.listener.try_clone() {
        all.push(fd);
    }
    row.posts[0].step(now);
    assert!(!row.posts[0].step(now) && row.served() == 0);
    all.clear();
    let later = row.posts[0].door.due(now).unwrap();
    assert!(row.posts[0].step(later));
    assert_eq!(row.served(), 1);
    std::process::exit(7);
}

#[test]
fn a_worker_without_a_descriptor_says_so_and_looks_away_for_a_while() {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let test = "event::accept::tests::without_a_descriptor";
    let output = command.args(["--ignored", "--exact", "--nocapture", test]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{words}");
}
