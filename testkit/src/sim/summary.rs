//! Counts of events in a run. A simulator that never meets a fault proves nothing, so its test
//! checks the sums.

use proxy::fault::FAULTS;

#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub steps: u64,
    pub requests: u64,
    pub replies: u64,
    pub hits: u64,
    pub misses: u64,
    pub updates: u64,
    /// Requests that a server without meta could not get.
    pub refused_forms: u64,
    /// Answers to Redis clients, and errors about keys on different servers.
    pub redis: u64,
    pub apart: u64,
    /// Transactions that were executed.
    pub transactions: u64,
    /// Transactions that were not executed, since what was watched may have changed.
    pub unexecuted: u64,
    /// Error lines that were explained.
    pub errors: u64,
    pub pauses: u64,
    /// Changes that clients asked for again on another connection.
    pub repeats: u64,
    pub refused_clients: u64,
    /// Clients that filled their share of a link's queue, and clients that closed their half or
    /// left while requests of theirs waited for links.
    pub full_shares: u64,
    pub half_waiting: u64,
    pub left_waiting: u64,
    /// Clients closed in the middle of a value.
    pub cut_off: u64,
    /// Clients closed because they had written too much and read nothing, and for the memory that
    /// they held.
    pub unread: [u64; 2],
    pub ejections: u64,
    /// Plans installed, including the same ones again.
    pub installs: u64,
    /// Updates executed although their client's link was gone.
    pub orphans: u64,
    /// Logins that were looked at, and logins that waited for their turn.
    pub logins: u64,
    pub logins_delayed: u64,
    /// Requests of tenants, and those that waited for a limit.
    pub tenants: u64,
    pub tenants_delayed: u64,
    /// Error lines, by the fault that they name.
    pub faults: [u64; FAULTS_COUNT],
}

const FAULTS_COUNT: usize = FAULTS.len();

impl Summary {
    pub fn add(&mut self, other: &Summary) {
        self.steps += other.steps;
        self.requests += other.requests;
        self.replies += other.replies;
        self.hits += other.hits;
        self.misses += other.misses;
        self.updates += other.updates;
        self.refused_forms += other.refused_forms;
        self.redis += other.redis;
        self.apart += other.apart;
        self.transactions += other.transactions;
        self.unexecuted += other.unexecuted;
        self.errors += other.errors;
        self.pauses += other.pauses;
        self.repeats += other.repeats;
        self.refused_clients += other.refused_clients;
        self.full_shares += other.full_shares;
        self.half_waiting += other.half_waiting;
        self.left_waiting += other.left_waiting;
        self.cut_off += other.cut_off;
        (0..2).for_each(|at| self.unread[at] += other.unread[at]);
        self.ejections += other.ejections;
        self.installs += other.installs;
        self.orphans += other.orphans;
        self.logins += other.logins;
        self.logins_delayed += other.logins_delayed;
        self.tenants += other.tenants;
        self.tenants_delayed += other.tenants_delayed;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, one)| *sum += one);
    }

    /// Returns the faults by name, each with the number of answers that named it.
    pub fn by_fault(&self) -> impl Iterator<Item = (String, u64)> {
        FAULTS.iter().zip(self.faults).map(|(number, count)| (format!("{:?}", number.fault), count))
    }
}
