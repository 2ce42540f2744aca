//! The copy in which files are changed, so that work in the original never meets a mutant.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::folder;
use crate::tidy::files;
use crate::{Outcome, root};

/// Copies the files that git lists. A file that has not changed is not written, so that cargo need
/// not build it again.
pub fn copy() -> Result<PathBuf, String> {
    let tree = folder().join("tree");
    let files: BTreeSet<PathBuf> = files(&root())?
        .into_iter()
        .map(PathBuf::from)
        .filter(|file| root().join(file).is_file())
        .collect();
    remove_others(&tree, Path::new(""), &files)?;
    for file in &files {
        write(&root().join(file), &tree.join(file))
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    for folder in PEERS.iter().filter(|folder| root().join(folder).is_dir()) {
        let link = tree.join(folder);
        std::os::unix::fs::symlink(root().join(folder), &link)
            .map_err(|error| format!("{}: {error}", link.display()))?;
    }
    Ok(tree)
}

/// Folders of installed peers, which git ignores: without them tests fail whatever was changed.
/// They are links in the copy, which `remove_others` removes before each run.
const PEERS: &[&str] = &[".venv", ".java", "testkit/peers/node/node_modules"];

/// Removes files from the copy that are no longer in the project.
fn remove_others(tree: &Path, below: &Path, files: &BTreeSet<PathBuf>) -> Outcome {
    let Ok(entries) = fs::read_dir(tree.join(below)) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = below.join(entry.file_name());
        if path == Path::new("target") {
            continue;
        }
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder {
            remove_others(tree, &path, files)?;
        } else if !files.contains(&path) {
            fs::remove_file(entry.path())
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn write(from: &Path, to: &Path) -> std::io::Result<()> {
    let wanted = fs::read(from)?;
    if fs::read(to).is_ok_and(|there| there == wanted) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    // With its permissions, because some files are programs.
    fs::copy(from, to).map(|_| ())
}
