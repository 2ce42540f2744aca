//! Unmodified clients: php-memcached and pymemcache. They stall in front of memcached itself and
//! with `quickack: off`. With `partial` they do not, and get the same answers.

use std::net::SocketAddr;
use std::process::Command;

use testkit::process::{Memcached, Quickack, script};

use super::super::quickack;
use super::{Row, check_cured, rows};

#[derive(Clone, Copy)]
enum Protocol {
    Text = 0,
    Binary = 1,
}

/// Nagle's algorithm at the client: on by default, off by TCP_NODELAY. As the script's argument.
#[derive(Clone, Copy)]
enum Nagle {
    On = 0,
    Off = 1,
}

/// Operations in which php-memcached in binary mode waits for a `NOOP` that its own Nagle holds
/// back.
const STALLING: &[&str] = &["get_miss", "gets_cas_miss", "getMulti_2miss", "getMulti_500miss40B"];

/// Returns php-memcached's report on the operation `only`, or on every one if that is empty.
fn php_memcached(address: SocketAddr, protocol: Protocol, nagle: Nagle, only: &str) -> Vec<Row> {
    let mut command = Command::new("php");
    command.arg(script("phpops.php")).args(["127.0.0.1", &address.port().to_string()]);
    command.args([protocol as u8, nagle as u8, 0, 0, 21].map(|argument| argument.to_string()));
    let rows = rows("phpops.php", command.arg(only));
    assert_eq!(rows.len(), if only.is_empty() { 29 } else { 1 }, "{rows:?}");
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

fn pymemcache_through_us(mode: &str) -> Vec<Row> {
    let (_memcached, quickack) = field(mode);
    pymemcache(quickack.address())
}

pub fn field(mode: &str) -> (Memcached, Quickack) {
    let memcached = Memcached::start();
    let quickack = quickack(&[memcached.address], &[&format!("quickack: {mode}")]);
    (memcached, quickack)
}

/// Checks that each operation's result equals the direct one, and that none stalls.
fn check_php_memcached(protocol: Protocol) {
    let direct = php_memcached(Memcached::start().address, protocol, Nagle::On, "");
    let (_memcached, quickack) = field("partial");
    let ours = php_memcached(quickack.address(), protocol, Nagle::On, "");
    for (direct, ours) in direct.iter().zip(&ours) {
        let same = (ours.rc, &ours.name) == (direct.rc, &direct.name);
        assert!(same, "{direct:?} directly, {ours:?} through us");
    }
    for row in ours.iter().filter(|row| !row.is_cured()) {
        check_costs_as_much_without_nagle(quickack.address(), protocol, &row.name);
    }
}

/// A busy machine delays an operation of many round trips by more than a stall. The control is the
/// same operation through the same proxy without Nagle, which cannot stall and is delayed as much.
/// So one pair of ten that is alike proves that nothing stalls. A direct control would not do: a
/// busy machine delays three processes much more than two.
fn check_costs_as_much_without_nagle(address: SocketAddr, protocol: Protocol, name: &str) {
    let mut pairs = Vec::new();
    for _ in 0..10 {
        let [ours, control] = [Nagle::On, Nagle::Off]
            .map(|nagle| php_memcached(address, protocol, nagle, name).remove(0));
        let alike = ours.slow <= control.slow + 2 && ours.median_ms < control.median_ms + 5.0;
        if alike {
            return;
        }
        pairs.push((ours, control));
    }
    panic!("with Nagle, and without: {pairs:#?}");
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
    check_php_memcached(Protocol::Binary);
}

#[test]
fn php_memcached_in_text_mode_is_cured_and_hears_the_same() {
    check_php_memcached(Protocol::Text);
}

/// The control: the stall exists, and the proxy's mere presence does not remove it.
#[test]
fn php_memcached_in_binary_mode_stalls_without_the_cure() {
    let rows = |address| php_memcached(address, Protocol::Binary, Nagle::On, "");
    assert_stalls(&rows(Memcached::start().address), STALLING);
    let (_memcached, quickack) = field("off");
    assert_stalls(&rows(quickack.address()), STALLING);
}

#[test]
fn pymemcache_with_all_its_defaults_is_cured() {
    check_cured(pymemcache_through_us);
}

#[test]
fn pymemcache_with_all_its_defaults_stalls_without_the_cure() {
    let direct = pymemcache(Memcached::start().address);
    let ours = pymemcache_through_us("off");
    assert!([&direct[0], &ours[0]].iter().all(|row| row.stalls()), "{direct:?} {ours:?}");
}
