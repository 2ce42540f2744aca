//! The ids of pools, servers and tenants. Master and workers know each by one number, taken from
//! one range for all: it finds its counters and its health bit, and stands for it in
//! messages. An id stays over reloads as long as the thing is the same: a pool of one name and
//! protocol; a server of one pool, ring name and address; a tenant of one name.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Config;
use crate::error::Error;
use crate::ipc::installation::PoolIds;

/// The ids in use. Cloned for a change, which may be cancelled.
#[derive(Clone, Debug)]
pub struct Ids {
    pools: BTreeMap<String, u32>,
    servers: BTreeMap<[String; 3], u32>,
    tenants: BTreeMap<String, u32>,
    /// They have left the configuration, and requests of theirs are still being answered.
    leaving: BTreeSet<u32>,
    free: BTreeSet<u32>,
    /// Ids from here on have never been used.
    next: u32,
    max: u32,
}

impl Ids {
    /// For a scoreboard of `max` ids; id 0 is the workers' own.
    pub fn new(max: usize) -> Ids {
        Ids {
            pools: BTreeMap::new(),
            servers: BTreeMap::new(),
            tenants: BTreeMap::new(),
            leaving: BTreeSet::new(),
            free: BTreeSet::new(),
            next: 1,
            max: max as u32,
        }
    }

    /// Ids for everything in `config`. Those of things that are not in it any more are leaving.
    /// `addresses`: of the hosts that are written as names.
    pub fn assign(
        &mut self,
        config: &Config,
        addresses: &BTreeMap<String, String>,
    ) -> Result<Vec<PoolIds>, Error> {
        let old_pools = std::mem::take(&mut self.pools);
        let old_servers = std::mem::take(&mut self.servers);
        let old_tenants = std::mem::take(&mut self.tenants);
        let mut ids = Vec::new();
        for (plan, upstream) in config.plan.pools.iter().zip(&config.upstreams) {
            let name = format!("{} {}", plan.protocol.name(), plan.name);
            let pool = self.keep_or_take(old_pools.get(&name))?;
            self.pools.insert(name.clone(), pool);
            let mut servers = Vec::new();
            for (server, address) in plan.servers.iter().zip(&upstream.servers) {
                let written = address.to_string();
                let address = addresses.get(&written).cloned().unwrap_or(written);
                let key = [name.clone(), server.name.clone(), address];
                let id = self.keep_or_take(old_servers.get(&key))?;
                self.servers.insert(key, id);
                servers.push(id);
            }
            ids.push(PoolIds { pool, servers });
        }
        for tenant in &config.plan.tenants {
            let id = self.keep_or_take(old_tenants.get(&tenant.name))?;
            self.tenants.insert(tenant.name.clone(), id);
        }
        let of_tenants: BTreeSet<u32> = self.tenants.values().copied().collect();
        let kept = |id: &u32| {
            let of_pools = ids.iter().any(|of| of.pool == *id || of.servers.contains(id));
            of_pools || of_tenants.contains(id)
        };
        let gone: Vec<u32> = old_pools
            .into_values()
            .chain(old_servers.into_values())
            .chain(old_tenants.into_values())
            .filter(|id| !kept(id))
            .collect();
        self.leaving.extend(gone);
        Ok(ids)
    }

    /// Returns the ids of tenants, in the order of the plan.
    pub fn tenants(&self, config: &Config) -> Vec<u32> {
        config.plan.tenants.iter().map(|tenant| self.tenants[&tenant.name]).collect()
    }

    pub fn is_anything_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether a pool or server has left the configuration and may still have requests to answer.
    pub fn is_leaving(&self, id: u32) -> bool {
        self.leaving.contains(&id)
    }

    /// Ids that have ever been given.
    pub fn used(&self) -> usize {
        self.next as usize
    }

    fn keep_or_take(&mut self, old: Option<&u32>) -> Result<u32, Error> {
        if let Some(id) = old {
            return Ok(*id);
        }
        if let Some(id) = self.free.pop_first() {
            return Ok(id);
        }
        if self.next == self.max {
            return Err(Error::Config(format!(
                "this process reserved room for {} pools and servers when it started; restart it \
                 to have more",
                self.max - 1
            )));
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Makes ids free that no worker uses any more. The caller wipes their counters.
    pub fn release(&mut self, in_use: &BTreeSet<u32>) -> Vec<u32> {
        let done: Vec<u32> = self.leaving.difference(in_use).copied().collect();
        for id in &done {
            self.leaving.remove(id);
            self.free.insert(*id);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign(ids: &mut Ids, config: &Config) -> Result<Vec<PoolIds>, Error> {
        ids.assign(config, &BTreeMap::new())
    }

    fn config(servers: &str) -> Config {
        let text = format!("alpha:\n  listen: 127.0.0.1:0\n  servers: [{servers}]\n");
        crate::config::compile("test", &text, &[]).config.unwrap()
    }

    #[test]
    fn a_server_keeps_its_id_and_a_freed_id_is_used_again() {
        let mut ids = Ids::new(5);
        let first = assign(&mut ids, &config("a:1:1, b:1:1, c:1:1")).unwrap();
        assert_eq!(first[0], PoolIds { pool: 1, servers: vec![2, 3, 4] });
        let second = assign(&mut ids, &config("c:1:1, a:1:1")).unwrap();
        assert_eq!(second[0], PoolIds { pool: 1, servers: vec![4, 2] });
        assert!(
            assign(&mut ids.clone(), &config("a:1:1, b:1:1, c:1:1")).is_err(),
            "3 is still in use"
        );
        assert!(ids.release(&BTreeSet::from([3])).is_empty());
        assert_eq!(ids.release(&BTreeSet::new()), [3]);
        let third = assign(&mut ids, &config("d:1:1")).unwrap();
        assert_eq!(third[0], PoolIds { pool: 1, servers: vec![3] });
    }

    #[test]
    fn a_host_that_has_moved_is_another_server() {
        let mut ids = Ids::new(10);
        let at = |address: &str| BTreeMap::from([("a:1".to_string(), address.to_string())]);
        let config = config("a:1:1 one");
        assert_eq!(ids.assign(&config, &at("10.0.0.1:1")).unwrap()[0].servers, [2]);
        assert_eq!(ids.assign(&config, &at("10.0.0.1:1")).unwrap()[0].servers, [2]);
        assert_eq!(ids.assign(&config, &at("10.0.0.2:1")).unwrap()[0].servers, [3]);
    }

    #[test]
    fn a_server_at_another_address_is_another_server() {
        let mut ids = Ids::new(10);
        assign(&mut ids, &config("a:1:1 one")).unwrap();
        let moved = assign(&mut ids, &config("b:1:1 one")).unwrap();
        assert_eq!(moved[0].servers, [3]);
    }
}
