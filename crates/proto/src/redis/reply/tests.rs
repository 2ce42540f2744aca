//! Replies as servers send them, and as they never would, whole and in pieces.

use super::*;

const GET: Ask = Ask { command: id::GET };
const SCAN: Ask = Ask { command: id::SCAN };

/// Returns the items of a stream of whole replies to `ask` as text; a reply ends with a bar.
fn story(ask: Ask, stream: &[u8]) -> String {
    let (mut rest, mut told) = (stream, String::new());
    let mut progress = Progress::default();
    while !rest.is_empty() {
        match parse(ask, &mut progress, rest) {
            Parsed::Complete(item) => {
                let bar = if item.kind.ends_reply() { " |" } else { "" };
                let body =
                    if item.trailer.is_empty() { String::new() } else { item.body.to_string() };
                told += &format!("{:?} {}+{body}{bar} ", item.kind, item.head);
                assert_eq!(
                    item.kind.ends_reply(),
                    progress == Progress::default(),
                    "{}",
                    stream.escape_ascii()
                );
                rest = &rest[item.len() as usize..];
            }
            other => return format!("{told}{other:?}"),
        }
    }
    told.trim_end().to_string()
}

fn check(ask: Ask, stream: &str, expected: &str) {
    assert_eq!(story(ask, stream.as_bytes()), expected, "{stream:?}");
}

#[test]
fn a_reply_that_is_there_is_one_item() {
    for reply in [
        "+OK\r\n",
        ":1\r\n",
        ":-1\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "_\r\n",
        "#t\r\n",
        ",1.5\r\n",
        ",inf\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        "$0\r\n\r\n",
        "$5\r\nhello\r\n",
        "=7\r\ntxt:abc\r\n",
        "*0\r\n",
        "~0\r\n",
        "%0\r\n",
        "*2\r\n:1\r\n:2\r\n",
        "*1\r\n$-1\r\n",
        "*3\r\n:1\r\n$5\r\nhello\r\n*1\r\n+OK\r\n",
        "%1\r\n+a\r\n*2\r\n_\r\n#f\r\n",
        "*1\r\n-ERR x\r\n",
        "|1\r\n+ttl\r\n:3600\r\n$1\r\na\r\n",
        "*1\r\n|1\r\n+a\r\n+b\r\n:1\r\n",
    ] {
        check(GET, reply, &format!("Status {}+ |", reply.len()));
    }
    check(GET, "-ERR x\r\n", "Error 8+ |");
    check(GET, "!5\r\nERR x\r\n", "Error 11+ |");
    check(GET, "+OK\r\n:1\r\n-E\r\n", "Status 5+ | Status 4+ | Error 4+ |");
}

/// `return {big_number='abc'}` and its like are written in these forms, alone and in lists.
#[test]
fn a_line_of_a_script_passes_whatever_it_says() {
    let texts: [&[u8]; 8] =
        [b"", b"abc", b"-", b"nan", b"-inf", b"1e+308", b"$5", b"\0\x01\x1b[2J\xff\xfe"];
    for first in [b'+', b'-', b'(', b','] {
        for text in texts {
            let line = [&[first][..], text, b"\r\n"].concat();
            let kind = if first == b'-' { "Error" } else { "Status" };
            assert_eq!(story(GET, &line), format!("{kind} {}+ |", line.len()), "{line:?}");
            let list = [&b"*2\r\n"[..], &line, b"%1\r\n", &line, &line].concat();
            assert_eq!(story(GET, &list), format!("Status {}+ |", list.len()), "{list:?}");
        }
    }
}

#[test]
fn depth_is_only_a_number() {
    let deep = "*1\r\n".repeat(100_000) + ":1\r\n";
    check(GET, &deep, &format!("Status {}+ |", deep.len()));
    let wide = "*4294967295\r\n".repeat(2);
    assert_eq!(story(GET, wide.as_bytes()), "Part 26+");
    // Each is valid by itself; their sum cannot be counted.
    let mut progress = Progress { left: LEFT_OUT - 1 };
    assert_eq!(parse(GET, &mut progress, b"*4294967295\r\n"), Parsed::Malformed(TOO_MANY));
}

#[test]
fn a_long_string_is_a_body() {
    let long = "x".repeat(4096);
    check(GET, &format!("$4096\r\n{long}\r\n"), "Status 7+4096 |");
    check(GET, &format!("*2\r\n:1\r\n$4096\r\n{long}\r\n"), "Status 15+4096 |");
    check(GET, &format!("*3\r\n:1\r\n$4096\r\n{long}\r\n:2\r\n"), "Part 15+4096 Status 4+ |");
    let short = &long[1..];
    check(GET, &format!("$4095\r\n{short}\r\n"), "Status 4104+ |");
    // The same for a reply that has not come yet.
    let mut progress = Progress::default();
    let parsed = parse(GET, &mut progress, b"$100\r\nabc");
    let item = made(ItemKind::Status, 6, Some(100));
    assert_eq!(parsed, Parsed::Complete(item));
}

