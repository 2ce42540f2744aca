//! What the requests of a tenant may be: databases, commands, and the beginning of every key.
//!
//! The proxy adds nothing to a key. It refuses a request with a key of others, and a request that
//! does not name all keys that it reaches.

use proto::{Class, Command, Database, Keys, Local, PROTOCOLS, Protocol, Request, Span};

/// The rules of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The databases that it may use, from the first to the last of each range; empty: all of them.
    pub databases: Vec<(u32, u32)>,
    /// By the protocol's place in `PROTOCOLS` and by command: it is denied. Empty: none is.
    denied: Vec<Vec<bool>>,
    /// What decides about commands that only the operator knows.
    allow: Vec<String>,
    deny: Vec<String>,
    /// What every key has to begin with; empty: nothing.
    pub key_prefix: Vec<u8>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    Command,
    Database,
    Key,
    /// It does not name all the keys that it reaches.
    Unnamed,
}

/// Requests that a client needs in order to come, and to go.
const ALWAYS: [&str; 10] =
    ["auth", "hello", "quit", "reset", "quitq", "sasllist", "saslauth", "saslstep", "mn", "noop"];

/// Commands that run scripts.
const SCRIPTS: [&str; 6] = ["eval", "eval_ro", "evalsha", "evalsha_ro", "fcall", "fcall_ro"];

impl Rules {
    /// Makes rules. `allow` and `deny` hold names of commands, in lower case, and categories; what
    /// is denied is not allowed. Without `allow`, everything else is.
    pub fn new(
        databases: Vec<(u32, u32)>,
        (allow, deny): (Vec<String>, Vec<String>),
        key_prefix: Vec<u8>,
    ) -> Rules {
        let mut rules = Rules { databases, denied: Vec::new(), allow, deny, key_prefix };
        if !rules.allow.is_empty() || !rules.deny.is_empty() || !rules.databases.is_empty() {
            let of = |protocol: &&'static dyn Protocol| rules.denied_of(*protocol);
            rules.denied = PROTOCOLS.iter().map(of).collect();
        }
        rules
    }

    fn denied_of(&self, protocol: &dyn Protocol) -> Vec<bool> {
        let rows = protocol.commands().iter().enumerate();
        let is_denied = |(at, row): (usize, &Command)| {
            let name = row.name.to_ascii_lowercase();
            let categories = protocol.categories(at as u16);
            let may_call = !SCRIPTS.contains(&&*name) || self.allows_scripts(&name);
            let is_allowed = self.allows(&name, &categories) && may_call;
            !is_allowed && !ALWAYS.contains(&&*name)
        };
        rows.map(is_denied).collect()
    }

    /// Whether a word of a list means this command: by its name, its container's, or a category.
    pub fn means(word: &str, name: &str, categories: &[&str]) -> bool {
        let container = name.split_once('|').map(|(container, _)| container);
        word == "@all" || word == name || container == Some(word) || categories.contains(&word)
    }

    /// Whether a tenant may do nothing but log in and go.
    pub fn allows_nothing(&self) -> bool {
        let mut protocols = PROTOCOLS.iter();
        !self.denied.is_empty()
            && protocols.all(|protocol| {
                let mut rows = protocol.commands().iter().zip(&self.denied[protocol.place()]);
                rows.all(|(row, denied)| {
                    *denied || ALWAYS.contains(&&*row.name.to_ascii_lowercase())
                })
            })
    }

    fn allows(&self, name: &str, categories: &[&str]) -> bool {
        let is_in = |list: &[String]| list.iter().any(|word| Rules::means(word, name, categories));
        (self.allow.is_empty() || is_in(&self.allow)) && !is_in(&self.deny)
    }

    /// Whether a script may run, although nobody can tell what it calls: it must be named, and
    /// `@all` does not name it. Any script may change to another database.
    fn allows_scripts(&self, name: &str) -> bool {
        let is_named = |word: &String| word == name || word == "@scripting";
        self.databases.is_empty() && self.allow.iter().any(is_named)
    }

    /// Whether a command that only the operator knows is allowed.
    fn allows_extra(&self, name: &[u8], writes: bool) -> bool {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        self.allows(&name, if writes { &["@write"] } else { &["@read"] })
    }

    /// Returns the commands of a protocol that are allowed, and how many there are.
    pub fn allowed_of(&self, protocol: &dyn Protocol) -> (usize, usize) {
        let all = protocol.commands().len();
        let denied = self
            .denied
            .get(protocol.place())
            .map_or(0, |denied| denied.iter().filter(|denied| **denied).count());
        (all - denied, all)
    }

    fn has_database(&self, database: u32) -> bool {
        let is_in = |(first, last): &(u32, u32)| (*first..=*last).contains(&database);
        self.databases.is_empty() || self.databases.iter().any(is_in)
    }

