//! Attacks on memcached.

use std::time::Duration;

use crate::servers::Backend;

use super::super::crowd::{Again, Crowd, Pace};
use super::super::quiet::Habit;
use super::{Attack, Stock};

const SOON: Again = Again::Reconnected(Duration::from_millis(300));

pub fn attacks() -> Vec<Attack> {
    [reads(), sizes(), connections(), changes()].into_iter().flatten().collect()
}

fn attack(name: &'static str, what: &'static str, crowd: Crowd) -> Attack {
    Attack::new(Backend::Memcached, name, what, crowd)
}

/// Large values, and many of them.
fn reads() -> Vec<Attack> {
    vec![
        attack(
            "unread",
            "5 connections: `get big` x 400 keys of 1 MB, nothing read, new every 0.3 s",
            Crowd::of(5, || get_of(400)).reads(Pace::Never).again(SOON),
        )
        .with(Stock::Big),
        attack(
            "unread300",
            "300 connections: 50 x `get big` of 1 MB, nothing read; 2 workers",
            Crowd::of(300, || b"get big\r\n".repeat(50)).reads(Pace::Never),
        )
        .with(Stock::Big)
        .workers(2),
        attack(
            "large",
            "1 connection: pipelined gets of 100 keys of 1 MB, read at full speed",
            Crowd::of(1, || {
                (0..100).flat_map(|at| format!("get big:{at:03}\r\n").into_bytes()).collect()
            })
            .again(Again::AtOnce),
        )
        .with(Stock::Big),
        attack(
            "trickle",
            "30 connections: 50 x `get big` of 1 MB, read at 1 byte a second",
            Crowd::of(30, || b"get big\r\n".repeat(50)).reads(Pace::Slow(1, SECOND)),
        )
        .with(Stock::Big),
        attack(
            "trusted",
            "50 connections: small gets for 12 s, then `get big` x 400 keys, nothing read",
            Crowd::of(50, || get_of(400))
                .reads(Pace::Never)
                .again(SOON)
                .lead(|| b"get quiet:00\r\n".to_vec()),
        )
        .with(Stock::Big)
        .lead(Duration::from_secs(12)),
        attack(
            "gat",
            "50 connections: `gat` x 100 keys of 1 MB, nothing read, new every 0.3 s",
            Crowd::of(50, || [b"gat 0".to_vec(), b" big".repeat(100), b"\r\n".to_vec()].concat())
                .reads(Pace::Never)
                .again(SOON),
        )
        .with(Stock::Big),
    ]
}

/// Answers whose length is hard to foresee, and requests of many keys.
fn sizes() -> Vec<Attack> {
    vec![
        attack(
            "flip",
            "5 connections: a key that is small for 50 gets, then 1 MB for 50 gets, read at once",
            Crowd::of(5, || {
                let gets = b"get flip\r\n".repeat(50);
                [set("flip", 10), gets.clone(), set("flip", 1_000_000), gets].concat()
            })
            .again(Again::AtOnce),
        ),
        attack(
            "variety",
            "100 connections: gets of small keys and now and then of 1 MB, all commands, read",
            Crowd::of(100, || {
                [
                    b"get quiet:01 quiet:02 quiet:03\r\n".repeat(20),
                    b"get big:001\r\nmg big:002 v\r\ngat 0 big:003\r\ngets big:004\r\n".to_vec(),
                    b"mg quiet:01 v\r\n".repeat(20),
                ]
                .concat()
            })
            .again(Again::AtOnce),
        )
        .with(Stock::Big),
        attack(
            "keys10000",
            "20 connections: gets with 10,000 keys, at once again",
            Crowd::of(20, || [b"get".to_vec(), b" k1".repeat(10_000), b"\r\n".to_vec()].concat())
                .again(Again::AtOnce),
        ),
        attack(
            "stats",
            "50 connections: pipelined `stats`, at once again",
            Crowd::of(50, || b"stats\r\n".repeat(100)).again(Again::AtOnce),
        ),
        attack(
            "stats1",
            "1 connection: pipelined `stats`, at once again",
            Crowd::of(1, || b"stats\r\n".repeat(50)).again(Again::AtOnce),
        )
        .median_barred(),
        attack(
            "stats3",
            "3 connections: pipelined `stats`, at once again",
            Crowd::of(3, || b"stats\r\n".repeat(50)).again(Again::AtOnce),
        )
        .median_barred(),
        attack(
            "pipeline1",
            "1 connection: 200,000 gets, none of whose answers is read before all are written",
            behind(1),
        )
        .median_barred(),
        attack(
            "pipeline3",
            "3 connections: 200,000 gets, none of whose answers is read before all are written",
            behind(3),
        )
        .median_barred(),
    ]
}

