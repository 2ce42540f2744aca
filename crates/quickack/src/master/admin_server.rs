//! The admin server: it answers the operator's questions on the admin socket. Each verb of
//! `admin::VERBS` has its arm here.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::acceptor::Acceptor;
use super::change_queue::Asked;
use super::events::{Events, Source};
use super::listeners::SocketFile;
use super::{Master, Running};
use crate::admin::{self, Entry};
use crate::config::Admin;
use crate::error::Error;
use crate::log::{self, Level};

/// A connection that may wait for an answer; the first number is the socket's.
pub type ConnectionId = u32;

/// The socket and its connections.
pub struct AdminServer {
    admin: Option<AdminSocket>,
    /// The name by which the socket is found when only the configuration's is known.
    entry: Option<Entry>,
    connections: BTreeMap<ConnectionId, Connection>,
    next: ConnectionId,
}

struct Connection {
    fd: OwnedFd,
    input: Vec<u8>,
    /// Lines that are told with the answer, whatever that is.
    notes: Vec<String>,
    /// The same of what has failed beside what was asked: it makes the answer an error.
    failures: Vec<String>,
    answer: Vec<u8>,
    written: usize,
    /// A line was read; nothing more is.
    is_served: bool,
    until: Instant,
}

impl Connection {
    /// The line that it has asked. Nothing more is read from it.
    fn take_line(&mut self, end: usize) -> String {
        self.is_served = true;
        self.until = Instant::now() + PATIENCE;
        String::from_utf8_lossy(&self.input[..end]).trim_end().to_string()
    }
}

impl AdminServer {
    pub fn open(running: &Running, file: Option<&Path>, events: &Events) -> Result<Self, Error> {
        let process = &running.config.process;
        let mut server =
            AdminServer { admin: None, entry: None, connections: BTreeMap::new(), next: FIRST };
        match server.open_admin(&process.admin, file, events) {
            Ok(_) => {}
            // Nobody asked for this one: the proxy can do without, as on a read-only disk.
            Err(error) if process.admin == Admin::Default => {
                let text = format!("{error}; running without it");
                log::line(Level::Warning, &text);
            }
            Err(error) => return Err(error),
        }
        Ok(server)
    }

    /// Opens what is not there: the admin socket and the name by which it is found. It is called
    /// again later, because files may be removed. Whether the socket is a new one.
    pub fn open_admin(
        &mut self,
        written: &Admin,
        file: Option<&Path>,
        events: &Events,
    ) -> Result<bool, Error> {
        if *written == Admin::Off {
            return Ok(false);
        }
        self.entry.take_if(|entry| !entry.is_ours());
        let path = match written {
            Admin::At(path) => {
                // Without a name, `--admin` is needed while the file cannot be read.
                if self.entry.is_none() && file.is_some() {
                    self.entry = Entry::claim(file).ok();
                }
                if let Some(entry) = &self.entry {
                    let _ = entry.point_to(path);
                }
                path.clone()
            }
            Admin::Default | Admin::Off => {
                let entry = match self.entry.take() {
                    Some(entry) => Ok(entry),
                    None => Entry::claim(file),
                };
                let entry = entry.map_err(|error| error.within("cannot open the admin socket"))?;
                self.entry.insert(entry).path().to_path_buf()
            }
        };
        if self.admin.as_ref().is_some_and(|admin| admin.file.is_there()) {
            return Ok(false);
        }
        self.admin = Some(AdminSocket::open(&path, events)?);
        Ok(true)
    }

    pub fn path(&self) -> Option<&Path> {
        self.admin.as_ref().map(|admin| admin.file.path.as_path())
    }

