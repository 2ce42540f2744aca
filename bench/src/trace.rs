//! The cost of a request in a proxy: its system calls (strace, perf) and its instructions
//! (callgrind). Most of these tools slow it down, so the windows here are not measurements of time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::acts::Act;
use crate::contest::Stage;
use crate::machine::Description;
use crate::options::{Options, target_folder};
use crate::page;
use crate::peers::{Contestant, Endpoint, Peer};
use crate::rows::Row;
use crate::window::Lengths;

const FUNCTIONS_SHOWN: usize = 30;
const LENGTHS: Lengths = Lengths { warm_up_s: 0.1, measure_s: 1.0 };

/// The tool that counts system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Counts every call by name and stops the proxy at each. The proxy then has more work in each
    /// turn than normally.
    Strace,
    /// Counts the calls of [`WATCHED`] by the kernel's tracepoints, with little disturbance.
    Perf,
}

/// The calls that a proxy makes for a request, and all calls together.
const WATCHED: [&str; 21] = [
    "raw_syscalls:sys_enter",
    "read",
    "readv",
    "recvfrom",
    "recvmsg",
    "write",
    "writev",
    "sendto",
    "sendmsg",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_ctl",
    "setsockopt",
    "getsockopt",
    "socket",
    "connect",
    "accept",
    "accept4",
    "close",
    "fcntl",
];

/// System calls per request of each proxy in each row.
pub fn system_calls(
    counter: Counter,
    rows: &[Row],
    options: &Options,
    folder: &Path,
) -> Result<bool, String> {
    println!("system calls per request");
    for row in rows {
        let stage = Stage::build(row, options)?;
        let proxies = row.contestants.iter().filter(|who| who.peer != Peer::Direct);
        for &who in proxies.filter(|who| options.peers.contains(&who.peer)) {
            let endpoint = stage.endpoint(who, row, options, folder, &[])?;
            let (calls, answered) = counted(counter, &stage, &endpoint, folder)?;
            println!("{:<8} {:<21}{}", row.name, who.name(), line(&calls, answered));
        }
    }
    Ok(true)
}

fn line(calls: &[(String, u64)], answered: u64) -> String {
    let mut text = String::new();
    for (name, count) in calls {
        let per_request = *count as f64 / answered as f64;
        if per_request >= 0.005 {
            text.push_str(&format!("  {name} {per_request:.2}"));
        }
    }
    text
}

/// Runs one window under a counter; returns calls by name, most frequent first, and the requests
/// answered.
fn counted(
    counter: Counter,
    stage: &Stage,
    endpoint: &Endpoint,
    folder: &Path,
) -> Result<(Vec<(String, u64)>, u64), String> {
    let summary = folder.join("calls.txt");
    let ids = endpoint.serving_ids();
    let mut child = counter.start(&ids, &summary)?;
    let result = counter
        .wait_until_attached(child.id(), &ids)
        .and_then(|()| stage.bench(endpoint).measure(LENGTHS, 1));
    if let Some(id) = Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process(id, Signal::INT);
    }
    let _ = child.wait();
    let text = fs::read_to_string(&summary).unwrap_or_default();
    let mut calls: Vec<_> = text.lines().filter_map(|line| counter.read(line)).collect();
    calls.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    Ok((calls, result?.answered))
}

