//! Names and passwords: the files that hold them, clients that have to log in, and servers that ask
//! us to.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A folder with a file in it that nobody else may read.
fn private(name: &str, contents: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), name, contents, 0o600);
    folder
}

fn write(folder: &Path, name: &str, contents: &str, mode: u32) {
    let file = folder.join(name);
    fs::write(&file, contents).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
}

/// `quickack check` on a pool with these directives, in a folder with the files of `private`.
fn check(folder: &Path, directives: &[&str]) -> String {
    let servers = ["127.0.0.1:11211".parse().unwrap()];
    let text = format!("global: {{workers: 1}}\n{}", super::config(&servers, directives));
    fs::write(folder.join("quickack.yml"), text).unwrap();
    let mut command = Command::new(super::QUICKACK);
    let output = command.args(["check", "quickack.yml"]).current_dir(folder).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn check_says_how_many_users_there_are_and_what_is_wrong_with_their_file() {
    let folder = private("users", "anna:old-secret\nanna:new-secret\nbob:secret\n");
    let folder = folder.path();
    write(folder, "open", "anna:secret\n", 0o640);
    write(folder, "open to all", "anna:secret\n", 0o602);
    write(folder, "wrong", "# secret\nsecret\nanna:\n:secret\nanna:secret\n", 0o600);
    write(folder, "empty", "\n# secret\n", 0o600);
    fs::write(folder.join("latin1"), b"anna:secr\xe9t\n").unwrap();
    fs::set_permissions(folder.join("latin1"), fs::Permissions::from_mode(0o400)).unwrap();
    fs::create_dir(folder.join("folder")).unwrap();
    let mut all = String::new();
    let files = ["users", "open", "open to all", "wrong", "empty", "latin1", "folder", "none"];
    for file in files {
        all += &check(folder, &[&format!("users: {file}")]);
    }
    super::verbs::compare(&super::verbs::folder().join("golden/logins.txt"), &all);
    assert!(!all.contains("secret"), "{all}");
}
