//! Tests of sharing between processes, and of reading a memory that another process made.

use super::layout::VERSION;
use super::*;
use crate::histogram::{BUCKETS, CHUNK};
use crate::{PoolCounter, TenantCounter, WorkerCounter};

#[test]
fn no_two_writers_share_a_cache_line() {
    let (slots, rows) = (5, 7);
    let registry = Registry::private(slots, rows);
    let mut owners = std::collections::BTreeMap::new();
    for slot in 0..slots {
        for row in 0..rows as u32 {
            let words = registry.row(slot, row);
            assert_eq!(words.len() * 8 % 4096, 0, "a row is whole pages");
            for word in words {
                let line = std::ptr::from_ref(word).addr() / 64;
                let owner = *owners.entry(line).or_insert((slot, row));
                assert_eq!(owner, (slot, row), "two rows share 64 bytes");
            }
        }
    }
    let header = registry.memory.as_ptr().addr() / 64;
    assert!(!owners.contains_key(&header), "a writer shares 64 bytes with the header");
}

#[test]
fn what_a_row_is_made_of_does_not_overlap() {
    let registry = Registry::private(2, 2);
    let range = |from: *const AtomicU64, len: usize| (from.addr(), from.addr() + len * 8);
    let metrics = registry.metrics(1);
    let counters = metrics.counters::<PoolCounter>(1);
    let mut parts = vec![range(counters.words.as_ptr(), COUNTERS)];
    let recorder = metrics.recorder(1);
    parts.extend(recorder.heads.iter().map(|head| range(head.as_ptr(), HEAD)));
    let row = range(registry.row(1, 1).as_ptr(), ROW);
    parts.sort_unstable();
    assert!(parts.windows(2).all(|two| two[0].1 <= two[1].0), "{parts:?}");
    assert!(parts[0].0 >= row.0 && parts[parts.len() - 1].1 <= row.1);
}

#[test]
fn totals_are_sums_over_the_slots_and_outlive_a_process() {
    let registry = Registry::private(3, 4);
    for slot in 0..3 {
        let pool = registry.metrics(slot).counters::<PoolCounter>(2);
        pool.add(PoolCounter::ClientsNow, 5);
        pool.subtract(PoolCounter::ClientsNow, 2);
        pool.add(PoolCounter::Requests, 10 + slot as u64);
        registry.metrics(slot).counters::<ServerCounter>(3).set(ServerCounter::EjectedAt, 7);
    }
    assert_eq!(registry.total(2, PoolCounter::ClientsNow), 9);
    assert_eq!(registry.metrics(0).total(2, PoolCounter::Requests), 33);
    assert_eq!(registry.value(1, 2, PoolCounter::Requests), 11);
    registry.clear_gauges(1);
    assert_eq!(registry.total(2, PoolCounter::ClientsNow), 6);
    assert_eq!(registry.total(2, PoolCounter::Requests), 33);
    assert_eq!(registry.total(3, ServerCounter::EjectedAt), 14);
    registry.metrics(2).recorder(2).record(Latency::READS, 9);
    registry.clear_row(2);
    assert_eq!(registry.total(2, PoolCounter::Requests), 0);
    assert_eq!(registry.histogram(2, Latency::READS), Histogram::default());
    assert_eq!(registry.total(3, ServerCounter::EjectedAt), 14, "another row is left alone");
    registry.clear();
    assert_eq!(registry.total(3, ServerCounter::EjectedAt), 0);
}

#[test]
#[should_panic(expected = "cannot fall below zero")]
fn what_exists_does_not_fall_below_zero() {
    Registry::private(1, 1)
        .metrics(0)
        .counters::<WorkerCounter>(0)
        .subtract(WorkerCounter::ClientsNow, 1);
}

#[test]
fn a_memory_that_is_no_book_of_ours_is_refused() {
    let registry = Registry::private(2, 3);
    let opened = Registry::open(registry.memory).expect("our own");
    assert_eq!((opened.slots(), opened.rows()), (2, 3));
    registry.metrics(1).counters::<WorkerCounter>(0).add(WorkerCounter::Turns, 4);
    assert_eq!(opened.total(0, WorkerCounter::Turns), 4, "it is the same memory");
    let refused = |memory| Registry::open(memory).err();
    assert_eq!(refused(&registry.memory[..4]), Some(Refused::Foreign));
    assert_eq!(refused(&registry.memory[..registry.memory.len() - 1]), Some(Refused::Short));
    for (word, value, why) in [
        (0, MAGIC + 1, Refused::Foreign),
        (1, 77, Refused::Layout { found: 77, ours: LAYOUT }),
        (2, u64::MAX, Refused::Short),
        (3, 4, Refused::Short),
        (4, 512, Refused::Layout { found: LAYOUT, ours: LAYOUT }),
    ] {
        let before = registry.memory[word].swap(value, Relaxed);
        assert_eq!(refused(registry.memory), Some(why), "word {word}");
        registry.memory[word].store(before, Relaxed);
    }
    assert!(!why_not(registry.memory).is_empty());
}

