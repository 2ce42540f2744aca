//! `quickack check` and `quickack route` as a person uses them, on the files of `testdata/config`:
//! `twemproxy/` has files that nutcracker accepts too, `native/` files that only quickack accepts,
//! `bad/` invalid ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Every file's report in both forms; `UPDATE_GOLDEN=1 cargo test` writes them anew.
#[test]
fn every_file_is_reported_as_its_golden_says() {
    for file in files(&["twemproxy", "native", "bad"]) {
        let golden = folder().join("golden").join(file.replace('/', "-")).with_extension("txt");
        let mut text = String::new();
        for format in ["text", "json"] {
            text += &transcript(&["check", &file, "--format", format]);
        }
        compare(&golden, &text);
    }
}

#[test]
fn a_file_is_valid_unless_it_is_in_bad() {
    for file in files(&["twemproxy", "native"]) {
        let output = quickack(&["check", &file]);
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for file in files(&["bad"]) {
        assert_eq!(quickack(&["check", &file]).status.code(), Some(1), "{file}");
    }
}

#[test]
fn every_example_is_valid() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/examples");
    let mut count = 0;
    for example in fs::read_dir(&examples).unwrap().map(Result::unwrap) {
        let output = quickack(&["check", example.path().to_str().unwrap()]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.is_empty(), "{told}");
        count += 1;
    }
    assert!(count > 0, "nothing in {}", examples.display());
}

