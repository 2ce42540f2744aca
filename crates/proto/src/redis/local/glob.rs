//! Patterns as in servers: `*`, `?`, `[a-c]`, `[^x]`, `\` before any of these. Letters match in
//! either case, or not.

/// A pattern for short texts, whose letters match in either case. It is read once, so that a long
/// one costs no more for each text than a short one.
pub(super) struct Pattern(Option<Vec<Piece>>);

/// One piece of a pattern.
enum Piece {
    /// `*`.
    Any,
    /// One of these bytes.
    One(Bytes),
}

impl Pattern {
    pub fn read(pattern: &[u8]) -> Pattern {
        let (mut pieces, mut rest) = (Vec::new(), pattern);
        while let Some((first, after)) = rest.split_first() {
            if *first == b'*' {
                rest = after;
                if !matches!(pieces.last(), Some(Piece::Any)) {
                    pieces.push(Piece::Any);
                }
                continue;
            }
            let (bytes, after) = read_one(rest);
            rest = after;
            pieces.push(Piece::One(bytes));
            if pieces.len() > PIECES_MAX {
                return Pattern(None);
            }
        }
        Pattern(Some(pieces))
    }

    /// Whether the pattern matches all of `text`.
    pub fn matches(&self, text: &[u8]) -> bool {
        debug_assert!(text.len() <= TEXT_MAX, "longer patterns match nothing");
        let Some(pieces) = &self.0 else { return false };
        let is_any = |piece: &Piece| matches!(piece, Piece::Any);
        matches_all(pieces, text, is_any, one_of)
    }
}

/// Some of all bytes, a bit for each.
#[derive(Default)]
struct Bytes([u128; 2]);

impl Bytes {
    /// Whether a byte is among them; a capital letter, if the small one is.
    fn has(&self, byte: u8) -> bool {
        let byte = byte.to_ascii_lowercase();
        self.0[usize::from(byte / 128)] >> (byte % 128) & 1 == 1
    }

    /// Adds all from one to another. A class may have millions of ranges.
    fn add(&mut self, one: u8, other: u8) {
        let (low, high) = (u32::from(one.min(other)), u32::from(one.max(other)));
        for (first, bits) in [0, 128].into_iter().zip(&mut self.0) {
            let (from, to) = (low.max(first), high.min(first + 127));
            if from <= to {
                *bits |= u128::MAX >> (127 - (to - from)) << (from - first);
            }
        }
    }
}

/// Reads a piece of a pattern that is no `*`; returns the bytes that match it, and the rest.
fn read_one(pattern: &[u8]) -> (Bytes, &[u8]) {
    let mut bytes = Bytes::default();
    let fold = |byte: u8| byte.to_ascii_lowercase();
    let (is_not, after) = match pattern {
        [b'?', after @ ..] => (true, after),
        [b'[', after @ ..] => {
            let (is_not, after) = is_negated(after);
            (is_not, ranges(after, |low, high| bytes.add(fold(low), fold(high))))
        }
        [b'\\', escaped, after @ ..] => {
            bytes.add(fold(*escaped), fold(*escaped));
            (false, after)
        }
        [byte, after @ ..] => {
            bytes.add(fold(*byte), fold(*byte));
            (false, after)
        }
        [] => (false, pattern),
    };
    if is_not {
        bytes.0 = bytes.0.map(|bits| !bits);
    }
    (bytes, after)
}

/// The longest text, which is the name of a command.
const TEXT_MAX: usize = 64;
/// A pattern of more pieces matches no text: each but `*` takes a byte, and no two `*` follow each
/// other.
const PIECES_MAX: usize = 2 * TEXT_MAX + 1;

/// As `Pattern::matches` for a text of any length, with letters told apart.
pub(in crate::redis) fn matches_exactly(pattern: &[u8], text: &[u8]) -> bool {
    matches_all(pattern, text, |byte| *byte == b'*', one)
}

