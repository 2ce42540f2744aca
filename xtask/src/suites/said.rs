//! Parses the output of a suite's runner: each test by its name, and whether it passed.

use std::collections::BTreeMap;

use super::Runner;

/// The result of one test. A skipped test has none.
pub enum Said {
    Passed,
    /// With the runner's message, if there is one.
    Failed(String),
}

impl Said {
    pub fn passed(&self) -> bool {
        matches!(self, Said::Passed)
    }

    pub fn told(&self) -> &str {
        match self {
            Said::Passed => "passed",
            Said::Failed(words) => words,
        }
    }
}

type Tests = BTreeMap<String, Said>;

pub fn read(runner: &Runner, output: &str) -> Tests {
    match runner {
        Runner::Pytest(_) => pytest(output),
        Runner::Phpt => phpt(output),
        Runner::Tap => tap(output),
        Runner::Units => units(output),
    }
}

/// Parses `PASSED name` and `FAILED name - words` in pytest's summary.
fn pytest(output: &str) -> Tests {
    let mut tests = Tests::new();
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("PASSED ") {
            tests.entry(name.to_string()).or_insert(Said::Passed);
        } else if let Some(rest) =
            line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))
            && rest.contains("::")
        {
            let (name, words) = rest.split_once(" - ").unwrap_or((rest, ""));
            // A test that passed and failed in its teardown has not passed.
            tests.insert(name.to_string(), Said::Failed(words.to_string()));
        }
    }
    tests
}

/// Parses `PASS words [tests/name.phpt]`, after a line that this one overwrites on a terminal.
fn phpt(output: &str) -> Tests {
    let mut tests = Tests::new();
    for line in output.lines() {
        let line = line.rsplit('\r').next().unwrap_or(line);
        let said = match line.split(' ').next() {
            // WARN also counts as passed: at its second attempt, or contrary to an expected
            // failure.
            Some("PASS" | "WARN") => Said::Passed,
            Some("FAIL" | "LEAK" | "BORK") => Said::Failed(line.to_string()),
            _ => continue,
        };
        let name = line.rsplit_once('[').and_then(|(_, rest)| rest.split_once(']'));
        if let Some((name, _)) = name {
            tests.insert(name.to_string(), said);
        }
    }
    tests
}

/// Parses `ok 7 - words` after a line that names the file.
fn tap(output: &str) -> Tests {
    let mut tests = Tests::new();
    let mut file = "";
    for line in output.lines() {
        if let Some(name) = line.strip_prefix(FILE) {
            file = name;
            continue;
        }
        if UNCOUNTED.contains(&file) {
            match line {
                ENDED_WELL => tests.insert(file.to_string(), Said::Passed),
                _ if line.starts_with("# ended") => {
                    tests.insert(file.to_string(), Said::Failed(line.to_string()))
                }
                _ => continue,
            };
            continue;
        }
        let (failed, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => continue,
        };
        let (number, words) = rest.split_once(' ').unwrap_or((rest, ""));
        if number.parse::<usize>().is_err() || words.starts_with("# skip") {
            continue;
        }
        let said = if failed { Said::Failed(words.to_string()) } else { Said::Passed };
        tests.insert(format!("{file} {number}"), said);
    }
    tests
}

/// Parses `[ok]: words (3 ms)` and `[err]: words in tests/unit/...` after a line that names the
/// unit. A name that several tests of a unit have stands for all of them.
fn units(output: &str) -> Tests {
    let mut tests = Tests::new();
    let mut unit = "";
    for line in output.lines() {
        if let Some(name) = line.strip_prefix(FILE) {
            unit = name;
        } else if let Some(rest) = line.strip_prefix("[ok]: ") {
            let words = rest.rsplit_once(" (").map_or(rest, |(words, _)| words);
            tests.entry(format!("{unit} \"{words}\"")).or_insert(Said::Passed);
        } else if let Some(rest) = line.strip_prefix("[err]: ") {
            let words = rest.rsplit_once(" in tests/").map_or(rest, |(words, _)| words);
            tests.insert(format!("{unit} \"{words}\""), Said::Failed(rest.to_string()));
        }
    }
    tests
}

/// The prefix of a line that names a TAP file or a unit.
pub const FILE: &str = "== ";

/// The last line of a file's output if all of it passed.
pub const ENDED_WELL: &str = "# ended: exit status: 0";

/// The number of their assertions depends on timing, so each is one test.
const UNCOUNTED: &[&str] = &["t/binary-extstore.t", "t/maxconns.t"];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(runner: Runner, output: &str, passed: &[&str], failed: &[(&str, &str)]) {
        let tests = read(&runner, output);
        let passes = tests.iter().filter(|(_, said)| said.passed()).map(|(name, _)| name.as_str());
        assert_eq!(passes.collect::<Vec<_>>(), passed);
        let fails = tests.iter().filter(|(_, said)| !said.passed());
        assert_eq!(fails.map(|(name, said)| (&**name, said.told())).collect::<Vec<_>>(), failed);
    }

    #[test]
    fn each_runner_says_it_its_own_way() {
        let output = "PASSED a.py::b[x y]\nPASSED a.py::c\nERROR a.py::c - KeyError: 'z'\n\
                      FAILED a.py::d\nERROR: no such file\nSKIPPED [1] a.py:3: why\n";
        let failed = [("a.py::c", "KeyError: 'z'"), ("a.py::d", "")];
        check(Runner::Pytest(&[]), output, &["a.py::b[x y]"], &failed);

        let output = "TEST 1/3 [tests/a.phpt]\rPASS a [b] [tests/a.phpt] \n\
                      FAIL Stats [tests/b.phpt] \nSKIP c [tests/c.phpt] reason: old\n";
        let failed = [("tests/b.phpt", "FAIL Stats [tests/b.phpt] ")];
        check(Runner::Phpt, output, &["tests/a.phpt"], &failed);

        let output = "== t/a.t\n1..4\nok 1 - set\nok 2\nok 3 # skip no TLS\nnot ok 4 - get\n# no\n\
                      == t/b.t\nok 1\n# ended: exit status: 0\n\
                      == t/maxconns.t\nok 1\nok 2\n# ended: exit status: 0\n";
        let passed = ["t/a.t 1", "t/a.t 2", "t/b.t 1", "t/maxconns.t"];
        check(Runner::Tap, output, &passed, &[("t/a.t 4", "- get")]);

        let output = "== unit/a\n[ok]: SET (2) (1 ms)\n[err]: GET 1 in tests/unit/a.tcl\nwhy\n\
                      [ok]: GET 1 (0 ms)\n== unit/b\n[ok]: SET (2) (0 ms)\n[ignore]: no\n";
        let passed = ["unit/a \"SET (2)\"", "unit/b \"SET (2)\""];
        let failed = [("unit/a \"GET 1\"", "GET 1 in tests/unit/a.tcl")];
        check(Runner::Units, output, &passed, &failed);
    }
}
