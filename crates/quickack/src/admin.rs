//! The admin socket, as both ends know it: where it is, what may be asked, and asking.
//!
//! One line in, text or JSON out, then the end. An answer that begins with `error: ` is one. Only
//! the socket's owner and root may connect.

mod entries;

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net;

use crate::error::{Error, Peer};

pub use entries::{Entry, Found};

/// The requests of the admin socket.
pub struct Verb {
    pub name: &'static str,
    /// The words after it.
    pub words: &'static str,
    pub text: &'static str,
}

/// THE table of verbs.
pub static VERBS: &[Verb] = &[
    Verb {
        name: "reload",
        words: "[--allow-remap]",
        text: "Reads the file again and applies it to all workers, or to none. If keys would move \
               to other servers, it needs `--allow-remap`. Even if the file is refused, the log is \
               reopened, and unix sockets whose files were removed are made again.",
    },
    Verb {
        name: "set",
        words: "KEY=VALUE...",
        text: "Overrides directives of the file, for all workers or for none: `memory_max=2g`, \
               `alpha.timeout_reply=200ms`. `KEY=` returns to the file's value.",
    },
    Verb {
        name: "config",
        words: "[--running | --diff] [--json]",
        text: "Shows every directive, its present value and the value's origin; `--diff`: only \
               those that differ from the file.",
    },
    Verb {
        name: "stats",
        words: "[--json]",
        text: "Shows counters and percentiles of all workers together.",
    },
    Verb {
        name: "workers",
        words: "[--json]",
        text: "Shows the processes: ids, states, clients, and the installed configuration of each.",
    },
    Verb { name: "log-level", words: "LEVEL", text: "The same as `set log_level=LEVEL`." },
    Verb {
        name: "drain",
        words: "",
        text: "Accepts no more clients, answers outstanding requests, and exits, as after TERM.",
    },
    Verb { name: "quit", words: "", text: "Exits now." },
];

/// The only proxy that answers, of all or of one configuration.
pub fn only(file: Option<&Path>) -> Result<Found, Error> {
    let mut found = entries::find(file);
    Err(Error::Config(match (found.len(), file) {
        (1, _) => return Ok(found.remove(0)),
        (0, None) => "no running proxy found; name its configuration: -c FILE".to_string(),
        (0, Some(file)) => format!(
            "no proxy that runs with {} answers in {}; if one runs elsewhere, use --admin PATH",
            file.display(),
            entries::places()
        ),
        (_, _) => {
            let names = found.iter().map(|one| legible(&one.path.display().to_string()));
            format!(
                "several proxies run; choose one with -c FILE or --admin PATH:\n  {}",
                names.collect::<Vec<String>>().join("\n  ")
            )
        }
    }))
}

/// The proxy whose socket is there.
pub fn at(socket: &Path) -> Result<Found, Error> {
    let path = socket.to_path_buf();
    let connected = sys::connect::unix_within(socket, ROOM_PATIENCE);
    let connected = connected.map(|stream| Found { path, stream: stream.into() });
    connected.map_err(|error| no_answer(socket, &error.into()))
}

/// Asks one line.
pub fn ask(proxy: Found, line: &str) -> Result<String, Error> {
    let Found { path, mut stream } = proxy;
    let mut answer = || -> io::Result<Vec<u8>> {
        stream.set_write_timeout(Some(PATIENCE))?;
        // A user who may not ask is told so and hung up on, before or while it asks.
        let asked = stream.write_all(format!("{line}\n").as_bytes());
        let bytes = hear(&mut stream, Instant::now() + PATIENCE)?;
        match asked {
            _ if !bytes.is_empty() => Ok(bytes),
            Ok(()) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        }
    };
    let bytes = answer().map_err(|error| no_answer(&path, &error))?;
    let text = legible(&String::from_utf8_lossy(&bytes));
    match text.strip_prefix(ERROR) {
        Some(why) => Err(Peer::Refused(why.trim_end().to_string()).into()),
        None => Ok(text),
    }
}

/// Refuses a connection of another user, which the file's mode has let in, whatever it may ask. It
/// takes no other connection's room, and what it has sent is not looked at.
pub fn refuse_stranger(fd: &OwnedFd) {
    let _ = net::send(fd, NOT_YOURS, net::SendFlags::NOSIGNAL);
    // Nothing more comes in from here on. Left unread, what has come in would be an error of the
    // connection's for the one who is to read the sentence.
    let _ = net::shutdown(fd, net::Shutdown::Both);
    let _ = net::recv(fd, &mut [0; 4096], net::RecvFlags::empty());
}

/// All that is said until the end of the connection. The limits are for the whole answer: the
/// other end may be anybody who wants root to wait.
fn hear(stream: &mut UnixStream, until: Instant) -> io::Result<Vec<u8>> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 64 * 1024]);
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(rest))?;
        let len = match stream.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        };
        if bytes.len() + len > ANSWER_LEN_MAX {
            return Err(io::Error::other("the answer is longer than 64 MiB"));
        }
        bytes.extend_from_slice(&chunk[..len]);
    }
}

/// Control characters written out: they could tell a terminal anything. As JSON has them: an answer
/// may be that.
fn legible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && !matches!(character, '\n' | '\t') {
            true => out.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => out.push(character),
        }
    }
    out
}

fn no_answer(socket: &Path, error: &io::Error) -> Error {
    Error::Os(format!("no answer from {}: {error}; is the proxy running?", socket.display()))
}

/// How the answer to a question that failed begins.
pub const ERROR: &str = "error: ";
const NOT_YOURS: &[u8] = b"error: only root and the user of this proxy may use this socket\n";
/// How long an answer may take: a reload looks up hosts and asks all workers twice.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a proxy may be too busy to take who asks.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// Statistics of thousands of pools are a few megabytes.
const ANSWER_LEN_MAX: usize = 64 << 20;
