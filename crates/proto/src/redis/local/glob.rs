//! Patterns as in servers: `*`, `?`, `[a-c]`, `[^x]`, `\` before any of these. Letters match in
//! either case, or not.

/// Whether the pattern matches all of `text`. Only the last `*` is tried again, so the work is at
/// most the product of the lengths.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    matches_as(pattern, text, |byte| byte.to_ascii_lowercase())
}

/// As `matches`, with letters told apart.
pub(in crate::redis) fn matches_exactly(pattern: &[u8], text: &[u8]) -> bool {
    matches_as(pattern, text, |byte| byte)
}

fn matches_as(pattern: &[u8], text: &[u8], fold: impl Fn(u8) -> u8 + Copy) -> bool {
    let (mut rest, mut at) = (pattern, 0);
    // The pattern behind the last `*`, and the end of its last match.
    let mut again: Option<(&[u8], usize)> = None;
    loop {
        if let Some((b'*', after)) = rest.split_first() {
            again = Some((after, at));
            rest = after;
            continue;
        }
        let step = match text.get(at) {
            None if rest.is_empty() => return true,
            // At the end of the text, a longer match of `*` cannot help.
            None => return false,
            Some(&byte) => one(rest, byte, fold),
        };
        (rest, at) = match (step, &mut again) {
            (Some(after), _) => (after, at + 1),
            (None, Some((after, end))) => {
                *end += 1;
                (*after, *end)
            }
            (None, None) => return false,
        };
    }
}

/// Returns the rest of the pattern, if its first piece matches one byte.
fn one(pattern: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> Option<&[u8]> {
    let is_same = |other: u8| fold(other) == fold(byte);
    let (first, after) = pattern.split_first()?;
    match (first, after) {
        (b'?', _) => Some(after),
        (b'[', _) => class(after, fold(byte), fold),
        (b'\\', [escaped, after @ ..]) => is_same(*escaped).then_some(after),
        _ => is_same(*first).then_some(after),
    }
}

/// Matches a class, behind its `[`. An unclosed class ends with the pattern.
fn class(pattern: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> Option<&[u8]> {
    let (is_not, mut rest) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut found = false;
    loop {
        rest = match rest {
            [] => break,
            [b']', after @ ..] => {
                rest = after;
                break;
            }
            [b'\\', escaped, after @ ..] => {
                found |= fold(*escaped) == byte;
                after
            }
            [low, b'-', high, after @ ..] => {
                let ends = [fold(*low), fold(*high)];
                found |= (ends[0].min(ends[1])..=ends[0].max(ends[1])).contains(&byte);
                after
            }
            [single, after @ ..] => {
                found |= fold(*single) == byte;
                after
            }
        };
    }
    (found != is_not).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_to_servers() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("max*", "maxmemory", true),
            ("MAX*y", "maxmemory", true),
            ("max*", "ma", false),
            ("*a*b*c", "xaxbxc", true),
            ("*a*b*c", "xaxbxcx", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("[ab", "b", true),
            ("[", "a", false),
            ("\\", "\\", true),
            ("a**b", "ab", true),
        ] {
            let found = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{pattern} {text}");
        }
        assert!(!matches(&b"a*".repeat(1000), &b"a".repeat(900)), "and it ends soon");
    }
}
