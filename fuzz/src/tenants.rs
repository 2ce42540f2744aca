//! A tenant with a key prefix sends anything, in three protocols. A model reads what reaches the
//! server, by the servers' rules for keys: none but the tenant's own may be among them.

use std::rc::Rc;

use metrics::Registry;
use proxy::plan::{Plan, PoolPlan, ServerPlan};
use proxy::tenants::plan::{TenantPlan, TenantRules};
use proxy::{Action, Block, ConnId, Proxy, Side, Slices, Time};
use testkit::wire::resp;

use crate::Shown;
use crate::mutate::{self, Dice};

const PREFIX: &[u8] = b"a:";
const POOL: u32 = 1;

thread_local! {
    /// Reused by one run after the other, since the memory of a registry is never freed.
    static REGISTRY: Registry = Registry::private(1, 4);
}

/// Keys that are the tenant's, that are not, and that look like one another.
const KEYS: [&str; 10] =
    ["a:1", "a:2", "b:1", "A:1", "a", "a:", "\"a:1\"", "\"\\x62:1\"", "'b:1'", "a\\:1"];
/// The same in base64, for meta requests.
const ENCODED: [&str; 4] = ["YTox", "Yjox", "YQ==", "YTo="];

const LINES: [&str; 24] = [
    "get K K",
    "gets K",
    "gat 0 K K",
    "set K 0 0 1\r\nx",
    "set K 0 0 1 noreply\r\nx",
    "cas K 0 0 1 7\r\nx",
    "append K 0 0 1\r\nx",
    "delete K noreply",
    "incr K 1",
    "touch K 0",
    "mg K v",
    "mg E b v k",
    "mg E v b q",
    "ms K 1 T0\r\nx",
    "ms E 1 b\r\nx",
    "md K q",
    "md E b",
    "ma K N0 J1",
    "me K",
    "mn",
    "stats",
    "stats items",
    "flush_all",
    "version",
];

const REDIS: [&str; 40] = [
    "GET K",
    "mget K K K",
    "SET K v EX 9",
    "MSET K 1 K 2",
    "DEL K K",
    "RENAME K K",
    "COPY K K DB 0 REPLACE",
    "SORT K BY nosort STORE K",
    "SORT K BY w_* GET #",
    "SORT K LIMIT 0 1 GET K",
    "SUNIONSTORE K K K",
    "ZUNIONSTORE K 2 K K WEIGHTS 1 2",
    "ZDIFF 1 K K",
    "SINTERCARD 2 K K LIMIT 1",
    "LMPOP 2 K K LEFT",
    "XREAD COUNT 1 STREAMS K K 0 0",
    "XREADGROUP GROUP g c STREAMS K >",
    "XGROUP CREATE K g 0",
    "XINFO STREAM K",
    "OBJECT ENCODING K",
    "MEMORY USAGE K",
    "GEORADIUS K 0 0 1 km STORE K",
    "GEOSEARCHSTORE K K FROMLONLAT 0 0 BYRADIUS 1 km",
    "BITOP NOT K K",
    "PFMERGE K K",
    "EVAL x 1 K",
    "EVALSHA 0 0",
    "FCALL f 1 K",
    "SCAN 0 MATCH K* COUNT 9",
    "SCAN 0 COUNT 9",
    "KEYS K*",
    "KEYS [ab]:*",
    "RANDOMKEY",
    "DBSIZE",
    "FLUSHALL",
    "SCRIPT LOAD x",
    "FUNCTION LIST",
    "LMOVE K K LEFT RIGHT",
    "MOVE K 1",
    "INFO",
];

pub fn run(seed: u64, budget: usize) {
    let corpora = [lines(), packets(), arrays()];
    for at in 0..budget as u64 {
        let seed = seed.wrapping_add(at);
        let shown = Shown { fuzzer: "tenants", seed };
        let mut dice = Dice::new(seed);
        let which = dice.below(corpora.len());
        let input: Vec<u8> =
            (0..=dice.below(4)).flat_map(|_| mutate::input(&corpora[which], &mut dice)).collect();
        let reached = play(which == 2, seed, &input);
        match which {
            2 => check_redis(&reached, &input),
            _ => check_memcached(&reached, &input),
        }
        std::mem::forget(shown);
    }
}

