//! Nanoseconds per operation: `cargo run --release -p cache --example speed -- [MEGABYTES]`.

use std::time::Instant;

use cache::{Mode, NewItem, Store};

const NOW: u64 = 1_700_000_000;

fn measure(name: &str, rounds: u32, mut verb: impl FnMut(u32)) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        (0..rounds).for_each(&mut verb);
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
    println!("{name:36} {best:7.1} ns");
}

fn main() {
    let megabytes: usize =
        std::env::args().nth(1).map_or(64, |arg| arg.parse().expect("MEGABYTES"));
    for keys in [10_000u32, 300_000] {
        // The stride visits every key once, in an order that no prefetcher guesses.
        let name = |round: u32| {
            let number = (u64::from(round) * 7_919_993 % u64::from(keys)) as u32;
            let mut name = *b"key:0000000000000000";
            name[8..16].copy_from_slice(
                &number.wrapping_mul(0x9e37_79b1).to_be_bytes().map(|b| b | 1).repeat(2),
            );
            name[16..20].copy_from_slice(&number.to_le_bytes());
            name
        };
        let value = [b'v'; 100];
        let mut store = Store::new(megabytes << 20, 1 << 20);
        let set = |store: &mut Store, key: &[u8], exptime: i64, value: &[u8]| {
            store.store(Mode::Set, &NewItem { key, exptime, value, ..NewItem::default() }, NOW)
        };
        (0..keys).for_each(|round| {
            set(&mut store, &name(round), 0, &value);
        });
        println!("{megabytes} MiB, {keys} keys, values of 100 bytes");
        let rounds = 2_000_000;
        let mut sum = 0usize;
        measure("get, hit", rounds, |round| {
            sum += store.get(&name(round), NOW).map_or(0, |item| usize::from(item.value[99]));
        });
        let mut absent = *b"key:0000000000000000x";
        measure("get, miss", rounds, |round| {
            absent[12..20].copy_from_slice(&u64::from(round).to_le_bytes());
            sum += usize::from(store.get(&absent, NOW).is_some());
        });
        measure("set, same size", rounds, |round| {
            set(&mut store, &name(round), 0, &value);
        });
        measure("set, new key, evicting", rounds, |round| {
            absent[12..20].copy_from_slice(&u64::from(round).to_be_bytes());
            set(&mut store, &absent, 0, &value);
        });
        measure("set, new key, evicting, some expire", rounds, |round| {
            absent[12..20].copy_from_slice(&u64::from(round).to_be_bytes());
            set(&mut store, &absent, i64::from(round & 1) * 100, &value);
        });
        println!("({sum}, {:?})", store.stats());
    }
}
