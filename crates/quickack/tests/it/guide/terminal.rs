//! A shell that does what a page says, in a folder, a network and a tree of processes of its own.
//!
//! Every address and port of a page is free there, and nothing outlives the shell.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::super::QUICKACK;
use super::page::{Act, Step};

/// Words of pages, and what stands for them in a test.
const SUBSTITUTES: &[(&str, &str)] = &[
    // The proxy that cargo builds and runs is the program under test.
    ("cargo run --release ", "quickack run "),
    // Folders of the system are folders of the test's.
    ("/etc/", "$ROOT/etc/"),
    ("/usr/", "$ROOT/usr/"),
    ("/var/", "$ROOT/var/"),
    // It fills the terminal until `q` is pressed.
    ("quickack top  ", "quickack top --once "),
    // The file that the page is about.
    ("--diff FILE", "--diff quickack.yml"),
];

/// The machine that pages are for: a network with servers at 10.0.0.1 and 10.0.0.2, a checkout
/// with what cargo has built, and `nc`, of which there are several; bash can do what they do.
const MACHINE: &str = r#"
ROOT=$PWD/root
ip link set lo up
ip address add 10.0.0.1/24 dev lo
ip address add 10.0.0.2/24 dev lo
mount -t tmpfs none /run
# A server that becomes a daemon returns before it listens; then memcached writes its pid file.
memcached() {
    command memcached "$@" || return
    until [ -s "${*: -1}" ]; do sleep 0.01; done
}
command memcached -d -u nobody -l 10.0.0.1,10.0.0.2 -p 11211
redis-server --bind 10.0.0.1 --port 6379 --save '' --daemonize yes >/dev/null
for place in 10.0.0.1/11211 10.0.0.2/11211 10.0.0.1/6379; do
    until (: <"/dev/tcp/$place") 2>/dev/null; do sleep 0.01; done
done
nc() { exec 3<>"/dev/tcp/$1/$2" && cat >&3 && cat <&3; exec 3>&-; }
# Ends what holds the terminal, as Ctrl-C does.
end() { [ -z "$serving" ] || { kill -INT -- "-$serving"; wait "$serving"; serving=; } 2>/dev/null; }
# When `kill` returns, the signal is on its way: until all threads have stopped, one may answer.
kill() {
    builtin kill "$@" || return
    [ "$1" != -STOP ] || while grep -qv ') T ' /proc/"$2"/task/*/stat; do sleep 0.01; done
}
# Starts what holds the terminal in a process group of its own, and returns when the proxy is ready.
# Later, the shell must not say among a command's words that it has ended.
serve() {
    end
    set -m
    (eval "$1") >>terminal.log 2>&1 & serving=$!
    set +m
    quickack wait --timeout 30s ready || { cat terminal.log; return 1; }
}
"#;

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    pub status: i32,
    pub said: String,
}

/// Does all steps in order; returns what each did. Steps that were not reached are missing.
pub fn play(steps: &[&Step]) -> Vec<Outcome> {
    let folder = tempfile::tempdir().unwrap();
    furnish(folder.path());
    let mut script = MACHINE.to_string();
    for step in steps {
        let command = match &step.act {
            Act::Write { name, text } => format!("printf %s {} >{name}", quoted(text)),
            Act::Run { command, .. } => shell(command),
        };
        let _ = writeln!(script, "printf '\\001'\n{command}\nprintf '\\002%s' $?");
    }
    let own = folder.path().join("root/usr");
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("timeout")
        .args(["-k", "5", "120", "unshare", "-mnpf", "--mount-proc", "--kill-child"])
        .args(["bash", "-c", &script])
        .current_dir(folder.path())
        .env("PATH", format!("{0}/bin:{0}/sbin:{path}", own.display()))
        .env_remove("RUNTIME_DIRECTORY")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    let outcome = |part: &str| {
        let (said, status) = part.rsplit_once('\u{2}')?;
        Some(Outcome { status: status.trim().parse().ok()?, said: said.to_string() })
    };
    text.split('\u{1}').skip(1).map_while(outcome).collect()
}

/// The command for the script. It is evaluated, so that one that is no command ends nothing else.
fn shell(command: &str) -> String {
    // A space ends each line, for words that end with one.
    let mut text = format!("{} ", command.replace('\n', " \n"));
    for (words, substitute) in SUBSTITUTES {
        text = text.replace(words, substitute);
    }
    // What follows a document's end or a continued line must not be a space.
    let text = text.replace("\\ \n", "\\\n").replace(" \n", "\n");
    let serves = text.contains("quickack run ") && !text.contains("ExecStart");
    let verb = if serves { "serve" } else { "eval" };
    format!("{verb} {} </dev/null 2>&1", quoted(text.trim_end()))
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn furnish(folder: &Path) {
    let project = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let places = "etc/logrotate.d etc/systemd/system usr/bin usr/sbin usr/share/man/man1 \
                  usr/share/bash-completion/completions var/log/quickack";
    for place in places.split_whitespace() {
        fs::create_dir_all(folder.join("root").join(place)).unwrap();
    }
    fs::create_dir_all(folder.join("target/release")).unwrap();
    for place in ["root/usr/bin/quickack", "target/release/quickack"] {
        symlink(QUICKACK, folder.join(place)).unwrap();
    }
    symlink(Path::new(project).join("dist"), folder.join("dist")).unwrap();
}
