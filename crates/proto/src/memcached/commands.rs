//! The command table: one entry for each command. `docs/reference/commands.md` is made from it.

use super::meta::Verb;
use crate::{Ask, Class, Command, Local, Reach, Refusal, Work};

/// The arguments of a command.
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
    /// An optional subcommand.
    Stats,
    /// `[subcommand] number* [noreply]`: only its length is checked; the rest is left to the
    /// servers.
    Admin,
    /// No argument that is read.
    Bare,
    /// `key [bytes] flag*`, and for `ms` then the data.
    Meta(Verb),
}

const UPDATE: Class = Class::Single { writes: true };

/// The class of a command for every server, where the pool allows it.
const fn admin(command: u16) -> Class {
    Class::Broadcast { ask: Ask { command }, gated: true, writes: true, reach: Reach::All }
}

/// The class of a command for the only server. Its answer is no list of facts, so several answers
/// could not be merged.
const fn sole(command: u16) -> Class {
    Class::Broadcast { ask: Ask { command }, gated: false, writes: false, reach: Reach::Sole }
}

/// The class of a command for every server; the answer names servers that do not answer.
pub(super) const STATISTICS: Class = Class::Broadcast {
    ask: Ask { command: STATS },
    gated: false,
    writes: false,
    reach: Reach::Survey,
};

pub(super) const STREAM: &str = "refused by the proxy: it is a stream; ask the server itself";

const SERVER_ONLY: Class =
    Class::Refuse(Refusal::ByName("refused by the proxy: ask the server itself"));

/// The note for commands that store.
const ENDS: &str = "a length that cannot be read closes the connection";

/// The families of commands, in all protocols of clients.
pub(super) const FAMILIES: &[&str] = &["get", "set", "delete", "arithmetic", "touch", "other"];

pub(super) const FAMILY_GET: u8 = 0;
pub(super) const FAMILY_SET: u8 = 1;
pub(super) const FAMILY_DELETE: u8 = 2;
pub(super) const FAMILY_ARITHMETIC: u8 = 3;
pub(super) const FAMILY_TOUCH: u8 = 4;
pub(super) const FAMILY_OTHER: u8 = 5;

/// Returns the family of a command by its name.
const fn family(name: &str) -> u8 {
    match name.as_bytes() {
        b"get" | b"gets" | b"mg" => FAMILY_GET,
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" | b"ms" => FAMILY_SET,
        b"delete" | b"md" => FAMILY_DELETE,
        b"incr" | b"decr" | b"ma" => FAMILY_ARITHMETIC,
        b"touch" | b"gat" | b"gats" => FAMILY_TOUCH,
        _ => FAMILY_OTHER,
    }
}

const fn row(name: &'static str, class: Class, note: &'static str) -> Command {
    Command { name, class, work: Work::Quick, family: family(name), capable: false, note }
}

/// An entry for a meta command that servers are asked.
const fn meta(name: &'static str, class: Class, note: &'static str) -> Command {
    Command { capable: true, ..row(name, class, note) }
}

const fn fetch(command: u16) -> Class {
    Class::Fetch { ask: Ask { command }, merge: true, idempotent: true }
}

const fn fetch_touch(command: u16) -> Class {
    Class::Fetch { ask: Ask { command }, merge: false, idempotent: false }
}

