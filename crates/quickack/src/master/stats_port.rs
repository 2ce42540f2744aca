//! The port of twemproxy's statistics. Collectors connect, say nothing, and read to the end.
//! Browsers and `curl` ask in HTTP, and get a status line as well.
//!
//! ```text
//!   accepted ──▶ a request of HTTP comes ──▶ a status line and the JSON
//!            ──▶ anything else comes, or nothing for a moment ──▶ the JSON
//!   sent ──▶ our half is shut down, and what still comes is read until their end: closing with
//!            bytes unread would reset the connection, and the JSON might be lost
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use http::{Method, Parsed, Response};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::acceptor::Acceptor;
use super::events::{Events, Source};
use super::{Master, Running};
use crate::config::Address;
use crate::error::Error;

/// The port and its connections.
pub struct StatsPort {
    listening: Option<Listening>,
    connections: BTreeMap<u32, Connection>,
    next: u32,
}

struct Listening {
    acceptor: Acceptor,
    /// As the configuration writes it.
    address: String,
}

struct Connection {
    fd: OwnedFd,
    begun: Instant,
    stage: Stage,
    /// When the stage is over at the latest.
    until: Instant,
}

enum Stage {
    /// What it has said, if anything.
    Asking(Vec<u8>),
    Answering {
        answer: Vec<u8>,
        written: usize,
    },
    /// All is sent.
    Ending,
}

/// The form in which a connection wants its answer.
enum Form {
    Bare,
    Page(Method),
}

impl StatsPort {
    pub fn open(running: &Running, events: &Events) -> Result<StatsPort, Error> {
        let mut port = StatsPort { listening: None, connections: BTreeMap::new(), next: FIRST };
        port.listen(running.config.process.stats.as_ref(), &running.addresses, events)?;
        Ok(port)
    }

    /// Opens, moves or closes the port.
    pub fn listen(
        &mut self,
        address: Option<&Address>,
        addresses: &BTreeMap<String, String>,
        events: &Events,
    ) -> Result<(), Error> {
        let wanted = address.map(ToString::to_string);
        if self.listening.as_ref().map(|port| &port.address) == wanted.as_ref() {
            return Ok(());
        }
        self.listening = None;
        if let Some(address) = address {
            let fd = open(address, addresses)?;
            let acceptor = Acceptor::new(fd, Source::Stats(LISTENER), events)
                .map_err(Error::os(format!("cannot open the stats port {address}")))?;
            self.listening = Some(Listening { acceptor, address: address.to_string() });
        }
        Ok(())
    }

    /// Whether `listen` could open this one.
    pub fn try_listen(
        address: &Address,
        addresses: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        open(address, addresses).map(drop)
    }

    /// Where the statistics are served.
    pub fn address(&self) -> Option<String> {
        let acceptor = &self.listening.as_ref()?.acceptor;
        sys::listen::local_address(acceptor).ok().map(|address| address.to_string())
    }

    /// When the next connection has said nothing for long enough.
    pub fn due(&self) -> Option<Instant> {
        let asks = |one: &&Connection| matches!(one.stage, Stage::Asking(_));
        self.connections.values().filter(asks).map(|one| one.until).min()
    }

    fn accept(&mut self, events: &Events, now: Instant) {
        let Some(port) = &mut self.listening else { return };
        for fd in port.acceptor.accept(self.connections.len(), events) {
            let id = self.next;
            self.next = self.next.checked_add(1).unwrap_or(FIRST);
            if events.add(&fd, Source::Stats(id)).is_ok() {
                let (stage, until) = (Stage::Asking(Vec::new()), now + SILENCE_PATIENCE);
                self.connections.insert(id, Connection { fd, begun: now, stage, until });
            }
        }
    }

    /// Reads what a connection says, within bounds: it may never stop. Returns the form of its
    /// answer, if it is time for one.
    fn read(&mut self, id: u32, now: Instant) -> Option<Form> {
        let connection = self.connections.get_mut(&id)?;
        let mut chunk = [0; 4096];
        let mut is_over = false;
        for _ in 0..READS_MAX {
            match rustix::net::recv(&connection.fd, &mut chunk, RecvFlags::empty()) {
                Ok((0, _)) => {
                    is_over = true;
                    break;
                }
                Ok((n, _)) => {
                    if let Stage::Asking(said) = &mut connection.stage {
                        said.extend_from_slice(&chunk[..n]);
                        if said.len() > http::HEAD_LEN_MAX {
                            is_over = true;
                            break;
                        }
                        if method_of(said).is_some() {
                            connection.until = connection.begun + HEAD_PATIENCE;
                        }
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.connections.remove(&id);
                    return None;
                }
            }
        }
        match &connection.stage {
            Stage::Asking(said) => form(said, is_over || now >= connection.until),
            Stage::Ending if is_over => {
                self.connections.remove(&id);
                None
            }
            Stage::Answering { .. } | Stage::Ending => None,
        }
    }

    fn answer(&mut self, id: u32, form: &Form, json: String, events: &Events, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let body = format!("{json}\n").into_bytes();
        let answer = match form {
            Form::Bare => body,
            Form::Page(method) => Response::json(body).last_bytes(*method),
        };
        connection.stage = Stage::Answering { answer, written: 0 };
        connection.until = now + PATIENCE;
        self.write(id, events, now);
    }

    fn write(&mut self, id: u32, events: &Events, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Stage::Answering { answer, written } = &mut connection.stage else { return };
        while *written < answer.len() {
            match rustix::net::send(&connection.fd, &answer[*written..], SendFlags::NOSIGNAL) {
                Ok(n) => *written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    return events.watch(&connection.fd, Source::Stats(id), false, true);
                }
                Err(_) => {
                    self.connections.remove(&id);
                    return;
                }
            }
        }
        if rustix::net::shutdown(&connection.fd, Shutdown::Write).is_err() {
            self.connections.remove(&id);
            return;
        }
        (connection.stage, connection.until) = (Stage::Ending, now + END_PATIENCE);
        events.watch(&connection.fd, Source::Stats(id), true, false);
    }

