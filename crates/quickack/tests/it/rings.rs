//! Rings: every key stays on the server where twemproxy put it.
//!
//! ```text
//!                       ┌─> nutcracker ─┐
//!   100,000 keys a row ─┤               ├─> servers that answer a get with their own number
//!                       └─> quickack ───┘
//! ```
//!
//! One `nutcracker.yml` has a pool for each row of the table below. Both proxies start on that
//! file unchanged, and the answers to the same gets tell which server each of them asked for
//! each key. `shard`, called in this process, is the third opinion: where the proxies differ, it
//! says whether the ring is wrong or the way to it.

mod field;
mod keys;
mod table;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

use testkit::process::{DEADLINE, Process, free_address};

use field::Field;
use table::Row;

#[test]
fn every_key_stays_where_twemproxy_put_it() {
    let (field, keys) = (Field::new(), keys::keys());
    let mut nutcracker = Proxy::nutcracker(&field);
    let mut quickack = Proxy::quickack(&field);
    let (theirs, ours) = thread::scope(|scope| {
        let theirs = scope.spawn(|| nutcracker.ask_every_row(&field.rows, &keys));
        let ours = quickack.ask_every_row(&field.rows, &keys);
        (theirs.join().unwrap(), ours)
    });
    for (row, (theirs, ours)) in field.rows.iter().zip(theirs.iter().zip(&ours)) {
        row.compare(("shard", &row.owners_in_process(&keys)), ("nutcracker", theirs), &keys);
        row.compare(("quickack", ours), ("nutcracker", theirs), &keys);
    }
}

/// So many keys of each row are asked for alone, the rest many to a line.
const SINGLE_COUNT: usize = 2_000;
const KEYS_PER_LINE: usize = 100;

struct Proxy {
    _process: Process,
    /// Its sockets.
    folder: PathBuf,
}

impl Proxy {
    fn nutcracker(field: &Field) -> Proxy {
        let mut command = Command::new("nutcracker");
        command.env("PATH", "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin");
        let statistics_port = free_address().port().to_string();
        command.arg("-c").arg(field.yml()).args(["-a", "127.0.0.1", "-s", &statistics_port]);
        Proxy::start("nutcracker", command, field)
    }

    fn quickack(field: &Field) -> Proxy {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quickack"));
        command.args(["run", "-c"]).arg(field.yml());
        Proxy::start("quickack", command, field)
    }

    /// Returns when every pool can be connected to. The sockets then move to a folder of the
    /// proxy's own, where they still work: the next proxy finds their places free.
    fn start(name: &str, mut command: Command, field: &Field) -> Proxy {
        fs::create_dir(field.listen()).unwrap();
        let sockets: Vec<_> =
            field.rows.iter().map(|row| field.listen().join(&row.socket)).collect();
        let mut process = Process::start(name, &mut command);
        // What it says does not matter, but how long it may take and whether it ends do.
        process.wait_for("that it accepts", |_| {
            sockets.iter().all(|socket| UnixStream::connect(socket).is_ok()).then_some(())
        });
        let folder = field.folder.path().join(name);
        fs::rename(field.listen(), &folder).unwrap();
        Proxy { _process: process, folder }
    }

    /// For each row and key, the number of the server that answered.
    fn ask_every_row(&mut self, rows: &[Row], keys: &[Vec<u8>]) -> Vec<Vec<u16>> {
        let places: HashMap<&[u8], usize> = keys.iter().map(|k| k.as_slice()).zip(0..).collect();
        rows.iter()
            .map(|row| {
                let stream = UnixStream::connect(self.folder.join(&row.socket)).unwrap();
                stream.set_read_timeout(Some(DEADLINE)).unwrap();
                stream.set_write_timeout(Some(DEADLINE)).unwrap();
                if row.servers.iter().any(|server| server.dead) {
                    wait_for_ejection(&stream, row, keys);
                }
                ask(&stream, &row.name, keys, &places)
            })
            .collect()
    }
}

/// Asks for a key of the dead server until another answers it.
fn wait_for_ejection(mut stream: &UnixStream, row: &Row, keys: &[Vec<u8>]) {
    let ring = row.ring(&vec![true; row.servers.len()]);
    let key = keys.iter().find(|key| row.locate(&ring, key).dead).unwrap();
    let request = [b"get ", key.as_slice(), b"\r\n"].concat();
    let mut replies = BufReader::new(stream);
    let start = Instant::now();
    loop {
        stream.write_all(&request).unwrap();
        let mut line = Vec::new();
        replies.read_until(b'\n', &mut line).unwrap();
        if line.starts_with(b"VALUE") {
            while !line.ends_with(b"END\r\n") {
                replies.read_until(b'\n', &mut line).unwrap();
            }
            return;
        }
        assert!(line.starts_with(b"SERVER_ERROR"), "pool {}: {line:?}", row.name);
        assert!(start.elapsed() < DEADLINE, "pool {}: the dead server stays", row.name);
    }
}

/// Gets all keys, pipelined, and returns who answered each.
fn ask(
    stream: &UnixStream,
    pool: &str,
    keys: &[Vec<u8>],
    places: &HashMap<&[u8], usize>,
) -> Vec<u16> {
    const UNANSWERED: u16 = u16::MAX;
    let (single, many) = keys.split_at(SINGLE_COUNT);
    let lines = single.chunks(1).chain(many.chunks(KEYS_PER_LINE));
    let mut owners = vec![UNANSWERED; keys.len()];
    thread::scope(|scope| {
        let requests = lines.clone();
        scope.spawn(move || send(stream, requests));
        let mut replies = BufReader::with_capacity(65_536, stream);
        let mut line = Vec::new();
        let mut next_line = |line: &mut Vec<u8>| {
            line.clear();
            let received = replies.read_until(b'\n', line);
            assert!(matches!(received, Ok(len) if len > 0), "pool {pool}: {received:?}");
            line.truncate(line.trim_ascii_end().len());
        };
        for _ in lines {
            next_line(&mut line);
            while line != b"END" {
                let key = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
                let place = places.get(key).filter(|_| line.starts_with(b"VALUE "));
                let place = *place.unwrap_or_else(|| panic!("{pool}: {}", line.escape_ascii()));
                assert_eq!(owners[place], UNANSWERED, "pool {pool}: two answers for one key");
                next_line(&mut line);
                owners[place] = str::from_utf8(&line).unwrap().parse().unwrap();
                next_line(&mut line);
            }
        }
    });
    let unanswered = owners.iter().filter(|owner| **owner == UNANSWERED).count();
    assert_eq!(unanswered, 0, "pool {pool}: keys without an answer");
    owners
}

fn send<'k>(stream: &UnixStream, lines: impl Iterator<Item = &'k [Vec<u8>]>) {
    let mut requests = BufWriter::with_capacity(16_384, stream);
    for keys in lines {
        requests.write_all(b"get").unwrap();
        for key in keys {
            requests.write_all(b" ").unwrap();
            requests.write_all(key).unwrap();
        }
        requests.write_all(b"\r\n").unwrap();
    }
    requests.flush().unwrap();
}