    pub fn answer(&mut self, id: ConnectionId, text: String) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let failed = std::mem::take(&mut connection.failures).join("\n  ");
            let text = match text.strip_prefix(admin::ERROR) {
                _ if failed.is_empty() => text,
                Some(why) => format!("{}{failed}\n  {why}", admin::ERROR),
                None => format!("{}{failed}\n  apart from that: {text}", admin::ERROR),
            };
            connection.answer = text.into_bytes();
            if connection.answer.last() != Some(&b'\n') {
                connection.answer.push(b'\n');
            }
            for note in connection.notes.drain(..) {
                connection.answer.extend_from_slice(format!("  {note}\n").as_bytes());
            }
            connection.is_served = true;
        }
        self.write(id);
    }

    /// A line to be told with the answer.
    pub fn note(&mut self, id: ConnectionId, line: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.notes.push(line.to_string());
        }
    }

    /// A line to be told first, because it failed.
    pub fn note_failure(&mut self, id: ConnectionId, line: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.failures.push(line.to_string());
        }
    }

    pub fn refuse(&mut self, id: ConnectionId, why: &str) {
        self.answer(id, format!("{}{why}", admin::ERROR));
    }

    fn accept(&mut self, events: &Events, now: Instant) {
        let Some(admin) = &mut self.admin else { return };
        for fd in admin.acceptor.accept(self.connections.len(), events) {
            self.admit(fd, events, now);
        }
    }

    fn admit(&mut self, fd: OwnedFd, events: &Events, now: Instant) {
        if !sys::listen::is_of_our_user(&fd) {
            return admin::refuse_stranger(&fd);
        }
        let id = self.next;
        self.next = self.next.checked_add(1).unwrap_or(FIRST);
        if events.add(&fd, Source::Admin(id)).is_err() {
            return;
        }
        let connection = Connection {
            fd,
            input: Vec::new(),
            notes: Vec::new(),
            failures: Vec::new(),
            answer: Vec::new(),
            written: 0,
            is_served: false,
            until: now + QUESTION_PATIENCE,
        };
        self.connections.insert(id, connection);
    }

    /// Reads on, within bounds: what comes may never end. A whole line is the question.
    fn read(&mut self, id: ConnectionId, events: &Events) -> Option<String> {
        let connection = self.connections.get_mut(&id)?;
        let mut chunk = [0; 4096];
        for nth in 0.. {
            if nth == READS_MAX {
                // The kernel says again that there is more.
                return None;
            }
            match rustix::net::recv(&connection.fd, &mut chunk, RecvFlags::empty()) {
                Ok((0, _)) => break,
                // Bytes behind the question are nobody's.
                Ok(_) if connection.is_served => {}
                Ok((n, _)) => {
                    connection.input.extend_from_slice(&chunk[..n]);
                    if let Some(end) = connection.input.iter().position(|byte| *byte == b'\n') {
                        return Some(connection.take_line(end));
                    }
                    if connection.input.len() > LINE_LEN_MAX {
                        self.refuse(id, "a request is one line of at most 64 KiB");
                        return None;
                    }
                }
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        if !connection.is_served && !connection.input.is_empty() {
            // The end of what it says is the end of the line.
            events.forget(&connection.fd);
            return Some(connection.take_line(connection.input.len()));
        }
        // It says no more. One that has asked still reads; watched further, it would be ready for
        // ever.
        if connection.is_served {
            events.forget(&connection.fd);
        } else {
            self.connections.remove(&id);
        }
        None
    }

    fn write(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        while connection.written < connection.answer.len() {
            let rest = &connection.answer[connection.written..];
            match rustix::net::send(&connection.fd, rest, SendFlags::NOSIGNAL) {
                Ok(n) => connection.written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => break,
            }
        }
        if !connection.answer.is_empty() {
            self.connections.remove(&id);
        }
    }

    fn is_writing(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| !connection.answer.is_empty())
    }

    /// Closes connections that neither ask nor read, and accepts others again.
    pub fn tidy(&mut self, events: &Events, now: Instant) {
        self.connections.retain(|_, connection| now < connection.until);
        if let Some(admin) = &mut self.admin {
            admin.acceptor.resume(events);
        }
    }
}

/// The socket and its file.
struct AdminSocket {
    file: SocketFile,
    acceptor: Acceptor,
}