fn why_not(memory: &'static [AtomicU64]) -> String {
    Registry::open(&memory[..2]).err().map_or(String::new(), |refused| refused.to_string())
}

/// Two pages: the next build finds this build's words in the same places.
#[test]
fn a_row_takes_no_page_more_than_it_needs() {
    assert_eq!((PAGE, ROW, HEADER), (512, 2 * 512, 512));
    let slots = 3 * (4 * 2 * 512 + 512 * 64 + 24 * 512 + 17 * 512);
    assert_eq!(Registry::words(3, 4), 512 + slots + logins::WORDS + 4 * 8);
    assert_eq!((HEADS_AT, HISTOGRAMS), (64, 24));
}

#[test]
fn what_the_master_tells_of_the_proxy_is_read_back_and_lies_on_nothing_else() {
    let registry = Registry::private(2, 3);
    assert_eq!(registry.process(), Process::default());
    let told = Process {
        pid: 11,
        started_s: 12,
        told_s: 13,
        workers: 14,
        clients_max: 15,
        unix_ahead_us: 16,
    };
    registry.tell_process(told);
    let opened = Registry::open(registry.memory).expect("the header is as it was");
    assert_eq!(opened.process(), told);
    assert_eq!((opened.slots(), opened.rows(), opened.used()), (2, 3, 0..2));
    assert!(registry.row(0, 0).iter().all(|word| word.load(Relaxed) == 0), "a counter was written");
    let again = Process { workers: 1, ..told };
    registry.tell_process(again);
    assert_eq!(opened.process(), again);
}

#[test]
fn only_slots_and_rows_that_were_used_are_looked_at() {
    let registry = Registry::private(3, 4);
    for slot in 0..3 {
        let metrics = registry.metrics(slot);
        for row in 0..4 {
            metrics.counters::<PoolCounter>(row).add(PoolCounter::ClientsNow, 1 << slot);
            metrics.recorder(row).record(Latency::UPDATES, 5);
        }
    }
    for used in 0..=3 {
        registry.set_used(used, 4);
        assert_eq!(registry.total(3, PoolCounter::ClientsNow), (1 << used) - 1);
        assert_eq!(registry.histogram(3, Latency::UPDATES).count(), used as u64);
    }
    registry.set_used(3, 2);
    registry.clear_gauges(1);
    assert_eq!(
        [0, 1, 2, 3].map(|row| registry.value(1, row, PoolCounter::ClientsNow)),
        [0, 0, 2, 2]
    );
    registry.set_used(2, 4);
    registry.clear_row(2);
    assert_eq!([0, 1, 2].map(|slot| registry.value(slot, 2, PoolCounter::ClientsNow)), [0, 0, 4]);
}

#[test]
fn no_more_is_used_than_there_is() {
    for (slots, rows) in [(3, 3), (2, 4)] {
        let used = std::panic::catch_unwind(|| Registry::private(2, 3).set_used(slots, rows));
        assert!(used.is_err(), "{slots} slots and {rows} rows of 2 and 3");
    }
}

/// The counters of a server that its protocol defines lie behind all others, and are counted and
/// cleared as these are.
#[test]
fn a_protocols_own_counters_are_summed_and_cleared() {
    let registry = Registry::private(2, 2);
    for slot in 0..2 {
        let counters = registry.metrics(slot).counters::<ServerCounter>(1);
        (0..OWN_COUNTERS).for_each(|place| counters.add_own(place, 1 + place as u64));
    }
    let own = |registry: &Registry| {
        (0..OWN_COUNTERS).map(|place| registry.total_own(1, place)).collect::<Vec<u64>>()
    };
    assert_eq!(own(&registry), [2, 4, 6, 8, 10, 12, 14, 16]);
    assert!(ServerCounter::ALL.iter().all(|counter| registry.total(1, *counter) == 0));
    registry.clear_gauges(0);
    assert_eq!(own(&registry)[0], 2);
    registry.clear_row(1);
    assert_eq!(own(&registry), [0; OWN_COUNTERS]);
    let counters = registry.metrics(0).counters::<ServerCounter>(1);
    let too_far = [OWN_COUNTERS, usize::MAX];
    for place in too_far {
        assert!(std::panic::catch_unwind(|| counters.add_own(place, 1)).is_err());
        assert!(std::panic::catch_unwind(|| registry.total_own(1, place)).is_err());
    }
}

