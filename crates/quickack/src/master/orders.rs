//! The desk: where the operator's questions come in (the admin socket) and twemproxy's statistics
//! go out (the `stats:` port). Each verb of `admin::VERBS` has its arm here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Signal;

use super::events::{Events, Source};
use super::listeners::inode_of;
use super::{Master, Running};
use crate::admin::{self, Entry};
use crate::config::{Address, Admin};

/// Who waits for an answer.
pub type Visitor = u32;

/// The sockets of those who ask.
pub struct Desk {
    admin: Option<AdminSocket>,
    /// Where those look who know the configuration's name only.
    entry: Option<Entry>,
    stats: Option<(OwnedFd, String)>,
    visitors: BTreeMap<Visitor, Guest>,
    next: Visitor,
    /// Kinds of visitors for whom there is no room now.
    resting: BTreeSet<Visitor>,
}

struct Guest {
    fd: OwnedFd,
    /// Through which door it came.
    kind: Visitor,
    asked: Vec<u8>,
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

impl Guest {
    /// The line that it has asked. Nothing more is heard from it.
    fn question(&mut self, end: usize) -> String {
        self.is_served = true;
        self.until = Instant::now() + PATIENCE;
        String::from_utf8_lossy(&self.asked[..end]).trim_end().to_string()
    }
}

impl Desk {
    pub fn open(running: &Running, file: Option<&Path>, events: &Events) -> io::Result<Desk> {
        let process = &running.config.process;
        let mut desk = Desk {
            admin: None,
            entry: None,
            stats: None,
            visitors: BTreeMap::new(),
            next: FIRST,
            resting: BTreeSet::new(),
        };
        match desk.open_admin(&process.admin, file, events) {
            Ok(_) => {}
            // Who has not asked for it can do without, as on a disk that cannot be written.
            Err(error) if process.admin == Admin::Default => {
                crate::log::line(&format!("{error}; running without"));
            }
            Err(error) => return Err(error),
        }
        desk.listen_for_stats(process.stats.as_ref(), &running.addresses, events)?;
        Ok(desk)
    }

