//! Attacks on Redis.

use std::time::Duration;

use crate::peers::Peer;
use crate::servers::Backend;

use super::super::crowd::{Again, Crowd, Pace};
use super::super::quiet::Habit;
use super::{Attack, Stock, command};

const SOON: Again = Again::Reconnected(Duration::from_millis(300));
const NUTCRACKER: &[Peer] = &[Peer::Nutcracker];

pub fn attacks() -> Vec<Attack> {
    [slow(), works(), large(), own()].into_iter().flatten().collect()
}

fn attack(name: &'static str, what: &'static str, crowd: Crowd) -> Attack {
    Attack::new(Backend::Redis, name, what, crowd)
}

/// Slow commands and scripts.
fn slow() -> Vec<Attack> {
    vec![
        attack(
            "keys",
            "1 connection: 20 x `KEYS *` in one write; 4 servers with 250,000 keys each",
            Crowd::of(1, || command(&["KEYS", "*"]).repeat(20)),
        )
        .with(Stock::Keys(250_000))
        .servers(4)
        .slow()
        .refused_by(NUTCRACKER),
        attack("eval", "1 connection: one EVAL of about 1.3 s", Crowd::of(1, || eval(250.0)))
            .slow(),
        attack(
            "evals",
            "1 connection: 6 x EVAL of about 1.3 s in one write",
            Crowd::of(1, || eval(250.0).repeat(6)),
        )
        .slow(),
        attack(
            "databases",
            "16 connections, each 3 databases in turn: an EVAL of 50 ms and a GET, new every 2 s",
            Crowd::of(16, || {
                let mut out = Vec::new();
                for database in ["1", "2", "3"] {
                    out.extend(command(&["SELECT", database]));
                    out.extend(eval(10.0));
                    out.extend(command(&["GET", "quiet:00"]));
                }
                out
            })
            .again(Again::Reconnected(Duration::from_secs(2))),
        )
        .slow()
        .refused_by(NUTCRACKER),
        attack(
            "argv",
            "4 connections: the same script 20 times quick, then 0.3 s, new every second",
            Crowd::of(4, || {
                let text = "for i=1,tonumber(ARGV[1]) do end return 1";
                let run = |count| command(&["EVAL", text, "1", "slow", count]);
                [run("1").repeat(20), run("60000000")].concat()
            })
            .again(Again::Reconnected(Duration::from_secs(1))),
        )
        .slow(),
        attack(
            "evalleave",
            "5 connections: an EVAL of 0.1 s, reset and opened again every 0.3 s",
            Crowd::of(5, || eval(20.0)).reads(Pace::Never).again(SOON),
        )
        .slow(),
    ]
}

/// Many commands and scripts of some milliseconds, or of less than a second.
fn works() -> Vec<Attack> {
    let unions = |name, what, connections| {
        let union = || command(&["SUNIONSTORE", "into", "one", "other"]).repeat(100);
        attack(name, what, Crowd::of(connections, union).lead(two_sets))
            .lead(Duration::from_millis(500))
            .slow()
            .refused_by(NUTCRACKER)
    };
    let scripts =
        |name, what, connections| attack(name, what, Crowd::of(connections, || eval(110.0))).slow();
    let short_scripts = |name, what, connections| {
        let request = || [eval(1.3).repeat(50), command(&["PING"])].concat();
        let crowd = Crowd::of(connections, request).again(Again::Answered(b"+PONG\r\n"));
        attack(name, what, crowd).slow()
    };
    vec![
        scripts("scripts", "10 connections: an EVAL of 0.6 s each", 10),
        scripts("scripts4", "30 connections: the same; 4 workers", 30).workers(4),
        unions("unions", "2 connections: 100 x SUNIONSTORE of some 20 ms in one write", 2),
        unions("unions4", "6 connections: the same; 4 workers", 6).workers(4),
        short_scripts(
            "script7",
            "8 connections: 50 x the same EVAL of some 7 ms in one write, and at once again",
            8,
        ),
        short_scripts("script7w4", "24 connections: the same; 4 workers", 24).workers(4),
    ]
}

