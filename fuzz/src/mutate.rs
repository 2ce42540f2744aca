//! Inputs: lines from a corpus and from a grammar, changed in places where parsers disagree.

use std::path::Path;

use testkit::wire::binary;

use crate::packet;

/// A small random generator with a seed (splitmix64).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.roll() % end as u64) as usize
    }

    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Returns the committed inputs of a target, in the order of their names.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| std::fs::read(file).expect("a readable file")).collect()
}

/// The shapes of lines; `[noreply]` is optional.
const SHAPES: &[&str] = &[
    "get KEY",
    "get KEY KEY KEY",
    "gets KEY KEY",
    "gat NUMBER KEY KEY",
    "gats NUMBER KEY",
    "get KEYS",
    "gat NUMBER KEYS",
    "gats NUMBER KEYS",
    "set KEY NUMBER NUMBER LENGTH [noreply]",
    "add KEY NUMBER NUMBER LENGTH [noreply]",
    "replace KEY NUMBER NUMBER LENGTH [noreply]",
    "append KEY NUMBER NUMBER LENGTH [noreply]",
    "prepend KEY NUMBER NUMBER LENGTH [noreply]",
    "cas KEY NUMBER NUMBER LENGTH NUMBER [noreply]",
    "delete KEY [noreply]",
    "delete KEY 0 [noreply]",
    "incr KEY NUMBER [noreply]",
    "decr KEY NUMBER [noreply]",
    "touch KEY NUMBER [noreply]",
    "flush_all [noreply]",
    "flush_all NUMBER [noreply]",
    "verbosity NUMBER [noreply]",
    "version",
    "stats items",
    "stats detail dump",
    "stats cachedump 1 0",
    "mg KEY FLAGS",
    "mg KEY v FLAGS",
    "mg CODED b FLAGS",
    "ms KEY LENGTH FLAGS",
    "ms CODED LENGTH b FLAGS",
    "md KEY FLAGS",
    "ma KEY FLAGS",
    "ma CODED b FLAGS",
    "me KEY",
    "me CODED b",
    "mn",
    "shutdown graceful",
    "GET / HTTP/1.1",
];

const NUMBERS: &[&[u8]] = &[b"0", b"1", b"30", b"-1", b"007", b"2147483647", b"4294967295"];

/// Flags of meta requests, in the form of the protocol's text.
const FLAGS: &[&[u8]] = &[
    b"v", b"f", b"c", b"k", b"s", b"q", b"h", b"l", b"t", b"u", b"I", b"x", b"O1", b"Oabc", b"P",
    b"Lx", b"T0", b"T30", b"T-1", b"N30", b"R10", b"F7", b"C1", b"E9", b"S4", b"D5", b"J3", b"MS",
    b"ME", b"MA", b"MR", b"MI", b"MD", b"M-", b"b",
];

/// Keys in base64: a plain one, one with a space, one of NULs; and invalid ones.
const CODED: &[&[u8]] = &[b"a2V5OjE=", b"YSBi", b"AAAA", b"YQ==", b"YQ=", b"YR==", b"a"];

const ARGUMENTS: &[&[u8]] = &[
    b"a",
    b"key:1",
    b"0",
    b"1",
    b"5",
    b"-1",
    b"+1",
    b"-0",
    b"00",
    b"007",
    b"1x",
    b"x",
    b"0x10",
    b"2147483647",
    b"2147483648",
    b"-2147483648",
    b"4294967295",
    b"4294967296",
    b"18446744073709551615",
    b"18446744073709551616",
    b"99999999999999999999999",
    b"noreply",
    b"NOREPLY",
    b"noreply\0",
    b"1\0",
    b"1\t",
    b"k\r",
    b"k\x01",
    b"k\x7f",
    b"\xff\xfe",
    b"\0",
    b"HTTP/1.1",
    b"VALUE",
    b"END",
    b"1.5",
    b" ",
    b"",
];

