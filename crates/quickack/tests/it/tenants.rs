//! Rules of tenants with real servers: no request reaches a key of others, in whatever form it
//! comes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use testkit::process::{DEADLINE, Family, Memcached, Quickack, Redis, wait_until};

use super::harness::{stats, wait_for_workers};
use super::logins::private;

/// Returns all replies to these bytes until the other side closes, after the end of input.
fn all_that_is_said(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("somebody accepts");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

fn start(server: SocketAddr, pool: &str) -> Quickack {
    let text = format!(
        "global:\n  workers: 2\n  tenants: {{shop: {{pools: [alpha], key_prefix: 'a:'}}}}\n\
         alpha:\n  listen: 127.0.0.1:0\n{pool}  servers: ['{server}:1']\n"
    );
    let quickack = Quickack::start(super::QUICKACK, &text);
    wait_for_workers(&quickack, 2);
    quickack
}

/// A value that nobody but its owner may see.
const SECRET: &str = "the-secret-of-others";

fn resp(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Requests for the keys of others, in lines.
const OF_REDIS: &[&str] = &[
    "GET b:k",
    "gEt b:k",
    "GET A:k",
    "GET a",
    "get \"b:k\"",
    "get 'b:k'",
    "get \"\\x62:k\"",
    "\"get\" \"b:k\"",
    "  get   b:k",
    "MGET a:k b:k",
    "MGET b:k a:k",
    "MSET a:k 1 b:k 2",
    "MSETNX a:q 1 b:k 2",
    "DEL a:k b:k",
    "UNLINK b:k",
    "RENAME a:k b:k",
    "RENAME b:k a:k",
    "RENAMENX b:k a:new",
    "COPY b:k a:k REPLACE",
    "COPY a:k b:k REPLACE",
    "MOVE b:k 1",
    "SORT b:list",
    "SORT a:list BY b:w_* GET b:k",
    "SORT a:list GET b:*",
    "SORT a:list BY nosort GET b*",
    "SORT a:list STORE b:k",
    "SORT_RO a:list GET b:*",
    "SUNIONSTORE b:k a:set",
    "SUNIONSTORE a:set b:set",
    "ZUNIONSTORE a:z 2 a:z b:z",
    "ZUNIONSTORE a:z 1 a:z b:z WEIGHTS 1",
    "SINTERCARD 2 a:set b:set",
    "LMPOP 2 a:list b:list LEFT",
    "XREAD COUNT 1 STREAMS a:x b:x 0 0",
    "XREAD STREAMS b:x 0",
    "XGROUP CREATE b:x g $ MKSTREAM",
    "GEORADIUS a:g 0 0 1 km STORE b:k",
    "GEOSEARCHSTORE b:k a:g FROMLONLAT 0 0 BYRADIUS 1 km",
    "BITOP NOT b:k a:k",
    "BITOP NOT a:k b:k",
    "PFMERGE a:h b:h",
    "OBJECT ENCODING b:k",
    "MEMORY USAGE b:k",
    "DEBUG OBJECT b:k",
    "DUMP b:k",
    "EVAL \"return redis.call('get','b:k')\" 0",
    "EVAL \"return redis.call('get',KEYS[1])\" 1 b:k",
    "EVAL \"return redis.call('get','b:k')\" 1 a:k",
    "EVAL_RO \"return redis.call('get','b:k')\" 1 a:k",
    "EVALSHA 0000000000000000000000000000000000000000 1 a:k",
    "FCALL f 1 a:k",
    "FUNCTION LIST",
    "FUNCTION FLUSH",
    "SCRIPT LOAD \"return 1\"",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "KEYS *",
    "KEYS b:*",
    "KEYS [ab]:*",
    "KEYS ?:*",
    "KEYS a*",
    "SCAN 0",
    "SCAN 0 COUNT 1000",
    "SCAN 0 MATCH *",
    "SCAN 0 MATCH a:* MATCH b:*",
    "SCAN 0 MATCH b:* MATCH a:*",
    "SCAN 0 COUNT MATCH a:*",
    "RANDOMKEY",
    "DBSIZE",
    "FLUSHALL",
    "FLUSHDB",
    "SWAPDB 0 1",
    "MIGRATE 127.0.0.1 1 b:k 0 1",
    "SUBSCRIBE b:k",
    "PSUBSCRIBE *",
    "PSUBSCRIBE a:*",
    "SUBSCRIBE a:k b:k",
    "SSUBSCRIBE b:k",
    "PUBLISH b:k x",
    "SPUBLISH b:k x",
    "PUBSUB CHANNELS",
    "PUBSUB NUMSUB b:k",
    "WATCH b:k",
    "MULTI\r\nGET b:k\r\nEXEC",
    "SETEX b:k 9 x",
    "SET b:k x",
    "GETSET b:k x",
    "GETDEL b:k",
    "APPEND b:k x",
    "EXPIRE b:k 0",
];

/// Requests for the keys of others, as a tenant of Redis might write them.
fn redis_injections() -> Vec<Vec<u8>> {
    let arrays: [&[&[u8]]; 8] = [
        &[b"GET", b"b:k"],
        &[b"get", b"b:k"],
        &[b"GET", b"\0a:k"],
        &[b"MGET", b"a:k", b"b:k"],
        &[b"EVAL", b"return redis.call('get','b:k')", b"0"],
        &[b"SET", b"b:k", &[b'x'; 20_000]],
        &[b"SORT", b"a:list", b"by", b"b:*", b"get", b"b:k"],
        &[b"SCAN", b"0", b"match", b"*"],
    ];
    let lines = OF_REDIS.iter().map(|line| format!("{line}\r\n").into_bytes());
    lines.chain(arrays.iter().map(|words| resp(words))).collect()
}

#[test]
fn no_request_of_redis_reaches_a_key_of_others() {
    let redis = Redis::start(Family::Redis70);
    let mut own = redis.client();
    let setup = [
        format!("SET b:k {SECRET}"),
        format!("RPUSH b:list {SECRET}"),
        format!("SADD b:set {SECRET}"),
        format!("ZADD b:z 1 {SECRET}"),
        format!("XADD b:x 1-1 f {SECRET}"),
        "RPUSH a:list k".to_string(),
        "SADD a:set k".to_string(),
        "SET a:k mine".to_string(),
    ];
    for line in setup {
        own.send(format!("{line}\r\n"));
        own.line();
        if line.starts_with("XADD") {
            own.line();
        }
    }
    let pool = "  redis: true\n  allow: [flushall, flushdb, swapdb, debug]\n";
    let quickack = start(redis.address, pool);
    let dump = |own: &mut testkit::process::Client| {
        own.ask("GET b:k\r\n", &format!("${}\r\n{SECRET}\r\n", SECRET.len()));
        own.ask("LLEN b:list\r\n", ":1\r\n");
        own.ask("EXISTS b:k b:list b:set b:z b:x\r\n", ":5\r\n");
        own.ask("TTL b:k\r\n", ":-1\r\n");
        own.ask("EXISTS b:q b:h b:g A:k a b:w_k\r\n", ":0\r\n");
    };
    for bytes in redis_injections() {
        let shown = bytes[..bytes.len().min(80)].escape_ascii().to_string();
        // Alone, and in the middle of a pipeline.
        let pipeline = [b"GET a:k\r\n", &bytes[..], b"GET a:k\r\n"].concat();
        for bytes in [&bytes, &pipeline] {
            let said = all_that_is_said(quickack.address(), bytes);
            assert!(!said.contains(SECRET), "{shown}: {said}");
            assert!(said.contains('-'), "{shown} is refused: {said}");
        }
        dump(&mut own);
    }
    // What is its own it may use.
    let said = all_that_is_said(
        quickack.address(),
        b"GET a:k\r\nSCAN 0 MATCH a:* COUNT 1000\r\nKEYS a:k\r\nget \"\\x61:k\"\r\n",
    );
    assert_eq!(said.matches("mine").count(), 2, "{said}");
    assert!(!said.contains("b:") && !said.contains("NOPERM"), "{said}");
    let denied = stats(&quickack)["tenants"][0]["requests_denied_total"].as_u64();
    assert!(denied.is_some_and(|denied| denied > 100), "{denied:?}");
}

/// A packet of the binary protocol.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    let total = (extras.len() + key.len() + value.len()) as u32;
    out.extend_from_slice(&total.to_be_bytes());
    out.extend_from_slice(&[0; 12]);
    [&out, extras, key, value].concat()
}

/// Requests for the keys of others, in lines.
const OF_MEMCACHED: &[&str] = &[
    "get b:k",
    "get A:k",
    "get a:k b:k",
    "gets b:k a:k",
    "gat 0 b:k",
    "gats 0 a:k b:k",
    "set b:k 0 0 1\r\nx",
    "set b:k 0 0 1 noreply\r\nx\r\nversion",
    "set b:k 0 0 9000000\r\n",
    "add b:new 0 0 1\r\nx",
    "append b:k 0 0 1\r\nx",
    "cas b:k 0 0 1 1\r\nx",
    "delete b:k",
    "delete b:k noreply\r\nversion",
    "incr b:n 1",
    "touch b:k 0",
    "mg b:k v",
    "mg Yjpr b v",
    "mg Yjpr v b k",
    "mg b:k v q\r\nmn",
    "ms b:k 1\r\nx",
    "ms Yjpr 1 b\r\nx",
    "md b:k",
    "md Yjpr b q\r\nmn",
    "ma b:n",
    "me b:k",
    "me Yjpr b",
    "stats items",
    "stats slabs",
    "stats sizes",
    "stats cachedump 1 10",
    "stats cachedump 2 10",
    "stats detail dump",
    "stats detail on",
    "lru_crawler metadump all",
    "lru_crawler mgdump all",
    "lru_crawler crawl all",
    "flush_all",
    "flush_all 0 noreply\r\nversion",
    "watch fetchers",
    "slabs automove 1",
];

fn memcached_injections() -> Vec<Vec<u8>> {
    let store = [0; 8];
    let mut delta = [0; 20];
    delta[7] = 1;
    let packets = [
        packet(0x00, b"", b"b:k", b""),
        packet(0x09, b"", b"b:k", b""),
        packet(0x0c, b"", b"b:k", b""),
        [
            packet(0x09, b"", b"a:k", b""),
            packet(0x09, b"", b"b:k", b""),
            packet(0x0a, b"", b"", b""),
        ]
        .concat(),
        packet(0x01, &store, b"b:k", b"x"),
        packet(0x11, &store, b"b:k", b"x"),
        packet(0x04, b"", b"b:k", b""),
        packet(0x14, b"", b"b:k", b""),
        packet(0x05, &delta, b"b:n", b""),
        packet(0x0e, b"", b"b:k", b"x"),
        packet(0x1c, &[0; 4], b"b:k", b""),
        packet(0x1d, &[0; 4], b"b:k", b""),
        packet(0x08, b"", b"", b""),
        packet(0x18, b"", b"", b""),
        packet(0x10, b"", b"items", b""),
        packet(0x10, b"", b"detail dump", b""),
    ];
    let lines = OF_MEMCACHED.iter().map(|line| format!("{line}\r\n").into_bytes());
    lines.chain(packets).collect()
}

#[test]
fn no_request_of_memcached_reaches_a_key_of_others() {
    let memcached = Memcached::start();
    let mut own = memcached.client();
    let len = SECRET.len();
    own.ask(&format!("set b:k 0 0 {len}\r\n{SECRET}\r\n"), "STORED\r\n");
    own.ask("set b:n 0 0 1\r\n5\r\n", "STORED\r\n");
    own.ask("set a:k 0 0 4\r\nmine\r\n", "STORED\r\n");
    let quickack = start(memcached.address, "  allow: [flush_all, slabs, lru_crawler]\n");
    for bytes in memcached_injections() {
        let shown = bytes[..bytes.len().min(80)].escape_ascii().to_string();
        let mut pipeline = bytes.clone();
        if bytes[0] != 0x80 {
            pipeline = [b"get a:k\r\n", &bytes[..], b"get a:k\r\n"].concat();
        }
        for bytes in [&bytes, &pipeline] {
            let said = all_that_is_said(quickack.address(), bytes);
            assert!(!said.contains(SECRET) && !said.contains("b:"), "{shown}: {said}");
        }
        own.ask("get b:k\r\n", &format!("VALUE b:k 0 {len}\r\n{SECRET}\r\nEND\r\n"));
        own.ask("get b:n b:new A:k\r\n", "VALUE b:n 0 1\r\n5\r\nEND\r\n");
    }
    let said = all_that_is_said(quickack.address(), b"get a:k\r\nmg YTpr b v\r\nstats\r\nmn\r\n");
    assert_eq!(said.matches("mine").count(), 2, "{said}");
}

#[test]
fn users_have_their_own_tenants_and_a_reload_moves_and_removes_them() {
    let memcached = Memcached::start();
    let folder = private("users", "anna:x\nbob:x\n");
    let users = folder.path().join("users");
    let text = |shop: &str, rest: &str| {
        format!(
            "global:\n  workers: 2\n  tenants: {{shop: {{users: [{shop}], key_prefix: 's:'}}, \
             rest: {{users: [{rest}], key_prefix: 'r:'}}}}\n\
             alpha:\n  listen: 127.0.0.1:0\n  users: {}\n  servers: ['{}:1']\n",
            users.display(),
            memcached.address
        )
    };
    let quickack = Quickack::start(super::QUICKACK, &text("anna", "bob"));
    wait_for_workers(&quickack, 2);
    let log_in = |login: &str| {
        let mut client = quickack.client();
        client.ask(&format!("set any 0 0 {}\r\n{login}\r\n", login.len()), "STORED\r\n");
        client
    };
    let (mut anna, mut bob) = (log_in("anna x"), log_in("bob x"));
    let may = |client: &mut testkit::process::Client, key: &str| {
        client.send(format!("get {key}\r\n"));
        client.line() == "END"
    };
    assert!(may(&mut anna, "s:k") && !may(&mut anna, "r:k"));
    assert!(may(&mut bob, "r:k") && !may(&mut bob, "s:k"));
    // They change places, while they are connected.
    quickack.rewrite(&text("bob", "anna"));
    quickack.ask("reload");
    assert!(may(&mut anna, "r:k") && !may(&mut anna, "s:k"));
    assert!(may(&mut bob, "s:k") && !may(&mut bob, "r:k"));
    // A user that is removed is closed, and the other is not.
    std::fs::write(&users, "bob:x\n").expect("our own file");
    quickack.ask("reload");
    assert_eq!(anna.rest(), "");
    assert!(may(&mut bob, "s:k"));
    // Other workers know whose the client is.
    let more = text("bob", "anna").replace("workers: 2", "workers: 1");
    quickack.rewrite(&more);
    quickack.ask("reload");
    wait_for_workers(&quickack, 1);
    let of_shop = || stats(&quickack)["tenants"][0]["clients"].as_u64();
    wait_until("the client has been taken over", || of_shop() == Some(1));
    assert!(may(&mut bob, "s:k") && !may(&mut bob, "r:k"));
}
