//! Windows are compared with an exact sort of the same times, second by second.

use super::*;
use crate::histogram::tests::Random;

const POOL: u32 = 1;

/// Draws a time, mostly short, of many octaves.
fn time(random: &mut Random) -> u64 {
    match random.next() % 20 {
        0 => 40_000 + random.next() % 3_000,
        _ => (50.0 / random.unit().powf(0.7)) as u64,
    }
}

/// Compares a window with the times that were recorded in it.
fn check(found: &Histogram, times: &mut [u64], what: &str) {
    times.sort_unstable();
    assert_eq!(found.count(), times.len() as u64, "{what}");
    let near = |found: u64, exact: u64| found.abs_diff(exact) as f64 <= exact as f64 / 100.0;
    for share in [0.5, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0] {
        let rank = ((share * times.len() as f64).ceil() as usize).clamp(1, times.len());
        let (exact, found) = (times[rank - 1], found.quantile(share));
        assert!(near(found, exact), "{what} {share}: {found}, not {exact}");
    }
    let mean = times.iter().sum::<u64>() / times.len() as u64;
    assert!(near(found.mean(), mean.max(1)), "{what}: a mean of {}, not {mean}", found.mean());
    assert!(near(found.max(), times[times.len() - 1]), "{what}");
}

#[test]
fn each_window_is_within_one_per_cent_of_an_exact_sort_of_its_times() {
    let registry = Registry::private(3, 4);
    let (mut windows, mut random) = (Windows::new(1_000), Random(7));
    let mut recorded: Vec<(u64, u64)> = Vec::new();
    for second in 1_000..1_400 {
        for n in 0..1 + second % 40 {
            let time = time(&mut random);
            // A worker that has died wrote slot 1, and its successor goes on.
            let slot = 1 + (n % 2) as usize;
            registry.metrics(slot).recorder(POOL).record(Latency::READS, time);
            recorded.push((second, time));
        }
        // The master is late now and then.
        if second % 37 == 5 {
            continue;
        }
        let end = second + 1;
        windows.end_slice(&registry, end, [Measured::Pool(POOL)].into_iter());
        for span in Span::ALL {
            let window = windows.window(span);
            let start = end - window.seconds;
            let least = span.seconds.min(end - 1_000).saturating_sub(OLD_SLICE + 1);
            assert!((least..=span.seconds).contains(&window.seconds), "{window:?}");
            let times = recorded.iter().filter(|(at, _)| *at >= start);
            let mut times: Vec<u64> = times.map(|(_, time)| *time).collect();
            let found = window.histograms(POOL, std::iter::once(Latency::READS));
            check(&found, &mut times, &format!("{} at {end}", span.name));
        }
    }
    for (span, window) in windows.slices() {
        assert_eq!(window.seconds, span.end - span.start);
        let times = recorded.iter().filter(|(at, _)| span.contains(at));
        let mut times: Vec<u64> = times.map(|(_, time)| *time).collect();
        let found = window.histograms(POOL, std::iter::once(Latency::READS));
        check(&found, &mut times, &format!("{span:?}"));
    }
    let all = registry.histogram(POOL, Latency::READS);
    check(&all, &mut recorded.iter().map(|one| one.1).collect::<Vec<_>>(), "since the start");
}

