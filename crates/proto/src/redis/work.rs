//! How much work a request is for its server. A server does one thing at a time, so a request that
//! takes long keeps it from everything else. The table says which commands may; here their
//! arguments are read, without allocating, and only when the data plane wants to know.

use super::array::{self, Walk, integer};
use super::commands::{self, Effort, id};
use super::inline;
use crate::{Ask, Expected, Request, Work, WorkId};

/// So many elements are little work.
const FEW: i64 = 1000;
/// A value that is made so long, in bytes or bits, is little work.
const NEAR: i64 = 1 << 20;

pub(super) fn expect(request: &Request, head: &[u8]) -> Expected {
    match request.work {
        Work::Quick => Expected::Quick,
        Work::Slow => Expected::Slow,
        // Scripts are frequent.
        Work::Varies if !request.arguments.is_empty() => {
            by_text(request.arguments.of(head), is_digest(request.command))
        }
        Work::Varies => match Walk::begin(head) {
            // Nearly always.
            Ok(walk) => judge(request.command, Arguments { head, walk }),
            Err(_) => {
                let words = inline::arguments(head).unwrap_or_default();
                judge(request.command, words.iter().map(|word| &**word))
            }
        },
    }
}

/// Returns the name of what a server is busy with.
pub(super) fn name(ask: Ask) -> String {
    let row = commands::row(ask.index());
    match row.effort {
        // A command of the operator's goes by the name of another.
        Effort::Quick => "a command of `commands:`".to_string(),
        _ => row.name.to_ascii_uppercase().replace('|', " "),
    }
}

/// Whether the server has done nothing because it is busy with a script, a function or a module's
/// command. These are the servers' own sentences; a script can make an error that begins in the
/// same way, or is the same: see `runs_script`.
fn is_busy(line: &[u8]) -> bool {
    const ENDS: [&[u8]; 3] = [
        b" is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        b" is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
        b" is busy running a module command.",
    ];
    let text = line.strip_prefix(b"-BUSY ").and_then(|text| text.strip_suffix(b"\r\n"));
    let name = text.and_then(|text| ENDS.iter().find_map(|end| text.strip_suffix(*end)));
    name.is_some_and(|name| name.iter().all(u8::is_ascii_alphabetic))
}

/// What servers write before an error that is told in answer to EXEC.
pub(super) const DISCARDED: &[u8] = b"EXECABORT Transaction discarded because of: ";

/// Returns the line that says so of an error: one to EXEC has it behind words of its own.
pub(super) fn busy_line(error: &[u8]) -> Option<Vec<u8>> {
    match error.strip_prefix(b"-").and_then(|text| text.strip_prefix(DISCARDED)) {
        Some(why) => Some([b"-", why].concat()).filter(|line| is_busy(line)),
        None => is_busy(error).then(|| error.to_vec()),
    }
}

/// Whether a command runs code that a client has written, so that its error may be any line.
pub(super) fn runs_script(ask: Ask) -> bool {
    commands::row(ask.index()).effort == Effort::Script
}

/// Judges a command whose arguments may decide, by all of them.
fn judge<'a>(command: u16, mut words: impl Iterator<Item = &'a [u8]>) -> Expected {
    let words = &mut words;
    let as_before = Expected::AsBefore(WorkId::of_command(command));
    let is_little = match commands::row(command).effort {
        // A command of the operator's goes by the name of another.
        Effort::Quick => return by_text(words.next().unwrap_or_default(), true),
        Effort::Script => return by_text(words.nth(1).unwrap_or_default(), is_digest(command)),
        Effort::Scan => {
            let is_large = number_behind(b"COUNT", words).is_some_and(|count| count > FEW);
            return if is_large { Expected::Slow } else { Expected::Quick };
        }
        Effort::Slow => return Expected::Slow,
        Effort::Wait => return Expected::Waits,
        Effort::Watch => return Expected::Watches,
        Effort::Stream => return stream(command, words),
        Effort::Varies => false,
        Effort::Span => span(words).is_some_and(|count| count <= FEW),
        Effort::Limit => limit(words).is_some_and(|count| count <= FEW),
        Effort::Count => {
            number_behind(b"COUNT", words).is_some_and(|count| (0..=FEW).contains(&count))
        }
        Effort::Amount => match words.nth(2) {
            None => true,
            Some(count) => integer(count).is_some_and(|count| count.unsigned_abs() <= FEW as u64),
        },
        Effort::Offset => {
            words.nth(2).and_then(integer).is_some_and(|offset| (0..NEAR).contains(&offset))
        }
        // Otherwise the value is freed at once, which takes long of a large one.
        Effort::Lifetime => words.nth(2).and_then(integer).is_some_and(|time| time > 0),
        Effort::Trim => !trims_exactly(words),
    };
    if is_little { Expected::Quick } else { as_before }
}

