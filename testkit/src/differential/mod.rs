//! The differential tests: one engine, which sends the same random requests to a real server and
//! through quickack. The answers must be the same, or differ as a table permits.
//!
//! ```text
//!              ┌──▶ the server                  its answers are right
//!   a batch ───┼──▶ quickack ──▶ servers   ┐
//!              └──▶ quickack ──▶ others    ┴── the same answers
//!
//!   memcached/   its requests, three kinds of servers behind, the permitted differences
//!   redis/       the whole table of commands, the predicted refusals, a comparison of all data
//!   exchange.rs  connections that are used at once, in segments that were drawn
//! ```
//!
//! A failure is described by the request, both answers, and the last requests about its keys.

mod exchange;
pub mod memcached;
pub mod redis;

use std::collections::{BTreeMap, VecDeque};

/// A protocol's part of the test.
trait Subject {
    /// Requests that are sent together.
    type Batch;
    type Answers;

    /// The number of requests so far.
    fn asked(&self) -> usize;

    fn draw(&mut self) -> Self::Batch;

    /// Returns a side's answers; side 0 is the server whose answers are right.
    fn ask(&mut self, side: usize, batch: &Self::Batch) -> Result<Self::Answers, String>;

    /// Learns from the right answers.
    fn note(&mut self, batch: &Self::Batch, direct: &Self::Answers);

    /// Returns an error that describes the first difference.
    fn compare(
        &mut self,
        side: usize,
        batch: &Self::Batch,
        direct: &Self::Answers,
        ours: &Self::Answers,
    ) -> Result<(), String>;

    /// Makes the data of all sides equal again after that batch, or checks that they are.
    fn settle(&mut self, batch: &Self::Batch) -> Result<(), String>;
}

/// Sends that many requests to the server and to the `others`.
fn run(
    subject: &mut impl Subject,
    seed: u64,
    requests: usize,
    others: usize,
) -> Result<(), String> {
    let mut turn = || {
        let batch = subject.draw();
        let direct = subject.ask(0, &batch)?;
        subject.note(&batch, &direct);
        for side in 1..=others {
            let ours = subject.ask(side, &batch)?;
            subject.compare(side, &batch, &direct, &ours)?;
        }
        subject.settle(&batch)?;
        Ok(subject.asked())
    };
    let mut asked = 0;
    while asked < requests {
        asked = turn().map_err(|what: String| format!("seed {seed}: {what}"))?;
    }
    Ok(())
}

/// The last requests about each key, to explain a difference.
#[derive(Default)]
struct History<K> {
    lines: BTreeMap<K, VecDeque<String>>,
}

impl<K: Ord + Clone> History<K> {
    fn note(&mut self, key: &K, line: String) {
        let past = self.lines.entry(key.clone()).or_default();
        past.push_back(line);
        if past.len() > PAST {
            past.pop_front();
        }
    }

    fn of<'k>(&self, keys: impl IntoIterator<Item = &'k K>) -> String
    where
        K: 'k,
    {
        let past = keys.into_iter().filter_map(|key| self.lines.get(key)).flatten();
        past.map(|line| format!("    {line}\n")).collect()
    }
}

/// Requests remembered for each key.
const PAST: usize = 12;

/// Describes a difference: its circumstances, the request, both answers, and what came before.
fn report(what: &str, asked: &str, [direct, ours]: [String; 2], past: &str, rest: &str) -> String {
    format!(
        "{what}\n  asked:    {asked}\n  server:   {direct}\n  quickack: {ours}\n  lately about its \
         keys (the whole batch counts, also what comes after):\n{past}{rest}"
    )
}
