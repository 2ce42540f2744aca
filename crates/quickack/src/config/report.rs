//! Diagnostics of a file, rendered for people and for programs.
//!
//! ```text
//!   error: unknown directive `hash_tags`; did you mean `hash_tag`?
//!     --> nutcracker.yml:4:3
//!      |
//!    4 |   hash_tags: "{}"
//!      |   ^^^^^^^^^
//! ```

use std::cmp::Reverse;
use std::fmt::Write;

use serde::Serialize;

/// A range of the file's text, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub start: usize,
    pub end: usize,
}

/// The subject of a diagnostic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    /// The whole file.
    File,
    Text(Place),
    /// A directive set at run time, as it was set.
    Set(String),
}

impl From<Place> for Spot {
    fn from(place: Place) -> Spot {
        Spot::Text(place)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but contains a setting that has no effect or an unlikely one.
    Warning,
    /// What a reload of the file would change in a running proxy.
    Change,
}

/// One error or warning about a file.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    pub severity: Severity,
    pub spot: Spot,
    pub message: String,
    /// The word that was probably meant.
    pub suggestion: Option<String>,
    /// What can be done about it, if that is more than another word.
    pub help: Option<&'static str>,
    /// The earlier place, if something is written twice.
    pub first: Option<Place>,
}

/// All diagnostics of one file, in the order of its lines.
pub struct Report {
    /// The file as the operator named it.
    pub name: String,
    text: String,
    diagnostics: Vec<Diagnostic>,
}

/// A diagnostic as `check --format json` prints it.
#[derive(Serialize)]
struct Record<'r> {
    file: &'r str,
    /// The directive set at run time, if the diagnostic is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<&'r str>,
    line: Option<usize>,
    column: Option<usize>,
    message: &'r str,
    suggestion: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'r str>,
    /// The line where it was written first, if it is written twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_line: Option<usize>,
    severity: Severity,
}

impl Diagnostic {
    fn place(&self) -> Option<Place> {
        match self.spot {
            Spot::Text(place) => Some(place),
            Spot::File | Spot::Set(_) => None,
        }
    }
}

fn of_file(severity: Severity, message: String) -> Diagnostic {
    Diagnostic { severity, spot: Spot::File, message, suggestion: None, help: None, first: None }
}

impl Report {
    pub fn new(name: &str, text: &str, mut diagnostics: Vec<Diagnostic>) -> Report {
        diagnostics.sort_by_key(|diagnostic| diagnostic.place().map_or(0, |place| place.start));
        Report { name: name.to_string(), text: text.to_string(), diagnostics }
    }

    /// Adds warnings about the file itself.
    pub fn doubt(&mut self, doubts: Vec<String>) {
        let warnings = doubts.into_iter().map(|doubt| of_file(Severity::Warning, doubt));
        self.diagnostics.splice(0..0, warnings);
    }

    /// Adds what a running proxy says of the file.
    pub fn add(&mut self, severity: Severity, lines: &[&str]) {
        let added = lines.iter().map(|line| of_file(severity, line.trim().to_string()));
        self.diagnostics.extend(added);
    }

    pub fn count(&self, severity: Severity) -> usize {
        self.diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count()
    }

    /// Renders the report for people: every diagnostic with its line.
    pub fn render_text(&self) -> String {
        let mut out = String::new();
        for diagnostic in &self.diagnostics {
            self.render_diagnostic(diagnostic, &mut out);
        }
        out
    }

    /// Renders the report for programs: an array with one object for each diagnostic.
    pub fn render_json(&self) -> String {
        let records: Vec<Record> =
            self.diagnostics.iter().map(|diagnostic| self.record(diagnostic)).collect();
        let mut out = serde_json::to_string_pretty(&records).expect("strings and numbers only");
        out.push('\n');
        out
    }

    fn record<'r>(&'r self, diagnostic: &'r Diagnostic) -> Record<'r> {
        let position = diagnostic.place().map(|place| Position::of(&self.text, place.start));
        Record {
            file: &self.name,
            set: match &diagnostic.spot {
                Spot::Set(set) => Some(set),
                Spot::File | Spot::Text(_) => None,
            },
            line: position.as_ref().map(|position| position.line),
            column: position.as_ref().map(|position| position.column),
            message: &diagnostic.message,
            suggestion: diagnostic.suggestion.as_deref(),
            help: diagnostic.help,
            first_line: diagnostic.first.map(|place| Position::of(&self.text, place.start).line),
            severity: diagnostic.severity,
        }
    }

