//! The simulator's assertions about a queue are derived from this.

use super::{ClientQueue, FairQueue};
use crate::base::id::ConnId;
use crate::server::waiting::Waiting;

impl FairQueue {
    /// Lists the clients that wait for their turn: how often each stood aside, and the cost that it
    /// was granted so far.
    pub(in crate::server) fn grants(&self) -> impl Iterator<Item = (ConnId, u32, i64)> {
        let served = |at: u32| &self.queues[at as usize];
        let waiting = self.order.iter().map(served).filter(|queue| !queue.waiting.is_empty());
        waiting.map(|queue| (queue.client, queue.breaks, queue.served as i64 + queue.balance))
    }

    /// Returns the most that one client may have served before its debts begin.
    pub(in crate::server) fn largest_balance(&self) -> i64 {
        self.by_client.values().map(|at| self.queues[*at as usize].balance).max().unwrap_or(0)
    }

    /// Returns the most that waits of one client, but for its last request.
    pub(in crate::server) fn longest(&self) -> usize {
        let before = |queue: &ClientQueue| {
            let last = queue.waiting.back().map(|last| last.last().request);
            queue.waiting.iter().map(|one| one.len_without(last)).sum()
        };
        self.queues.iter().map(before).max().unwrap_or(0)
    }

    /// Returns the most bytes of reads that wait of one client, but for its last two messages.
    pub(in crate::server) fn largest(&self) -> usize {
        let before = |queue: &ClientQueue| {
            let reads = queue.waiting.iter().rev().skip(2).filter(|one| !one.is_update);
            reads.map(Waiting::bytes).sum()
        };
        self.queues.iter().map(before).max().unwrap_or(0)
    }
}
