//! What goes wrong: the counters that stay 0 as long as all is well, with what they mean.

use std::collections::{BTreeMap, VecDeque};

use metrics::{Counter, PoolCounter, ServerCounter, TenantCounter, WorkerCounter};
use serde_json::Value;

use super::figures::{list, number, word};

const OF_ALL: &[WorkerCounter] = &[
    WorkerCounter::ClientsLost,
    WorkerCounter::ClientsUnfinished,
    WorkerCounter::AcceptsRefused,
    WorkerCounter::HeadersBroken,
    WorkerCounter::ConnectsWaited,
    WorkerCounter::AccessLinesLost,
];
const OF_POOL: &[PoolCounter] = &[
    PoolCounter::ClientsRefused,
    PoolCounter::LoginsFailed,
    PoolCounter::LoginsDelayed,
    PoolCounter::LoginsRefused,
    PoolCounter::CutOff,
    PoolCounter::SubscribersSlow,
    PoolCounter::SubscribersLost,
];
const OF_SERVER: &[ServerCounter] = &[
    ServerCounter::RefusedDown,
    ServerCounter::RefusedMaint,
    ServerCounter::ConnectFailed,
    ServerCounter::ConnectUnable,
    ServerCounter::LinkLost,
    ServerCounter::ReplyTimeout,
    ServerCounter::QueueTimeout,
    ServerCounter::QueueFull,
    ServerCounter::Held,
    ServerCounter::RepliesDripped,
    ServerCounter::LoginRefused,
    ServerCounter::SetupRefused,
    ServerCounter::Poisoned,
    ServerCounter::OutOfMemory,
    ServerCounter::Ejections,
    ServerCounter::SubscriptionsLost,
];
const OF_TENANT: &[TenantCounter] = &[
    TenantCounter::ClientsRefused,
    TenantCounter::Denied,
    TenantCounter::Delayed,
    TenantCounter::Over,
];

/// A counter that is not 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Whose counter it is; empty for the proxy's.
    pub place: String,
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    pub since_start: u64,
    /// What was added in the last seconds; None before there is an earlier answer.
    pub lately: Option<u64>,
}

/// Takes them out of the statistics.
pub fn all(all: &Value) -> Result<Vec<Trouble>, String> {
    let mut found = Vec::new();
    note(&all["totals"], OF_ALL, "", &mut found)?;
    for pool in list(all, "pools")? {
        let name = word(pool, "name")?;
        note(pool, OF_POOL, &name, &mut found)?;
        for server in list(pool, "servers")? {
            let place = format!("{name}/{}", word(server, "label")?);
            note(server, OF_SERVER, &place, &mut found)?;
        }
    }
    for tenant in list(all, "tenants")? {
        note(tenant, OF_TENANT, &format!("tenant {}", word(tenant, "name")?), &mut found)?;
    }
    Ok(found)
}

fn note<C: Counter>(
    one: &Value,
    counters: &[C],
    place: &str,
    found: &mut Vec<Trouble>,
) -> Result<(), String> {
    for counter in counters {
        let row = counter.metric();
        let since_start = number(one, row.name)?;
        if since_start > 0 {
            let (place, help) = (place.to_string(), row.help.trim_end_matches('.'));
            found.push(Trouble { place, name: row.name, help, since_start, lately: None });
        }
    }
    Ok(())
}

/// The counters of the last seconds, to tell new troubles from old ones.
#[derive(Default)]
pub struct Earlier(VecDeque<BTreeMap<(String, &'static str), u64>>);

impl Earlier {
    /// Fills in `lately`, and puts those first that go on. It is called once for each answer.
    pub fn compare(&mut self, troubles: &mut [Trouble]) {
        let key = |one: &Trouble| (one.place.clone(), one.name);
        let now = troubles.iter().map(|one| (key(one), one.since_start)).collect();
        if let Some(then) = self.0.front() {
            for one in troubles.iter_mut() {
                let before = then.get(&key(one)).copied().unwrap_or(0);
                one.lately = Some(one.since_start.saturating_sub(before));
            }
            troubles.sort_by_key(|one| std::cmp::Reverse(one.lately));
        }
        self.0.push_back(now);
        if self.0.len() > LATELY {
            self.0.pop_front();
        }
    }
}

/// Answers that `lately` looks back; there is one each second.
pub const LATELY: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(place: &str, since_start: u64) -> Trouble {
        let place = place.to_string();
        Trouble { place, name: "held", help: "Held", since_start, lately: None }
    }

    #[test]
    fn what_goes_on_comes_first_and_what_is_over_is_forgotten() {
        let mut earlier = Earlier::default();
        let mut first = [trouble("old", 500), trouble("new", 1)];
        earlier.compare(&mut first);
        assert_eq!(first.each_ref().map(|one| one.lately), [None, None]);
        let mut second = [trouble("old", 500), trouble("new", 4)];
        earlier.compare(&mut second);
        let told = second.each_ref().map(|one| (one.place.as_str(), one.lately));
        assert_eq!(told, [("new", Some(3)), ("old", Some(0))]);
        for _ in 0..LATELY {
            earlier.compare(&mut [trouble("new", 4)]);
        }
        let mut last = [trouble("new", 4)];
        earlier.compare(&mut last);
        assert_eq!(last[0].lately, Some(0));
    }

    #[test]
    fn every_counter_is_a_total_with_a_sentence() {
        let names = [
            OF_ALL.iter().map(|one| one.metric()).collect::<Vec<_>>(),
            OF_POOL.iter().map(|one| one.metric()).collect(),
            OF_SERVER.iter().map(|one| one.metric()).collect(),
            OF_TENANT.iter().map(|one| one.metric()).collect(),
        ];
        for row in names.concat() {
            assert!(row.name.ends_with("_total") && row.help.len() < 100, "{}", row.name);
        }
    }
}
