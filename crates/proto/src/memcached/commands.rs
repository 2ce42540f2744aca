//! The command table: one row a word. `docs/reference/commands.md` is made from it.

use crate::{Ask, Class, Command, Local, Refusal};

/// What the arguments of a command look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `key+`
    Keys,
    /// `exptime key+`
    ExptimeKeys,
    /// `key flags exptime bytes [noreply]`, then the data.
    Store,
    /// `key flags exptime bytes cas [noreply]`, then the data.
    StoreCas,
    /// `key [0] [noreply]`
    Delete,
    /// `key delta [noreply]`
    Delta,
    /// `key exptime [noreply]`
    Touch,
    /// `[delay] [noreply]`
    Flush,
    /// `level [noreply]`
    Verbosity,
    /// No argument: those that memcached knows are about one server.
    Stats,
    /// No argument that we read.
    Bare,
    /// `key bytes flag*`, then the data: refused, but its data must be swallowed.
    MetaStore,
}

const UPDATE: Class = Class::Single { writes: true };

const SERVER_ONLY: Class =
    Class::Refuse(Refusal::ByName("refused by the proxy: ask the server itself"));
const META: Class = Class::Refuse(Refusal::ByName("refused by the proxy: no meta protocol here"));

const fn row(name: &'static str, class: Class, note: &'static str) -> Command {
    Command { name, class, note }
}

const fn fetch(command: u8) -> Class {
    Class::Fetch { ask: Ask { command }, merge: true, idempotent: true }
}

const fn fetch_touch(command: u8) -> Class {
    Class::Fetch { ask: Ask { command }, merge: false, idempotent: false }
}

/// The rows, in the order of [`SHAPES`].
pub(super) static TABLE: &[Command] = &[
    row(
        "get",
        fetch(GET),
        "any number of keys; split by server, gathered in the client's order; merged",
    ),
    row("gets", fetch(GETS), "as get, with the cas number"),
    row("gat", fetch_touch(GAT), "as get, and sets the expiry; never asked twice"),
    row("gats", fetch_touch(GATS), "as gat, with the cas number"),
    row("set", UPDATE, ""),
    row("add", UPDATE, ""),
    row("replace", UPDATE, ""),
    row("append", UPDATE, ""),
    row("prepend", UPDATE, ""),
    row("cas", UPDATE, "the cas number belongs to the server that gave it"),
    row("delete", UPDATE, "a time other than 0 is refused, as by memcached"),
    row("incr", UPDATE, ""),
    row("decr", UPDATE, ""),
    row("touch", UPDATE, ""),
    row(
        "flush_all",
        Class::Broadcast { ask: Ask { command: FLUSH_ALL } },
        "to all servers, only with `allow: [flush_all]`",
    ),
    row("version", Class::Local(Local::Version), "the proxy's own"),
    row("verbosity", Class::Local(Local::Nothing), "accepted, without effect"),
    row("stats", Class::Local(Local::Stats), "the proxy's own counters, per pool and server"),
    row("quit", Class::Local(Local::Quit), "closes after the answers to what came before"),
    row("shutdown", SERVER_ONLY, ""),
    row("slabs", SERVER_ONLY, ""),
    row("lru", SERVER_ONLY, ""),
    row("lru_crawler", SERVER_ONLY, ""),
    row("watch", SERVER_ONLY, ""),
    row("cache_memlimit", SERVER_ONLY, ""),
    row("extstore", SERVER_ONLY, ""),
    row("refresh_certs", SERVER_ONLY, ""),
    row("misbehave", SERVER_ONLY, ""),
    row("debugtime", SERVER_ONLY, ""),
    row("mg", META, "a later version"),
    row("ms", META, "a later version; its data block is swallowed"),
    row("md", META, "a later version"),
    row("ma", META, "a later version"),
    row("mn", META, "a later version"),
    row("me", META, "a later version"),
];

/// The arguments of each row; rows past its end have none that we read.
pub(super) static SHAPES: &[Shape] = &[
    Shape::Keys,
    Shape::Keys,
    Shape::ExptimeKeys,
    Shape::ExptimeKeys,
    Shape::Store,
    Shape::Store,
    Shape::Store,
    Shape::Store,
    Shape::Store,
    Shape::StoreCas,
    Shape::Delete,
    Shape::Delta,
    Shape::Delta,
    Shape::Touch,
    Shape::Flush,
    Shape::Bare,
    Shape::Verbosity,
    Shape::Stats,
    Shape::Bare,
];

pub(super) const GET: u8 = 0;
pub(super) const GETS: u8 = 1;
pub(super) const GAT: u8 = 2;
pub(super) const GATS: u8 = 3;
pub(super) const SET: u8 = 4;
pub(super) const CAS: u8 = 9;
pub(super) const DELETE: u8 = 10;
pub(super) const INCR: u8 = 11;
pub(super) const DECR: u8 = 12;
pub(super) const TOUCH: u8 = 13;
pub(super) const FLUSH_ALL: u8 = 14;
pub(super) const VERSION: u8 = 15;

/// The row of a word. The words of nearly all traffic are asked first.
pub(super) fn lookup(word: &[u8]) -> Option<u8> {
    match word {
        b"get" => Some(GET),
        b"set" => Some(SET),
        _ => TABLE.iter().position(|row| row.name.as_bytes() == word).map(|at| at as u8),
    }
}

/// The arguments of a row.
pub(super) fn shape(command: u8) -> Shape {
    match TABLE[usize::from(command)].name {
        "ms" => Shape::MetaStore,
        _ => SHAPES.get(usize::from(command)).copied().unwrap_or(Shape::Bare),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_rows_stand_where_their_names_say() {
        for (row, name) in [
            (GET, "get"),
            (GETS, "gets"),
            (GAT, "gat"),
            (GATS, "gats"),
            (SET, "set"),
            (CAS, "cas"),
            (DELETE, "delete"),
            (INCR, "incr"),
            (DECR, "decr"),
            (TOUCH, "touch"),
            (FLUSH_ALL, "flush_all"),
            (VERSION, "version"),
        ] {
            assert_eq!(TABLE[usize::from(row)].name, name);
            assert_eq!(lookup(name.as_bytes()), Some(row));
        }
    }
}
