//! Acceptors of several workers in one process, at the same listeners.

use std::cell::RefCell;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

use rustix::event::{Timespec, epoll};
use rustix::process::Resource;

use super::super::{LISTENER_TOKEN, WAKEUP_TOKEN, token};
use super::*;
use crate::scoreboard::Scoreboard;

/// The peers of each of `slots` serving workers.
pub(super) fn peers(slots: usize) -> Vec<Peers> {
    let memory = sys::memory::shared("test", Scoreboard::words(slots, 1)).unwrap();
    let scoreboard = Scoreboard::create(sys::memory::map(&memory).unwrap(), slots, 1);
    let wakeups: Vec<OwnedFd> = (0..slots).map(|_| sys::wakeup::new().unwrap()).collect();
    let wakeups = Rc::new(RefCell::new(wakeups));
    let one = |slot| {
        scoreboard.set_serving(slot, true);
        Peers { scoreboard: scoreboard.clone(), slot, wakeups: Rc::clone(&wakeups) }
    };
    (0..slots).map(one).collect()
}

/// A worker: its acceptor, and the kernel's list of what it watches.
struct Member {
    epoll: OwnedFd,
    acceptor: Acceptor,
    clients: Vec<Arrival>,
}

/// The workers of a proxy, each a step at a time.
struct Group {
    members: Vec<Member>,
    address: SocketAddr,
    listener: OwnedFd,
    clients: Vec<TcpStream>,
    now: Time,
}

impl Member {
    /// Does what a loop does when its wait ends; returns whether there was anything to wake it.
    fn step(&mut self, now: Time) -> bool {
        self.acceptor.before_wait(&self.epoll, now);
        self.take(now)
    }

    fn take(&mut self, now: Time) -> bool {
        let events = wait_on(&self.epoll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        for token in &events {
            match *token {
                WAKEUP_TOKEN => self.acceptor.look(&self.epoll, now),
                listener => self.acceptor.set_ready((listener - LISTENER_TOKEN) as usize),
            }
        }
        let woken = !events.is_empty() || self.acceptor.has_ready();
        while let Some(arrival) = self.acceptor.next(&self.epoll, now) {
            self.clients.push(arrival);
        }
        woken
    }
}

impl Group {
    fn new(workers: usize, policy: impl Fn() -> Policy) -> Group {
        let listener = sys::listen::tcp("127.0.0.1:0".parse().unwrap(), 4096, false).unwrap();
        let address = sys::listen::local_address(&listener).unwrap();
        let member = |peers: Peers| {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, &peers.wakeups.borrow()[peers.slot], token(WAKEUP_TOKEN), flags)
                .unwrap();
            let mut acceptor = Acceptor::new(&epoll).unwrap();
            acceptor.share(peers, policy());
            acceptor.set_listeners(&epoll, vec![shared(1, Some(&listener))]);
            Member { epoll, acceptor, clients: Vec::new() }
        };
        let members = peers(workers).into_iter().map(member).collect();
        Group { members, address, listener, clients: Vec::new(), now: Time(1) }
    }

    fn connect(&mut self) {
        self.clients.push(TcpStream::connect(self.address).unwrap());
    }

    /// Lets the workers that `runs` names do what they have to, until nobody has anything.
    fn settle(&mut self, runs: impl Fn(usize) -> bool) {
        while (0..self.members.len()).rev().filter(|at| runs(*at)).fold(false, |woken, at| {
            // Each of them, whoever was woken before.
            self.members[at].step(self.now) | woken
        }) {}
    }

    fn counts(&self) -> Vec<usize> {
        self.members.iter().map(|member| member.clients.len()).collect()
    }

    fn served(&self) -> usize {
        self.counts().iter().sum()
    }
}

const NO_ROOM: &[u8] = b"-ERR max number of clients reached\r\n";

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
        no_room: NO_ROOM.to_vec(),
    }
}

fn spread(counts: &[usize]) -> usize {
    counts.iter().max().unwrap() - counts.iter().min().unwrap()
}

