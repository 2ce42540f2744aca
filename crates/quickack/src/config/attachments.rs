//! Files that a configuration names and that travel with it. Their contents are read once, together
//! with the configuration, and passed on with its text. A process that compiles it again opens no
//! file.
//!
//! They hold passwords, so a file that other users may read is refused, and nothing here shows
//! contents. The lists of servers that come from elsewhere travel in the same way.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::list::Lists;
use crate::error::Error;

/// What travels with a configuration.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachments {
    /// Contents of files, by the names in the configuration.
    files: BTreeMap<String, String>,
    /// Lists of servers, checked.
    pub lists: Lists,
}

/// The source of the files that a configuration names.
#[derive(Clone, Copy)]
pub enum Source<'s> {
    /// On disk. A relative path begins in this folder, which is the configuration's. Lists of
    /// servers are not read from there.
    Folder(&'s Path, &'s Lists),
    /// Passed with the configuration.
    Attached(&'s Attachments),
    /// The configuration is a text of our own and must not name any files.
    Nowhere,
}

impl Attachments {
    /// The same files, with other lists.
    pub fn with(&self, lists: Lists) -> Attachments {
        Attachments { files: self.files.clone(), lists }
    }

    pub fn insert(&mut self, name: &str, contents: String) {
        self.files.insert(name.to_string(), contents);
    }
}

impl Source<'_> {
    /// Returns the contents of a file, or the reason why there are none. Sets `doubt` to a warning
    /// if the file is accepted despite an uncertainty.
    pub fn read(&self, name: &str, doubt: &mut Option<String>) -> Result<String, Error> {
        match self {
            Source::Folder(folder, _) => read_private(&folder.join(name), doubt),
            Source::Attached(Attachments { files, .. }) => files
                .get(name)
                .cloned()
                .ok_or_else(|| Error::Bug("it was not passed to this process".into())),
            Source::Nowhere => Err(Error::Config("no file can be named here".into())),
        }
    }

    /// Returns the lists of servers that are known.
    pub fn lists(&self) -> Option<&Lists> {
        match self {
            Source::Folder(_, lists) => Some(lists),
            Source::Attached(attachments) => Some(&attachments.lists),
            Source::Nowhere => None,
        }
    }
}

/// Reads a file that only its owner may read or change.
fn read_private(path: &Path, doubt: &mut Option<String>) -> Result<String, Error> {
    let mut options = OpenOptions::new();
    // Opening a pipe without a writer would block.
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Error::Config("it is not a file".into()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & OF_OTHERS != 0 {
        return Err(Error::Config(format!(
            "its mode {mode:04o} lets other users read or change it; run `chmod 600`"
        )));
    }
    *doubt = stranger(&metadata);
    read_text(file)
}

/// Returns a warning if a file belongs neither to our user nor to root.
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

/// Returns a warning if users other than its owner may change a file.
pub fn writers(metadata: &Metadata) -> Option<String> {
    let mode = metadata.mode() & 0o7777;
    let told =
        || format!("the mode {mode:04o} of this file lets other users change it; run `chmod go-w`");
    (mode & WRITTEN_BY_OTHERS != 0).then(told)
}

fn read_text(file: File) -> Result<String, Error> {
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(Error::Config("it is longer than 4 MiB".into()));
    }
    String::from_utf8(bytes).map_err(|_| Error::Config("it is not UTF-8 text".into()))
}

/// Shows only the files' names, because the output may appear in error messages.
impl fmt::Debug for Attachments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.files.keys()).finish()
    }
}

/// Read and write permission for group and others.
const OF_OTHERS: u32 = 0o066;
const WRITTEN_BY_OTHERS: u32 = 0o022;
const FILE_LEN_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_private_file_is_one_that_only_its_owner_may_read_or_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        fs::write(&path, "anna:secret\n").unwrap();
        let lists = Lists::default();
        let source = Source::Folder(folder.path(), &lists);
        let read = || source.read("users", &mut None);
        for (mode, is_private) in [
            (0o600, true),
            (0o711, true),
            (0o640, false),
            (0o620, false),
            (0o604, false),
            (0o602, false),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read().is_ok_and(|text| text == "anna:secret\n"), is_private, "{mode:04o}");
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!(writers(&metadata).is_some(), mode & 0o022 != 0, "{mode:04o}");
            assert_eq!(stranger(&metadata), None, "it is ours");
        }
        assert!(source.read(".", &mut None).is_err(), "a folder");
        assert!(Source::Nowhere.read("users", &mut None).is_err());
    }

    #[test]
    fn a_file_may_have_4_mib_of_text() {
        let folder = tempfile::tempdir().unwrap();
        let text = |bytes: &[u8]| {
            let path = folder.path().join("text");
            fs::write(&path, bytes).unwrap();
            read_text(File::open(path).unwrap()).map_err(|why| why.to_string())
        };
        let mut bytes = vec![b'x'; 4 << 20];
        assert!(text(&bytes).is_ok_and(|text| text.len() == 4 << 20));
        bytes.push(b'x');
        assert_eq!(text(&bytes), Err("it is longer than 4 MiB".to_string()));
        assert_eq!(text(b"\xff"), Err("it is not UTF-8 text".to_string()));
    }
}