    /// Closes connections whose time is over, and accepts others again.
    pub fn tidy(&mut self, events: &Events, now: Instant) {
        self.connections.retain(|_, one| now < one.until || matches!(one.stage, Stage::Asking(_)));
        if let Some(port) = &mut self.listening {
            port.acceptor.resume(events);
        }
    }
}

/// Returns the form of the answer to what was said; `None` if more has to be awaited. What looks
/// like HTTP is answered in HTTP, even if it is wrong: nutcracker gives its JSON to whoever comes,
/// and no request changes anything.
fn form(said: &[u8], is_over: bool) -> Option<Form> {
    let is_partial = http::parse(said) == Parsed::Partial;
    if is_partial && !is_over {
        return None;
    }
    Some(method_of(said).map_or(Form::Bare, Form::Page))
}

/// Returns the method of what looks like a request of HTTP: it may be the beginning of one, in
/// letters of either case, or have a method that is not known here.
fn method_of(said: &[u8]) -> Option<Method> {
    let line = said.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let word = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    let is_it = |name: &str| name.as_bytes() == word && word.len() < said.len();
    if let Some((_, method)) = METHODS.iter().find(|(name, _)| is_it(name)) {
        return Some(*method);
    }
    let begins = |name: &str| {
        let beginning = name.as_bytes().get(..word.len());
        beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(word))
    };
    let is_cut = !said.is_empty() && said.len() == word.len();
    let is_begun = is_cut && METHODS.iter().any(|(name, _)| begins(name));
    let has_path = !word.is_empty()
        && word.iter().all(u8::is_ascii_alphabetic)
        && line[word.len()..].starts_with(b" /");
    let last = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    let has_version = last.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"HTTP/"));
    (is_begun || has_path || has_version).then_some(Method::Other)
}

impl Master {
    pub(super) fn serve_stats(&mut self, id: u32, now: Instant) {
        if id == LISTENER {
            self.stats_port.accept(&self.events, now);
            return;
        }
        self.stats_port.write(id, &self.events, now);
        if let Some(form) = self.stats_port.read(id, now) {
            let json = self.twemproxy_stats();
            self.stats_port.answer(id, &form, json, &self.events, now);
        }
    }

    /// Answers those that have said nothing for a moment.
    pub(super) fn tend_stats(&mut self, now: Instant) {
        let is_due = |one: &Connection| matches!(one.stage, Stage::Asking(_)) && now >= one.until;
        let all = self.stats_port.connections.iter();
        let due: Vec<u32> = all.filter(|(_, one)| is_due(one)).map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.serve_stats(id, now));
    }
}

fn open(address: &Address, addresses: &BTreeMap<String, String>) -> Result<OwnedFd, Error> {
    let resolved = addresses.get(&address.to_string()).and_then(|found| found.parse().ok());
    let opened = resolved.ok_or(Errno::ADDRNOTAVAIL);
    let opened = opened.and_then(|resolved| sys::listen::tcp(resolved, BACKLOG, false));
    opened.map_err(Error::os(format!("cannot open the stats port {address}")))
}

/// The listener itself, and from here on connections.
const LISTENER: u32 = 0;
const FIRST: u32 = 1;
const BACKLOG: i32 = 64;
/// Reads of one connection in a turn, of up to 4 KiB.
const READS_MAX: usize = 16;
const METHODS: [(&str, Method); 9] = [
    ("GET", Method::Get),
    ("HEAD", Method::Head),
    ("POST", Method::Other),
    ("PUT", Method::Other),
    ("DELETE", Method::Other),
    ("OPTIONS", Method::Other),
    ("PATCH", Method::Other),
    ("TRACE", Method::Other),
    ("CONNECT", Method::Other),
];
/// A request comes with the connection, if one comes at all, or as much later as a busy machine
/// keeps its sender from running. Collectors that say nothing are not to wait for longer.
const SILENCE_PATIENCE: Duration = Duration::from_millis(100);
/// The rest of a request may come in pieces.
const HEAD_PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer may take to be read, …
const PATIENCE: Duration = Duration::from_secs(60);
/// … and the other side to end the connection.
const END_PATIENCE: Duration = Duration::from_secs(2);
