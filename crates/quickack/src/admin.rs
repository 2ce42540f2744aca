//! The admin socket, as both ends know it: where it is, what may be asked, and asking.
//!
//! One line in, text or JSON out, then the end. An answer that begins with `error: ` is one. Only
//! the socket's owner may connect.

use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::Admin;

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
               to other servers need `--allow-remap`.",
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

/// Where the socket is. `file` is the configuration's.
pub fn path(admin: &Admin, file: Option<&Path>) -> Option<PathBuf> {
    match admin {
        Admin::Off => None,
        Admin::At(path) => Some(path.clone()),
        Admin::Default => Some(folder().join(name(file))),
    }
}

/// Makes the folder of the default path; nobody else may put a socket there.
pub fn make_folder() -> io::Result<()> {
    let folder = folder();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let metadata = std::fs::symlink_metadata(&folder)?;
    let ours = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != ours || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!(
            "{} is not a folder of ours alone; say `admin: /path/of/socket` in the file",
            folder.display()
        )));
    }
    Ok(())
}

/// A link at the default path to where the socket really is: a file that cannot be read any more
/// does not say so itself. Without one, `--admin` is needed then.
pub fn put_up_signpost(file: &Path, socket: &Path) -> Option<PathBuf> {
    make_folder().ok()?;
    take_down_old_signposts();
    let signpost = folder().join(name(Some(file)));
    if signpost.is_symlink() {
        // Of a proxy of the same file that has gone, or that we replace.
        std::fs::remove_file(&signpost).ok()?;
    }
    std::os::unix::fs::symlink(socket, &signpost).ok()?;
    Some(signpost)
}

/// Links to sockets that are no more: of proxies that were killed.
fn take_down_old_signposts() {
    for entry in std::fs::read_dir(folder()).into_iter().flatten().flatten() {
        if entry.path().is_symlink() && !entry.path().exists() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn folder() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return PathBuf::from("/run/quickack");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(runtime) => runtime.join("quickack"),
        None => std::env::temp_dir().join(format!("quickack-{}", user.as_raw())),
    }
}

/// The file's name, for people, and a hash of its whole path: files of one name are told apart.
fn name(file: Option<&Path>) -> String {
    let Some(file) = file else { return "quickack.sock".to_string() };
    // Through links, as long as it is there.
    let file = file.canonicalize().or_else(|_| std::path::absolute(file));
    let file = file.unwrap_or_default();
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let stem: String = stem.chars().take(STEM_LEN_MAX).collect();
    let hash = shard::Hash::Fnv64a.hash(file.as_os_str().as_encoded_bytes());
    format!("{stem}-{hash:08x}.sock")
}

/// The only proxy that runs for this user, if nothing says which is meant.
pub fn only() -> Result<PathBuf, String> {
    make_folder().map_err(|error| error.to_string())?;
    let entries = std::fs::read_dir(folder()).into_iter().flatten().flatten();
    let sockets =
        entries.map(|entry| entry.path()).filter(|path| UnixStream::connect(path).is_ok());
    let sockets: Vec<PathBuf> = sockets.collect();
    match &sockets[..] {
        [one] => Ok(one.clone()),
        [] => Err("no running proxy is found; name its configuration: -c FILE".to_string()),
        many => {
            let names: Vec<String> = many.iter().map(|path| path.display().to_string()).collect();
            Err(format!(
                "several proxies run; say -c FILE or --admin PATH:\n  {}",
                names.join("\n  ")
            ))
        }
    }
}

/// Asks one line. The error is what is to be shown.
pub fn ask(socket: &Path, line: &str) -> Result<String, String> {
    let answer = || -> io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(line.as_bytes())?;
        stream.write_all(b"\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = answer().map_err(|error| {
        format!("no answer from {}: {error}; does the proxy run?", socket.display())
    })?;
    match text.strip_prefix(ERROR) {
        Some(why) => Err(why.trim_end().to_string()),
        None => Ok(text),
    }
}

/// How the answer to a question that failed begins.
pub const ERROR: &str = "error: ";
/// How long an answer may take: a reload looks up hosts and asks all workers twice.
const PATIENCE: Duration = Duration::from_secs(30);
/// A socket's path is short.
const STEM_LEN_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_name_have_sockets_of_their_own() {
        let one = name(Some(Path::new("/etc/one/quickack.yml")));
        let other = name(Some(Path::new("/etc/other/quickack.yml")));
        assert!(one.starts_with("quickack-") && one.ends_with(".sock") && one != other);
        assert!(name(Some(Path::new(&"x".repeat(300)))).len() < 50);
    }
}
