//! `cargo xtask commands`: makes Redis's command table from the servers' own data and from the
//! reviewed notes on each command.
//!
//! ```text
//!   redis-server  ─┐ COMMAND, COMMAND DOCS
//!                  ├─────────▶ facts.rs ─┐
//!   valkey-server ─┘                     ├─▶ table.rs and texts.txt, by write.rs
//!          review.txt, key_specs.rs ─────┘
//! ```
//!
//! It starts the two servers itself, on free ports of the loopback.

mod facts;
mod review;
mod write;

use std::path::PathBuf;
use std::process::Command;

use testkit::process::{Family, Process, Speaker, free_address};
use testkit::wire::resp::Reply;

use crate::{Outcome, root};

const USAGE: &str = "[--check] [--redis PROGRAM] [--valkey PROGRAM]";
const REVIEW: &str = "crates/proto/src/redis/commands/review.txt";
const TABLE: &str = "crates/proto/src/redis/commands/table.rs";
const TEXTS: &str = "crates/proto/src/redis/commands/texts.txt";
const KEY_SPECS: &str = "crates/proto/src/redis/commands/key_specs.rs";

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
    let redis = redis.unwrap_or_else(|| Family::Redis70.program());
    let valkey = valkey.unwrap_or_else(|| Family::Valkey91.program());
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
    let redis = facts::read(&ask(redis)?)?;
    let valkey = facts::read(&ask(valkey)?)?;
    let review = review::read(&read(REVIEW)?)?;
    let specs = write::KeySpecs::read(&read(KEY_SPECS)?);
    let mut facts = facts::merge(redis, valkey);
    review.complete(&mut facts)?;
    Ok([write::table(&facts, &review, &specs)?, write::texts(&facts, &review)?])
}

fn read(file: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))
}

/// Starts a server, and returns its answers about its commands and about their documentation.
fn ask(program: &PathBuf) -> Result<[Reply; 2], String> {
    let address = free_address();
    let mut command = Command::new(program);
    command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let mut server = Process::start("a server", &mut command);
    if !server.wait_to_accept(address) {
        return Err(format!("{} does not run: {}", program.display(), server.stderr_text()));
    }
    let mut speaker = Speaker::connect(address);
    Ok(["COMMAND", "COMMAND DOCS"].map(|line| speaker.say(line)))
}
