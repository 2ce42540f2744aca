//! The machine of a measurement: its description, and its use by other processes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::process::{self, Cpus, LOAD_CPU, PROXY_CPU, all_cpus};

/// The facts that a reader needs to compare measurements.
pub struct Description {
    pub lines: Vec<String>,
    pub date: String,
    /// The load of the machine at the start, and the priority of our processes.
    pub circumstances: String,
}

impl Description {
    pub fn read(date: Option<&str>, quickack: &Path) -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name)).unwrap_or("");
            line.split_once(':').map_or("?", |(_, value)| value.trim()).to_string()
        };
        let cpus = info.lines().filter(|line| line.starts_with("processor")).count();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let lines = vec![
            format!("CPU: {} (family {}), {cpus} CPUs", field("model name"), field("cpu family")),
            format!("kernel: Linux {}", kernel.trim()),
            format!("proxy: {}", version(&quickack.display().to_string(), "--version")),
            format!("peers: {}; {}", version("nutcracker", "-V"), version("haproxy", "-v")),
            format!("servers: {}; {}", version("memcached", "-V"), version("redis-server", "-v")),
        ];
        let date = date.map_or_else(|| version_of("date", &["-u", "+%F"]), Into::into);
        Description { lines, date, circumstances: circumstances() }
    }
}

fn circumstances() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_string();
    // The fields after the name; the scheduling policy is field 41.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let policy = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(38));
    match policy {
        Some("0") | None => format!("load average before: {load}"),
        Some(_) => format!("load average before: {load}, with real-time priority (chrt -r 5)"),
    }
}

fn version(program: &str, flag: &str) -> String {
    version_of(program, &[flag])
}

/// Returns the first line that a program prints, on either stream.
fn version_of(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        let name = Path::new(program).file_name().unwrap_or_default();
        return format!("{} is not installed", name.display());
    };
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).lines().next().unwrap_or("?").trim().to_string()
}

/// Measures the use of the two CPUs by other processes.
pub struct Witness {
    begin: Instant,
    idle_ns: [u64; 2],
    ours_ns: [u64; 2],
    /// Process ids pinned to the proxy's CPU and to the load's.
    ids: [Vec<u32>; 2],
    cpus: Cpus,
}

impl Witness {
    pub fn start(proxy: &[u32], load: &[u32], cpus: Cpus) -> Self {
        let mut load = load.to_vec();
        load.push(std::process::id());
        let ids = [proxy.to_vec(), load];
        let ours_ns = [process::cpu_ns(&ids[0]), process::cpu_ns(&ids[1])];
        Witness { begin: Instant::now(), idle_ns: idle_ns(cpus), ours_ns, ids, cpus }
    }

    /// Returns the share of each CPU (proxy's, load's) used elsewhere: by other processes or, on a
    /// virtual machine, by other guests. Without pinning, it returns the share of all CPUs twice.
    pub fn elsewhere(&self) -> [f64; 2] {
        let elapsed = self.begin.elapsed().as_nanos() as f64;
        let idle = idle_ns(self.cpus);
        let both = [0, 1].map(|side| {
            let ours = process::cpu_ns(&self.ids[side]).saturating_sub(self.ours_ns[side]);
            ours + idle[side].saturating_sub(self.idle_ns[side])
        });
        let share = |known: u64, cpus: usize| (1.0 - known as f64 / elapsed / cpus as f64).max(0.0);
        match self.cpus {
            Cpus::Split => both.map(|known| share(known, 1)),
            Cpus::All | Cpus::First(_) => [share(both[0] + both[1], all_cpus().len()); 2],
        }
    }
}

/// Returns the idle time of the proxy's and the load's CPU, or of all CPUs and zero. The kernel
/// keeps it in nanoseconds and prints hundredths of a second.
fn idle_ns(cpus: Cpus) -> [u64; 2] {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let idle = |cpu: usize| -> u64 {
        let name = format!("cpu{cpu} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("");
        let ticks: Vec<u64> =
            line.split_whitespace().filter_map(|tick| tick.parse().ok()).collect();
        // Columns: user, nice, system, idle, iowait.
        ticks.iter().skip(3).take(2).sum::<u64>() * 10_000_000
    };
    match cpus {
        Cpus::Split => [idle(PROXY_CPU), idle(LOAD_CPU)],
        Cpus::All | Cpus::First(_) => [all_cpus().into_iter().map(idle).sum(), 0],
    }
}
