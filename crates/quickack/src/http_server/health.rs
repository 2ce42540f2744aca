//! `/healthz` and `/readyz`: what is missing, one sentence a line.
//!
//! Healthy means that the proxy's processes work: a supervisor may restart one that is not. Ready
//! means that clients are served: a balancer sends no clients to one that is not.

use std::os::unix::fs::MetadataExt;

use super::view::View;
use crate::ipc::http_view::PoolNames;
use crate::stats::Health;

/// Reasons why the proxy is not healthy; none if it is.
pub fn illness(view: &View, now_us: u64) -> Vec<String> {
    let mut said = Vec::new();
    let age = view.age_of_master(now_us);
    if age > MASTER_AGE_MAX_US {
        said.push(format!("the master has not moved for {}", seconds(age)));
    }
    if !(0..view.slots()).any(|slot| view.serves(slot) && is_fresh(view, slot, now_us)) {
        said.push("no worker serves clients".to_string());
    }
    said
}

/// Reasons why the proxy is not ready; none if it is.
pub fn unreadiness(view: &View, now_us: u64) -> Vec<String> {
    let mut said = illness(view, now_us);
    if view.state.draining {
        said.push("the proxy is draining".to_string());
    }
    for slot in (0..view.slots()).filter(|slot| view.serves(*slot)) {
        if !is_fresh(view, slot, now_us) {
            let age = seconds(view.age(slot, now_us));
            said.push(format!("worker {slot} has not moved for {age}"));
        }
    }
    for pool in &view.names.pools {
        said.extend(unready_socket(pool));
        let is_up = |server| view.health(server) == Health::Up;
        if pool.required && !pool.servers.iter().any(is_up) {
            said.push(format!("pool {} has no server that is up", pool.name));
        }
    }
    said
}

fn is_fresh(view: &View, slot: usize, now_us: u64) -> bool {
    view.age(slot, now_us) <= WORKER_AGE_MAX_US
}

/// The master keeps every listener open; only the file of one can go.
fn unready_socket(pool: &PoolNames) -> Option<String> {
    let (path, inode) = pool.socket.as_ref()?;
    let is_there = std::fs::symlink_metadata(path).is_ok_and(|file| file.ino() == *inode);
    let text = || format!("pool {}: its socket is not at {} any more", pool.name, path.display());
    (!is_there).then(text)
}

fn seconds(us: u64) -> String {
    format!("{:.1} s", us as f64 / 1e6)
}

/// The master's turns are half a second apart at most, unless it reads a large configuration.
const MASTER_AGE_MAX_US: u64 = 5_000_000;
/// A worker's turns are a second apart at most.
const WORKER_AGE_MAX_US: u64 = 3_000_000;
