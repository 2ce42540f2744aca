//! Finds a command by its name, in either case. This runs for every request.
//!
//! A name is compared as numbers of eight bytes. Bit 5 of a letter is its case: without that bit,
//! both cases are the same number.

use super::ROWS;

/// Returns the index of a command.
#[inline]
pub(in crate::redis) fn lookup(name: &[u8]) -> Option<u16> {
    let word = if name.len() <= 8 { short(name, 0) } else { first_eight(name) };
    find(TOP, name, word)
}

/// As `lookup` of `input[start..end]`, if eight bytes are there.
#[inline(always)]
pub(in crate::redis) fn lookup_at(input: &[u8], start: usize, end: usize) -> Option<u16> {
    match input.get(start..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(&eight) if end - start <= 8 && end > start => {
            let word = u64::from_le_bytes(eight) & (u64::MAX >> (64 - 8 * (end - start)));
            find(TOP, &input[start..end], word)
        }
        _ => lookup(&input[start..end]),
    }
}

/// Returns the index of a container's subcommand.
pub(in crate::redis) fn lookup_sub(container: u16, name: &[u8]) -> Option<u16> {
    let word = if name.len() <= 8 { short(name, 0) } else { first_eight(name) };
    find(container, name, word)
}

/// Finds a name whose first eight bytes are `word`.
#[inline(always)]
fn find(container: u16, name: &[u8], word: u64) -> Option<u16> {
    let mut slot = slot(container, name.len(), word);
    loop {
        let entry = &TABLE[slot];
        if entry.len == 0 {
            return None;
        }
        if word & entry.mask == entry.word
            && usize::from(entry.len) == name.len()
            && entry.container == container
            && entry.ends(name)
        {
            return Some(entry.row);
        }
        slot = (slot + 1) % SLOTS;
    }
}

/// One slot of the table; it is free if the length is 0.
#[derive(Clone, Copy)]
struct Entry {
    /// The first eight bytes, letters in upper case.
    word: u64,
    /// Clears the case bit of bytes that must be letters.
    mask: u64,
    row: u16,
    container: u16,
    len: u8,
}

impl Entry {
    /// Whether the bytes after the first eight match too.
    #[inline(always)]
    fn ends(&self, name: &[u8]) -> bool {
        name.len() <= 8 || self.ends_long(name)
    }

    fn ends_long(&self, name: &[u8]) -> bool {
        let row = ROWS[usize::from(self.row)].name.as_bytes();
        let start = row.len() - name.len();
        row[start..].eq_ignore_ascii_case(name)
    }
}

/// A power of two, several times the number of commands.
const SLOTS: usize = 2048;
/// The container of commands that are in none.
const TOP: u16 = u16::MAX;
const FREE: Entry = Entry { word: 0, mask: u64::MAX, row: 0, container: TOP, len: 0 };
const NO_CASE: u64 = 0xdfdf_dfdf_dfdf_dfdf;

#[inline(always)]
const fn slot(container: u16, len: usize, word: u64) -> usize {
    let seed = (container as u64) << 5 ^ len as u64;
    ((word & NO_CASE ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as usize % SLOTS
}

/// The commands by the hash of their names. A command whose slot is taken has the next free one.
static TABLE: [Entry; SLOTS] = {
    let mut table = [FREE; SLOTS];
    let mut row = 0;
    while row < ROWS.len() {
        let entry = entry(row);
        let mut slot = slot(entry.container, entry.len as usize, entry.word);
        while table[slot].len != 0 {
            slot = (slot + 1) % SLOTS;
        }
        table[slot] = entry;
        row += 1;
    }
    table
};

const fn entry(row: usize) -> Entry {
    let name = ROWS[row].name.as_bytes();
    let mut bar = 0;
    while bar < name.len() && name[bar] != b'|' {
        bar += 1;
    }
    let (container, start) =
        if bar == name.len() { (TOP, 0) } else { (row_of(name.split_at(bar).0), bar + 1) };
    let word = short(name, start);
    // Names in the table are in lower case. Bytes that differ by more than bit 5 are no letters.
    let (mut mask, mut at) = (u64::MAX, 0);
    while at < 8 && start + at < name.len() {
        if name[start + at].is_ascii_lowercase() {
            mask &= !(0x20 << (8 * at));
        }
        at += 1;
    }
    Entry { word: word & mask, mask, row: row as u16, container, len: (name.len() - start) as u8 }
}

/// Returns the index of the command with this name in lower case, which must be there.
pub(in crate::redis) const fn row_of(name: &[u8]) -> u16 {
    let mut row = 0;
    loop {
        let other = ROWS[row].name.as_bytes();
        let mut at = 0;
        while at < name.len() && at < other.len() && other[at] == name[at] {
            at += 1;
        }
        if at == name.len() && at == other.len() {
            return row as u16;
        }
        row += 1;
    }
}

/// Returns up to eight bytes from `start` on.
const fn short(name: &[u8], start: usize) -> u64 {
    let (mut word, mut at) = (0, 0);
    while at < 8 && start + at < name.len() {
        word |= (name[start + at] as u64) << (8 * at);
        at += 1;
    }
    word
}

fn first_eight(name: &[u8]) -> u64 {
    name.first_chunk::<8>().map_or(0, |eight| u64::from_le_bytes(*eight))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_in_any_case() {
        for (place, row) in ROWS.iter().enumerate() {
            for name in [row.name.to_string(), row.name.to_uppercase()] {
                let found = match name.split_once('|') {
                    None => {
                        let input = format!("{name}\r\n$5\r\nhello\r\n").into_bytes();
                        let at = lookup_at(&input, 0, name.len());
                        assert_eq!(at, lookup_at(&input[..name.len()], 0, name.len()), "{name}");
                        assert_eq!(at, lookup(name.as_bytes()), "{name}");
                        at
                    }
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

    /// No byte matches another, except for the two cases of a letter.
    #[test]
    fn a_name_with_one_other_byte_is_another() {
        for row in ROWS.iter().filter(|row| !row.name.contains('|')) {
            let mut name = row.name.as_bytes().to_vec();
            for at in 0..name.len() {
                let right = name[at];
                for byte in (0..=255u8).filter(|byte| !byte.eq_ignore_ascii_case(&right)) {
                    name[at] = byte;
                    let is_row =
                        |row: u16| name.eq_ignore_ascii_case(ROWS[row as usize].name.as_bytes());
                    assert!(lookup(&name).is_none_or(is_row), "{name:?}");
                }
                name[at] = right;
            }
        }
    }

    /// A lookup costs a few comparisons, not a walk through the table.
    #[test]
    fn names_are_where_they_are_looked_for() {
        let mut worst = 0;
        for row in 0..ROWS.len() {
            let entry = entry(row);
            let slot = slot(entry.container, usize::from(entry.len), entry.word);
            let is_it = |at: &usize| {
                let found = &TABLE[(slot + at) % SLOTS];
                found.len > 0 && usize::from(found.row) == row
            };
            worst = worst.max((0..SLOTS).find(is_it).expect("every row is in it"));
        }
        assert!(worst <= 6, "{worst}");
    }
}
