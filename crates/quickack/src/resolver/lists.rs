//! Takes lists of servers from where they are. Each is checked here, so that a wrong one goes no
//! further.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

use super::{cluster, dns};
use crate::config::{ListSource, list};

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundList {
    /// The list in its plainest form, or why there is none.
    pub text: Result<String, String>,
    /// Of a cluster: the number of its list, which grows.
    pub version: Option<u64>,
    /// How long it holds, if that is known.
    pub holds: Option<Duration>,
}

impl FoundList {
    pub fn none(why: String) -> FoundList {
        FoundList { text: Err(why), version: None, holds: None }
    }
}

/// Takes a list, and waits for as long as it takes. `folder`: where a relative path begins.
pub fn take(source: &ListSource, folder: &Path) -> FoundList {
    let checked = |text: String| list::plain(&text);
    match source {
        ListSource::File(path) => {
            let text = read(&folder.join(path)).and_then(checked);
            FoundList { text, version: None, holds: None }
        }
        ListSource::Srv(name) => match dns::servers(name) {
            Ok((text, holds)) => {
                FoundList { text: checked(text), version: None, holds: Some(holds) }
            }
            Err(why) => FoundList::none(why),
        },
        ListSource::Elasticache { host, port } => match cluster::ask(host, *port) {
            Ok((text, version)) => {
                FoundList { text: checked(text), version: Some(version), holds: None }
            }
            Err(why) => FoundList::none(why),
        },
    }
}

fn read(path: &Path) -> Result<String, String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut options = OpenOptions::new();
        // Opening a pipe without a writer would block.
        let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("it is not a file"));
        }
        let mut bytes = Vec::new();
        file.take(list::TEXT_LEN_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| super::plain_words(&error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_from_the_folder_of_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let take = |name: &str| take(&ListSource::File(name.to_string()), folder.path()).text;
        let write = |bytes: &[u8]| std::fs::write(folder.path().join("list"), bytes).unwrap();
        write(b"b:1:1\na:1:1\n");
        assert_eq!(take("list").as_deref(), Ok("a:1:1\nb:1:1\n"));
        assert_eq!(take(folder.path().join("list").to_str().unwrap()), take("list"));
        for (bytes, told) in
            [(&b""[..], "no servers"), (b"\xff\xfe", "UTF-8"), (b"a:1:1\nb:1", "line 2")]
        {
            write(bytes);
            assert!(take("list").unwrap_err().contains(told), "{told}");
        }
        assert!(take("none").unwrap_err().contains("No such file"));
        assert!(take(".").unwrap_err().contains("not a file"));
    }
}
