//! Child processes: started on one CPU, measured, and never left behind.
//!
//! Three mechanisms end a child: `Drop` (also during a panic), the parent-death signal that
//! `setpriv` sets (so a killed benchmark ends its children), and Ctrl-C at the terminal.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::CpuSet;
use testkit::process::facts;

use crate::peers::Peer;

/// The CPUs that a row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cpus {
    /// All processes of a proxy on one CPU; the load generator and the servers share the other.
    Split,
    /// Each serving process of a proxy has its own CPU; load and servers run anywhere.
    All,
    /// Workers have that many of the first CPUs, load and servers all others.
    First(usize),
}

/// The proxy's CPU; the load generator and the servers share the other.
pub const PROXY_CPU: usize = 0;
pub const LOAD_CPU: usize = 1;

impl Cpus {
    /// Returns the CPUs of a proxy's process. quickack's workers then choose among them.
    pub fn of_proxy(self, peer: Peer, index: usize) -> Vec<usize> {
        match self {
            Cpus::Split => vec![PROXY_CPU],
            Cpus::All if peer == Peer::Quickack => all_cpus(),
            Cpus::All => vec![index % all_cpus().len()],
            Cpus::First(count) => (0..count).collect(),
        }
    }

    /// Returns the CPUs of load and servers.
    pub fn of_load(self) -> Vec<usize> {
        match self {
            Cpus::Split => vec![LOAD_CPU],
            Cpus::All => all_cpus(),
            Cpus::First(count) => all_cpus().split_off(count),
        }
    }
}

pub fn all_cpus() -> Vec<usize> {
    let online = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    (0..online.lines().filter(|line| line.starts_with("processor")).count()).collect()
}

/// A child process, which is told to end when the value is dropped.
pub struct Process(testkit::process::Process);

impl Process {
    /// Starts `command` pinned to `cpus`.
    pub fn start(name: &str, command: &[String], cpus: &[usize]) -> Result<Self, String> {
        let program = Path::new(&command[0]);
        if program.is_absolute() && !program.exists() {
            return Err(format!("{name} is not built"));
        }
        let cpus = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut pinned = Command::new("setpriv");
        pinned.args(["--pdeathsig", "KILL", "taskset", "-c", &cpus]).args(command);
        // Ctrl-C then reaches only the benchmark, which ends its children by their ids.
        pinned.process_group(0);
        Ok(Process(testkit::process::Process::start(name, &mut pinned)))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits until it accepts connections on `port`.
    pub fn wait_for_port(&mut self, port: u16) -> Result<(), String> {
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into();
        match self.0.wait_to_accept(address) {
            true => Ok(()),
            false => {
                Err(format!("it does not listen on {port}: {}", self.0.stderr_text().trim_end()))
            }
        }
    }

    /// Returns the process and its descendants.
    pub fn tree(&self) -> Vec<u32> {
        let id = self.id();
        [vec![id], facts::below(id)].concat()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A signal first, so that a proxy can end its own children; then a kill.
        self.0.end_within(Duration::from_secs(2));
    }
}

/// Returns the CPU nanoseconds of these processes, all threads, user and system. The scheduler
/// counts them exactly and updates a running thread's count at each tick, here every 4 ms.
pub fn cpu_ns(ids: &[u32]) -> u64 {
    ids.iter().map(|&id| threads_ns(id)).sum()
}

fn threads_ns(id: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else { return 0 };
    let times = tasks.flatten().filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    times.sum()
}

/// Resident and proportional memory in kilobytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub resident_kb: u64,
    pub proportional_kb: u64,
}

pub fn memory(ids: &[u32]) -> Memory {
    let sum = |file, name| ids.iter().map(|id| field(*id, file, name)).sum();
    Memory { resident_kb: sum("status", "VmRSS:"), proportional_kb: sum("smaps_rollup", "Pss:") }
}

/// Returns the peak of a process's resident memory since its count was last cleared.
pub fn peak_kb(id: u32) -> u64 {
    field(id, "status", "VmHWM:")
}

/// Returns a number that the kernel tells of a process; 0 if the process has ended.
fn field(id: u32, file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the words of a command line with its placeholders replaced; `quickack` is this very
/// binary.
pub fn words(line: &str, places: &[(&str, &str)], quickack: &Path) -> Vec<String> {
    let fill = |word: &str| match word {
        "quickack" => quickack.display().to_string(),
        "\"\"" => String::new(),
        _ => places.iter().fold(word.to_string(), |word, (name, text)| word.replace(name, text)),
    };
    line.split(' ').map(fill).collect()
}

/// Restricts this thread to these CPUs.
pub fn stay_on(cpus: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|errno| format!("cannot stay on CPUs {cpus:?} (two CPUs are needed): {errno}"))
}

/// Prepares this process for measuring: on the load's CPU, with enough descriptors, and ended with
/// its parent.
pub fn settle() -> Result<(), String> {
    stay_on(&Cpus::Split.of_load())?;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|errno| format!("cannot arm the parent-death signal: {errno}"))
}
