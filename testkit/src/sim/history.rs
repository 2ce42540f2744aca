//! The past of the servers: the values that each key of a server has had, and their times.
//!
//! Time here is a count of events, not a clock. It grows by one for each command that a server
//! executes, each request that arrives and each fault. A value lives from its own event to the next
//! value's, so "no older than" and "at the same time as" compare two numbers.

use std::rc::Rc;

/// A key's value.
#[derive(Clone)]
pub struct Value {
    pub bytes: Rc<[u8]>,
    pub flags: u32,
    pub cas: u64,
    /// A client was asked to fill it.
    pub won: bool,
    /// It is to be replaced.
    pub stale: bool,
}

impl Value {
    /// Makes a value without marks.
    pub fn plain(bytes: Rc<[u8]>, flags: u32, cas: u64) -> Value {
        Value { bytes, flags, cas, won: false, stale: false }
    }
}

/// The lifetime of one value.
pub struct Version {
    /// The event that began it.
    pub from: u64,
    pub value: Option<Value>,
    /// The update that made it, if known.
    pub by: Option<u32>,
}

/// All keys of one server.
pub struct Store {
    keys: Vec<Vec<Version>>,
}

impl Store {
    pub fn new(keys: usize) -> Store {
        let empty = || vec![Version { from: 0, value: None, by: None }];
        Store { keys: (0..keys).map(|_| empty()).collect() }
    }

    pub fn value(&self, key: usize) -> Option<&Value> {
        self.keys[key].last().and_then(|version| version.value.as_ref())
    }

    pub fn put(&mut self, key: usize, from: u64, value: Option<Value>, by: Option<u32>) {
        if value.is_none() && self.value(key).is_none() {
            return;
        }
        self.keys[key].push(Version { from, value, by });
    }

    /// Removes every key.
    pub fn wipe(&mut self, from: u64) {
        for key in 0..self.keys.len() {
            self.put(key, from, None, None);
        }
    }

    /// Returns the versions of a key that existed at `after` or later, the newest first.
    pub fn since(&self, key: usize, after: u64) -> impl Iterator<Item = &Version> {
        let versions = &self.keys[key];
        let mut end = u64::MAX;
        versions.iter().rev().take_while(move |version| {
            let lasted = end > after;
            end = version.from;
            lasted
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_counts_until_the_next_begins() {
        let mut store = Store::new(1);
        let value = |cas| Some(Value::plain(Rc::from(&b"v"[..]), 0, cas));
        store.put(0, 10, value(1), None);
        store.put(0, 20, value(2), None);
        let from = |after| store.since(0, after).map(|version| version.from).collect::<Vec<_>>();
        assert_eq!(from(0), [20, 10, 0]);
        assert_eq!(from(9), [20, 10, 0]);
        assert_eq!(from(10), [20, 10]);
        assert_eq!(from(19), [20, 10]);
        assert_eq!(from(20), [20]);
    }
}
