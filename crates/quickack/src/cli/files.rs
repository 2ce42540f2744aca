//! The verbs that only read files: `migrate-config` and `ring-diff`.

use std::path::Path;
use std::process::ExitCode;

use super::{DIFFERENT, load, load_with_lists, print};
use crate::config::{self, RingDifference};

const HEAD: &str = "# The native form, by `quickack migrate-config`.\n";
const FLUSH: &str = "\
# Commands for whole servers are refused unless a pool allows them, as by `allow: [flush_all]`, or
# `allow: [flushall, flushdb]` where it speaks redis.
";
/// What nutcracker does by its command line alone.
const STATS: &str = "\
# nutcracker also served its statistics on port 22222; to keep that:
# global: {stats: '0.0.0.0:22222'}
";

/// Prints the native form of a file.
pub fn migrate(file: &Path) -> ExitCode {
    let Some(config) = load(file) else { return ExitCode::FAILURE };
    let native = config::native(&config);
    // A second block of this name would be refused.
    let has_global = native.lines().any(|line| line.starts_with("global:"));
    let allows = config.plan.pools.iter().any(|pool| !pool.allow.is_empty());
    let (flush, stats) = (if allows { "" } else { FLUSH }, if has_global { "" } else { STATS });
    print(&format!("{HEAD}{flush}{stats}\n{native}"));
    ExitCode::SUCCESS
}

/// Prints the share of keys of each pool that has another server in the other file. The exit status
/// is 2 if there are any.
pub fn ring_diff(old: &Path, new: &Path) -> ExitCode {
    let (Some(old), Some(new)) = (load_with_lists(old), load_with_lists(new)) else {
        return ExitCode::FAILURE;
    };
    let mut moves = false;
    let mut text = String::new();
    for RingDifference { pool, moved } in config::ring_difference(&old, &new) {
        let line = match moved {
            Ok(moved) => {
                moves |= moved.keys > 0;
                moved.share()
            }
            Err(where_it_is) => where_it_is.to_string(),
        };
        text += &format!("pool {pool}: {line}\n");
    }
    print(&text);
    ExitCode::from(if moves { DIFFERENT } else { 0 })
}