/// Fills two sets of 30,000 members, unless they are there.
fn two_sets() -> Vec<u8> {
    let text = "if redis.call('EXISTS',KEYS[1])==1 then return end \
                for i=1,30000 do redis.call('SADD',KEYS[1],i) redis.call('SADD',KEYS[2],-i) end";
    command(&["EVAL", text, "2", "one", "other"])
}

/// Large requests and answers.
fn large() -> Vec<Attack> {
    vec![
        attack(
            "set100m",
            "1 connection: one SET of 100 MB",
            Crowd::of(1, || command(&["SET", "huge", &"x".repeat(100_000_000)])),
        ),
        attack(
            "set10m",
            "100 connections: SET of 10 MB, at once again",
            Crowd::of(100, || command(&["SET", "huge", &"x".repeat(10_000_000)]))
                .again(Again::AtOnce),
        ),
        attack(
            "stallnew",
            "5 connections: half of a SET of 100 MB, reset and opened again every second",
            Crowd::of(5, || {
                command(&["SET", "huge", &"x".repeat(100_000_000)])[..50_000_000].to_vec()
            })
            .again(Again::Reconnected(Duration::from_secs(1))),
        ),
        attack(
            "mset",
            "5 connections: MSET of 1,000 x 100 kB, at once again; 2 servers",
            Crowd::of(5, || {
                let value = "x".repeat(100_000);
                let names: Vec<String> = (0..1000).map(|at| format!("mset:{at:03}")).collect();
                let mut words = vec!["MSET"];
                for name in &names {
                    words.extend([name.as_str(), value.as_str()]);
                }
                command(&words)
            })
            .again(Again::AtOnce),
        )
        .servers(2),
        attack(
            "mget",
            "5 connections: MGET of 100 x 1 MB, nothing read, new every second",
            Crowd::of(5, || {
                let names: Vec<String> = (0..100).map(|at| format!("big:{at:03}")).collect();
                let mut words = vec!["MGET"];
                words.extend(names.iter().map(String::as_str));
                command(&words)
            })
            .reads(Pace::Never)
            .again(Again::Reconnected(Duration::from_secs(1))),
        )
        .with(Stock::Big),
        attack(
            "alternate",
            "10 connections: SET of 2 MB, GET, KEYS, 5 times in one write, at once again",
            Crowd::of(10, || {
                [
                    command(&["SET", "large", &"x".repeat(2_000_000)]),
                    command(&["GET", "quiet:00"]),
                    command(&["KEYS", "nothing*"]),
                    command(&["GET", "large"]),
                ]
                .concat()
                .repeat(5)
            })
            .again(Again::AtOnce),
        )
        .with(Stock::Keys(100_000))
        .slow()
        .refused_by(NUTCRACKER),
    ]
}

/// The proxy's own answers.
fn own() -> Vec<Attack> {
    vec![
        attack(
            "command",
            "20 connections: 16 x `COMMAND`, answers read, and at once again",
            Crowd::of(20, || [command(&["COMMAND"]).repeat(16), command(&["PING"])].concat())
                .again(Again::Answered(b"+PONG\r\n")),
        )
        .refused_by(NUTCRACKER),
        attack(
            "info",
            "50 connections: pipelined INFO, at once again",
            Crowd::of(50, || command(&["INFO"]).repeat(100)).again(Again::AtOnce),
        )
        .refused_by(NUTCRACKER),
        attack(
            "hello",
            "50 connections: HELLO 2, GET, HELLO 3, GET, pipelined, at once again",
            Crowd::of(50, || {
                [
                    command(&["HELLO", "2"]),
                    command(&["GET", "quiet:00"]),
                    command(&["HELLO", "3"]),
                    command(&["GET", "quiet:00"]),
                ]
                .concat()
                .repeat(100)
            })
            .again(Again::AtOnce),
        )
        .refused_by(NUTCRACKER)
        .quiet(Habit::Fresh),
    ]
}

/// Returns a script of that many million steps: 250 are about 1.3 s on a processor of 2025. It
/// counts, because newer servers stop the clock for a script.
fn eval(millions: f64) -> Vec<u8> {
    let text = format!("for i=1,{millions}e6 do end return 1");
    command(&["EVAL", &text, "1", "slow"])
}
