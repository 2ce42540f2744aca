//! The options of nutcracker 0.5.0, read as its `getopt_long` reads them: short ones may be joined
//! (`-tc FILE`), long ones shortened (`--test`), words that are no option are ignored, and an
//! option that is given twice has its last value.

use std::ffi::OsString;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What the command line says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub help: bool,
    pub version: bool,
    pub test: bool,
    pub daemonize: bool,
    pub describe: bool,
    /// From 0 to 11, and more.
    pub verbose: Option<u64>,
    pub output: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub stats_port: Option<u16>,
    pub stats_addr: Option<String>,
    pub pid_file: Option<PathBuf>,
}

/// An option, by its letter.
struct Flag {
    letter: u8,
    long: &'static str,
    /// What the value is called in an error; None for a switch.
    value: Option<&'static str>,
    text: &'static str,
    /// quickack itself has it.
    ours: bool,
}

const FILE: Option<&str> = Some("a file name");
const NUMBER: Option<&str> = Some("a number");
const STRING: Option<&str> = Some("a string");

/// In the order of the help.
#[rustfmt::skip] // One row an option.
const FLAGS: &[Flag] = &[
    Flag { letter: b'h', long: "help", value: None, ours: true, text: "this help" },
    Flag { letter: b'V', long: "version", value: None, ours: true, text: "show version and exit" },
    Flag { letter: b't', long: "test-conf", value: None, ours: false,
        text: "test configuration for syntax errors and exit" },
    Flag { letter: b'd', long: "daemonize", value: None, ours: false, text: "run as a daemon" },
    Flag { letter: b'D', long: "describe-stats", value: None, ours: false,
        text: "print stats description and exit" },
    Flag { letter: b'v', long: "verbose", value: NUMBER, ours: false,
        text: "set logging level (default: 5, min: 0, max: 11)" },
    Flag { letter: b'o', long: "output", value: FILE, ours: false,
        text: "set logging file (default: /var/log/nutcracker/nutcracker.log)" },
    Flag { letter: b'c', long: "conf-file", value: FILE, ours: true,
        text: "set configuration file (default: /etc/nutcracker/nutcracker.yml)" },
    Flag { letter: b's', long: "stats-port", value: NUMBER, ours: false,
        text: "set stats monitoring port (default: 22222)" },
    Flag { letter: b'a', long: "stats-addr", value: STRING, ours: false,
        text: "set stats monitoring ip (default: 0.0.0.0)" },
    Flag { letter: b'i', long: "stats-interval", value: NUMBER, ours: false,
        text: "accepted; the stats are always of this moment" },
    Flag { letter: b'p', long: "pid-file", value: FILE, ours: false,
        text: "set pid file (default: /run/nutcracker/nutcracker.pid)" },
    Flag { letter: b'm', long: "mbuf-size", value: NUMBER, ours: false,
        text: "accepted; buffers have the size that they need" },
];

/// The places of Debian's package. Those of its author's follow where these do not exist.
pub const CONFIG: &str = "/etc/nutcracker/nutcracker.yml";
pub const CONFIG_ELSE: &str = "conf/nutcracker.yml";
pub const LOG: &str = "/var/log/nutcracker/nutcracker.log";
pub const PID_FILE: &str = "/run/nutcracker/nutcracker.pid";
pub const STATS_PORT: u16 = 22222;
pub const STATS_ADDR: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
pub const VERBOSE: u64 = 5;
/// The sizes of its buffers, which are checked and not used.
const MBUF_SIZES: std::ops::RangeInclusive<u64> = 512..=16 << 20;

/// One option of a command line with its value, or the letter of one that is wrong.
struct Given {
    letter: u8,
    value: Option<OsString>,
    is_wrong: bool,
}

impl Options {
    /// Reads a command line without its first word, or returns the reason why it is wrong.
    pub fn read(words: &[OsString]) -> Result<Options, String> {
        let mut options = Options::default();
        for Given { letter, value, is_wrong } in given(words) {
            let flag = FLAGS.iter().find(|flag| flag.letter == letter);
            match (flag.map(|flag| flag.value), value) {
                (Some(Some(wanted)), None) => {
                    let letter = char::from(letter);
                    return Err(format!("option -{letter} requires {wanted}"));
                }
                (Some(_), value) if !is_wrong => options.take(letter, value.unwrap_or_default())?,
                _ => return Err(format!("invalid option -- '{}'", char::from(letter))),
            }
        }
        Ok(options)
    }

