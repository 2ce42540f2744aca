//! Child processes: started on one CPU, measured, and never left behind.
//!
//! Three mechanisms end a child: `Drop` (also during a panic), the parent-death signal that
//! `setpriv` sets (so a killed benchmark ends its children), and Ctrl-C at the terminal.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::CpuSet;

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

pub struct Process {
    pub name: String,
    child: Child,
}

impl Process {
    /// Starts `command` pinned to `cpus`, its output in `log`.
    pub fn start(
        name: &str,
        command: &[String],
        cpus: &[usize],
        log: &Path,
    ) -> Result<Self, String> {
        let fault = |what: &str, error: std::io::Error| format!("{name}: {what}: {error}");
        let program = Path::new(&command[0]);
        if program.is_absolute() && !program.exists() {
            return Err(format!("{name} is not built"));
        }
        let output =
            fs::File::create(log).map_err(|error| fault("cannot create its log", error))?;
        let errors = output.try_clone().map_err(|error| fault("cannot share its log", error))?;
        let cpus = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "taskset", "-c", &cpus])
            .args(command)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            // Ctrl-C then reaches only the benchmark, which ends its children by their ids.
            .process_group(0)
            .spawn()
            .map_err(|error| fault("cannot start it through setpriv and taskset", error))?;
        Ok(Process { name: name.into(), child })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a process accepts connections on `port`.
    pub fn wait_for_port(&mut self, port: u16, log: &Path) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if TcpStream::connect(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(());
            }
            let said = || fs::read_to_string(log).unwrap_or_default();
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("{} ended with {status}: {}", self.name, said().trim_end()));
            }
            if Instant::now() > deadline {
                return Err(format!("{} does not listen on {port}: {}", self.name, said()));
            }
            // The pause is only between attempts; the loop waits for the accepted connection.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the process and its descendants.
    pub fn tree(&self) -> Vec<u32> {
        let mut known = BTreeSet::new();
        let mut open = vec![self.id()];
        while let Some(id) = open.pop() {
            if known.insert(id) {
                open.extend(children(id));
            }
        }
        known.into_iter().collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A signal first, so that a proxy can end its own children; then a kill.
        if let Some(id) = Pid::from_raw(self.id() as i32)
            && self.child.try_wait().is_ok_and(|status| status.is_none())
        {
            let _ = rustix::process::kill_process(id, Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(2);
            while Instant::now() < deadline && self.child.try_wait().is_ok_and(|s| s.is_none()) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn children(id: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    lists
        .flatten()
        .flat_map(|list| {
            list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
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
    let field = |path: String, name: &str| -> u64 {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
        line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let sum = |file: &str, name: &str| {
        ids.iter().map(|id| field(format!("/proc/{id}/{file}"), name)).sum()
    };
    Memory { resident_kb: sum("status", "VmRSS:"), proportional_kb: sum("smaps_rollup", "Pss:") }
}

/// Returns the peak of a process's resident memory since its count was last cleared.
pub fn peak_kb(id: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("");
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

/// Returns a port of 127.0.0.1 that was free a moment ago.
pub fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| format!("no free port: {error}"))
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
