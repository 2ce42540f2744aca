//! What a proxy does for a request: its system calls (strace) and its instructions (callgrind).
//! Both slow it down, so the windows here are no measure of time.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::contest::Stage;
use crate::options::{Options, workspace};
use crate::peers::{Endpoint, PEERS, Peer};
use crate::rows::Row;
use crate::window::Lengths;

const LENGTHS: Lengths = Lengths { warm_up_s: 0.1, measure_s: 1.0 };

/// System calls per request of each proxy in each row.
pub fn strace(rows: &[Row], options: &Options, folder: &Path) -> Result<bool, String> {
    println!("system calls per request");
    for row in rows {
        let stage = Stage::build(row, options, folder)?;
        for peer in PEERS.into_iter().filter(|&peer| peer != Peer::Direct) {
            if !row.peers.contains(&peer) || !options.peers.contains(&peer) {
                continue;
            }
            let endpoint = stage.endpoint(peer, row, options, folder, &[])?;
            let (calls, answered) = traced(&stage, &endpoint, folder)?;
            let per_request = |count: u64| count as f64 / answered as f64;
            let total: u64 = calls.iter().map(|(_, count)| count).sum();
            print!("{:<8} {:<11} {:>6.2} :", row.name, peer.name(), per_request(total));
            for (name, count) in calls.iter().filter(|(_, count)| per_request(*count) >= 0.005) {
                print!("  {name} {:.2}", per_request(*count));
            }
            println!();
        }
    }
    Ok(true)
}

/// One window under strace: calls by name, most frequent first, and the requests answered.
fn traced(
    stage: &Stage,
    endpoint: &Endpoint,
    folder: &Path,
) -> Result<(Vec<(String, u64)>, u64), String> {
    let summary = folder.join("strace.txt");
    let ids = endpoint.ids();
    let mut command = Command::new("strace");
    command.args(["-c", "-f", "-o"]).arg(&summary);
    for id in &ids {
        command.args(["-p", &id.to_string()]);
    }
    let started = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut strace = started.map_err(|error| format!("cannot start strace: {error}"))?;
    let result = wait_until_traced(&ids).and_then(|()| stage.bench(endpoint).measure(LENGTHS, 1));
    if let Some(id) = Pid::from_raw(strace.id() as i32) {
        let _ = rustix::process::kill_process(id, Signal::INT);
    }
    let _ = strace.wait();
    let text = fs::read_to_string(&summary).unwrap_or_default();
    Ok((calls(&text), result?.answered))
}

fn wait_until_traced(ids: &[u32]) -> Result<(), String> {
    let traced = |id: &u32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while !ids.iter().all(traced) {
        if Instant::now() > deadline {
            return Err("strace does not attach (is ptrace allowed?)".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The rows of strace's summary: share, seconds, time a call, calls, perhaps errors, name.
fn calls(summary: &str) -> Vec<(String, u64)> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let count = words.get(3)?.parse().ok()?;
        let name = words.get(4..)?.last()?;
        (*name != "total").then(|| (name.to_string(), count))
    };
    let mut calls: Vec<(String, u64)> = summary.lines().filter_map(row).collect();
    calls.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    calls
}

/// Instructions per request of quickack in one row, and where they are spent.
pub fn callgrind(row: &Row, options: &Options, folder: &Path) -> Result<bool, String> {
    let stage = Stage::build(row, options, folder)?;
    let profile = workspace().join(format!("target/callgrind.{}.out", row.name));
    let _ = fs::remove_file(&profile);
    let words = "valgrind --tool=callgrind --instr-atstart=no --dump-instr=yes";
    let out = format!("--callgrind-out-file={}", profile.display());
    let wrapper: Vec<String> = words.split(' ').map(str::to_string).chain([out]).collect();
    let endpoint = stage.endpoint(Peer::Quickack, row, options, folder, &wrapper)?;
    let id = endpoint.ids()[0].to_string();
    control(&["-i", "on", &id])?;
    let window = stage.bench(&endpoint).measure(Lengths { warm_up_s: 0.5, measure_s: 5.0 }, 1)?;
    control(&["-i", "off", &id])?;
    drop(endpoint);
    let text = fs::read_to_string(&profile).unwrap_or_default();
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")));
    let total = total.and_then(|total| total.trim().parse::<u64>().ok());
    let total = total.ok_or_else(|| format!("no total in {}", profile.display()))?;
    println!(
        "{}: {:.0} instructions/request ({total} for {} requests, connecting included); {}",
        row.name,
        total as f64 / window.answered as f64,
        window.answered,
        profile.display()
    );
    let annotated = Command::new("callgrind_annotate").arg(&profile).output();
    let annotated = annotated.map_err(|error| format!("callgrind_annotate: {error}"))?;
    let text = String::from_utf8_lossy(&annotated.stdout).into_owned();
    text.lines().filter(|line| line.contains('%')).take(30).for_each(|line| println!("{line}"));
    Ok(true)
}

fn control(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("callgrind_control").args(arguments).output();
    let output = output.map_err(|error| format!("callgrind_control: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("callgrind_control: {said}")) }
}

#[cfg(test)]
mod tests {
    use super::calls;

    #[test]
    fn a_summary_is_read_with_and_without_errors() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                    ------ ----------- ----------- --------- --------- ----------------\n \
                    60.00    0.000100           1        20         3 recvfrom\n \
                    40.00    0.000080           1        80           sendto\n\
                    ------ ----------- ----------- --------- --------- ----------------\n\
                    100.00    0.000180           1       100         3 total\n";
        assert_eq!(calls(text), [("sendto".to_string(), 80), ("recvfrom".to_string(), 20)]);
    }
}
