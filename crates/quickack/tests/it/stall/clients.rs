//! Unmodified clients: php-memcached and pymemcache. They stall in front of memcached itself and
//! with `quickack: off`. With `partial` they do not, and get the same answers.

use std::net::SocketAddr;
use std::process::Command;

use testkit::process::{Memcached, Quickack, script};

use super::super::quickack;
use super::{Row, rows};

/// Operations in which php-memcached in binary mode waits for a `NOOP` that its own Nagle holds
/// back.
const STALLING: &[&str] = &["get_miss", "gets_cas_miss", "getMulti_2miss", "getMulti_500miss40B"];

fn php_ops(address: SocketAddr, binary: bool) -> Vec<Row> {
    let mut command = Command::new("php");
    command.arg(script("phpops.php")).args(["127.0.0.1", &address.port().to_string()]);
    let rows =
        rows("phpops.php", command.args([if binary { "1" } else { "0" }, "0", "0", "0", "21"]));
    assert_eq!(rows.len(), 29, "{rows:?}");
    rows
}

fn pymemcache(address: SocketAddr) -> Vec<Row> {
    let mut command = Command::new(crate::peers::root().join(".venv/bin/python"));
    let rows = rows(
        "pymc_default.py",
        command.arg(script("pymc_default.py")).arg(address.port().to_string()),
    );
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows
}

pub fn field(mode: &str) -> (Memcached, Quickack) {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &[&format!("quickack: {mode}")]);
    (memcached, quickack)
}

/// Checks that each operation's result equals the direct one, and that each is cured in one of
/// three runs: a stall would be in all of them.
fn check_cured(ops: impl Fn(SocketAddr) -> Vec<Row>) {
    let direct = ops(Memcached::start().address);
    let mut stalling: Vec<Row> = Vec::new();
    for run in 0..3 {
        let (_memcached, quickack) = field("partial");
        let rows = ops(quickack.address());
        for (direct, ours) in direct.iter().zip(&rows) {
            let same = ours.rc == direct.rc && (ours.name == direct.name || ours.rc.is_none());
            assert!(same, "{direct:?} directly, {ours:?} through us");
        }
        let was = |row: &Row| run == 0 || stalling.iter().any(|other| other.name == row.name);
        stalling = rows.into_iter().filter(|row| was(row) && !is_cured(row)).collect();
        if stalling.is_empty() {
            return;
        }
    }
    panic!("three times not cured; at last {stalling:#?}");
}

/// A hundred sets in sequence take long on a busy machine, so for them only slow samples count.
fn is_cured(row: &Row) -> bool {
    row.is_cured() || row.name == "setMulti_100x100B" && row.slow <= 2
}

/// Asserts that the operations of these names exist and stall.
#[track_caller]
fn assert_stalls(rows: &[Row], names: &[&str]) {
    for name in names {
        let row = rows.iter().find(|row| row.name == *name);
        assert!(row.is_some_and(Row::stalls), "{name}: {rows:#?}");
    }
}

#[test]
fn php_memcached_in_binary_mode_is_cured_and_hears_the_same() {
    check_cured(|address| php_ops(address, true));
}

#[test]
fn php_memcached_in_text_mode_is_cured_and_hears_the_same() {
    check_cured(|address| php_ops(address, false));
}

/// The control: the stall exists, and the proxy's mere presence does not remove it.
#[test]
fn php_memcached_in_binary_mode_stalls_without_the_cure() {
    assert_stalls(&php_ops(Memcached::start().address, true), STALLING);
    let (_memcached, quickack) = field("off");
    assert_stalls(&php_ops(quickack.address(), true), STALLING);
}

#[test]
fn pymemcache_with_all_its_defaults_is_cured() {
    check_cured(pymemcache);
}

#[test]
fn pymemcache_with_all_its_defaults_stalls_without_the_cure() {
    let direct = pymemcache(Memcached::start().address);
    let (_memcached, quickack) = field("off");
    let ours = pymemcache(quickack.address());
    assert!([&direct[0], &ours[0]].iter().all(|row| row.stalls()), "{direct:?} {ours:?}");
}
