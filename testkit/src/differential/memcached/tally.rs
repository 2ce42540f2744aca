//! Statistics of a run, and the description of a difference.

use std::collections::BTreeMap;
use std::fmt;

use super::Burst;
use super::excuses::{Behind, EXCUSES, Excuse, SKIPS, Skip};
use super::reply::Reply;
use super::request::{Request, Wire};
use crate::differential::report;

#[derive(Default)]
pub struct Tally {
    pub requests: usize,
    pub bursts: usize,
    /// Requests by protocol and command.
    pub asked: BTreeMap<(&'static str, &'static str), usize>,
    /// Answers of memcached, by first word or status.
    pub answers: BTreeMap<String, usize>,
    /// Permitted differences, by row and side.
    pub excused: BTreeMap<(&'static str, String), usize>,
    /// Requests left out, by reason.
    pub skipped: BTreeMap<Skip, usize>,
    /// Number of cas numbers replaced by the side's own, for each side.
    pub translated: Vec<usize>,
}

impl Tally {
    pub(super) fn count(&mut self, burst: &Burst, replies: &[Reply]) {
        self.bursts += 1;
        self.requests += burst.requests.len();
        for request in &burst.requests {
            let wire = match burst.wire {
                Wire::Text => "text",
                Wire::Binary => "binary",
            };
            *self.asked.entry((wire, request.name)).or_default() += 1;
        }
        for reply in replies {
            let name = match reply.status() {
                Some(status) => format!("{status:02x}"),
                None if reply.first().first().is_some_and(u8::is_ascii_digit) => "number".into(),
                None if reply.first().ends_with(b"_ERROR") => {
                    String::from_utf8_lossy(&reply.line()).into_owned()
                }
                None => String::from_utf8_lossy(reply.first()).into_owned(),
            };
            *self.answers.entry(name).or_default() += 1;
        }
    }

    pub(super) fn excuse(&mut self, name: &'static str, behind: Behind) {
        *self.excused.entry((name, format!("{behind:?}"))).or_default() += 1;
    }

    pub fn answered(&self, word: &str) -> usize {
        self.answers.get(word).copied().unwrap_or(0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "{} requests in {} bursts", self.requests, self.bursts)?;
        let asked = self.asked.iter().map(|((_, name), count)| format!("{name} {count}"));
        writeln!(to, "asked: {}", asked.collect::<Vec<_>>().join(", "))?;
        let answers = self.answers.iter().map(|(name, count)| format!("{name} {count}"));
        writeln!(to, "memcached's answers: {}", answers.collect::<Vec<_>>().join(", "))?;
        writeln!(to, "cas numbers known, by side: {:?}", self.translated)?;
        writeln!(to, "answered otherwise, as the table says:")?;
        for row in EXCUSES {
            let sides = self.excused.iter().filter(|((name, _), _)| *name == row.name);
            let counts: Vec<_> =
                sides.map(|((_, side), count)| format!("{side} {count}")).collect();
            writeln!(to, "  {}: {} ({})", row.name, counts.join(", "), row.reason)?;
        }
        writeln!(to, "never asked:")?;
        for (skip, name, reason) in SKIPS {
            let count = self.skipped.get(skip).copied().unwrap_or(0);
            writeln!(to, "  {name}: {count} ({reason})")?;
        }
        Ok(())
    }
}

pub(super) fn difference(
    behind: Behind,
    burst: &Burst,
    at: usize,
    (direct, ours): (&[Reply], &[Reply]),
    rows: &[&Excuse],
    past: &str,
) -> String {
    let shown = |replies: &[Reply]| match replies.get(at) {
        Some(reply) => reply.shown(),
        None => "nothing".to_string(),
    };
    let asked = asker(burst, direct, at).map_or("?".into(), |request| request.shown());
    let excuse: String =
        rows.iter().map(|row| format!("\nnot as the row says: {}", row.name)).collect();
    let what = format!("{behind:?} differs at answer {at} of {}{excuse}", direct.len());
    report(&what, &asked, [shown(direct), shown(ours)], past, &dialogue(burst, direct))
}

/// Returns the request of an answer: by its opaque, or by counting, as long as no quiet request
/// precedes it.
fn asker<'a>(burst: &'a Burst, replies: &[Reply], at: usize) -> Option<&'a Request> {
    let opaque = replies.get(at)?.opaque();
    let by_opaque =
        burst.requests.iter().find(|asked| asked.opaque.is_some_and(|_| asked.opaque == opaque));
    if by_opaque.is_some() {
        return by_opaque;
    }
    let mut next = 0;
    for request in &burst.requests {
        let start = next;
        let lines = request.answers();
        while next < replies.len() && lines > 0 {
            next += 1;
            if lines == 1
                || matches!(replies[next - 1].first(), b"END" | b"ERROR" | b"CLIENT_ERROR")
            {
                break;
            }
        }
        if (start..next).contains(&at) {
            return Some(request);
        }
    }
    None
}

/// Renders the requests and answers of a burst: only the end, which matters most.
pub(super) fn dialogue(burst: &Burst, replies: &[Reply]) -> String {
    let mut text = format!("asked on {:?} connection {}:\n", burst.wire, burst.conn);
    for request in &burst.requests {
        text.push_str(&format!("  {}\n", request.shown()));
    }
    text.push_str("answered:\n");
    for reply in replies {
        text.push_str(&format!("  {}\n", reply.shown()));
    }
    text
}
