//! The contents of a sealed memfd for the workers: a configuration, and what the master has decided
//! about it. The worker compiles the text with the code that the master checked it with.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use proxy::plan::Plan;
use serde::{Deserialize, Serialize};

use crate::config::{AcceptMode, Attachments};

/// A configuration on its way to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installation {
    pub epoch: u64,
    /// The name that reports use for it.
    pub name: String,
    pub text: String,
    /// The contents of the files that the text names: a worker opens none.
    pub attachments: Attachments,
    /// Set at run time, as `KEY=VALUE`; they hide what the text says.
    pub overrides: Vec<String>,
    /// Workers that share what is limited for the whole proxy.
    pub workers: usize,
    /// The number of processors that `auto` counts; a worker that is pinned to one would count one.
    pub processors: usize,
    /// How clients are accepted.
    pub accept: AcceptMode,
    /// In the order of the plan's pools.
    pub pools: Vec<PoolIds>,
    /// The ids of tenants, in the order of the plan.
    pub tenants: Vec<u32>,
    /// Where servers are, by id: an address and port, or the path of a socket. A server is missing
    /// if its name does not resolve.
    pub addresses: BTreeMap<u32, String>,
    pub listeners: Vec<ListenerEntry>,
}

/// The ids of a pool and of its servers, in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolIds {
    pub pool: u32,
    pub servers: Vec<u32>,
}

/// A listening socket that the workers were passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerEntry {
    pub id: u32,
    /// An index into the plan's pools.
    pub pool: usize,
    /// The only worker that looks at it; without one, all do.
    pub slot: Option<usize>,
}

impl ListenerEntry {
    /// Whether the worker in this slot looks at it.
    pub fn is_of(&self, slot: usize) -> bool {
        self.slot.is_none_or(|owner| owner == slot)
    }
}

impl Installation {
    pub fn seal(&self) -> std::io::Result<OwnedFd> {
        sys::memory::sealed("quickack-configuration", &serde_json::to_vec(self)?)
    }

    pub fn read(fd: OwnedFd) -> std::io::Result<Installation> {
        Ok(serde_json::from_slice(&sys::memory::read_sealed(fd)?)?)
    }
}

/// Gives pools, servers and tenants the ids that the master has decided.
pub fn assign_ids(plan: &mut Plan, ids: &[PoolIds], tenants: &[u32]) {
    for (tenant, id) in plan.tenants.iter_mut().zip(tenants) {
        Rc::make_mut(tenant).id = *id;
    }
    for (pool, ids) in plan.pools.iter_mut().zip(ids) {
        pool.id = ids.pool;
        for (server, id) in pool.servers.iter_mut().zip(&ids.servers) {
            server.id = *id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_two_thousand_servers_arrives_whole() {
        let servers: Vec<u32> = (2..2_002).collect();
        let sent = Installation {
            epoch: 7,
            name: "quickack.yml".to_string(),
            text: "x".repeat(500_000),
            attachments: Attachments::default(),
            overrides: vec!["memory_max=2g".to_string()],
            workers: 4,
            processors: 4,
            accept: AcceptMode::Gate,
            addresses: servers.iter().map(|id| (*id, format!("10.0.0.1:{id}"))).collect(),
            pools: vec![PoolIds { pool: 1, servers }],
            tenants: vec![9_000],
            listeners: vec![ListenerEntry { id: 1, pool: 0, slot: None }],
        };
        assert_eq!(Installation::read(sent.seal().unwrap()).unwrap(), sent);
    }
}