/// Many connections.
fn connections() -> Vec<Attack> {
    vec![
        attack(
            "storm",
            "300 connections: a get, reset and opened again every 20 ms; a new quiet client each",
            Crowd::of(300, || b"get quiet:00\r\n".to_vec())
                .reads(Pace::Never)
                .again(Again::Reconnected(Duration::from_millis(20))),
        )
        .quiet(Habit::Fresh),
        attack(
            "halfclose",
            "500 connections: 20 x `get big`, an end of file, nothing read, new every 0.5 s",
            Crowd::of(500, || b"get big\r\n".repeat(20))
                .reads(Pace::Never)
                .again(Again::HalfClosed(Duration::from_millis(500))),
        )
        .with(Stock::Big),
        attack(
            "oncebig",
            "1,500 connections: one `get big` each, read, new every second",
            Crowd::of(1500, || b"get big\r\n".to_vec()).again(Again::Reconnected(SECOND)),
        )
        .with(Stock::Big),
        attack(
            "loris",
            "1,000 connections: heads and bodies of sets, 7 bytes every 50 ms",
            Crowd::of(1000, || b"set loris 0 0 100\r\n".repeat(1000))
                .sends(Pace::Slow(7, Duration::from_millis(50))),
        ),
        attack(
            "halves",
            "100 connections: half of a set of 100 MB, and no more",
            Crowd::of(100, || set("half", 100_000_000)[..20_000_000].to_vec()),
        ),
    ]
}

/// Changes, small and large.
fn changes() -> Vec<Attack> {
    vec![
        attack(
            "sets",
            "40 connections: pipelined sets of 10 bytes",
            Crowd::of(40, || b"set greedy 0 0 10\r\n0123456789\r\n".repeat(100))
                .again(Again::AtOnce),
        ),
        attack(
            "noreply",
            "20 connections: noreply sets, deletes and increments, at once again",
            Crowd::of(20, || {
                b"set n 0 0 1 noreply\r\n1\r\nincr n 1 noreply\r\ndelete n noreply\r\n"
                    .repeat(30_000)
            })
            .again(Again::AtOnce),
        )
        .quiet(Habit::Updates),
        attack(
            "sets1m",
            "100 connections: sets of 1.9 MB, at once again",
            Crowd::of(100, || set("greedy", 1_900_000)).again(Again::AtOnce),
        ),
        attack(
            "toolarge",
            "50 connections: sets of 200 MB, which no server is asked for",
            Crowd::of(50, || set("toolarge", 200_000_000)).again(Again::AtOnce),
        ),
    ]
}

const SECOND: Duration = Duration::from_secs(1);

/// Connections that write a long pipeline before they read, again and again.
fn behind(connections: usize) -> Crowd {
    Crowd::of(connections, || [b"get quiet:00\r\n".repeat(200_000), set("greedy", 1)].concat())
        .reads(Pace::Behind)
        .again(Again::Answered(b"STORED\r\n"))
}

/// Returns a get of `big`, that many times.
fn get_of(count: usize) -> Vec<u8> {
    [b"get".to_vec(), b" big".repeat(count), b"\r\n".to_vec()].concat()
}

fn set(key: &str, len: usize) -> Vec<u8> {
    format!("set {key} 0 0 {len}\r\n{}\r\n", "1".repeat(len)).into_bytes()
}
