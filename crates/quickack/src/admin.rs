//! The admin socket, as both ends know it: where it is, what may be asked, and asking.
//!
//! One line in, text or JSON out, then the end. An answer that begins with `error: ` is one. Only
//! the socket's owner and root may connect.

mod entries;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub use entries::{Entry, Found};

/// What may be asked.
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
        text: "Reads the file again and changes all workers to it, or none. Keys that would move \
               to other servers need `--allow-remap`. Whatever the file says, the log is reopened, \
               and unix sockets whose files were removed are made again.",
    },
    Verb {
        name: "set",
        words: "KEY=VALUE...",
        text: "Sets directives over the file's, for all workers or for none: `memory_max=2g`, \
               `alpha.timeout_reply=200ms`; `KEY=` goes back to the file's.",
    },
    Verb {
        name: "config",
        words: "[--running | --diff] [--json]",
        text: "Every directive with its value now and where that is from; `--diff`: only those \
               that differ from the file.",
    },
    Verb {
        name: "stats",
        words: "[--json]",
        text: "Counters and percentiles of all workers together.",
    },
    Verb {
        name: "workers",
        words: "[--json]",
        text: "The processes: ids, states, clients, and the configuration each has installed.",
    },
    Verb { name: "log-level", words: "LEVEL", text: "The same as `set log_level=LEVEL`." },
    Verb {
        name: "drain",
        words: "",
        text: "Takes no more clients, answers what was asked, and ends, as after TERM.",
    },
    Verb { name: "quit", words: "", text: "Ends now." },
];

/// The only proxy that answers, of all or of one configuration. The error is what is to be shown.
pub fn only(file: Option<&Path>) -> Result<Found, String> {
    let mut found = entries::find(file);
    match (found.len(), file) {
        (1, _) => Ok(found.remove(0)),
        (0, None) => Err("no running proxy is found; name its configuration: -c FILE".to_string()),
        (0, Some(file)) => Err(format!(
            "no proxy that runs with {} answers in {}; if one does, say --admin PATH",
            file.display(),
            entries::places()
        )),
        (_, _) => {
            let names = found.iter().map(|one| one.path.display().to_string());
            Err(format!(
                "several proxies run; say -c FILE or --admin PATH:\n  {}",
                names.collect::<Vec<String>>().join("\n  ")
            ))
        }
    }
}

/// The proxy whose socket is there.
pub fn at(socket: &Path) -> Result<Found, String> {
    let path = socket.to_path_buf();
    let connected = UnixStream::connect(socket).map(|stream| Found { path, stream });
    connected.map_err(|error| no_answer(socket, &error))
}

/// Asks one line. The error is what is to be shown.
pub fn ask(proxy: Found, line: &str) -> Result<String, String> {
    let Found { path, mut stream } = proxy;
    let mut answer = || -> io::Result<String> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(line.as_bytes())?;
        stream.write_all(b"\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = answer().map_err(|error| no_answer(&path, &error))?;
    match text.strip_prefix(ERROR) {
        Some(why) => Err(why.trim_end().to_string()),
        None => Ok(text),
    }
}

fn no_answer(socket: &Path, error: &io::Error) -> String {
    format!("no answer from {}: {error}; does the proxy run?", socket.display())
}

/// How the answer to a question that failed begins.
pub const ERROR: &str = "error: ";
/// How long an answer may take: a reload looks up hosts and asks all workers twice.
const PATIENCE: Duration = Duration::from_secs(30);
