//! Hostile input: invalid requests, impossible lengths, and CRLF in every argument that a server
//! echoes. Three canaries on the same links must get only their own bytes all the time.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use testkit::process::{DEADLINE, Family, Quickack, Redis, Speaker};
use testkit::wire::resp::{Reply, command};
use testkit::wire::shown;

use super::{addresses, quickack, servers};

/// Honest clients that share the links with the hostile one.
struct Canaries {
    all: Vec<Speaker>,
    asked: usize,
}

impl Canaries {
    fn new(quickack: &Quickack) -> Canaries {
        let mut all: Vec<Speaker> = (0..3).map(|_| Speaker::connect(quickack.address())).collect();
        for (at, client) in all.iter_mut().enumerate() {
            for key in 0..8 {
                client.say(&format!("SET canary{at}:{key} {at}-{key}"));
            }
        }
        Canaries { all, asked: 0 }
    }

    /// All send before any reads, so that their requests are adjacent on the links.
    fn ask(&mut self) {
        for (at, client) in self.all.iter_mut().enumerate() {
            for key in 0..8 {
                client.send(&command(&["GET", &format!("canary{at}:{key}")]));
            }
        }
    }

    #[track_caller]
    fn check(&mut self, after: &str) {
        for (at, client) in self.all.iter_mut().enumerate() {
            for key in 0..8 {
                let own = Reply::Bulk(format!("{at}-{key}").into());
                assert_eq!(client.reply(), Ok(own), "canary {at} after {after}");
            }
        }
        self.asked += 24;
    }
}

/// Returns all replies to these bytes until the other side closes, after the end of input.
fn all_that_is_said(address: std::net::SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("somebody accepts");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline that is not zero");
    // A peer that closes at the first error does not read the rest.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    said
}

/// Requests that the proxy answers itself, however long they are.
fn answered_here(len: usize) -> Vec<Vec<u8>> {
    let word = "x".repeat(len);
    ["ECHO", "PING", "AUTH"].map(|name| command(&[name, &word])).to_vec()
}