/// A worker that dies is not there to say that the server is idle again.
#[test]
fn a_server_is_busy_for_all_workers_until_the_one_that_knows_says_otherwise_or_dies() {
    let registry = Registry::private(3, 3);
    let slots = [0, 1, 2].map(|slot| registry.metrics(slot).counters::<ServerCounter>(1));
    let busy = |since_us, command| Some(Busy { since_us, command });
    assert_eq!(registry.busy(1, 0), None);
    slots[1].set_busy(busy(5_000_000, 7));
    slots[2].set_busy(busy(4_000_000, 0));
    assert_eq!((slots[0].busy(), slots[1].busy()), (None, busy(5_000_000, 7)));
    assert_eq!(registry.metrics(0).busy(1, 0), busy(4_000_000, 0), "the longest");
    assert_eq!(registry.busy(1, 4_000_001), busy(5_000_000, 7), "the other began too early");
    assert_eq!(registry.busy(1, 5_000_001), None);
    assert_eq!(registry.busy(2, 0), None, "another server");
    registry.clear_gauges(2);
    assert_eq!(registry.busy(1, 0), busy(5_000_000, 7));
    slots[1].set_busy(None);
    assert_eq!(registry.busy(1, 0), None);
    assert!(ServerCounter::ALL.iter().all(|counter| registry.total(1, *counter) == 0));
    // The first microsecond of a clock, the last command, and many years.
    for (since_us, command) in [(1, u16::MAX), (1 << 47, u16::MAX - 1)] {
        slots[0].set_busy(busy(since_us, command));
        assert_eq!(registry.busy(1, 0), busy(since_us, command));
    }
    slots[0].set_busy(busy(0, 0));
    assert_eq!(registry.busy(1, 0), busy(1, 0));
    registry.clear_row(1);
    assert_eq!(registry.busy(1, 0), None);
    registry.set_used(1, 3);
    slots[2].set_busy(busy(1, 1));
    assert_eq!(registry.busy(1, 0), None, "a slot that was never used is not looked at");
}

/// It stays when the worker dies: the server did answer.
#[test]
fn the_last_answer_of_a_server_to_any_worker_is_known_to_all() {
    let registry = Registry::private(3, 3);
    let workers = [0, 1, 2].map(|slot| registry.metrics(slot));
    assert_eq!(registry.heard(1), 0);
    workers[1].set_heard(1, 5_000_000);
    workers[2].set_heard(1, 4_000_000);
    assert_eq!([workers[0].heard(1), registry.heard(2)], [5_000_000, 0]);
    assert_eq!(registry.answered(1), 0, "a handshake is no request");
    workers[1].set_answered(1, 3_000_000);
    assert_eq!([workers[0].answered(1), registry.heard(1)], [3_000_000, 5_000_000]);
    registry.clear_gauges(1);
    assert_eq!([registry.heard(1), registry.answered(1)], [5_000_000, 3_000_000]);
    let works = registry.works(1).count();
    assert_eq!(works, 0, "it has a word of its own");
    registry.clear_row(1);
    assert_eq!([registry.heard(1), registry.answered(1)], [0, 0]);
}

#[test]
fn the_last_long_work_of_each_worker_at_a_server_is_known_to_all() {
    let registry = Registry::private(3, 3);
    let work = |since_us, until_us, command| Work { since_us, until_us, command };
    let works = |row| registry.works(row).collect::<Vec<Work>>();
    assert_eq!(works(1), []);
    let [one, other] = [work(70_000, 5_000_000, 0), work(1 << 47, (1 << 47) + 1, u16::MAX)];
    registry.metrics(0).set_work(1, work(1, 2, 3));
    registry.metrics(0).set_work(1, one);
    registry.metrics(2).set_work(1, other);
    assert_eq!((works(1), works(2)), (vec![one, other], vec![]));
    // A worker that dies leaves what was.
    registry.clear_gauges(0);
    assert_eq!(works(1), [one, other]);
    // Words of two works are none.
    let at = &registry.row(0, 1)[RESET_AT + crate::SlowReset::WORDS];
    at.store(60_000 << 16, Relaxed);
    assert_eq!(works(1), [other]);
    registry.clear_row(1);
    assert_eq!(works(1), []);
}

