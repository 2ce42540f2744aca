//! One line a fact, to stderr. Never in the path of a request.

use std::io::Write;
use std::path::PathBuf;

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

    pub fn from_name(name: &str) -> Option<Level> {
        Level::ALL.iter().copied().find(|level| level.name() == name)
    }
}

/// Writes one line.
pub fn line(text: &str) {
    // Whoever read it may have gone; that is no reason to end.
    let _ = writeln!(std::io::stderr(), "quickack: {text}");
}
