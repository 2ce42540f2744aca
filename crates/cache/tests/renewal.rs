//! Renewal of items: the rules of winning, staleness and cas, as in memcached 1.6.18.

use cache::{Count, Counted, Mode, NewItem, Outcome, Standing, Store};

const NOW: u64 = 1_700_000_000;
const FRESH: Standing = Standing { sent: false, stale: false, won: false };
const WON: Standing = Standing { won: true, ..FRESH };
const SENT: Standing = Standing { sent: true, ..FRESH };
const STALE_WON: Standing = Standing { stale: true, ..WON };
const STALE_SENT: Standing = Standing { stale: true, ..SENT };

fn store() -> Store {
    Store::new(1 << 20, 1 << 20)
}

fn item<'a>(exptime: i64, value: &'a str) -> NewItem<'a> {
    NewItem { key: b"k", exptime, value: value.as_bytes(), ..NewItem::default() }
}

fn set(store: &mut Store, exptime: i64, value: &str) -> u64 {
    assert_eq!(store.store(Mode::Set, &item(exptime, value), NOW), Outcome::Stored);
    store.last_cas()
}

/// Reads as `mg k` does.
fn read(store: &mut Store, now: u64) -> Standing {
    let mut entry = store.entry(b"k", now).expect("it is there");
    let standing = entry.settle();
    entry.read();
    standing
}

/// Reads as `mg k R30` does.
fn read_renewing(store: &mut Store, now: u64) -> Standing {
    let mut entry = store.entry(b"k", now).expect("it is there");
    entry.win_expiring(30);
    entry.settle()
}

fn invalidate(store: &mut Store, exptime: Option<i64>) -> u64 {
    store.entry(b"k", NOW).expect("it is there").invalidate(exptime, None);
    store.last_cas()
}

fn value(store: &mut Store, now: u64) -> Option<String> {
    store.get(b"k", now).map(|item| String::from_utf8_lossy(item.value).into_owned())
}

#[test]
fn who_makes_an_item_by_reading_it_wins_and_nobody_after() {
    let mut store = store();
    assert!(store.entry(b"k", NOW).is_none());
    let mut entry = store.entry_or_create(&item(0, ""), NOW).expect("there is memory");
    assert!(entry.is_created() && !entry.item().fetched);
    entry.win_created(30);
    assert_eq!(entry.settle(), WON);
    entry.read();
    let again = store.entry_or_create(&item(0, "x"), NOW).expect("it is there already");
    assert!(!again.is_created() && again.item().value.is_empty());
    assert_eq!((read(&mut store, NOW), read(&mut store, NOW)), (SENT, SENT));
    assert_eq!(value(&mut store, NOW + 29), Some(String::new()));
    assert_eq!(value(&mut store, NOW + 30), None);
}

#[test]
fn one_reader_is_told_before_an_item_expires() {
    let mut store = store();
    set(&mut store, 100, "v");
    assert_eq!(read_renewing(&mut store, NOW + 70), FRESH, "30 seconds are not less than 30");
    assert_eq!(read(&mut store, NOW + 71), FRESH, "nobody asked");
    assert_eq!(read_renewing(&mut store, NOW + 71), WON);
    assert_eq!(read_renewing(&mut store, NOW + 72), SENT);
    set(&mut store, 20, "w");
    assert_eq!(read_renewing(&mut store, NOW), WON, "a new item is renewed anew");
    set(&mut store, 0, "x");
    assert_eq!(read_renewing(&mut store, NOW), FRESH, "what does not expire needs no renewal");
}

#[test]
fn an_invalidated_item_is_handed_out_stale_and_one_reader_wins() {
    let mut store = store();
    let old = set(&mut store, 100, "v");
    let invalid = invalidate(&mut store, None);
    assert!(invalid > old);
    assert_eq!((read(&mut store, NOW), read(&mut store, NOW)), (STALE_WON, STALE_SENT));
    assert_eq!(value(&mut store, NOW + 99), Some("v".into()));
    invalidate(&mut store, Some(10));
    assert_eq!((read(&mut store, NOW), read(&mut store, NOW)), (STALE_WON, STALE_SENT));
    assert_eq!(value(&mut store, NOW + 10), None);
}

