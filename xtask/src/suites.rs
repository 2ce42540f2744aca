//! `cargo xtask suites`: runs other projects' tests against the server directly, and through
//! quickack.
//!
//! ```text
//!   fetch.rs   the project's source, once, below target/suites
//!   stage.rs   a network and a /tmp of its own, the server, quickack, the tests
//!   said.rs    parses the tests' output
//!   list.rs    the tests that pass through quickack, in testkit/suites: a list only grows
//! ```
//!
//! For a test that passes directly but not through quickack, docs/suites.md has the reason.

mod fetch;
mod list;
mod said;
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::nextest::Ran;
use crate::{Outcome, cargo, root};
use fetch::Source;
use said::Said;

const USAGE: &str = "[--write] [--program QUICKACK] [SUITE...]";
/// The folder of the lists, those of tests that race, the pools' `allow:` lists, and the stand-in
/// for memcached in its own tests.
const FOLDER: &str = "testkit/suites";

/// One project's tests.
struct Suite {
    name: &'static str,
    version: &'static str,
    source: Source,
    /// A script that prepares the source, run in its folder.
    made: &'static str,
    runner: Runner,
}

/// The runner of the tests, which also determines the format of the output.
enum Runner {
    /// Arguments for pytest.
    Pytest(&'static [&'static str]),
    /// PHP's run-tests.php over `tests/`.
    Phpt,
    /// Each `t/*.t` alone: it starts its own servers.
    Tap,
    /// Redis' own units in `redis.units`, one after the other, against a server that runs already.
    Units,
}

const SUITES: &[Suite] = &[
    Suite {
        name: "pymemcache",
        version: "4.0.0",
        source: Source::Pypi("pymemcache"),
        made: "",
        runner: Runner::Pytest(&["--count=200", "--server=127.0.0.1", "pymemcache/test"]),
    },
    Suite {
        name: "pylibmc",
        version: "1.6.3",
        source: Source::Pypi("pylibmc"),
        made: "",
        runner: Runner::Pytest(&["tests"]),
    },
    Suite {
        name: "python-binary-memcached",
        version: "0.33.0",
        source: Source::Pypi("python-binary-memcached"),
        made: "",
        // These need a conftest.py that is missing in the package.
        runner: Runner::Pytest(&[
            "test",
            "--ignore=test/test_ipv6.py",
            "--ignore=test/test_sasl_integration.py",
            "--ignore=test/test_tls.py",
        ]),
    },
    Suite {
        name: "php-memcached",
        version: "3.3.0",
        source: Source::Debian { package: "php-memcached", release: "trixie" },
        made: PHP_RUNNER,
        runner: Runner::Phpt,
    },
    Suite {
        name: "memcached",
        version: "1.6.18",
        source: Source::Debian { package: "memcached", release: "bookworm" },
        made: MEMCACHED,
        runner: Runner::Tap,
    },
    Suite {
        name: "redis-py",
        version: "8.1.0",
        source: Source::Pypi("redis"),
        made: "",
        // This test sets a password on the server, which the pool does not have, so all later tests
        // would fail.
        runner: Runner::Pytest(&[
            "tests/test_commands.py",
            "tests/test_pipeline.py",
            "tests/test_pubsub.py",
            "tests/test_lock.py",
            "tests/test_scripting.py",
            "--deselect=tests/test_commands.py::TestRedisCommands::test_auth",
        ]),
    },
    Suite {
        name: "redis",
        version: "7.0.15",
        source: Source::Debian { package: "redis", release: "bookworm" },
        made: REDIS,
        runner: Runner::Units,
    },
];