/// Returns each line with each key.
fn filled(lines: &[&'static str]) -> Vec<String> {
    let with = |line: &'static str| {
        (0..KEYS.len()).map(move |at| {
            let mut words: Vec<String> = line.split(' ').map(str::to_string).collect();
            for (nth, word) in words.iter_mut().enumerate() {
                if let Some(rest) = word.strip_prefix('K').filter(|rest| rest.len() < 2) {
                    *word = format!("{}{rest}", KEYS[(at + nth * at) % KEYS.len()]);
                } else if word == "E" {
                    *word = ENCODED[at % ENCODED.len()].to_string();
                }
            }
            words.join(" ")
        })
    };
    lines.iter().copied().flat_map(with).collect()
}

fn lines() -> Vec<Vec<u8>> {
    filled(&LINES).into_iter().map(|line| format!("{line}\r\n").into_bytes()).collect()
}

/// Lines, quoted ones among them, and arrays.
fn arrays() -> Vec<Vec<u8>> {
    let all = filled(&REDIS).into_iter();
    all.flat_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        [resp::command(&words), format!("{line}\r\n").into_bytes()]
    })
    .collect()
}

fn packets() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for key in KEYS {
        for (opcode, extras, value) in [
            (0x00, 0, ""),
            (0x09, 0, ""),
            (0x0d, 0, ""),
            (0x01, 8, "x"),
            (0x11, 8, "x"),
            (0x04, 0, ""),
            (0x05, 20, ""),
            (0x0e, 0, "x"),
            (0x1d, 4, ""),
            (0x10, 0, ""),
        ] {
            let total = (key.len() + extras + value.len()) as u32;
            let mut packet = vec![0x80, opcode, 0, key.len() as u8, extras as u8, 0, 0, 0];
            packet.extend_from_slice(&total.to_be_bytes());
            packet.resize(24 + extras, 0);
            packet.extend_from_slice(key.as_bytes());
            packet.extend_from_slice(value.as_bytes());
            all.push(packet);
        }
    }
    all
}

/// Has a client of the tenant send this; returns what reaches the server.
fn play(is_redis: bool, seed: u64, input: &[u8]) -> Vec<u8> {
    let registry = REGISTRY.with(|registry| *registry);
    registry.clear();
    let now = Time(1_000_000);
    let mut proxy = Proxy::new(plan(is_redis), seed, now, registry.metrics(0));
    let mut links = Vec::new();
    settle(&mut proxy, &mut links, is_redis, now);
    let client = proxy.handle_accept(POOL, now).expect("there is room");
    let mut reached = Vec::new();
    let block: Rc<Block> = Rc::new(input.to_vec().into());
    if !block.is_empty() {
        proxy.handle_received(client, &block, block.len(), now);
    }
    for _ in 0..4 {
        settle(&mut proxy, &mut links, is_redis, now);
        proxy.end_turn(now);
        while let Some(link) = proxy.poll_transmit(Side::Link) {
            reached.extend(take(&mut proxy, link, now));
        }
    }
    proxy.check();
    reached
}

/// Brings up the links that are asked for.
fn settle(proxy: &mut Proxy, links: &mut Vec<ConnId>, is_redis: bool, now: Time) {
    while let Some(action) = proxy.poll_action() {
        let Action::Connect { link, .. } = action else { continue };
        links.push(link);
        proxy.handle_connected(link, now);
        let hello = take(proxy, link, now);
        assert!(!hello.is_empty(), "a link begins with a handshake");
        let answer = if is_redis { WELCOME } else { &b"VERSION 1.6.18\r\n"[..] };
        let block: Rc<Block> = Rc::new(answer.to_vec().into());
        proxy.handle_received(link, &block, block.len(), now);
    }
}

fn take(proxy: &mut Proxy, conn: ConnId, now: Time) -> Vec<u8> {
    let mut slices = Slices::default();
    proxy.transmit(conn, &mut slices);
    let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    if !bytes.is_empty() {
        proxy.handle_transmitted(conn, bytes.len(), now);
    }
    bytes
}

