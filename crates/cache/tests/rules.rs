//! memcached's rules one by one, as observed on a real memcached.

use cache::{Count, Counted, Mode, NewItem, Outcome, Store};

const NOW: u64 = 1_700_000_000;
const CENTURY: u64 = NOW + 100 * 365 * 86_400;

fn store() -> Store {
    Store::new(1 << 20, 1 << 20)
}

fn put(store: &mut Store, mode: Mode, key: &str, exptime: i64, value: &str, now: u64) -> Outcome {
    store.store(mode, &item(key, exptime, value), now)
}

fn item<'a>(key: &'a str, exptime: i64, value: &'a str) -> NewItem<'a> {
    let (key, value) = (key.as_bytes(), value.as_bytes());
    NewItem { key, flags: 5, exptime, value, ..NewItem::default() }
}

/// Sets if the item has that cas.
fn swap(store: &mut Store, key: &str, cas: u64, value: &str, now: u64) -> Outcome {
    store.store(Mode::Set, &NewItem { cas: Some(cas), ..item(key, 0, value) }, now)
}

fn incr(store: &mut Store, key: &str, delta: u64, now: u64) -> Counted {
    store.count(key.as_bytes(), &Count { up: true, delta, cas: 0, new_cas: None }, now)
}

fn decr(store: &mut Store, key: &str, delta: u64, now: u64) -> Counted {
    store.count(key.as_bytes(), &Count { up: false, delta, cas: 0, new_cas: None }, now)
}

fn set(store: &mut Store, key: &str, value: &str) {
    assert_eq!(put(store, Mode::Set, key, 0, value, NOW), Outcome::Stored);
}

/// Checks the value that a reader finds at `now`.
fn check(store: &mut Store, key: &str, now: u64, expected: Option<&str>) {
    let found = store.get(key.as_bytes(), now).map(|item| item.value.to_vec());
    assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{key}");
}

fn cas(store: &mut Store, key: &str) -> u64 {
    store.get(key.as_bytes(), NOW).expect("it was stored").cas
}

#[test]
fn an_item_expires_in_the_second_that_was_named() {
    let mut store = store();
    for (exptime, last) in
        [(0, CENTURY), (10, NOW + 9), (2_592_000, NOW + 2_591_999), (NOW as i64 + 7, NOW + 6)]
    {
        put(&mut store, Mode::Set, "k", exptime, "v", NOW);
        check(&mut store, "k", last, Some("v"));
        if last < CENTURY {
            check(&mut store, "k", last + 1, None);
        }
    }
    for exptime in [-1, i64::MIN, 2_592_001, NOW as i64] {
        assert_eq!(put(&mut store, Mode::Set, "k", exptime, "v", NOW), Outcome::Stored);
        check(&mut store, "k", NOW, None);
    }
}

#[test]
fn an_expired_item_is_absent_to_every_verb() {
    let mut store = store();
    let later = NOW + 5;
    let expired = |store: &mut Store| {
        put(store, Mode::Set, "k", 5, "1", NOW);
    };
    expired(&mut store);
    assert!(!store.delete(b"k", later));
    expired(&mut store);
    assert!(!store.touch(b"k", 100, later));
    expired(&mut store);
    assert_eq!(incr(&mut store, "k", 1, later), Counted::NotFound);
    expired(&mut store);
    assert_eq!(put(&mut store, Mode::Append, "k", 0, "x", later), Outcome::NotStored);
    expired(&mut store);
    assert_eq!(put(&mut store, Mode::Replace, "k", 0, "x", later), Outcome::NotStored);
    expired(&mut store);
    assert_eq!(swap(&mut store, "k", 1, "x", later), Outcome::NotFound);
    expired(&mut store);
    assert_eq!(put(&mut store, Mode::Add, "k", 0, "x", later), Outcome::Stored);
    check(&mut store, "k", later, Some("x"));
}

