//! The servers' data about their commands.

use std::collections::BTreeMap;
use std::fmt::Write;

use testkit::wire::resp::Reply;

/// The facts about each command, by its name.
pub type Facts = BTreeMap<String, Fact>;

/// The servers' data about one command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fact {
    pub arity: i64,
    pub legacy: [i64; 3],
    pub keys: Vec<Key>,
    pub flags: Vec<String>,
    pub categories: Vec<String>,
    pub tips: Vec<String>,
    pub since: String,
    pub group: String,
    pub summary: String,
    pub complexity: String,
    /// Its arguments in the form of `texts.txt`, one per line.
    pub arguments: String,
    pub container: bool,
    /// Redis does not have it.
    pub valkey: bool,
}

/// One of its key specifications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// In the syntax of `key_specs.rs`.
    pub position: String,
    pub flags: Vec<String>,
}

/// Parses a server's replies to `COMMAND` and to `COMMAND DOCS`.
pub fn read([commands, docs]: &[Reply; 2]) -> Result<Facts, String> {
    let mut facts = Facts::new();
    for command in commands.list() {
        add(command, &mut facts)?;
    }
    describe(docs, &mut facts);
    Ok(facts)
}

/// Merges both; where they differ, the newer one is right. A command whose number of arguments has
/// changed accepts any number from the smaller one on.
pub fn merge(older: Facts, newer: Facts) -> Facts {
    let mut all = older;
    for (name, mut fact) in newer {
        match all.get(&name) {
            None => fact.valkey = true,
            Some(old) if old.arity != fact.arity => {
                fact.arity = -old.arity.abs().min(fact.arity.abs());
            }
            Some(_) => {}
        }
        all.insert(name, fact);
    }
    all
}

fn add(command: &Reply, facts: &mut Facts) -> Result<(), String> {
    let [name, arity, flags, first, last, step, categories, tips, keys, below, ..] = command.list()
    else {
        return Err(format!("not a command: {command:?}"));
    };
    let mut fact = Fact {
        arity: arity.number(),
        legacy: [first.number(), last.number(), step.number()],
        flags: flags.texts(),
        categories: categories.texts(),
        tips: tips.texts(),
        container: !below.list().is_empty(),
        ..Fact::default()
    };
    for spec in keys.list() {
        fact.keys.push(Key { position: position(spec)?, flags: spec.of("flags").texts() });
    }
    facts.insert(name.text().to_string(), fact);
    below.list().iter().try_for_each(|sub| add(sub, facts))
}

/// Returns the position of keys in the syntax of `key_specs.rs`.
fn position(keys: &Reply) -> Result<String, String> {
    let [search, find] = ["begin_search", "find_keys"].map(|name| keys.of(name));
    let begin = |name| search.of("spec").of(name);
    let number = |name| find.of("spec").of(name).number();
    let after = || format!("{:?}, {}", begin("keyword").text(), begin("startfrom").number());
    let range = (number("lastkey"), number("keystep"), number("limit"));
    let count = (number("keynumidx"), number("firstkey"));
    let at = begin("index").number();
    Ok(match (search.of("type").text(), find.of("type").text(), range, count) {
        ("index", "range", (0, 1, 0), _) => format!("at({at})"),
        ("index", "range", (last, step, 0), _) => format!("range({at}, {last}, {step})"),
        ("index", "keynum", (_, step, _), (0, 1)) => format!("number({at}, {step})"),
        ("keyword", "range", (0, 1, 0), _) => format!("after({})", after()),
        ("keyword", "range", (-1, 1, 0), _) => format!("all_after({})", after()),
        ("keyword", "range", (-1, 1, 2), _) => format!("half_after({})", after()),
        ("unknown", "unknown", ..) => "UNKNOWN".into(),
        _ => return Err(format!("`key_specs.rs` has no form for {keys:?}")),
    })
}

fn describe(docs: &Reply, facts: &mut Facts) {
    for pair in docs.list().chunks_exact(2) {
        if let Some(fact) = facts.get_mut(pair[0].text()) {
            let text = |name| pair[1].of(name).text().to_string();
            fact.since = text("since");
            fact.group = text("group");
            fact.summary = text("summary");
            fact.complexity = text("complexity");
            fact.arguments.clear();
            argue(pair[1].of("arguments"), 0, &mut fact.arguments);
        }
        describe(pair[1].of("subcommands"), facts);
    }
}

/// Writes arguments, and indented under each the arguments that it consists of.
fn argue(arguments: &Reply, depth: usize, out: &mut String) {
    for argument in arguments.list() {
        let (name, below) = (argument.of("name").text(), argument.of("arguments"));
        let indent = " ".repeat(depth);
        write!(out, "{indent}{name}\t{}", argument.of("type").text()).expect("a string");
        for pair in argument.list().chunks_exact(2) {
            let value = match (pair[0].text(), &pair[1]) {
                // They are written elsewhere in the line.
                ("name" | "type" | "arguments", _) => continue,
                // A simple argument is shown by its name, unless another text is given.
                ("display_text", text) if text.text() == name => continue,
                ("flags", flags) => flags.texts().join(","),
                (_, Reply::Integer(number)) => number.to_string(),
                (_, text) => text.text().to_string(),
            };
            write!(out, "\t{}={value}", pair[0].text()).expect("a string");
        }
        out.push('\n');
        argue(below, depth + 1, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_server_is_right_and_the_looser_arity_too() {
        let fact = |arity| Fact { arity, ..Fact::default() };
        let facts = |rows: &[(&str, i64)]| -> Facts {
            rows.iter().map(|(name, arity)| (name.to_string(), fact(*arity))).collect()
        };
        let merged = merge(
            facts(&[("a", 3), ("b", 3), ("c", -4), ("d", 2)]),
            facts(&[("a", 3), ("b", -3), ("c", -3), ("e", 1)]),
        );
        let arity = |name: &str| merged[name].arity;
        assert_eq!(["a", "b", "c", "d", "e"].map(arity), [3, -3, -3, 2, 1]);
        assert_eq!(merged.iter().filter(|(_, fact)| fact.valkey).count(), 1, "only e");
    }
}
