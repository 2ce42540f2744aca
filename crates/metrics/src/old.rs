//! Counters of one process alone, until the data plane has taken up the book.

use crate::{Counter, Pool, Server};

#[derive(Clone, Debug)]
pub struct Local<const N: usize>([u64; N]);

impl<const N: usize> Local<N> {
    pub fn add<C: Counter + Into<usize>>(&mut self, row: C, amount: u64) {
        self.0[row.into()] += amount;
    }

    pub fn subtract<C: Counter + Into<usize>>(&mut self, row: C, amount: u64) {
        let at: usize = row.into();
        assert!(self.0[at] >= amount, "a count of things that exist cannot fall below zero");
        self.0[at] -= amount;
    }

    pub fn values(&self) -> &[u64; N] {
        &self.0
    }
}

impl<const N: usize> Default for Local<N> {
    fn default() -> Self {
        Local([0; N])
    }
}

impl From<Pool> for usize {
    fn from(row: Pool) -> usize {
        row as usize
    }
}

impl From<Server> for usize {
    fn from(row: Server) -> usize {
        row as usize
    }
}

pub type PoolCounters = Local<{ Pool::ALL.len() }>;
pub type ServerCounters = Local<{ Server::ALL.len() }>;