#[test]
fn what_is_between_elements_is_passed_on() {
    check(GET, "*3\r\n:1\r\n", "Part 8+");
    check(GET, "*3\r\n:1\r\n$5\r\nhello\r\n", "Part 19+");
    check(GET, "*3\r\n:1\r\n:", "Part 8+ Incomplete");
    check(GET, "*3\r\n:1\r\n$5", "Part 8+ Incomplete");
}

#[test]
fn a_list_is_taken_apart_by_its_elements() {
    let list = b"*4\r\n$1\r\na\r\n$-1\r\n*1\r\n:7\r\n_\r\n";
    let (mut at, count) = elements(list).unwrap();
    assert_eq!((at, count), (4, 4));
    let mut found = Vec::new();
    for _ in 0..count {
        let len = element_len(&list[at..]).unwrap();
        found.push(list[at..at + len].escape_ascii().to_string());
        at += len;
    }
    assert_eq!(found, [r"$1\r\na\r\n", r"$-1\r\n", r"*1\r\n:7\r\n", r"_\r\n"]);
    assert_eq!((at, element_len(b"")), (list.len(), None));
    let long = format!("$5000\r\n{}\r\n", "x".repeat(5000));
    assert_eq!(element_len(long.as_bytes()), Some(long.len()));
    for other in [&b"+OK\r\n"[..], b"*-1\r\n", b"$1\r\na\r\n", b"%1\r\n", b"", b"*1"] {
        assert_eq!(elements(other), None);
    }
}

/// The cursor is the only part with a position.
#[test]
fn a_cursor_comes_first() {
    check(SCAN, "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nk\r\n", "Part 11+ Status 11+ |");
    check(SCAN, "-ERR invalid cursor\r\n", "Error 21+ |");
    let mut progress = Progress::default();
    let input = b"*2\r\n$2\r\n17\r\n*0\r\n";
    let Parsed::Complete(item) = parse(SCAN, &mut progress, input) else { panic!("it is there") };
    assert_eq!(item.key.of(input), b"17");
    for len in 0..12 {
        let parsed = parse(SCAN, &mut Progress::default(), &input[..len]);
        assert_eq!(parsed, Parsed::Incomplete, "{len}");
    }
    for (wrong, why) in [
        ("*3\r\n$1\r\n0\r\n", NO_ANSWER),
        ("*2\r\n:0\r\n", NO_ANSWER),
        ("*2\r\n$0\r\n\r\n", NO_ANSWER),
        ("*2\r\n$-1\r\n", NO_ANSWER),
        ("*2\r\n$4096\r\n", NO_ANSWER),
        ("*2\r\n$1\r\n00\r\n", BAD_END),
    ] {
        check(SCAN, wrong, &format!("Malformed({why:?})"));
    }
    check(SCAN, "*2\r\n$17\r\n18014398509481983\r\n", "Part 28+");
    // A cursor that cannot be passed on is no reason to end the link.
    for cursor in ["$17\r\n18014398509481984", "$1\r\nx"] {
        let reply = format!("*2\r\n{cursor}\r\n*1\r\n$1\r\nk\r\n");
        check(SCAN, &reply, &format!("Part {}+ Status 11+ |", reply.len() - 11));
    }
}

#[test]
fn what_is_no_reply_is_not_believed() {
    for (wrong, why) in [
        ("OK\r\n", BAD_TYPE),
        ("\r\n", BAD_TYPE),
        ("?\r\n", BAD_TYPE),
        ("*1\r\nx", BAD_TYPE),
        (">1\r\n+invalidate\r\n", PUSHED),
        ("*1\r\n>1\r\n", PUSHED),
        ("$+1\r\n", BAD_LEN),
        ("$01\r\n", BAD_LEN),
        ("$-2\r\n", BAD_LEN),
        ("$-0\r\n", BAD_LEN),
        ("$-10\r\n", BAD_LEN),
        ("$\r\n", BAD_LEN),
        ("$1\n", BAD_LEN),
        ("$1\rx", BAD_LEN),
        ("$?\r\n", BAD_LEN),
        ("*?\r\n", BAD_LEN),
        ("$536870913\r\n", BAD_LEN),
        ("$2147483648\r\n", BAD_LEN),
        ("$18446744073709551616\r\n", BAD_LEN),
        ("*4294967296\r\n", BAD_LEN),
        ("*18446744073709551615\r\n", BAD_LEN),
        ("%-1\r\n", BAD_LEN),
        ("~-1\r\n", BAD_LEN),
        ("|-1\r\n", BAD_LEN),
        ("=-1\r\n", BAD_LEN),
        ("$1\r\nab\r\n", BAD_END),
        ("$1\r\na\n\n", BAD_END),
        (":\r\n", BAD_LINE),
        (":x\r\n", BAD_LINE),
        (":1x\r\n", BAD_LINE),
        (":-\r\n", BAD_LINE),
        ("#x\r\n", BAD_LINE),
        ("_x\r\n", BAD_LINE),
        (":1.5\r\n", BAD_LINE),
        ("(1\n2\r\n", BAD_LINE),
        (",1\r2\r\n", BAD_LINE),
        ("+a\nb\r\n", BAD_LINE),
        ("+a\rb\r\n", BAD_LINE),
        ("-ERR a\n", BAD_LINE),
    ] {
        check(GET, wrong, &format!("Malformed({why:?})"));
    }
    let endless = format!(":{}", "1".repeat(LINE_MAX));
    check(GET, &endless, &format!("Malformed({TOO_LONG:?})"));
    check(GET, &endless[..LINE_MAX - 1], "Incomplete");
}

