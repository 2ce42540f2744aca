//! The log: one line for each entry, to stderr, a file or syslog. Never in the path of a request.
//!
//! ```text
//!   an entry ── level ── Repeats: was it written within this second? ── render ── Sink
//!                         └── counted, and reported as one line when the second is over
//! ```
//!
//! Only the master has a [`Log`]; workers send it their lines. A process without a master uses
//! [`line`].

mod render;
mod repeats;
mod sink;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::Error;
pub use render::push_timestamp;
use render::render;
use repeats::{Outcome, Repeated, Repeats};
use sink::Sink;

/// The target of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Stderr,
    File(PathBuf),
    /// The socket of a syslog daemon on this machine.
    Syslog(PathBuf),
}

/// How a line begins: the target adds the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// With time and level.
    Stamped,
    /// With the level in the journal's form, `<4>`. The journal has the time.
    Journal,
    /// With the level and the name of the program, as syslog daemons expect them.
    Syslog,
}

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    Text,
    /// JSON for programs: one object a line.
    Json,
}

/// The severity of an entry, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A failure that needs the operator.
    Error,
    /// A failure that the proxy has dealt with.
    Warning,
    /// An event that an operator wants to know: starts, reloads, servers that fail and return.
    Notice,
    Debug,
}

impl Format {
    const ALL: &[Format] = &[Format::Text, Format::Json];

    pub fn name(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Json => "json",
        }
    }

    pub fn names() -> Vec<&'static str> {
        Format::ALL.iter().map(|format| format.name()).collect()
    }

    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.iter().copied().find(|format| format.name() == name)
    }
}

impl Level {
    const ALL: &[Level] = &[Level::Error, Level::Warning, Level::Notice, Level::Debug];

    pub fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Notice => "notice",
            Level::Debug => "debug",
        }
    }

    pub fn names() -> Vec<&'static str> {
        Level::ALL.iter().map(|level| level.name()).collect()
    }

    /// Its number for syslog and the journal (RFC 5424, 6.2.1).
    pub fn severity(self) -> u8 {
        match self {
            Level::Error => 3,
            Level::Warning => 4,
            Level::Notice => 5,
            Level::Debug => 7,
        }
    }

    /// Moves by that many levels, up to the last one.
    pub fn step(self, step: isize) -> Level {
        let at = Level::ALL.iter().position(|level| *level == self).unwrap_or(0);
        Level::ALL[at.saturating_add_signed(step).min(Level::ALL.len() - 1)]
    }

    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL.iter().copied().find(|level| level.name() == name)
    }
}

/// The log of the whole proxy. Writing never waits; lines that its reader has no room for are
/// counted.
pub struct Log {
    target: Target,
    format: Format,
    style: Style,
    level: Level,
    sink: Sink,
    repeats: Repeats,
    /// Lines that could not be written and are not reported yet.
    lost: u64,
    /// The reason for the last loss.
    why_lost: String,
    losses: Losses,
}

/// Lines that could not be written since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub lines: u64,
    /// When the last one was lost, in microseconds since 1970.
    pub last_us: u64,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub level: Level,
    /// The kind of event, in one word for programs.
    pub event: String,
    /// Entries with the same key are repeats, whichever process sends them. An empty key disables
    /// this.
    pub key: String,
    /// The message. Control characters in it are escaped.
    pub text: String,
    pub about: About,
    pub origin: Origin,
}

/// The subject of an entry, as far as it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}

/// The process that reports an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Master,
    Worker { slot: usize, pid: u32 },
}

/// Both clocks: wall time, and one that never jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Microseconds since 1970.
    pub unix_us: u64,
    /// Microseconds since an arbitrary moment.
    pub clock_us: u64,
}

impl Log {
    pub fn open(target: &Target, format: Format, level: Level) -> Result<Log, Error> {
        let sink = Sink::open(target)?;
        let repeats = Repeats::default();
        let why_lost = String::new();
        let (style, target) = (target.style(), target.clone());
        let (lost, losses) = (0, Losses::default());
        Ok(Log { target, format, style, level, sink, repeats, lost, why_lost, losses })
    }

    pub fn write(&mut self, now: Clocks, entry: Entry) {
        if entry.level > self.level {
            return;
        }
        self.tick(now);
        if let Outcome::Say = self.repeats.note(now.clock_us, &entry) {
            self.say(now, &entry, None);
        }
    }

    /// The least severe level that is written.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Lines that could not be written, and why the last of them.
    pub fn losses(&self) -> (Losses, &str) {
        (self.losses, &self.why_lost)
    }

    /// Whether lines of every level are written.
    pub fn is_debug(&self) -> bool {
        self.level >= Level::Debug
    }

    /// Reports repeats whose second is over.
    pub fn tick(&mut self, now: Clocks) {
        self.say_repeats(now, now.clock_us);
    }

    /// Reports all repeats, because nothing will be written after this.
    pub fn finish(&mut self, now: Clocks) {
        self.say_repeats(now, u64::MAX);
    }

    fn say_repeats(&mut self, now: Clocks, over_us: u64) {
        for Repeated { entry, count } in self.repeats.over(over_us) {
            self.say(now, &entry, Some(count));
        }
    }