impl Counter {
    fn start(self, ids: &[u32], summary: &Path) -> Result<Child, String> {
        let list = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = match self {
            Counter::Strace => Command::new("strace"),
            Counter::Perf => Command::new("perf"),
        };
        match self {
            Counter::Strace => command.args(["-c", "-f"]),
            Counter::Perf => command.args(["stat", "-x,", "-e", &events().join(",")]),
        };
        command.arg("-o").arg(summary).args(["-p", &list]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map_err(|error| format!("cannot start the counter: {error}"))
    }

    /// Waits until each process has its tracer, or each thread its events.
    fn wait_until_attached(self, counter: u32, ids: &[u32]) -> Result<(), String> {
        let attached = || match self {
            Counter::Strace => ids.iter().all(|id| is_traced(*id)),
            Counter::Perf => {
                let threads: usize =
                    ids.iter().map(|id| entries(&format!("/proc/{id}/task"))).sum();
                entries(&format!("/proc/{counter}/fd")) > threads * WATCHED.len()
            }
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while !attached() {
            if Instant::now() > deadline {
                return Err("the counter does not attach (is tracing allowed here?)".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Parses a line of the summary, if it has a call and its count.
    fn read(self, line: &str) -> Option<(String, u64)> {
        match self {
            // Columns: share, seconds, time per call, calls, optional errors, name.
            Counter::Strace => {
                let words: Vec<&str> = line.split_whitespace().collect();
                let count = words.get(3)?.parse().ok()?;
                let name = words.get(4..)?.last()?;
                Some(((*name).replace("total", "all"), count))
            }
            Counter::Perf => {
                let mut words = line.split(',');
                let count = words.next()?.parse().ok()?;
                let event = words.nth(1)?;
                let name = event.strip_prefix("syscalls:sys_enter_").unwrap_or("all");
                Some((name.to_string(), count))
            }
        }
    }
}

fn events() -> Vec<String> {
    let full = |name: &&str| match name.contains(':') {
        true => (*name).to_string(),
        false => format!("syscalls:sys_enter_{name}"),
    };
    WATCHED.iter().map(full).collect()
}

fn is_traced(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).map(Iterator::count).unwrap_or_default()
}

/// Measures instructions per request of quickack's workers in one row, by function.
pub fn callgrind(row: &Row, options: &Options, folder: &Path) -> Result<bool, String> {
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = format!("## Instructions: {}\n\n", row.what);
    text.push_str(&page::short_origin(&machine, options));
    text.push_str(METHOD);
    let mut one = None;
    let ours = row.contestants.iter().filter(|who| who.peer == Peer::Quickack);
    for &who in ours.filter(|who| who.act == Act::Nothing) {
        let (profiles, answered) = profiled(who, row, options, folder)?;
        let annotated = profiles.iter().map(|profile| annotated(profile));
        let functions = functions(&annotated.collect::<Result<String, String>>()?);
        let total: u64 = functions.iter().map(|(_, count)| count).sum();
        let per_request = |count: u64| count as f64 / answered as f64;
        println!("{} {}: {answered} requests, connecting included", row.name, who.name());
        println!("{:>8.1}  instructions a request", per_request(total));
        for (name, count) in functions.iter().take(FUNCTIONS_SHOWN) {
            println!("{:>8.1}  {name}", per_request(*count));
        }
        println!("every line of it: callgrind_annotate {}", profiles.join(" "));
        let instructions = per_request(total);
        let one = *one.get_or_insert(instructions);
        let (name, ratio) = (who.name(), instructions / one);
        let _ = writeln!(text, "| {} | {name} | {instructions:.0} | {ratio:.3} |", row.name);
    }
    if options.write {
        page::write(Some(&format!("--callgrind {}", row.name)), &text)?;
    }
    Ok(true)
}

/// Returns the workers' profiles of a few seconds, and the requests answered in them.
fn profiled(
    who: Contestant,
    row: &Row,
    options: &Options,
    folder: &Path,
) -> Result<(Vec<String>, u64), String> {
    let stage = Stage::build(row, options)?;
    let target = target_folder();
    // callgrind ends at once if it cannot write there.
    fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let profile = target.join(format!("callgrind.{}.{}", row.name, file_name(who)));
    let profile = profile.display().to_string();
    let loaded = loaded_by_the_master(folder)?;
    let words = ["env", &format!("LD_PRELOAD={loaded}"), &format!("CALLGRIND_PROFILE={profile}")];
    let wrapper = words.map(str::to_string);
    let endpoint = stage.endpoint(who, row, options, folder, &wrapper)?;
    let ids = endpoint.serving_ids();
    let all = |words: &[&str]| ids.iter().try_for_each(|id| tell(*id, words));
    all(&["instrumentation", "on"])?;
    let window = stage.bench(&endpoint).measure(Lengths { warm_up_s: 0.5, measure_s: 5.0 }, 1)?;
    all(&["instrumentation", "off"])?;
    all(&["dump"])?;
    Ok((ids.iter().map(|id| format!("{profile}.{id}.1")).collect(), window.answered))
}

fn file_name(who: Contestant) -> String {
    format!("w{}{}", who.count, who.wire.suffix().replace(' ', "."))
}

/// Compiles a library that makes the master start its workers under callgrind.
fn loaded_by_the_master(folder: &Path) -> Result<String, String> {
    let (source, object) = (folder.join("valgrind.c"), folder.join("valgrind.so"));
    fs::write(&source, include_str!("valgrind.c")).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&object, &source]).arg("-ldl");
    match compiler.status() {
        Ok(status) if status.success() => Ok(object.display().to_string()),
        Ok(status) => Err(format!("cc ended with {status}")),
        Err(error) => Err(format!("cannot start cc: {error}")),
    }
}

fn annotated(profile: &str) -> Result<String, String> {
    let output = Command::new("callgrind_annotate")
        .args(["--threshold=100", "--auto=no"])
        .arg(profile)
        .output();
    let output = output.map_err(|error| format!("callgrind_annotate: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns instructions by function, most first; inlined code counts for the function that contains
/// it.
fn functions(annotated: &str) -> Vec<(String, u64)> {
    let mut sums = BTreeMap::new();
    for line in annotated.lines() {
        // Format: `1,234 ( 5.6%) file.rs:function [object]`
        let Some((count, place)) = line.split_once(')') else { continue };
        let count = count.split('(').next().unwrap_or("").replace([',', ' '], "");
        let Some((_, function)) = place.split_once(':') else { continue };
        let function = function.split(" [").next().unwrap_or(function);
        if let Ok(count) = count.parse::<u64>() {
            *sums.entry(function.to_string()).or_insert(0) += count;
        }
    }
    let mut functions: Vec<_> = sums.into_iter().collect();
    functions.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    functions
}

/// Sends a command to a process under callgrind. (callgrind_control would not recognise the
/// process, because its title has changed.)
fn tell(id: u32, words: &[&str]) -> Result<(), String> {
    let output = Command::new("vgdb").arg(format!("--pid={id}")).args(words).output();
    let output = output.map_err(|error| format!("vgdb: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("vgdb: {said}")) }
}

const METHOD: &str = "\
The workers' own instructions, connecting included, by callgrind: this machine's counters are not to
be had. The kernel's are not among them.

| row | proxy | instructions a request | / the first |
|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::{Counter, functions};

    fn check(counter: Counter, line: &str, expected: Option<(&str, u64)>) {
        let expected = expected.map(|(name, count)| (name.to_string(), count));
        assert_eq!(counter.read(line), expected, "{line}");
    }

    #[test]
    fn summaries_are_read_line_by_line() {
        let heading = "% time     seconds  usecs/call     calls    errors syscall";
        check(Counter::Strace, heading, None);
        check(Counter::Strace, "60.00 0.000100  1  20  3 recvfrom", Some(("recvfrom", 20)));
        check(Counter::Strace, "40.00 0.000080  1  80    sendto", Some(("sendto", 80)));
        check(Counter::Strace, "100.00 0.000180 1 100  3 total", Some(("all", 100)));
        check(Counter::Perf, "7,,syscalls:sys_enter_read,1329063,100.00,,", Some(("read", 7)));
        check(Counter::Perf, "144,,raw_syscalls:sys_enter,13290,100.00,,", Some(("all", 144)));
        check(Counter::Perf, "<not counted>,,raw_syscalls:sys_enter,0,100.00,,", None);
    }

    #[test]
    fn instructions_are_summed_over_the_files_inlined_into_a_function() {
        let text = "2,000 (100.0%)  PROGRAM TOTALS\n\
                    1,200 (60.00%)  a/b.rs:<x::Y as z::W>::parse [/bin/p]\n \
                    300 (15.00%)  c.rs:q::send\n \
                    500 (25.00%)  d.rs:<x::Y as z::W>::parse\n";
        let expected = [("<x::Y as z::W>::parse".to_string(), 1700), ("q::send".to_string(), 300)];
        assert_eq!(functions(text), expected);
    }
}
