//! nutcracker's own command line, for init scripts and images that were made for it: when started
//! by a link of that name, or with an option that only nutcracker has.
//!
//! Everything is said on stderr. What nutcracker has and the file cannot say (log, level, address
//! of the statistics) becomes directives that are set over the file, so that they outlast a reload.

mod options;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::MemfdFlags;

use super::check;
use crate::config::{self, Config, Lists, Override};
use crate::error::Error;
use crate::log::{self, Level};
use crate::{master, stats, version};
use options::Options;

/// The name by which the program is nutcracker.
const NAME: &str = "nutcracker";
/// The first word of a daemon's command line, which the process that starts it puts there.
const DAEMON: &str = "--daemon-of-nutcracker";

/// Returns whether a command line is nutcracker's.
pub fn is_meant(arguments: &[OsString]) -> bool {
    let [_, words @ ..] = arguments else { return false };
    is_link(arguments) || is_daemon(words) || options::has_one_of_nutcracker(words)
}

fn is_link(arguments: &[OsString]) -> bool {
    let program = arguments.first().map(Path::new);
    program.and_then(Path::file_name) == Some(OsStr::new(NAME))
}

fn is_daemon(words: &[OsString]) -> bool {
    words.first().is_some_and(|word| word == DAEMON)
}

pub fn main(arguments: &[OsString]) -> ExitCode {
    let words = &arguments[1..];
    let is_daemon = is_daemon(words);
    let options = match Options::read(&words[usize::from(is_daemon)..]) {
        Ok(options) => options,
        Err(why) => {
            say(&format!("{NAME}: {why}\n{}\n", options::usage()));
            return ExitCode::FAILURE;
        }
    };
    if options.help || options.version || options.describe {
        let usage = if options.help { options::usage() } else { String::new() };
        let counters = if options.describe { stats::describe_twemproxy() } else { String::new() };
        let version = version::SHORT;
        say(&format!(
            "This is nutcracker-0.5.0\nasync event backend: epoll, in quickack {version}\n\n\
             {usage}{counters}\n"
        ));
        return ExitCode::SUCCESS;
    }
    let file = options.config.clone().unwrap_or_else(options::config_default);
    match (options.test, options.daemonize && !is_daemon) {
        (true, _) => test(&file),
        (false, true) => daemonize(&file, arguments),
        (false, false) => run(&file, &options, arguments),
    }
}

/// Prints to stderr. An error is ignored: who has closed it needs no more.
fn say(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Names are not looked up: one that does not resolve is no fault of the file's.
fn test(file: &Path) -> ExitCode {
    let outcome = config::read(file);
    let word = if outcome.config.is_some() { "ok" } else { "invalid" };
    say(&format!("{NAME}: configuration file '{}' syntax is {word}\n", file.display()));
    check::report(&outcome, &format!("{NAME}: "));
    match outcome.config {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    }
}

/// Starts the daemon, and waits until it has opened its listeners or has ended. Unlike
/// nutcracker's, the exit status says which.
fn daemonize(file: &Path, arguments: &[OsString]) -> ExitCode {
    // A file that is wrong is reported here, on a stderr that is read.
    if config::read(file).config.is_none() {
        return test(file);
    }
    let started = || -> io::Result<bool> {
        let said = File::from(rustix::fs::memfd_create("quickack-daemon", MemfdFlags::CLOEXEC)?);
        let mut command = Command::new(OWN_IMAGE);
        command.arg0(&arguments[0]).arg(DAEMON).args(&arguments[1..]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said.try_clone()?);
        let mut daemon = command.spawn()?;
        let mut ready = [0; 1];
        let mut stdout = daemon.stdout.take().expect("it was asked to be a pipe");
        let is_ready = stdout.read(&mut ready)? == 1;
        if !is_ready {
            daemon.wait()?;
        }
        let mut text = vec![0; said.metadata()?.len() as usize];
        said.read_exact_at(&mut text, 0)?;
        io::stderr().write_all(&text)?;
        Ok(is_ready)
    };
    match started() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => fail(&format!("cannot start the daemon: {error}")),
    }
}

/// The running image: a link's name is not needed to find it.
const OWN_IMAGE: &str = "/proc/self/exe";

