//! How arrays are read (heads, bodies, pieces), and how requests are written.

use super::super::array::{BODY_HEAD_MAX, BODY_MIN, WHOLE};
use super::super::{Redis, arguments, split};
use super::*;
use crate::Protocol;

/// Makes a request from these words.
fn array(words: &[&[u8]]) -> Vec<u8> {
    let words: Vec<Cow<'_, [u8]>> = words.iter().map(|word| Cow::Borrowed(*word)).collect();
    let mut out = Vec::new();
    split::push_request(&words, &mut out);
    out
}

#[track_caller]
fn read(input: &[u8]) -> (Request, Vec<Span>) {
    let mut keys = Vec::new();
    match parse(input, &mut Resume::default(), &mut keys) {
        Parsed::Complete(request) => (request, keys),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_long_value_is_a_body_and_nothing_else_is() {
    let long = vec![b'v'; BODY_MIN];
    let body = |words: &[&[u8]]| read(&array(words)).0.body as usize;
    assert_eq!(body(&[b"set", b"k", &long]), BODY_MIN);
    assert_eq!(body(&[b"set", b"k", &long[1..]]), 0, "short");
    assert_eq!(body(&[b"eval", b"x", b"1", b"k", &long]), BODY_MIN);
    assert_eq!(body(&[b"xadd", b"k", b"*", b"f", &long]), BODY_MIN);
    assert_eq!(body(&[b"set", b"k", &long, b"NX"]), 0, "not the last");
    assert_eq!(body(&[b"get", &long]), 0, "a key");
    assert_eq!(body(&[b"rename", b"a", &long]), 0, "a key");
    assert_eq!(body(&[b"mset", b"k", &long]), 0, "may be split");
    assert_eq!(body(&[b"sort", b"k", b"by", &long]), 0, "a pattern is looked at");
    assert_eq!(body(&[b"nosuch", &long]), 0, "unknown");
    assert_eq!(body(&[b"get", b"k", &long]), 0, "refused");
    assert_eq!(body(&[b"echo", &long]), 0, "our own");
    assert_eq!(body(&[b"eval", b"x", &long]), 0, "a number that is none");
}

/// A request is the same however much of it has come.
#[test]
fn a_request_with_a_body_is_known_by_its_head() {
    let long = vec![b'v'; 5000];
    let whole = array(&[b"set", b"k", &long]);
    let (request, keys) = read(&whole);
    assert_eq!((request.head, request.body, request.trailer), (27, 5000, &b"\r\n"[..]));
    assert_eq!(request.len(), whole.len() as u64);
    for len in 27..whole.len() {
        assert_eq!(read(&whole[..len]), (request, keys.clone()), "{len} bytes");
    }
}

/// The position is saved, so each byte is read only once, and once more at the end.
#[test]
fn a_request_in_pieces_is_not_read_again_from_its_start() {
    let (short, long) = (vec![b'a'; 20], vec![b'b'; 10_000]);
    let words: [&[u8]; 5] = [b"mset", b"a", &short, b"b", &long];
    let whole = array(&words);
    let (mut resume, mut keys) = (Resume::default(), Vec::new());
    let mut scanned = 0;
    for len in 1..whole.len() {
        assert_eq!(parse(&whole[..len], &mut resume, &mut keys), Parsed::Incomplete, "{len}");
        assert!(keys.is_empty(), "{len}");
        assert!(resume.scanned >= scanned && resume.scanned <= len, "{len}");
        scanned = resume.scanned;
    }
    assert_eq!(scanned, whole.len() - b"$10000\r\n".len() - 10_000 - b"\r\n".len());
    assert_eq!(resume.left, 1 | WHOLE);
    let parsed = parse(&whole, &mut resume, &mut keys);
    assert_eq!((parsed, keys.len()), (Parsed::Complete(read(&whole).0), 2));
}

/// A request that is collected tells how long it must become, and how long its longest argument is,
/// as soon as that can be known.
#[test]
fn an_unfinished_request_tells_its_size_in_advance() {
    let (long, longer) = (vec![b'a'; BODY_MIN], vec![b'b'; 3 * BODY_MIN]);
    let words: [&[u8]; 6] = [b"set", b"k", &longer, &long, b"EX", b"100"];
    let whole = array(&words);
    // The ends of the lines with the lengths of both, and of the arguments.
    let begins = [3, 2, 1].map(|n| array(&words[..n]).len());
    assert!(begins[0] > begins[1] && begins[1] > begins[2]);
    let first_line = begins[1] + b"$12288\r\n".len();
    let (mut resume, mut keys) = (Resume::default(), Vec::new());
    for len in 1..whole.len() {
        let parsed = parse(&whole[..len], &mut resume, &mut keys);
        assert_eq!(parsed, Parsed::Incomplete, "{len}");
        let is_begun = len >= 4;
        assert_eq!(resume.needs > len, is_begun, "{len}");
        assert!(resume.needs <= whole.len(), "{len}: {resume:?}");
        let is_known = len >= first_line;
        assert_eq!(resume.longest as usize, if is_known { longer.len() } else { 0 }, "{len}");
        if is_known && len < begins[0] {
            assert_eq!((resume.needs, resume.parts_left()), (begins[0], 4), "{len}");
        }
    }
    let parsed = parse(&whole, &mut resume, &mut keys);
    assert_eq!(parsed, Parsed::Complete(read(&whole).0), "as in one piece");
    assert_eq!(resume.longest as usize, longer.len());
    let longest = |words: &[&[u8]]| {
        let mut resume = Resume::default();
        let parsed = parse(&array(words), &mut resume, &mut Vec::new());
        let Parsed::Complete(request) = parsed else { panic!("{parsed:?}") };
        (resume.longest as usize, request.body as usize)
    };
    assert_eq!(longest(&[b"set", b"k", &longer, &long, b"EX"]), (longer.len(), 0));
    assert_eq!(longest(&[b"set", b"k", &long[1..], b"EX", b"100"]), (0, 0), "short");
    assert_eq!(longest(&[b"rpush", b"k", &long, &longer]), (long.len(), longer.len()));
}

/// It is collected with the head, so that the whole passes without a copy.
#[test]
fn there_is_no_body_behind_a_long_head() {
    let value = vec![b'v'; BODY_MIN];
    let of = |head: usize| {
        let filler = vec![b'f'; head - array(&[b"rpush", b"k", &value]).len() - 6];
        let whole = array(&[b"rpush", b"k", &filler, &value]);
        (read(&whole).0, whole.len())
    };
    let (with, _) = of(BODY_HEAD_MAX);
    assert_eq!(with.body as usize, BODY_MIN);
    let (without, len) = of(BODY_HEAD_MAX + 2 * BODY_MIN);
    assert_eq!((without.body, without.head as usize), (0, len));
}

/// Skips a request from each of its arguments on, in pieces of every length.
#[test]
fn a_refused_request_is_skipped_to_its_end_in_any_pieces() {
    let words: [&[u8]; 5] = [b"mset", b"a", b"", b"\r\n$3\r\n", &[b'v'; 30]];
    let whole = array(&words);
    let next = b"*1\r\n$4\r\nPING\r\n";
    let input = [&whole[..], next].concat();
    for from in 0..words.len() {
        // The count is that of the whole array.
        let start = array(&words[..from]).len();
        for piece in 1..input.len() {
            let left = (words.len() - from) as u32;
            let mut resume = Resume { left, ..Resume::default() };
            let (mut at, mut come, mut skip) = (start, start, 0);
            while resume.left > 0 || skip > 0 {
                let part = skip.min(come - at);
                (at, skip) = (at + part, skip - part);
                let parsed = match skip {
                    0 if resume.left == 0 => break,
                    0 => Redis.skip_part(&input[at..come], &mut resume),
                    _ => Parsed::Incomplete,
                };
                match parsed {
                    Parsed::Complete(len) => skip = len as usize,
                    Parsed::Incomplete => {
                        assert!(come < input.len(), "it ends: {from}, {piece}");
                        come = (come + piece).min(input.len());
                    }
                    Parsed::Malformed(why) => panic!("{why}"),
                }
            }
            assert_eq!(at, whole.len(), "from {from} in pieces of {piece}");
        }
    }
}

#[test]
fn a_refused_request_that_goes_on_wrongly_is_malformed() {
    for (bytes, why) in [
        ("$3\r\nabcde$1\r\n", "Protocol error: expected CR LF"),
        ("$3\r\nabc\r\n:1\r\n", "Protocol error: expected '$', got "),
        ("$3\r\nabc\r\n$-1\r\n", "Protocol error: invalid bulk length"),
        ("$536870913\r\n", "Protocol error: invalid bulk length"),
    ] {
        let mut resume = Resume { left: 3, ..Resume::default() };
        let mut at = 0;
        let told = loop {
            match Redis.skip_part(&bytes.as_bytes()[at..], &mut resume) {
                Parsed::Complete(len) => at += len as usize,
                other => break other,
            }
        };
        assert_eq!(told, Parsed::Malformed(why), "{bytes}");
    }
}

#[test]
fn the_parts_of_a_split_are_written_with_what_belongs_to_their_keys() {
    let lines: [&[u8]; 3] = [
        b"mset a 1 \"b c\" 22 d ''\r\n",
        b"MSET a 1 'b c' \"2\\x32\" d \"\"\r\n",
        &array(&[b"mset", b"a", b"1", b"b c", b"22", b"d", b""]),
    ];
    for head in lines {
        let (request, keys) = read(head);
        let (mut text, mut sent) = (Vec::new(), Vec::new());
        for nth in [1, 2] {
            let mut scratch = Vec::new();
            let key = Redis.key(&request, head, keys[nth], &mut scratch);
            Redis.upstream().push_fetch(key, &mut text);
            Redis.push_rest(&request, head, &keys, nth, &mut text);
        }
        let Class::Split { ask, .. } = request.class else { panic!("{request:?}") };
        Redis.upstream().seal_fetch(ask, 2, &text, &mut sent);
        assert_eq!(
            sent.escape_ascii().to_string(),
            array(&[b"mset", b"b c", b"22", b"d", b""]).escape_ascii().to_string()
        );
    }
}

/// The short path and the long one have the same result: an array is classified as a line is, and
/// with a long argument as with a short one.
#[test]
fn every_way_to_read_a_request_understands_the_same() {
    let long = "1".repeat(1500);
    for row in commands::rows() {
        for count in 0..7 {
            for filler in ["1", "key:12345678", "streams", &long] {
                let mut words: Vec<&str> = row.name.split('|').collect();
                words.extend(std::iter::repeat_n(filler, count));
                let line = format!("{}\r\n", words.join(" ")).into_bytes();
                let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
                let array = array(&bytes);
                let story = |input: &[u8]| {
                    let (request, keys) = read(input);
                    assert_eq!(request.head as usize, input.len(), "{words:?}");
                    let keys: Vec<_> = keys.iter().map(|key| key.of(input).to_vec()).collect();
                    let arguments = request.arguments.of(input).to_vec();
                    (Request { head: 0, arguments: Span::default(), ..request }, keys, arguments)
                };
                assert_eq!(story(&array), story(&line), "{words:?}");
            }
        }
    }
}

/// A long last argument that is no body belongs to the head, as all others do.
#[test]
fn arguments_are_found_again_in_a_head() {
    let long = vec![b'v'; 10_000];
    let head = array(&[b"echo", &long]);
    assert_eq!(read(&head).0.head as usize, head.len());
    assert_eq!(arguments::all(&head), [Cow::Borrowed(&b"echo"[..]), Cow::Borrowed(&long)]);
    let whole = array(&[b"set", b"k", &long]);
    let head = &whole[..read(&whole).0.head as usize];
    assert_eq!(arguments::all(head), [Cow::Borrowed(&b"set"[..]), Cow::Borrowed(b"k")]);
    assert_eq!(arguments::all(b"set 'a b' c\r\n").len(), 3);
}

/// Each word was once compared with each other, and the watchdog took the worker for hung.
#[test]
fn a_line_may_have_thousands_of_words() {
    let line = format!("mset {}'' 1\r\n", "k 1 ".repeat(16_000)).into_bytes();
    let (request, keys) = read(&line);
    assert_eq!(keys.len(), 16_001);
    let mut out = Vec::new();
    for nth in 0..keys.len() {
        Redis.push_rest(&request, &line, &keys, nth, &mut out);
    }
    assert_eq!(out.len(), keys.len() * b"$1\r\n1\r\n".len());
}

#[test]
fn a_line_goes_to_a_server_as_an_array() {
    let mut sent = Vec::new();
    split::write_head(b"  set 'a\\'b' \"\\x00\\n\" nx\r\n", &mut sent);
    assert_eq!(sent, array(&[b"set", b"a'b", b"\0\n", b"nx"]));
    let head = array(&[b"get", b"a"]);
    sent.clear();
    split::write_head(&head, &mut sent);
    assert_eq!(sent, head);
}

#[test]
fn the_operators_commands_are_taken_where_nobody_else_knows_them() {
    let extra =
        |name: &str, last, writes| Extra { name: name.into(), first: 1, last, step: 1, writes };
    let extras =
        [extra("json.get", 1, false), extra("json.mset", -1, true), extra("get", -1, true)];
    let adopted = |input: &[u8]| {
        let (mut request, mut keys) = read(input);
        let taken = recognize(&mut request, input, &mut keys, &extras);
        let keys: Vec<_> = keys.iter().map(|key| key.of(input).to_vec()).collect();
        (taken, request.class, keys)
    };
    let one = Class::Single { writes: false };
    assert_eq!(adopted(&array(&[b"JSON.GET", b"a", b"$"])), (true, one, vec![b"a".to_vec()]));
    assert_eq!(adopted(b"json.get 'a' $\r\n"), (true, one, vec![b"'a'".to_vec()]));
    let (taken, class, keys) = adopted(&array(&[b"json.mset", b"a", b"b"]));
    assert_eq!((taken, class), (true, Class::Single { writes: true }));
    assert_eq!(keys, [b"a", b"b"]);
    let (taken, class, keys) = adopted(b"json.get\r\n");
    assert_eq!((taken, class), (true, Class::Refuse(Refusal::Bad(TOO_FEW))));
    assert!(keys.is_empty());
    assert!(!adopted(&array(&[b"json.set", b"a"])).0, "nobody knows it");
    assert!(!adopted(&array(&[b"client", b"nosuch"])).0, "servers know the container");
    let long = vec![b'v'; 10_000];
    let (_, class, keys) = adopted(&array(&[b"json.get", b"a", &long]));
    assert_eq!((class, keys), (one, vec![b"a".to_vec()]), "a long last argument");
}

#[test]
fn functions_are_listed_only_if_every_word_is_known() {
    let is_sent = |words: &[&[u8]]| {
        let words = [&[&b"function"[..], b"list"], words].concat();
        !matches!(read(&array(&words)).0.class, Class::Refuse(_))
    };
    assert!(is_sent(&[]));
    assert!(is_sent(&[b"withcode"]));
    assert!(is_sent(&[b"LibraryName", b"a\r\nb", b"WITHCODE"]));
    assert!(is_sent(&[b"libraryname"]), "it is said that the name is missing");
    assert!(!is_sent(&[b"x"]));
    assert!(!is_sent(&[b"withcode", b"withcode"]));
    assert!(!is_sent(&[b"libraryname", b"a", b"libraryname", b"b\r\n"]));
}
