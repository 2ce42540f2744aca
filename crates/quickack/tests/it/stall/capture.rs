//! A packet capture of clients that would stall. A segment to the proxy is acknowledged within 5
//! ms, unless an answer carries its ACK.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::process::{Client, Process, script, wait_until};

use super::clients::field;
use super::rows;

/// One segment, of one connection of the proxy's clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) time: f64,
    client: u16,
    pub(super) to_proxy: bool,
    /// The sequence number after its last byte, and the number that it acknowledges.
    end: u32,
    ack: u32,
    pub(super) len: u32,
}

impl Segment {
    /// Parses `1795.123 IP 127.0.0.1.4711 > 127.0.0.1.11211: Flags [P.], seq 1:10, ack 5, …, length
    /// 9`.
    fn parse(line: &str, proxy: u16) -> Option<Segment> {
        let (time, rest) = line.split_once(" IP ")?;
        let (ends, rest) = rest.split_once(": Flags ")?;
        let (from, to) = ends.split_once(" > ")?;
        let port = |end: &str| end.rsplit('.').next()?.parse::<u16>().ok();
        let (from, to) = (port(from)?, port(to)?);
        let figure = |name: &str| {
            let (_, rest) = rest.split_once(name)?;
            rest.split([',', ' ']).next()
        };
        let end = figure("seq ").and_then(|seq| seq.rsplit(':').next()?.parse().ok());
        Some(Segment {
            time: time.parse().ok()?,
            client: if to == proxy { from } else { to },
            to_proxy: to == proxy,
            end: end.unwrap_or(0),
            ack: figure("ack ").and_then(|ack| ack.parse().ok()).unwrap_or(0),
            len: figure("length ").and_then(|len| len.parse().ok()).unwrap_or(0),
        })
    }
}

/// tcpdump on loopback, for traffic to and from one port.
pub(super) struct Capture {
    /// Ends when this value is dropped.
    _tcpdump: Process,
    file: PathBuf,
    proxy: SocketAddr,
}

impl Capture {
    pub(super) fn start(proxy: SocketAddr, folder: &Path) -> Capture {
        let file = folder.join(format!("{}.pcap", proxy.port()));
        let mut command = Command::new("tcpdump");
        command.args(["-i", "lo", "-Z", "root", "-U", "--immediate-mode", "-s", "96", "-w"]);
        command.arg(&file).arg(format!("tcp port {}", proxy.port()));
        let mut tcpdump = Process::start("tcpdump", &mut command);
        tcpdump.wait_for("that it listens", |said| said.contains("listening on").then_some(()));
        Capture { _tcpdump: tcpdump, file, proxy }
    }

    /// Returns every segment so far.
    pub(super) fn segments(self) -> Vec<Segment> {
        let mark = Client::connect(self.proxy);
        let port = mark.stream.local_addr().expect("it is connected").port();
        drop(mark);
        // Segments are captured in order, so all are there when this connection is.
        wait_until("the capture has the last connection", || {
            self.read().iter().any(|segment| segment.client == port)
        });
        self.read()
    }

    fn read(&self) -> Vec<Segment> {
        let mut command = Command::new("tcpdump");
        command.args(["-n", "-tt", "-S", "-r"]).arg(&self.file).stderr(Stdio::null());
        let output = command.stdin(Stdio::null()).output().expect("tcpdump is there");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().filter_map(|line| Segment::parse(line, self.proxy.port())).collect()
    }
}

/// Returns the milliseconds that each segment to the proxy waited for a pure ACK, if more than 5
/// ms; and the number of segments.
fn late(segments: &[Segment]) -> (Vec<f64>, usize) {
    let mut waiting: HashMap<u16, Vec<Segment>> = HashMap::new();
    let (mut late, mut count) = (Vec::new(), 0);
    for segment in segments {
        let held = waiting.entry(segment.client).or_default();
        if segment.to_proxy {
            if segment.len > 0 {
                held.push(*segment);
                count += 1;
            }
            continue;
        }
        held.retain(|asked| {
            let acked = segment.ack.wrapping_sub(asked.end) < 1 << 31;
            let waited = (segment.time - asked.time) * 1e3;
            if acked && segment.len == 0 && waited > 5.0 {
                late.push(waited);
            }
            !acked
        });
    }
    (late, count)
}

/// A busy machine is late now and then. A kernel's delay occurs every time: without the cure, these
/// clients wait for more than 30 ACKs in a run.
fn check(run: impl Fn(SocketAddr)) {
    let mut found = Vec::new();
    for _ in 0..3 {
        let (_memcached, quickack) = field("partial");
        let folder = tempfile::tempdir().expect("a folder for the capture");
        let capture = Capture::start(quickack.address(), folder.path());
        run(quickack.address());
        let (late, count) = late(&capture.segments());
        assert!(count > 50, "only {count} segments were captured");
        println!(
            "{count} segments to the proxy, {} waited more than 5 ms for a bare ACK",
            late.len()
        );
        if late.len() <= 10 {
            return;
        }
        found = late;
    }
    panic!("three times late; at last, in ms: {found:?}");
}

#[test]
fn tcpdump_sees_no_late_ack_for_php_memcached_in_binary_mode() {
    check(|address| {
        let mut command = Command::new("php");
        command.arg(script("phpops.php")).args(["127.0.0.1", &address.port().to_string()]);
        rows("phpops.php", command.args(["1", "0", "0", "0", "9"]));
    });
}

#[test]
fn tcpdump_sees_no_late_ack_for_pymemcache_with_all_its_defaults() {
    check(|address| {
        let mut command = Command::new(crate::peers::root().join(".venv/bin/python"));
        let port = address.port().to_string();
        rows("pymc_default.py", command.arg(script("pymc_default.py")).arg(port));
    });
}

/// The control: with `quickack: off` they wait.
#[test]
fn tcpdump_sees_late_acks_for_php_memcached_without_the_cure() {
    let (_memcached, quickack) = field("off");
    let folder = tempfile::tempdir().expect("a folder for the capture");
    let capture = Capture::start(quickack.address(), folder.path());
    let mut command = Command::new("php");
    let port = quickack.address().port().to_string();
    command.arg(script("phpops.php")).args([
        "127.0.0.1",
        &port,
        "1",
        "0",
        "0",
        "0",
        "21",
        "get_miss",
    ]);
    rows("phpops.php", &mut command);
    let (late, _) = late(&capture.segments());
    // A busy machine adds short waits of its own.
    let stalls = late.iter().filter(|ms| **ms > 30.0).count();
    assert!(stalls >= 18, "{stalls} stalls: {late:?}");
}