fn run(file: &Path, options: &Options, arguments: &[OsString]) -> ExitCode {
    let is_daemon = is_daemon(&arguments[1..]);
    if is_daemon {
        // As nutcracker does: sockets without a mode of their own are for everybody.
        rustix::process::umask(rustix::fs::Mode::empty());
        if let Err(error) = rustix::process::setsid() {
            return fail(&format!("cannot leave the session: {error}"));
        }
    }
    let config = match configure(file, options, is_daemon) {
        Ok(Some(config)) => config,
        Ok(None) => return test(file),
        Err(error) => {
            say(&format!("{error}\n"));
            return ExitCode::FAILURE;
        }
    };
    let mut pid_file = None;
    let path = options.pid_file.clone();
    let path = path.or_else(|| is_daemon.then(|| PathBuf::from(options::PID_FILE)));
    let mut ready = || {
        show_command_line(arguments);
        pid_file = path.clone().and_then(PidFile::write);
        if is_daemon && let Err(error) = let_go() {
            log::line(Level::Warning, &format!("cannot let go of the terminal: {error}"));
        }
    };
    master::run(config, Some(master::reader::absolute(file)), &mut ready)
}

/// Init scripts and monitors look for nutcracker by its name and the words of its command line.
fn show_command_line(arguments: &[OsString]) {
    let words = arguments.iter().filter(|word| *word != DAEMON).cloned().collect::<Vec<_>>();
    let name = if is_link(arguments) { c"nutcracker" } else { c"quickack" };
    sys::process::show_command_line(name, &words);
}

fn fail(why: &str) -> ExitCode {
    say(&format!("{NAME}: {why}\n"));
    ExitCode::FAILURE
}

/// Tells the process that waits that all is well, and closes what it was given.
fn let_go() -> io::Result<()> {
    let mut stdout = io::stdout();
    // Who waited may have gone.
    let _ = stdout.write_all(b"\n").and_then(|()| stdout.flush());
    let null = OwnedFd::from(File::options().read(true).write(true).open("/dev/null")?);
    rustix::stdio::dup2_stdout(null.as_fd())?;
    Ok(rustix::stdio::dup2_stderr(null.as_fd())?)
}

/// Reads the file with what the options set over it. None if the file is wrong.
fn configure(file: &Path, options: &Options, is_daemon: bool) -> Result<Option<Config>, Error> {
    let Some(plain) = config::read(file).config else { return Ok(None) };
    let mut words = Vec::new();
    let is_written = |name: &str| plain.blocks[0].settings.iter().any(|set| set.name == name);
    if options.verbose.is_some() || !is_written("log_level") {
        let level = match options.verbose.unwrap_or(options::VERBOSE) {
            0..=3 => Level::Error,
            4 => Level::Warning,
            5 | 6 => Level::Notice,
            7.. => Level::Debug,
        };
        words.push(format!("log_level={}", level.name()));
    }
    if let Some(log) = log_target(options, is_written("log"), is_daemon)? {
        words.push(format!("log={}", log.display()));
    }
    if options.stats_addr.is_some() || options.stats_port.is_some() || !is_written("stats") {
        let address = options.stats_addr.clone();
        let address = address.unwrap_or_else(|| options::STATS_ADDR.to_string());
        let port = options.stats_port.unwrap_or(options::STATS_PORT);
        words.push(format!("stats={address}:{port}"));
    }
    let overrides: Result<Vec<Override>, Error> =
        words.iter().map(|word| Override::parse(word)).collect();
    Ok(config::read_with(file, &overrides?, &Lists::default()).config)
}

/// Returns the log's file; None for what the file says, or else stderr.
fn log_target(
    options: &Options,
    is_written: bool,
    is_daemon: bool,
) -> Result<Option<PathBuf>, Error> {
    let appended = |path: &Path| File::options().append(true).create(true).mode(0o644).open(path);
    if let Some(path) = &options.output {
        let path = master::reader::absolute(path);
        return match appended(&path) {
            Ok(_) => Ok(Some(path)),
            Err(error) => {
                // In nutcracker's words, without the number that Rust adds.
                let why = error.to_string();
                let why = why.split(" (os error").next().unwrap_or_default();
                Err(Error::Os(format!("opening log file '{}' failed: {why}", path.display())))
            }
        };
    }
    // An image that was built from source has no such folder, and logs to stderr.
    let default = PathBuf::from(options::LOG);
    match is_written {
        true => Ok(None),
        false if appended(&default).is_ok() => Ok(Some(default)),
        false => Ok(is_daemon.then(|| PathBuf::from("/dev/null"))),
    }
}

/// The file with this process's number. It is removed with this, unless it is another's by then.
struct PidFile {
    path: PathBuf,
    text: String,
}

impl PidFile {
    /// Without the file the proxy runs all the same.
    fn write(path: PathBuf) -> Option<PidFile> {
        let text = std::process::id().to_string();
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o644);
        match options.open(&path).and_then(|mut file| file.write_all(text.as_bytes())) {
            Ok(()) => Some(PidFile { path, text }),
            Err(error) => {
                let path = path.display();
                let text = format!("opening pid file '{path}' failed: {error}; running without it");
                log::line(Level::Warning, &text);
                None
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
