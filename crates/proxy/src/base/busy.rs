//! What the servers are busy with. A server does one thing at a time, so one worker's slow command
//! keeps it silent for all workers. The worker that sent the command says so in the metrics
//! registry; every worker whose deadline is about to fire looks there before it blames the server.

use metrics::Busy;
use proto::Ask;

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
        let busy = self.metrics.busy(self.server(at).plan.id, not_before)?;
        let ask = Ask { command: busy.command };
        Some(BusyWith { ask, since: Time(busy.since_us) })
    }

    /// Returns a sentence for the client of a request that was not sent because of it; without the
    /// server's name.
    pub(crate) fn busy_words(&self, at: ServerAt, with: BusyWith) -> String {
        let name = self.pool(at).plan.protocol.work_name(with.ask);
        let tenths = self.now.since(with.since) / 100_000;
        format!("busy with {name} for {}.{} s, not sent", tenths / 10, tenths % 10)
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
            assert_eq!(base.busy_words(at, keys), "busy with KEYS for 1.2 s, not sent");
        }
        let slow = one.pools[0].plan.timeouts.slow;
        one.now = keys.since.after(slow - 1);
        assert_eq!(one.busy(at), Some(keys));
        one.now = keys.since.after(slow);
        assert_eq!(one.busy(at), Some(eval), "the other has still some time");
        other.set_busy(at, None);
        assert_eq!(one.busy(at), None);
    }
}
