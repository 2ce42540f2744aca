//! The worker's side of the access log: lines are made here, kept for the rest of the turn, and
//! written to a pipe that never makes the worker wait.
//!
//! ```text
//!   text   2026-01-31T12:00:00.000123Z pool=alpha client=10.0.0.7:51514 … key=#77f6… result=hit
//!   JSON   {"time":"2026-01-31T12:00:00.000123Z","pool":"alpha","client":"10.0.0.7:51514",…}
//! ```
//!
//! Several workers write to the pipe. So each write has whole lines and no more bytes than the
//! kernel keeps together.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use metrics::{Counters, Phase, WorkerCounter};
use proxy::access::AccessLine;
use proxy::connection::Connection;
use proxy::slow::key_text;
use rustix::io::Errno;

use super::names::Names;
use crate::log::{About, Format, push_timestamp};

/// The pipe, and lines that it has not taken yet.
pub struct AccessLog {
    pipe: Option<OwnedFd>,
    format: Format,
    /// Names of tenants, by their ids.
    tenants: HashMap<u32, String>,
    buffer: Vec<u8>,
    counters: Option<Counters<WorkerCounter>>,
}

/// What a line needs beside the request itself.
struct Origin<'a> {
    unix_us: u64,
    worker: usize,
    client: &'a str,
    pool: &'a About,
    server: Option<&'a About>,
}

impl AccessLog {
    pub fn new() -> AccessLog {
        AccessLog {
            pipe: None,
            format: Format::Text,
            tenants: HashMap::new(),
            buffer: Vec::new(),
            counters: None,
        }
    }

    pub fn set_counters(&mut self, counters: Counters<WorkerCounter>) {
        self.counters = Some(counters);
    }

    pub fn set_pipe(&mut self, pipe: Option<OwnedFd>) {
        self.pipe = pipe;
    }

    /// Another configuration holds; without a format it has no access log.
    pub fn install(&mut self, format: Option<Format>, tenants: HashMap<u32, String>) {
        self.tenants = tenants;
        match format {
            Some(format) => self.format = format,
            None => {
                self.flush();
                self.drop_buffer();
                self.pipe = None;
            }
        }
    }

    /// Returns the name of the tenant of a client that has left.
    pub fn tenant_of(&self, what: &Connection) -> Option<&str> {
        match what {
            Connection::Left(left) => self.tenants.get(&left.tenant).map(String::as_str),
            _ => None,
        }
    }

    /// Adds a line of this time, worker and client. `names`: those of pools and servers.
    pub fn note(
        &mut self,
        line: &AccessLine,
        (unix_us, worker, client): (u64, usize, &str),
        names: &Names,
    ) {
        let none = About::default();
        let pool = names.find(line.entry.pool).unwrap_or(&none);
        let server = names.find(line.entry.server);
        self.push(line, &Origin { unix_us, worker, client, pool, server });
    }

    /// Adds a line, which is dropped if too many wait already.
    fn push(&mut self, line: &AccessLine, origin: &Origin<'_>) {
        if self.buffer.len() >= FLUSH_MIN {
            self.flush();
        }
        let Some(counters) = &self.counters else { return };
        counters.add(WorkerCounter::AccessLines, 1);
        if self.pipe.is_none() || self.buffer.len() >= BUFFER_MAX {
            return counters.add(WorkerCounter::AccessLinesLost, 1);
        }
        let start = self.buffer.len();
        let tenant = self.tenants.get(&line.entry.tenant).map(String::as_str);
        render(self.format, line, origin, tenant, &mut self.buffer);
        debug_assert!(self.buffer.len() - start <= TOGETHER_MAX, "each part of it has a bound");
        if self.buffer.len() - start > TOGETHER_MAX {
            self.buffer.truncate(start);
            counters.add(WorkerCounter::AccessLinesLost, 1);
        }
    }

