//! A client that writes a whole pipeline before it reads an answer, beside a quiet one.
//!
//! ```text
//!   quiet client  alone 1.5 s | beside the pipeline
//!   the other                 | writes a million requests, then reads their answers
//! ```

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use testkit::wire::binary::{GET, GETKQ, HEAD_LEN, NOOP, Packet};

use crate::contest::median;
use crate::load::now_ns;
use crate::machine::Description;
use crate::options::Options;
use crate::page;
use crate::peers::{Contestant, Endpoint, Limits, Peer, Place};
use crate::process::{self, Cpus};
use crate::servers::{Backend, Servers};

use super::quiet::{self, Habit, Quiet};
use super::trial::{Seen, seen};
use super::{GROWTH_MAX, attacks, store};

/// Requests of a pipeline that is answered, and of one that is not.
const REQUESTS: usize = 1_000_000;
const TOO_MANY: usize = 2 * REQUESTS;
/// Bytes of each request.
const REQUEST_LEN: usize = 60;
const VALUE_LEN: usize = 100;
/// A pipeline may take so many times as long as directly.
const RATIO_MAX: f64 = 2.0;
const ALONE: Duration = Duration::from_millis(1500);
/// A client that writes too much is closed in that time (`timeout_write`), and a moment.
const CLOSED_MAX_S: f64 = 61.0;
const PATIENCE: Duration = Duration::from_secs(120);
/// Answers that are read at once.
const CHUNK: usize = 1000;

/// A pipeline of one kind of requests.
struct Case {
    name: &'static str,
    backend: Backend,
    request: Vec<u8>,
    /// The bytes of an answer.
    answer_len: usize,
    /// Quiet requests are followed by one that is always answered, and its answer's bytes.
    last: Vec<u8>,
    end_len: usize,
}

/// One pipeline through one peer.
struct Run {
    seconds: f64,
    alone: Seen,
    beside: Seen,
    errors: usize,
    grown_kb: u64,
}

/// Measures pipelines; returns true if the bars are met.
pub fn run(options: &Options, folder: &Path) -> Result<bool, String> {
    process::stay_on(&Cpus::Split.of_load())?;
    let machine = Description::read(options.date.as_deref(), &options.quickack());
    let mut text = String::from("## Pipelines that are written before an answer is read\n\n");
    text.push_str(&page::short_origin(&machine, options));
    text.push_str(METHOD);
    print!("{METHOD}");
    let mut met = true;
    for case in &cases() {
        let line = measure(case, options, folder, &mut met)?;
        print!("{line}");
        text.push_str(&line);
    }
    text.push_str(TOO_MANY_METHOD);
    print!("{TOO_MANY_METHOD}");
    for case in cases().iter().filter(|case| ["get", "GET"].contains(&case.name)) {
        let line = overrun(case, options, folder, &mut met)?;
        print!("{line}");
        text.push_str(&line);
    }
    if options.write {
        page::write(Some("--pipelines"), &text)?;
    }
    Ok(met)
}

fn cases() -> Vec<Case> {
    let case = |name, backend, request: Vec<u8>, answer_len| {
        assert_eq!(request.len(), REQUEST_LEN, "{name}");
        Case { name, backend, request, answer_len, last: Vec::new(), end_len: 0 }
    };
    let memcached = |name, request, answer_len| case(name, Backend::Memcached, request, answer_len);
    let line = |before: &str, behind: &str| {
        let key = key(REQUEST_LEN - before.len() - behind.len());
        (format!("{before}{key}{behind}").into_bytes(), key.len())
    };
    let (get, get_key) = line("get ", "\r\n");
    let (mg, _) = line("mg ", " v\r\n");
    let (mg_quiet, _) = line("mg ", " v q\r\n");
    let resp_key = key(REQUEST_LEN - "*2\r\n$3\r\nGET\r\n$NN\r\n\r\n".len());
    let resp = attacks::command(&["GET", &resp_key]);
    let packet_key = key(REQUEST_LEN - HEAD_LEN);
    let packet = |code| Packet { key: packet_key.as_bytes(), ..Packet::new(code, 0) }.bytes();
    let flags_len = 4;
    let noop = Packet::new(NOOP, 0).bytes();
    let values = [
        memcached("get", get, get_key + "VALUE  0 100\r\n\r\nEND\r\n".len() + VALUE_LEN),
        memcached("mg", mg, "VA 100\r\n\r\n".len() + VALUE_LEN),
        memcached("binary GET", packet(GET), HEAD_LEN + flags_len + VALUE_LEN),
        case("GET", Backend::Redis, resp, "$100\r\n\r\n".len() + VALUE_LEN),
    ];
    let quiet_mg = Case {
        last: b"mn\r\n".to_vec(),
        end_len: "MN\r\n".len(),
        ..memcached("quiet mg, and mn", mg_quiet, "VA 100\r\n\r\n".len() + VALUE_LEN)
    };
    let len = HEAD_LEN + flags_len + packet_key.len() + VALUE_LEN;
    let quiet_binary = Case {
        end_len: noop.len(),
        last: noop,
        ..memcached("binary GETKQ, and NOOP", packet(GETKQ), len)
    };
    values.into_iter().chain([quiet_mg, quiet_binary]).collect()
}

