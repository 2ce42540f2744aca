//! Questions to all workers: each is asked once, and answered with what has come until its
//! deadline. A worker that has not answered by then, or has died, is named in the answer.
//!
//! ```text
//!   ask ─▶ waiting ─▶ running: rows of worker 0, 1, … ─▶ all have answered, died, or the deadline
//!            │ full                                        └─▶ Gathered, to who has asked
//!            ▼ refused
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Master;
use super::clients::Asker;
use super::workers::State;
use crate::error::{Error, Peer};
use crate::event::Rows;
use crate::ipc::ToWorker;
use crate::ipc::query::{ClientRow, InPiecesRow, Query};
use crate::log::Clocks;

/// The questions that are being answered, and those that wait.
#[derive(Default)]
pub struct Queries {
    running: Vec<Running>,
    waiting: VecDeque<(Asker, Query)>,
    /// The number of the last question.
    number: u64,
}

struct Running {
    number: u64,
    asker: Asker,
    query: Query,
    deadline: Instant,
    /// The workers that have not answered yet.
    open: BTreeSet<usize>,
    gathered: Gathered,
    /// Bytes of rows so far.
    len: usize,
}

/// The answer.
#[derive(Debug, Default)]
pub struct Gathered {
    /// By their numbers: a client that goes from one worker to another may be told of by both.
    pub clients: BTreeMap<u64, ClientRow>,
    pub in_pieces: Vec<InPiecesRow>,
    /// Rows that there was no room for.
    pub left_out: u64,
    pub missing: Vec<Missing>,
}

/// A worker whose answer is missing, or not whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub worker: usize,
    pub why: &'static str,
}

impl Queries {
    /// When the next deadline is.
    pub fn due(&self) -> Option<Instant> {
        self.running.iter().map(|one| one.deadline).min()
    }

    fn find(&mut self, number: u64) -> Option<&mut Running> {
        self.running.iter_mut().find(|one| one.number == number)
    }

    /// Takes out the questions that all workers have answered, or whose time is over.
    fn take_finished(&mut self, now: Instant) -> Vec<Running> {
        self.running
            .extract_if(.., |one| one.open.is_empty() || one.deadline <= now)
            .map(|mut one| {
                let why = "it did not answer in time";
                let late = std::mem::take(&mut one.open).into_iter();
                one.gathered.missing.extend(late.map(|worker| Missing { worker, why }));
                one
            })
            .collect()
    }
}

impl Running {
    fn add(&mut self, worker: usize, rows: Rows) {
        let Rows { clients, in_pieces, left_out, is_last, .. } = rows;
        self.gathered.left_out += left_out;
        for row in clients {
            if self.len + row.size() > GATHERED_LEN_MAX {
                self.gathered.left_out += 1;
                continue;
            }
            self.len += row.size();
            self.gathered.clients.insert(row.id, ClientRow { worker, ..row });
        }
        for row in in_pieces {
            match self.gathered.in_pieces.iter_mut().find(|it| it.address == row.address) {
                Some(same) => {
                    same.count += row.count;
                    same.over += row.over;
                    same.late += row.late;
                    same.late_us += row.late_us;
                    same.latest_us = same.latest_us.max(row.latest_us);
                    same.ago_us = same.ago_us.min(row.ago_us);
                }
                None => self.gathered.in_pieces.push(row),
            }
        }
        if is_last {
            self.open.remove(&worker);
        }
    }
}

impl Master {
    /// Asks all workers, or has the question wait for those before it.
    pub(super) fn begin_query(&mut self, asker: Asker, query: Query, now: Instant) {
        // A worker asks one thing at a time for its clients, so those are few.
        let is_operators = |asker: &Asker| !matches!(asker, Asker::Client(_));
        let waiting = self.queries.waiting.iter().filter(|(asker, _)| is_operators(asker));
        if is_operators(&asker) && waiting.count() >= WAITING_MAX {
            let why = "too many questions are being answered; ask again in a moment";
            return self.refuse_query(&asker, why);
        }
        self.queries.waiting.push_back((asker, query));
        self.tend_queries(now);
    }

    /// Answers the questions whose time has come, and asks those that there is room for.
    pub(super) fn tend_queries(&mut self, now: Instant) {
        for Running { asker, query, mut gathered, .. } in self.queries.take_finished(now) {
            gathered.in_pieces.sort_by_key(|row| std::cmp::Reverse(row.count));
            gathered.missing.sort_by_key(|missing| missing.worker);
            self.answer_query(asker, &query, gathered);
        }
        while self.queries.running.len() < RUNNING_MAX
            && let Some((asker, query)) = self.queries.waiting.pop_front()
        {
            self.send_query(asker, query, now);
        }
    }

