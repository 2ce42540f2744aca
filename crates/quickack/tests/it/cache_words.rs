//! The embedded cache compared with the real memcached, in meta and classic commands: a long random
//! dialogue on a few keys, in which each answer must be equal except for cas numbers and times.

use testkit::process::{Client, Memcached, silent};

use super::cache::{Cache, Random};

/// Requests of one dialogue.
const STEPS: u64 = 20_000;
/// A key with its base64 form; only base64 if a line cannot carry the key.
const KEYS: &[(&str, &str)] = &[
    ("a", "YQ=="),
    ("bc", "YmM="),
    ("n1", "bjE="),
    ("n2", "bjI="),
    ("long-key-with-some-bytes", "bG9uZy1rZXktd2l0aC1zb21lLWJ5dGVz"),
    ("", "AAEgCg=="),
];

/// A request being made; `{cas}` is a placeholder for the cas of its key.
struct Asking {
    text: String,
    key: String,
    /// An offset to the key's cas number.
    cas_offset: i64,
}

#[test]
fn a_random_talk_has_memcacheds_answers() {
    let (memcached, cache) = (Memcached::quiet(), Cache::start("64m"));
    let (mut theirs, mut ours) = (memcached.client(), cache.client());
    let mut random = Random::new(3);
    for step in 0..STEPS {
        let asking = asking(&mut random);
        let expected = answer(&mut theirs, &asking);
        assert_eq!(answer(&mut ours, &asking), expected, "step {step}: {:?}", asking.text);
    }
}

/// Returns the answer, without the parts that differ between any two servers.
fn answer(client: &mut Client, asking: &Asking) -> String {
    let mut text = asking.text.clone();
    if text.contains("{cas}") {
        client.send(format!("mg {} c u\r\n", asking.key));
        let line = client.line();
        let cas = line.split_once(" c").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        let cas = cas.map_or(77, |cas: i64| cas.saturating_add(asking.cas_offset));
        text = text.replace("{cas}", &cas.to_string());
    }
    client.send(format!("{text}get the-end\r\nmn\r\n"));
    masked(&client.read_until("END\r\nMN\r\n"))
}

