//! Servers that take no further connection: one that is made is accepted, told so, and closed.

use std::borrow::Cow;

use super::world::World;

/// A server's words to a connection above its limit, as in Redis and memcached.
const REDIS: &str = "ERR max number of clients reached";
const MEMCACHED: &str = "ERROR Too many open connections";

impl World {
    /// Has a server, which is full, answer a connection that has just been made. It has not read a
    /// byte of it.
    pub fn turn_away(&mut self, at: usize) {
        let conn = self.conns[at].as_mut().expect("the caller found it");
        let line = match self.pools[conn.pool].is_redis {
            true => format!("-{REDIS}\r\n"),
            false => format!("{MEMCACHED}\r\n"),
        };
        conn.output.extend_from_slice(line.as_bytes());
        conn.is_turned_away = true;
    }

    /// Notes that all of a full server's words have arrived. They show that it is there.
    pub fn note_turned_away(&mut self, (pool, server): (usize, usize)) {
        let entry = &mut self.pools[pool].servers[server];
        entry.replied = self.now;
        entry.trouble.full = self.journal.event();
        (entry.trouble.any, entry.trouble.any_time) = (entry.trouble.full, self.now);
    }
}

/// Returns an error without the words of a full server, as the table of faults has it.
pub fn without_said(text: &str) -> Cow<'_, str> {
    let said = [REDIS, MEMCACHED].map(|said| format!("takes no further connection: {said}; "));
    let found = said.iter().find(|said| text.contains(&***said));
    match found {
        Some(said) => text.replace(&**said, "takes no further connection, ").into(),
        None => text.into(),
    }
}
