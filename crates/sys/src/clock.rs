//! The clock that all processes of a machine share: clock_gettime(2).
//!
//! It calls the C library, not rustix. rustix finds the kernel's vDSO page by itself, which is not
//! mapped under valgrind, and `cargo xtask bench --callgrind` runs the program under it.

/// Returns microseconds since a fixed moment before all processes of the machine.
pub fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, to a place of that type that outlives the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) } != 0;
    assert!(!failed, "every kernel has this clock, and the place is ours");
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

#[cfg(test)]
mod tests {
    use super::monotonic_us;

    #[test]
    fn it_never_goes_back() {
        let times: Vec<u64> = (0..1_000).map(|_| monotonic_us()).collect();
        assert!(times.is_sorted() && times[0] > 0);
    }
}