/// A change to a file of `twemproxy/` must not make it one that only quickack accepts.
#[test]
fn nutcracker_accepts_every_file_of_twemproxys() {
    for file in files(&["twemproxy"]) {
        let output = Command::new("nutcracker")
            .args(["-t", "-c", &file])
            .env("PATH", "/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
            .current_dir(folder())
            .output()
            .expect("nutcracker: `cargo xtask test` installs the peers");
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn route_prints_the_server_of_each_key() {
    let mut text = String::new();
    let file = "twemproxy/five_pools.yml";
    text += &transcript(&["route", "-c", file, "foo", "bar", "{foo}1", "{foo}2"]);
    text += &transcript(&["route", "-c", file, "--pool", "beta", "foo", "{foo}1", "a\u{e9}"]);
    text += &transcript(&["route", "-c", file, "--pool", "beta", "foo", "no key"]);
    text += &transcript(&["route", "-c", file, "--pool", "bta", "foo"]);
    text += &transcript(&["route", "-c", "twemproxy/hashes.yml", "--pool", "any", "foo"]);
    text += &transcript(&["route", "-c", "native/embedded.yml", "foo"]);
    text += &transcript(&["route", "-c", "bad/list.yml", "foo"]);
    compare(&folder().join("golden/route.txt"), &text);
}

#[test]
fn a_bad_file_is_told_about_before_anything_starts() {
    let output = quickack(&["run", "-c", "bad/typos.yml"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("did you mean `listen`?"), "{stderr}");
    assert!(stderr.contains("bad/typos.yml: invalid, "), "{stderr}");
}

#[test]
fn a_file_that_is_not_there_is_an_error_in_both_forms() {
    let text = quickack(&["check", "no/such.yml"]);
    assert_eq!(text.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&text.stderr).contains("cannot read the file"));
    let json = quickack(&["check", "no/such.yml", "--format", "json"]);
    assert_eq!(json.status.code(), Some(1));
    let records: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(records[0]["severity"], "error");
    assert_eq!(records[0]["line"], serde_json::Value::Null);
}

/// Files as other people write them: `wild/` has forms of forks, of templates and of mistakes. Each
/// says in its comments what its author would expect of the report.
#[test]
fn files_of_others_are_answered_as_their_authors_expect() {
    let files = files(&["wild"]);
    assert!(files.len() >= 40);
    let mut all = String::new();
    for file in files {
        let text = fs::read_to_string(folder().join(&file)).unwrap();
        let expected = text.lines().filter_map(|line| line.strip_prefix("# expect: "));
        let expected: Vec<&str> = expected.map(str::trim).collect();
        let output = quickack(&["check", &file]);
        let told = String::from_utf8_lossy(&output.stderr);
        for expected in &expected {
            let (severity, words) = expected.split_once(": ").unwrap_or((expected, ""));
            let (code, begins) = match severity {
                "valid" => (0, told.is_empty()),
                "warning" => (0, told.starts_with("warning: ")),
                _ => (1, told.starts_with("error: ")),
            };
            assert_eq!(output.status.code(), Some(code), "{file}: {told}");
            assert!(begins && told.contains(words), "{file}: {expected}, but:\n{told}");
        }
        assert!(!expected.is_empty(), "{file} says nothing");
        all += &transcript(&["check", &file]);
    }
    compare(&folder().join("golden/wild.txt"), &all);
}

/// A warning is an error only where that is asked for.
#[test]
fn strict_checks_have_the_status_2_after_a_warning() {
    for (file, code) in [("native/redis.yml", 0), ("native/warnings.yml", 2), ("bad/typos.yml", 1)]
    {
        for format in ["text", "json"] {
            let output = quickack(&["check", "--strict", file, "--format", format]);
            assert_eq!(output.status.code(), Some(code), "{file}");
        }
    }
    assert_eq!(quickack(&["check", "native/warnings.yml"]).status.code(), Some(0));
}

#[test]
fn migrate_config_prints_a_file_that_is_valid_and_moves_no_key() {
    let mut count = 0;
    for file in files(&["wild", "twemproxy"]) {
        let output = quickack(&["migrate-config", &file]);
        if !quickack(&["check", &file]).status.success() {
            assert_eq!(output.status.code(), Some(1), "{file}");
            continue;
        }
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("  servers:"), "{file}: {text}");
        assert!(!text.contains("auto_eject_hosts") && !text.contains("redis: "), "{file}: {text}");
        let native = tempfile::NamedTempFile::new().unwrap();
        fs::write(&native, &*text).unwrap();
        let diff = quickack(&["ring-diff", &file, native.path().to_str().unwrap()]);
        let told = String::from_utf8_lossy(&diff.stdout);
        assert_eq!(diff.status.code(), Some(0), "{file}: {told}");
        assert!(told.lines().all(|line| line.contains(" 0.00 % of the keys")), "{file}: {told}");
        count += 1;
    }
    assert!(count > 30, "{count} files");
    let upstream = quickack(&["migrate-config", "wild/upstream_example.yml"]).stdout;
    let text = String::from_utf8_lossy(&upstream);
    assert!(text.contains("  protocol: redis\n") && text.contains("  timeout: 400ms\n"), "{text}");
}

#[test]
fn ring_diff_says_which_share_of_keys_would_move() {
    let text = fs::read_to_string(folder().join("twemproxy/five_pools.yml")).unwrap();
    let other = tempfile::NamedTempFile::new().unwrap();
    let path = other.path().to_str().unwrap();
    let diff = |text: &str| {
        fs::write(&other, text).unwrap();
        transcript(&["ring-diff", "twemproxy/five_pools.yml", path]).replace(path, "OTHER")
    };
    let mut all = diff(&text);
    all += &diff(&text.replace("hash: fnv1a_64", "hash: md5"));
    all += &diff(&text.replace("alpha:", "first:"));
    all += &diff(&format!("{text}more:\n  listen: 127.0.0.1:1\n  servers: [127.0.0.1:2:1]\n"));
    all += &diff("more:\n  listen: 127.0.0.1:1\n");
    compare(&folder().join("golden/ring_diff.txt"), &all);
}

/// Errors and warnings go to stderr; requested output goes to stdout.
#[test]
fn check_tells_what_is_wrong_on_stderr_and_json_on_stdout() {
    let both = |arguments: &[&str]| {
        let output = quickack(arguments);
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let [stdout, stderr] = both(&["check", "bad/typos.yml"]);
    assert!(stdout.is_empty() && stderr.contains("bad/typos.yml: invalid"), "{stdout}{stderr}");
    let [stdout, stderr] = both(&["check", "native/warnings.yml"]);
    assert!(stderr.contains("warning: ") && !stdout.contains("warning: "), "{stdout}{stderr}");
    assert!(stdout.contains("native/warnings.yml: valid"), "{stdout}");
    let [stdout, stderr] = both(&["check", "bad/typos.yml", "--format", "json"]);
    assert!(stdout.starts_with('[') && stderr.is_empty(), "{stdout}{stderr}");
}

/// Only the servers know whether they have meta commands, so `check` does not warn about it.
#[test]
fn check_does_not_warn_of_what_servers_might_lack() {
    for file in files(&["twemproxy", "native"]) {
        let output = quickack(&["check", &file]);
        let said = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&said).contains("meta commands"), "{file}");
    }
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/config")
}

/// Returns the files of some folders, with paths relative to `folder()`.
fn files(folders: &[&str]) -> Vec<String> {
    let mut files = Vec::new();
    for name in folders {
        for entry in fs::read_dir(folder().join(name)).expect("the folder is there") {
            let entry = entry.expect("its entries can be read");
            // A checkout may have group-writable files, which would cause warnings.
            let mode = fs::Permissions::from_mode(0o644);
            fs::set_permissions(entry.path(), mode).expect("it is ours");
            let file = entry.file_name();
            files.push(format!("{name}/{}", file.display()));
        }
    }
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Names mean something else on each machine, so that they are not looked up.
fn quickack(arguments: &[&str]) -> Output {
    let no_names = (arguments[0] == "check").then_some("--no-resolve");
    Command::new(crate::QUICKACK)
        .args(arguments)
        .args(no_names)
        .current_dir(folder())
        .output()
        .expect("the program was built for this test")
}

/// Returns the output on a terminal, and the exit status.
fn transcript(arguments: &[&str]) -> String {
    let output = quickack(arguments);
    let [stderr, stdout] =
        [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes));
    let code = output.status.code().expect("no signal ends it");
    let arguments = arguments.join(" ").escape_debug().to_string();
    let stdout: String = stdout.split_inclusive('\n').map(anywhere).collect();
    format!("$ quickack {arguments}\n{stderr}{stdout}exit {code}\n\n")
}

/// Removes the numbers from a line that depends on this machine; such a line ends with `here`.
fn anywhere(line: &str) -> String {
    if !line.ends_with(" here\n") {
        return line.to_string();
    }
    let number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    let words = line.split(' ').map(|word| if number(word) { "N" } else { word });
    words.collect::<Vec<&str>>().join(" ")
}

pub fn compare(golden: &Path, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(golden, text).expect("a test may write its golden files");
    }
    let written = fs::read_to_string(golden).unwrap_or_default();
    let name = golden.display();
    assert!(written == text, "{name} says otherwise; UPDATE_GOLDEN=1 writes it anew:\n{text}");
}