/// A cleared row must not show its old values to its next user: not in any bucket.
#[test]
fn a_cleared_row_has_forgotten_its_histograms_and_keeps_their_chunks() {
    let registry = Registry::private(1, 2);
    let all = || (0..HISTOGRAMS).map(Latency::of_place);
    let recorder = registry.metrics(0).recorder(1);
    for which in all() {
        [3, 70, 5_000, 1 << 31].into_iter().for_each(|time| recorder.record(which, time));
    }
    registry.metrics(0).recorder(0).record(Latency::UPDATES, 4);
    registry.clear_row(1);
    let taken = registry.histogram_bytes(0);
    for which in all() {
        assert_eq!(registry.histogram_of(0, 1, which), Histogram::default());
        [0, u64::MAX].into_iter().for_each(|time| recorder.record(which, time));
        assert_eq!(registry.histogram_of(0, 1, which).count(), 2);
    }
    assert_eq!(registry.histogram_bytes(0), taken, "the chunks are used again");
    assert_eq!(registry.histogram(0, Latency::UPDATES).count(), 1, "another row is left alone");
    registry.clear();
    let counters = (0..2).all(|row| registry.row(0, row)[..COUNTERS].iter().all(is_zero));
    assert!(counters && all().all(|which| registry.histogram(1, which).count() == 0));
    assert!(registry.chunks(0).chunk(CHUNK).iter().all(is_zero));
}

fn is_zero(word: &AtomicU64) -> bool {
    word.load(Relaxed) == 0
}

#[test]
fn times_are_counted_as_lost_when_no_chunk_is_left() {
    let registry = Registry::private(2, 40);
    let fill = |row: u32| {
        let recorder = registry.metrics(1).recorder(row);
        for which in (0..HISTOGRAMS).map(Latency::of_place) {
            (0..32).for_each(|octave| recorder.record(which, 1 << octave));
        }
    };
    (0..40).for_each(fill);
    let kept: u64 = (0..40)
        .flat_map(|row| (0..HISTOGRAMS).map(move |place| (row, Latency::of_place(place))))
        .map(|(row, which)| registry.histogram(row, which).count())
        .sum();
    assert!(registry.times_lost() > 0 && kept > 0);
    assert_eq!(kept + registry.times_lost(), 40 * 32 * HISTOGRAMS as u64);
    assert_eq!(registry.histogram_bytes(1), Chunks::words(40) * 8);
    assert_eq!(registry.histogram_bytes(0), CHUNK * 8, "the other slot has taken none");
}

#[test]
fn a_memory_that_does_not_begin_at_a_cache_line_is_no_book() {
    let registry = Registry::private(1, 1);
    let len = registry.memory.len() + 2 * LINE;
    let memory: &'static [AtomicU64] = Vec::leak((0..len).map(|_| AtomicU64::new(0)).collect());
    let skip = memory.as_ptr().align_offset(LINE * 8);
    for shift in (0..=LINE).rev() {
        let shifted = &memory[skip + shift..];
        for (word, from) in shifted.iter().zip(registry.memory) {
            word.store(from.load(Relaxed), Relaxed);
        }
        let opened = Registry::open(shifted).err();
        let made = std::panic::catch_unwind(|| Registry::create(shifted, 1, 1)).is_ok();
        match shift % LINE {
            0 => assert_eq!((opened, made), (None, true)),
            _ => assert_eq!((opened, made), (Some(Refused::Short), false), "{shift} words off"),
        }
    }
}

#[test]
fn a_writer_reads_its_own_and_knows_its_slot() {
    let registry = Registry::private(4, 2);
    for slot in 0..4 {
        let metrics = registry.metrics(slot);
        let counters = metrics.counters::<PoolCounter>(1);
        counters.add(PoolCounter::Requests, 5 + slot as u64);
        assert_eq!(
            (metrics.slot(), counters.value(PoolCounter::Requests)),
            (slot, 5 + slot as u64)
        );
    }
    assert_eq!(registry.metrics(3).registry().total(1, PoolCounter::Requests), 5 + 6 + 7 + 8);
}

/// FNV-1a over the names of all tables and the shape, each followed by 0xff. A build with other
/// counters, or with another order, has another number.
#[test]
fn the_layout_is_a_digest_of_every_name_and_of_the_shape() {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for table in [
        WorkerCounter::TABLE,
        PoolCounter::TABLE,
        ServerCounter::TABLE,
        TenantCounter::TABLE,
        crate::LATENCY_TABLE,
    ] {
        parts.extend(table.iter().map(|row| row.name.as_bytes().to_vec()));
        parts.push(b"/".to_vec());
    }
    let shape = [
        VERSION,
        512,
        1024,
        64,
        HEAD,
        24,
        BUCKETS,
        GAUGES,
        56,
        24 * 512,
        17 * 512,
        65_536 + 4_096,
        8,
    ];
    parts.extend(shape.map(|number| (number as u64).to_le_bytes().to_vec()));
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in parts.iter().flat_map(|part| part.iter().chain(&[0xff])) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    assert_eq!(LAYOUT, hash);
}
