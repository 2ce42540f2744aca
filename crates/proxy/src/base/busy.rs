//! What the servers are busy with. A server does one thing at a time, so one worker's slow command
//! keeps it silent for all workers. The worker that sent the command says so in the metrics
//! registry; every worker whose deadline is about to fire looks there before it blames the server.
//! A server may stand in several pools: then what it does for one of them counts for all.

use metrics::{Busy, Work};
use proto::Ask;

use super::slow::SlowWork;
use super::{Base, ServerAt};
use crate::Time;

/// A slow command that a server is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BusyWith {
    pub(crate) ask: Ask,
    /// When it was sent.
    pub(crate) since: Time,
}

impl Base {
    /// Says for this worker what a server is busy with: of its slow commands that the server has
    /// not answered, the one sent first.
    pub(crate) fn set_busy(&self, at: ServerAt, with: Option<BusyWith>) {
        let busy = with.map(|it| Busy { since_us: it.since.0, command: it.ask.command });
        self.server(at).counters.set_busy(busy);
    }

    /// Returns what a server has been busy with for longest, as any worker knows. A command that
    /// has had its time (`timeout_slow`) is no excuse any more.
    ///
    /// It reads a word of each worker, so it is for a deadline that is about to fire and not for
    /// each request.
    pub(crate) fn busy(&self, at: ServerAt) -> Option<BusyWith> {
        let slow = self.pool(at).plan.timeouts.slow;
        let not_before = (self.now.0 + 1).saturating_sub(slow);
        let same = self.server(at).plan.same_ids();
        let busy = same.filter_map(|id| self.metrics.busy(id, not_before)).min()?;
        let ask = Ask { command: busy.command };
        Some(BusyWith { ask, since: Time(busy.since_us) })
    }

    /// Tells all workers what has kept a server busy for long, before this worker says that it is
    /// over.
    #[cold]
    pub(crate) fn note_slow_work(&self, at: ServerAt, work: SlowWork) {
        let SlowWork { command, since, until } = work;
        let work = Work { since_us: since.0, until_us: until.0, command };
        self.metrics.set_work(self.server(at).plan.id, work);
    }

    /// Returns the slow command of any worker, over or not, that has kept a server busy for longest
    /// between two moments. It reads some words of each worker.
    #[cold]
    pub(crate) fn slow_work(&self, at: ServerAt, (from, to): (Time, Time)) -> Option<SlowWork> {
        let now = self.busy(at).map(|with| SlowWork {
            command: with.ask.command,
            since: with.since,
            until: self.now,
        });
        let registry = self.metrics.registry();
        let same = self.server(at).plan.same_ids();
        let over = same.flat_map(|id| registry.works(id)).map(|work| SlowWork {
            command: work.command,
            since: Time(work.since_us),
            until: Time(work.until_us),
        });
        let overlap = |work: &SlowWork| work.until.min(to).since(work.since.max(from));
        over.chain(now).max_by_key(overlap).filter(|work| overlap(work) > 0)
    }

    /// Returns when a server has last ended a slow command, of any worker, that was sent by then.
    #[cold]
    pub(crate) fn slow_work_end(&self, at: ServerAt, by: Time) -> Time {
        let registry = self.metrics.registry();
        let works = self.server(at).plan.same_ids().flat_map(|id| registry.works(id));
        let works = works.filter(|work| work.since_us <= by.0);
        works.map(|work| Time(work.until_us)).max().unwrap_or_default()
    }

    /// Returns a sentence for the client of a request that has come at that time and was not sent
    /// because of it; without the server's name.
    pub(crate) fn busy_words(&self, at: ServerAt, with: BusyWith, came: Time) -> String {
        let name = self.pool(at).plan.protocol.work_name(with.ask);
        let seconds = |since: Time| {
            let tenths = self.now.since(since) / 100_000;
            format!("{}.{} s", tenths / 10, tenths % 10)
        };
        let mut words = format!("busy with {name} for {}", seconds(with.since));
        if with.since > came && seconds(came) != seconds(with.since) {
            // Something else came first: others' work, or the server's silence.
            words += &format!(", after {} in the queue", seconds(came));
        }
        words + ", not sent"
    }
}

