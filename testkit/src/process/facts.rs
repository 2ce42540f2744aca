//! The kernel's data about a process, or about several together.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{getsockname, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

/// Some processes, by their ids; each number is the sum over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    ids: Vec<u32>,
}

impl Facts {
    pub fn of(ids: impl IntoIterator<Item = u32>) -> Facts {
        Facts { ids: ids.into_iter().collect() }
    }

    /// Returns one number of `/proc/ID/status`, such as `VmRSS` in KiB.
    pub fn status(&self, field: &str) -> u64 {
        let of_one = |id: &u32| {
            let text = read(*id, "status");
            let rest = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            number.unwrap_or_else(|| panic!("no {field} in the status of {id}:\n{text}"))
        };
        self.ids.iter().map(of_one).sum()
    }

    /// Returns CPU time, in clock ticks (usually 100 a second).
    pub fn cpu_ticks(&self) -> u64 {
        let of_one = |id: &u32| {
            let text = read(*id, "stat");
            // The name may contain anything but ends at the last bracket; user and system time are
            // the 12th and 13th words after it.
            let words = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
            words.skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum::<u64>()
        };
        self.ids.iter().map(of_one).sum()
    }

    /// Returns CPU time in nanoseconds, as the scheduler counts it.
    pub fn cpu_ns(&self) -> u64 {
        let of_one = |id: &u32| {
            let text = read(*id, "schedstat");
            text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).expect("a number")
        };
        self.ids.iter().map(of_one).sum()
    }

    /// Returns voluntary context switches: the number of times that something woke it.
    pub fn wakeups(&self) -> u64 {
        self.status("voluntary_ctxt_switches")
    }

    /// Returns the number of open descriptors.
    pub fn descriptors(&self) -> usize {
        let of_one = |id: &u32| {
            let entries = std::fs::read_dir(format!("/proc/{id}/fd"));
            entries.unwrap_or_else(|error| panic!("/proc/{id}/fd: {error}")).count()
        };
        self.ids.iter().map(of_one).sum()
    }

    /// Returns the CPUs that each may run on, in the kernel's format.
    pub fn cpus_allowed(&self) -> Vec<String> {
        let of_one = |id: &u32| {
            let text = read(*id, "status");
            let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            list.expect("every process has a list of CPUs").trim().to_string()
        };
        self.ids.iter().map(of_one).collect()
    }

    /// Returns copies of all their sockets; an option set on a copy is set on the original.
    pub fn sockets(&self) -> Vec<OwnedFd> {
        let of_one = |id: &u32| sockets_of(*id).expect("it has not ended");
        self.ids.iter().flat_map(of_one).collect()
    }
}

fn read(id: u32, file: &str) -> String {
    let path = format!("/proc/{id}/{file}");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns copies of a process's sockets; None if it has ended.
fn sockets_of(id: u32) -> Option<Vec<OwnedFd>> {
    let pid = Pid::from_raw(id as i32).expect("an id is not 0");
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let entries = std::fs::read_dir(format!("/proc/{id}/fd")).ok()?;
    let mut sockets = Vec::new();
    for entry in entries.flatten() {
        let is_socket = std::fs::read_link(entry.path())
            .is_ok_and(|link| link.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_string_lossy().parse();
        if let (true, Ok(number)) = (is_socket, number) {
            // A socket closed between the two calls is skipped.
            let flags = PidfdGetfdFlags::empty();
            sockets.extend(rustix::process::pidfd_getfd(&process, number, flags));
        }
    }
    Some(sockets)
}

/// Returns whether a process, or a child of it, listens on that TCP port. An accepted connection
/// would only prove that some process does. The kernel's table of all connections would tell, too,
/// but takes milliseconds to read.
pub fn listens(id: u32, port: u16) -> bool {
    let is_it = |socket: OwnedFd| {
        sockopt::socket_acceptconn(&socket).unwrap_or(false)
            && getsockname(&socket)
                .is_ok_and(|name| SocketAddr::try_from(name).is_ok_and(|name| name.port() == port))
    };
    let has_one = |id: u32| sockets_of(id).into_iter().flatten().any(is_it);
    has_one(id) || ids_of_children(id).into_iter().any(has_one)
}

/// Returns the children of a process with their command lines.
pub fn children(id: u32) -> BTreeMap<u32, String> {
    // A child that ends meanwhile has an empty command line.
    ids_of_children(id).into_iter().map(|id| (id, command_line(id))).collect()
}

/// Returns every process below one, parents first.
pub fn below(id: u32) -> Vec<u32> {
    let mut all = ids_of_children(id);
    let mut at = 0;
    while at < all.len() {
        let children = ids_of_children(all[at]);
        all.extend(children);
        at += 1;
    }
    all
}

/// Returns the children of all threads of a process.
fn ids_of_children(id: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let children = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));
    let ids = children.flatten().flat_map(|text| {
        text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()
    });
    ids.collect()
}

/// Says what a process and those below it do, and what each of their threads waits for.
pub fn describe(id: u32) -> String {
    let mut report = String::new();
    describe_from(id, 1, &mut report);
    report
}

fn describe_from(id: u32, depth: usize, report: &mut String) {
    let indent = "  ".repeat(depth);
    report.push_str(&format!("{indent}{id} {}\n", command_line(id)));
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let read = |file: &str| {
            let text = std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            text.trim().to_string()
        };
        let (name, place, call) = (read("comm"), read("wchan"), read("syscall"));
        let call = call.split(' ').next().unwrap_or_default();
        report.push_str(&format!("{indent}  thread {name}: in {place}, call {call}\n"));
    }
    ids_of_children(id).into_iter().for_each(|child| describe_from(child, depth + 1, report));
}

/// Returns the words of a command line, or a title; empty if the process has ended.
pub fn command_line(id: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_string()
}

/// Returns the state letter, such as `T` for a stopped process; None if there is no process.
pub fn state_of(id: u32) -> Option<char> {
    state(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// Whether all threads of a process are stopped.
pub fn is_stopped(id: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{id}/task")) else { return false };
    let stats = threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("stat")));
    // One that has ended meanwhile says nothing.
    stats.flatten().all(|text| state(&text) == Some('T'))
}

fn state(text: &str) -> Option<char> {
    text.rsplit_once(") ")?.1.chars().next()
}
