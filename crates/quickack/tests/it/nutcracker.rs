//! quickack under the name of nutcracker, beside the real one: the same command lines, and what
//! comes of each.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::process::{Memcached, Quickack};

use super::QUICKACK;
use super::verbs::compare;

/// `testdata/nutcracker/invocations.txt` has the table.
#[test]
fn command_lines_have_the_effects_that_the_table_says_beside_nutcracker() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nutcracker");
    let golden = folder.join("invocations.txt");
    let table = fs::read_to_string(&golden).unwrap();
    let (head, rows) = table.split_once("\n$ ").expect("rows");
    let rows: Vec<(&str, Option<&str>)> = rows.split("\n$ ").map(row).collect();
    assert!(rows.len() >= 60, "{} rows", rows.len());
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("nutcracker");
    std::os::unix::fs::symlink(QUICKACK, &link).unwrap();
    let mut text = format!("{head}\n");
    for (line, why) in rows {
        let [theirs, ours] = [Path::new("/usr/sbin/nutcracker"), &link]
            .map(|program| play(program, line, &folder.join("sandbox.sh")));
        if !theirs.keys.is_empty() && !ours.keys.is_empty() {
            assert_eq!(ours.keys, theirs.keys, "{line}");
        }
        let [theirs, ours] = [theirs.sentence, ours.sentence];
        text += &format!("$ {line}\n");
        match theirs == ours {
            true => text += &format!("both: {ours}\n"),
            false => {
                let why = why.unwrap_or("?");
                text += &format!("nutcracker: {theirs}\nquickack: {ours}\nwhy: {why}\n");
                assert!(why != "?" || updating(), "{line}: {theirs}\nbut {ours}");
            }
        }
        text += "\n";
    }
    compare(&golden, &format!("{}\n", text.trim_end()));
}

fn updating() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

/// A command line, and the reason for a difference.
fn row(text: &str) -> (&str, Option<&str>) {
    let mut lines = text.lines();
    (lines.next().unwrap_or_default(), lines.find_map(|line| line.strip_prefix("why: ")))
}

/// What came of a command line.
struct Outcome {
    sentence: String,
    /// The names in the statistics.
    keys: String,
}

/// Runs one command line.
fn play(program: &Path, line: &str, sandbox: &Path) -> Outcome {
    let work = tempfile::tempdir().unwrap();
    let pool = "alpha:\n  listen: 127.0.0.1:22121\n  servers:\n   - 127.0.0.1:11211:1\n   - \
                127.0.0.1:11212:1 two\n";
    let files = [
        ("ok.yml", pool.to_string()),
        ("bad.yml", pool.replace("servers", "hsh: x\n  servers")),
        ("name.yml", pool.replace("127.0.0.1:11211", "no.such.host.invalid:11211")),
        ("two.yml", format!("{pool}{}", pool.replace("alpha", "beta").replace("22121", "/tmp/b"))),
    ];
    for (name, text) in files {
        let text = text.replace("127.0.0.1:/tmp/b", &work.path().join("b").display().to_string());
        fs::write(work.path().join(name), text).unwrap();
    }
    for folder in ["folder", "taken.pid"] {
        fs::create_dir(work.path().join(folder)).unwrap();
    }
    let bare = line.strip_prefix("bare: ");
    let words = bare.unwrap_or(line).split(' ');
    let port = if line.contains("22223") { "22223" } else { "22222" };
    let output = Command::new("unshare")
        .args(["-mnpf", "--mount-proc", "bash"])
        .arg(sandbox)
        .arg(program)
        .args(words)
        .env("WORK", work.path())
        .env("PORT", port)
        .env("BARE", if bare.is_some() { "yes" } else { "" })
        .env_remove("RUNTIME_DIRECTORY")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    outcome(&said, work.path())
}

/// Makes one line of the facts that the sandbox has printed.
fn outcome(facts: &str, work: &Path) -> Outcome {
    let folder = format!("{}/", work.display());
    let (mut parts, mut names) = (Vec::new(), String::new());
    for line in facts.lines() {
        match line.strip_prefix("runs ") {
            Some(json) => {
                names = keys(&serde_json::from_str(json).unwrap());
                parts.push("runs".to_string());
            }
            None => parts.push(line.replace(&folder, "")),
        }
    }
    Outcome { sentence: parts.join("; "), keys: names }
}

/// The names in an object, with those within.
fn keys(value: &Value) -> String {
    let names = value.as_object().into_iter().flatten().map(|(name, value)| match value {
        Value::Object(_) => format!("{name} ({})", keys(value)),
        _ => name.clone(),
    });
    names.collect::<Vec<String>>().join(" ")
}

/// Debian's init script, signals, and what finds nutcracker by its name: as with nutcracker itself.
#[test]
fn init_scripts_operate_it_as_they_operate_nutcracker_as_root() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nutcracker/init.sh");
    let [theirs, ours] = ["/usr/sbin/nutcracker", QUICKACK].map(|program| {
        let mut command = Command::new("unshare");
        command.args(["-mnpf", "--mount-proc", "bash"]).arg(&script).arg(program);
        let output = command.env_remove("RUNTIME_DIRECTORY").output().unwrap();
        let [said, errors] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{program}: {said}{errors}");
        // How many restarts it took, which may differ.
        eprint!("{program}: {errors}");
        said.into_owned()
    });
    assert_eq!(ours, theirs);
    assert!(ours.contains("runs as nutcracker, called nutcracker\n"), "{ours}");
    assert!(ours.contains("found by its name: 1\n"), "{ours}");
}

/// Counters of several workers are one number, as if one nutcracker had served.
#[test]
fn statistics_of_the_drop_in_are_summed_over_its_workers() {
    let memcached = Memcached::start();
    let text = format!(
        "global:\n  workers: 3\n  stats: 127.0.0.1:0\n{}",
        super::config(&[memcached.address], &[])
    );
    let mut command = Command::new(QUICKACK);
    // The words that follow are no options of nutcracker's, but for the file.
    command.args(["-v", "6", "-i", "1", "-o", "/dev/stderr"]);
    let mut quickack = Quickack::start_by(command, QUICKACK, &text);
    let port = quickack.process.wait_for("its statistics", |said| {
        let line = said.lines().find_map(|line| line.split_once("statistics on "))?;
        Some(line.1.to_string())
    });
    let mut clients: Vec<_> = (0..12).map(|_| quickack.client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.ask(&format!("set key{at} 0 0 1\r\n1\r\n"), "STORED\r\n");
    }
    let stats = || -> Value {
        let mut text = String::new();
        let mut stream = std::net::TcpStream::connect(&port).unwrap();
        std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    testkit::process::wait_until("all clients and their requests are counted", || {
        let (stats, server) = (stats(), memcached.address.to_string());
        let alpha = &stats["alpha"];
        alpha["client_connections"] == 12 && alpha[&server]["requests"] == 12
    });
    // What the options say outlasts a reload.
    quickack.admin_ok(&["reload"]);
    let diff = quickack.admin_ok(&["config", "--diff"]);
    assert!(diff.contains("log: stderr -> /dev/stderr\n"), "{diff}");
}
