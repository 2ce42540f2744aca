//! The configuration that holds, with the ids and addresses that the master has given.

use std::collections::BTreeMap;
use std::io;

use super::{caches::Caches, reader};
use crate::config::{AcceptMode, Config, ServerAddress};
use crate::ipc::installation::{self, Installation, ListenerEntry, PoolIds};

/// The configuration that holds.
pub struct Running {
    pub epoch: u64,
    pub config: Config,
    pub mode: AcceptMode,
    pub ids: Vec<PoolIds>,
    /// The ids of tenants, in the order of the plan.
    pub tenants: Vec<u32>,
    pub listeners: Vec<ListenerEntry>,
    /// All that name servers have said, …
    pub resolved: reader::Addresses,
    /// … and of that the one address of each `host:port`. A server without one is down.
    pub addresses: BTreeMap<String, String>,
}

impl Running {
    /// The plan as the workers know it, with the ids that the master has given.
    pub fn plan(&self) -> proxy::plan::Plan {
        let mut plan = self.config.plan.clone();
        installation::assign_ids(&mut plan, &self.ids, &self.tenants);
        plan
    }

    /// Why servers are nowhere, by their ids.
    pub fn unresolved(&self) -> BTreeMap<u32, String> {
        let mut all = BTreeMap::new();
        for (upstream, ids) in self.config.upstreams.iter().zip(&self.ids) {
            for (server, id) in upstream.servers.iter().zip(&ids.servers) {
                let written = server.to_string();
                if let Some(Err(why)) = self.resolved.get(&written)
                    && !self.addresses.contains_key(&written)
                {
                    all.insert(*id, format!("name does not resolve: {written}: {why}"));
                }
            }
        }
        all
    }

    /// The installation that the workers are sent.
    pub fn installation(&self, caches: &mut Caches) -> io::Result<Installation> {
        let mut addresses = BTreeMap::new();
        for (upstream, ids) in self.config.upstreams.iter().zip(&self.ids) {
            for (server, id) in upstream.servers.iter().zip(&ids.servers) {
                let address = match server {
                    ServerAddress::Embedded { .. } => caches.path(*id)?.display().to_string(),
                    ServerAddress::Unix(path) => path.display().to_string(),
                    tcp => match self.addresses.get(&tcp.to_string()) {
                        Some(address) => address.clone(),
                        None => continue,
                    },
                };
                addresses.insert(*id, address);
            }
        }
        Ok(Installation {
            epoch: self.epoch,
            name: "the running configuration".to_string(),
            text: self.config.text.clone(),
            attachments: self.config.attachments.clone(),
            overrides: self.config.overrides.iter().map(ToString::to_string).collect(),
            workers: self.config.process.worker_count(),
            processors: self.config.process.processors,
            accept: self.mode,
            pools: self.ids.clone(),
            tenants: self.tenants.clone(),
            addresses,
            listeners: self.listeners.clone(),
        })
    }
}
