//! Every command that a reader can copy from the guide, the README and the man pages is executed,
//! in the order of its page, and says what the page shows.
//!
//! `page` reads pages, and has the marks of what cannot be executed here; `terminal` executes.

mod page;
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use page::{Act, Step};

use super::QUICKACK;

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The page whose pool most others go on with, as each of them says.
const FIRST: &str = "first-pool.md";
const ON_THEIR_OWN: &[&str] = &["README.md", "install.md", "from-twemproxy.md"];

fn steps(page: &Path) -> Vec<Step> {
    let text = fs::read_to_string(page).unwrap();
    page::read(&text).unwrap_or_else(|why| panic!("{}: {why}", page.display()))
}

/// Plays a page, behind the first one if it goes on with its pool.
#[track_caller]
fn check(page: &Path) {
    let name = page.file_name().unwrap().to_str().unwrap();
    let own = steps(page);
    let before = match name == FIRST || ON_THEIR_OWN.contains(&name) {
        true => Vec::new(),
        false => steps(&page.with_file_name(FIRST)),
    };
    let all: Vec<&Step> = before.iter().chain(&own).collect();
    assert!(own.len() > 3, "{name} has no commands");
    let outcomes = terminal::play(&all);
    let mut wrong = String::new();
    for (at, step) in all.iter().enumerate() {
        let Act::Run { command, shown } = &step.act else { continue };
        let place = format!("{name}, line {}: `{command}`", step.line);
        let Some(outcome) = outcomes.get(at) else {
            wrong.push_str(&format!("{place} was not reached\n"));
            break;
        };
        let status = shown.as_ref().map_or(0, |shown| shown.status);
        if outcome.status != status {
            wrong.push_str(&format!("{place}: status {}\n{}\n", outcome.status, outcome.said));
        } else if shown.as_ref().is_some_and(|shown| !shown.fits(&outcome.said)) {
            wrong.push_str(&format!("{place} says something else:\n{}\n", outcome.said));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn guide() -> Vec<PathBuf> {
    let folder = Path::new(PROJECT).join("docs/guide");
    let mut pages: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    pages
}

#[test]
fn commands_of_the_guide_do_what_it_says_before_memcached_and_redis_as_root() {
    let pages = guide();
    assert!(pages.iter().any(|page| page.ends_with(FIRST)), "{pages:?}");
    for page in &pages {
        match page.ends_with("README.md") {
            true => assert_eq!(steps(page), [], "the contents of the guide have no commands"),
            false => check(page),
        }
    }
}

#[test]
fn commands_of_the_readme_do_what_it_says_before_memcached_and_redis_as_root() {
    check(&Path::new(PROJECT).join("README.md"));
}

fn step(command: &str) -> Step {
    Step { line: 0, act: Act::Run { command: command.to_string(), shown: None } }
}

/// Each page has examples. They are for one proxy that runs with the pool of the guide, and are
/// executed in the order of the pages; those that end the proxy come last, and each has its own.
#[test]
fn examples_of_the_man_pages_are_executed_before_memcached_as_root() {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(QUICKACK).arg("man").arg(folder.path()).status().unwrap();
    assert!(status.success());
    let mut steps = steps(&Path::new(PROJECT).join("docs/guide").join(FIRST));
    let first = steps.len();
    // A client for `clients kill`.
    steps.push(step("exec 9<>/dev/tcp/127.0.0.1/22121"));
    let mut pages: Vec<PathBuf> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let ends =
        |page: &PathBuf| page.ends_with("quickack-drain.1") || page.ends_with("quickack-quit.1");
    pages.sort_by_key(|page| (ends(page), page.clone()));
    for page in &pages {
        let text = fs::read_to_string(page).unwrap().replace("\\-", "-").replace("\\\\", "\\");
        let examples = text.split_once(".SH EXAMPLES").map_or("", |(_, rest)| rest);
        let examples = examples.split("\n.SH ").next().unwrap_or_default();
        let commands = examples.lines().filter(|line| line.starts_with("quickack"));
        let before = steps.len();
        steps.extend(commands.map(step));
        assert!(steps.len() > before, "{} has no example", page.display());
        if ends(page) {
            steps.insert(before, step("quickack run -c quickack.yml"));
        }
    }
    let outcomes = terminal::play(&steps.iter().collect::<Vec<_>>());
    for (step, outcome) in steps.iter().zip(&outcomes).skip(first) {
        assert_eq!(outcome.status, 0, "{:?}: {}", step.act, outcome.said);
    }
    assert_eq!(outcomes.len(), steps.len(), "{:?} was not reached", steps[outcomes.len()].act);
}