/// The entries; [`shape`] has their arguments.
pub(super) static TABLE: &[Command] = &[
    row(
        "get",
        fetch(GET),
        "any number of keys; split by server, gathered in the client's order; merged",
    ),
    row("gets", fetch(GETS), "as get, with the cas number"),
    row("gat", fetch_touch(GAT), "as get, and sets the expiry; never sent twice"),
    row("gats", fetch_touch(GATS), "as gat, with the cas number"),
    row("set", UPDATE, ENDS),
    row("add", UPDATE, ENDS),
    row("replace", UPDATE, ENDS),
    row("append", UPDATE, ENDS),
    row("prepend", UPDATE, ENDS),
    row(
        "cas",
        UPDATE,
        "the cas number belongs to the server that gave it; a length that cannot be read closes \
         the connection",
    ),
    row("delete", UPDATE, "a time other than 0 is refused, as by memcached"),
    row("incr", UPDATE, ""),
    row("decr", UPDATE, ""),
    row("touch", UPDATE, ""),
    row("flush_all", admin(FLUSH_ALL), "to all servers, only with `allow: [flush_all]`"),
    row("version", Class::Local(Local::Version), "the proxy's own"),
    row("verbosity", Class::Local(Local::Nothing), "accepted, without effect"),
    row(
        "stats",
        STATISTICS,
        "memcached's names, of the pool: see above; `settings items slabs sizes conns extstore` \
         are the servers' own, and of several each name begins with its server; `proxy`: the \
         proxy's own counters, per pool and server; for the others see below",
    ),
    row("quit", Class::Local(Local::Quit), "closes after the answers to what came before"),
    row("shutdown", SERVER_ONLY, ""),
    row(
        "slabs",
        admin(SLABS),
        "to all servers, only if `allow:` names it; if their answers differ, the answer is an \
         error that names each",
    ),
    row("lru", admin(LRU), "as slabs"),
    row(
        "lru_crawler",
        admin(LRU_CRAWLER),
        "as slabs; `metadump` and `mgdump` are streams and are refused",
    ),
    row("watch", Class::Refuse(Refusal::ByName(STREAM)), "a stream"),
    row("cache_memlimit", admin(CACHE_MEMLIMIT), "as slabs"),
    row("extstore", admin(EXTSTORE), "as slabs"),
    row("refresh_certs", SERVER_ONLY, ""),
    row("misbehave", SERVER_ONLY, ""),
    row("debugtime", admin(DEBUGTIME), "as slabs; only debug builds of memcached have it"),
    row("stats reset", admin(STATS_RESET), "as slabs"),
    row("stats detail", admin(STATS_DETAIL), "`on` and `off`: as slabs"),
    row("stats sizes_enable", admin(SIZES_ENABLE), "as slabs"),
    row("stats sizes_disable", admin(SIZES_DISABLE), "as slabs"),
    row(
        "stats detail dump",
        sole(DETAIL_DUMP),
        "only in a pool of one server; over binary one value, `detailed`",
    ),
    row(
        "stats cachedump",
        sole(CACHEDUMP),
        "only in a pool of one server; not over binary, as in memcached",
    ),
    meta(
        "mg",
        Class::Single { writes: false },
        "with `v`, and no flag but `v f c k s O q P L`, merged with other reads until a \
         client of the pool uses stale or win marks; on servers without meta only these and `T`",
    ),
    meta(
        "ms",
        UPDATE,
        "on servers without meta only `T F M k O q P L`, and `C` in the modes S and R; a length \
         that cannot be read closes the connection, but a line without one does not",
    ),
    meta("md", UPDATE, "on servers without meta only `k O q P L`"),
    meta(
        "ma",
        UPDATE,
        "on servers without meta only `D M v k O q P L`; `q` hides a number that `N` made",
    ),
    row(
        "mn",
        Class::Local(Local::Barrier),
        "answered when all requests before it are settled on all servers",
    ),
    meta(
        "me",
        Class::Single { writes: false },
        "only on servers with meta; a key that a line cannot hold is refused",
    ),
];

/// The arguments of the first entries, in their order.
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

