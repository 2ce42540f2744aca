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
    /// A server is up.
    Server { pool: String, name: String },
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
            ["server", place, "up"] => match place.split_once('/') {
                Some((pool, name)) => {
                    Ok(Condition::Server { pool: pool.to_string(), name: name.to_string() })
                }
                None => Err(format!("`{place}` is not a server: write `POOL/NAME`")),
            },
            _ => Err(format!(
                "`{}` is no condition; use one of: ready, epoch N, server POOL/NAME up",
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
            Condition::Server { pool, name } => Ok(health(&info("pools --json")?, pool, name)),
        }
    }
}

/// Returns why a server is not up; None if it is.
fn health(pools: &Value, pool: &str, name: &str) -> Option<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let pools = list(&pools["pools"]);
    let Some(found) = pools.iter().find(|one| one["name"] == pool) else {
        return Some(format!("no pool is called `{pool}`"));
    };
    let servers = list(&found["servers"]);
    let called =
        |one: &&Value| one["label"] == name || one["name"] == name || one["address"] == name;
    let Some(server) = servers.iter().find(called) else {
        return Some(format!("no server of pool {pool} is called `{name}`"));
    };
    let health = server["health"].as_str().unwrap_or_default();
    (health != "up").then(|| format!("server {name} of pool {pool} is {health}"))
}

/// Waits. The exit status is 1 if the time is over.
pub fn wait(proxy: &ask::Proxy, words: &[String], timeout: Duration) -> ExitCode {
    let condition = match Condition::parse(words) {
        Ok(condition) => condition,
        Err(why) => return ask::fail(&Error::Config(why)),
    };
    let deadline = Instant::now() + timeout;
    loop {
        let why = match condition.missing(proxy) {
            Ok(None) => return ExitCode::SUCCESS,
            Ok(Some(why)) => why,
            // It may not have been started yet.
            Err(error) => error.to_string(),
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
        let server = serde_json::json!({
            "label": "one", "name": "one", "address": "10.0.0.1:1", "health": "down"
        });
        let pools = serde_json::json!({"pools": [{"name": "alpha", "servers": [server]}]});
        for (pool, name, why) in [
            ("beta", "one", Some("no pool is called `beta`")),
            ("alpha", "two", Some("no server of pool alpha is called `two`")),
            ("alpha", "10.0.0.1:1", Some("server 10.0.0.1:1 of pool alpha is down")),
        ] {
            assert_eq!(health(&pools, pool, name).as_deref(), why);
        }
        let text = pools.to_string().replace("down", "up");
        assert_eq!(health(&serde_json::from_str(&text).unwrap(), "alpha", "one"), None);
    }

    #[test]
    fn a_number_alone_is_seconds() {
        let parsed = ["3", "250ms", "2m"].map(|word| duration(word).unwrap().as_millis());
        assert_eq!(parsed, [3_000, 250, 120_000]);
        assert!(duration("soon").is_err());
    }
}
