//! The access log's rules: which requests have a line, and what came of them.

use metrics::SlowEntry;

use super::plan::PoolPlan;

/// One request in the access log: what the slow log says of a request, and more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLine {
    pub entry: SlowEntry,
    pub user: Option<String>,
    /// Bytes of the request, and of its answer.
    pub received: u64,
    pub sent: u64,
    pub outcome: Outcome,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered, and is no read of a value.
    Ok,
    /// Each of its keys had a value.
    Hit,
    /// None of its keys had a value.
    Miss,
    /// Some of its keys had a value.
    Partial,
    /// It was answered with an error, or some of its keys were.
    Error,
}

impl Outcome {
    pub const ALL: [Outcome; 5] =
        [Outcome::Ok, Outcome::Hit, Outcome::Miss, Outcome::Partial, Outcome::Error];

    /// The word for programs.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Hit => "hit",
            Outcome::Miss => "miss",
            Outcome::Partial => "partial",
            Outcome::Error => "error",
        }
    }
}

/// What is known of a request so far: a set of the following.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Results(u8);

impl Results {
    pub(crate) const HIT: Results = Results(1);
    pub(crate) const MISS: Results = Results(2);
    pub(crate) const ERROR: Results = Results(4);

    #[inline]
    pub(crate) fn add(&mut self, other: Results) {
        self.0 |= other.0;
    }

    pub(crate) fn outcome(self) -> Outcome {
        match (self.0 & 4, self.0 & 3) {
            (0, 0) => Outcome::Ok,
            (0, 1) => Outcome::Hit,
            (0, 2) => Outcome::Miss,
            (0, _) => Outcome::Partial,
            _ => Outcome::Error,
        }
    }
}

/// What an answer needs when it leaves, if its request has a line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccessNote {
    /// The request has a line.
    pub(crate) is_logged: bool,
    pub(crate) results: Results,
    /// Bytes of the request, and its keys.
    pub(crate) received: u64,
    pub(crate) keys: u32,
}

impl PoolPlan {
    /// Whether its requests have lines in the access log.
    pub(crate) fn logs_access(&self) -> bool {
        self.access_one_in > 0
    }

    /// Whether its requests keep what only a log of them needs.
    pub(crate) fn is_watched(&self) -> bool {
        self.logs_slow() || self.logs_access()
    }
}

/// Chooses the requests that have a line: one in so many, beginning with the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccessSampling {
    /// Requests without one that are still to come.
    left: u32,
}

impl AccessSampling {
    /// Whether the next request has a line, of one in so many.
    #[inline]
    pub(crate) fn pick(&mut self, one_in: u32) -> bool {
        if one_in == 0 {
            return false;
        }
        // The number may have become smaller.
        let left = self.left.min(one_in - 1);
        self.left = if left == 0 { one_in - 1 } else { left - 1 };
        left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_has_a_line() {
        let mut sampling = AccessSampling::default();
        let mut pick = |one_in, count: usize| (0..count).filter(|_| sampling.pick(one_in)).count();
        assert_eq!([pick(1, 10), pick(0, 10), pick(10, 100)], [10, 0, 10]);
        assert_eq!(pick(1_000_000, 1), 1);
        assert_eq!(pick(2, 100), 50, "another number holds at once");
    }

    #[test]
    fn an_error_counts_before_hits_and_misses() {
        let of = |all: &[Results]| {
            let mut results = Results::default();
            all.iter().for_each(|one| results.add(*one));
            results.outcome().name()
        };
        let (hit, miss, error) = (Results::HIT, Results::MISS, Results::ERROR);
        let told = [of(&[]), of(&[hit]), of(&[miss]), of(&[hit, miss]), of(&[hit, error])];
        assert_eq!(told, ["ok", "hit", "miss", "partial", "error"]);
        assert!(Outcome::ALL.map(Outcome::name).iter().all(|name| !name.contains(' ')));
    }
}
