//! The addresses from which requests come in pieces: those that would wait for a delayed ACK. A
//! bounded table, whose least counted address makes room (the space-saving algorithm of Metwally,
//! Agrawal and El Abbadi): whoever comes often is in it, whatever comes beside.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proxy::Time;

use crate::ipc::query::InPiecesRow;

#[derive(Default)]
pub(super) struct InPieces {
    found: BTreeMap<IpAddr, Found>,
}

#[derive(Clone, Copy, Default)]
struct Found {
    count: u64,
    /// Those of them that were late.
    late: u64,
    /// What the address had whose place this one took.
    over: u64,
    late_us: u64,
    latest_us: u64,
    last: Time,
}

impl InPieces {
    /// Notes that more of a request came so late after an ACK that was sent at once.
    pub(super) fn note(&mut self, address: IpAddr, (late_us, is_late): (u64, bool), now: Time) {
        let full = self.found.len() >= PLACES && !self.found.contains_key(&address);
        let over = if full { self.make_room() } else { 0 };
        let fresh = Found { count: over, over, ..Found::default() };
        let found = self.found.entry(address).or_insert(fresh);
        found.count += 1;
        found.late += u64::from(is_late);
        found.late_us += late_us;
        found.latest_us = found.latest_us.max(late_us);
        found.last = now;
    }

    /// Forgets the least counted address; returns its count.
    fn make_room(&mut self) -> u64 {
        let least = self.found.iter().map(|(address, it)| (it.count, it.last, *address)).min();
        let Some((count, _, address)) = least else { return 0 };
        self.found.remove(&address);
        count
    }

    /// Returns the first, those counted most.
    pub(super) fn rows(&self, limit: usize, now: Time) -> Vec<InPiecesRow> {
        let row = |(address, it): (&IpAddr, &Found)| InPiecesRow {
            address: *address,
            count: it.count,
            over: it.over,
            late: it.late,
            late_us: it.late_us,
            latest_us: it.latest_us,
            ago_us: now.since(it.last),
        };
        let mut rows: Vec<InPiecesRow> = self.found.iter().map(row).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.count));
        rows.truncate(limit);
        rows
    }
}

/// Addresses that have a place.
const PLACES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    #[test]
    fn an_address_that_comes_often_stays_while_others_come_and_go() {
        let mut table = InPieces::default();
        for n in 0..100_000u32 {
            table.note(address(1_000 + n), (10, false), Time(n.into()));
            if n % 20 == 0 {
                table.note(address(7), (40 + u64::from(n % 3), false), Time(n.into()));
            }
        }
        assert_eq!(table.found.len(), PLACES);
        let first = &table.rows(1, Time(100_000))[0];
        assert_eq!((first.address, first.latest_us), (address(7), 42));
        let real = first.count - first.over..=first.count;
        assert!(real.contains(&5_000), "{first:?}");
    }

    #[test]
    fn while_there_is_room_counts_are_exact() {
        let mut table = InPieces::default();
        for (n, late_us) in [(1, 10), (2, 5), (1, 30)] {
            table.note(address(n), (late_us, late_us > 20), Time(9));
        }
        let rows = table.rows(9, Time(10));
        let short = |row: &InPiecesRow| (row.address, row.count, row.late, row.late_us, row.ago_us);
        let rows: Vec<_> = rows.iter().map(short).collect();
        assert_eq!(rows, [(address(1), 2, 1, 40, 1), (address(2), 1, 0, 5, 1)]);
    }
}