    /// Opens what is not there: the admin socket and the name by which it is found. Later again,
    /// because there are those who tidy up. Whether the socket is a new one.
    pub fn open_admin(
        &mut self,
        written: &Admin,
        file: Option<&Path>,
        events: &Events,
    ) -> io::Result<bool> {
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
                let entry = entry.map_err(|error| {
                    io::Error::other(format!("cannot open the admin socket: {error}"))
                })?;
                self.entry.insert(entry).path().to_path_buf()
            }
        };
        if self.admin.as_ref().is_some_and(AdminSocket::is_there) {
            return Ok(false);
        }
        let socket = AdminSocket::open(path)?;
        events.add(&socket.fd, Source::Desk(ADMIN))?;
        self.admin = Some(socket);
        Ok(true)
    }

    /// Opens, moves or closes the port of twemproxy's statistics.
    pub fn listen_for_stats(
        &mut self,
        address: Option<&Address>,
        addresses: &BTreeMap<String, String>,
        events: &Events,
    ) -> io::Result<()> {
        let wanted = address.map(ToString::to_string);
        if self.stats.as_ref().map(|(_, written)| written) == wanted.as_ref() {
            return Ok(());
        }
        self.stats = None;
        if let Some(address) = address {
            let fd = open_stats(address, addresses).map_err(|error| {
                io::Error::other(format!("cannot open the stats port {address}: {error}"))
            })?;
            events.add(&fd, Source::Desk(STATS))?;
            self.stats = Some((fd, address.to_string()));
        }
        Ok(())
    }

    /// Whether `listen_for_stats` could open this one.
    pub fn try_stats(address: &Address, addresses: &BTreeMap<String, String>) -> io::Result<()> {
        open_stats(address, addresses).map(drop)
    }

    pub fn path(&self) -> Option<&Path> {
        self.admin.as_ref().map(|admin| admin.path.as_path())
    }

    /// Where twemproxy's statistics are served.
    pub fn stats_address(&self) -> Option<String> {
        let (fd, _) = self.stats.as_ref()?;
        sys::listen::local_address(fd).ok().map(|address| address.to_string())
    }

    pub fn answer(&mut self, visitor: Visitor, text: String) {
        if let Some(guest) = self.visitors.get_mut(&visitor) {
            let failed = std::mem::take(&mut guest.failures).join("\n  ");
            let text = match text.strip_prefix(admin::ERROR) {
                _ if failed.is_empty() => text,
                Some(why) => format!("{}{failed}\n  {why}", admin::ERROR),
                None => format!("{}{failed}\n  apart from that: {text}", admin::ERROR),
            };
            guest.answer = text.into_bytes();
            if guest.answer.last() != Some(&b'\n') {
                guest.answer.push(b'\n');
            }
            for note in guest.notes.drain(..) {
                guest.answer.extend_from_slice(format!("  {note}\n").as_bytes());
            }
            guest.is_served = true;
        }
        self.write(visitor);
    }

    /// A line to be told with the answer.
    pub fn note(&mut self, visitor: Visitor, line: &str) {
        if let Some(guest) = self.visitors.get_mut(&visitor) {
            guest.notes.push(line.to_string());
        }
    }

    /// A line to be told first, because it failed.
    pub fn note_failure(&mut self, visitor: Visitor, line: &str) {
        if let Some(guest) = self.visitors.get_mut(&visitor) {
            guest.failures.push(line.to_string());
        }
    }

    pub fn refuse(&mut self, visitor: Visitor, why: &str) {
        self.answer(visitor, format!("{}{why}", admin::ERROR));
    }

    fn welcome(&mut self, kind: Visitor, events: &Events, now: Instant) -> Vec<Visitor> {
        let mut new = Vec::new();
        loop {
            let Some(listener) = self.listener(kind) else { return new };
            // Each kind has places of its own: who reads statistics keeps no operator out.
            let here = self.visitors.values().filter(|guest| guest.kind == kind).count();
            let accepted = match here < VISITORS_MAX {
                true => sys::listen::accept(listener),
                false => Err(Errno::MFILE),
            };
            match accepted {
                Ok(fd) => new.extend(self.admit(fd, kind, events, now)),
                Err(Errno::AGAIN) => return new,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    // No place or no descriptor: until the next look the others wait in the queue.
                    events.forget(listener);
                    self.resting.insert(kind);
                    return new;
                }
            }
        }
    }

    fn listener(&self, kind: Visitor) -> Option<&OwnedFd> {
        match kind {
            ADMIN => self.admin.as_ref().map(|admin| &admin.fd),
            _ => self.stats.as_ref().map(|(fd, _)| fd),
        }
    }

    fn admit(
        &mut self,
        fd: OwnedFd,
        kind: Visitor,
        events: &Events,
        now: Instant,
    ) -> Option<Visitor> {
        if kind == ADMIN && !sys::listen::is_of_our_user(&fd) {
            admin::refuse_stranger(&fd);
            return None;
        }
        let visitor = self.next;
        self.next = self.next.checked_add(1).unwrap_or(FIRST);
        events.add(&fd, Source::Desk(visitor)).ok()?;
        let guest = Guest {
            fd,
            kind,
            asked: Vec::new(),
            notes: Vec::new(),
            failures: Vec::new(),
            answer: Vec::new(),
            written: 0,
            is_served: false,
            until: now + QUESTION_PATIENCE,
        };
        self.visitors.insert(visitor, guest);
        Some(visitor)
    }

    /// Reads on; a whole line is the question.
    fn read(&mut self, visitor: Visitor, events: &Events) -> Option<String> {
        let guest = self.visitors.get_mut(&visitor)?;
        let mut chunk = [0; 4096];
        loop {
            match rustix::net::recv(&guest.fd, &mut chunk, RecvFlags::empty()) {
                Ok((0, _)) => break,
                // What comes after the question is nobody's.
                Ok(_) if guest.is_served => {}
                Ok((n, _)) => {
                    guest.asked.extend_from_slice(&chunk[..n]);
                    if let Some(end) = guest.asked.iter().position(|byte| *byte == b'\n') {
                        return Some(guest.question(end));
                    }
                    if guest.asked.len() > QUESTION_LEN_MAX {
                        self.refuse(visitor, "a question is one line of at most 64 KiB");
                        return None;
                    }
                }
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        if !guest.is_served && !guest.asked.is_empty() {
            // The end of what it says is the end of the line.
            events.forget(&guest.fd);
            return Some(guest.question(guest.asked.len()));
        }
        // It says no more. Who has asked still reads; looked at further, it would be ready for
        // ever.
        if guest.is_served {
            events.forget(&guest.fd);
        } else {
            self.visitors.remove(&visitor);
        }
        None
    }

    fn write(&mut self, visitor: Visitor) {
        let Some(guest) = self.visitors.get_mut(&visitor) else { return };
        while guest.written < guest.answer.len() {
            let rest = &guest.answer[guest.written..];
            match rustix::net::send(&guest.fd, rest, SendFlags::NOSIGNAL) {
                Ok(n) => guest.written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => break,
            }
        }
        if !guest.answer.is_empty() {
            self.visitors.remove(&visitor);
        }
    }

    fn is_writing(&self, visitor: Visitor) -> bool {
        self.visitors.get(&visitor).is_some_and(|guest| !guest.answer.is_empty())
    }

    /// Those who neither ask nor read are shown out, and others may come in.
    pub fn tidy(&mut self, events: &Events, now: Instant) {
        self.visitors.retain(|_, guest| now < guest.until);
        for kind in std::mem::take(&mut self.resting) {
            if let Some(listener) = self.listener(kind)
                && events.add(listener, Source::Desk(kind)).is_err()
            {
                self.resting.insert(kind);
            }
        }
    }
}

/// The socket, and which file it is.
struct AdminSocket {
    fd: OwnedFd,
    path: PathBuf,
    inode: u64,
}

impl AdminSocket {
    fn open(path: PathBuf) -> io::Result<AdminSocket> {
        let opened = sys::listen::unix(&path, Some(0o600), BACKLOG).map_err(io::Error::from);
        match opened.and_then(|fd| Ok((fd, inode_of(&path)?))) {
            Ok((fd, inode)) => Ok(AdminSocket { fd, path, inode }),
            Err(error) => Err(io::Error::other(format!(
                "cannot open the admin socket {}: {error}",
                path.display()
            ))),
        }
    }

    /// Whether its file is still there.
    fn is_there(&self) -> bool {
        inode_of(&self.path).is_ok_and(|now| now == self.inode)
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // Another proxy may have taken the place meanwhile.
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Master {
    pub(super) fn serve_desk(&mut self, visitor: Visitor, now: Instant) {
        match visitor {
            ADMIN => {
                self.desk.welcome(ADMIN, &self.events, now);
            }
            STATS => {
                for visitor in self.desk.welcome(STATS, &self.events, now) {
                    let text = self.twemproxy_stats();
                    self.desk.answer(visitor, text);
                    self.want_to_write(visitor);
                }
            }
            _ if self.desk.is_writing(visitor) => self.desk.write(visitor),
            _ => {
                if let Some(question) = self.desk.read(visitor, &self.events) {
                    self.heed_order(visitor, &question, now);
                    self.want_to_write(visitor);
                }
            }
        }
    }

    /// An answer that did not fit the socket goes on when there is room.
    pub(super) fn want_to_write(&mut self, visitor: Visitor) {
        if let Some(guest) = self.desk.visitors.get(&visitor) {
            let wanted = guest.written < guest.answer.len();
            // Whoever has asked is not listened to any more.
            self.events.watch(guest.fd.as_fd(), Source::Desk(visitor), !guest.is_served, wanted);
        }
    }

    fn heed_order(&mut self, visitor: Visitor, question: &str, now: Instant) {
        let words: Vec<String> = question.split_whitespace().map(str::to_string).collect();
        let Some((verb, words)) = words.split_first() else {
            return self.desk.refuse(visitor, &format!("ask one of: {}", verbs()));
        };
        let known = match verb.as_str() {
            "reload" => &["--allow-remap"][..],
            "config" => &["--running", "--diff", "--json"],
            "stats" | "workers" => &["--json"],
            _ => &[],
        };
        let takes_words = matches!(verb.as_str(), "set" | "log-level");
        if let Some(odd) = words.iter().find(|word| !takes_words && !known.contains(&word.as_str()))
        {
            return self.desk.refuse(visitor, &format!("`{verb}` does not know `{odd}`"));
        }
        let says = |word: &str| words.iter().any(|given| given == word);
        match verb.as_str() {
            "reload" => {
                self.renew(Some(visitor));
                self.begin_reload(Some(visitor), says("--allow-remap"), now);
            }
            "set" if words.is_empty() => self.desk.refuse(visitor, "set what? KEY=VALUE"),
            "set" => self.begin_set(visitor, words, now),
            "log-level" => match words {
                [level] => {
                    self.begin_set(visitor, &[format!("log_level={level}")], now);
                }
                _ => self.desk.refuse(visitor, "log-level takes one word"),
            },
            "config" => {
                let text = self.config_text(says("--diff"), says("--json"));
                self.desk.answer(visitor, text);
            }
            "stats" => {
                let text = self.stats_text(says("--json"));
                self.desk.answer(visitor, text);
            }
            "workers" => {
                let text = self.workers_text(says("--json"));
                self.desk.answer(visitor, text);
            }
            "drain" => {
                self.desk.answer(visitor, "draining".to_string());
                if self.ending.is_none() {
                    self.end(0, now);
                }
            }
            "quit" => {
                self.desk.answer(visitor, "ending now".to_string());
                if self.ending.is_none() {
                    self.end(0, now);
                }
                self.signal_all(Signal::KILL);
            }
            odd => {
                let why = format!("no verb is called `{odd}`; ask one of: {}", verbs());
                self.desk.refuse(visitor, &why);
            }
        }
    }

    fn config_text(&self, diff: bool, json: bool) -> String {
        let config = &self.running.config;
        match (diff, json) {
            (false, false) => config.running_text(),
            (false, true) => config.running_json(),
            (true, false) => config.diff_text(),
            (true, true) => config.diff_json(),
        }
    }
}

fn open_stats(address: &Address, addresses: &BTreeMap<String, String>) -> io::Result<OwnedFd> {
    let resolved = addresses.get(&address.to_string()).and_then(|found| found.parse().ok());
    let resolved = resolved.ok_or_else(|| io::Error::other("no address"))?;
    Ok(sys::listen::tcp(resolved, BACKLOG, false)?)
}

fn verbs() -> String {
    let names: Vec<&str> = admin::VERBS.iter().map(|verb| verb.name).collect();
    names.join(", ")
}

/// The admin socket itself, the stats port, and from here on those who came.
const ADMIN: Visitor = 0;
const STATS: Visitor = 1;
const FIRST: Visitor = 2;
/// Who may stand at the desk at once, of each kind; the others wait in the sockets' queues.
const VISITORS_MAX: usize = 32;
/// How long one may think about what to ask, …
const QUESTION_PATIENCE: Duration = Duration::from_secs(2);
/// … and wait for the answer and read it.
const PATIENCE: Duration = Duration::from_secs(60);
const QUESTION_LEN_MAX: usize = 64 * 1024;
const BACKLOG: i32 = 64;
