//! Files that a configuration names and that travel with it: their contents are read where the
//! configuration is, once, and passed on with its text. Whoever compiles it again opens nothing.
//!
//! They hold passwords, so a file that others may read is refused, and nothing here shows contents.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// Contents, by the words that name the files in the configuration.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments(BTreeMap<String, String>);

/// Where the files are that a configuration names.
#[derive(Clone, Copy)]
pub enum Source<'s> {
    /// On disk; a relative path begins in this folder, which is the configuration's.
    Folder(&'s Path),
    /// They came with it.
    Attached(&'s Attachments),
    /// It must not name any: it is a text of our own.
    Nowhere,
}

impl Attachments {
    pub fn insert(&mut self, name: &str, contents: String) {
        self.0.insert(name.to_string(), contents);
    }
}

impl Source<'_> {
    /// The contents of a file, or why there are none. `doubt` is told why they are read all the
    /// same.
    pub fn read(&self, name: &str, doubt: &mut Option<String>) -> Result<String, String> {
        match self {
            Source::Folder(folder) => read_private(&folder.join(name), doubt),
            Source::Attached(Attachments(all)) => all
                .get(name)
                .cloned()
                .ok_or_else(|| "it was not passed to this process".to_string()),
            Source::Nowhere => Err("no file can be named here".to_string()),
        }
    }
}

/// Reads a file that nobody but its owner may read or change.
fn read_private(path: &Path, doubt: &mut Option<String>) -> Result<String, String> {
    let mut options = OpenOptions::new();
    // A pipe without a writer would keep us waiting.
    let opened = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let file = opened.map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".to_string());
    }
    let mode = metadata.mode() & 0o7777;
    if mode & OF_OTHERS != 0 {
        return Err(format!(
            "its mode {mode:04o} lets other users read or change it; run `chmod 600`"
        ));
    }
    *doubt = stranger(&metadata);
    read_text(file)
}

/// A file may belong to us or to root; to whom else it belongs.
pub fn stranger(metadata: &Metadata) -> Option<String> {
    let owner = metadata.uid();
    let is_known = owner == 0 || owner == rustix::process::geteuid().as_raw();
    let told = || {
        format!(
            "this file belongs to user {owner}, who may change it and is neither root nor the \
             proxy's user"
        )
    };
    (!is_known).then(told)
}

/// Who may change a file beside its owner.
pub fn writers(metadata: &Metadata) -> Option<String> {
    let mode = metadata.mode() & 0o7777;
    let told =
        || format!("the mode {mode:04o} of this file lets other users change it; run `chmod go-w`");
    (mode & WRITTEN_BY_OTHERS != 0).then(told)
}

fn read_text(file: File) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err("it is longer than 4 MiB".to_string());
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_string())
}

/// Only what the files are called: this may be shown where something fails.
impl fmt::Debug for Attachments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Reading and writing, for the group and everybody.
const OF_OTHERS: u32 = 0o066;
const WRITTEN_BY_OTHERS: u32 = 0o022;
const FILE_LEN_MAX: u64 = 4 << 20;