/// The runner is part of PHP's own files for building extensions.
const PHP_RUNNER: &str = r#"
    dev=php$(php -r 'echo PHP_MAJOR_VERSION.".".PHP_MINOR_VERSION;')-dev
    apt-get -qq -o APT::Sandbox::User=root download $dev
    dpkg -x ${dev}_*.deb dev
    cp dev/usr/lib/php/*/build/run-tests.php .
"#;

/// The tests use the build with `debugtime`, so that they need not wait; it needs libevent-dev.
/// They start `memcached-debug`, which is our stand-in.
const MEMCACHED: &str = "
    ./configure --quiet
    make --silent memcached-debug timedrun
    mv memcached-debug memcached-real";

/// Administration goes past the proxy, to the port in `PAST`: what a server does with its own
/// memory, files and logs, and its stream for replicas.
const REDIS: &str = r#"
    for program in redis-cli redis-benchmark; do
        command -v $program > /dev/null || { echo "there is no $program: install it"; exit 1; }
    done
    ln -s $(command -v redis-cli redis-benchmark) src/
    sed -i '/^proc ::redis::__dispatch__raw__/r /dev/stdin' tests/support/redis.tcl <<'END'
    if {[info exists ::env(PAST)] && [::redis::goes_past $method $argv] && $::redis::blocking($id)
            && !$::redis::deferred($id) && [lindex $::redis::addr($id) 1] ne $::env(PAST)} {
        set past [redis 127.0.0.1 $::env(PAST)]
        set failed [catch {$past $method {*}$argv} reply]
        $past close
        return -code [expr {$failed ? "error" : "ok"}] $reply
    }
END
    cat >> tests/support/redis.tcl <<'END'

proc ::redis::goes_past {method argv} {
    set sub [string tolower [lindex $argv 0]]
    switch [string tolower $method] {
        slowlog - latency { return 1 }
        debug { return [expr {$sub in {reload loadaof jmap set-disable-deny-scripts}}] }
    }
    return 0
}

proc ::redis::past {} {
    return [expr {[info exists ::env(PAST)] ? $::env(PAST) : [srv 0 "port"]}]
}
END
    sed -i -e '/^proc attach_to_replication_stream/,/^}/{' \
        -e 's/\[srv 0 "host"\] \[srv 0 "port"\]/127.0.0.1 [::redis::past]/' \
        -e '}' tests/test_helper.tcl
"#;

/// Tests that fail through the proxy and leave their client in a transaction, or reading raw
/// replies, so that all that follow would fail for nothing.
const SKIPPED: &[&str] = &["DISCARD should not fail during OOM", "RESP3 attributes readraw"];

/// The options of the command line.
#[derive(Default)]
struct Request {
    write: bool,
    program: Option<PathBuf>,
    /// Names of suites; empty for all.
    names: Vec<String>,
}

pub fn run(arguments: &[String]) -> Outcome {
    if let [inside, rest @ ..] = arguments
        && inside == stage::INSIDE
    {
        return stage::inside(rest);
    }
    let request = parse(arguments)?;
    match run_all(&request)?.failed.len() {
        0 => Ok(()),
        failed => Err(format!("{failed} suites failed; what is above says why")),
    }
}

/// The step of `cargo xtask test`: each suite counts as one test.
pub fn step() -> (Ran, Outcome) {
    match run_all(&Request::default()) {
        Ok(ran) if ran.failed.is_empty() => (ran, Ok(())),
        Ok(ran) => {
            let why = format!("{} suites failed", ran.failed.len());
            (ran, Err(why))
        }
        Err(why) => (Ran::default(), Err(why)),
    }
}

fn parse(arguments: &[String]) -> Result<Request, String> {
    let mut request = Request::default();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--write" => request.write = true,
            "--program" => request.program = rest.next().map(PathBuf::from),
            name if SUITES.iter().any(|suite| suite.name == name) => {
                request.names.push(name.to_string());
            }
            other => {
                let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
                return Err(format!("{other:?}? {USAGE}; suites: {}", names.join(" ")));
            }
        }
    }
    Ok(request)
}

fn run_all(request: &Request) -> Result<Ran, String> {
    let program = match &request.program {
        Some(program) => std::path::absolute(program).map_err(|error| error.to_string())?,
        None => build()?,
    };
    let mut ran = Ran::default();
    let mut table = String::from(
        "| suite | version | run directly | passed directly | run through | passed through |\n\
         |---|---|---|---|---|---|\n",
    );
    for suite in SUITES.iter().filter(|suite| request.takes(suite)) {
        println!("== {} {}", suite.name, suite.version);
        match run_one(suite, &program, request.write) {
            Ok(row) => {
                table.push_str(&row);
                ran.passed += 1;
            }
            Err(why) => {
                println!("FAILED: {why}");
                table.push_str(&format!("| {} | {} | failed |\n", suite.name, suite.version));
                ran.failed.push(suite.name.to_string());
            }
        }
    }
    println!("\n{table}");
    Ok(ran)
}

impl Request {
    fn takes(&self, suite: &Suite) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| name == suite.name)
    }
}

fn build() -> Result<PathBuf, String> {
    cargo::run(&mut cargo::command(&["build", "--release", "--locked", "--package", "quickack"]))?;
    Ok(root().join("target/release/quickack"))
}

/// Runs one suite both ways, compares the runs with each other and with its list, and returns the
/// table's row.
fn run_one(suite: &Suite, program: &Path, write: bool) -> Result<String, String> {
    let folder = fetch::fetch(suite)?;
    let file = |kind| root().join(FOLDER).join(format!("{}.{kind}", suite.name));
    let (list, racing) = (file("txt"), list::read(&file("racing")));
    let demanded = |tests: &_| passed(tests).difference(&racing).cloned().collect::<BTreeSet<_>>();
    let play = |program| {
        Ok::<_, String>(said::read(&suite.runner, &stage::play(suite, &folder, program)?))
    };
    let direct = play(None)?;
    let mut through = play(Some(program))?;
    if !list::missing(&list, &demanded(&through)).is_empty() {
        println!("a test of the list failed: once more, since some measure milliseconds");
        through.extend(play(Some(program))?.into_iter().filter(|(_, said)| said.passed()));
    }
    let row = format!(
        "| {} | {} | {} | {} | {} | {} |\n",
        suite.name,
        suite.version,
        direct.len(),
        passed(&direct).len(),
        through.len(),
        passed(&through).len()
    );
    print!("{row}");
    let lost: BTreeSet<String> = passed(&direct).difference(&passed(&through)).cloned().collect();
    for line in list::fold(&lost) {
        println!("directly only: {line}");
    }
    for (name, said) in through.iter().filter(|(name, _)| lost.contains(*name)).take(TOLD_MAX) {
        println!("    {name}: {}", said.told());
    }
    list::compare(&list, &demanded(&through), write)?;
    Ok(row)
}

/// Returns the names of the tests that passed.
fn passed(tests: &BTreeMap<String, Said>) -> BTreeSet<String> {
    tests.iter().filter(|(_, said)| said.passed()).map(|(name, _)| name.clone()).collect()
}

/// Limit on failed tests whose messages are printed.
const TOLD_MAX: usize = 200;
