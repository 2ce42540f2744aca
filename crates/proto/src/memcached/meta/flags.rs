//! The flags of a meta request: single letters, some followed directly by a token.
//!
//! memcached 1.6.18 reads the flags of every command with one reader. So a letter that belongs to
//! another command is accepted and has no effect; the same holds here. Letters of newer versions
//! (`E`, `S`, `x`) are read as the protocol's text says. An unknown letter is refused, with the
//! server's text. So is a token where none belongs, since a newer server may give it a meaning.

use super::super::number;
use super::base64;
use crate::scan::{self, Tokens};

/// The most flags of a line; a length counts as one.
const FLAGS_MAX: usize = 17;
/// The longest opaque, without its letter.
const OPAQUE_MAX: usize = 31;
/// The letters of 1.6.18, and after the space those of newer versions.
const KNOWN: u64 = bits(b"bcfhklqstuvCDFIJLMNOPRT ESx");

const INVALID: &str = "invalid flag";
const DUPLICATE: &str = "duplicate flag";
/// The error of `md` and `ma` for any flag that they cannot read.
const INVALID_OR_DUPLICATE: &str = "invalid or duplicate flag";
const BAD_TOKEN: &str = "bad token in command line format";
const BAD_LINE: &str = "bad command line format";
const BAD_KEY: &str = "error decoding key";
const BAD_MODE_LENGTH: &str = "incorrect length for M token";
const BAD_INITIAL: &str = "invalid numeric initial value";
const BAD_DELTA: &str = "invalid numeric delta value";
const LONG_OPAQUE: &str = "opaque token too long";
const BAD_SET_MODE: &str = "invalid mode for ms M token";
const BAD_ARITHMETIC_MODE: &str = "invalid mode for ma M token";

/// The commands that take flags, and the one that takes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `mn`
    Noop,
    /// `me`
    Debug,
}

impl Verb {
    /// Returns the verb of this command name.
    pub fn named(word: &[u8]) -> Option<Verb> {
        Some(match word {
            b"mg" => Verb::Get,
            b"ms" => Verb::Set,
            b"md" => Verb::Delete,
            b"ma" => Verb::Arithmetic,
            b"mn" => Verb::Noop,
            b"me" => Verb::Debug,
            _ => return None,
        })
    }

    /// Returns this command's text for a mistake.
    fn words(self, why: &'static str) -> &'static str {
        let named = [LONG_OPAQUE, BAD_ARITHMETIC_MODE].contains(&why);
        match self {
            Verb::Delete | Verb::Arithmetic if !named => INVALID_OR_DUPLICATE,
            _ => why,
        }
    }

    fn too_many(self) -> &'static str {
        match self {
            Verb::Get => "options flags are too long",
            _ => "options flags too long",
        }
    }

    /// Whether the command knows this mode; most ignore it.
    fn has_mode(self, mode: u8) -> bool {
        match self {
            Verb::Set => matches!(mode, 0 | b'E' | b'A' | b'P' | b'R' | b'S'),
            Verb::Arithmetic => matches!(mode, 0 | b'I' | b'+' | b'D' | b'-'),
            _ => true,
        }
    }

    fn bad_mode(self) -> &'static str {
        if self == Verb::Set { BAD_SET_MODE } else { BAD_ARITHMETIC_MODE }
    }
}

/// The flags of a request. A value whose letter was not given has its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// The letters that were given, as bits.
    given: u64,
    /// `T`: seconds to live, as classic text reads an expiry time.
    pub ttl: i32,
    /// `N`: create on a miss, with this time to live.
    pub vivify: i32,
    /// `R`: win when the item has less time left than this.
    pub recache: i32,
    /// `F`: the client's own flags.
    pub client: u32,
    /// `C`: the cas number to compare with.
    pub cas: u64,
    /// `E`: the cas number to set.
    pub new_cas: u64,
    /// `D`, 1 by default.
    pub delta: u64,
    /// `J`, 0 by default.
    pub initial: u64,
    /// `M`; 0 if it was not given.
    pub mode: u8,
}

impl Default for Flags {
    fn default() -> Flags {
        Flags {
            given: 0,
            ttl: 0,
            vivify: 0,
            recache: 0,
            client: 0,
            cas: 0,
            new_cas: 0,
            delta: 1,
            initial: 0,
            mode: 0,
        }
    }
}