const ENDS: &[&[u8]] =
    &[b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r\r\n", b"\0\r\n", b" \r\n", b"\r", b""];

/// Makes one input: a line of the corpus or of the grammar, changed a few times.
pub fn input(corpus: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    // The corpus determines the grammar.
    let is_binary = corpus[0].first() == Some(&binary::REQUEST);
    input_of(corpus, if is_binary { packet::packet } else { line }, dice)
}

/// Makes one input of that grammar.
pub fn input_of(corpus: &[Vec<u8>], grammar: Grammar, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = match dice.one_in(2) {
        true => corpus[dice.below(corpus.len())].clone(),
        false => grammar(dice),
    };
    for _ in 0..dice.below(4) {
        bend(&mut bytes, corpus, dice);
    }
    bytes
}

/// Makes a line of the grammar, valid or nearly valid, and often the data block that it announces.
fn line(dice: &mut Dice) -> Vec<u8> {
    let mut out = Vec::new();
    let mut body = None;
    for (at, token) in dice.pick(SHAPES).split(' ').enumerate() {
        if token == "[noreply]" && dice.one_in(2) {
            break;
        }
        if at > 0 {
            out.extend_from_slice(if dice.one_in(20) { b"  " } else { b" " });
        }
        match token {
            _ if dice.one_in(12) => out.extend_from_slice(dice.pick(ARGUMENTS)),
            "KEY" if dice.one_in(20) => out.resize(out.len() + 248 + dice.below(5), b'L'),
            "KEY" => out.extend_from_slice(dice.pick(&[&b"a"[..], b"key:1", b"{t}x", b"\xff\xfe"])),
            "KEYS" => keys(&mut out, dice),
            "CODED" => out.extend_from_slice(dice.pick(CODED)),
            "FLAGS" => flags(&mut out, dice),
            "NUMBER" => out.extend_from_slice(dice.pick(NUMBERS)),
            "LENGTH" => {
                let len = dice.below(12);
                out.extend_from_slice(len.to_string().as_bytes());
                body = Some(len);
            }
            word => out.extend_from_slice(word.trim_matches(&['[', ']'][..]).as_bytes()),
        }
    }
    out.extend_from_slice(dice.pick(ENDS));
    if let Some(len) = body {
        out.resize(out.len() + len, b'd');
        out.extend_from_slice(dice.pick(ENDS));
    }
    out
}

/// Appends so many keys that their line is long, often too long for a server.
fn keys(out: &mut Vec<u8>, dice: &mut Dice) {
    let longest = [1, 10, 100, 250][dice.below(4)];
    for number in 0..1 + dice.below(150) {
        if number > 0 {
            out.push(b' ');
        }
        out.resize(out.len() + 1 + dice.below(longest), b'a' + (number % 26) as u8);
    }
}

/// Appends a few flags, usually each once.
fn flags(out: &mut Vec<u8>, dice: &mut Dice) {
    let first = dice.below(FLAGS.len());
    for number in 0..dice.below(7) {
        let at = first + number * 11 + usize::from(dice.one_in(3));
        out.extend_from_slice(FLAGS[at % FLAGS.len()]);
        out.push(b' ');
    }
    out.pop();
}

/// Makes one change, at a token or at a byte.
fn bend(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(bytes.len() + 1);
    match dice.below(9) {
        0 => bytes.truncate(at),
        1 if at < bytes.len() => bytes[at] = dice.roll() as u8,
        2 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
        3 => bytes
            .insert(at, dice.pick(&[&b' ', &b'\t', &0u8, &b'\r', &b'\n', &0x7f, &b'-']).to_owned()),
        4 => drop(bytes.splice(at..at, dice.pick(ARGUMENTS).iter().copied())),
        5 => {
            let token = token_at(bytes, at);
            drop(bytes.splice(token, dice.pick(ARGUMENTS).iter().copied()));
        }
        6 => {
            let token = token_at(bytes, at);
            let text = bytes[token].to_vec();
            let other = token_at(bytes, dice.below(bytes.len() + 1));
            drop(bytes.splice(other, text));
        }
        7 => bytes.extend_from_slice(&corpus[dice.below(corpus.len())]),
        _ => {
            let databases = [1, 2, 100, 2040][dice.below(4)];
            drop(bytes.splice(at..at, std::iter::repeat_n(b' ', databases)));
        }
    }
}

/// Returns the range of bytes other than space and line break around a position.
fn token_at(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let ends = |byte: &u8| matches!(byte, b' ' | b'\r' | b'\n');
    let start = bytes[..at].iter().rposition(ends).map_or(0, |before| before + 1);
    let end = bytes[at..].iter().position(ends).map_or(bytes.len(), |after| at + after);
    start..end
}

/// Makes one input, valid or nearly valid.
pub type Grammar = fn(&mut Dice) -> Vec<u8>;

/// Runs `check` on `budget` inputs of a target; a panic in it is preceded by the input.
pub fn run(target: &str, seed: u64, budget: usize, check: impl FnMut(&[u8], &mut Dice)) {
    let is_binary = target == "packet";
    run_of(target, if is_binary { packet::packet } else { line }, seed, budget, check);
}

/// Runs `check` on inputs of another grammar.
pub fn run_of(
    target: &str,
    grammar: Grammar,
    seed: u64,
    budget: usize,
    mut check: impl FnMut(&[u8], &mut Dice),
) {
    let corpus = corpus(target);
    let mut dice = Dice::new(seed);
    for round in 0..budget {
        // The unchanged corpus comes first: it holds inputs that once revealed a fault.
        let bytes =
            corpus.get(round).cloned().unwrap_or_else(|| input_of(&corpus, grammar, &mut dice));
        let shown = Shown(&bytes);
        check(&bytes, &mut dice);
        std::mem::forget(shown);
    }
}

/// Prints the input if the check unwinds.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        eprintln!("the input: b\"{}\"", self.0.escape_ascii());
    }
}
