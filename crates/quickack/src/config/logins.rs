//! Files of `name:password` lines: who may log in to a pool, and who the pool is to its servers.
//! What is told about them names lines and never shows one.

use std::rc::Rc;

use proto::Credentials;
use proxy::users::{self, Users};

use super::apply::Findings;
use super::attachments::{Attachments, Source};
use super::rules::Rules;

/// What the files of one pool say.
#[derive(Default)]
pub struct Logins {
    pub users: Option<Rc<Users>>,
    pub server_login: Option<Credentials>,
}

/// What one pool is read with.
pub struct Reader<'r> {
    pub rules: &'r Rules<'r>,
    pub source: Source<'r>,
    /// What was read is added.
    pub attachments: &'r mut Attachments,
    pub findings: &'r mut Findings,
}

impl Reader<'_> {
    pub fn logins(&mut self) -> Logins {
        let draft = self.rules.draft;
        Logins {
            users: self.read("users", &draft.users, users_of),
            server_login: self.read("server_login", &draft.server_login, credentials_of),
        }
    }

    /// Reads the file that a directive names, if it is written.
    fn read<T>(
        &mut self,
        directive: &str,
        file: &Option<String>,
        understand: fn(&str, &str, &mut dyn FnMut(String)) -> Option<T>,
    ) -> Option<T> {
        let file = file.as_ref()?;
        let spot = self.rules.spot_of(directive);
        let mut tell = |message: String| {
            self.findings.error(spot.clone(), format!("{directive}: {message}"));
        };
        match self.source.read(file) {
            Ok(text) => {
                let understood = understand(file, &text, &mut tell);
                self.attachments.insert(file, text);
                understood
            }
            Err(why) => {
                tell(format!("`{file}`: {why}"));
                None
            }
        }
    }
}

fn users_of(file: &str, text: &str, tell: &mut dyn FnMut(String)) -> Option<Rc<Users>> {
    let pairs = pairs(file, text, tell)?;
    match pairs.len() {
        0 => tell(format!("`{file}` has no `name:password` line, so nobody could log in")),
        1..=USERS_MAX => {}
        more => tell(format!("`{file}` has {more} passwords; {USERS_MAX} are the most")),
    }
    Users::new(pairs).map(Rc::new)
}

fn credentials_of(file: &str, text: &str, tell: &mut dyn FnMut(String)) -> Option<Credentials> {
    let pairs = pairs(file, text, tell)?;
    let [(name, password)] = pairs[..] else {
        let count = pairs.len();
        tell(format!("`{file}` has {count} `name:password` lines, not the one that is used"));
        return None;
    };
    if password.contains(char::is_whitespace) {
        tell(format!("`{file}`: to a server a password ends at its first space"));
        return None;
    }
    Some(Credentials { name: name.to_string(), password: password.to_string() })
}

/// The pairs of a file. None, and what is wrong told line by line, if there are others in it.
fn pairs<'t>(
    file: &str,
    text: &'t str,
    tell: &mut dyn FnMut(String),
) -> Option<Vec<(&'t str, &'t str)>> {
    let mut pairs = Vec::new();
    let mut wrong = 0;
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match pair(line) {
            Ok(pair) => pairs.push(pair),
            Err(why) => {
                wrong += 1;
                if wrong <= TOLD_MAX {
                    tell(format!("`{file}`, line {}: {why}", at + 1));
                }
            }
        }
    }
    if wrong > TOLD_MAX {
        tell(format!("`{file}`: {} more lines are wrong", wrong - TOLD_MAX));
    }
    (wrong == 0).then_some(pairs)
}

fn pair(line: &str) -> Result<(&str, &str), &'static str> {
    let (name, password) = line.split_once(':').ok_or("no colon: write `name:password`")?;
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("before the colon stands a name, of visible characters");
    }
    if password.is_empty() || password.contains(char::is_control) {
        return Err("after the colon stands a password, without control characters");
    }
    match line.len() <= users::LINE_LEN_MAX {
        true => Ok((name, password)),
        false => Err("longer than 256 bytes"),
    }
}

/// Passwords of one pool: each try is compared with all of them.
const USERS_MAX: usize = 1000;
/// Lines of one file that are told of one by one.
const TOLD_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told about a text, in the end how many users and passwords it has.
    fn check(text: &str) -> String {
        let mut told = Vec::new();
        let users = users_of("f", text, &mut |message| told.push(message));
        told.extend(users.map(|users| users.to_string()));
        told.join("; ")
    }

    #[test]
    fn lines_are_pairs_but_for_comments_and_blank_ones() {
        let text = "# Ours.\n\nanna:old\r\nanna:new:er\n   \nbob:two words # no comment\n";
        assert_eq!(check(text), "2 users with 3 passwords");
        let users = users_of("f", text, &mut |_| ()).unwrap();
        for (name, password) in
            [("anna", "old"), ("anna", "new:er"), ("bob", "two words # no comment")]
        {
            assert!(users.admit(name.as_bytes(), password.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_login_to_servers_is_one_line_without_spaces() {
        let check = |text: &str| {
            let mut told = String::new();
            let found = credentials_of("f", text, &mut |message| told += &message);
            found.map(|it| (it.name, it.password)).ok_or(told)
        };
        let expected = ("anna".to_string(), "a:b".to_string());
        assert_eq!(check("# Ours.\nanna:a:b\n"), Ok(expected));
        for (text, told) in [
            ("", "has 0 `name:password` lines"),
            ("a:secret\nb:secret\n", "has 2 `name:password` lines"),
            ("a:se cret\n", "ends at its first space"),
            ("secret\n", "`f`, line 1: no colon"),
        ] {
            let message = check(text).unwrap_err();
            assert!(message.contains(told) && !message.contains("cret"), "{message}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_by_line_and_never_shown() {
        let long = format!("n:{}", "p".repeat(255));
        for (line, told) in [
            ("secret", "no colon"),
            (":secret", "a name"),
            ("a secret:secret", "a name"),
            ("secret:", "a password"),
            ("n:se\u{0}cret", "a password"),
            ("n:se\tcret", "a password"),
            (long.as_str(), "longer than 256 bytes"),
        ] {
            let message = check(&format!("fine:fine\n#\n{line}\n"));
            assert!(message.starts_with("`f`, line 3: "), "{message}");
            assert!(message.contains(told), "{message}");
            assert!(!message.contains("secret") && !message.contains("ppp"), "{message}");
        }
        assert!(check("").contains("nobody could log in"));
        assert!(check(&"a:b\n".repeat(1001)).contains("1001 passwords; 1000 are"));
        assert!(
            check(&"ab\n".repeat(9))
                .ends_with("line 5: no colon: write `name:password`; `f`: 4 more lines are wrong")
        );
    }
}
