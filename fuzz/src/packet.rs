//! Packets of the binary protocol: their grammar, a second parser, and an independent translation
//! for a server. The model of `server.rs` parses the result.

use proto::{Adapted, Class, PROTOCOLS, Parsed, Protocol, Quiet, Request, Resume, Span};

use testkit::wire::base64;
use testkit::wire::binary::{Head, Packet, REQUEST};

use crate::mutate::{self, Dice};
use crate::naive::{PlainRequest, Reading, clean};
use crate::server;

/// Makes a packet, valid or nearly valid.
pub fn packet(dice: &mut Dice) -> Vec<u8> {
    let opcode = match dice.below(10) {
        0 => dice.roll() as u8,
        _ => dice.below(0x25) as u8,
    };
    let key =
        dice.pick(&[&b"a"[..], b"key:1", b"a b", b"\0", b"\xff\xfe", b"k\r\n", b"", &[b'K'; 250]]);
    let numbers = [0u32, 1, 30, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    let extras = match opcode {
        1..=3 | 0x11..=0x13 => 8,
        5 | 6 | 0x15 | 0x16 => 20,
        0x1c..=0x1e | 0x23 | 0x24 => 4,
        8 | 0x18 if dice.one_in(2) => 4,
        _ => 0,
    };
    let mut body = Vec::new();
    while body.len() < extras {
        body.extend_from_slice(&numbers[dice.below(numbers.len())].to_be_bytes());
    }
    let has_key = !matches!(opcode, 7 | 8 | 0x0a | 0x0b | 0x10 | 0x17 | 0x18 | 0x20);
    let key = if has_key || dice.one_in(20) { key } else { b"" };
    let mut value = Vec::new();
    if matches!(opcode, 1..=3 | 0x0e | 0x0f | 0x11..=0x13 | 0x19 | 0x1a) || dice.one_in(20) {
        value.resize(dice.below(12), b'd');
    }
    let opaque = dice.roll() as u32;
    let cas = if dice.one_in(4) { dice.roll() } else { 0 };
    let (extras, value) = (&body[..], &value[..]);
    Packet { extras, key, value, cas, ..Packet::new(opcode, opaque) }.bytes()
}

/// Tests the parser of packets, and their translation.
pub fn run(seed: u64, budget: usize) {
    mutate::run("packet", seed, budget, |bytes, _| check(bytes));
}

fn binary() -> &'static dyn Protocol {
    PROTOCOLS[0].spoken(REQUEST)
}

fn check(bytes: &[u8]) {
    let mut keys = Vec::new();
    let parsed = binary().parse_request(bytes, &mut Resume::default(), &mut keys);
    let naive = read(bytes);
    match (&parsed, &naive) {
        (Parsed::Incomplete, Reading::Incomplete) | (Parsed::Malformed(_), Reading::Hopeless) => {}
        (Parsed::Complete(request), Reading::Kept { body }) => {
            assert!(matches!(request.class, Class::Refuse(_) | Class::Local(_)), "{request:?}");
            assert_eq!(request.body, body.unwrap_or(0));
        }
        (Parsed::Complete(request), Reading::Forwarded(said)) => {
            let name = binary().commands()[usize::from(request.command)].name;
            assert_eq!(name, said.word);
            assert_eq!(request.quiet == Quiet::Sparing, said.quiet);
            assert_eq!(request.body, said.body.unwrap_or(0));
            let texts: Vec<&[u8]> = keys.iter().map(|key| key.of(bytes)).collect();
            assert_eq!(texts, said.keys);
            for meta in [false, true] {
                let expected = expected(said, meta);
                judge(request, bytes, &keys, meta, expected);
            }
        }
        (Parsed::Complete(request), Reading::Perhaps(said)) => {
            if let Class::Broadcast { .. } = request.class {
                let write = server::written;
                let said = PlainRequest { word: "stats".to_string(), ..said.clone() };
                server::check_administrative(&said, (binary(), bytes, request), &write);
            }
        }
        _ => panic!("{parsed:?} and naively {naive:?}"),
    }
}

/// Checks that the server parses the sent bytes as the client's request, or that nothing is sent.
fn judge(
    request: &Request,
    bytes: &[u8],
    keys: &[Span],
    meta: bool,
    expected: Option<PlainRequest>,
) {
    let head = &bytes[..request.head as usize];
    if let Class::Single { .. } = request.class
        && let Adapted::Refused(_) = binary().adapt(request, head, Some(server::capabilities(meta)))
    {
        assert_eq!(expected, None, "refused, with meta: {meta}");
        return;
    }
    let expected = expected.expect("carried, though it should be refused");
    let written = server::written(binary(), request, head, keys, meta);
    let (mut read, used) = server::read(&written).expect("the server answers an error");
    assert_eq!(used, written.len(), "the server sees another command in it");
    read.options.sort();
    assert_eq!(read, expected, "the server was sent b\"{}\"", written.escape_ascii());
    let mut tail = Vec::new();
    binary().write_tail(request, proto::Ask::default(), &mut tail);
    assert_eq!(!tail.is_empty(), expected.body.is_some());
}