/// Whether a pattern, of bytes or of pieces, matches all of `text`. `one` returns the rest of it,
/// if its first piece, which is no `*`, matches one byte. Only the last `*` is tried again, so the
/// work is at most the product of the lengths.
fn matches_all<'p, T>(
    pattern: &'p [T],
    text: &[u8],
    is_star: impl Fn(&T) -> bool,
    one: impl Fn(&'p [T], u8) -> Option<&'p [T]>,
) -> bool {
    let (mut rest, mut at) = (pattern, 0);
    // The pattern behind the last `*`, and the end of its last match.
    let mut again: Option<(&[T], usize)> = None;
    loop {
        if let Some((first, after)) = rest.split_first()
            && is_star(first)
        {
            again = Some((after, at));
            rest = after;
            continue;
        }
        let step = match text.get(at) {
            None if rest.is_empty() => return true,
            // At the end of the text, a longer match of `*` cannot help.
            None => return false,
            Some(&byte) => one(rest, byte),
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

/// As `one`, of pieces.
fn one_of(pieces: &[Piece], byte: u8) -> Option<&[Piece]> {
    match pieces.split_first()? {
        (Piece::One(bytes), after) => bytes.has(byte).then_some(after),
        (Piece::Any, _) => None,
    }
}

/// Returns the rest of the pattern, if its first piece matches one byte.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern.split_first()? {
        (b'?', after) => Some(after),
        (b'[', after) => class(after, byte),
        (b'\\', [escaped, after @ ..]) => (*escaped == byte).then_some(after),
        (first, after) => (*first == byte).then_some(after),
    }
}

/// Matches a class, behind its `[`. An unclosed class ends with the pattern.
fn class(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (is_not, rest) = is_negated(pattern);
    let mut found = false;
    let rest = ranges(rest, |low, high| {
        found |= (low.min(high)..=low.max(high)).contains(&byte);
    });
    (found != is_not).then_some(rest)
}

fn is_negated(class: &[u8]) -> (bool, &[u8]) {
    class.strip_prefix(b"^").map_or((false, class), |rest| (true, rest))
}

/// Reads the ranges of a class to its end; returns the rest of the pattern.
fn ranges(mut rest: &[u8], mut each: impl FnMut(u8, u8)) -> &[u8] {
    loop {
        rest = match rest {
            [] => return rest,
            [b']', after @ ..] => return after,
            [b'\\', escaped, after @ ..] => {
                each(*escaped, *escaped);
                after
            }
            [low, b'-', high, after @ ..] => {
                each(*low, *high);
                after
            }
            [single, after @ ..] => {
                each(*single, *single);
                after
            }
        };
    }
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
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            let shown = pattern.escape_ascii();
            assert_eq!(Pattern::read(pattern).matches(text), expected, "{shown}");
            let is_same = pattern.eq_ignore_ascii_case(b"MAX*y");
            assert_eq!(matches_exactly(pattern, text), expected && !is_same, "{shown}");
        }
        assert!(!matches_exactly(&b"a*".repeat(1000), &b"a".repeat(900)), "and it ends soon");
    }

    /// It would take minutes if it were read again for each byte of each text.
    #[test]
    fn a_long_pattern_is_read_once() {
        let stars = vec![b'*'; 10_000_000];
        let class = [b"*[", &vec![b'x'; 10_000_000][..], b"y]"].concat();
        let ranges = [b"*[", &b"\0-\xff".repeat(10_000_000)[..], b"]"].concat();
        for (pattern, matched) in [(stars, 20_000), (class, 10_000), (ranges, 20_000)] {
            let pattern = Pattern::read(&pattern);
            let texts = [&b"ping-pong-y"[..], b"ping-pong-z"].repeat(10_000);
            assert_eq!(texts.iter().filter(|text| pattern.matches(text)).count(), matched);
        }
        let texts = [TEXT_MAX, TEXT_MAX - 1].map(|len| vec![b'a'; len]);
        let matched = |pattern: &str| {
            let pattern = Pattern::read(pattern.repeat(TEXT_MAX).as_bytes());
            texts.each_ref().map(|text| pattern.matches(text))
        };
        assert_eq!((matched("a"), matched("**?*")), ([true, false], [true, false]));
    }
}