#[test]
fn a_window_forgets_what_is_older_and_what_had_another_meaning() {
    let registry = Registry::private(2, 4);
    let mut windows = Windows::new(0);
    let recorder = registry.metrics(1).recorder(POOL);
    let rows = || [Measured::Pool(POOL), Measured::Server(2)].into_iter();
    recorder.record(Latency::READS, 500);
    registry.metrics(1).recorder(2).record(Latency::UPDATES, 9);
    (1..=10).for_each(|second| windows.end_slice(&registry, second, rows()));
    let count = |windows: &Windows, span: usize, row, which| {
        windows.window(Span::ALL[span]).histograms(row, std::iter::once(which)).count()
    };
    assert_eq!(count(&windows, 0, POOL, Latency::READS), 1);
    windows.end_slice(&registry, 11, rows());
    assert_eq!(count(&windows, 0, POOL, Latency::READS), 0, "it is eleven seconds old");
    assert_eq!(count(&windows, 1, POOL, Latency::READS), 1);
    registry.clear_row(POOL);
    windows.forget_row(POOL);
    assert_eq!(count(&windows, 2, POOL, Latency::READS), 0, "it was another pool's");
    assert_eq!(count(&windows, 2, 2, Latency::UPDATES), 1);
    recorder.record(Latency::READS, 5);
    windows.end_slice(&registry, 12, rows());
    windows.end_slice(&registry, 12, rows());
    assert_eq!(count(&windows, 0, POOL, Latency::READS), 1);
    (13..=400).for_each(|second| windows.end_slice(&registry, second, rows()));
    assert_eq!([POOL, 2].map(|row| count(&windows, 2, row, Latency::UPDATES)), [0, 0]);
    assert_eq!(windows.window(Span::ALL[2]).seconds, 300);
    assert!(windows.slices.len() <= 60 + 5 + 49, "{}", windows.slices.len());
    assert!(windows.renewed.is_empty(), "no window has anything of the other pool");
}

/// The new pool has times like those of the old one, and the other rows go on.
#[test]
fn a_row_with_another_meaning_begins_with_nothing_and_the_others_go_on() {
    let registry = Registry::private(2, 4);
    let mut windows = Windows::new(0);
    let rows = || [Measured::Pool(POOL), Measured::Server(2)].into_iter();
    let record = |row| registry.metrics(1).recorder(row).record(Latency::READS, 500);
    [POOL, 2].into_iter().for_each(record);
    windows.end_slice(&registry, 1, rows());
    registry.clear_row(POOL);
    windows.forget_row(POOL);
    record(POOL);
    windows.end_slice(&registry, 2, rows());
    let window = windows.window(Span::ALL[0]);
    let counts = [POOL, 2].map(|row| {
        let found = window.histograms(row, std::iter::once(Latency::READS));
        found.count()
    });
    assert_eq!(counts, [1, 1]);
}

/// A hundred servers with both kinds of requests, whose times fill many octaves, and a pool that
/// uses every family.
#[test]
fn a_hundred_busy_servers_take_less_than_8_mib_a_worker_and_64_mib_in_the_master() {
    const SERVERS: u32 = 100;
    let registry = Registry::private(2, 4_096);
    let (mut windows, mut random) = (Windows::new(0), Random(3));
    let rows = || {
        let servers = (2..2 + SERVERS).map(Measured::Server);
        std::iter::once(Measured::Pool(POOL)).chain(servers)
    };
    for second in 1..=310 {
        for (row, which) in rows().flat_map(Measured::series) {
            let recorder = registry.metrics(1).recorder(row);
            // Thirteen octaves, 30 us to 250 ms, as evenly as can be.
            (0..60).for_each(|_| {
                let octave = random.next() % 13;
                recorder.record(which, (32 + random.next() % 32) << octave);
            });
        }
        windows.end_slice(&registry, second, rows());
    }
    let (worker, master) = (registry.histogram_bytes(1), windows.bytes());
    println!("{SERVERS} servers: {worker} bytes a worker, {master} bytes in the master");
    assert!(worker < 8 << 20 && master < 64 << 20, "{worker} and {master}");
    assert_eq!(registry.times_lost(), 0);
    assert_eq!(windows.window(Span::ALL[2]).seconds, 300);
}

#[test]
fn slices_never_take_more_than_their_bound() {
    let mut windows = Windows::new(0);
    let registry = Registry::private(1, 1);
    for second in 1..=60 {
        windows.end_slice(&registry, second, std::iter::empty());
        let bytes = vec![0; BYTES_MAX / 20].into_boxed_slice();
        windows.bytes += bytes.len();
        windows.slices.back_mut().expect("it was just ended").bytes = bytes;
    }
    windows.slices.iter_mut().for_each(|slice| slice.bytes = Box::default());
    assert!(windows.bytes <= BYTES_MAX + BYTES_MAX / 20);
    assert!((15..=21).contains(&windows.window(Span::ALL[1]).seconds), "it says what it covers");
}
