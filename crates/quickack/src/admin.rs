//! The admin socket, as both ends know it: where it is, what may be asked, and asking.
//!
//! One line in, text or JSON out, then the end. An answer that begins with `error: ` is one. Only
//! the socket's owner and root may connect.

mod entries;
mod lock;

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net;

use crate::error::{Error, Peer};

pub use entries::{Entry, Found};
pub use lock::FileLock;

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
        words: "[--allow-remap] KEY=VALUE...",
        text: "Overrides directives of the file, for all workers or for none: `memory_max=2g`, \
               `alpha.timeout_reply=200ms`, `alpha.allow=[flush_all, stats reset]`. `KEY=` returns \
               to the file's value. If keys would move to other servers, it needs `--allow-remap`.",
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
        name: "difference",
        words: "/PATH",
        text: "Says what a reload would change if that file were the configuration, and changes \
               nothing; `quickack check --diff FILE` asks it.",
    },
    Verb {
        name: "info",
        words: "[--json]",
        text: "Shows release, build, uptime, epoch, limits, and whether the proxy is ready.",
    },
    Verb {
        name: "pools",
        words: "[--json]",
        text: "Shows the pools: protocol, listener, clients, and how many servers are up.",
    },
    Verb {
        name: "servers",
        words: "[--json]",
        text: "Shows the servers: address, the state given by hand, health, why and since when, \
               links, and how many requests wait or are in flight.",
    },
    Verb {
        name: "server",
        words: "POOL/NAME ready|drain|maint",
        text: "Gives a server a state by hand, for all workers or for none. `drain`: with \
               `on_failure: eject` its keys move to the others; otherwise it goes on, and no \
               further link to it is opened. `maint`: it is asked nothing; its keys move, or are \
               answered with an error. `ready` lifts either. A state stays over reloads, until the \
               proxy ends or the server leaves the file.",
    },
    Verb {
        name: "slowlog",
        words: "[--json] [--limit N] [--reset]",
        text: "Shows the last slow requests (at most 100, or N), the newest first: their phases, \
               and what is known of the cause; `--reset` hides them. See `slowlog_threshold`.",
    },
    Verb {
        name: "clients",
        words: "[kill [ID...]] [--pool POOL] [--address ADDRESS] [--user USER] [--tenant TENANT] \
                [--sort requests|bytes|idle|age] [--limit N] [--busiest] [--in-pieces] [--json]",
        text: "Shows the clients of all workers, or those that match; `--busiest`: those that did \
               most in the last seconds; `--in-pieces`: the addresses from which requests come in \
               pieces. `kill` closes at once those that match, and says which. A worker that has \
               not answered within 2 seconds is named.",
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

/// Returns the words of a line. Spaces within brackets separate none: a list is one word.
pub fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut depth = 0i32;
    for word in line.split_whitespace() {
        match words.last_mut().filter(|_| depth > 0) {
            Some(list) => *list = format!("{list} {word}"),
            None => words.push(word.to_string()),
        }
        let count = |brackets: &str| word.matches(|c| brackets.contains(c)).count() as i32;
        depth = (depth + count("[{") - count("]}")).max(0);
    }
    words
}

/// Returns a word that the verb does not take.
pub fn odd_word<'w>(verb: &str, words: &'w [String]) -> Option<&'w String> {
    let known = match verb {
        "reload" => &["--allow-remap"][..],
        "config" => &["--running", "--diff", "--json"],
        "stats" | "workers" | "info" | "pools" | "servers" => &["--json"],
        "slowlog" => &["--json", "--reset", "--limit"],
        _ => &[],
    };
    let takes_words = matches!(verb, "set" | "server" | "log-level" | "difference" | "clients");
    let is_number = |word: &str| verb == "slowlog" && word.parse::<usize>().is_ok();
    let is_known = |word: &str| takes_words || known.contains(&word) || is_number(word);
    words.iter().find(|word| !is_known(word))
}

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
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a proxy may be too busy to take who asks.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// Statistics of thousands of pools are a few megabytes.
const ANSWER_LEN_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(said: &[u8]) -> (Result<String, String>, String) {
        let (stream, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(said).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = ask(Found { path: "x.sock".into(), stream }, "workers --json");
        let mut question = String::new();
        theirs.read_to_string(&mut question).unwrap();
        (answer.map_err(|why| why.to_string()), question)
    }

    #[test]
    fn an_answer_is_text_or_an_error_or_none_at_all() {
        let none = "no answer from x.sock: unexpected end of file; is the proxy running?";
        let answers: [(&str, Result<&str, &str>); 4] = [
            ("two\nlines\tor so\n", Ok("two\nlines\tor so\n")),
            ("b\x1b[1mold\r\n", Ok("b\\u001b[1mold\\u000d\n")),
            ("error: no such thing\n", Err("no such thing")),
            ("", Err(none)),
        ];
        for (said, wanted) in answers {
            let (answer, question) = asked(said.as_bytes());
            assert_eq!(answer.as_ref().map(String::as_str).map_err(String::as_str), wanted);
            assert_eq!(question, "workers --json\n");
        }
        let (stream, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let answer = ask(Found { path: "x.sock".into(), stream }, "workers");
        assert!(
            answer.as_ref().is_err_and(|why| why.to_string().contains("Broken pipe")),
            "{answer:?}"
        );
    }

    #[test]
    fn an_answer_is_waited_for_until_its_time_is_over_and_no_longer_than_there_can_be_one() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let soon = Instant::now() + Duration::from_millis(10);
        assert_eq!(hear(&mut ours, soon).unwrap_err().kind(), io::ErrorKind::TimedOut);
        theirs.write_all(b"late").unwrap();
        assert_eq!(hear(&mut ours, soon).unwrap_err().kind(), io::ErrorKind::TimedOut);
        // It leaves something unread: that is another error.
        ours.write_all(b"a question").unwrap();
        drop(theirs);
        let error = hear(&mut ours, Instant::now() + PATIENCE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn an_answer_may_be_as_long_as_64_mib_and_not_a_byte_longer() {
        for (len, fits) in [(64 << 20, true), ((64 << 20) + 1, false)] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            let teller = std::thread::spawn(move || theirs.write_all(&vec![b'x'; len]).is_ok());
            let heard = hear(&mut ours, Instant::now() + 10 * PATIENCE);
            drop(ours);
            assert_eq!(heard.is_ok_and(|bytes| bytes.len() == len), fits, "{len}");
            teller.join().unwrap();
        }
    }
}