    /// Returns why a request may not be, if so. `current` is the database of its connection, and
    /// `is_extra` says that only the operator knows its command.
    pub(crate) fn judge(
        &self,
        protocol: &'static dyn Protocol,
        (request, head): (&Request, &[u8]),
        keys: &[Span],
        (current, is_extra): (u32, bool),
        scratch: &mut Vec<u8>,
    ) -> Option<Denied> {
        if !self.denied.is_empty() && request.class != Class::Local(Local::Quit) {
            let writes = request.class == Class::Single { writes: true };
            let is_denied = match is_extra {
                true => !self.allows_extra(&protocol.name_of(request, head), writes),
                false => self.is_denied(protocol, request),
            };
            if is_denied {
                return Some(Denied::Command);
            }
        }
        if !self.databases.is_empty() && self.is_elsewhere(protocol, (request, head), current) {
            return Some(Denied::Database);
        }
        if self.key_prefix.is_empty() {
            return None;
        }
        let prefix = &self.key_prefix;
        let is_ours = |key: &Span| protocol.key(request, head, *key, scratch).starts_with(prefix);
        // A request that is refused for another reason names its keys, too.
        if !keys.iter().all(is_ours) {
            return Some(Denied::Key);
        }
        match protocol.reaches(request, head) {
            Keys::Named if !keys.is_empty() => None,
            Keys::Nothing => None,
            Keys::Matching if protocol.matches_within(request, head, prefix) => None,
            Keys::Named | Keys::Matching | Keys::Any => Some(Denied::Unnamed),
        }
    }

    /// A command of a protocol that the rules do not know is denied where any rule is about
    /// commands.
    fn is_denied(&self, protocol: &dyn Protocol, request: &Request) -> bool {
        let denied = self.denied.get(protocol.place());
        let denied = denied.and_then(|denied| denied.get(usize::from(request.command)));
        // An unknown command is answered as such.
        let is_unknown = matches!(request.class, Class::Refuse(proto::Refusal::Unknown));
        !is_unknown && denied.copied().unwrap_or(true)
    }

    fn is_elsewhere(
        &self,
        protocol: &dyn Protocol,
        (request, head): (&Request, &[u8]),
        current: u32,
    ) -> bool {
        match protocol.database(request, head) {
            Database::Nothing => false,
            Database::Own => !self.has_database(current),
            Database::Only(other) => !self.has_database(other),
            Database::Also(other) => !self.has_database(current) || !self.has_database(other),
            Database::All => true,
        }
    }
}