fn plan(is_redis: bool) -> Plan {
    let protocol = proto::protocol(if is_redis { "redis" } else { "memcached" });
    let servers = vec![ServerPlan::new("s0", "s0", 1)];
    let mut pool = PoolPlan::new("pool", protocol.expect("the table has it"), servers);
    (pool.tenant, pool.preconnect) = (Some(0), true);
    pool.allow = ["flushall", "flush_all", "debug|object"].map(str::to_string).to_vec();
    let mut tenant = TenantPlan::new("shop");
    tenant.rules = Some(TenantRules::new(Vec::new(), Default::default(), PREFIX.to_vec()));
    let mut plan = Plan::new(vec![pool]);
    plan.tenants = vec![Rc::new(tenant)];
    plan.number();
    (plan.limits.unproven, plan.limits.depth) = (u64::MAX / 4, 1 << 20);
    plan
}

#[track_caller]
fn own(key: &[u8], input: &[u8]) {
    let (key, input) = (key.escape_ascii(), input.escape_ascii());
    assert!(key.clone().to_string().starts_with("a:"), "the key {key} reaches a server by {input}");
}

/// Reads what reached a memcached server. Every command names its keys.
fn check_memcached(mut bytes: &[u8], input: &[u8]) {
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let line = bytes[..end].trim_ascii_end();
        bytes = &bytes[end + 1..];
        let words: Vec<&[u8]> =
            line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
        let Some((name, rest)) = words.split_first() else { continue };
        let flags = || rest.iter().skip(1);
        let mut skip = 0;
        match *name {
            b"get" | b"gets" => rest.iter().for_each(|key| own(key, input)),
            b"gat" | b"gats" => rest.iter().skip(1).for_each(|key| own(key, input)),
            b"mg" | b"md" | b"ma" | b"ms" | b"me" => {
                let is_encoded = flags().any(|flag| *flag == b"b");
                let key = if is_encoded { decode(rest[0]) } else { rest[0].to_vec() };
                own(&key, input);
                skip = if *name == b"ms" { number(rest[1]) + 2 } else { 0 };
            }
            b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
                own(rest[0], input);
                skip = number(rest[3]) + 2;
            }
            b"delete" | b"incr" | b"decr" | b"touch" => own(rest[0], input),
            b"version" | b"mn" => {}
            b"stats" => assert!(
                matches!(rest.first(), None | Some(&b"settings")),
                "{} reaches a server",
                line.escape_ascii()
            ),
            other => {
                panic!("{} reaches a server by {}", other.escape_ascii(), input.escape_ascii())
            }
        }
        bytes = bytes.get(skip..).unwrap_or_default();
    }
}

fn number(word: &[u8]) -> usize {
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).expect("a length")
}

/// Decodes base64, as a server does.
fn decode(text: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = text.iter().filter_map(|byte| LETTERS.iter().position(|one| one == byte));
    let (mut out, mut held, mut count) = (Vec::new(), 0_usize, 0);
    for six in bits {
        (held, count) = (held << 6 | six, count + 6);
        if count >= 8 {
            count -= 8;
            out.push((held >> count) as u8);
        }
    }
    out
}