    /// Whether lines wait for the pipe.
    pub fn has_unwritten(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Writes what the pipe takes at once.
    pub fn flush(&mut self) {
        let Some(pipe) = self.pipe.as_ref().filter(|_| !self.buffer.is_empty()) else { return };
        let mut written = 0;
        while written < self.buffer.len() {
            let rest = &self.buffer[written..];
            let most = &rest[..rest.len().min(TOGETHER_MAX)];
            let Some(end) = most.iter().rposition(|byte| *byte == b'\n') else { break };
            match rustix::io::write(pipe, &most[..=end]) {
                Ok(taken) => written += taken,
                Err(Errno::INTR) => {}
                // It is full, or nobody reads it: then the master is gone.
                Err(_) => break,
            }
        }
        self.buffer.drain(..written);
        if self.buffer.is_empty() {
            self.buffer.shrink_to(FLUSH_MIN * 2);
        }
    }

    fn drop_buffer(&mut self) {
        let lines = self.buffer.iter().filter(|byte| **byte == b'\n').count();
        if let Some(counters) = self.counters.as_ref().filter(|_| lines > 0) {
            counters.add(WorkerCounter::AccessLinesLost, lines as u64);
        }
        self.buffer = Vec::new();
    }
}

/// Writes one line with its line break.
fn render(
    format: Format,
    line: &AccessLine,
    origin: &Origin<'_>,
    tenant: Option<&str>,
    out: &mut Vec<u8>,
) {
    let AccessLine { entry, user, received, sent, outcome } = line;
    let mut fields = Fields { format, out };
    fields.begin(origin.unix_us);
    fields.text("pool", origin.pool.pool.as_deref());
    fields.text("client", Some(origin.client));
    fields.text("client_name", Some(&entry.name));
    fields.text("tenant", tenant);
    fields.text("user", user.as_deref());
    fields.number("worker", origin.worker as u64);
    fields.text("server", origin.server.and_then(|about| about.server.as_deref()));
    fields.text("command", Some(&entry.command));
    let (key, _) = key_text(entry);
    fields.bytes("key", &key, KEY_MAX);
    fields.number("key_len", entry.key_len.into());
    fields.number("received", *received);
    fields.number("sent", *sent);
    for (phase, us) in Phase::ALL.into_iter().zip(entry.phases) {
        fields.number(phase_field(phase), us);
    }
    fields.text("result", Some(outcome.name()));
    fields.end();
}

fn phase_field(phase: Phase) -> &'static str {
    match phase {
        Phase::ClientRead => "client_read_us",
        Phase::Queue => "queue_us",
        Phase::Server => "server_us",
        Phase::ClientWrite => "client_write_us",
    }
}

/// The fields of a line. In text, a field without a value is `-`; in JSON, it is left out.
struct Fields<'o> {
    format: Format,
    out: &'o mut Vec<u8>,
}

impl Fields<'_> {
    fn begin(&mut self, unix_us: u64) {
        if self.format == Format::Json {
            self.out.extend_from_slice(b"{\"time\":\"");
        }
        push_timestamp(unix_us, self.out);
        if self.format == Format::Json {
            self.out.push(b'"');
        }
    }

    fn end(&mut self) {
        if self.format == Format::Json {
            self.out.push(b'}');
        }
        self.out.push(b'\n');
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        self.bytes(name, value.unwrap_or_default().as_bytes(), TEXT_MAX);
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        proto::scan::push_decimal(value, self.out);
    }

    /// Writes bytes from outside, at most so many. All that are not visible ASCII are written as
    /// `\xNN`, and so are spaces, quotes and backslashes: a line is one line of so many words.
    fn bytes(&mut self, name: &str, value: &[u8], most: usize) {
        let is_json = self.format == Format::Json;
        if is_json && value.is_empty() {
            return;
        }
        self.name(name);
        if is_json {
            self.out.push(b'"');
        } else if value.is_empty() {
            self.out.push(b'-');
        }
        for byte in &value[..value.len().min(most)] {
            match byte {
                b'"' | b'\\' => self.escape(*byte),
                b'!'..=b'~' => self.out.push(*byte),
                _ => self.escape(*byte),
            }
        }
        if is_json {
            self.out.push(b'"');
        }
    }

    fn escape(&mut self, byte: u8) {
        let hex = |digit: u8| b"0123456789abcdef"[usize::from(digit)];
        // A backslash in JSON is two.
        let slashes: &[u8] = if self.format == Format::Json { b"\\\\x" } else { b"\\x" };
        self.out.extend_from_slice(slashes);
        self.out.extend_from_slice(&[hex(byte >> 4), hex(byte & 15)]);
    }

    fn name(&mut self, name: &str) {
        match self.format {
            Format::Json => {
                self.out.extend_from_slice(b",\"");
                self.out.extend_from_slice(name.as_bytes());
                self.out.extend_from_slice(b"\":");
            }
            Format::Text => {
                self.out.push(b' ');
                self.out.extend_from_slice(name.as_bytes());
                self.out.push(b'=');
            }
        }
    }
}