    fn send_query(&mut self, asker: Asker, query: Query, now: Instant) {
        self.queries.number += 1;
        let number = self.queries.number;
        let within = if query.is_recent() { RECENT_PATIENCE } else { PATIENCE };
        let until_us = Clocks::read().clock_us + within.as_micros() as u64;
        let (mut open, mut missing) = (BTreeSet::new(), Vec::new());
        for slot in &mut self.slots {
            let Some(worker) = slot.worker.as_mut() else { continue };
            let why = match worker.state {
                // It has no clients.
                State::Starting => continue,
                State::Hung => Some("it is hung"),
                State::Serving | State::Leaving if worker.unanswered.len() >= UNANSWERED_MAX => {
                    Some("it has not answered earlier questions")
                }
                State::Serving | State::Leaving => {
                    let ask = ToWorker::Query { number, until_us, query: query.clone() };
                    match worker.channel.send(ask, &[]) {
                        Ok(_) => None,
                        // Its end is found in a moment.
                        Err(Error::Peer(Peer::Closed)) => Some(ENDED),
                        Err(_) => Some("it takes no messages"),
                    }
                }
            };
            match why {
                None => {
                    worker.unanswered.insert(number);
                    open.insert(slot.number);
                }
                Some(why) => missing.push(Missing { worker: slot.number, why }),
            }
        }
        let gathered = Gathered { missing, ..Gathered::default() };
        let deadline = now + within;
        let running = Running { number, asker, query, deadline, open, gathered, len: 0 };
        self.queries.running.push(running);
    }

    /// Takes a part of a worker's answer. That to a question whose time was over is dropped.
    pub(super) fn note_rows(&mut self, slot: usize, rows: Rows) {
        let (number, is_last) = (rows.number, rows.is_last);
        let Some(worker) = self.slots[slot].worker.as_mut() else { return };
        if is_last {
            worker.unanswered.remove(&number);
        }
        if let Some(running) = self.queries.find(number)
            && running.open.contains(&slot)
        {
            running.add(slot, rows);
        }
    }

    /// A worker has ended. What it has answered already holds no more: its clients have gone.
    pub(super) fn note_query_death(&mut self, slot: usize) {
        for running in &mut self.queries.running {
            running.gathered.clients.retain(|_, row| row.worker != slot || running.query.is_kill());
            if running.open.remove(&slot) {
                running.gathered.missing.push(Missing { worker: slot, why: ENDED });
            }
        }
    }
}

const ENDED: &str = "it ended while it was asked";
/// How long workers may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same if they have to look twice, a second apart.
const RECENT_PATIENCE: Duration = Duration::from_millis(3_500);
/// Questions that are asked at a time, and that wait.
const RUNNING_MAX: usize = 4;
const WAITING_MAX: usize = 16;
/// A worker that has not answered so many is asked no more until it does.
const UNANSWERED_MAX: usize = 8;
/// Bytes of rows that are gathered for one question.
const GATHERED_LEN_MAX: usize = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn running(open: &[usize]) -> Running {
        Running {
            number: 1,
            asker: Asker::Http,
            query: Query::InPieces {},
            deadline: Instant::now() + PATIENCE,
            open: open.iter().copied().collect(),
            gathered: Gathered::default(),
            len: 0,
        }
    }

    fn client(id: u64) -> ClientRow {
        ClientRow { id, ..ClientRow::default() }
    }

    #[test]
    fn an_answer_is_whole_when_every_worker_has_sent_its_last_rows() {
        let mut queries = Queries { running: vec![running(&[0, 3])], ..Queries::default() };
        let now = Instant::now();
        let rows = |ids: &[u64], is_last| {
            let clients = ids.iter().map(|id| client(*id)).collect();
            Rows { number: 1, clients, is_last, ..Rows::default() }
        };
        queries.find(1).unwrap().add(0, rows(&[5, 6], false));
        queries.find(1).unwrap().add(3, rows(&[7, 5], true));
        assert!(queries.take_finished(now).is_empty() && queries.find(2).is_none());
        queries.find(1).unwrap().add(0, rows(&[], true));
        let gathered = queries.take_finished(now).remove(0).gathered;
        let found: Vec<(u64, usize)> =
            gathered.clients.values().map(|row| (row.id, row.worker)).collect();
        assert_eq!(found, [(5, 3), (6, 0), (7, 3)]);
        assert_eq!((gathered.missing.len(), queries.due()), (0, None));
    }

    #[test]
    fn a_worker_that_is_late_is_named() {
        let mut queries = Queries { running: vec![running(&[2])], ..Queries::default() };
        let late = queries.due().unwrap();
        assert!(queries.take_finished(late - Duration::from_millis(1)).is_empty());
        let gathered = queries.take_finished(late).remove(0).gathered;
        assert_eq!(gathered.missing, [Missing { worker: 2, why: "it did not answer in time" }]);
    }

    #[test]
    fn what_is_gathered_is_bounded() {
        let mut running = running(&[0]);
        let name = "x".repeat(1 << 20);
        for id in 0..40 {
            let row = ClientRow { name: name.clone(), ..client(id) };
            running.add(0, Rows { clients: vec![row], ..Rows::default() });
        }
        assert_eq!((running.gathered.clients.len(), running.gathered.left_out), (31, 9));
    }

    #[test]
    fn the_counts_of_an_address_are_added_up_over_the_workers() {
        let mut running = running(&[0, 1]);
        let row = |count, latest_us, ago_us| InPiecesRow {
            address: "192.0.2.1".parse().unwrap(),
            count,
            over: 1,
            late: 1,
            late_us: 10,
            latest_us,
            ago_us,
        };
        for (worker, row) in [(0, row(3, 7, 90)), (1, row(4, 5, 80))] {
            running.add(worker, Rows { in_pieces: vec![row], ..Rows::default() });
        }
        let wanted = InPiecesRow { over: 2, late: 2, late_us: 20, ..row(7, 7, 80) };
        assert_eq!(running.gathered.in_pieces, [wanted]);
    }
}