/// The naive parser. Names are those of the protocol's text; numbers are the cas, then the extras.
fn read(bytes: &[u8]) -> Reading {
    let Some(&magic) = bytes.first() else { return Reading::Incomplete };
    if magic != REQUEST {
        return Reading::Hopeless;
    }
    let Some(head) = Head::read(bytes) else { return Reading::Incomplete };
    let Head { code, key_len: key, extras_len: extras, body_len: total, .. } = head;
    let Some(value) = head.value_len() else { return Reading::Hopeless };
    let Some((name, lengths, has_key, has_value)) = row(code) else {
        return Reading::Kept { body: Some(total as u64) };
    };
    let fits = lengths.contains(&extras)
        && (has_key == (key > 0) || name == "Stat")
        && (has_value || value == 0)
        && key <= 250;
    if !fits {
        return Reading::Hopeless;
    }
    let Some(rest) = bytes.get(24..24 + extras + key) else { return Reading::Incomplete };
    let body = has_value.then_some(value as u64);
    if matches!(name, "Quit" | "Noop" | "Version" | "QuitQ") || name.starts_with("SASL") {
        return Reading::Kept { body };
    }
    let text = rest[extras..].to_vec();
    if has_key && !clean(&text) && base64::encode(&text).len() > 250 {
        return Reading::Kept { body };
    }
    if name == "Stat" {
        let words = text.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let options = words.map(<[u8]>::to_vec).collect();
        return Reading::Perhaps(PlainRequest {
            word: name.to_string(),
            options,
            ..PlainRequest::default()
        });
    }
    let mut numbers = vec![i128::from(head.cas)];
    let widths: &[usize] = match extras {
        20 => &[8, 8, 4],
        8 => &[4, 4],
        4 => &[4],
        _ => &[],
    };
    let mut extras = &rest[..extras];
    for width in widths {
        let (field, after) = extras.split_at(*width);
        numbers.push(field.iter().fold(0, |number, byte| number << 8 | i128::from(*byte)));
        extras = after;
    }
    let keys = if has_key { vec![text] } else { vec![] };
    let quiet = name.ends_with('Q');
    Reading::Forwarded(PlainRequest {
        word: name.to_string(),
        keys,
        numbers,
        body,
        quiet,
        ..PlainRequest::default()
    })
}

/// Returns the name, the valid lengths of the extras, and whether there are a key and a value.
fn row(opcode: u8) -> Option<(&'static str, &'static [usize], bool, bool)> {
    const NAMES: &[&str] = &[
        "Get",
        "Set",
        "Add",
        "Replace",
        "Delete",
        "Increment",
        "Decrement",
        "Quit",
        "Flush",
        "GetQ",
        "Noop",
        "Version",
        "GetK",
        "GetKQ",
        "Append",
        "Prepend",
        "Stat",
        "SetQ",
        "AddQ",
        "ReplaceQ",
        "DeleteQ",
        "IncrementQ",
        "DecrementQ",
        "QuitQ",
        "FlushQ",
        "AppendQ",
        "PrependQ",
        "",
        "Touch",
        "GAT",
        "GATQ",
        "",
        "SASLList",
        "SASLAuth",
        "SASLStep",
        "GATK",
        "GATKQ",
    ];
    let name = *NAMES.get(usize::from(opcode)).filter(|name| !name.is_empty())?;
    let lengths: &[usize] = match name.trim_end_matches('Q') {
        "Set" | "Add" | "Replace" => &[8],
        "Increment" | "Decrement" => &[20],
        "Touch" | "GAT" | "GATK" => &[4],
        "Flush" => &[0, 4],
        _ => &[0],
    };
    let bare = ["Quit", "QuitQ", "Flush", "FlushQ", "Noop", "Version", "Stat", "SASLList"];
    let loud = name.trim_end_matches('Q');
    let valued = ["Set", "Add", "Replace", "Append", "Prepend", "SASLAuth", "SASLStep"];
    Some((name, lengths, !bare.contains(&name), valued.contains(&loud)))
}

/// Returns the request to a server, if there is one, with the options in the order of their
/// letters.
fn expected(said: &PlainRequest, meta: bool) -> Option<PlainRequest> {
    match classic(said) {
        None if meta => Some(in_meta(said)),
        classic => classic,
    }
}

