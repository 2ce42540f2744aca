//! Numbers in values, as `incr` and `decr` read and write them.

/// Digits of the largest 64-bit number.
pub const DIGITS_MAX: usize = 20;

/// Reads a value as memcached does (by `strtoull`): white space, an optional sign, digits, and then
/// the end, a NUL, or white space and anything. As in memcached, a negative number is accepted only
/// if it wraps to less than half of the range.
pub fn parse(value: &[u8]) -> Option<u64> {
    let trimmed = &value[value.iter().take_while(|byte| is_space(**byte)).count()..];
    let (is_negative, digits) = match trimmed {
        [b'+', digits @ ..] => (false, digits),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ends = digits.get(len).is_none_or(|byte| is_space(*byte) || *byte == 0);
    if len == 0 || !ends {
        return None;
    }
    let number = digits[..len].iter().try_fold(0u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    let wrapped = if is_negative { number.wrapping_neg() } else { number };
    (!is_negative || wrapped <= i64::MAX as u64).then_some(wrapped)
}

/// Writes `number` at the end of `digits` and returns the part written.
pub fn format(mut number: u64, digits: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut start = DIGITS_MAX;
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

/// C's `isspace`, which includes the vertical tab that `is_ascii_whitespace` leaves out.
fn is_space(byte: u8) -> bool {
    byte == b' ' || (b'\t'..=b'\r').contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_memcached_reads() {
        for (value, expected) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("0000000000000000000000005", Some(5)),
            ("  5", Some(5)),
            ("5  ", Some(5)),
            ("5\n3", Some(5)),
            ("5\x0bx", Some(5)),
            ("+5", Some(5)),
            ("++5", None),
            ("-5", None),
            ("-0", Some(0)),
            ("-18446744073709551615", Some(1)),
            ("+-5", None),
            ("5\0ab", Some(5)),
            ("\x005", None),
            ("5ab", None),
            ("1.23", None),
            ("", None),
            ("  ", None),
            ("+", None),
        ] {
            assert_eq!(parse(value.as_bytes()), expected, "{value:?}");
        }
    }

    #[test]
    fn writes_every_length() {
        let mut digits = [0; DIGITS_MAX];
        for number in [0, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(format(number, &mut digits), number.to_string().as_bytes());
        }
    }
}