#[test]
fn the_winner_of_a_stale_item_makes_it_fresh_and_a_late_writer_leaves_it_stale() {
    let mut store = store();
    let before = set(&mut store, 100, "v");
    let invalid = invalidate(&mut store, None);
    assert_eq!(read(&mut store, NOW), STALE_WON);
    let late = NewItem { cas: Some(before), even_stale: true, ..item(5, "late") };
    let strict = NewItem { even_stale: false, ..late };
    assert_eq!(store.store(Mode::Set, &strict, NOW), Outcome::Exists);
    assert_eq!(store.store(Mode::Set, &late, NOW), Outcome::Stored);
    assert_eq!(read(&mut store, NOW), STALE_SENT, "what the winner was told stays");
    assert_eq!(value(&mut store, NOW + 99), Some("late".into()), "and so does the expiry");
    let winner = NewItem { cas: Some(invalid), ..item(0, "new") };
    assert_eq!(store.store(Mode::Set, &winner, NOW), Outcome::Exists, "the late one was faster");
    let cas = store.last_cas();
    let winner = NewItem { cas: Some(cas), even_stale: true, ..winner };
    assert_eq!(store.store(Mode::Replace, &winner, NOW), Outcome::Stored);
    assert_eq!(read(&mut store, NOW), FRESH);
    let future = NewItem { cas: Some(cas + 100), even_stale: true, ..item(0, "x") };
    assert_eq!(store.store(Mode::Set, &future, NOW), Outcome::Exists, "it knows what is to come");
}

#[test]
fn a_cas_is_a_condition_of_every_store_but_add() {
    let mut store = store();
    let with = |cas: u64| NewItem { cas: Some(cas), ..item(0, "x") };
    for (mode, expected) in [
        (Mode::Set, Outcome::NotFound),
        (Mode::Replace, Outcome::NotFound),
        (Mode::Append, Outcome::NotStored),
        (Mode::Prepend, Outcome::NotStored),
        (Mode::Add, Outcome::Stored),
    ] {
        assert_eq!(store.store(mode, &with(7), NOW), expected, "{mode:?}");
    }
    for (mode, zero) in [
        (Mode::Set, Outcome::Exists),
        (Mode::Replace, Outcome::Exists),
        (Mode::Append, Outcome::Stored),
        (Mode::Prepend, Outcome::Stored),
    ] {
        let cas = set(&mut store, 0, "v");
        assert_eq!(store.store(mode, &with(cas + 1), NOW), Outcome::Exists, "{mode:?}");
        assert_eq!(store.store(mode, &with(cas), NOW), Outcome::Stored, "{mode:?}");
        assert_eq!(store.store(mode, &with(cas), NOW), Outcome::Exists, "{mode:?}");
        assert_eq!(store.store(mode, &with(0), NOW), zero, "{mode:?} with a 0");
    }
    let cas = set(&mut store, 0, "5");
    let count = |cas| Count { up: true, delta: 1, cas, new_cas: None };
    assert_eq!(store.count(b"k", &count(cas + 1), NOW), Counted::Exists);
    assert_eq!(store.count(b"k", &count(cas), NOW), Counted::Now(6));
    assert_eq!(store.count(b"k", &count(cas), NOW), Counted::Exists);
    assert_eq!(store.count(b"k", &count(0), NOW), Counted::Now(7));
}

