//! The connection keys of a pool. The handshake on a link holds for everything that follows on it,
//! so requests that need another handshake have links of their own.

use proto::ConnKey;

use crate::limits;

/// The connection keys in use, each with its number of clients.
pub(crate) struct ConnKeys {
    conn_keys: Vec<(ConnKey, usize)>,
    /// The connection key with which new clients begin, and servers are probed.
    pub(crate) home: u16,
}

impl ConnKeys {
    pub(crate) fn new(home: ConnKey) -> ConnKeys {
        ConnKeys { conn_keys: vec![(home, 0)], home: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.conn_keys.len()
    }

    pub(crate) fn of(&self, place: u16) -> ConnKey {
        self.conn_keys[usize::from(place)].0
    }

    pub(crate) fn find(&self, conn_key: ConnKey) -> Option<u16> {
        self.conn_keys.iter().position(|(one, _)| *one == conn_key).map(|at| at as u16)
    }

    /// Returns an index for a new connection key. When there are as many as there may be, it takes
    /// the index of one that no client uses and that has no link (`is_unused`).
    pub(crate) fn make(
        &mut self,
        conn_key: ConnKey,
        is_unused: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        if self.conn_keys.len() < limits::CONN_KEYS_MAX {
            self.conn_keys.push((conn_key, 0));
            return Some((self.conn_keys.len() - 1) as u16);
        }
        let is_free = |at: &usize| {
            *at != usize::from(self.home) && self.conn_keys[*at].1 == 0 && is_unused(*at as u16)
        };
        let at = (0..self.conn_keys.len()).find(is_free)?;
        self.conn_keys[at].0 = conn_key;
        Some(at as u16)
    }

    /// Returns the indexes of connection keys that no client uses.
    pub(crate) fn left(&self) -> Vec<u16> {
        let is_left = |at: &u16| *at != self.home && self.conn_keys[usize::from(*at)].1 == 0;
        (0..self.conn_keys.len() as u16).filter(is_left).collect()
    }

    /// Makes this the connection key that clients begin with, however many there are.
    pub(crate) fn set_home(&mut self, conn_key: ConnKey) {
        let place = self.find(conn_key).unwrap_or_else(|| {
            self.conn_keys.push((conn_key, 0));
            (self.conn_keys.len() - 1) as u16
        });
        self.home = place;
    }

    /// Counts a client that now uses this connection key.
    pub(crate) fn enter(&mut self, place: u16) {
        self.conn_keys[usize::from(place)].1 += 1;
    }

    /// Removes a client from this connection key; returns whether it was the last.
    pub(crate) fn leave(&mut self, place: u16) -> bool {
        let clients = &mut self.conn_keys[usize::from(place)].1;
        *clients -= 1;
        *clients == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn_key(database: u32) -> ConnKey {
        ConnKey { proto_version: 2, database }
    }

    #[test]
    fn there_are_so_many_lanes_and_an_unused_place_is_taken_again() {
        let mut conn_keys = ConnKeys::new(conn_key(0));
        for database in 1..limits::CONN_KEYS_MAX as u32 {
            let place = conn_keys.make(conn_key(database), |_| false).unwrap();
            conn_keys.enter(place);
            assert_eq!(
                (conn_keys.find(conn_key(database)), conn_keys.of(place)),
                (Some(place), conn_key(database))
            );
        }
        assert_eq!(conn_keys.make(conn_key(1000), |_| true), None, "all are in use");
        assert!(conn_keys.leave(7));
        assert_eq!(conn_keys.make(conn_key(1000), |_| false), None, "links are left in it");
        assert_eq!(conn_keys.make(conn_key(1000), |_| true), Some(7));
        assert_eq!((conn_keys.find(conn_key(7)), conn_keys.of(7)), (None, conn_key(1000)));
    }
}
