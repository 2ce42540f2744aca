//! The values of directives that are words or short texts.

use proxy::plan::{MultiKey, OnFailure, Partial, QuickAck, SlowKeys};
use proxy::tenants::plan::RemovedUsers;

use super::report::nearest;
use super::value::{self, Fault};

pub fn file_name(word: &str) -> Result<String, Fault> {
    match word.is_empty() || word.contains(char::is_control) {
        true => Err(Fault::new("a file's path may have only visible characters")),
        false => Ok(word.to_string()),
    }
}

pub fn on_failure(word: &str) -> Option<OnFailure> {
    match word {
        "eject" => Some(OnFailure::Eject),
        "fail_fast" => Some(OnFailure::FailFast),
        _ => None,
    }
}

pub fn removed_users(word: &str) -> Option<RemovedUsers> {
    match word {
        "close" => Some(RemovedUsers::Close),
        "keep" => Some(RemovedUsers::Keep),
        _ => None,
    }
}

pub fn multi_key(word: &str) -> Option<MultiKey> {
    match word {
        "split" => Some(MultiKey::Split),
        "refuse" => Some(MultiKey::Refuse),
        _ => None,
    }
}

/// Returns None if the value is empty, which twemproxy also treats as no password.
pub fn redis_auth(word: &str) -> Result<Option<String>, Fault> {
    match word.len() {
        0 => Ok(None),
        1..=REDIS_AUTH_LEN_MAX if !word.contains(char::is_control) => Ok(Some(word.to_string())),
        _ => {
            let message = format!(
                "a password has at most {REDIS_AUTH_LEN_MAX} bytes and no control characters"
            );
            Err(Fault::new(message))
        }
    }
}

/// twemproxy's limit.
const REDIS_AUTH_LEN_MAX: usize = 255;

pub fn partial(word: &str) -> Option<Partial> {
    match word {
        "error" => Some(Partial::Error),
        "miss" => Some(Partial::Miss),
        _ => None,
    }
}

pub fn slow_keys(word: &str) -> Option<SlowKeys> {
    match word {
        "hash" => Some(SlowKeys::Hash),
        "full" => Some(SlowKeys::Full),
        "none" => Some(SlowKeys::None),
        _ => None,
    }
}

/// Reads which requests have a line in the access log: one in so many, 0 for none.
pub fn access_log(word: &str) -> Result<u32, Fault> {
    match word {
        "off" => Ok(0),
        "all" => Ok(1),
        _ => match word.strip_prefix("1/").map(|number| value::number(number, &(1..=1_000_000))) {
            Some(number) => Ok(number? as u32),
            None => Err(Fault::new(format!("`{word}` is none of `off`, `all` and `1/N`"))
                .suggest(nearest(word, ["off", "all"]))),
        },
    }
}

pub fn quickack_words() -> Vec<&'static str> {
    vec!["partial", "always", "off"]
}

pub fn quickack(word: &str) -> Option<QuickAck> {
    match word {
        "partial" => Some(QuickAck::Partial),
        "always" => Some(QuickAck::Always),
        "off" => Some(QuickAck::Off),
        _ => None,
    }
}
