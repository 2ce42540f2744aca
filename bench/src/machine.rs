//! The machine under the figures: its description, and who else was using it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::process::{self, LOAD_CPU, PROXY_CPU};

/// What a reader needs to know to compare figures.
pub struct Description {
    pub lines: Vec<String>,
    pub date: String,
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
            format!("servers: {}", version("memcached", "-V")),
        ];
        let date = date.map_or_else(|| version_of("date", &["-u", "+%F"]), Into::into);
        Description { lines, date }
    }
}

fn version(program: &str, flag: &str) -> String {
    version_of(program, &[flag])
}

/// The first line that a program says, on either stream.
fn version_of(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        let name = Path::new(program).file_name().unwrap_or_default();
        return format!("{} is not installed", name.display());
    };
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).lines().next().unwrap_or("?").trim().to_string()
}

/// Sees what the two CPUs did beside our own processes.
pub struct Witness {
    begin: Instant,
    idle_ns: [u64; 2],
    ours_ns: [u64; 2],
    /// Process ids pinned to the proxy's CPU and to the load's.
    ids: [Vec<u32>; 2],
}

impl Witness {
    pub fn start(proxy: &[u32], load: &[u32]) -> Self {
        let mut load = load.to_vec();
        load.push(std::process::id());
        let ids = [proxy.to_vec(), load];
        let ours_ns = [process::cpu_ns(&ids[0]), process::cpu_ns(&ids[1])];
        Witness { begin: Instant::now(), idle_ns: idle_ns(), ours_ns, ids }
    }

    /// The share of each CPU (proxy's, load's) that went elsewhere: to other processes or, on a
    /// virtual machine, to other guests.
    pub fn elsewhere(&self) -> [f64; 2] {
        let elapsed = self.begin.elapsed().as_nanos() as f64;
        let idle = idle_ns();
        [0, 1].map(|cpu| {
            let ours = process::cpu_ns(&self.ids[cpu]).saturating_sub(self.ours_ns[cpu]);
            let idle = idle[cpu].saturating_sub(self.idle_ns[cpu]);
            (1.0 - (ours + idle) as f64 / elapsed).max(0.0)
        })
    }
}

/// Idle time of the proxy's and the load's CPU. The kernel keeps it in nanoseconds and prints
/// hundredths of a second.
fn idle_ns() -> [u64; 2] {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    [PROXY_CPU, LOAD_CPU].map(|cpu| {
        let name = format!("cpu{cpu} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("");
        let ticks: Vec<u64> =
            line.split_whitespace().filter_map(|tick| tick.parse().ok()).collect();
        // user, nice, system, idle, iowait.
        ticks.iter().skip(3).take(2).sum::<u64>() * 10_000_000
    })
}
