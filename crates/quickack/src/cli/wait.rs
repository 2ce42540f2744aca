//! `quickack wait CONDITION`, for scripts: asks the proxy again and again until it is so.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::ask;
use crate::error::Error;

/// What is waited for.
pub enum Condition {
    /// All workers serve with the configuration that holds, and each required pool has a server.
    Ready,
    /// All workers have installed this epoch or a later one.
    Epoch(u64),
    /// A server is up, or nothing is at it.
    Server { pool: String, name: String, is: Is },
}

/// What a server is to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Is {
    Up,
    /// It has no link, and no request waits for it or for its answer: it can be restarted.
    Idle,
}

impl Condition {
    pub fn parse(words: &[String]) -> Result<Condition, String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["ready"] => Ok(Condition::Ready),
            ["epoch", number] => match number.parse() {
                Ok(epoch) => Ok(Condition::Epoch(epoch)),
                Err(_) => Err(format!("`{number}` is not an epoch, which is a number")),
            },
            ["server", place, word @ ("up" | "idle")] => match place.split_once('/') {
                Some((pool, name)) => {
                    let is = if *word == "up" { Is::Up } else { Is::Idle };
                    Ok(Condition::Server { pool: pool.to_string(), name: name.to_string(), is })
                }
                None => Err(format!("`{place}` is not a server: write `POOL/NAME`")),
            },
            _ => Err(format!(
                "`{}` is no condition; use one of: ready, epoch N, server POOL/NAME up, server \
                 POOL/NAME idle",
                words.join(" ")
            )),
        }
    }

    /// Returns why it is not so; None if it is.
    fn missing(&self, proxy: &ask::Proxy) -> Result<Option<String>, Error> {
        let info = |line: &str| -> Result<Value, Error> {
            let text = proxy.answer(line)?;
            serde_json::from_str(&text).map_err(|error| Error::Bug(error.to_string()))
        };
        match self {
            Condition::Ready => {
                let info = info("info --json")?;
                let why = info["not_ready"].as_array().into_iter().flatten();
                let why: Vec<&str> = why.filter_map(Value::as_str).collect();
                Ok((info["ready"] != true).then(|| why.join("; ")))
            }
            Condition::Epoch(epoch) => {
                let info = info("info --json")?;
                let now = info["epoch"].as_u64().unwrap_or_default();
                Ok(match info["applied"] == true {
                    true if now >= *epoch => None,
                    true => Some(format!("the epoch is {now}")),
                    false => Some(format!("not all workers have installed epoch {now}")),
                })
            }
            Condition::Server { pool, name, is } => {
                Ok(lacking(&info("servers --json")?, pool, name, *is))
            }
        }
    }

    /// How many answers in a row must say so. Workers tell of their links ten times a second.
    fn looks(&self) -> u32 {
        match self {
            Condition::Server { is: Is::Idle, .. } => 5,
            _ => 1,
        }
    }
}

/// Returns why a server is not as it is to be; None if it is.
fn lacking(servers: &Value, pool: &str, name: &str, is: Is) -> Option<String> {
    let all = servers["servers"].as_array().map_or(&[][..], Vec::as_slice);
    let mut of_pool = all.iter().filter(|one| one["pool"] == pool).peekable();
    if of_pool.peek().is_none() {
        return Some(format!("no pool with servers is called `{pool}`"));
    }
    let is_called =
        |one: &&Value| ["name", "ring_name", "address"].iter().any(|which| one[which] == name);
    let Some(server) = of_pool.find(is_called) else {
        return Some(format!("no server of pool {pool} is called `{name}`"));
    };
    let word = |which: &str| server[which].as_str().unwrap_or_default();
    let number = |which: &str| server[which].as_u64().unwrap_or_default();
    let [links, waiting, in_flight] = ["links", "waiting", "in_flight"].map(number);
    match is {
        Is::Up if word("health") == "up" => None,
        Is::Up => Some(format!("server {name} of pool {pool} is {}", word("health"))),
        Is::Idle if links + waiting + in_flight == 0 => None,
        Is::Idle => Some(format!(
            "server {name} of pool {pool}, whose state is {}, has {links} links; {waiting} \
             requests wait, {in_flight} are in flight",
            word("state")
        )),
    }
}

/// Waits. The exit status is 1 if the time is over.
pub fn wait(proxy: &ask::Proxy, words: &[String], timeout: Duration) -> ExitCode {
    let condition = match Condition::parse(words) {
        Ok(condition) => condition,
        Err(why) => return ask::fail(&Error::Config(why)),
    };
    let deadline = Instant::now() + timeout;
    let mut in_a_row = 0;
    loop {
        let missing = match condition.missing(proxy) {
            Ok(missing) => missing,
            // It may not have been started yet.
            Err(error) => Some(error.to_string()),
        };
        in_a_row = if missing.is_some() { 0 } else { in_a_row + 1 };
        let why = match missing {
            None if in_a_row == condition.looks() => return ExitCode::SUCCESS,
            None => "it has been so for a moment only".to_string(),
            Some(why) => why,
        };
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            let words = words.join(" ");
            return ask::fail(&Error::Config(format!("not `{words}` in {timeout:?}: {why}")));
        }
        thread::sleep(rest.min(PAUSE));
    }
}

/// Parses a duration from the command line; a bare number is seconds.
pub fn duration(word: &str) -> Result<Duration, Error> {
    let word = match word.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("{word}s"),
        false => word.to_string(),
    };
    Ok(Duration::from_micros(crate::config::parse_duration(&word)?))
}

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_by_any_of_its_names_and_what_is_missing_is_told() {
        let check = |pool: &str, name: &str, is: Is, (health, links): (&str, u32)| {
            let server = serde_json::json!({
                "pool": "alpha", "name": "one", "ring_name": "1", "address": "10.0.0.1:1",
                "state": "maint", "health": health, "links": links, "waiting": 0, "in_flight": 0,
            });
            lacking(&serde_json::json!({ "servers": [server] }), pool, name, is).unwrap_or_default()
        };
        let down = ("down", 2);
        for (pool, name, why) in [
            ("beta", "one", "no pool with servers is called `beta`"),
            ("alpha", "two", "no server of pool alpha is called `two`"),
            ("alpha", "1", "server 1 of pool alpha is down"),
            ("alpha", "10.0.0.1:1", "server 10.0.0.1:1 of pool alpha is down"),
        ] {
            assert_eq!(check(pool, name, Is::Up, down), why);
        }
        let busy = "server one of pool alpha, whose state is maint, has 2 links; 0 requests wait, \
                    0 are in flight";
        assert_eq!(check("alpha", "one", Is::Idle, down), busy);
        assert_eq!(check("alpha", "one", Is::Up, ("up", 2)), "");
        assert_eq!(check("alpha", "one", Is::Idle, ("maint", 0)), "");
    }

    #[test]
    fn a_number_alone_is_seconds() {
        let parsed = ["3", "250ms", "2m"].map(|word| duration(word).unwrap().as_millis());
        assert_eq!(parsed, [3_000, 250, 120_000]);
        assert!(duration("soon").is_err());
    }
}
