//! Rings: every key stays on the server where twemproxy put it.
//!
//! ```text
//!                       ┌─> nutcracker ─┐
//!   100,000 keys a row ─┤               ├─> servers that answer a get with their own number
//!                       └─> quickack ───┘
//! ```
//!
//! One `nutcracker.yml` has a pool for each row of the table below; another one has them with
//! `redis: true`. Both proxies start on that file unchanged, and the answers to the same gets show
//! the server that each proxy used for each key. `shard`, called in this process, gives a third
//! result: if the proxies differ, it shows whether the ring is wrong or the route to it.

mod field;
mod keys;
mod speech;
mod table;

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

use testkit::process::{DEADLINE, Process, free_address};

use field::Field;
use speech::{Replies, Speech};
use table::Row;

#[test]
fn every_key_stays_where_twemproxy_put_it() {
    compare(&Field::of_memcached());
}

#[test]
fn every_key_of_a_redis_pool_stays_where_twemproxy_put_it() {
    compare(&Field::of_redis());
}

fn compare(field: &Field) {
    let keys = keys::keys();
    let mut nutcracker = Proxy::nutcracker(field);
    let mut quickack = Proxy::quickack(field);
    let (theirs, ours) = thread::scope(|scope| {
        let theirs = scope.spawn(|| nutcracker.ask_every_row(field, &keys));
        let ours = quickack.ask_every_row(field, &keys);
        (theirs.join().unwrap(), ours)
    });
    for (row, (theirs, ours)) in field.rows.iter().zip(theirs.iter().zip(&ours)) {
        row.compare(("shard", &row.owners_in_process(&keys)), ("nutcracker", theirs), &keys);
        row.compare(("quickack", ours), ("nutcracker", theirs), &keys);
    }
}

/// Number of keys of each row that are requested alone; the rest are requested many at a time.
const SINGLE_COUNT: usize = 2_000;
const KEYS_PER_LINE: usize = 100;

struct Proxy {
    _process: Process,
    /// The folder of its sockets.
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

    /// Returns when every pool accepts connections. The sockets then move to the proxy's own
    /// folder, where they still work, so that the next proxy finds their paths free.
    fn start(name: &str, mut command: Command, field: &Field) -> Proxy {
        fs::create_dir(field.listen()).unwrap();
        let sockets: Vec<_> =
            field.rows.iter().map(|row| field.listen().join(&row.socket)).collect();
        let mut process = Process::start(name, &mut command);
        // Its output does not matter, but the wait has a limit and notices its end.
        process.wait_for("that it accepts", |_| {
            sockets.iter().all(|socket| UnixStream::connect(socket).is_ok()).then_some(())
        });
        let folder = field.folder.path().join(name);
        fs::rename(field.listen(), &folder).unwrap();
        Proxy { _process: process, folder }
    }

    /// Returns, for each row and key, the number of the server that answered.
    fn ask_every_row(&mut self, field: &Field, keys: &[Vec<u8>]) -> Vec<Vec<u16>> {
        let ask_row = |row: &Row| {
            let stream = UnixStream::connect(self.folder.join(&row.socket)).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            stream.set_write_timeout(Some(DEADLINE)).unwrap();
            if row.servers.iter().any(|server| server.dead) {
                wait_for_ejection(field.speech, &stream, row, keys);
            }
            ask(field.speech, &stream, &row.name, keys)
        };
        field.rows.iter().map(ask_row).collect()
    }
}

/// Requests a key of the dead server until another server answers it.
fn wait_for_ejection(speech: Speech, mut stream: &UnixStream, row: &Row, keys: &[Vec<u8>]) {
    let ring = row.ring(&vec![true; row.servers.len()]);
    let key = keys.iter().find(|key| row.locate(&ring, key).dead).unwrap();
    let key = std::slice::from_ref(key);
    let mut replies = Replies::new(stream);
    let start = Instant::now();
    loop {
        stream.write_all(&speech.request(key)).unwrap();
        let Err(line) = speech.receive(&mut replies, key, |_, _| {}) else { return };
        let is_refusal = line.starts_with("SERVER_ERROR") || line.starts_with('-');
        assert!(is_refusal, "pool {}: {line}", row.name);
        assert!(start.elapsed() < DEADLINE, "pool {}: the dead server stays", row.name);
    }
}

/// Gets all keys, pipelined, and returns the number of each answering server.
fn ask(speech: Speech, stream: &UnixStream, pool: &str, keys: &[Vec<u8>]) -> Vec<u16> {
    const UNANSWERED: u16 = u16::MAX;
    let (single, many) = keys.split_at(SINGLE_COUNT);
    let requests = single.chunks(1).chain(many.chunks(KEYS_PER_LINE));
    let mut owners = vec![UNANSWERED; keys.len()];
    thread::scope(|scope| {
        let sent = requests.clone();
        scope.spawn(move || speech.send(stream, sent));
        let mut replies = Replies::new(stream);
        let mut first = 0;
        for keys in requests {
            let heard = speech.receive(&mut replies, keys, |at, number| {
                let owner = &mut owners[first + at];
                assert_eq!(*owner, UNANSWERED, "pool {pool}: two answers for one key");
                *owner = number;
            });
            heard.unwrap_or_else(|line| panic!("pool {pool}: {line}"));
            first += keys.len();
        }
    });
    let unanswered = owners.iter().filter(|owner| **owner == UNANSWERED).count();
    assert_eq!(unanswered, 0, "pool {pool}: keys without an answer");
    owners
}