impl Flags {
    /// Whether this letter was given.
    pub fn has(&self, letter: u8) -> bool {
        self.given & bit(letter) != 0
    }

    /// Whether one of these letters was given.
    pub fn has_any(&self, letters: &[u8]) -> bool {
        self.given & bits(letters) != 0
    }

    /// Whether only these letters were given.
    pub fn within(&self, letters: &[u8]) -> bool {
        self.given & !bits(letters) == 0
    }

    /// Reads the rest of a line, behind the key and the length. The error is the server's text
    /// without `CLIENT_ERROR`. As in the server, the last of several bad values is named, and a
    /// letter that is unknown or given twice ends the reading.
    pub(in super::super) fn read(
        tokens: &mut Tokens<'_>,
        verb: Verb,
        key: &[u8],
    ) -> Result<Flags, &'static str> {
        let mut flags = Flags::default();
        let mut wrong = None;
        let mut left = FLAGS_MAX - usize::from(verb == Verb::Set);
        while let Some(token) = tokens.next() {
            if left == 0 {
                return Err(verb.too_many());
            }
            left -= 1;
            let (letter, text) = option(tokens.text(token));
            if !is_known(letter) || flags.has(letter) {
                // Too many flags are reported first.
                return Err(
                    match (tokens.by_ref().count() > left, is_known(letter), letter.is_ascii()) {
                        (true, _, _) => verb.too_many(),
                        (false, false, true) => verb.words(INVALID),
                        // The server has no better text for this.
                        (false, _, _) => verb.words(DUPLICATE),
                    },
                );
            }
            flags.given |= bit(letter);
            if let Err(why) = flags.take(letter, text, key) {
                wrong = Some(why).filter(|&why| why != LONG_OPAQUE).or(wrong).or(Some(why));
            }
        }
        if wrong.is_none() && !verb.has_mode(flags.mode) {
            wrong = Some(verb.bad_mode());
        }
        wrong.map_or(Ok(flags), |why| Err(verb.words(why)))
    }

    /// Reads the value of one letter.
    fn take(&mut self, letter: u8, text: &[u8], key: &[u8]) -> Result<(), &'static str> {
        let number = || number::unsigned(text);
        match letter {
            b'T' => self.ttl = number::exptime(text).ok_or(BAD_TOKEN)?,
            b'N' => self.vivify = number::exptime(text).ok_or(BAD_TOKEN)?,
            b'R' => self.recache = number::exptime(text).ok_or(BAD_TOKEN)?,
            b'C' => self.cas = number().ok_or(BAD_TOKEN)?,
            b'E' => self.new_cas = number().ok_or(BAD_TOKEN)?,
            b'D' => self.delta = number().ok_or(BAD_DELTA)?,
            b'J' => self.initial = number().ok_or(BAD_INITIAL)?,
            b'F' => self.client = number::flags(text).ok_or(BAD_LINE)?,
            b'S' => drop(scan::decimal(text, u64::MAX).ok_or(BAD_TOKEN)?),
            b'M' => match text {
                [mode] => self.mode = *mode,
                _ => return Err(BAD_MODE_LENGTH),
            },
            b'O' if text.len() > OPAQUE_MAX => return Err(LONG_OPAQUE),
            b'O' | b'P' | b'L' => {}
            b'b' if !base64::is_valid(key) => return Err(BAD_KEY),
            _ if !text.is_empty() => return Err(INVALID),
            _ => {}
        }
        Ok(())
    }
}

/// Returns a flag's letter and the token behind it.
pub(super) fn option(token: &[u8]) -> (u8, &[u8]) {
    token.split_first().map_or((0, token), |(letter, text)| (*letter, text))
}

/// Returns what number `Flags::take` reads behind a letter. `S` and the others have none, or one
/// that only some servers read.
pub(super) fn number_of(letter: u8) -> Option<number::Kind> {
    Some(match letter {
        b'T' | b'N' | b'R' => number::Kind::Exptime,
        b'F' => number::Kind::Flags,
        b'C' | b'E' | b'D' | b'J' => number::Kind::Unsigned,
        _ => return None,
    })
}

/// Whether this version or a newer one has this letter.
fn is_known(letter: u8) -> bool {
    KNOWN & bit(letter) != 0
}