fn frames() -> Vec<Vec<u8>> {
    let lengths = [
        "-1",
        "-2",
        "0",
        "+1",
        "01",
        "1x",
        "",
        " 1",
        "1 ",
        "2147483647",
        "2147483648",
        "4294967296",
        "9223372036854775808",
        "18446744073709551616",
        "-9223372036854775809",
        "1e3",
        "0x1",
        "1.0",
    ];
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for length in lengths {
        frames.push(format!("*{length}\r\n$4\r\nPING\r\n").into_bytes());
        frames.push(format!("*1\r\n${length}\r\nPING\r\n").into_bytes());
        frames.push(format!("*2\r\n$4\r\nECHO\r\n${length}\r\nx\r\n").into_bytes());
        frames.push(format!("*2\r\n$3\r\nGET\r\n${length}\r\nx\r\n").into_bytes());
        frames.push(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\nx\r\n").into_bytes());
    }
    let others: &[&[u8]] = &[
        b"*1\r\n*1\r\n$4\r\nPING\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n+PING\r\n",
        b"*2\r\n$3\r\nGET\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"*1\r\n$4\r\nPINGxx",
        b"*1\r\n$4\r\nPI\r\n\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\nab\r\n",
        b"*1000000\r\n$4\r\nPING\r\n",
        b"*\r\n",
        b"$4\r\nPING\r\n",
        b":1\r\n",
        b"-ERR x\r\n",
        b"+OK\r\n",
        b"\r\n\r\n\r\nPING\r\n",
        b"*0\r\n*0\r\n*1\r\n$4\r\nPING\r\n",
        b"PING\nPING\r\n",
        b"GET \"a\r\n",
        b"GET 'a\r\n",
        b"SET a \"\\x0d\\x0a\\\"x\"\r\nGET a\r\n",
        b"GET \"a\"b\r\n",
        b"\0\0\0\r\n",
        b"GET a\0b\r\n",
        b"*1\r\r\n$4\r\nPING\r\n",
        b"*1\n$4\nPING\n",
        b"*2\r\n$4\r\nPING\r\n",
        b"*1\r\n$4\r\nPING\r\n*1\r\n$-5\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$600000000\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET a 1\r\n",
        b"\xff\xfe\r\nPING\r\n",
    ];
    frames.extend(others.iter().map(|bytes| bytes.to_vec()));
    frames.push([vec![b'x'; 70_000], b"\r\nPING\r\n".to_vec()].concat());
    // Many words in a line, plain and in quotes.
    frames.push([b"MSET".to_vec(), b" a b".repeat(16_000), b"\r\n".to_vec()].concat());
    frames.push([b"DEL".to_vec(), b" x".repeat(30_000), b"\r\n".to_vec()].concat());
    frames.push([b"DEL".to_vec(), b" \"x\"".repeat(12_000), b"\r\n".to_vec()].concat());
    frames.push([b"SET k ".to_vec(), b"\"".repeat(20_000), b"\r\n".to_vec()].concat());
    frames.push(b"*1\r\n".repeat(5_000));
    frames.push([b"*".to_vec(), vec![b'1'; 70_000], b"\r\n".to_vec()].concat());
    frames.push([b"*1\r\n$".to_vec(), vec![b'1'; 70_000], b"\r\n".to_vec()].concat());
    frames
}

/// The same bytes to a server and to the proxy: equal replies, and the same connections are closed.
#[test]
fn frames_that_are_none_are_answered_as_redis_answers_them() {
    let direct = Redis::start(Family::Redis70);
    let backs = servers(Family::Redis70, 1);
    let quickack = quickack(&addresses(&backs), &[]);
    let mut canaries = Canaries::new(&quickack);
    let mut differing = Vec::new();
    let frames: Vec<_> = [frames(), answered_here(70_000), answered_here(300_000)].concat();
    for frame in &frames {
        canaries.ask();
        let theirs = all_that_is_said(direct.address, frame);
        let asked = Instant::now();
        let ours = all_that_is_said(quickack.address(), frame);
        assert!(asked.elapsed() < DEADLINE / 2, "{}", shown(frame));
        canaries.check(&shown(frame));
        if theirs != ours && !is_stricter(frame, &ours) {
            let (theirs, ours) = (shown(&theirs), shown(&ours));
            differing.push(format!("{}\n  server:   {theirs}\n  quickack: {ours}\n", shown(frame)));
        }
    }
    println!("{} frames, canaries asked {} times", frames.len(), canaries.asked);
    assert!(differing.is_empty(), "{}", differing.concat());
}

/// Returns whether the proxy may be stricter than a server. It closes where the server continues
/// after input that is surely a mistake, or in the middle of an attack; and it escapes echoed
/// bytes.
fn is_stricter(frame: &[u8], ours: &[u8]) -> bool {
    let says = |text: &str| ours == format!("-ERR Protocol error: {text}\r\n").as_bytes();
    // The server closes at `Host:` without a reply to the request before.
    frame.starts_with(b"GET / HTTP/1.1\r\nHost:") && ours.starts_with(b"-ERR wrong number of arg")
        // The server skips any two bytes after a string, and so continues parsing in its middle.
        || says("expected CR LF")
        // The server treats a line with a NUL as unfinished.
        || says("a NUL in an inline request") && frame.contains(&0)
        // If a line of 70,000 bytes has two mistakes, the server's reply depends on the pieces in
        // which it arrives.
        || says("too big inline request") && frame.len() > 65_536
        || says("too big mbulk count string") && frame.len() > 65_536
        || says("too big bulk count string") && frame.len() > 65_536
        || frame.starts_with(b"\xff") && ours.starts_with(b"-ERR unknown command '\\xff")
}

/// A hostile page may have sent a browser here, whose body would be commands.
#[test]
fn a_line_of_http_is_hung_up_on_and_nothing_after_it_reaches_redis() {
    let backs = servers(Family::Redis70, 1);
    let mut quickack = quickack(&addresses(&backs), &[]);
    for line in ["POST / HTTP/1.1", "post /", "Host: x"] {
        let frame = format!("{line}\r\nContent-Length: 20\r\n\r\nSET a 1\r\n");
        assert_eq!(all_that_is_said(quickack.address(), frame.as_bytes()), b"", "{line}");
    }
    backs[0].client().ask("EXISTS a\r\n", ":0\r\n");
    quickack.process.wait_for("HTTP", |said| said.contains("one sent HTTP").then_some(()));
}

/// CRLF in each argument of each row, and in the name: one request, one reply. The servers are
/// Valkey's, which echo one of these words unescaped.
#[test]
fn no_word_of_a_client_makes_a_reply_of_its_own_before_valkey() {
    const EVIL: &str = "\r\n-EVIL x\r\n";
    // These commands change the replies themselves, or have any number of them.
    const LOUD: &[&str] = &[
        "quit",
        "client|reply",
        "multi",
        "subscribe",
        "psubscribe",
        "ssubscribe",
        "unsubscribe",
        "punsubscribe",
        "sunsubscribe",
    ];
    let backs = servers(Family::Valkey91, 2);
    // No files are written, and no server is blocked, as PFSELFTEST would do.
    const ALLOW: &str = "allow: [flushall, flushdb, acl, commandlog, config|set, \
         config|resetstat, debug, latency, memory, module, pfdebug, swapdb]";
    let quickack = quickack(&addresses(&backs), &[ALLOW]);
    let mut canaries = Canaries::new(&quickack);
    let rows = testkit::differential::redis::rows();
    let names = rows.iter().map(|row| row.name).filter(|name| !LOUD.contains(name));
    let mut asked = 0;
    for name in names.chain(["nosuch", "client|nosuch", EVIL, "function|\r\n+EVIL\r\n"]) {
        for version in [2, 3] {
            let mut hostile = Speaker::connect(quickack.address());
            hostile.say(&format!("HELLO {version}"));
            for count in 0..6 {
                for at in 0..=count {
                    let mut words: Vec<&str> = name.split('|').collect();
                    words.extend((0..count).map(|arg| if arg == at { EVIL } else { "1" }));
                    let mut bytes = command(&words);
                    bytes.extend_from_slice(&command(&["ECHO", "token"]));
                    // A few of them run together with the canaries; the others run as fast as
                    // possible.
                    let beside = asked % 50 == 0 && !name.starts_with("flush");
                    if beside {
                        canaries.ask();
                    }
                    hostile.send(&bytes);
                    let first =
                        hostile.reply().unwrap_or_else(|error| panic!("{words:?}: {error}"));
                    let second = hostile.reply();
                    let token = Ok(Reply::Bulk("token".into()));
                    assert_eq!(second, token, "{words:?} was answered {first:?} and more");
                    if beside {
                        canaries.check(&format!("{words:?}"));
                    }
                    asked += 1;
                }
            }
        }
        // The row may have flushed the canaries' keys.
        canaries = Canaries::new(&quickack);
    }
    println!("{asked} requests with line ends in their words");
}