#[test]
fn cas_rises_with_every_change_and_not_with_a_touch() {
    let mut store = store();
    set(&mut store, "n", "10");
    let mut last = cas(&mut store, "n");
    assert!(store.touch(b"n", 100, NOW));
    assert_eq!(store.get_and_touch(b"n", 50, NOW).map(|item| item.cas), Some(last));
    let changes: [fn(&mut Store); 7] = [
        |store| assert_eq!(incr(store, "n", 1, NOW), Counted::Now(11)),
        |store| assert_eq!(incr(store, "n", 100, NOW), Counted::Now(111)),
        |store| assert_eq!(decr(store, "n", 5, NOW), Counted::Now(106)),
        |store| assert_eq!(put(store, Mode::Append, "n", 0, "1", NOW), Outcome::Stored),
        |store| assert_eq!(put(store, Mode::Prepend, "n", 0, "1", NOW), Outcome::Stored),
        |store| assert_eq!(put(store, Mode::Replace, "n", 0, "1", NOW), Outcome::Stored),
        |store| set(store, "n", "1"),
    ];
    for change in changes {
        change(&mut store);
        let now = cas(&mut store, "n");
        assert!(now > last);
        last = now;
    }
    assert_eq!(swap(&mut store, "n", last - 1, "x", NOW), Outcome::Exists);
    assert_eq!(swap(&mut store, "n", last, "x", NOW), Outcome::Stored);
    assert_eq!(swap(&mut store, "n", last, "y", NOW), Outcome::Exists);
    assert_eq!(swap(&mut store, "none", last, "y", NOW), Outcome::NotFound);
    check(&mut store, "n", NOW, Some("x"));
}

#[test]
fn numbers_wrap_upwards_stop_downwards_and_keep_their_length() {
    let mut store = store();
    let max = u64::MAX.to_string();
    set(&mut store, "n", &max);
    assert_eq!(incr(&mut store, "n", 1, NOW), Counted::Now(0));
    check(&mut store, "n", NOW, Some(&format!("0{}", " ".repeat(19))));
    assert_eq!(incr(&mut store, "n", 7, NOW), Counted::Now(7));
    assert_eq!(decr(&mut store, "n", 8, NOW), Counted::Now(0));
    set(&mut store, "n", "9");
    assert_eq!(incr(&mut store, "n", 1, NOW), Counted::Now(10));
    assert_eq!(decr(&mut store, "n", 1, NOW), Counted::Now(9));
    check(&mut store, "n", NOW, Some("9 "));
    assert_eq!(incr(&mut store, "n", u64::MAX - 9, NOW), Counted::Now(u64::MAX));
    check(&mut store, "n", NOW, Some(&max));
    set(&mut store, "n", "12a");
    assert_eq!(incr(&mut store, "n", 1, NOW), Counted::NonNumeric);
    assert_eq!(decr(&mut store, "none", 1, NOW), Counted::NotFound);
}

#[test]
fn a_count_that_outgrows_its_slot_keeps_flags_and_expiry() {
    let mut store = store();
    put(&mut store, Mode::Set, "n", 10, "9", NOW);
    assert_eq!(
        incr(&mut store, "n", 9_999_999_999_999_999_999, NOW),
        Counted::Now(10_000_000_000_000_000_008)
    );
    assert_eq!(store.get(b"n", NOW).map(|item| item.flags), Some(5));
    check(&mut store, "n", NOW + 9, Some("10000000000000000008"));
    check(&mut store, "n", NOW + 10, None);
}

#[test]
fn appending_keeps_flags_and_expiry_in_any_size() {
    let mut store = store();
    let long = "y".repeat(50_000);
    put(&mut store, Mode::Set, "k", 10, "b", NOW);
    for (mode, value) in [(Mode::Append, "c"), (Mode::Prepend, "a"), (Mode::Append, &long)] {
        let item = NewItem { flags: 9, ..item("k", -1, value) };
        assert_eq!(store.store(mode, &item, NOW), Outcome::Stored);
    }
    assert_eq!(store.get(b"k", NOW).map(|item| item.flags), Some(5));
    check(&mut store, "k", NOW + 9, Some(&format!("abc{long}")));
    check(&mut store, "k", NOW + 10, None);
}

