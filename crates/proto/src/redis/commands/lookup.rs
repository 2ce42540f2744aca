//! Finds a row by its name, in any case: this is asked of every request.

use super::table::ROWS;

/// The row of a command.
#[inline]
pub(in crate::redis) fn lookup(name: &[u8]) -> Option<u16> {
    find(hash(SEED, name), |row| row.eq_ignore_ascii_case(name))
}

/// The row of a container's subcommand.
pub(in crate::redis) fn lookup_sub(container: u16, name: &[u8]) -> Option<u16> {
    let container = ROWS[usize::from(container)].name.as_bytes();
    let whole = hash(hash(SEED, container) ^ BAR, name);
    find(whole, |row| {
        row.len() == container.len() + 1 + name.len()
            && row.starts_with(container)
            && row[container.len()] == b'|'
            && row[container.len() + 1..].eq_ignore_ascii_case(name)
    })
}

#[inline]
fn find(hash: u32, is_it: impl Fn(&[u8]) -> bool) -> Option<u16> {
    let mut slot = hash as usize % SLOTS;
    loop {
        let row = TABLE[slot];
        if row == EMPTY {
            return None;
        }
        if is_it(ROWS[usize::from(row)].name.as_bytes()) {
            return Some(row);
        }
        slot = (slot + 1) % SLOTS;
    }
}

/// A power of two, several times the number of rows.
const SLOTS: usize = 2048;
const EMPTY: u16 = u16::MAX;
const SEED: u32 = 0x9e37_79b9;
/// Stands for the bar in a subcommand's name. A client cannot write it, so that `client|id` is no
/// command.
const BAR: u32 = 0x5bd1_e995;

/// Rows by the hash of their names; who finds its slot taken has the next that is free.
static TABLE: [u16; SLOTS] = {
    let mut table = [EMPTY; SLOTS];
    let mut row = 0;
    while row < ROWS.len() {
        let mut slot = row_hash(ROWS[row].name.as_bytes()) as usize % SLOTS;
        while table[slot] != EMPTY {
            slot = (slot + 1) % SLOTS;
        }
        table[slot] = row as u16;
        row += 1;
    }
    table
};

const fn row_hash(name: &[u8]) -> u32 {
    let mut bar = 0;
    while bar < name.len() && name[bar] != b'|' {
        bar += 1;
    }
    let (container, rest) = name.split_at(bar);
    match rest.split_first() {
        None => hash(SEED, container),
        Some((_, sub)) => hash(hash(SEED, container) ^ BAR, sub),
    }
}

/// Letters are the same in both cases, and a few other bytes with them, which does not matter.
#[inline]
const fn hash(seed: u32, name: &[u8]) -> u32 {
    let (mut hash, mut at) = (seed, 0);
    while at < name.len() {
        hash = (hash ^ (name[at] | 0x20) as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_in_any_case() {
        for (place, row) in ROWS.iter().enumerate() {
            for name in [row.name.to_string(), row.name.to_uppercase()] {
                let found = match name.split_once('|') {
                    None => lookup(name.as_bytes()),
                    Some((container, sub)) => {
                        let container = lookup(container.as_bytes()).expect("a container");
                        lookup_sub(container, sub.as_bytes())
                    }
                };
                assert_eq!(found, Some(place as u16), "{name}");
            }
        }
    }

    #[test]
    fn nothing_else_is_found() {
        for name in ["", "ge", "gets", "get\0", "client|id", "CLIENT|ID", "id", "g\u{65}\u{301}t"] {
            assert_eq!(lookup(name.as_bytes()), None, "{name:?}");
        }
        let client = lookup(b"client").expect("a row");
        for name in ["", "i", "ids", "|id", "cat"] {
            assert_eq!(lookup_sub(client, name.as_bytes()), None, "{name:?}");
        }
    }

    /// A request costs a few looks, not a walk.
    #[test]
    fn names_are_where_they_are_looked_for() {
        let mut worst = 0;
        for row in ROWS {
            let slot = row_hash(row.name.as_bytes()) as usize % SLOTS;
            let is_it = |at: &usize| ROWS[usize::from(TABLE[(slot + at) % SLOTS])].name == row.name;
            worst = worst.max((0..SLOTS).find(is_it).expect("every row is in it"));
        }
        assert!(worst <= 6, "{worst}");
    }
}