#[cfg(test)]
mod tests {
    use metrics::Registry;
    use proto::{Protocol, redis::Redis};

    use super::*;
    use crate::plan::{Plan, PoolPlan, ServerPlan};

    /// Makes the state of two workers with the same servers.
    fn two() -> [Base; 2] {
        let servers = || ["s0", "s1"].map(|name| ServerPlan::new(name, name, 1)).to_vec();
        let plan = Plan::new(vec![PoolPlan::new("pool", &Redis, servers())]);
        let registry = Registry::private(2, plan.rows());
        [0, 1].map(|slot| Base::new(plan.clone(), 1, Time(9), registry.metrics(slot)))
    }

    fn ask(name: &str) -> Ask {
        let place = Redis.commands().iter().position(|command| command.name == name);
        Ask { command: place.expect("a command") as u16 }
    }

    #[test]
    fn every_worker_knows_what_keeps_a_server_busy_until_that_has_had_its_time() {
        let [mut one, mut other] = two();
        let [at, elsewhere] = [0, 1].map(|server| ServerAt { pool: 0, server });
        assert_eq!(one.busy(at), None);
        let keys = BusyWith { ask: ask("keys"), since: Time(1_000_000) };
        let eval = BusyWith { ask: ask("eval"), since: Time(2_000_000) };
        one.set_busy(at, Some(keys));
        other.set_busy(at, Some(eval));
        for base in [&mut one, &mut other] {
            base.now = Time(2_250_000);
            assert_eq!((base.busy(at), base.busy(elsewhere)), (Some(keys), None));
            let words = "busy with KEYS for 1.2 s, not sent";
            for came in [1_000_000, 2_250_000] {
                assert_eq!(base.busy_words(at, keys, Time(came)), words);
            }
            let words = "busy with EVAL for 0.2 s, after 1.2 s in the queue, not sent";
            assert_eq!(base.busy_words(at, eval, Time(1_000_000)), words);
        }
        let slow = one.pools[0].plan.timeouts.slow;
        one.now = keys.since.after(slow - 1);
        assert_eq!(one.busy(at), Some(keys));
        one.now = keys.since.after(slow);
        assert_eq!(one.busy(at), Some(eval), "the other has still some time");
        other.set_busy(at, None);
        assert_eq!(one.busy(at), None);
    }

    #[test]
    fn every_worker_knows_what_has_kept_a_server_busy_for_longest() {
        let [mut one, other] = two();
        let [at, elsewhere] = [0, 1].map(|server| ServerAt { pool: 0, server });
        let times = (Time(2_000_000), Time(4_000_000));
        assert_eq!(one.slow_work(at, times), None);
        let work = |name: &str, since, until| {
            let command = ask(name).command;
            SlowWork { command, since: Time(since), until: Time(until) }
        };
        let keys = work("keys", 1_000_000, 2_500_000);
        let eval = work("eval", 2_500_000, 3_200_000);
        one.note_slow_work(at, keys);
        other.note_slow_work(at, eval);
        for base in [&one, &other] {
            assert_eq!(base.slow_work(at, times), Some(eval), "of any worker");
            assert_eq!(base.slow_work(at, (Time(1_500_000), times.1)), Some(keys));
            assert_eq!(base.slow_work(at, (Time(3_200_000), times.1)), None, "all was over");
            assert_eq!(base.slow_work(elsewhere, times), None);
        }
        // One that is not over lasts until now.
        let sort = BusyWith { ask: ask("sort"), since: Time(3_200_000) };
        other.set_busy(at, Some(sort));
        one.now = Time(4_000_000);
        let found = one.slow_work(at, times).map(|work| (work.command, work.until));
        assert_eq!(found, Some((sort.ask.command, one.now)));
    }
}