#[test]
fn a_flush_ends_what_was_before_it_and_nothing_after() {
    let mut store = store();
    set(&mut store, "a", "1");
    store.flush_all(0, NOW);
    check(&mut store, "a", NOW, None);
    set(&mut store, "a", "2");
    check(&mut store, "a", NOW, Some("2"));
    store.flush_all(10, NOW);
    check(&mut store, "a", NOW + 8, Some("2"));
    check(&mut store, "a", NOW + 9, None);
    // memcached's clock has whole seconds: items stored in the second of the flush are flushed too.
    assert_eq!(put(&mut store, Mode::Set, "a", 0, "3", NOW + 9), Outcome::Stored);
    check(&mut store, "a", NOW + 9, None);
    assert_eq!(put(&mut store, Mode::Set, "a", 0, "3", NOW + 10), Outcome::Stored);
    check(&mut store, "a", NOW + 100, Some("3"));
    store.flush_all(10, NOW + 100);
    store.flush_all(1000, NOW + 100);
    check(&mut store, "a", NOW + 500, Some("3"));
    store.flush_all(NOW as i64 + 601, NOW + 500);
    check(&mut store, "a", NOW + 599, Some("3"));
    check(&mut store, "a", NOW + 600, None);
}

#[test]
fn what_is_too_large_is_refused_and_a_set_leaves_no_stale_value() {
    let mut store = Store::new(8 << 20, 1 << 20);
    // The largest value that memcached 1.6.18 accepts under a key of one byte without flags.
    let largest = "x".repeat((1 << 20) - 60);
    fn item(value: &str) -> NewItem<'_> {
        NewItem { key: b"k", value: value.as_bytes(), ..NewItem::default() }
    }
    assert_eq!(store.store(Mode::Set, &item(&largest), NOW), Outcome::Stored);
    check(&mut store, "k", NOW, Some(&largest));
    assert_eq!(store.store(Mode::Append, &item("x"), NOW), Outcome::NotStored);
    check(&mut store, "k", NOW, Some(&largest));
    let larger = format!("{largest}x");
    assert_eq!(store.store(Mode::Replace, &item(&larger), NOW), Outcome::TooLarge);
    check(&mut store, "k", NOW, Some(&largest));
    assert_eq!(store.store(Mode::Set, &item(&larger), NOW), Outcome::TooLarge);
    check(&mut store, "k", NOW, None);
    let mut tiny = Store::new(1 << 20, 1 << 20);
    assert_eq!(tiny.store(Mode::Set, &item(&largest), NOW), Outcome::NoMemory);
}

#[test]
fn keys_of_every_length_are_told_apart() {
    let mut store = store();
    let key = "k".repeat(250);
    for len in 1..=250 {
        set(&mut store, &key[..len], &len.to_string());
    }
    for len in 1..=250 {
        check(&mut store, &key[..len], NOW, Some(&len.to_string()));
    }
    check(&mut store, &"k".repeat(251), NOW, None);
}

#[test]
fn expired_items_make_room_before_living_ones() {
    let mut store = Store::new(1 << 20, 1 << 20);
    let value = "v".repeat(100);
    for number in 0..2500 {
        put(&mut store, Mode::Set, &format!("mortal-{number}"), 5, &value, NOW);
    }
    for number in 0..2500 {
        put(&mut store, Mode::Set, &format!("lasting-{number}"), 0, &value, NOW);
    }
    for number in 0..2000 {
        put(&mut store, Mode::Set, &format!("new-{number}"), 0, &value, NOW + 6);
    }
    // The search runs during the stores, so the first of them may come before it finds anything.
    assert!(store.stats().evictions < 50, "{:?}", store.stats());
    let mut found =
        |number: &u64| store.get(format!("lasting-{number}").as_bytes(), NOW + 6).is_some();
    assert!((0..2500).filter(&mut found).count() > 2450);
}