#[test]
fn the_gate_deals_one_by_one_and_in_a_burst() {
    let mut group = Group::new(8, || Policy::Gate);
    for _ in 0..64 {
        group.connect();
        group.settle(|_| true);
    }
    assert_eq!(group.served(), 64);
    assert!(spread(&group.counts()) <= 2, "{:?}", group.counts());
    (0..336).for_each(|_| group.connect());
    group.settle(|_| true);
    assert_eq!(group.served(), 400);
    assert!(*group.counts().iter().max().unwrap() <= 55, "{:?}", group.counts());
}

/// The workers that the kernel woke for a client that came while all slept. Then all are woken.
fn sleep_through_a_client(group: &mut Group) -> Vec<usize> {
    let wakeups = Rc::clone(&group.members[0].acceptor.peers().unwrap().wakeups);
    let wakeups = wakeups.borrow();
    let address = group.address;
    let epolls: Vec<&OwnedFd> = group.members.iter().map(|member| &member.epoll).collect();
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
        // The kernel has woken a worker by now: it does so within the call to connect.
        wakeups.iter().for_each(sys::wakeup::wake);
        let woken: Vec<Vec<u64>> =
            threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        (client, woken)
    });
    group.clients.push(client);
    let listener = |tokens: &Vec<u64>| tokens.iter().any(|token| *token < WAKEUP_TOKEN);
    woken.iter().enumerate().filter(|(_, tokens)| listener(tokens)).map(|(at, _)| at).collect()
}

/// The tokens of what is ready.
fn wait_on(epoll: &OwnedFd, timeout: Option<&Timespec>) -> Vec<u64> {
    let mut events = Vec::with_capacity(8);
    epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), timeout).unwrap();
    events.iter().map(|event| event.data.u64()).collect()
}

#[test]
fn a_client_wakes_one_worker_and_when_that_is_stopped_a_wakeup_brings_another() {
    let mut group = Group::new(4, || Policy::Gate);
    group.settle(|_| true);
    let woken = sleep_through_a_client(&mut group);
    assert_eq!(woken.len(), 1);
    // One of the others is woken, and looks for itself. (The master wakes them when one dies: see
    // `the_master_wakes_the_others_of_a_dead_worker_before_memcached_and_its_successor`.)
    let stopped = woken[0];
    let other = (stopped + 1) % 4;
    sys::wakeup::wake(&group.members[other].acceptor.peers().unwrap().wakeups.borrow()[other]);
    group.settle(|at| at == other);
    assert_eq!((group.served(), group.counts()[other]), (1, 1));
}

/// Each has declined a client while the others had fewer, and the one with the fewest does not
/// watch by now. `is_taken`: what waited has been taken elsewhere.
fn check_a_wakeup_is_passed_on(is_taken: bool) {
    let mut group = Group::new(3, || Policy::Gate);
    group.settle(|_| true);
    for (at, clients) in [(2, 5), (1, 4), (0, 20)] {
        // They were handed over by others.
        (0..clients).for_each(|_| group.members[at].acceptor.entered());
        group.connect();
        assert!(group.members[at].step(group.now), "it was told of the client");
        // At the end of its turn it does not have the fewest, and goes to sleep.
        assert!(!group.members[at].step(group.now) && group.counts()[at] == 0);
        let taken = (at > 0 || is_taken).then(|| sys::listen::accept(&group.listener).unwrap());
        assert_eq!(taken.is_some(), at > 0 || is_taken);
    }
    // The last one has woken slot 1, which has got more clients than slot 2 in the meantime.
    (0..10).for_each(|_| group.members[1].acceptor.entered());
    let scoreboard = group.members[0].acceptor.peers().unwrap().scoreboard.clone();
    assert_eq!([0, 1, 2].map(|at| scoreboard.connections(at)), [20, 14, 5]);
    assert_eq!([0, 1, 2].map(|at| scoreboard.watching(at)), [false; 3]);
    group.members[1].step(group.now);
    assert_eq!(group.counts(), [0; 3]);
    // No time passes, so none looks without a wakeup.
    group.members[2].take(group.now);
    assert!(scoreboard.watching(2), "the one with the fewest was woken");
    assert_eq!(group.counts(), [0, 0, usize::from(!is_taken)]);
    group.connect();
    group.members[2].take(group.now);
    assert_eq!(group.counts(), [0, 0, 1 + usize::from(!is_taken)]);
}

