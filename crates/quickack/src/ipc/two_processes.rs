//! A channel between two processes, one of which is stopped midway: this test's own image is
//! started again as the other end.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use super::{Channel, QUEUE_MAX, ToMaster};
use crate::error::{Error, Peer};

/// Messages each way.
const COUNT: u64 = 10_000;
/// The other end is stopped when so many have come from it.
const STOP_AT: u64 = 3_000;
const DEADLINE: Duration = Duration::from_secs(20);
/// Set in the environment of the other process.
const OTHER: &str = "QUICKACK_TEST_OTHER_PROCESS";

/// Sends `COUNT` messages and expects as many, both in order.
struct End {
    channel: Channel<ToMaster, ToMaster>,
    sent: u64,
    received: u64,
    /// The longest time that one call took.
    longest: Duration,
    /// Messages that were not taken because the queue was full, and were sent later.
    full: u64,
}

impl End {
    fn new(fd: OwnedFd) -> End {
        let channel = Channel::new(fd);
        End { channel, sent: 0, received: 0, longest: Duration::ZERO, full: 0 }
    }

    fn is_done(&self) -> bool {
        self.sent == COUNT && self.received == COUNT && !self.channel.has_unsent()
    }

    /// Sends what is taken, and receives what is there.
    fn turn(&mut self) {
        let start = Instant::now();
        self.channel.flush().unwrap();
        // A few in a turn, so that both directions are busy at the same time.
        for _ in 0..50 {
            if self.sent == COUNT {
                break;
            }
            let text = format!("{:05} {}", self.sent, "x".repeat(self.sent as usize % 500));
            match self.channel.send(ToMaster::Refused { epoch: 0, why: text }, &[]) {
                Ok(seq) => {
                    self.sent += 1;
                    assert_eq!(seq, self.sent, "nothing else is sent here");
                }
                Err(Error::Peer(Peer::Full(_))) => {
                    self.full += 1;
                    break;
                }
                Err(error) => panic!("after {} messages: {error}", self.sent),
            }
        }
        for _ in 0..50 {
            let Some(received) = self.channel.receive().unwrap() else { break };
            let ToMaster::Refused { why: text, .. } = received.message else {
                panic!("{received:?}")
            };
            let (number, padding) = text.split_once(' ').unwrap();
            assert_eq!(number.parse(), Ok(self.received), "lost, or out of order");
            assert_eq!(padding.len() as u64, self.received % 500);
            self.received += 1;
        }
        self.longest = self.longest.max(start.elapsed());
    }

    /// Until something can be read, or written if that is what it waits for.
    fn wait(&self) {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.sent < COUNT || self.channel.has_unsent());
        let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        poll(&mut [PollFd::new(&self.channel.as_fd(), flags)], Some(&timeout)).unwrap();
    }
}

/// The other process. As a test of its own it has nothing to do.
#[test]
fn other_process() {
    if std::env::var_os(OTHER).is_none() {
        return;
    }
    let fd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut end = End::new(fd);
    let start = Instant::now();
    while !end.is_done() {
        assert!(start.elapsed() < DEADLINE, "{} sent, {} received", end.sent, end.received);
        end.turn();
        end.wait();
    }
    let last = ToMaster::Refused { epoch: 0, why: "done".into() };
    assert_eq!(end.channel.send(last, &[]).unwrap(), COUNT + 1);
    // The test closes its end when it has this; until then what it sent is not lost.
    while end.channel.receive().is_ok() {
        end.wait();
    }
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn ten_thousand_messages_each_way_survive_a_side_that_is_stopped_midway() {
    let (ours, other) = sys::channel::pair().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "ipc::two_processes::other_process", "--nocapture"]).env(OTHER, "1");
    command.stdin(Stdio::from(other)).stdout(Stdio::null());
    let mut other = Other(command.spawn().unwrap());
    // The command holds a copy of the other end.
    drop(command);
    let pid = Pid::from_child(&other.0);
    let mut end = End::new(ours);
    let start = Instant::now();
    while end.received < STOP_AT {
        assert!(start.elapsed() < DEADLINE, "{} sent, {} received", end.sent, end.received);
        end.turn();
        end.wait();
    }
    kill_process(pid, Signal::STOP).unwrap();
    // It goes on sending until nothing more is taken, and never waits for the other.
    while end.full < 100 && end.sent < COUNT {
        assert!(start.elapsed() < DEADLINE, "{} sent", end.sent);
        end.turn();
    }
    assert!(end.sent < COUNT, "the stopped side was never behind: {} sent", end.sent);
    assert_eq!(end.channel.queue.len(), QUEUE_MAX);
    kill_process(pid, Signal::CONT).unwrap();
    while !end.is_done() {
        assert!(start.elapsed() < DEADLINE, "{} sent, {} received", end.sent, end.received);
        end.turn();
        end.wait();
    }
    let last = loop {
        assert!(start.elapsed() < DEADLINE, "the other end does not say that it is done");
        match end.channel.receive().unwrap() {
            Some(received) => break received.message,
            None => end.wait(),
        }
    };
    assert_eq!(last, ToMaster::Refused { epoch: 0, why: "done".into() });
    // One that waited for the other would wait for ever.
    assert!(end.longest < Duration::from_secs(5), "one turn took {:?}", end.longest);
    drop(end);
    assert!(other.0.wait().unwrap().success());
}
