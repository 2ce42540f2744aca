//! Tests of sharing between processes, and of reading a memory that another process made.

use super::*;

#[test]
fn no_two_writers_share_a_cache_line() {
    let (slots, rows) = (5, 7);
    let book = Book::private(slots, rows);
    let mut owners = std::collections::BTreeMap::new();
    for slot in 0..slots {
        for row in 0..rows as u32 {
            let words = book.row(slot, row);
            assert_eq!(words.len() * 8 % 4096, 0, "a row is whole pages");
            for word in words {
                let line = std::ptr::from_ref(word).addr() / 64;
                let owner = *owners.entry(line).or_insert((slot, row));
                assert_eq!(owner, (slot, row), "two rows share 64 bytes");
            }
        }
    }
    let header = book.memory.as_ptr().addr() / 64;
    assert!(!owners.contains_key(&header), "a writer shares 64 bytes with the header");
}

#[test]
fn what_a_row_is_made_of_does_not_overlap() {
    let book = Book::private(2, 2);
    let range = |from: *const AtomicU64, len: usize| (from.addr(), from.addr() + len * 8);
    let sheet = book.sheet(1);
    let counters = sheet.counters::<Pool>(1);
    let mut parts = vec![range(counters.words.as_ptr(), COUNTERS)];
    for which in [Latency::Reads, Latency::Updates] {
        let recorder = sheet.recorder(1, which);
        parts.push(range(recorder.head.as_ptr(), HEAD));
        parts.push(range(recorder.buckets.as_ptr(), BUCKETS));
    }
    let row = range(book.row(1, 1).as_ptr(), ROW);
    parts.sort_unstable();
    assert!(parts.windows(2).all(|two| two[0].1 <= two[1].0), "{parts:?}");
    assert!(parts[0].0 >= row.0 && parts[parts.len() - 1].1 <= row.1);
}

#[test]
fn totals_are_sums_over_the_slots_and_outlive_a_process() {
    let book = Book::private(3, 4);
    for slot in 0..3 {
        let pool = book.sheet(slot).counters::<Pool>(2);
        pool.add(Pool::ClientsNow, 5);
        pool.subtract(Pool::ClientsNow, 2);
        pool.add(Pool::Requests, 10 + slot as u64);
        book.sheet(slot).counters::<Server>(3).set(Server::EjectedAt, 7);
    }
    assert_eq!(book.total(2, Pool::ClientsNow), 9);
    assert_eq!(book.sheet(0).total(2, Pool::Requests), 33);
    assert_eq!(book.value(1, 2, Pool::Requests), 11);
    book.clear_gauges(1);
    assert_eq!(book.total(2, Pool::ClientsNow), 6);
    assert_eq!(book.total(2, Pool::Requests), 33);
    assert_eq!(book.total(3, Server::EjectedAt), 14);
    book.sheet(2).recorder(2, Latency::Reads).record(9);
    book.clear_row(2);
    assert_eq!(book.total(2, Pool::Requests), 0);
    assert_eq!(book.histogram(2, Latency::Reads), Histogram::default());
    assert_eq!(book.total(3, Server::EjectedAt), 14, "another row is left alone");
    book.clear();
    assert_eq!(book.total(3, Server::EjectedAt), 0);
}

#[test]
#[should_panic(expected = "cannot fall below zero")]
fn what_exists_does_not_fall_below_zero() {
    Book::private(1, 1).sheet(0).counters::<Worker>(0).subtract(Worker::ClientsNow, 1);
}

#[test]
fn a_memory_that_is_no_book_of_ours_is_refused() {
    let book = Book::private(2, 3);
    let opened = Book::open(book.memory).expect("our own");
    assert_eq!((opened.slots(), opened.rows()), (2, 3));
    book.sheet(1).counters::<Worker>(0).add(Worker::Turns, 4);
    assert_eq!(opened.total(0, Worker::Turns), 4, "it is the same memory");
    let refused = |memory| Book::open(memory).err();
    assert_eq!(refused(&book.memory[..4]), Some(Refused::Foreign));
    assert_eq!(refused(&book.memory[..book.memory.len() - 1]), Some(Refused::Short));
    for (word, value, why) in [
        (0, MAGIC + 1, Refused::Foreign),
        (1, 77, Refused::Layout { found: 77, ours: LAYOUT }),
        (2, u64::MAX, Refused::Short),
        (3, 4, Refused::Short),
        (4, 512, Refused::Layout { found: LAYOUT, ours: LAYOUT }),
    ] {
        let before = book.memory[word].swap(value, Relaxed);
        assert_eq!(refused(book.memory), Some(why), "word {word}");
        book.memory[word].store(before, Relaxed);
    }
    assert!(!why_not(book.memory).is_empty());
}

fn why_not(memory: &'static [AtomicU64]) -> String {
    Book::open(&memory[..2]).err().map_or(String::new(), |refused| refused.to_string())
}