/// Reads what reached a Redis server, by the servers' rules for the keys of each command.
fn check_redis(mut bytes: &[u8], input: &[u8]) {
    while let Some((words, len)) = resp::read_command(bytes) {
        bytes = &bytes[len..];
        let name = String::from_utf8_lossy(&words[0]).to_ascii_lowercase();
        let many = |from: usize, count: usize| words.iter().skip(from).take(count).collect();
        let keys: Vec<&Vec<u8>> = match name.as_str() {
            "info" | "time" | "ping" | "lolwut" | "hello" | "select" => continue,
            "config" if words[1].eq_ignore_ascii_case(b"get") => continue,
            _ if words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"help")) => continue,
            "scan" | "keys" => patterns(&name, &words),
            "mget" | "del" | "exists" | "unlink" | "touch" | "pfcount" | "pfmerge" | "sunion"
            | "sinter" | "sdiff" | "sunionstore" | "sinterstore" | "sdiffstore" => {
                many(1, usize::MAX)
            }
            "mset" | "msetnx" => words.iter().skip(1).step_by(2).collect(),
            "rename" | "renamenx" | "copy" | "smove" | "lmove" | "rpoplpush" | "geosearchstore"
            | "zrangestore" | "lcs" => many(1, 2),
            "bitop" => many(2, usize::MAX),
            "zunion" | "zinter" | "zdiff" | "sintercard" | "zintercard" | "lmpop" | "zmpop" => {
                many(2, number(&words[1]))
            }
            "zunionstore" | "zinterstore" | "zdiffstore" => {
                many(3, number(&words[2])).into_iter().chain([&words[1]]).collect()
            }
            "xread" | "xreadgroup" => {
                let known = [("group", 2), ("count", 1), ("block", 1), ("streams", 0)];
                let found = options(&words, 1, &known).into_iter();
                let before = found.take_while(|(name, _)| *name != "streams");
                let skipped: usize = before.map(|(_, values)| 1 + values.len()).sum();
                let is_it = |word: &Vec<u8>| word.eq_ignore_ascii_case(b"streams");
                let at = words[1 + skipped..].iter().position(is_it).expect("streams are named");
                let at = 1 + skipped + at;
                many(at + 1, (words.len() - at - 1) / 2)
            }
            "sort" | "sort_ro" => sorted(&words),
            "georadius" | "georadiusbymember" => {
                let from = if name == "georadius" { 6 } else { 5 };
                let found = options(&words, from, &[("store", 1), ("storedist", 1)]).into_iter();
                // Of several the last one counts.
                found
                    .map(|(_, values)| &values[0])
                    .next_back()
                    .into_iter()
                    .chain([&words[1]])
                    .collect()
            }
            "object" | "memory" | "xgroup" | "xinfo" | "debug" => many(2, 1),
            name if name.starts_with("eval") || name.starts_with("fcall") => {
                panic!("a script reaches a server by {}", input.escape_ascii())
            }
            "script" | "function" | "flushall" | "flushdb" | "randomkey" | "dbsize" | "swapdb" => {
                panic!("{name} reaches a server by {}", input.escape_ascii())
            }
            // All others have one key, behind the name.
            _ => many(1, 1),
        };
        assert!(!keys.is_empty(), "{name} without a key reaches a server");
        keys.into_iter().for_each(|key| own(key, input));
    }
}

/// Returns the patterns of a SCAN or KEYS: what they match begins like them.
fn patterns<'w>(name: &str, words: &'w [Vec<u8>]) -> Vec<&'w Vec<u8>> {
    let is_match = |two: &&[Vec<u8>]| two[0].eq_ignore_ascii_case(b"match");
    match name {
        "keys" => words.iter().skip(1).collect(),
        _ => words[2..].chunks_exact(2).filter(is_match).map(|two| &two[1]).collect(),
    }
}

/// Returns the keys of a SORT, which looks up no others.
fn sorted(words: &[Vec<u8>]) -> Vec<&Vec<u8>> {
    let mut keys = vec![&words[1]];
    for (name, values) in options(words, 2, &[("by", 1), ("get", 1), ("limit", 2), ("store", 1)]) {
        match name {
            "by" | "get" => assert!(!values[0].contains(&b'*'), "a pattern is looked up"),
            "store" => keys.push(&values[0]),
            _ => {}
        }
    }
    keys
}

/// Walks over options from an argument on, each with so many values; other words have none.
fn options<'w>(
    words: &'w [Vec<u8>],
    from: usize,
    known: &[(&'static str, usize)],
) -> Vec<(&'static str, &'w [Vec<u8>])> {
    let (mut at, mut found) = (from, Vec::new());
    while at < words.len() {
        let is_it = |(name, _): &&(&str, usize)| words[at].eq_ignore_ascii_case(name.as_bytes());
        let Some((name, count)) = known.iter().find(is_it) else {
            at += 1;
            continue;
        };
        if let Some(values) = words.get(at + 1..at + 1 + count) {
            found.push((*name, values));
        }
        at += 1 + count;
    }
    found
}

const WELCOME: &[u8] = b"*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n\
    $5\r\nproto\r\n:2\r\n$2\r\nid\r\n:5\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n\
    $4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";