fn masked(text: &str) -> String {
    let mut out = String::new();
    for line in text.split_inclusive("\r\n") {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        match words[0] {
            "HD" | "VA" | "EX" | "NS" | "NF" | "EN" => {
                let shown: Vec<&str> = words.iter().map(|word| mask(word)).collect();
                out.push_str(&shown.join(" "));
            }
            "ME" => {
                let known =
                    |word: &&&str| ["fetch=", "size="].iter().any(|name| word.contains(name));
                let rest: Vec<&str> = words[2..].iter().filter(known).copied().collect();
                let never = line.contains("exp=-1 ");
                out.push_str(&format!("ME {} {never} {}", words[1], rest.join(" ")));
            }
            "VALUE" => out.push_str(&words[..4].join(" ")),
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// Masks a flag with a time or a cas number; a cas of 0 and a time of never stay visible.
fn mask(word: &str) -> &str {
    let is_number = word.len() > 1 && word[1..].bytes().all(|byte| byte.is_ascii_digit());
    match word.as_bytes()[0] {
        b'c' if is_number && word != "c0" => "c*",
        b't' if is_number => "t*",
        b'l' if is_number => "l*",
        _ => word,
    }
}

fn asking(random: &mut Random) -> Asking {
    let (plain, encoded) = KEYS[random.below(KEYS.len() as u64) as usize];
    let is_binary = plain.is_empty() || random.below(4) == 0;
    let key = if is_binary { format!("{encoded} b") } else { plain.to_string() };
    let mut flags: Vec<String> = Vec::new();
    let text = match random.below(20) {
        0..6 => {
            pick_flags(random, &mut flags, &["v", "f", "c", "t", "l", "h", "s", "u", "v", "h"]);
            pick_tokens(random, &mut flags, &["T0", "T100", "T-1", "N0", "N100", "N-1"]);
            pick_tokens(random, &mut flags, &["R30", "R200", "R0", "R-1"]);
            meta(random, "mg", &key, None, flags, plain.is_empty())
        }
        6..10 => {
            pick_flags(random, &mut flags, &["c", "I", "I"]);
            pick_tokens(random, &mut flags, &["T0", "T100", "T-1", "T2000000000", "T2592001"]);
            pick_tokens(random, &mut flags, &["MS", "ME", "MA", "MP", "MR", "MA", "Mx"]);
            pick_tokens(random, &mut flags, &["F0", "F7", "F4294967295", "C{cas}", "C{cas}"]);
            let value = random.value();
            meta(random, "ms", &key, Some(&value), flags, false)
        }
        10..13 => {
            pick_flags(random, &mut flags, &["I", "I"]);
            pick_tokens(random, &mut flags, &["T0", "T100", "T-1", "C{cas}", "C{cas}", "C0"]);
            meta(random, "md", &key, None, flags, false)
        }
        13..16 => {
            pick_flags(random, &mut flags, &["v", "c", "t", "v"]);
            // memcached loses a T for a number that becomes longer: see `Entry::grow`.
            pick_tokens(random, &mut flags, &["N0", "N100", "N-1", "C{cas}", "C0"]);
            pick_tokens(random, &mut flags, &["MI", "M+", "MD", "M-", "MX", "D7", "D1", "D99999"]);
            // From 2^63 on, memcached's decision whether a value is a number depends on the bytes
            // after it.
            pick_tokens(random, &mut flags, &["J5", "J99", "D0", "D4294967296"]);
            meta(random, "ma", &key, None, flags, false)
        }
        16 if plain.is_empty() => "mn\r\n".into(),
        16 => format!("me {key}\r\n"),
        _ if plain.is_empty() => meta(random, "mg", &key, None, vec!["v".into()], true),
        _ => classic(random, plain),
    };
    let cas_offset = [0, 0, 0, -1, 1][random.below(5) as usize];
    Asking { text, key, cas_offset }
}

/// Makes the line of a meta command, and its data.
fn meta(
    random: &mut Random,
    verb: &str,
    key: &str,
    value: Option<&str>,
    mut flags: Vec<String>,
    hides_key: bool,
) -> String {
    pick_flags(random, &mut flags, &["q", "O123", "k"]);
    // memcached returns a key that breaks the line unencoded if a read created the item.
    flags.retain(|flag| !(hides_key && flag == "k"));
    if random.below(60) == 0 {
        flags.push(random.pick(&["!", "q", "T", "Tx", "Cx", "v", "MM", "Jx", "F"]).to_string());
    }
    let mut order: Vec<String> = Vec::new();
    while !flags.is_empty() {
        order.push(flags.swap_remove(random.below(flags.len() as u64) as usize));
    }
    let (name, base64) = key.split_once(' ').map_or((key, ""), |(name, _)| (name, " b"));
    let flags: String = order.iter().map(|flag| format!(" {flag}")).collect();
    match value {
        Some(value) => format!("{verb} {name} {}{base64}{flags}\r\n{value}\r\n", value.len()),
        None => format!("{verb} {name}{base64}{flags}\r\n"),
    }
}

/// Adds some of these flags.
fn pick_flags(random: &mut Random, flags: &mut Vec<String>, some: &[&str]) {
    for flag in some {
        if random.below(3) == 0 && !flags.iter().any(|known| known == flag) {
            flags.push(flag.to_string());
        }
    }
}

/// Adds one of these tokens or none, and no letter twice.
fn pick_tokens(random: &mut Random, flags: &mut Vec<String>, some: &[&str]) {
    let token = random.pick(some);
    if random.below(2) == 0 && !flags.iter().any(|flag| flag[..1] == token[..1]) {
        flags.push(token.to_string());
    }
}

fn classic(random: &mut Random, key: &str) -> String {
    let exptime = ["0", "0", "100", "-1", "2592001", "2000000000", "+100", "-0", "2147483648"];
    let exptime = random.pick(&exptime);
    let value = random.value();
    let len = value.len();
    let quiet = random.pick(&["", "", "", " noreply"]);
    match random.below(14) {
        0..2 => {
            format!("set {key} {} {exptime} {len}{quiet}\r\n{value}\r\n", random.pick(&["0", "9"]))
        }
        2 => format!("add {key} 3 {exptime} {len}{quiet}\r\n{value}\r\n"),
        3 => format!("replace {key} 4 {exptime} {len}\r\n{value}\r\n"),
        4 => format!("append {key} 0 0 {len}\r\n{value}\r\n"),
        5 => format!("prepend {key} 0 0 {len}{quiet}\r\n{value}\r\n"),
        6 => format!("cas {key} 1 {exptime} {len} {{cas}}\r\n{value}\r\n"),
        7 => format!("incr {key} {}\r\n", random.below(1000)),
        8 => format!("decr {key} {}{quiet}\r\n", random.below(1000)),
        9 => format!("touch {key} {exptime}\r\n"),
        10 => format!("gat {exptime} {key} a\r\n"),
        11 => format!("delete {key}{quiet}\r\n"),
        12 if random.below(20) == 0 => "flush_all\r\n".into(),
        _ => format!("gets {key} n1 a\r\n"),
    }
}

/// A busy machine sometimes gives one port to two tests. The second test's memcached does not
/// start, and the test must not use the first one's.
#[test]
fn a_memcached_whose_port_is_anothers_is_not_taken_for_it() {
    let (other, address) = silent();
    assert!(Memcached::start_on(address).is_none());
    drop(other);
}

/// Checks the times of an item that lives for a second, as both sides report them.
#[test]
fn an_item_of_one_second_is_gone_in_two() {
    let (memcached, cache) = (Memcached::quiet(), Cache::start("8m"));
    for mut client in [memcached.client(), cache.client()] {
        client.ask("ms k 1 T1\r\nx\r\n", "HD\r\n");
        let start = std::time::Instant::now();
        let mut last = String::new();
        while last != "EN" {
            client.send("mg k t v\r\n");
            last = client.line();
            assert!(["EN", "VA 1 t1", "VA 1 t0"].contains(&last.as_str()), "{last}");
            if last != "EN" {
                client.expect("x\r\n");
            }
            // A busy memcached's clock is late.
            assert!(start.elapsed().as_secs() < 10, "it is still there");
        }
    }
}