    fn render_diagnostic(&self, diagnostic: &Diagnostic, out: &mut String) {
        let word = match diagnostic.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Change => "change",
        };
        let hint = match &diagnostic.suggestion {
            Some(suggestion) => format!("; did you mean `{suggestion}`?"),
            None => String::new(),
        };
        let _ = writeln!(out, "{word}: {}{hint}", printable(&diagnostic.message));
        match &diagnostic.spot {
            Spot::Text(place) => self.render_excerpt(*place, diagnostic.first, out),
            Spot::File => {
                let _ = writeln!(out, "  --> {}", self.name);
            }
            Spot::Set(set) => {
                let _ = writeln!(out, "  --> set {}", printable(set));
            }
        }
        if let Some(help) = &diagnostic.help {
            let _ = writeln!(out, "  help: {}", help);
        }
        out.push('\n');
    }

    /// Shows the line of a place, after the line of an earlier one.
    fn render_excerpt(&self, place: Place, first: Option<Place>, out: &mut String) {
        let position = Position::of(&self.text, place.start);
        let width = position.line.to_string().len();
        let margin = " ".repeat(width);
        let _ = writeln!(out, " {margin}--> {}:{}:{}", self.name, position.line, position.column);
        let _ = writeln!(out, " {margin} |");
        if let Some(first) = first {
            self.render_line(first, width, ("-", " first here"), out);
        }
        self.render_line(place, width, ("^", ""), out);
    }

    /// Shows the line of a place, which is underlined and may have a note.
    fn render_line(&self, place: Place, width: usize, mark: (&str, &str), out: &mut String) {
        let position = Position::of(&self.text, place.start);
        let (margin, line, (mark, note)) = (" ".repeat(width), position.line, mark);
        let marked = self.text[place.start..place.end].lines().next().unwrap_or_default();
        let excerpt = Excerpt::of(&position, marked.chars().count().max(1));
        let (text, marks) = (&excerpt.text, mark.repeat(excerpt.width));
        let indent = " ".repeat(excerpt.indent);
        let _ = writeln!(out, " {line:>width$} | {text}");
        let _ = writeln!(out, " {margin} | {indent}{marks}{note}");
    }
}

/// A line, or the part of it around a place that fits on a screen.
struct Excerpt {
    text: String,
    /// Characters before the marked ones.
    indent: usize,
    /// Number of marked characters.
    width: usize,
}

impl Excerpt {
    fn of(position: &Position, width: usize) -> Excerpt {
        let line = printable(without_secret(position.text));
        let len = line.chars().count();
        let before = position.column - 1;
        let start = if len > EXCERPT_LEN_MAX { before.saturating_sub(EXCERPT_BEFORE) } else { 0 };
        let cut: String = line.chars().skip(start).take(EXCERPT_LEN_MAX).collect();
        let room = (cut.chars().count() + start).saturating_sub(before).max(1);
        let (head, tail) = (
            if start > 0 { "…" } else { "" },
            if start + EXCERPT_LEN_MAX < len { "…" } else { "" },
        );
        Excerpt {
            indent: before - start + head.chars().count(),
            width: width.min(room),
            text: format!("{head}{cut}{tail}"),
        }
    }
}

/// The longest part of a line that is shown.
const EXCERPT_LEN_MAX: usize = 160;
/// The part of a longer line that is shown before the place.
const EXCERPT_BEFORE: usize = 60;

/// A byte's position as editors count: from 1, columns in characters.
struct Position<'t> {
    line: usize,
    column: usize,
    text: &'t str,
}

impl<'t> Position<'t> {
    fn of(text: &'t str, offset: usize) -> Position<'t> {
        let before = &text[..offset];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[offset..].find('\n').map_or(text.len(), |newline| offset + newline);
        Position {
            line: before.matches('\n').count() + 1,
            column: text[start..offset].chars().count() + 1,
            text: text[start..end].trim_end_matches('\r'),
        }
    }
}

/// Replaces characters that a terminal would interpret; each character keeps its column.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the line without a password, because reports end up in logs.
fn without_secret(line: &str) -> &str {
    let ends = SECRET_KEYS.iter().filter_map(|key| Some(line.find(key)? + key.len()));
    match ends.min() {
        Some(end) => &line[..end],
        None => line,
    }
}

/// Ours, and those of others that are mistaken for it.
const SECRET_KEYS: &[&str] =
    &["redis_auth", "requirepass", "masterauth", "password:", "passwd", "redis_pass"];

/// Returns the candidate that was probably meant: one that begins with the word, or one with few
/// wrong letters. Of equally near ones it takes the longest, because letters are omitted more often
/// than added.
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    const BEGINNING_LEN_MIN: usize = 3;
    let word = word.to_lowercase();
    let distance_max = (word.chars().count() / 3).max(1);
    let distance = |candidate: &str| match strsim::damerau_levenshtein(&word, candidate) {
        0 | 1 => (1, false),
        // One letter that is wrong is likelier than half a word that is missing.
        _ if candidate.starts_with(&word) && word.len() >= BEGINNING_LEN_MIN => (1, true),
        distance => (distance, false),
    };
    candidates
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .filter(|((distance, _), _)| *distance <= distance_max)
        .min_by_key(|(rank, candidate)| (*rank, Reverse(candidate.len())))
        .map(|(_, candidate)| candidate)
}