pub(super) const GET: u16 = 0;
pub(super) const GETS: u16 = 1;
pub(super) const GAT: u16 = 2;
pub(super) const GATS: u16 = 3;
pub(super) const SET: u16 = 4;
pub(super) const ADD: u16 = 5;
pub(super) const REPLACE: u16 = 6;
pub(super) const APPEND: u16 = 7;
pub(super) const PREPEND: u16 = 8;
pub(super) const CAS: u16 = 9;
pub(super) const DELETE: u16 = 10;
pub(super) const INCR: u16 = 11;
pub(super) const DECR: u16 = 12;
pub(super) const TOUCH: u16 = 13;
pub(super) const FLUSH_ALL: u16 = 14;
pub(super) const VERSION: u16 = 15;
pub(super) const STATS: u16 = 17;
pub(super) const SLABS: u16 = 20;
pub(super) const LRU: u16 = 21;
pub(super) const LRU_CRAWLER: u16 = 22;
pub(super) const CACHE_MEMLIMIT: u16 = 24;
pub(super) const EXTSTORE: u16 = 25;
pub(super) const DEBUGTIME: u16 = 28;
/// No command of a line has this name, nor those of the entries that follow.
pub(super) const STATS_RESET: u16 = 29;
pub(super) const STATS_DETAIL: u16 = 30;
pub(super) const SIZES_ENABLE: u16 = 31;
pub(super) const SIZES_DISABLE: u16 = 32;
pub(super) const DETAIL_DUMP: u16 = 33;
pub(super) const CACHEDUMP: u16 = 34;
pub(super) const MG: u16 = 35;
pub(super) const MS: u16 = 36;
pub(super) const MD: u16 = 37;
pub(super) const MA: u16 = 38;
pub(super) const MN: u16 = 39;
pub(super) const ME: u16 = 40;
/// No client sends these: reads of one key that are answered by one item, including its `END`.
pub(super) const GETS_ONE: u16 = 41;
pub(super) const GATS_ONE: u16 = 42;

/// Returns the entry of a command name. The names of nearly all traffic are checked first.
pub(super) fn lookup(word: &[u8]) -> Option<u16> {
    match word {
        b"get" => Some(GET),
        b"set" => Some(SET),
        b"mg" => Some(MG),
        b"ms" => Some(MS),
        _ => TABLE.iter().position(|row| row.name.as_bytes() == word).map(|at| at as u16),
    }
}

/// Returns the arguments of an entry. The arguments of refused commands are not read.
pub(super) fn shape(command: u16) -> Shape {
    match command {
        SLABS | LRU | LRU_CRAWLER | CACHE_MEMLIMIT | EXTSTORE | DEBUGTIME => Shape::Admin,
        MG => Shape::Meta(Verb::Get),
        MS => Shape::Meta(Verb::Set),
        MD => Shape::Meta(Verb::Delete),
        MA => Shape::Meta(Verb::Arithmetic),
        MN => Shape::Meta(Verb::Noop),
        ME => Shape::Meta(Verb::Debug),
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
            (ADD, "add"),
            (REPLACE, "replace"),
            (APPEND, "append"),
            (PREPEND, "prepend"),
            (CAS, "cas"),
            (DELETE, "delete"),
            (INCR, "incr"),
            (DECR, "decr"),
            (TOUCH, "touch"),
            (FLUSH_ALL, "flush_all"),
            (VERSION, "version"),
            (STATS, "stats"),
            (SLABS, "slabs"),
            (LRU, "lru"),
            (LRU_CRAWLER, "lru_crawler"),
            (CACHE_MEMLIMIT, "cache_memlimit"),
            (EXTSTORE, "extstore"),
            (DEBUGTIME, "debugtime"),
            (STATS_RESET, "stats reset"),
            (STATS_DETAIL, "stats detail"),
            (SIZES_ENABLE, "stats sizes_enable"),
            (SIZES_DISABLE, "stats sizes_disable"),
            (DETAIL_DUMP, "stats detail dump"),
            (CACHEDUMP, "stats cachedump"),
            (MG, "mg"),
            (MS, "ms"),
            (MD, "md"),
            (MA, "ma"),
            (MN, "mn"),
            (ME, "me"),
        ] {
            assert_eq!(TABLE[usize::from(row)].name, name);
            assert_eq!(lookup(name.as_bytes()), Some(row));
        }
        assert_eq!(usize::from(GETS_ONE), TABLE.len());
    }
}
