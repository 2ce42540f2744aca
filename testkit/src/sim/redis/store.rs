//! A model server's data: the keys of each of its databases, scripts, and its state.

use std::collections::BTreeSet;

use proxy::Time;

use crate::sim::scene::Key;

/// The value of a key.
#[derive(Clone)]
pub enum Held {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
}

/// The state of a Redis server.
pub struct Model {
    /// By database, then by key.
    pub databases: Vec<Vec<Option<Held>>>,
    /// The scripts it knows, as the numbers of the requests that loaded them.
    pub scripts: BTreeSet<u32>,
    /// Until then it answers that it is loading.
    pub loads_until: Time,
    /// It supports `HELLO`, and so RESP3.
    pub speaks_three: bool,
    /// A command of transactions that has another name there.
    pub lacks: Option<&'static str>,
}

impl Model {
    pub fn new(keys: usize, databases: usize, speaks_three: bool) -> Model {
        Model {
            databases: vec![vec![None; keys]; databases],
            scripts: BTreeSet::new(),
            loads_until: Time(0),
            speaks_three,
            lacks: None,
        }
    }

    /// Returns the keys of a database, each with the index of its server.
    pub fn keys(&self, database: usize, keys: &[Key], server: usize) -> Vec<Vec<u8>> {
        let held = (0..keys.len()).filter(|key| self.databases[database][*key].is_some());
        held.map(|key| format!("{}@{server}", keys[key].text).into_bytes()).collect()
    }

    /// Removes all data.
    pub fn forget(&mut self) {
        self.databases.iter_mut().for_each(|database| database.fill(None));
        self.scripts.clear();
    }

    pub fn wipe(&mut self, database: Option<usize>) {
        match database {
            Some(database) => self.databases[database].fill(None),
            None => self.databases.iter_mut().for_each(|database| database.fill(None)),
        }
    }
}
