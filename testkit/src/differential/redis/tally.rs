//! Statistics of a run: the coverage of the table.

use std::collections::BTreeMap;
use std::fmt;

use super::item::{Expect, Item};
use super::table::{Fate, Row};
use crate::wire::resp::Reply;

#[derive(Default)]
pub struct Tally {
    pub commands: usize,
    pub batches: usize,
    /// By row, in the order of the table.
    pub rows: Vec<Count>,
    /// Commands that no server has.
    pub unknown: usize,
    /// Calls whose answers were not compared.
    pub skipped: usize,
    /// Calls with spoilt arguments.
    pub spoilt: usize,
    /// Number of comparisons of all data, and of keys compared.
    pub states: (usize, usize),
    /// Mistakes that the proxy and the server reported in different words, with their numbers.
    pub otherwise: BTreeMap<(String, String), usize>,
    /// Whole SCANs, and the keys that they returned.
    pub scans: (usize, usize),
    /// Commands that waited, and were given what they waited for.
    pub waits: usize,
    /// First words of errors that were equal on both sides.
    pub errors: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, Default)]
pub struct Count {
    pub name: &'static str,
    pub calls: usize,
    /// Answers other than errors.
    pub fine: usize,
    /// Calls with keys on two servers or more.
    pub spread: usize,
    /// Calls refused for that reason.
    pub apart: usize,
    pub refused: usize,
    pub skip: Option<&'static str>,
}

impl Tally {
    pub fn new(rows: &[Row]) -> Tally {
        let count = |row: &Row| Count { name: row.name, skip: row.skip, ..Count::default() };
        Tally { rows: rows.iter().map(count).collect(), ..Tally::default() }
    }

    pub(super) fn note(&mut self, item: &Item, reply: Option<&Reply>) {
        self.commands += 1;
        self.spoilt += usize::from(item.spoilt);
        let Some(row) = item.row else { return self.unknown += 1 };
        let row = &mut self.rows[row];
        row.calls += 1;
        row.spread += usize::from(item.spread > 1);
        row.apart += usize::from(item.expect == Expect::Apart);
        row.refused += usize::from(is_refused(item.expect));
        self.skipped += usize::from(item.skip);
        match reply {
            Some(reply) if reply.is_error() => {
                let text = reply.error();
                let end = text.find([':', '\'']).unwrap_or(text.len()).min(60);
                *self.errors.entry(text.chars().take(end).collect()).or_default() += 1;
            }
            _ => row.fine += usize::from(item.expect == Expect::Same),
        }
    }

    pub(super) fn note_otherwise(&mut self, direct: &Reply, ours: &Reply) {
        let cut = |reply: &Reply| reply.error().chars().take(70).collect::<String>();
        *self.otherwise.entry((cut(direct), cut(ours))).or_default() += 1;
    }

    pub fn said_otherwise(&self) -> usize {
        self.otherwise.values().sum()
    }

    /// Returns rows with too little coverage.
    pub fn lacking(&self, rows: &[Row], calls: usize, spread: usize) -> Vec<String> {
        let mut lacking = Vec::new();
        let drawn = self.rows.iter().zip(rows).filter(|(_, row)| row.share > 0);
        for (count, row) in drawn {
            if count.calls < calls {
                lacking.push(format!("{}: {} calls", count.name, count.calls));
            }
            if row.many && row.fate != Fate::Refused && count.spread < spread {
                lacking.push(format!("{}: {} over two servers", count.name, count.spread));
            }
        }
        lacking
    }
}

fn is_refused(expect: Expect) -> bool {
    matches!(expect, Expect::ByName | Expect::InVain | Expect::Aborted | Expect::Discarded)
}

impl fmt::Display for Tally {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "{} commands in {} batches", self.commands, self.batches)?;
        writeln!(to, "row: calls, answered without an error, over two servers, refused for that")?;
        let served = self.rows.iter().filter(|row| row.refused < row.calls || row.calls == 0);
        for row in served {
            let Count { name, calls, fine, spread, apart, .. } = row;
            writeln!(to, "  {name}: {calls} {fine} {spread} {apart}")?;
        }
        let refused = self.rows.iter().filter(|row| row.refused > 0);
        let refused = refused.map(|row| format!("{} {}", row.name, row.refused));
        writeln!(to, "refused by name: {}", refused.collect::<Vec<_>>().join(", "))?;
        let errors = self.errors.iter().map(|(text, count)| format!("{text} {count}"));
        writeln!(to, "the same errors: {}", errors.collect::<Vec<_>>().join("; "))?;
        let skips = self.rows.iter().filter_map(|row| Some((row, row.skip?)));
        let skips = skips.map(|(row, why)| format!("{} {} ({why})", row.name, row.calls));
        writeln!(
            to,
            "not compared, {} in all: {}",
            self.skipped,
            skips.collect::<Vec<_>>().join(", ")
        )?;
        writeln!(to, "mistakes told in other words, {} in all:", self.said_otherwise())?;
        for ((direct, ours), count) in &self.otherwise {
            writeln!(to, "  {count} {direct:?}: {ours:?}")?;
        }
        writeln!(
            to,
            "waits: {}; spoilt on purpose: {}; unknown commands: {}; states compared: {} with {} \
             keys; whole scans: {} with {} keys",
            self.waits,
            self.spoilt,
            self.unknown,
            self.states.0,
            self.states.1,
            self.scans.0,
            self.scans.1
        )
    }
}
