//! The answers to what clients ask about clients: a line for each, or how many were closed.

use std::rc::Rc;
use std::time::Instant;

use proto::ClientLine;

use super::Master;
use super::clients::Asker;
use super::query::Gathered;
use crate::ipc::ToWorker;
use crate::ipc::query::{ClientRow, Query};

/// The client that asks is at this worker, which has given the question a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inquirer {
    pub slot: usize,
    /// The process there: another one has numbers of its own.
    pub process: u32,
    pub number: u64,
}

impl Master {
    /// A client of a worker asks about clients.
    pub(super) fn begin_inquiry(&mut self, slot: usize, number: u64, query: Query) {
        let Some(worker) = self.slots[slot].worker.as_ref() else { return };
        let from = Inquirer { slot, process: worker.pid(), number };
        self.begin_query(Asker::Client(from), query, Instant::now());
    }

    /// Gives a worker the answer to what its client asks.
    pub(super) fn answer_inquiry(&mut self, to: Inquirer, query: &Query, gathered: &Gathered) {
        let why = gathered.missing.first().map(|missing| {
            let (worker, why) = (missing.worker, missing.why);
            format!("worker {worker} of the proxy is missing: {why}")
        });
        let full = || "there are more clients than a list has room for".to_string();
        let why = why.or_else(|| (gathered.left_out > 0).then(full));
        let asker = query.filter().and_then(|filter| filter.asked.as_ref());
        let is_own = asker.is_some_and(|asked| gathered.clients.contains_key(&asked.asker));
        let lines = match query {
            Query::List { .. } if why.is_none() => lines(gathered.clients.values()),
            _ => Vec::new(),
        };
        self.tell_inquirer(to, (gathered.clients.len() as u64, is_own), &lines, why);
    }

    pub(super) fn refuse_inquiry(&mut self, to: Inquirer, why: &str) {
        self.tell_inquirer(to, (0, false), b"", Some(why.to_string()));
    }

    fn tell_inquirer(
        &mut self,
        to: Inquirer,
        (count, is_own): (u64, bool),
        lines: &[u8],
        why: Option<String>,
    ) {
        let worker = self.slots.get_mut(to.slot).and_then(|slot| slot.worker.as_mut());
        let Some(worker) = worker.filter(|worker| worker.pid() == to.process) else { return };
        let told = match sys::memory::sealed("quickack-answer", lines) {
            Ok(lines) => {
                let told = ToWorker::Told { number: to.number, count, is_own, why };
                worker.channel.send(told, &[Rc::new(lines)])
            }
            Err(error) => {
                let why = format!("the proxy has no memory for the answer: {error}");
                worker.channel.send(ToWorker::NotTold { number: to.number, why }, &[])
            }
        };
        // If it takes no messages, it has other troubles.
        let _ = told;
    }
}

/// Returns the lines of a list, in the order of the clients' numbers.
fn lines<'a>(clients: impl Iterator<Item = &'a ClientRow>) -> Vec<u8> {
    let protocol = proto::protocol("redis").expect("the table has it");
    let mut lines = Vec::new();
    for row in clients {
        let line = ClientLine {
            id: row.id,
            from: &row.address,
            to: &row.listener,
            descriptor: row.descriptor,
            name: &row.name,
            age_s: row.age_us / 1_000_000,
            idle_s: row.idle_us / 1_000_000,
            flags: &row.flags,
            database: row.database,
            queued: row.queued,
            topics: row.topics,
            input: row.input_bytes,
            output: row.held_bytes,
            command: None,
            user: row.user.as_deref().unwrap_or(""),
            proto_version: row.protocol_version,
            library: &row.library,
            library_version: &row.library_version,
            pool: &row.pool,
        };
        protocol.describe(&line, &mut lines);
    }
    lines
}