fn key(len: usize) -> String {
    "k".repeat(len)
}

/// Starts servers that have the keys of the case and of the quiet client.
fn servers(case: &Case, options: &Options) -> Result<Servers, String> {
    let servers = Servers::start(case.backend, 1, Cpus::Split, &options.quickack())?;
    let keys = (1..=REQUEST_LEN).map(|len| (key(len), "v".repeat(VALUE_LEN)));
    let quiet = (0..quiet::KEYS).map(|at| (quiet::key(at), quiet::value(at)));
    let stored = store(case.backend, servers.ports[0], keys.chain(quiet));
    stored.map_err(|error| format!("cannot fill {}: {error}", servers.ports[0]))?;
    Ok(servers)
}

fn endpoint(
    (case, peer): (&Case, Peer),
    servers: &Servers,
    options: &Options,
    folder: &Path,
) -> Result<Endpoint, String> {
    let place = Place {
        folder,
        quickack: &options.quickack(),
        servers: &servers.ports,
        backend: case.backend,
        merge_gets: true,
        cpus: Cpus::Split,
        wrapper: &[],
        limits: Limits { timeout_ms: Some(5000), ..Limits::default() },
        added: &options.added,
    };
    Endpoint::start(Contestant::one(peer), &place)
}

/// Plays a pipeline through both in turn; returns a line of the table.
fn measure(
    case: &Case,
    options: &Options,
    folder: &Path,
    met: &mut bool,
) -> Result<String, String> {
    let servers = servers(case, options)?;
    let (mut direct, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..options.runs {
        for (peer, runs) in [(Peer::Direct, &mut direct), (Peer::Quickack, &mut ours)] {
            let run = play((case, peer), &servers, options, folder);
            runs.push(run.map_err(|fault| format!("{}, {}: {fault}", case.name, peer.name()))?);
        }
    }
    let of = |runs: &[Run], figure: fn(&Run) -> f64| {
        median(runs.iter().map(figure).collect()).unwrap_or(f64::NAN)
    };
    let times = direct.iter().zip(&ours).map(|(direct, ours)| ours.seconds / direct.seconds);
    let ratio = median(times.collect()).unwrap_or(f64::NAN);
    let (alone, beside) = (of(&ours, |run| run.alone.p99_ms), of(&ours, |run| run.beside.p99_ms));
    let limit = (GROWTH_MAX * alone).max(of(&direct, |run| run.beside.p99_ms));
    let grown = ours.iter().map(|run| run.grown_kb).max().unwrap_or(0) as f64 / 1024.0;
    let errors: usize = ours.iter().map(|run| run.errors).sum();
    let is_met = ratio <= RATIO_MAX && beside <= limit && errors == 0;
    *met &= is_met;
    let judged = if is_met { "met" } else { "**not met**" };
    let mut line = String::new();
    let _ = writeln!(
        line,
        "| {} | {:.2} | {:.2} | {ratio:.2} | {alone:.2} | {beside:.2} | {limit:.2} | {errors} | \
         {grown:.0} | {judged} |",
        case.name,
        of(&direct, |run| run.seconds),
        of(&ours, |run| run.seconds),
    );
    Ok(line)
}

fn play(
    (case, peer): (&Case, Peer),
    servers: &Servers,
    options: &Options,
    folder: &Path,
) -> Result<Run, String> {
    let endpoint = endpoint((case, peer), servers, options, folder)?;
    // memcached alone would wait for ever: it reads nothing from a client that does not read.
    let reads_meanwhile = peer == Peer::Direct && case.backend == Backend::Memcached;
    beside_quiet(case, &endpoint, |to| pipeline(case, to, reads_meanwhile))
}

/// Has a client do this beside a quiet one that was alone before. `act` returns its seconds.
fn beside_quiet(
    case: &Case,
    endpoint: &Endpoint,
    act: impl FnOnce(SocketAddrV4) -> std::io::Result<f64>,
) -> Result<Run, String> {
    let to = endpoint.addresses[0];
    let resting_kb = process::memory(&endpoint.ids()).resident_kb;
    let quiet = Quiet::start(to, case.backend.wire(), Habit::Same);
    let begin = now_ns();
    std::thread::sleep(ALONE);
    let led = now_ns();
    let seconds = act(to).map_err(|error| error.to_string())?;
    let left = now_ns();
    let samples = quiet.stop()?;
    let peak_kb: u64 = endpoint.ids().into_iter().map(process::peak_kb).sum();
    Ok(Run {
        seconds,
        alone: seen(&samples, begin, led),
        beside: seen(&samples, led, left),
        errors: samples.iter().filter(|sample| !sample.is_served()).count(),
        grown_kb: peak_kb.saturating_sub(resting_kb),
    })
}

fn connect(to: SocketAddrV4) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Writes all requests, and reads all answers; returns the seconds of both.
fn pipeline(case: &Case, to: SocketAddrV4, reads_meanwhile: bool) -> std::io::Result<f64> {
    let mut stream = connect(to)?;
    let requests = [case.request.repeat(REQUESTS), case.last.clone()].concat();
    let start = Instant::now();
    if reads_meanwhile {
        let mut reader = stream.try_clone()?;
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || read(case, &mut reader));
            stream.write_all(&requests)?;
            reading.join().unwrap_or_else(|_| Err(ErrorKind::Other.into()))
        })?;
    } else {
        stream.write_all(&requests)?;
        read(case, &mut stream)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Reads the answers: all are as the first.
fn read(case: &Case, stream: &mut TcpStream) -> std::io::Result<()> {
    let mut first = vec![0; case.answer_len];
    stream.read_exact(&mut first)?;
    let (mut chunk, expected) = (vec![0; first.len() * CHUNK], first.repeat(CHUNK));
    let mut left = REQUESTS - 1;
    while left > 0 {
        let len = left.min(CHUNK) * first.len();
        stream.read_exact(&mut chunk[..len])?;
        if chunk[..len] != expected[..len] {
            return Err(std::io::Error::other("an answer is not as the first"));
        }
        left -= left.min(CHUNK);
    }
    stream.read_exact(&mut vec![0; case.end_len])
}

/// Writes twice as much, and reads nothing; returns a line of the table.
fn overrun(
    case: &Case,
    options: &Options,
    folder: &Path,
    met: &mut bool,
) -> Result<String, String> {
    let servers = servers(case, options)?;
    let endpoint = endpoint((case, Peer::Quickack), &servers, options, folder)?;
    let mut is_closed = false;
    let run = beside_quiet(case, &endpoint, |to| {
        let mut stream = connect(to)?;
        let start = Instant::now();
        let outcome = stream.write_all(&case.request.repeat(TOO_MANY));
        is_closed = outcome.is_err_and(|error| {
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        });
        Ok(start.elapsed().as_secs_f64())
    })?;
    let Run { seconds, alone, beside, errors, grown_kb } = run;
    let grown = grown_kb as f64 / 1024.0;
    let stats = endpoint.admin.as_ref().map(|admin| admin.ask("stats --json")).transpose()?;
    let is_told = stats.is_some_and(|text| text.replace(' ', "").contains(UNREAD));
    let is_quiet = beside.p99_ms <= GROWTH_MAX * alone.p99_ms && errors == 0;
    let is_met = is_closed && is_told && is_quiet && seconds <= CLOSED_MAX_S;
    *met &= is_met;
    let judged = if is_met { "met" } else { "**not met**" };
    Ok(format!(
        "| {} | {is_closed} | {seconds:.1} | {is_told} | {:.2} | {:.2} | {errors} | {grown:.0} | \
         {judged} |\n",
        case.name, alone.p99_ms, beside.p99_ms,
    ))
}

const UNREAD: &str = "\"clients_unread_total\":1";

const METHOD: &str = "\
A client writes 1,000,000 requests of 60 bytes in one pipeline, and then reads their answers, values
of 100 bytes, beside a quiet client that asks every 5 ms. Directly to memcached it reads while it
writes, because memcached reads nothing from a client that does not read, so both would wait for
ever. Medians of runs in which both take turns, but errors are sums and memory is the largest.

| requests | s direct | s through quickack | ratio (<= 2) | quiet p99 alone, ms | beside | at most \
| errors | RSS grew MB | |
|---|---|---|---|---|---|---|---|---|---|
";
const TOO_MANY_METHOD: &str = "
A client writes 2,000,000 of them and reads nothing: it is closed after `timeout_write` (60 s).

| requests | closed | after s | counted | quiet p99 alone, ms | beside | errors | RSS grew MB | |
|---|---|---|---|---|---|---|---|---|
";