/// Returns an expiry as it is sent to a server.
fn time(said: &PlainRequest, at: usize) -> i128 {
    said.numbers[at].min(i128::from(i32::MAX))
}

/// Returns the equivalent classic form.
fn classic(said: &PlainRequest) -> Option<PlainRequest> {
    let name = said.word.trim_end_matches('Q');
    let free = said.numbers[0] == 0;
    // A value that may be more than the server allows must not remove the old one, as `ms` does.
    let is_long = name != "Set" && said.body.is_some_and(|len| len > (512 << 10) - 512);
    let (quiet, silent) = (said.quiet || is_long, said.quiet);
    let (word, numbers) = match name {
        _ if !said.keys.iter().all(|key| clean(key)) => return None,
        "Flush" => ("flush_all", said.numbers[1..].iter().map(|_| time(said, 1)).collect()),
        "Get" | "GetK" => ("gets", vec![]),
        "GAT" | "GATK" | "Touch" => ("gats", vec![time(said, 1)]),
        "Delete" if free => ("delete", vec![]),
        "Set" | "Add" | "Replace" if quiet && !free => {
            ("cas", vec![said.numbers[1], time(said, 2), said.numbers[0]])
        }
        "Set" if quiet => ("set", vec![said.numbers[1], time(said, 2)]),
        "Add" if quiet => ("add", vec![said.numbers[1], time(said, 2)]),
        "Replace" if quiet => ("replace", vec![said.numbers[1], time(said, 2)]),
        "Append" if quiet && free => ("append", vec![0, 0]),
        "Prepend" if quiet && free => ("prepend", vec![0, 0]),
        "Increment" if silent && free && !creates(said) => ("incr", vec![said.numbers[1]]),
        "Decrement" if silent && free && !creates(said) => ("decr", vec![said.numbers[1]]),
        _ => return None,
    };
    let (keys, body) = (said.keys.clone(), said.body);
    Some(PlainRequest { word: word.to_string(), keys, numbers, body, ..PlainRequest::default() })
}

fn creates(said: &PlainRequest) -> bool {
    said.numbers[3] != 0xffff_ffff
}

/// Returns the form for a server with meta commands.
fn in_meta(said: &PlainRequest) -> PlainRequest {
    let name = said.word.trim_end_matches('Q');
    let free = said.numbers[0] == 0;
    let word = match name {
        "Get" | "GetK" | "GAT" | "GATK" | "Touch" => "mg",
        "Delete" => "md",
        "Increment" | "Decrement" => "ma",
        _ => "ms",
    };
    let mut options = match word {
        "mg" => options_of_read(said, name),
        "ma" => options_of_delta(said, name),
        "ms" => options_of_store(said, name),
        _ => Vec::new(),
    };
    if !free && word != "mg" {
        options.push(format!("C{}", said.numbers[0]));
    }
    if matches!(word, "ms" | "ma") && !said.quiet {
        options.push("c".to_string());
    }
    let mut key = said.keys[0].clone();
    if !clean(&key) {
        key = base64::encode(&key);
        options.push("b".to_string());
    }
    options.sort();
    let options = options.into_iter().map(String::into_bytes).collect();
    PlainRequest {
        word: word.into(),
        keys: vec![key],
        options,
        body: said.body,
        ..PlainRequest::default()
    }
}

fn options_of_read(said: &PlainRequest, name: &str) -> Vec<String> {
    let mut options = vec!["f".to_string(), "c".to_string()];
    if name != "Touch" {
        options.push("v".to_string());
    }
    if !name.starts_with("Get") {
        options.push(format!("T{}", time(said, 1)));
    }
    options
}

fn options_of_delta(said: &PlainRequest, name: &str) -> Vec<String> {
    let mut options = vec![format!("D{}", said.numbers[1])];
    if name == "Decrement" {
        options.push("MD".to_string());
    }
    if creates(said) {
        options.push(format!("N{}", time(said, 3)));
        options.push(format!("J{}", said.numbers[2]));
    }
    if !said.quiet {
        options.push("v".to_string());
    }
    options
}

fn options_of_store(said: &PlainRequest, name: &str) -> Vec<String> {
    let mut options = Vec::new();
    if said.numbers.len() > 1 && said.numbers[1] != 0 {
        options.push(format!("F{}", said.numbers[1]));
    }
    if said.numbers.len() > 1 && time(said, 2) != 0 {
        options.push(format!("T{}", time(said, 2)));
    }
    let mode = match name {
        "Add" if said.numbers[0] == 0 => Some("ME"),
        "Replace" if said.numbers[0] == 0 => Some("MR"),
        "Append" => Some("MA"),
        "Prepend" => Some("MP"),
        _ => None,
    };
    options.extend(mode.map(str::to_string));
    options
}