/// A script may write any text of any length, and the link is shared with other clients.
#[test]
fn a_long_line_passes_in_pieces() {
    let long = "x".repeat(LINE_MAX - 1);
    for first in ["+", "-", "(", ","] {
        let told = format!("Part {LINE_MAX}+");
        check(GET, &format!("{first}{long}"), &told);
        check(GET, &format!("*2\r\n{first}{long}"), &format!("Part {}+", LINE_MAX + 4));
        // The end of the line is at the last byte that is searched, or just behind it.
        let most = format!("{first}{}\r\n", &long[1..]);
        check(
            GET,
            &most,
            &if first == "-" {
                format!("Error {}+ |", most.len())
            } else {
                format!("Status {}+ |", most.len())
            },
        );
        // The same where the end of the line has come.
        check(
            GET,
            &format!("{first}{long}xy\r\n:1\r\n"),
            &format!("{told} Status 4+ | Status 4+ |"),
        );
        let mut progress = Progress::default();
        let text = format!("{first}{long}");
        assert!(matches!(parse(GET, &mut progress, text.as_bytes()), Parsed::Complete(_)));
        let mut take = |input: &[u8]| match parse(GET, &mut progress, input) {
            Parsed::Complete(item) => format!("{:?} {}", item.kind, item.head),
            other => format!("{other:?}"),
        };
        assert_eq!(take(b"xyz"), "Part 3");
        assert_eq!(take(b"x\r"), "Part 1");
        assert_eq!(take(b"\r"), "Incomplete");
        assert_eq!(take(b"\ry"), format!("Malformed({BAD_LINE:?})"));
        assert_eq!(take(b"\n"), format!("Malformed({BAD_LINE:?})"));
        assert_eq!(take(b"\r\n:1\r\n"), "Status 2");
        assert_eq!(take(b":1\r\n"), "Status 4", "the next reply");
    }
    // In a list, where more follows.
    let mut progress = Progress::default();
    let text = format!("*2\r\n+{long}");
    assert!(matches!(parse(GET, &mut progress, text.as_bytes()), Parsed::Complete(_)));
    let item = parse(GET, &mut progress, b"\r\n:1\r\n");
    assert_eq!(item, Parsed::Complete(made(ItemKind::Part, 2, None)));
    let item = parse(GET, &mut progress, b":1\r\n");
    assert_eq!(item, Parsed::Complete(made(ItemKind::Status, 4, None)));
}

#[test]
fn a_length_may_come_in_pieces() {
    for whole in ["$536870912\r\n", "$-1\r\n", "*-1\r\n", "+OK\r\n", "_\r\n", ":-12\r\n", "%12\r\n"]
    {
        for len in 0..whole.len() {
            let parsed = parse(GET, &mut Progress::default(), &whole.as_bytes()[..len]);
            assert_eq!(parsed, Parsed::Incomplete, "{:?}", &whole[..len]);
        }
    }
}

#[test]
fn a_walk_reads_what_is_asked_for() {
    let reply = b"%2\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n+b\r\n=7\r\ntxt:abc\r\n";
    let mut walk = Walk::new(reply);
    assert_eq!(walk.open(), Some(4));
    assert_eq!(walk.text(), Some(&b"a"[..]));
    assert_eq!(walk.value(), Some(&b"*2\r\n:1\r\n$-1\r\n"[..]));
    assert_eq!(walk.text(), Some(&b"b"[..]));
    assert_eq!(walk.text(), Some(&b"txt:abc"[..]));
    assert_eq!(walk.at(), reply.len());
    assert_eq!((walk.text(), walk.value(), walk.open()), (None, None, None));
    assert_eq!(Walk::new(b"$-1\r\n").text(), None);
    assert_eq!(Walk::new(b"*2\r\n:1\r\n").value(), None);
    let long = format!("$5000\r\n{}\r\n", "x".repeat(5000));
    assert_eq!(Walk::new(long.as_bytes()).text().map(<[u8]>::len), Some(5000));
    assert_eq!(Walk::new(&long.as_bytes()[..5007]).text(), None);
}
