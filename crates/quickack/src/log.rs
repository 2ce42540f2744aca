//! One line a fact, to stderr or a file. Never in the path of a request.
//!
//! ```text
//!   a fact ── level ── Repeats: has it been said within this second? ── render ── Sink
//!                         └── counted, and told as one line when the second is over
//! ```
//!
//! Only the master has a [`Log`]; workers send it their lines. Who has no master yet, or none any
//! more, says [`line`].

mod render;
mod repeats;
mod sink;

#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use render::render;
use repeats::{Outcome, Repeats};
use sink::Sink;

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Stderr,
    File(PathBuf),
}

/// What a line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// How much somebody should care; the first the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It does not mend itself.
    Error,
    /// Something failed, and was dealt with.
    Warning,
    /// What an operator wants to know: starts, reloads, servers that go and come.
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

    /// So many levels further; the last at the most.
    pub fn step(self, step: isize) -> Level {
        let at = Level::ALL.iter().position(|level| *level == self).unwrap_or(0);
        Level::ALL[at.saturating_add_signed(step).min(Level::ALL.len() - 1)]
    }

    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL.iter().copied().find(|level| level.name() == name)
    }
}

/// The log of the whole proxy. Writing never waits: what its reader has no room for is counted.
pub struct Log {
    target: Target,
    format: Format,
    level: Level,
    sink: Sink,
    repeats: Repeats,
    /// Lines that could not be written, and that the reader has not been told of.
    lost: u64,
    /// Why the last of them could not.
    why_lost: String,
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub level: Level,
    /// Facts with the same key say the same, whoever says them; an empty key is said each time.
    pub key: String,
    /// The words. Control characters in them are written out.
    pub text: String,
    pub from: From,
}

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Master,
    Worker { slot: usize, pid: u32 },
}

/// Both clocks: one for people, one that never jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Microseconds since 1970.
    pub unix_us: u64,
    /// Microseconds since some moment.
    pub clock_us: u64,
}

impl Log {
    pub fn open(target: &Target, format: Format, level: Level) -> io::Result<Log> {
        let sink = Sink::open(target)?;
        let repeats = Repeats::default();
        let why_lost = String::new();
        Ok(Log { target: target.clone(), format, level, sink, repeats, lost: 0, why_lost })
    }

    pub fn write(&mut self, now: Now, fact: Fact) {
        if fact.level > self.level {
            return;
        }
        self.tick(now);
        if let Outcome::Say = self.repeats.note(now.clock_us, &fact) {
            self.say(now, &fact, None);
        }
    }

    /// What is written, and what matters more.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Tells of repeats whose second is over.
    pub fn tick(&mut self, now: Now) {
        for (fact, count) in self.repeats.over(now.clock_us) {
            self.say(now, &fact, Some(count));
        }
    }

    /// Tells of all repeats: nothing is written any more.
    pub fn finish(&mut self, now: Now) {
        for (fact, count) in self.repeats.over(u64::MAX) {
            self.say(now, &fact, Some(count));
        }
    }

    /// When `tick` has something to tell, on the clock that never jumps.
    pub fn due_us(&self) -> Option<u64> {
        self.repeats.due_us()
    }

    /// Opens a file anew, as whoever has moved it away expects; false: it is no file. If that
    /// fails the old one is still written, and the error is the caller's to tell.
    pub fn reopen(&mut self) -> io::Result<bool> {
        let is_file = matches!(self.target, Target::File(_));
        if is_file {
            self.sink = Sink::open(&self.target)?;
        }
        Ok(is_file)
    }

    /// Other rules; if the target cannot be opened, the old ones hold.
    pub fn change(&mut self, target: &Target, format: Format, level: Level) -> io::Result<()> {
        if *target != self.target {
            self.sink = Sink::open(target)?;
            self.target = target.clone();
        }
        (self.format, self.level) = (format, level);
        Ok(())
    }

    fn say(&mut self, now: Now, fact: &Fact, repeated: Option<u64>) {
        if self.lost > 0 {
            let text = format!("{} lines were lost: {}", self.lost, self.why_lost);
            let fact =
                Fact { level: Level::Warning, key: LOST.to_string(), text, from: From::Master };
            if let Err(error) = self.sink.write(&self.render(now, &fact, None)) {
                return self.lose(&error);
            }
            self.lost = 0;
        }
        if let Err(error) = self.sink.write(&self.render(now, fact, repeated)) {
            self.lose(&error);
        }
    }

    /// Counts a line that was not written, and remembers why.
    fn lose(&mut self, error: &io::Error) {
        self.lost += 1;
        if error.kind() == io::ErrorKind::WouldBlock {
            self.why_lost = "the log's reader was too slow".to_string();
            return;
        }
        self.why_lost = format!("they could not be written: {error}");
        // A full disk is told where there may be room, once: the log cannot say it itself.
        if let (1, Target::File(path)) = (self.lost, &self.target)
            && let Ok(mut stderr) = Sink::open(&Target::Stderr)
        {
            let path = path.display();
            let text = format!("quickack: cannot write the log {path}: {error}; lines are lost\n");
            let _ = stderr.write(text.as_bytes());
        }
    }

    fn render(&self, now: Now, fact: &Fact, repeated: Option<u64>) -> Vec<u8> {
        let stamped = matches!(self.target, Target::File(_));
        render(self.format, stamped, now.unix_us, fact, repeated)
    }
}

impl Fact {
    /// One of the master's.
    pub fn new(level: Level, key: &str, text: impl Into<String>) -> Fact {
        Fact { level, key: key.to_string(), text: text.into(), from: From::Master }
    }
}

impl Now {
    pub fn read() -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { unix_us: unix.as_micros() as u64, clock_us: sys::clock::monotonic_us() }
    }
}

/// The key of the line that tells of lost ones.
const LOST: &str = "log-lost";

/// Writes one line to stderr, at once and as it is.
pub fn line(text: &str) {
    // Whoever read it may have gone; that is no reason to end.
    let _ = writeln!(io::stderr(), "quickack: {text}");
}