#[test]
fn who_is_woken_and_over_the_gate_by_then_passes_the_wakeup_on() {
    check_a_wakeup_is_passed_on(false);
    check_a_wakeup_is_passed_on(true);
}

#[test]
fn a_stopped_worker_with_the_fewest_clients_does_not_keep_the_others_from_accepting() {
    let mut group = Group::new(4, || Policy::Gate);
    for _ in 0..8 {
        group.connect();
    }
    group.settle(|at| at != 2);
    let early = group.served();
    assert!(early < 8 && group.counts()[2] == 0, "they wait for slot 2: {:?}", group.counts());
    // Until it has not answered for long enough.
    group.now =
        group.members.iter().filter_map(|member| member.acceptor.due(group.now)).max().unwrap();
    group.settle(|at| at != 2);
    assert_eq!(group.served(), 8);
    assert!(spread(&[group.counts()[0], group.counts()[1], group.counts()[3]]) <= 2);
}

#[test]
fn whoever_shares_looks_unasked_now_and_then() {
    let mut group = Group::new(2, || Policy::Gate);
    group.settle(|_| true);
    // The one that is woken is stopped. The other sleeps, for a second at most.
    let woken = sleep_through_a_client(&mut group);
    let sleeper = 1 - woken[0];
    assert!(!group.members[sleeper].step(group.now));
    group.now = group.members[sleeper].acceptor.due(group.now).unwrap();
    assert!(group.now.0 <= 1 + LOOK_US);
    group.settle(|at| at == sleeper);
    assert_eq!(group.counts()[sleeper], 1);
}

#[test]
fn who_stood_aside_watches_again_when_it_has_the_fewest() {
    let mut group = Group::new(2, || Policy::Gate);
    for _ in 0..8 {
        group.connect();
    }
    group.settle(|_| true);
    let heavy = usize::from(group.counts()[1] > group.counts()[0]);
    // All clients of one leave: it must be the one who takes the next.
    let member = &mut group.members[heavy];
    member.clients.drain(..).for_each(|_| member.acceptor.left());
    group.settle(|_| true);
    assert!(group.members[heavy].acceptor.peers().unwrap().scoreboard.watching(heavy));
    (0..3).for_each(|_| group.connect());
    group.settle(|_| true);
    assert!(group.counts()[heavy] >= 2, "{:?}", group.counts());
}

#[test]
fn a_listener_that_goes_is_emptied_first() {
    let mut group = Group::new(2, || Policy::Gate);
    let other = sys::listen::tcp("127.0.0.1:0".parse().unwrap(), 64, false).unwrap();
    (0..100).for_each(|_| group.connect());
    let now = group.now;
    let member = &mut group.members[0];
    member.acceptor.set_listeners(&member.epoll, vec![shared(2, Some(&other))]);
    while let Some(arrival) = member.acceptor.next(&member.epoll, now) {
        member.clients.push(arrival);
    }
    assert_eq!(group.counts(), [100, 0]);
    // The new one is watched, and the old one is not: another process has it open still.
    group.connect();
    assert!(!group.members[0].take(now));
    let address = sys::listen::local_address(&other).unwrap();
    group.clients.push(TcpStream::connect(address).unwrap());
    assert!(group.members[0].take(now));
    drop(group.listener);
}

#[test]
fn a_listener_that_stays_keeps_its_socket() {
    let mut group = Group::new(1, || Policy::Uncoordinated);
    let now = group.now;
    let member = &mut group.members[0];
    member.acceptor.set_listeners(&member.epoll, vec![shared(1, None)]);
    group.connect();
    assert!(group.members[0].step(now));
    assert_eq!(group.served(), 1);
}