/// Returns a letter's bit; none for a byte that is no letter.
const fn bit(letter: u8) -> u64 {
    if letter.is_ascii_alphabetic() { 1 << (letter - b'A') } else { 0 }
}

const fn bits(letters: &[u8]) -> u64 {
    let mut all = 0;
    let mut at = 0;
    while at < letters.len() {
        all |= bit(letters[at]);
        at += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(verb: Verb, flags: &str, expected: Result<&str, &str>) {
        let line = format!("{flags}\r\n");
        let found = Flags::read(&mut Tokens::new(line.as_bytes()), verb, b"a2V5");
        match expected {
            Ok(letters) => {
                let found = found.expect(flags);
                assert!(found.within(letters.as_bytes()), "{flags}");
                assert!(letters.bytes().all(|letter| found.has(letter)), "{flags}");
            }
            Err(why) => assert_eq!(found, Err(why), "{flags}"),
        }
    }

    #[test]
    fn letters_and_values_are_read() {
        check(Verb::Get, "v f c k s O123 q PL L/a/b", Ok("vfcksOqPL"));
        check(Verb::Get, "b N30 R-1 T0 E7 h l t u", Ok("bNRTEhltu"));
        check(Verb::Set, "T2147483647 F4294967295 C18446744073709551615 MS I S5", Ok("TFCMIS"));
        check(Verb::Arithmetic, "D5 J9 N0 M- x", Ok("DJNMx"));
        check(
            Verb::Set,
            "T+5 N-0 R2147483648 C+5 F4294967296 D00000000000000000000005",
            Ok("TNRCFD"),
        );
        let line = b"T-5 N6 R7 F8 C9 E10 D11 J12 MA\r\n";
        let read = Flags::read(&mut Tokens::new(line), Verb::Set, b"").expect("flags");
        let values = (read.ttl, read.vivify, read.recache, read.client, read.cas, read.new_cas);
        assert_eq!(values, (-5, 6, 7, 8, 9, 10));
        assert_eq!((read.delta, read.initial, read.mode), (11, 12, b'A'));
        let none = Flags::read(&mut Tokens::new(b"\r\n"), Verb::Arithmetic, b"").expect("none");
        assert_eq!((none.delta, none.initial, none.mode), (1, 0, 0));
    }

    #[test]
    fn mistakes_are_named_as_the_server_names_them() {
        check(Verb::Get, "v v", Err(DUPLICATE));
        check(Verb::Set, "y", Err(INVALID));
        check(Verb::Delete, "y", Err(INVALID_OR_DUPLICATE));
        check(Verb::Arithmetic, "Dx", Err(INVALID_OR_DUPLICATE));
        check(Verb::Get, "\u{e9}", Err(DUPLICATE));
        for bad in ["T", "T+", "T9223372036854775808", "N1x", "R", "C-1", "C18446744073709551616"] {
            check(Verb::Get, bad, Err(BAD_TOKEN));
        }
        check(Verb::Get, "F18446744073709551616", Err(BAD_LINE));
        check(Verb::Get, "Jx Dx", Err(BAD_DELTA));
        check(Verb::Get, "Dx v v", Err(DUPLICATE));
        check(Verb::Get, "vx", Err(INVALID));
        check(Verb::Set, "M", Err(BAD_MODE_LENGTH));
        check(Verb::Set, "MI", Err("invalid mode for ms M token"));
        check(Verb::Arithmetic, "MS", Err("invalid mode for ma M token"));
        check(Verb::Get, "MS", Ok("M"));
        let opaque = "O".repeat(OPAQUE_MAX + 1);
        check(Verb::Get, &opaque, Ok("O"));
        check(Verb::Delete, &format!("{opaque}1"), Err(LONG_OPAQUE));
        check(Verb::Get, &format!("Tx {opaque}1"), Err(BAD_TOKEN));
        let read = Flags::read(&mut Tokens::new(b"v b\r\n"), Verb::Get, b"no!");
        assert_eq!(read, Err(BAD_KEY));
    }

    #[test]
    fn there_is_a_greatest_number_of_flags() {
        let all = "b c f h k l q s t u v I O P L T1 N1 R1";
        let most = all.rsplit_once(' ').map_or("", |(most, _)| most);
        check(Verb::Get, most, Ok("bcfhklqstuvIOPLTN"));
        check(Verb::Get, all, Err("options flags are too long"));
        check(Verb::Set, most, Err("options flags too long"));
    }
}