/// Judges `[GROUP group consumer] [COUNT n] [BLOCK ms] … STREAMS …`.
fn stream(command: u16, words: &mut dyn Iterator<Item = &[u8]>) -> Expected {
    let mut is_little = false;
    while let Some(word) = words.next() {
        let is = |option: &[u8]| word.eq_ignore_ascii_case(option);
        if is(b"STREAMS") {
            break;
        } else if is(b"BLOCK") {
            return Expected::Waits;
        } else if is(b"GROUP") {
            let _ = words.nth(1);
        } else if is(b"COUNT") {
            let count = words.next().and_then(integer);
            is_little = count.is_some_and(|count| (0..=FEW).contains(&count));
        }
    }
    let as_before = Expected::AsBefore(WorkId::of_command(command));
    if is_little { Expected::Quick } else { as_before }
}

/// Expects what its script has taken, by the text that names that: a script, the digest of one, a
/// function.
#[inline]
fn by_text(text: &[u8], any_case: bool) -> Expected {
    if !any_case || text.len() > DIGEST_LEN {
        return Expected::AsBefore(WorkId::of_text(text));
    }
    let mut lower = [0; DIGEST_LEN];
    let lower = &mut lower[..text.len()];
    lower.copy_from_slice(text);
    lower.make_ascii_lowercase();
    Expected::AsBefore(WorkId::of_text(lower))
}

/// Whether a command names its script by the digest.
fn is_digest(command: u16) -> bool {
    matches!(command, id::EVALSHA | id::EVALSHA_RO)
}

/// The length of the digest that names a script.
const DIGEST_LEN: usize = 40;

/// Returns how many elements `key start stop [BYSCORE | BYLEX] [LIMIT offset count] …` names, if
/// the words show it.
fn span(words: &mut dyn Iterator<Item = &[u8]>) -> Option<i64> {
    let (start, stop) = (words.nth(2)?, words.next()?);
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"BYSCORE") || word.eq_ignore_ascii_case(b"BYLEX") {
            // Neither is an index then. LIMIT comes after it or before it; before it is rare.
            return limit(words);
        }
    }
    let (start, stop) = (integer(start)?, integer(stop)?);
    // Of one index from the front and one from the back, only the server knows the distance.
    ((start < 0) == (stop < 0)).then(|| stop.saturating_sub(start).saturating_add(1))
}

/// Returns how many elements are passed over and taken by `LIMIT offset count`.
fn limit(words: &mut dyn Iterator<Item = &[u8]>) -> Option<i64> {
    let offset = number_behind(b"LIMIT", words)?;
    let count = integer(words.next()?)?;
    // A negative count means all of them.
    (offset >= 0 && count >= 0).then(|| offset.saturating_add(count))
}

/// Whether the options behind the key cut off exactly all that is too much: MAXLEN or MINID without
/// `~`, or with a LIMIT in place of the servers' own bound.
fn trims_exactly(words: &mut dyn Iterator<Item = &[u8]>) -> bool {
    const OPTIONS: [&[u8]; 4] = [b"NOMKSTREAM", b"KEEPREF", b"DELREF", b"ACKED"];
    let mut words = words.skip(2);
    while let Some(word) = words.next() {
        let is = |option: &[u8]| word.eq_ignore_ascii_case(option);
        if is(b"LIMIT") {
            return true;
        } else if is(b"MAXLEN") || is(b"MINID") {
            if words.next().is_none_or(|word| word != b"~") {
                return true;
            }
            words.next();
        } else if !OPTIONS.iter().any(|option| is(option)) {
            break;
        }
    }
    false
}

/// Returns the number behind a word.
fn number_behind(option: &[u8], mut words: &mut dyn Iterator<Item = &[u8]>) -> Option<i64> {
    Iterator::find(&mut words, |word| word.eq_ignore_ascii_case(option))?;
    integer(words.next()?)
}

/// The arguments of an array. A body is not among them.
struct Arguments<'a> {
    head: &'a [u8],
    walk: Walk<'a>,
}