impl AdminSocket {
    fn open(path: &Path, events: &Events) -> Result<AdminSocket, Error> {
        let failed = format!("cannot open the admin socket {}", path.display());
        let open = || {
            let fd = sys::listen::unix(path, Some(0o600), BACKLOG)?;
            let file = SocketFile::of(path)?;
            Ok(AdminSocket { file, acceptor: Acceptor::new(fd, Source::Admin(ADMIN), events)? })
        };
        open().map_err(Error::os::<io::Error>(failed))
    }
}

impl Master {
    pub(super) fn serve_admin(&mut self, id: ConnectionId, now: Instant) {
        match id {
            ADMIN => self.admin.accept(&self.events, now),
            _ if self.admin.is_writing(id) => self.admin.write(id),
            _ => {
                if let Some(question) = self.admin.read(id, &self.events) {
                    self.handle_request(id, &question, now);
                    self.want_to_write(id);
                }
            }
        }
    }

    /// An answer that did not fit the socket goes on when there is room.
    pub(super) fn want_to_write(&mut self, id: ConnectionId) {
        if let Some(connection) = self.admin.connections.get(&id) {
            let wanted = connection.written < connection.answer.len();
            // A connection that has asked is not read any more.
            self.events.watch(&connection.fd, Source::Admin(id), !connection.is_served, wanted);
        }
    }

    fn handle_request(&mut self, id: ConnectionId, question: &str, now: Instant) {
        let words = admin::words(question);
        let Some((verb, words)) = words.split_first() else {
            return self.admin.refuse(id, &format!("use one of: {}", verbs()));
        };
        if let Some(odd) = admin::odd_word(verb, words) {
            return self.admin.refuse(id, &format!("`{verb}` does not take `{odd}`"));
        }
        let says = |word: &str| words.iter().any(|given| given == word);
        match verb.as_str() {
            "reload" => {
                self.renew(Some(id));
                let allow_remap = says("--allow-remap");
                self.begin_reload(Asked::reload(Some(id), allow_remap), now);
            }
            "set" => self.ask_set(id, words, now),
            "log-level" => self.ask_log_level(id, words, now),
            "config" => {
                let text = self.config_text(says("--diff"), says("--json"));
                self.admin.answer(id, text);
            }
            "stats" => {
                let text = self.stats_text(says("--json"));
                self.admin.answer(id, text);
            }
            "slowlog" => {
                let text = self.slow_log_answer(words);
                self.admin.answer(id, text);
            }
            "clients" => self.ask_for_clients(id, words, now),
            "info" => {
                let text = self.info_text(says("--json"));
                self.admin.answer(id, text);
            }
            "pools" => {
                let text = self.pools_text(says("--json"));
                self.admin.answer(id, text);
            }
            "servers" => {
                let text = self.servers_text(says("--json"));
                self.admin.answer(id, text);
            }
            "server" => self.ask_server(id, question, now),
            "difference" => self.ask_difference(id, question, now),
            "workers" => {
                let text = self.workers_text(says("--json"));
                self.admin.answer(id, text);
            }
            "drain" => {
                self.admin.answer(id, "draining".to_string());
                if self.ending.is_none() {
                    self.end(0, now);
                }
            }
            "quit" => {
                self.admin.answer(id, "ending now".to_string());
                self.quit(now);
            }
            odd => {
                let why = format!("unknown verb `{odd}`; use one of: {}", verbs());
                self.admin.refuse(id, &why);
            }
        }
    }
}

fn verbs() -> String {
    let names: Vec<&str> = admin::VERBS.iter().map(|verb| verb.name).collect();
    names.join(", ")
}

/// The admin socket itself, and from here on connections.
const ADMIN: ConnectionId = 0;
const FIRST: ConnectionId = 1;
/// How long a connection may take to ask, …
const QUESTION_PATIENCE: Duration = Duration::from_secs(2);
/// … and to wait for the answer and read it.
const PATIENCE: Duration = Duration::from_secs(60);
const LINE_LEN_MAX: usize = 64 * 1024;
/// Reads of one connection in a turn, of up to 4 KiB.
const READS_MAX: usize = 16;
const BACKLOG: i32 = 64;
