//! Expiry times: converts memcached's three forms to a second in time.

/// An item that does not expire.
pub const NEVER: u32 = 0;

/// An exptime above this is a date; up to it, a number of seconds from now: 30 days.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;
/// A second long past, for items that are expired from the start.
const PAST: u32 = 1;

/// Returns the second at which an item with that exptime expires, or `NEVER`.
pub fn deadline(exptime: i64, now: u64) -> u32 {
    match exptime {
        0 => NEVER,
        ..0 => PAST,
        1..=RELATIVE_MAX => clamp(now.saturating_add(exptime.unsigned_abs())),
        _ => clamp(exptime.unsigned_abs()),
    }
}

/// Returns whether that second has come.
pub fn is_past(deadline: u32, now: u64) -> bool {
    deadline != NEVER && u64::from(deadline) <= now
}

/// 32 bits of seconds last until 2106. A later second is treated as never reached.
fn clamp(second: u64) -> u32 {
    u32::try_from(second).unwrap_or(u32::MAX).max(PAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    #[test]
    fn three_ways_to_say_when() {
        assert_eq!(deadline(0, NOW), NEVER);
        assert_eq!(deadline(-1, NOW), PAST);
        assert_eq!(deadline(1, NOW), NOW as u32 + 1);
        assert_eq!(deadline(2_592_000, NOW), NOW as u32 + 2_592_000);
        assert_eq!(deadline(2_592_001, NOW), 2_592_001);
        assert_eq!(deadline(NOW as i64 + 5, NOW), NOW as u32 + 5);
        assert_eq!(deadline(i64::MAX, NOW), u32::MAX);
        assert_eq!(deadline(i64::MIN, NOW), PAST);
    }

    #[test]
    fn a_deadline_is_past_in_its_own_second() {
        assert!(!is_past(NEVER, u64::MAX));
        assert!(is_past(PAST, NOW));
        assert!(!is_past(NOW as u32 + 1, NOW));
        assert!(is_past(NOW as u32, NOW));
    }
}