impl Denied {
    /// Returns the reason in words, for the client.
    pub(crate) fn words(self, tenant: &str, command: &str) -> String {
        match self {
            Denied::Command => {
                let command = command.replace('|', " ");
                format!("tenant '{tenant}' may not run the '{command}' command")
            }
            Denied::Database => format!("tenant '{tenant}' may not use this database"),
            Denied::Key => {
                format!("tenant '{tenant}' may only access keys that begin with its key prefix")
            }
            Denied::Unnamed => {
                let command = command.replace('|', " ");
                format!(
                    "tenant '{tenant}' may not run '{command}' like this: not all keys that it \
                     reaches are known to begin with its key prefix"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::{Parsed, Resume};

    fn list(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_string()).collect()
    }

    /// Judges a request of a protocol, by its name.
    fn check(rules: &Rules, protocol: &str, text: &[u8]) -> Option<Denied> {
        let protocol = proto::protocol(protocol).expect("its name").spoken(text[0]);
        let mut keys = Vec::new();
        let parsed = protocol.parse_request(text, &mut Resume::default(), &mut keys);
        let Parsed::Complete(request) = parsed else { panic!("{parsed:?}") };
        let head = &text[..request.head as usize];
        rules.judge(protocol, (&request, head), &keys, (0, false), &mut Vec::new())
    }

    #[test]
    fn a_tenant_that_may_only_come_and_go_may_do_nothing() {
        let nothing = |allow: &[&str], deny: &[&str]| {
            Rules::new(Vec::new(), (list(allow), list(deny)), Vec::new()).allows_nothing()
        };
        assert!(nothing(&["quit"], &[]) && nothing(&[], &["@all"]));
        assert!(!nothing(&["get"], &[]) && !nothing(&[], &["get"]) && !nothing(&[], &[]));
    }

    #[test]
    fn commands_are_allowed_and_denied_by_name_container_and_category() {
        let rules = |allow: &[&str], deny: &[&str]| {
            Rules::new(Vec::new(), (list(allow), list(deny)), Vec::new())
        };
        let denied = Some(Denied::Command);
        for (allow, deny, request, expected) in [
            (&["@read"][..], &[][..], "GET k", None),
            (&["@read"], &[], "set k v", denied),
            (&["@read"], &["@string"], "get k", denied),
            (&[], &["keys"], "KEYS a*", denied),
            (&[], &["keys"], "get k", None),
            (&[], &["config"], "config get x", denied),
            (&[], &["config|set"], "config get x", None),
            (&["get"], &[], "hello 3", None),
            (&["get"], &[], "auth a b", None),
            (&["get"], &[], "quit", None),
            (&["get"], &[], "ping", denied),
            (&["get"], &[], "nonsense", None),
            (&["@all"], &["@dangerous"], "flushall", denied),
            // A script calls what it likes.
            (&[], &["@write"], "eval x 0", denied),
            (&["@all"], &["@write"], "fcall x 0", denied),
            (&["@all", "@scripting"], &["keys"], "eval x 0", None),
            (&["get", "evalsha"], &[], "evalsha x 0", None),
            (&["get", "evalsha"], &[], "eval x 0", denied),
        ] {
            let text = format!("{request}\r\n");
            let found = check(&rules(allow, deny), "redis", text.as_bytes());
            assert_eq!(found, expected, "{allow:?} {deny:?}: {request}");
        }
        let reads = rules(&["@read"], &["gat"]);
        for (text, expected) in [
            ("get k\r\n", None),
            ("mg k v\r\n", None),
            ("set k 0 0 1\r\n", denied),
            ("gat 1 k\r\n", denied),
            ("flush_all\r\n", denied),
            ("version\r\n", denied),
            ("quit\r\n", None),
            ("mn\r\n", None),
        ] {
            assert_eq!(check(&reads, "memcached", text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_script_may_change_the_database_and_so_needs_all_of_them() {
        let allow = (list(&["@all", "@scripting"]), Vec::new());
        let rules = Rules::new(vec![(0, 3)], allow.clone(), Vec::new());
        assert_eq!(check(&rules, "redis", b"eval x 0\r\n"), Some(Denied::Command));
        assert_eq!(check(&rules, "redis", b"get x\r\n"), None);
        let rules = Rules::new(Vec::new(), allow, Vec::new());
        assert_eq!(check(&rules, "redis", b"eval x 0\r\n"), None);
    }

    #[test]
    fn every_key_begins_with_the_prefix_and_nothing_reaches_others() {
        let rules = Rules::new(Vec::new(), Default::default(), b"a:".to_vec());
        for (text, expected) in [
            ("get a:k\r\n", None),
            ("get a:\r\n", None),
            ("get a\r\n", Some(Denied::Key)),
            ("get a:k b:k a:l\r\n", Some(Denied::Key)),
            ("get A:k\r\n", Some(Denied::Key)),
            ("set b:k 0 0 1 noreply\r\n", Some(Denied::Key)),
            ("mg YTpr b v\r\n", None),
            ("mg Yjpr b v\r\n", Some(Denied::Key)),
            ("mg YTpr v\r\n", Some(Denied::Key)),
            ("me a:k\r\n", None),
            ("me b:k\r\n", Some(Denied::Key)),
            ("stats\r\n", None),
            ("stats settings\r\n", None),
            ("stats items\r\n", Some(Denied::Unnamed)),
            ("stats cachedump 1 1\r\n", Some(Denied::Unnamed)),
            ("stats detail dump\r\n", Some(Denied::Unnamed)),
            ("flush_all\r\n", Some(Denied::Unnamed)),
            ("lru_crawler crawl all\r\n", Some(Denied::Unnamed)),
            ("version\r\n", None),
            ("mn\r\n", None),
        ] {
            assert_eq!(check(&rules, "memcached", text.as_bytes()), expected, "{text}");
        }
        for (text, expected) in [
            ("get a:k\r\n", None),
            ("get \"\\x61:k\"\r\n", None),
            ("get \"\\x62:k\"\r\n", Some(Denied::Key)),
            ("eval x 1 a:k\r\n", Some(Denied::Unnamed)),
            ("eval x 0\r\n", Some(Denied::Unnamed)),
            ("sort a:k by b:*\r\n", Some(Denied::Unnamed)),
            ("sort a:k store b:k\r\n", Some(Denied::Key)),
            ("scan 0\r\n", Some(Denied::Unnamed)),
            ("scan 0 match a:*\r\n", None),
            ("keys a:?\r\n", None),
            ("multi\r\n", None),
        ] {
            assert_eq!(check(&rules, "redis", text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_database_is_one_of_those_named() {
        let rules = Rules::new(vec![(1, 2), (5, 5)], Default::default(), Vec::new());
        for (text, is_denied) in [
            ("select 0", true),
            ("select 2", false),
            ("select 5", false),
            ("select 05", true),
            ("get k", true),
            ("ping", false),
            ("move k 1", true),
            ("flushall", true),
        ] {
            let expected = is_denied.then_some(Denied::Database);
            let found = check(&rules, "redis", format!("{text}\r\n").as_bytes());
            assert_eq!(found, expected, "{text}");
        }
    }
}