/// Bytes that the kernel writes to a pipe together or not at all.
const TOGETHER_MAX: usize = 4096;
/// With this many, lines are written before the turn is over.
const FLUSH_MIN: usize = 64 * 1024;
/// With this many, further lines are dropped.
const BUFFER_MAX: usize = 256 * 1024;
/// The most bytes of a name, and of a key: escaped in JSON they are five times as many.
const TEXT_MAX: usize = 64;
const KEY_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use metrics::SlowEntry;
    use proxy::access::Outcome;
    use std::os::fd::AsFd;

    use super::*;

    fn line(key: &[u8]) -> AccessLine {
        let entry = SlowEntry {
            phases: [1, 20, 300, 4],
            key: key.to_vec(),
            key_len: 300,
            command: "get".to_string(),
            tenant: 7,
            ..SlowEntry::default()
        };
        AccessLine { entry, user: None, received: 12, sent: 34, outcome: Outcome::Hit }
    }

    fn rendered(format: Format, line: &AccessLine) -> String {
        let (pool, server) = (About::pool("alpha"), About::server("one two", "alpha"));
        let origin = Origin {
            unix_us: 1_769_860_800_000_123,
            worker: 2,
            client: "10.0.0.7:51514",
            pool: &pool,
            server: Some(&server),
        };
        let mut out = Vec::new();
        render(format, line, &origin, Some("shop"), &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn a_line_has_every_field_as_text_and_as_json() {
        assert_eq!(
            rendered(Format::Text, &line(b"k\"\n\xff")),
            "2026-01-31T12:00:00.000123Z pool=alpha client=10.0.0.7:51514 client_name=- \
             tenant=shop user=- worker=2 server=one\\x20two command=get key=k\\x22\\x0a\\xff \
             key_len=300 received=12 sent=34 client_read_us=1 queue_us=20 server_us=300 \
             client_write_us=4 result=hit\n"
        );
        let text = rendered(Format::Json, &line(b"k\"\n\xff"));
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json["key"], "k\\x22\\x0a\\xff");
        assert_eq!((&json["server_us"], &json["worker"]), (&300.into(), &2.into()));
        assert_eq!((&json["tenant"], json.get("user")), (&"shop".into(), None));
    }

    /// Whatever clients and files call things, a line fits into one write.
    #[test]
    fn the_longest_line_is_written_at_once() {
        let mut long = line(&[0; 1000]);
        long.entry.command = "\"".repeat(1000);
        long.entry.name = "\u{1}".repeat(1000);
        long.entry.phases = [u64::MAX; 4];
        (long.user, long.received, long.sent) = (Some("\\".repeat(1000)), u64::MAX, u64::MAX);
        let name = "ü".repeat(1000);
        let (pool, server) = (About::pool(&name), About::server(&name, &name));
        let origin = Origin {
            unix_us: u64::from(u32::MAX) * 1_000_000,
            worker: 63,
            client: &name,
            pool: &pool,
            server: Some(&server),
        };
        for format in [Format::Text, Format::Json] {
            let mut out = Vec::new();
            render(format, &long, &origin, Some(&name), &mut out);
            assert!(out.len() < TOGETHER_MAX, "{}", out.len());
            assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
        }
    }

    #[test]
    fn what_a_full_pipe_does_not_take_is_kept_and_then_dropped_and_counted() {
        let (read, write) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).expect("a pipe");
        let registry = metrics::Registry::private(1, 1);
        let counters = registry.metrics(0).counters::<WorkerCounter>(0);
        let mut log = AccessLog::new();
        log.set_counters(registry.metrics(0).counters(0));
        log.set_pipe(Some(write));
        let pool = About::pool("alpha");
        let origin = Origin { unix_us: 1, worker: 0, client: "c", pool: &pool, server: None };
        for _ in 0..10_000 {
            log.push(&line(b"key"), &origin);
        }
        log.flush();
        let lost = counters.value(WorkerCounter::AccessLinesLost);
        assert!(lost > 0 && log.buffer.len() < BUFFER_MAX + TOGETHER_MAX, "{lost} lost");
        let mut text = Vec::new();
        while log.has_unwritten() {
            let mut chunk = [0; 8192];
            let len = rustix::io::read(read.as_fd(), &mut chunk).expect("it is full");
            text.extend_from_slice(&chunk[..len]);
            log.flush();
        }
        log.set_pipe(None);
        let mut chunk = [0; 8192];
        while let Ok(len @ 1..) = rustix::io::read(read.as_fd(), &mut chunk) {
            text.extend_from_slice(&chunk[..len]);
        }
        let text = String::from_utf8(text).expect("text");
        assert_eq!(text.lines().count() as u64 + lost, 10_000);
        assert!(text.lines().all(|line| line.ends_with("result=hit")), "each line is whole");
        assert_eq!(counters.value(WorkerCounter::AccessLines), 10_000);
    }
}
