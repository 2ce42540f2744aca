//! The connection keys of a pool. The handshake on a link holds for everything that follows on it,
//! so requests that need another handshake have links of their own.

use proto::ConnKey;

use super::limits;

/// The connection keys of a pool.
pub(crate) struct ConnKeys {
    conn_keys: Vec<InUse>,
    /// The connection key with which new clients begin, and servers are probed.
    pub(crate) home: u16,
}

/// A connection key, and how many clients and links use it.
struct InUse {
    conn_key: ConnKey,
    clients: usize,
    links: usize,
}

impl InUse {
    fn new(conn_key: ConnKey) -> InUse {
        InUse { conn_key, clients: 0, links: 0 }
    }
}

impl ConnKeys {
    pub(crate) fn new(home: ConnKey) -> ConnKeys {
        ConnKeys { conn_keys: vec![InUse::new(home)], home: 0 }
    }

    /// Whether a new connection key has to take the index of an unused one.
    pub(crate) fn is_full(&self) -> bool {
        self.conn_keys.len() >= limits::CONN_KEYS_MAX
    }

    pub(crate) fn of(&self, place: u16) -> ConnKey {
        self.conn_keys[usize::from(place)].conn_key
    }

    pub(crate) fn find(&self, conn_key: ConnKey) -> Option<u16> {
        self.conn_keys.iter().position(|one| one.conn_key == conn_key).map(|at| at as u16)
    }

    /// Returns the index of a connection key, which is added if it is new. When there are as many
    /// as there may be, it takes the index of one that no client and no link uses.
    pub(crate) fn find_or_add(&mut self, conn_key: ConnKey) -> Option<u16> {
        if let Some(at) = self.find(conn_key) {
            return Some(at);
        }
        if !self.is_full() {
            self.conn_keys.push(InUse::new(conn_key));
            return Some((self.conn_keys.len() - 1) as u16);
        }
        let unused = self.unused();
        let at = unused.into_iter().find(|at| self.conn_keys[usize::from(*at)].links == 0)?;
        self.conn_keys[usize::from(at)].conn_key = conn_key;
        Some(at)
    }

    /// Returns the indexes of connection keys that no client uses.
    pub(crate) fn unused(&self) -> Vec<u16> {
        let is_unused =
            |at: &u16| *at != self.home && self.conn_keys[usize::from(*at)].clients == 0;
        (0..self.conn_keys.len() as u16).filter(is_unused).collect()
    }

    /// Makes this the connection key that clients begin with, however many there are.
    pub(crate) fn set_home(&mut self, conn_key: ConnKey) {
        let place = self.find(conn_key).unwrap_or_else(|| {
            self.conn_keys.push(InUse::new(conn_key));
            (self.conn_keys.len() - 1) as u16
        });
        self.home = place;
    }

    /// Counts a client that now uses this connection key.
    pub(crate) fn enter(&mut self, at: u16) {
        self.conn_keys[usize::from(at)].clients += 1;
    }

    /// Removes a client from this connection key.
    pub(crate) fn leave(&mut self, at: u16) {
        self.conn_keys[usize::from(at)].clients -= 1;
    }

    /// Counts a link that is opened for this connection key.
    pub(crate) fn add_link(&mut self, at: u16) {
        self.conn_keys[usize::from(at)].links += 1;
    }

    /// Removes a link that has died.
    pub(crate) fn remove_link(&mut self, at: u16) {
        self.conn_keys[usize::from(at)].links -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn_key(database: u32) -> ConnKey {
        ConnKey { proto_version: 2, database }
    }

    #[test]
    fn the_home_is_the_connection_key_that_was_set_last() {
        let mut conn_keys = ConnKeys::new(conn_key(0));
        for database in [5, 0, 6, 5] {
            conn_keys.set_home(conn_key(database));
            assert_eq!(conn_keys.of(conn_keys.home), conn_key(database));
        }
        assert_eq!(conn_keys.conn_keys.len(), 3, "each is there once");
    }

    #[test]
    fn there_are_so_many_connection_keys_and_an_unused_index_is_taken_again() {
        let mut conn_keys = ConnKeys::new(conn_key(0));
        for database in 1..limits::CONN_KEYS_MAX as u32 {
            let at = conn_keys.find_or_add(conn_key(database)).unwrap();
            conn_keys.enter(at);
            conn_keys.add_link(at);
            assert_eq!(
                (conn_keys.find(conn_key(database)), conn_keys.of(at)),
                (Some(at), conn_key(database))
            );
        }
        let full = |conn_keys: &mut ConnKeys| conn_keys.find_or_add(conn_key(1000));
        assert_eq!(full(&mut conn_keys), None, "all are in use");
        conn_keys.leave(7);
        assert_eq!(full(&mut conn_keys), None, "links are left in it");
        conn_keys.remove_link(7);
        assert_eq!(full(&mut conn_keys), Some(7));
        assert_eq!((conn_keys.find(conn_key(7)), conn_keys.of(7)), (None, conn_key(1000)));
    }
}
