//! Requests and replies of Redis's grammar, valid or nearly valid.

use crate::mutate::Dice;

/// The shapes of requests: words in lower case are placeholders.
const SHAPES: &[&str] = &[
    "GET key",
    "get key",
    "SET key value",
    "SET key value EX number",
    "SETEX key number value",
    "INCRBY key number",
    "APPEND key value",
    "MGET key key key",
    "MGET keys",
    "DEL key key",
    "EXISTS key key key",
    "MSET key value key value",
    "MSETNX key value key value",
    "RENAME key key",
    "ZADD key number value",
    "LRANGE key 0 -1",
    "LMOVE key key LEFT RIGHT",
    "BITOP AND key key key",
    "ZUNIONSTORE key 2 key key WEIGHTS 1 2",
    "ZUNIONSTORE key number key key",
    "SORT key BY value GET # STORE key",
    "XREAD COUNT 2 STREAMS key key 0 0",
    "XADD key * value value",
    "EVAL value 1 key value",
    "EVAL value number key",
    "EVALSHA value 2 key key",
    "FCALL value 1 key",
    "SCRIPT LOAD value",
    "SCRIPT EXISTS value",
    "OBJECT ENCODING key",
    "MEMORY USAGE key",
    "COPY key key DB number",
    "SCAN number MATCH value COUNT number",
    "HSCAN key number",
    "KEYS value",
    "DBSIZE",
    "FLUSHALL",
    "SELECT number",
    "HELLO number",
    "HELLO 3 AUTH value value SETNAME value",
    "AUTH value",
    "PING",
    "PING value",
    "ECHO value",
    "CLIENT SETNAME value",
    "CLIENT GETNAME",
    "CLIENT REPLY SKIP",
    "CLIENT REPLY OFF",
    "CLIENT REPLY ON",
    "CLIENT TRACKING ON",
    "COMMAND DOCS get",
    "COMMAND GETKEYS GET key",
    "CONFIG GET value",
    "INFO",
    "RESET",
    "QUIT",
    "MULTI",
    "SUBSCRIBE value",
    "BLPOP key 0",
    "nonsense value value",
];

const KEYS: &[&[u8]] = &[b"a", b"key:1", b"{t}x", b"{t}y", b"", b"\xff\xfe\0", b"a\r\nb", b"k k"];

const NUMBERS: &[&[u8]] = &[
    b"0",
    b"1",
    b"2",
    b"3",
    b"-1",
    b"+1",
    b"01",
    b"15",
    b"16",
    b"2147483648",
    b"9223372036854775807",
    b"18446744073709551615",
    b"18446744073709551616",
    b"x",
];

/// Lengths that are invalid, or too large for any server.
const LENGTHS: &[&[u8]] = &[
    b"-1",
    b"-0",
    b"0",
    b"+1",
    b"01",
    b"00",
    b" 1",
    b"1 ",
    b"",
    b"x",
    b"2147483647",
    b"2147483648",
    b"4294967296",
    b"536870912",
    b"536870913",
    b"18446744073709551615",
    b"18446744073709551616",
    b"99999999999999999999999999",
];

/// Makes a request, sometimes with a wrong length.
pub fn request(dice: &mut Dice) -> Vec<u8> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    for token in dice.pick(SHAPES).split(' ') {
        match token {
            "key" => words.push(dice.pick(KEYS).to_vec()),
            "keys" => words.extend((0..1 + dice.below(130)).map(|_| dice.pick(KEYS).to_vec())),
            "number" => words.push(dice.pick(NUMBERS).to_vec()),
            "value" => words.push(value(dice)),
            word => words.push(word.as_bytes().to_vec()),
        }
    }
    match dice.below(20) {
        0 => drop(words.pop()),
        1 => words.push(value(dice)),
        2 => drop(words.remove(0)),
        _ => {}
    }
    if dice.one_in(8) { line(&words, dice) } else { array(&words, dice) }
}