impl<'a> Iterator for Arguments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        array::next(&mut self.walk).map(|span| span.of(self.head))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Redis;
    use super::*;
    use crate::{Extra, Parsed, Protocol, Resume};

    /// Returns what is expected of a line, which must be the same for the array of its words.
    fn expected(line: &str) -> Expected {
        let words: Vec<_> = line.split(' ').map(|word| word.as_bytes().into()).collect();
        let mut array = Vec::new();
        super::super::split::push_request(&words, &mut array);
        let [found, other] = [array, format!("{line}\r\n").into_bytes()].map(|input| {
            let parsed = Redis.parse_request(&input, &mut Resume::default(), &mut Vec::new());
            let Parsed::Complete(request) = parsed else { panic!("{line}: {parsed:?}") };
            Redis.expect(&request, &input[..request.head as usize])
        });
        assert_eq!(found, other, "{line}");
        found
    }

    fn as_before(command: u16) -> Expected {
        Expected::AsBefore(WorkId::of_command(command))
    }

    #[test]
    fn a_command_whose_work_the_data_decide_is_slow_or_as_it_was_before() {
        for line in
            ["keys *", "sort k", "sort_ro k limit 0 1", "flushall", "save", "config set a b"]
        {
            assert_eq!(expected(line), Expected::Slow, "{line}");
        }
        for line in ["get k", "set k v", "mget a b", "unlink k", "zadd k 1 a", "ping", "dbsize"] {
            assert_eq!(expected(line), Expected::Quick, "{line}");
        }
        let smembers = expected("smembers k");
        assert_eq!(smembers, expected("smembers other"));
        assert_ne!(smembers, expected("hgetall k"));
        for line in ["sunionstore a b", "bitcount k", "del k", "lrem k 0 x", "geosearchstore a b c"]
        {
            assert!(matches!(expected(line), Expected::AsBefore(_)), "{line}");
        }
    }

    #[test]
    fn a_scan_is_slow_if_it_asks_for_much() {
        for line in ["scan 0", "scan 0 count 1000", "hscan k 0 match x* count 10", "sscan k 0"] {
            assert_eq!(expected(line), Expected::Quick, "{line}");
        }
        for line in ["scan 0 count 1001", "SCAN 0 MATCH x* COUNT 1000000", "zscan k 0 Count 5000"] {
            assert_eq!(expected(line), Expected::Slow, "{line}");
        }
    }

    #[test]
    fn a_range_is_quick_if_its_words_show_that_it_is_short() {
        for line in [
            "lrange k 0 9",
            "lrange k 0 999",
            "lrange k -1000 -1",
            "lrange k 5 1",
            "zrange k 0 9 rev withscores",
            "zrange k 0 9999999 byscore limit 0 10",
            "zrange k -inf +inf BYSCORE REV LIMIT 10 20 WITHSCORES",
            "zrevrange k 100000 100010 withscores",
            "zrangebyscore k -inf +inf limit 500 500",
            "zrevrangebylex k + - LIMIT 0 1",
            "xrange k - + count 1000",
            "xreadgroup group g c count 10 streams k >",
            "lpop k",
            "lpop k 1000",
            "srandmember k -1000",
            "lindex k -1",
            "lset k 1000 v",
            "setbit k 1000 1",
            "setrange k 1048575 v",
            "lmpop 2 a b left count 5",
        ] {
            assert_eq!(expected(line), Expected::Quick, "{line}");
        }
        for line in [
            "lrange k 0 -1",
            "lrange k 0 1000",
            "lrange k -1 0",
            "lrange k x y",
            "lrange k -9223372036854775808 9223372036854775807",
            "lrange k 0 9223372036854775807",
            "zrange k 0 9 byscore",
            "zrange k 0 9 limit 0 1 byscore",
            "zrange k 0 9 bylex limit 0 -1",
            "zrangebyscore k 0 9",
            "zrangebyscore k 0 9 limit 990 11",
            "zrangebyscore k 0 9 limit -1 1",
            "zrangebyscore k 0 9 limit 0",
            "xrange k - +",
            "xrange k - + count -1",
            "xread streams k 0",
            "spop k 1001",
            "hrandfield k -9223372036854775808",
            "lmpop 2 a b left",
        ] {
            assert!(matches!(expected(line), Expected::AsBefore(_)), "{line}");
        }
        assert_eq!(
            expected("lpop k 1001"),
            as_before(super::super::commands::lookup(b"lpop").unwrap())
        );
    }

    #[test]
    fn a_command_that_may_free_a_large_value_is_as_it_was_before() {
        for line in [
            "expire k 1",
            "pexpire k 1000 nx",
            "xadd k * a 1",
            "xadd k nomkstream * a 1",
            "xadd k NOMKSTREAM maxlen ~ 1000 * a 1",
            "xadd k MINID ~ 5-0 * a 1",
            "xadd k MAXLEN ~ 9 KEEPREF * limit 1",
            "xadd maxlen * maxlen 5",
        ] {
            assert_eq!(expected(line), Expected::Quick, "{line}");
        }
        for line in [
            "expire k 0",
            "expire k -1 xx",
            "expire k x",
            "pexpire k -9223372036854775808",
            "expireat k 4102444800",
            "pexpireat k 1",
            "xadd k maxlen 5 * a 1",
            "xadd k nomkstream MAXLEN = 5 * a 1",
            "xadd k minid ~ 5-0 limit 0 * a 1",
            "xadd k maxlen ~ 9 nomkstream limit 0 * a 1",
            "xadd k maxlen ~ 9 minid 5 * a 1",
            "xadd k maxlen",
        ] {
            assert!(matches!(expected(line), Expected::AsBefore(_)), "{line}");
        }
    }

    #[test]
    fn a_script_is_known_by_its_text_its_digest_or_its_name() {
        const DIGEST: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        let ids = [
            expected("eval return(1) 0"),
            expected("eval return(2) 0"),
            expected(&format!("evalsha {DIGEST} 0")),
            expected("fcall f 0"),
            expected("fcall F 0"),
            expected("smembers k"),
        ];
        for (nth, one) in ids.iter().enumerate() {
            assert!(matches!(one, Expected::AsBefore(_)));
            assert!(!ids[..nth].contains(one), "{nth}");
        }
        assert_eq!(ids[0], expected("EVAL_RO return(1) 1 k a b c"));
        assert_eq!(ids[2], expected(&format!("evalsha_ro {} 1 k", DIGEST.to_uppercase())));
        assert_eq!(ids[3], expected("fcall_ro f 1 k"));
        let quoted = b"eval \"return(1)\" 1 'k'\r\n";
        let parsed = Redis.parse_request(quoted, &mut Resume::default(), &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{parsed:?}") };
        assert_eq!(Redis.expect(&request, quoted), ids[0]);
    }

    /// A script of a megabyte costs no more to know than one of a kilobyte.
    #[test]
    fn a_long_script_is_known_by_its_ends_and_its_length() {
        let id = |text: &str| WorkId::of_text(text.as_bytes());
        let long = "x".repeat(5000);
        assert_ne!(id(&long), id(&long[1..]));
        assert_ne!(id(&format!("{long}a")), id(&format!("{long}b")));
        assert_ne!(id(&format!("a{long}")), id(&format!("b{long}")));
        assert_eq!(id(&format!("{long}a{long}")), id(&format!("{long}b{long}")));
        let whole = "y".repeat(1000);
        assert_ne!(id(&format!("a{whole}")), id(&format!("b{whole}")));
        // A body is no argument, and the last of a head may be long.
        let script = format!("return[[{long}]]");
        assert_eq!(expected(&format!("eval {script} 0")), Expected::AsBefore(id(&script)));
    }

    #[test]
    fn a_command_that_the_operator_names_is_known_by_its_name() {
        let extras =
            [Extra { name: "ft.search".into(), first: 1, last: 1, step: 1, writes: false }];
        let id = |line: &[u8]| {
            let mut keys = Vec::new();
            let parsed = Redis.parse_request(line, &mut Resume::default(), &mut keys);
            let Parsed::Complete(mut request) = parsed else { panic!("{parsed:?}") };
            assert!(Redis.recognize(&mut request, line, &mut keys, &extras));
            assert_eq!(name(Ask { command: request.command }), "a command of `commands:`");
            Redis.expect(&request, line)
        };
        let search = id(b"FT.SEARCH a b\r\n");
        assert_eq!(search, id(b"*2\r\n$9\r\nft.search\r\n$1\r\nc\r\n"));
        assert_ne!(search, as_before(id::GET));
    }

    #[test]
    fn what_a_server_is_busy_with_has_the_name_that_clients_use() {
        for (command, expected) in
            [(id::KEYS, "KEYS"), (id::EVAL, "EVAL"), (id::SORT_RO, "SORT_RO")]
        {
            assert_eq!(Redis.work_name(Ask { command }), expected);
        }
        let usage = commands::rows().iter().find(|row| row.name == "memory|usage").expect("a row");
        assert_eq!(Redis.work_name(Ask { command: usage.id }), "MEMORY USAGE");
    }

    #[test]
    fn a_server_that_is_busy_says_so_and_a_script_that_says_so_does_not_count() {
        let busy = |text: &str| is_busy(format!("{text}\r\n").as_bytes());
        for name in ["Redis", "Valkey"] {
            for what in ["SCRIPT", "FUNCTION"] {
                assert!(busy(&format!(
                    "-BUSY {name} is busy running a script. You can only call {what} KILL or \
                     SHUTDOWN NOSAVE."
                )));
            }
            assert!(busy(&format!("-BUSY {name} is busy running a module command.")));
        }
        for other in [
            "-BUSY",
            "-BUSY the queue is full",
            "-BUSYKEY Target key name already exists.",
            "-BUSYGROUP Consumer Group name already exists",
            "-ERR Redis is busy running a module command.",
            "-BUSY my job 5 is busy running a module command.",
        ] {
            assert!(!busy(other), "{other}");
        }
        assert!(!is_busy(b"-BUSY Redis is busy running a module command."));
    }
}
