//! The lists of tests that pass through quickack: one sorted file for each suite, which only grows.
//!
//! memcached's tests number their 175,000 assertions, so one line can stand for many, such as
//! `t/cas.t 1-43`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::Outcome;

/// Returns the tests of the list that have not passed.
pub fn missing(file: &Path, passed: &BTreeSet<String>) -> BTreeSet<String> {
    read(file).difference(passed).cloned().collect()
}

/// Fails if a test of the list has not passed; with `write`, adds tests that passed.
pub fn compare(file: &Path, passed: &BTreeSet<String>, write: bool) -> Outcome {
    let listed = read(file);
    let more = passed.difference(&listed).count();
    if write {
        let text = fold(&listed.union(passed).cloned().collect()).join("\n") + "\n";
        std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    } else if more > 0 {
        println!("{more} tests pass that are not in the list; --write adds them");
    }
    let lost = fold(&missing(file, passed));
    match lost.is_empty() {
        true => Ok(()),
        false => Err(format!("listed and not passed any more:\n  {}", lost.join("\n  "))),
    }
}

/// Reads a list; a suite without a file has an empty list.
pub fn read(file: &Path) -> BTreeSet<String> {
    std::fs::read_to_string(file).map(|text| unfold(&text)).unwrap_or_default()
}

/// Folds names that differ only in a number at their end into ranges.
pub fn fold(names: &BTreeSet<String>) -> Vec<String> {
    let mut numbered: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for name in names {
        let numbers = match part(name) {
            Some((stem, number)) => {
                numbered.entry(stem).or_default().insert(number);
                continue;
            }
            None => numbered.entry(name).or_default(),
        };
        debug_assert!(numbers.is_empty(), "{name}");
    }
    numbered.iter().map(|(stem, numbers)| format!("{stem}{}", ranges(numbers))).collect()
}

fn ranges(numbers: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |(first, last): (usize, usize)| match first == last {
        true => format!(" {first}"),
        false => format!(" {first}-{last}"),
    };
    ranges.into_iter().map(range).collect()
}

fn unfold(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split(' ').rev();
        let ranges: Vec<_> = words.by_ref().map_while(range).collect();
        if ranges.is_empty() {
            names.insert(line.to_string());
            continue;
        }
        let stem = line.rsplitn(ranges.len() + 1, ' ').last().unwrap_or(line);
        let numbers = ranges.into_iter().flat_map(|(first, last)| first..=last);
        names.extend(numbers.map(|number| format!("{stem} {number}")));
    }
    names
}

fn range(word: &str) -> Option<(usize, usize)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Splits the name of a numbered test into name and number.
fn part(name: &str) -> Option<(&str, usize)> {
    let (stem, number) = name.rsplit_once(' ')?;
    Some((stem, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn a_list_says_the_same_after_it_was_written_and_read() {
        let all = names(&["b::test[1 2]", "t/a.t 1", "t/a.t 2", "t/a.t 3", "t/a.t 10", "t/b.t 7"]);
        let lines = fold(&all);
        assert_eq!(lines, ["b::test[1 2]", "t/a.t 1-3 10", "t/b.t 7"]);
        assert_eq!(unfold(&lines.join("\n")), all);
    }

    #[test]
    fn a_list_only_grows_and_misses_who_left_it() {
        let folder = std::env::temp_dir().join(format!("lists-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("some.txt");
        assert_eq!(compare(&file, &names(&["a"]), false), Ok(()), "there is no list yet");
        assert_eq!(compare(&file, &names(&["a", "b"]), true), Ok(()));
        assert_eq!(compare(&file, &names(&["a", "b", "c"]), false), Ok(()));
        assert!(compare(&file, &names(&["a", "c"]), true).unwrap_err().ends_with("\n  b"));
        assert_eq!(compare(&file, &names(&["a", "b", "c"]), false), Ok(()));
        assert!(compare(&file, &names(&["a", "b"]), false).unwrap_err().ends_with("\n  c"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
