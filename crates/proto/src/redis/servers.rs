//! What servers speak (a stub until the reply side is here).

use super::split;
use crate::{Ask, Credentials, Heard, Item, Lane, Parsed, Progress, Skills, Upstream};

/// Redis's servers, and those that speak like them.
pub struct Servers;

impl Upstream for Servers {
    fn parse_reply(&self, _ask: Ask, _progress: &mut Progress, _input: &[u8]) -> Parsed<Item> {
        Parsed::Incomplete
    }

    fn needs(&self, _ask: Ask) -> Skills {
        Skills::default()
    }

    fn fetch_max(&self, _ask: Ask) -> usize {
        usize::MAX
    }

    fn widen(&self, _ask: Ask, _other: Ask) -> Option<Ask> {
        None
    }

    fn push_fetch(&self, key: &[u8], out: &mut Vec<u8>) {
        split::push_key(key, out);
    }

    fn seal_fetch(&self, ask: Ask, keys: usize, text: &[u8], out: &mut Vec<u8>) {
        split::seal(ask, keys, text, out);
    }

    fn hello(&self, _credentials: Option<&Credentials>, _lane: Lane, _out: &mut Vec<u8>) {}

    fn hear(&self, _credentials: bool, _lane: Lane, _input: &[u8]) -> Parsed<Heard> {
        Parsed::Incomplete
    }
}