fn value(dice: &mut Dice) -> Vec<u8> {
    const VALUES: &[&[u8]] = &[
        b"v",
        b"hello",
        b"",
        b"*1\r\n$4\r\nPING\r\n",
        b"\r\n",
        b"\r\n+OK\r\n",
        b"$5\r\n",
        b"a b",
        b"'",
        b"\"",
        b"\\",
        b"\0",
    ];
    match dice.below(12) {
        0 => vec![b'v'; 4090 + dice.below(12)],
        1 => (0..dice.below(40)).map(|_| dice.roll() as u8).collect(),
        _ => dice.pick(VALUES).to_vec(),
    }
}

fn array(words: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut out = vec![b'*'];
    length(&mut out, words.len(), dice);
    for word in words {
        out.push(if dice.one_in(300) { dice.roll() as u8 } else { b'$' });
        length(&mut out, word.len(), dice);
        out.extend_from_slice(word);
        end(&mut out, dice);
    }
    out
}

fn length(out: &mut Vec<u8>, len: usize, dice: &mut Dice) {
    match dice.below(150) {
        0 => out.extend_from_slice(dice.pick(LENGTHS)),
        1 => out.extend_from_slice((len + 1).to_string().as_bytes()),
        2 => out.extend_from_slice(len.saturating_sub(1).to_string().as_bytes()),
        _ => out.extend_from_slice(len.to_string().as_bytes()),
    }
    end(out, dice);
}

fn end(out: &mut Vec<u8>, dice: &mut Dice) {
    let odd: &[&[u8]] = &[b"\n", b"\r", b"\r\r\n", b"", b"\n\r"];
    out.extend_from_slice(if dice.one_in(300) { dice.pick(odd) } else { b"\r\n" });
}

fn line(words: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut out = Vec::new();
    for word in words {
        match dice.below(4) {
            0 => {
                out.push(b'"');
                for byte in word {
                    let is_plain = byte.is_ascii_alphanumeric();
                    match (is_plain, dice.below(8)) {
                        (true, 1..) => out.push(*byte),
                        (_, 0) => out.extend_from_slice(&[b'\\', *byte]),
                        _ => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
                    }
                }
                out.push(b'"');
            }
            1 => {
                out.push(b'\'');
                out.extend_from_slice(word);
                out.push(b'\'');
            }
            _ => out.extend_from_slice(word),
        }
        out.extend_from_slice(dice.pick(&[&b" "[..], b" ", b" ", b"  ", b"\t", b""]));
    }
    out.extend_from_slice(dice.pick(&[&b"\r\n"[..], b"\r\n", b"\n", b"\r\r\n", b"\0\r\n"]));
    out
}

/// Makes a reply of any shape.
pub fn reply(dice: &mut Dice) -> Vec<u8> {
    let mut out = Vec::new();
    grow(&mut out, 4, dice);
    if dice.one_in(3) {
        grow(&mut out, 1, dice);
    }
    out
}

fn grow(out: &mut Vec<u8>, depth: usize, dice: &mut Dice) {
    let kind = match depth {
        0 => dice.below(12),
        _ => dice.below(20),
    };
    match kind {
        0 => out.extend_from_slice(b"+OK"),
        1 => out.extend_from_slice(b"-ERR what"),
        2 => out.extend_from_slice(b"$-1"),
        3 => out.extend_from_slice(b"*-1"),
        4 => out.extend_from_slice(b"_"),
        5 => out.extend_from_slice(dice.pick(&[&b"#t"[..], b"#f", b"#x", b",1.5", b",inf"])),
        6 => {
            let told: &[&[u8]] =
                &[b"(123456789012345678901234567890", b"(abc", b"(", b",", b",-nan", b"+\0 \xff"];
            out.extend_from_slice(dice.pick(told));
        }
        7 | 8 => {
            out.push(b':');
            return length(out, dice.below(100), dice);
        }
        9..12 => {
            let word = value(dice);
            out.extend_from_slice(dice.pick(&[&b"$"[..], b"$", b"$", b"=", b"!"]));
            length(out, word.len(), dice);
            out.extend_from_slice(&word);
        }
        _ => {
            let (sign, times) =
                [(b'*', 1), (b'*', 1), (b'~', 1), (b'%', 2), (b'|', 2)][dice.below(5)];
            let count = dice.below(5);
            out.push(sign);
            length(out, count, dice);
            let more = usize::from(sign == b'|');
            (0..count * times + more).for_each(|_| grow(out, depth - 1, dice));
            return;
        }
    }
    end(out, dice);
}
