//! CONFIG GET from several servers: common values appear once, different ones with each server's
//! name, as in INFO.

use std::collections::HashMap;

use super::reply::Walk;
use super::{info, words};
use crate::part::{Outcome, Part, ProxyFacts};

/// Settings that are never shown to clients: passwords, and their users.
const SECRETS: &[&str] = &[
    "masterauth",
    "masteruser",
    "primaryauth",
    "primaryuser",
    "requirepass",
    "tls-client-key-file-pass",
    "tls-key-file-pass",
];

/// The number of databases is a setting of the pool.
const DATABASES: &str = "databases";

/// The name under which servers that have not answered are listed.
const UNANSWERED: &str = "quickack-unanswered";

/// A setting, and its value at each server.
struct Setting<'a> {
    name: &'a [u8],
    values: Vec<(&'a str, &'a [u8])>,
}

/// Writes the answer, if at least one server replied.
pub(super) fn gather(parts: &[Part<'_>], proxy: &dyn ProxyFacts, out: &mut Vec<u8>) -> Option<()> {
    let first = parts.iter().find_map(Part::reply)?;
    let proto_version = if first.starts_with(b"%") { 3 } else { 2 };
    let mut settings: Vec<Setting<'_>> = Vec::new();
    let mut places = HashMap::new();
    let mut unanswered: Vec<String> = Vec::new();
    for part in parts {
        match part.outcome {
            Outcome::Reply(reply) => read(part.server, reply, &mut settings, &mut places)?,
            Outcome::Error(line) => {
                let line = String::from_utf8_lossy(line);
                unanswered.push(format!("{}: {}", part.server, line.trim_end()));
            }
            Outcome::Fault { .. } => unanswered.extend(part.fault()),
        }
    }
    let is = |name: &[u8], other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    settings.retain(|one| !SECRETS.iter().any(|secret| is(one.name, secret)));
    words::open_map(settings.len() + usize::from(!unanswered.is_empty()), proto_version, out);
    for Setting { name, values } in settings {
        words::bulk(name, out);
        let common = values[0].1;
        if is(name, DATABASES) {
            words::bulk(proxy.facts().databases.to_string().as_bytes(), out);
        } else if values.iter().all(|(_, value)| *value == common) {
            words::bulk(common, out);
        } else {
            let texts: Vec<_> = values
                .iter()
                .map(|(server, value)| (*server, String::from_utf8_lossy(value)))
                .collect();
            let values: Vec<(&str, &str)> =
                texts.iter().map(|(server, text)| (*server, &text[..])).collect();
            words::bulk(info::same(&values).as_bytes(), out);
        }
    }
    if !unanswered.is_empty() {
        words::bulk(UNANSWERED.as_bytes(), out);
        words::bulk(unanswered.join("; ").as_bytes(), out);
    }
    Some(())
}

/// Adds one server's reply; none if it is no list of names and values. `places` maps each name, in
/// lower case, to its index.
fn read<'a>(
    server: &'a str,
    reply: &'a [u8],
    settings: &mut Vec<Setting<'a>>,
    places: &mut HashMap<Vec<u8>, usize>,
) -> Option<()> {
    let mut walk = Walk::new(reply);
    for _ in 0..walk.open()? / 2 {
        let (name, value) = (walk.text()?, walk.text()?);
        let place = *places.entry(name.to_ascii_lowercase()).or_insert(settings.len());
        if place == settings.len() {
            settings.push(Setting { name, values: Vec::new() });
        }
        settings[place].values.push((server, value));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::tests::{Nothing, fault, parts};

    fn check(outcomes: &[Outcome<'_>], expected: &str) {
        let parts: Vec<Part<'_>> = parts(outcomes).collect();
        let mut out = Vec::new();
        let made = gather(&parts, &Nothing, &mut out);
        let text = String::from_utf8_lossy(&out).replace("\r\n", " ");
        assert_eq!(made.map(|()| text.trim_end().to_string()), Some(expected.to_string()));
    }

    #[test]
    fn a_setting_is_told_once_where_the_servers_agree_and_by_server_where_not() {
        let one: &[u8] = b"*4\r\n$4\r\nsave\r\n$4\r\n60 1\r\n$9\r\nmaxmemory\r\n$3\r\n100\r\n";
        let two: &[u8] = b"*4\r\n$9\r\nmaxmemory\r\n$3\r\n200\r\n$4\r\nsave\r\n$4\r\n60 1\r\n";
        check(&[Outcome::Reply(one)], "*4 $4 save $4 60 1 $9 maxmemory $3 100");
        let both = "*4 $4 save $4 60 1 $9 maxmemory $13 s0=100,s1=200";
        check(&[Outcome::Reply(one), Outcome::Reply(two)], both);
        let three = b"%1\r\n$4\r\nsave\r\n$0\r\n\r\n";
        check(&[Outcome::Reply(three), Outcome::Reply(three)], "%1 $4 save $0");
        check(&[Outcome::Reply(b"*0\r\n")], "*0");
    }

    #[test]
    fn who_has_not_answered_is_named() {
        let one: &[u8] = b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n";
        let outcomes =
            [Outcome::Reply(one), fault("down, waiting", false), Outcome::Error(b"-ERR no\r\n")];
        check(
            &outcomes,
            "*4 $4 save $0  $19 quickack-unanswered $30 s1: down, waiting; s2: -ERR no",
        );
    }

    #[test]
    fn the_pools_databases_are_told_and_no_passwords() {
        let one = b"*6\r\n$11\r\nrequirepass\r\n$2\r\npw\r\n$9\r\nDATABASES\r\n$2\r\n16\r\n\
            $10\r\nmasterauth\r\n$2\r\npw\r\n";
        check(&[Outcome::Reply(one)], "*2 $9 DATABASES $1 1");
    }

    /// A large reply costs time of the one worker.
    #[test]
    fn as_many_settings_as_a_server_likes_are_told_at_once() {
        let names: String = (0..50_000).map(|n| format!("$7\r\n{n:07}\r\n$1\r\n1\r\n")).collect();
        let reply = format!("*100000\r\n{names}");
        let outcomes = [Outcome::Reply(reply.as_bytes()), Outcome::Reply(reply.as_bytes())];
        let parts: Vec<Part<'_>> = parts(&outcomes).collect();
        let mut out = Vec::new();
        let start = std::time::Instant::now();
        assert_eq!(gather(&parts, &Nothing, &mut out), Some(()));
        assert_eq!(out, reply.as_bytes());
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    }
}
