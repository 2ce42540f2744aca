//! The workers: started, watched, ended, and started again when they die.
//!
//! ```text
//!   Vacant ──start──▶ Starting ──Installed──▶ Serving ──Retire──▶ Leaving ──ends──▶ Vacant
//!      ▲                 │ dies                  │ dies, or its heartbeat stands still
//!      └────── pause ◀───┴───────────────────────┘
//! ```

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, Peer};
use crate::ipc::{Channel, ToMaster, ToWorker};

/// The slot of one worker, which outlives the process in it.
pub struct Slot {
    pub number: usize,
    pub worker: Option<Worker>,
    /// The next start is not before this.
    pub not_before: Instant,
    early_deaths: EarlyDeaths,
    /// Workers that died here, in all.
    pub deaths: u64,
    /// How the last of them died, and when.
    pub last_death: Option<(Instant, String)>,
}

/// Deaths in a row of a process soon after its start: each makes the pause before the next start
/// longer.
#[derive(Default)]
pub struct EarlyDeaths(u32);

/// A worker process.
pub struct Worker {
    child: Child,
    pub channel: Channel<ToWorker, ToMaster>,
    pub state: State,
    pub started: Instant,
    /// When it began to serve.
    served_since: Option<Instant>,
    /// Since when it is to leave, until it has been told that its time is over.
    leaving_since: Option<Instant>,
    /// The configuration it has installed.
    pub epoch: u64,
    /// Ids of pools and servers that have left the configuration, and that it still uses.
    pub ids_in_use: Vec<u32>,
    /// Numbers of the questions that it has not answered, whether their time is over or not.
    pub unanswered: BTreeSet<u64>,
    heartbeat: Heartbeat,
    /// It has been reaped: its id may be another's by now.
    has_ended: bool,
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has been started and has not said yet that it serves.
    Starting,
    /// It takes clients.
    Serving,
    /// It takes no more clients and ends when the last has gone.
    Leaving,
    /// Its heartbeat stood still; it was sent a signal that makes it dump core and end.
    Hung,
}

/// The heartbeat as it was last seen, and for how many looks it has stood still.
#[derive(Default)]
struct Heartbeat {
    beats: u64,
    still: u32,
}

impl Slot {
    pub fn new(number: usize) -> Slot {
        Slot {
            number,
            worker: None,
            not_before: Instant::now(),
            early_deaths: EarlyDeaths(0),
            deaths: 0,
            last_death: None,
        }
    }

    /// Starts a worker of this very image, whatever lies on the disk by now.
    pub fn start(&mut self) -> io::Result<()> {
        let (ours, theirs) = sys::channel::pair()?;
        let mut command = Command::new(super::OWN_IMAGE);
        command.arg("worker");
        let title = format!("quickack: worker {}", self.number);
        sys::process::prepare_child(&mut command, &title, Some(theirs));
        let child = command.spawn()?;
        self.worker = Some(Worker::new(child, Channel::new(ours)));
        Ok(())
    }

    pub fn has_ended(&mut self) -> bool {
        let Some(worker) = &mut self.worker else { return false };
        worker.has_ended = matches!(worker.child.try_wait(), Ok(Some(_)));
        worker.has_ended
    }

    /// Whether its worker has ended, and how. The slot is vacant then.
    pub fn reap(&mut self, now: Instant) -> io::Result<Option<(Worker, ExitStatus)>> {
        let Some(worker) = &mut self.worker else { return Ok(None) };
        let Some(status) = worker.child.try_wait()? else { return Ok(None) };
        let worker = self.worker.take().expect("it was there a line above");
        let lasted = worker.served_since.is_some_and(|since| now - since >= EARLY);
        self.not_before = now + self.early_deaths.note(lasted);
        Ok(Some((worker, status)))
    }

    /// The slot is to be filled anew, without regard to how the last worker died.
    pub fn reset_pause(&mut self, now: Instant) {
        self.early_deaths = EarlyDeaths(0);
        self.not_before = now;
    }
}

impl EarlyDeaths {
    /// Notes the end of a process; returns the pause before the next start. There is none after a
    /// long life or the first early death.
    pub fn note(&mut self, lasted: bool) -> Duration {
        self.0 = if lasted { 0 } else { self.0.saturating_add(1) };
        match self.0 {
            0 | 1 => Duration::ZERO,
            deaths => (PAUSE_FIRST * 2u32.saturating_pow(deaths - 2)).min(PAUSE_LAST),
        }
    }
}

