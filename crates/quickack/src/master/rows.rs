//! Which row a pool or a server has. A row is the name that master and workers call it by: its
//! pages in the book, its bit in the health, its place in messages. It is kept over reloads for
//! as long as the thing is the same thing: a pool of one name and protocol; a server of one
//! pool, ring name and address.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Config;
use crate::ipc::installation::PoolRows;

/// The rows in use. Cloned for a change, which may be cancelled.
#[derive(Clone, Debug)]
pub struct Rows {
    pools: BTreeMap<String, u32>,
    servers: BTreeMap<[String; 3], u32>,
    /// Left the configuration and are still being answered by somebody.
    leaving: BTreeSet<u32>,
    free: BTreeSet<u32>,
    /// Rows from here on have never been used.
    next: u32,
    max: u32,
}

impl Rows {
    /// For a scoreboard of `max` rows; row 0 is the workers' own.
    pub fn new(max: usize) -> Rows {
        Rows {
            pools: BTreeMap::new(),
            servers: BTreeMap::new(),
            leaving: BTreeSet::new(),
            free: BTreeSet::new(),
            next: 1,
            max: max as u32,
        }
    }

    /// Rows for everything in `config`. What is not in it any more is leaving.
    /// `addresses` says where the hosts are that have names.
    pub fn assign(
        &mut self,
        config: &Config,
        addresses: &BTreeMap<String, String>,
    ) -> Result<Vec<PoolRows>, String> {
        let old_pools = std::mem::take(&mut self.pools);
        let old_servers = std::mem::take(&mut self.servers);
        let mut rows = Vec::new();
        for (plan, upstream) in config.plan.pools.iter().zip(&config.upstreams) {
            let name = format!("{} {}", plan.protocol.name(), plan.name);
            let pool = self.keep_or_take(old_pools.get(&name))?;
            self.pools.insert(name.clone(), pool);
            let mut servers = Vec::new();
            for (server, address) in plan.servers.iter().zip(&upstream.servers) {
                let written = address.to_string();
                let place = addresses.get(&written).cloned().unwrap_or(written);
                let key = [name.clone(), server.name.clone(), place];
                let row = self.keep_or_take(old_servers.get(&key))?;
                self.servers.insert(key, row);
                servers.push(row);
            }
            rows.push(PoolRows { pool, servers });
        }
        let kept = |row: &u32| rows.iter().any(|of| of.pool == *row || of.servers.contains(row));
        let gone: Vec<u32> = old_pools
            .into_values()
            .chain(old_servers.into_values())
            .filter(|row| !kept(row))
            .collect();
        self.leaving.extend(gone);
        Ok(rows)
    }

    pub fn is_anything_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Whether a row has left the configuration and may still be answered for.
    pub fn is_leaving(&self, row: u32) -> bool {
        self.leaving.contains(&row)
    }

    /// Rows that have ever had a meaning.
    pub fn used(&self) -> usize {
        self.next as usize
    }

    fn keep_or_take(&mut self, old: Option<&u32>) -> Result<u32, String> {
        if let Some(row) = old {
            return Ok(*row);
        }
        if let Some(row) = self.free.pop_first() {
            return Ok(row);
        }
        if self.next == self.max {
            return Err(format!(
                "this process has room for {} pools and servers, which it reserved when it \
                 started; restart it to have more",
                self.max - 1
            ));
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Rows that may be used again: nobody answers for them any more. The caller wipes them.
    pub fn release(&mut self, in_use: &BTreeSet<u32>) -> Vec<u32> {
        let done: Vec<u32> = self.leaving.difference(in_use).copied().collect();
        for row in &done {
            self.leaving.remove(row);
            self.free.insert(*row);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign(rows: &mut Rows, config: &Config) -> Result<Vec<PoolRows>, String> {
        rows.assign(config, &BTreeMap::new())
    }

    fn config(servers: &str) -> Config {
        let text = format!("alpha:\n  listen: 127.0.0.1:0\n  servers: [{servers}]\n");
        crate::config::compile("test", &text, &[]).config.unwrap()
    }

    #[test]
    fn a_server_keeps_its_row_and_a_freed_row_is_used_again() {
        let mut rows = Rows::new(5);
        let first = assign(&mut rows, &config("a:1:1, b:1:1, c:1:1")).unwrap();
        assert_eq!(first[0], PoolRows { pool: 1, servers: vec![2, 3, 4] });
        let second = assign(&mut rows, &config("c:1:1, a:1:1")).unwrap();
        assert_eq!(second[0], PoolRows { pool: 1, servers: vec![4, 2] });
        assert!(
            assign(&mut rows.clone(), &config("a:1:1, b:1:1, c:1:1")).is_err(),
            "3 is still in use"
        );
        assert!(rows.release(&BTreeSet::from([3])).is_empty());
        assert_eq!(rows.release(&BTreeSet::new()), [3]);
        let third = assign(&mut rows, &config("d:1:1")).unwrap();
        assert_eq!(third[0], PoolRows { pool: 1, servers: vec![3] });
    }

    #[test]
    fn a_host_that_has_moved_is_another_server() {
        let mut rows = Rows::new(10);
        let at = |address: &str| BTreeMap::from([("a:1".to_string(), address.to_string())]);
        let config = config("a:1:1 one");
        assert_eq!(rows.assign(&config, &at("10.0.0.1:1")).unwrap()[0].servers, [2]);
        assert_eq!(rows.assign(&config, &at("10.0.0.1:1")).unwrap()[0].servers, [2]);
        assert_eq!(rows.assign(&config, &at("10.0.0.2:1")).unwrap()[0].servers, [3]);
    }

    #[test]
    fn a_server_at_another_address_is_another_server() {
        let mut rows = Rows::new(10);
        assign(&mut rows, &config("a:1:1 one")).unwrap();
        let moved = assign(&mut rows, &config("b:1:1 one")).unwrap();
        assert_eq!(moved[0].servers, [3]);
    }
}