#[test]
fn a_sweep_finds_all_that_has_expired() {
    let mut store = store();
    for number in 0..1000 {
        let exptime = if number % 2 == 0 { 5 } else { 0 };
        put(&mut store, Mode::Set, &format!("k{number}"), exptime, "v", NOW);
    }
    store.sweep(1000, NOW + 4);
    assert_eq!((store.stats().items, store.stats().reclaimed), (1000, 0));
    store.sweep(1000, NOW + 5);
    assert_eq!((store.stats().items, store.stats().reclaimed), (500, 500));
}

#[test]
fn rewriting_in_many_sizes_evicts_nothing_that_fits() {
    let mut store = Store::new(1 << 20, 1 << 20);
    // About 0.7 MiB of live items, rewritten a hundred times in sizes that never fit the old slot.
    for round in 0..200 {
        for number in 0..1000 {
            let len = 400 + (number * 7 + round * 131) % 400;
            put(&mut store, Mode::Set, &format!("k{number}"), 0, &"v".repeat(len), NOW);
        }
    }
    assert_eq!(store.stats().evictions, 0);
    assert_eq!(store.stats().items, 1000);
}

#[test]
fn small_items_outlive_a_flood_of_large_ones() {
    let mut store = Store::new(1 << 20, 1 << 20);
    for number in 0..300 {
        set(&mut store, &format!("small-{number}"), "v");
    }
    let value = "v".repeat(10_000);
    for number in 0..250 {
        set(&mut store, &format!("large-{number}"), &value);
    }
    let found = |store: &mut Store| {
        let names = (0..300).map(|number| format!("small-{number}"));
        names.filter(|name| store.entry(name.as_bytes(), NOW).is_some()).count()
    };
    assert_eq!(found(&mut store), 300);
    for number in 0..2_000 {
        set(&mut store, &format!("larger-{number}"), &value);
        for _ in 0..3 {
            check(&mut store, &format!("larger-{number}"), NOW, Some(&value));
        }
    }
    assert_eq!(found(&mut store), 0, "nobody has asked for them, and for all others somebody");
}

#[test]
fn a_flush_that_is_replaced_in_its_own_second_spares_what_came_in_that_second() {
    let mut store = store();
    set(&mut store, "old", "v");
    store.flush_all(10, NOW);
    let due = NOW + 9;
    assert_eq!(put(&mut store, Mode::Set, "new", 0, "v", due), Outcome::Stored);
    store.flush_all(100, due);
    check(&mut store, "old", due, None);
    check(&mut store, "new", due, Some("v"));
    check(&mut store, "new", due + 99, None);
}

#[test]
fn a_store_has_the_least_memory_at_least_and_says_how_much_of_it_is_taken() {
    let mut store = Store::new(0, 1 << 20);
    let value = "v".repeat(100);
    let taken = |key: &str| (32 + key.len() + 100).next_multiple_of(8) as u64;
    let mut bytes = 0;
    for number in 0..300 {
        let key = format!("key-{number}");
        set(&mut store, &key, &value);
        bytes += taken(&key);
        assert_eq!((store.stats().bytes, store.stats().items), (bytes, number + 1));
    }
    assert_eq!(store.stats().evictions, 0, "64 KiB hold 43,200 bytes");
    assert_eq!(store.stats().items_total, 300);
    assert_eq!(put(&mut store, Mode::Append, "key-0", 0, "more", NOW), Outcome::Stored);
    assert_eq!(store.stats().items_total, 301, "what is added to is stored anew");
    (300..1_000).for_each(|number| set(&mut store, &format!("key-{number}"), &value));
    assert!((43_200..64 << 10).contains(&store.stats().bytes));
}