    fn take(&mut self, letter: u8, value: OsString) -> Result<(), String> {
        match letter {
            b'h' => self.help = true,
            b'V' => self.version = true,
            b't' => self.test = true,
            b'd' => self.daemonize = true,
            b'D' => self.describe = true,
            b'v' => self.verbose = Some(number(letter, &value)?),
            b'o' => self.output = Some(value.into()),
            b'c' => self.config = Some(value.into()),
            b's' => {
                let port = number(letter, &value)?;
                let is_valid = (1..=u64::from(u16::MAX)).contains(&port);
                let wrong = || format!("option -s value {port} is not a valid port");
                self.stats_port = Some(is_valid.then_some(port as u16).ok_or_else(wrong)?);
            }
            b'a' => self.stats_addr = Some(value.to_string_lossy().into_owned()),
            b'i' => drop(number(letter, &value)?),
            b'p' => self.pid_file = Some(value.into()),
            _ => {
                let none = "option -m requires a non-zero number";
                let size = number(letter, &value).map_err(|_| none.to_string())?;
                let (least, most) = (MBUF_SIZES.start(), MBUF_SIZES.end());
                if size == 0 {
                    return Err(none.to_string());
                } else if !MBUF_SIZES.contains(&size) {
                    return Err(format!(
                        "mbuf chunk size must be between {least} and {most} bytes"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a command line has an option that quickack itself does not have.
pub fn has_one_of_nutcracker(words: &[OsString]) -> bool {
    let begins_with_one = words.first().is_some_and(|word| word.as_bytes().starts_with(b"-"));
    let is_theirs = |given: &Given| {
        let of_theirs = |flag: &&Flag| flag.letter == given.letter && !flag.ours;
        !given.is_wrong && FLAGS.iter().any(|flag| of_theirs(&flag))
    };
    begins_with_one && given(words).iter().any(is_theirs)
}

fn given(words: &[OsString]) -> Vec<Given> {
    let mut all = Vec::new();
    let mut words = words.iter().map(|word| word.as_bytes());
    while let Some(word) = words.next() {
        match word {
            b"--" => break,
            [b'-', b'-', long @ ..] => all.push(long_one(long, || words.next())),
            [b'-', letters @ ..] => short_ones(letters, || words.next(), &mut all),
            _ => {}
        }
    }
    all
}

fn short_ones<'w>(
    mut letters: &[u8],
    next: impl FnOnce() -> Option<&'w [u8]>,
    all: &mut Vec<Given>,
) {
    while let [letter, rest @ ..] = letters {
        let flag = FLAGS.iter().find(|flag| flag.letter == *letter);
        let (letter, is_wrong) = (*letter, flag.is_none());
        if flag.is_some_and(|flag| flag.value.is_some()) {
            let value = if rest.is_empty() { next() } else { Some(rest) };
            all.push(Given { letter, value: value.map(owned), is_wrong });
            return;
        }
        all.push(Given { letter, value: None, is_wrong });
        letters = rest;
    }
}

fn long_one<'w>(word: &'w [u8], next: impl FnOnce() -> Option<&'w [u8]>) -> Given {
    let (name, value) = match word.iter().position(|byte| *byte == b'=') {
        Some(at) => (&word[..at], Some(&word[at + 1..])),
        None => (word, None),
    };
    let exact = FLAGS.iter().find(|flag| flag.long.as_bytes() == name);
    let mut shortened = FLAGS.iter().filter(|flag| flag.long.as_bytes().starts_with(name));
    let only = shortened.next().filter(|_| shortened.next().is_none());
    match exact.or(only) {
        // It has no letter to tell.
        None => Given { letter: 0, value: None, is_wrong: true },
        Some(Flag { letter, value: None, .. }) => {
            Given { letter: *letter, value: None, is_wrong: value.is_some() }
        }
        Some(Flag { letter, .. }) => {
            Given { letter: *letter, value: value.or_else(next).map(owned), is_wrong: false }
        }
    }
}

fn owned(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// Reads a number of digits only; one that does not fit is the largest.
fn number(letter: u8, value: &OsString) -> Result<u64, String> {
    let bytes = value.as_bytes();
    let wrong = || format!("option -{} requires a number", char::from(letter));
    match !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit) {
        true => Ok(value.to_string_lossy().parse().unwrap_or(u64::MAX)),
        false => Err(wrong()),
    }
}

/// Returns the help.
pub fn usage() -> String {
    let mut out = String::from(
        "Usage: nutcracker [-?hVdDt] [-v verbosity level] [-o output file]
                  [-c conf file] [-s stats port] [-a stats addr]
                  [-i stats interval] [-p pid file] [-m mbuf size]

Options:
",
    );
    for Flag { letter, long, value, text, .. } in FLAGS {
        let value = match *value {
            None => "",
            NUMBER => "=N",
            Some(_) => "=S",
        };
        let long = format!("{long}{value}");
        let _ = writeln!(out, "  -{}, --{long:<16} : {text}", char::from(*letter));
    }
    out
}

/// Returns the configuration that is meant if none is named.
pub fn config_default() -> PathBuf {
    let is_elsewhere = !Path::new(CONFIG).exists() && Path::new(CONFIG_ELSE).exists();
    PathBuf::from(if is_elsewhere { CONFIG_ELSE } else { CONFIG })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn quickacks_own_command_lines_stay_its_own() {
        for line in ["", "-c x.yml", "--help", "-V", "stats --json", "run -c x -d", "check -t", "x"]
        {
            assert!(!has_one_of_nutcracker(&words(line)), "{line}");
        }
        let theirs =
            ["-d", "-c x -d", "-tc x", "--test-conf", "--stats-port=1", "-Vd", "-h -v 3", "-s"];
        for line in theirs {
            assert!(has_one_of_nutcracker(&words(line)), "{line}");
        }
        assert!(
            !has_one_of_nutcracker(&words("-c -d -- -d")),
            "a value, and the end of the options"
        );
    }

    #[test]
    fn a_command_line_is_read_as_getopt_reads_it() {
        let read = |line: &str| Options::read(&words(line));
        let expected = Options {
            test: true,
            verbose: Some(11),
            config: Some("b.yml".into()),
            stats_addr: Some("::1".into()),
            stats_port: Some(2),
            ..Options::default()
        };
        let lines = [
            "-t -v 11 -c a.yml -s 1 -a ::1 -s2 word -c b.yml -i 7 -m 512",
            "--test --verbose=11 --conf b.yml --stats-a=::1 --stats-port 2 -- -x",
            "-tv11 -cb.yml -a::1 -s 2",
        ];
        for line in lines {
            assert_eq!(read(line).as_ref(), Ok(&expected), "{line}");
        }
        assert_eq!(
            Options::read(&words("-s 00000000000000000000000000080")).unwrap().stats_port,
            { Some(80) }
        );
    }
}
