//! The grammar of commands, from a real server's `COMMAND DOCS`: a tree from which calls are drawn.

use std::collections::{BTreeMap, BTreeSet};

use crate::process::Speaker;
use crate::wire::resp::Reply;

/// One command, or one subcommand.
#[derive(Clone, Debug, Default)]
pub struct Doc {
    /// Its group, such as `string`.
    pub group: String,
    pub arguments: Vec<Argument>,
}

#[derive(Clone, Debug)]
pub struct Argument {
    pub name: String,
    pub kind: Kind,
    /// The token before it, such as `FIELDS`.
    pub token: Option<String>,
    pub optional: bool,
    pub multiple: bool,
    /// The token is repeated before each value.
    pub multiple_token: bool,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Key,
    /// A string, a number, a pattern or a time; the argument's name distinguishes them.
    Value,
    Token,
    OneOf(Vec<Argument>),
    Block(Vec<Argument>),
}

/// Loads the grammar by name, `config|get` for a subcommand, from all servers. If several know a
/// command, the first one's grammar is used.
pub fn load(servers: &mut [Speaker]) -> BTreeMap<String, Doc> {
    let mut all = BTreeMap::new();
    for server in servers {
        // Redis 6.2 does not have it, and the others have all of its commands.
        let reply = server.say("COMMAND DOCS");
        for row in reply.elements().chunks(2) {
            let (name, doc) = (text(row[0]), row[1]);
            for sub in doc.field("subcommands").map_or(Vec::new(), Reply::elements).chunks(2) {
                all.entry(text(sub[0])).or_insert_with(|| read(sub[1]));
            }
            all.entry(name).or_insert_with(|| read(doc));
        }
    }
    assert!(all.len() > 300, "servers document {} commands", all.len());
    all
}

/// Returns the names of a server's commands, with those of subcommands if it lists them.
pub fn names(server: &mut Speaker) -> BTreeSet<String> {
    let reply = server.say("COMMAND");
    let mut names = BTreeSet::new();
    for row in reply.elements() {
        let parts = row.elements();
        names.extend(parts.first().map(|name| text(name)));
        let subs = parts.get(9).map_or(Vec::new(), |subs| subs.elements());
        names.extend(subs.iter().filter_map(|sub| Some(text(sub.elements().first()?))));
    }
    names
}

fn read(doc: &Reply) -> Doc {
    let group = doc.field("group").map_or(String::new(), text);
    Doc { group, arguments: arguments(doc) }
}

fn arguments(of: &Reply) -> Vec<Argument> {
    let all = of.field("arguments").map_or(Vec::new(), Reply::elements);
    all.into_iter().map(argument).collect()
}

fn argument(row: &Reply) -> Argument {
    let flags = row.field("flags").map_or(Vec::new(), Reply::elements);
    let has = |name: &str| flags.iter().any(|flag| flag.bytes() == Some(name.as_bytes()));
    Argument {
        name: row.field("name").map_or(String::new(), text),
        kind: match row.field("type").map_or(String::new(), text).as_str() {
            "key" => Kind::Key,
            "pure-token" => Kind::Token,
            "oneof" => Kind::OneOf(arguments(row)),
            "block" => Kind::Block(arguments(row)),
            _ => Kind::Value,
        },
        token: row.field("token").map(|token| text(token).to_uppercase()),
        optional: has("optional"),
        multiple: has("multiple"),
        multiple_token: has("multiple_token"),
    }
}

fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(reply.bytes().unwrap_or_default()).to_lowercase()
}