/// Those who are here already are served between.
#[test]
fn a_pass_takes_so_many_clients_and_no_more() {
    let mut group = Group::new(1, || Policy::Uncoordinated);
    (0..ACCEPTS_MAX + 5).for_each(|_| group.connect());
    let now = group.now;
    for served in [ACCEPTS_MAX, ACCEPTS_MAX + 5] {
        assert!(group.members[0].step(now));
        assert_eq!(group.served(), served);
    }
}

#[test]
fn with_the_lock_a_client_wakes_its_holder_only() {
    let lock = sys::lock::new().unwrap();
    let mut group = Group::new(4, || Policy::Mutex(lock.try_clone().unwrap()));
    let now = group.now;
    // In one process everybody gets the lock; here only one tries.
    let member = &mut group.members[2];
    member.acceptor.before_wait(&member.epoll, now);
    assert_eq!(sleep_through_a_client(&mut group), [2]);
    assert!(group.members[2].take(now));
    assert_eq!(group.counts(), [0, 0, 1, 0]);
}

#[test]
fn with_the_lock_nobody_stays_at_nothing() {
    let lock = sys::lock::new().unwrap();
    let mut group = Group::new(8, || Policy::Mutex(lock.try_clone().unwrap()));
    for _ in 0..400 {
        group.connect();
        // The first that tries has it; the others are asleep, unless they are woken.
        group.settle(|_| true);
    }
    let counts = group.counts();
    assert_eq!(group.served(), 400);
    assert!(counts.iter().all(|count| (1..=75).contains(count)), "{counts:?}");
}

/// Of two that there were, one has gone, and its place is empty.
#[test]
fn a_wakeup_leads_to_the_listener_at_which_a_client_waits() {
    let mut group = Group::new(1, || Policy::Uncoordinated);
    let (now, member) = (group.now, &mut group.members[0]);
    let other = sys::listen::tcp("127.0.0.1:0".parse().unwrap(), 8, false).unwrap();
    let address = sys::listen::local_address(&other).unwrap();
    member.acceptor.set_listeners(&member.epoll, vec![shared(1, None), shared(2, Some(&other))]);
    member.acceptor.set_listeners(&member.epoll, vec![shared(2, None)]);
    member.step(now);
    member.acceptor.look(&member.epoll, now);
    assert!(!member.acceptor.has_ready(), "no client waits");
    let _client = TcpStream::connect(address).unwrap();
    member.acceptor.look(&member.epoll, now);
    assert_eq!(member.acceptor.ready, [1]);
    member.step(now);
    assert_eq!(member.clients.len(), 1);
}

/// In a process of its own: descriptors are counted for a process.
#[test]
#[ignore = "run by the test below, in a process of its own"]
fn without_a_descriptor() {
    let mut group = Group::new(1, || Policy::Uncoordinated);
    let now = group.now;
    (0..3).for_each(|_| group.connect());
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = Some(64);
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
    let mut all = Vec::new();
    while let Ok(fd) = group.listener.try_clone() {
        all.push(fd);
    }
    // Each is told why. Nobody is left waiting, and nothing spins.
    assert!(group.members[0].step(now));
    for mut client in group.clients.drain(..) {
        let mut words = String::new();
        client.read_to_string(&mut words).unwrap();
        assert_eq!(words.as_bytes(), NO_ROOM);
    }
    assert!(!group.members[0].step(now));
    // Without even the reserve: it looks away for a while, and the client waits.
    drop(all.split_off(all.len() - 1));
    group.connect();
    group.members[0].acceptor.reserve = None;
    while let Ok(fd) = group.listener.try_clone() {
        all.push(fd);
    }
    group.members[0].step(now);
    assert!(!group.members[0].step(now) && group.served() == 0);
    all.clear();
    let later = group.members[0].acceptor.due(now).unwrap();
    assert!(group.members[0].step(later));
    assert_eq!(group.served(), 1);
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
