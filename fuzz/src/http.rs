//! HTTP requests in any pieces: every cut gives the same answers, no request with a body or with
//! two meanings is answered as one without, and names in metrics come back as they went in.

use http::{Connection, Exposition, Format, Kind, Method, Parsed, Response, Stage, Status, parse};

use crate::mutate::{self, Dice};

pub fn run(seed: u64, budget: usize) {
    mutate::run_of("http", grammar, seed, budget, check);
}

fn check(bytes: &[u8], dice: &mut Dice) {
    let whole = parse(bytes);
    let mut first = None;
    for len in (0..bytes.len()).filter(|_| dice.one_in(1 + bytes.len() / 64)) {
        match parse(&bytes[..len]) {
            Parsed::Partial => assert_eq!(first, None, "a prefix of {len} bytes is none again"),
            parsed => first = Some(parsed),
        }
    }
    assert!(first.is_none_or(|first| first == whole), "more bytes change it: {whole:?}");
    if let Parsed::Request(request) = &whole {
        plain(&bytes[..request.len]);
        assert!(request.len <= http::HEAD_LEN_MAX);
        assert!(!request.path.contains(['?', '\r', '\n', ' ']), "{request:?}");
    }
    let at_once = converse(bytes, usize::MAX, dice);
    let cut = converse(bytes, 1 + dice.below(40), dice);
    assert_eq!(at_once, cut, "the answers depend on how the requests came");
}

/// Checks with a naive reader that a head that was accepted has one meaning and no body.
fn plain(head: &[u8]) {
    let text = String::from_utf8_lossy(head).to_lowercase();
    let values = |name: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let named = lines.filter(|(found, _)| *found == name);
        named.map(|(_, value)| value.trim().to_string()).collect()
    };
    assert_eq!(values("transfer-encoding"), Vec::<String>::new());
    let lengths = values("content-length");
    assert!(lengths.len() <= 1 && lengths.iter().all(|len| len.trim_matches('0').is_empty()));
    assert!(values("host").len() <= 1, "two hosts");
    assert!(head.ends_with(b"\n\n") || head.ends_with(b"\n\r\n"), "a head ends with a line");
}

/// Sends the bytes in pieces, answers what is asked, and returns everything that came back.
fn converse(bytes: &[u8], piece: usize, dice: &mut Dice) -> String {
    let mut connection = Connection::new(0);
    let mut out = Vec::new();
    for piece in bytes.chunks(piece.min(bytes.len().max(1))) {
        if connection.stage() == Stage::Over {
            break;
        }
        connection.receive(piece, 0);
        answer_all(&mut connection, &mut out, dice);
    }
    if connection.stage() != Stage::Over {
        connection.end(0);
        answer_all(&mut connection, &mut out, dice);
        assert_eq!(connection.stage(), Stage::Over, "a client that has gone keeps no place");
    }
    String::from_utf8(out).expect("answers are text")
}

fn answer_all(connection: &mut Connection, out: &mut Vec<u8>, dice: &mut Dice) {
    loop {
        if let Some(request) = connection.next_request(0) {
            assert!(!connection.wants_input(), "one request at a time");
            let status = match request.method {
                Method::Other => Status::MethodNotAllowed,
                _ => Status::Ok,
            };
            connection.answer(&Response::text(status, &request.path), 0);
        }
        if connection.stage() != Stage::Answering {
            return;
        }
        let all = connection.unsent().concat();
        assert!(!all.is_empty());
        let some = 1 + dice.below(all.len());
        out.extend_from_slice(&all[..some]);
        connection.advance(some, 0);
    }
}

fn grammar(dice: &mut Dice) -> Vec<u8> {
    let mut out = String::new();
    for _ in 0..1 + dice.below(3) {
        let method = dice.pick(&["GET", "HEAD", "POST", "get", "G\u{e9}T"]);
        let target = dice.pick(&["/", "/metrics", "/a?b", "*", "http://h/a", "//", "/a b"]);
        let version = dice.pick(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.10"]);
        out += &format!("{method} {target} {version}\r\n");
        for _ in 0..dice.below(5) {
            out += dice.pick(FIELDS);
            if dice.one_in(40) {
                // About the bound of a head.
                out.extend(std::iter::repeat_n('x', http::HEAD_LEN_MAX - 200 + dice.below(300)));
            }
            out += dice.pick(&["\r\n", "\r\n", "\r\n", "\n", "\r\n ", "\r"]);
        }
        out += dice.pick(&["\r\n", "\r\n", "\r\n", "\n", "", "abc"]);
    }
    out.into_bytes()
}

const FIELDS: &[&str] = &[
    "Host: a",
    "Host: a",
    "host:b",
    "Connection: close",
    "Connection: keep-alive",
    "Content-Length: 0",
    "Content-Length: 5",
    "Content-Length: +0",
    "Content-Length : 0",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: identity",
    "Accept: application/openmetrics-text;q=0.1, text/plain;q=NaN",
    "Expect: 100-continue",
    "X: \t y",
    ": empty",
];

/// Any names as labels and helps: a naive reader finds each sample once, with the name as it was.
pub fn exposition(seed: u64, budget: usize) {
    let mut dice = Dice::new(seed);
    for _ in 0..budget {
        let mut text = || -> String {
            let len = dice.below(12);
            (0..len).map(|_| odd(&mut dice)).collect()
        };
        let labels: Vec<[String; 2]> = (0..4).map(|_| [text(), text()]).collect();
        let help = text();
        let format = if dice.one_in(2) { Format::Text } else { Format::OpenMetrics };
        let mut page = Exposition::new(format);
        page.family("a", Kind::Counter, None, &help);
        for [one, other] in &labels {
            page.sample(&[("one", one), ("other", other)], 7);
        }
        let page = page.finish();
        let lines: Vec<&str> = page.split('\n').collect();
        let ends = if format == Format::Text { 1 } else { 2 };
        assert_eq!(lines.len(), 2 + labels.len() + ends, "a name ends a line: {page:?}");
        for (line, [one, other]) in lines[2..].iter().zip(&labels) {
            let rest = line.strip_prefix("a_total{one=\"").expect("a sample");
            let (found, rest) = unquoted(rest);
            let rest = rest.strip_prefix(",other=\"").expect("the second label");
            let (second, rest) = unquoted(rest);
            assert_eq!((&found, &second, rest), (one, other, "} 7"), "{line:?}");
        }
    }
}

fn odd(dice: &mut Dice) -> char {
    let all = ["\"", "\\", "\n", "{", "}", ",", "=", " ", "a", "\u{e9}", "\u{2028}", "\r", "\0"];
    dice.pick(&all).chars().next().expect("none is empty")
}

/// Reads up to the quote that ends a value; returns the value, and what follows.
fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut all = text.char_indices();
    while let Some((at, character)) = all.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => match all.next().map(|(_, escaped)| escaped) {
                Some('n') => value.push('\n'),
                Some(escaped @ ('\\' | '"')) => value.push(escaped),
                other => panic!("no such escape: {other:?}"),
            },
            other => value.push(other),
        }
    }
    panic!("a value without an end: {text:?}");
}