#[test]
fn an_item_gets_the_cas_that_was_asked_for_and_the_next_number_is_nobodys() {
    let mut store = store();
    let before = set(&mut store, 0, "8");
    let chosen = |cas: u64| NewItem { new_cas: Some(cas), ..item(0, "9") };
    assert_eq!(store.store(Mode::Set, &chosen(5_000), NOW), Outcome::Stored);
    assert_eq!(store.last_cas(), 5_000);
    assert_eq!(store.get(b"k", NOW).map(|item| item.cas), Some(5_000));
    for new_cas in [6_000, 7_000] {
        let count = Count { up: true, delta: 1, cas: 0, new_cas: Some(new_cas) };
        assert!(matches!(store.count(b"k", &count, NOW), Counted::Now(_)));
        assert_eq!(store.get(b"k", NOW).map(|item| item.cas), Some(new_cas));
    }
    store.entry(b"k", NOW).expect("it is there").invalidate(None, Some(3));
    assert_eq!(store.get(b"k", NOW).map(|item| item.cas), Some(3));
    assert_eq!(set(&mut store, 0, "x"), before + 1);
    // A low number must not look like one from before a flush.
    store.flush_all(0, NOW);
    assert_eq!(store.store(Mode::Set, &chosen(1), NOW), Outcome::Stored);
    assert_eq!(value(&mut store, NOW), Some("9".into()));
}

#[test]
fn what_is_written_anew_has_lost_its_marks_and_what_is_counted_in_place_has_not() {
    type Change = fn(&mut Store) -> bool;
    let changes: [(Change, bool); 5] = [
        (|store| store.store(Mode::Append, &item(0, "1"), NOW) == Outcome::Stored, false),
        (|store| store.store(Mode::Prepend, &item(0, "1"), NOW) == Outcome::Stored, false),
        (|store| store.store(Mode::Replace, &item(0, "1"), NOW) == Outcome::Stored, false),
        (|store| count(store, 1) == Counted::Now(6), true),
        (|store| count(store, 5) == Counted::Now(10), false),
    ];
    for (number, (change, kept)) in changes.into_iter().enumerate() {
        let mut store = store();
        store.store(Mode::Set, &NewItem { binary: true, ..item(0, "5") }, NOW);
        invalidate(&mut store, None);
        assert_eq!(read(&mut store, NOW), STALE_WON);
        assert!(change(&mut store), "change {number}");
        let mut entry = store.entry(b"k", NOW).expect("it is there");
        let item = entry.item();
        assert_eq!((item.fetched, item.binary), (kept, kept), "change {number}");
        assert_eq!(entry.settle(), if kept { STALE_SENT } else { FRESH }, "change {number}");
    }
}

fn count(store: &mut Store, delta: u64) -> Counted {
    store.count(b"k", &Count { up: true, delta, cas: 0, new_cas: None }, NOW)
}

#[test]
fn a_look_is_no_read() {
    let mut store = store();
    set(&mut store, 0, "v");
    for now in [NOW, NOW + 5] {
        let item = store.entry(b"k", now).expect("it is there").item().fetched;
        assert!(!item);
    }
    store.entry(b"k", NOW + 7).expect("it is there").read();
    let entry = store.entry(b"k", NOW + 9).expect("it is there");
    assert!(entry.item().fetched);
    assert_eq!(u64::from(entry.item().accessed), NOW + 7);
    assert_eq!(entry.item().expires, None);
}

#[test]
fn after_so_many_flushes_that_their_count_begins_again_nothing_comes_to_life() {
    let mut store = store();
    store.store(Mode::Set, &NewItem { key: b"old", ..item(0, "v") }, NOW);
    for _ in 0..=u16::MAX {
        set(&mut store, 0, "v");
        store.flush_all(0, NOW);
        // Nothing is left to flush.
        store.flush_all(0, NOW);
    }
    assert!(store.get(b"old", NOW).is_none() && store.get(b"k", NOW).is_none());
    set(&mut store, 0, "w");
    assert_eq!(value(&mut store, NOW), Some("w".into()));
    assert_eq!(store.stats().items, 1);
}