    /// Returns the next time at which `tick` has repeats to report, on the clock that never jumps.
    pub fn due_us(&self) -> Option<u64> {
        self.repeats.due_us()
    }

    /// Opens the log file again after it was moved away; returns false if the target is no file. If
    /// that fails, the old file stays open, and the caller reports the error.
    pub fn reopen(&mut self) -> Result<bool, Error> {
        let is_file = matches!(self.target, Target::File(_));
        if is_file {
            self.sink = Sink::open(&self.target)?;
        }
        Ok(is_file)
    }

    /// Changes the settings; if the target cannot be opened, the old settings stay.
    pub fn change(&mut self, target: &Target, format: Format, level: Level) -> Result<(), Error> {
        if *target != self.target {
            self.sink = Sink::open(target)?;
            (self.target, self.style) = (target.clone(), target.style());
        }
        (self.format, self.level) = (format, level);
        Ok(())
    }

    fn say(&mut self, now: Clocks, entry: &Entry, repeated: Option<u64>) {
        if self.lost > 0 {
            let text = format!("{} lines were lost: {}", self.lost, self.why_lost);
            let entry = Entry::new(Level::Warning, "log_lost", text);
            if let Err(error) = self.sink.write(&self.render(now, &entry, None)) {
                return self.lose(now, &error);
            }
            self.lost = 0;
        }
        if let Err(error) = self.sink.write(&self.render(now, entry, repeated)) {
            self.lose(now, &error);
        }
    }

    /// Counts a line that was not written, and remembers the reason.
    fn lose(&mut self, now: Clocks, error: &io::Error) {
        self.lost += 1;
        self.losses = Losses { lines: self.losses.lines + 1, last_us: now.unix_us };
        if error.kind() == io::ErrorKind::WouldBlock {
            self.why_lost = "the log's reader was too slow".to_string();
            return;
        }
        self.why_lost = format!("they could not be written: {error}");
        // A full disk is reported once, to stderr, because the log cannot report it itself.
        if let (1, Target::File(path) | Target::Syslog(path)) = (self.lost, &self.target)
            && let Ok(mut stderr) = Sink::open(&Target::Stderr)
        {
            let path = path.display();
            let text = format!("quickack: cannot write the log {path}: {error}; lines are lost\n");
            let _ = stderr.write(text.as_bytes());
        }
    }

    fn render(&self, now: Clocks, entry: &Entry, repeated: Option<u64>) -> Vec<u8> {
        render(self.format, self.style, now.unix_us, entry, repeated)
    }
}

impl Entry {
    /// Makes an entry of the master's own. The same words are repeats.
    pub fn new(level: Level, event: &str, text: impl Into<String>) -> Entry {
        let (event, text, about) = (event.to_string(), text.into(), About::default());
        Entry { level, event, key: text.clone(), text, about, origin: Origin::Master }
    }
}

impl About {
    pub fn worker(slot: usize) -> About {
        About { worker: Some(slot), ..About::default() }
    }

    pub fn pool(name: &str) -> About {
        About { pool: Some(name.to_string()), ..About::default() }
    }

    pub fn server(label: &str, pool: &str) -> About {
        About { server: Some(label.to_string()), ..About::pool(pool) }
    }
}

/// In words, as messages name it.
impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.server, &self.pool, self.worker) {
            (Some(server), Some(pool), _) => write!(f, "server {server} of pool {pool}"),
            (Some(server), None, _) => write!(f, "server {server}"),
            (None, Some(pool), _) => write!(f, "pool {pool}"),
            (None, None, Some(worker)) => write!(f, "worker {worker}"),
            (None, None, None) => f.write_str("a removed server or pool"),
        }
    }
}

/// As the directive has it.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Stderr => f.write_str("stderr"),
            Target::File(path) => write!(f, "{}", path.display()),
            Target::Syslog(path) => write!(f, "syslog:{}", path.display()),
        }
    }
}

impl Target {
    fn style(&self) -> Style {
        match self {
            Target::Stderr if sink::is_journal() => Style::Journal,
            Target::Stderr | Target::File(_) => Style::Stamped,
            Target::Syslog(_) => Style::Syslog,
        }
    }
}

impl Clocks {
    pub fn read() -> Clocks {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clocks { unix_us: unix.as_micros() as u64, clock_us: sys::clock::monotonic_us() }
    }
}

/// Says why the proxy does not start, or ends: in the log, as other errors, and to who started it.
pub fn last_words(target: &Target, format: Format, why: &str) {
    let is_plain = *target == Target::Stderr && format == Format::Text;
    if !is_plain && let Ok(mut log) = Log::open(target, format, Level::Error) {
        log.write(Clocks::read(), Entry::new(Level::Error, "failed", why));
    }
    if is_plain || *target != Target::Stderr {
        line(Level::Error, why);
    }
}

/// Writes one line to stderr, at once. Only the journal gets the level.
pub fn line(level: Level, text: &str) {
    let level = match sink::is_journal() {
        true => format!("<{}>", level.severity()),
        false => String::new(),
    };
    // The reader of stderr may have gone; that is no reason to end.
    let _ = writeln!(io::stderr(), "{level}quickack: {text}");
}