impl Worker {
    fn new(child: Child, channel: Channel<ToWorker, ToMaster>) -> Worker {
        Worker {
            child,
            channel,
            state: State::Starting,
            started: Instant::now(),
            served_since: None,
            leaving_since: None,
            epoch: 0,
            ids_in_use: Vec::new(),
            unanswered: BTreeSet::new(),
            heartbeat: Heartbeat::default(),
            has_ended: false,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn set_state(&mut self, next: State) {
        use State::{Hung, Leaving, Serving, Starting};
        let legal = matches!(
            (self.state, next),
            (Starting, Serving | Leaving | Hung) | (Serving, Leaving | Hung) | (Leaving, Hung)
        );
        assert!(legal, "a worker goes from {:?} to no {next:?}", self.state);
        self.state = next;
        match next {
            State::Serving => self.served_since = Some(Instant::now()),
            State::Leaving => self.leaving_since = Some(Instant::now()),
            State::Hung => self.heartbeat.still = 0,
            State::Starting => {}
        }
    }

    /// Whether the time is over that clients have who do not come to rest; true once.
    pub fn leaves_late(&mut self, now: Instant, patience: Duration) -> bool {
        self.leaving_since.take_if(|since| now - *since > patience).is_some()
    }

    /// Sends what a worker can do without. One that reads nothing is not waited for.
    pub fn tell(&mut self, message: ToWorker) {
        if self.channel.has_room() {
            self.send(message, &[]);
        }
    }

    /// Sends, or kills a worker that has not read a thousand messages.
    pub fn send(&mut self, message: ToWorker, fds: &[Rc<std::os::fd::OwnedFd>]) {
        match self.channel.send_by(message, fds, Instant::now() + PATIENCE) {
            // One that is gone is found by its end.
            Ok(()) | Err(Error::Peer(Peer::Closed)) => {}
            Err(_) => self.signal(Signal::KILL),
        }
    }

    pub fn signal(&self, signal: Signal) {
        if !self.has_ended {
            // One that has ended and is not reaped yet needs no signal, and its id is its own.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Looks at the heartbeat. True when it has stood still for `looks` looks.
    pub fn stands_still(&mut self, beats: u64, looks: u32) -> bool {
        if self.heartbeat.beats == beats {
            self.heartbeat.still += 1;
        } else {
            self.heartbeat = Heartbeat { beats, still: 0 };
        }
        self.heartbeat.still >= looks
    }

    /// Whether a hung worker has had long enough to leave its trace.
    pub fn has_left_its_trace(&mut self) -> bool {
        self.heartbeat.still += 1;
        self.heartbeat.still >= TRACE_LOOKS
    }

    /// Looks that came too late say nothing about the worker.
    pub fn forget_heartbeat(&mut self) {
        self.heartbeat.still = 0;
    }

    /// Where it stands, as the kernel tells: its state and what it waits for.
    pub fn whereabouts(&self) -> String {
        let read = |file: &str| {
            let path = format!("/proc/{}/{file}", self.pid());
            std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
        };
        let status = read("status");
        let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or(" ?");
        format!(
            "state {}, waits in `{}`, system call `{}`",
            state.trim(),
            read("wchan"),
            read("syscall")
        )
    }

    /// A signal that leaves a trace cannot reach a process that is stopped.
    pub fn is_stopped(&self) -> bool {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
    }
}

/// Looks at a hung worker after which it is killed, whether its core is written or not.
const TRACE_LOOKS: u32 = 10;
/// How long a worker may take to receive a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// A worker that died sooner than this after it began to serve, or before, died early.
const EARLY: Duration = Duration::from_millis(200);
/// The pause after the second early death in a row; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hung_worker_is_given_five_seconds_to_leave_its_trace() {
        let (ours, _theirs) = sys::channel::pair().unwrap();
        let child = Command::new("true").spawn().unwrap();
        let mut worker = Worker::new(child, Channel::new(ours));
        // Its heart beat at the first look, and has stood still at four since.
        let looks: Vec<bool> = [7, 7, 7, 7, 7].map(|beats| worker.stands_still(beats, 4)).into();
        assert_eq!(looks, [false, false, false, false, true]);
        worker.set_state(State::Hung);
        let looks: Vec<bool> = (0..11).map(|_| worker.has_left_its_trace()).collect();
        let mut wanted = [false; 11];
        wanted[9..].fill(true);
        assert_eq!(looks, wanted, "a look each half second");
        worker.child.wait().unwrap();
    }

    #[test]
    fn a_worker_that_dies_early_again_and_again_is_started_ever_later() {
        let mut deaths = EarlyDeaths::default();
        let pauses: Vec<u128> = (0..10).map(|n| deaths.note(n == 0).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!([true, false].map(|lasted| deaths.note(lasted).as_millis()), [0, 0]);
    }
}
