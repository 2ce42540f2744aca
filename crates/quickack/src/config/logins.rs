//! Files of `name:password` lines: the users of a pool, and the pool's own login to its servers.
//! Messages name the numbers of lines and never show a line.

use std::rc::Rc;

use proto::Credentials;
use proxy::users::Users;

use super::apply::Findings;
use super::attachments::{Attachments, Source};
use super::rules::Rules;

/// The contents of one pool's files.
#[derive(Default)]
pub struct Logins {
    pub users: Option<Rc<Users>>,
    pub server_login: Option<Credentials>,
}

/// Reads the files of one pool.
pub struct Reader<'r> {
    pub rules: &'r Rules<'r>,
    pub source: Source<'r>,
    /// Files that are read are added here.
    pub attachments: &'r mut Attachments,
    pub findings: &'r mut Findings,
}

impl Reader<'_> {
    /// Reads the files; `redis_auth` stands in for one that is not given.
    pub fn logins(&mut self) -> Logins {
        let draft = self.rules.draft;
        let secret = draft.redis_auth.as_deref().filter(|_| draft.speaks_redis());
        let credentials_of = match draft.speaks_redis() {
            true => credentials_of,
            false => credentials_of_one_word,
        };
        Logins {
            users: match draft.users {
                Some(_) => self.read("users", &draft.users, users_of),
                None => secret.map(users_of_one_password),
            },
            server_login: match draft.server_login {
                Some(_) => self.read("server_login", &draft.server_login, credentials_of),
                None => secret.map(credentials_without_a_name),
            },
        }
    }

    /// Reads the file that a directive names, if it is given.
    fn read<T>(
        &mut self,
        directive: &str,
        file: &Option<String>,
        understand: fn(&str) -> Result<T, Vec<String>>,
    ) -> Option<T> {
        let file = file.as_ref()?;
        let mut doubt = None;
        let read = self.source.read(file, &mut doubt).map_err(|error| vec![error.to_string()]);
        if let Some(doubt) = doubt {
            let spot = self.rules.spot_of(directive);
            self.findings.warning(spot, format!("{directive}: `{file}`: {doubt}"));
        }
        let understood = read.and_then(|text| {
            let understood = understand(&text);
            self.attachments.insert(file, text);
            understood
        });
        let told = match understood {
            Ok(understood) => return Some(understood),
            Err(told) => told,
        };
        for why in told {
            let spot = self.rules.spot_of(directive);
            self.findings.error(spot, format!("{directive}: `{file}`: {why}"));
        }
        None
    }
}

fn users_of(text: &str) -> Result<Rc<Users>, Vec<String>> {
    let pairs = pairs(text)?;
    match pairs.len() {
        0 => Err(vec!["no `name:password` line, so nobody could log in".to_string()]),
        1..=USERS_MAX => {
            let users = Users::new(pairs).expect("each line was found short enough");
            Ok(Rc::new(users))
        }
        more => Err(vec![format!("{more} passwords; at most {USERS_MAX} are allowed")]),
    }
}

/// Returns users with a password only: it belongs to the servers' default user.
fn users_of_one_password(password: &str) -> Rc<Users> {
    let users = Users::new([(DEFAULT_USER, password)]);
    Rc::new(users.expect("the directive takes no password that is too long"))
}

/// Returns credentials with a password alone, as before servers had users.
fn credentials_without_a_name(password: &str) -> Credentials {
    Credentials { name: String::new(), password: password.to_string() }
}

fn credentials_of(text: &str) -> Result<Credentials, Vec<String>> {
    let pairs = pairs(text)?;
    let [(name, password)] = pairs[..] else {
        let count = pairs.len();
        return Err(vec![format!("{count} `name:password` lines; exactly one is needed")]);
    };
    Ok(Credentials { name: name.to_string(), password: password.to_string() })
}

/// Checks credentials for memcached, which sends them as words of one line.
fn credentials_of_one_word(text: &str) -> Result<Credentials, Vec<String>> {
    let credentials = credentials_of(text)?;
    match credentials.password.contains(char::is_whitespace) {
        true => Err(vec!["a password for a server ends at its first space".to_string()]),
        false => Ok(credentials),
    }
}

/// Returns the pairs of a file, or the faults of its lines.
fn pairs(text: &str) -> Result<Vec<(&str, &str)>, Vec<String>> {
    let mut pairs = Vec::new();
    let mut wrong = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match pair(line) {
            Ok(pair) => pairs.push(pair),
            Err(why) => wrong.push(format!("line {}: {why}", at + 1)),
        }
    }
    if wrong.is_empty() {
        return Ok(pairs);
    }
    let more = wrong.len().saturating_sub(TOLD_MAX);
    wrong.truncate(TOLD_MAX);
    wrong.extend((more > 0).then(|| format!("{more} more lines are wrong")));
    Err(wrong)
}

fn pair(line: &str) -> Result<(&str, &str), &'static str> {
    let (name, password) = line.split_once(':').ok_or("no colon: write `name:password`")?;
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("a name of visible characters must be in front of the colon");
    }
    if password.is_empty() || password.contains(char::is_control) {
        return Err("a password without control characters must follow the colon");
    }
    match line.len() <= LINE_LEN_MAX {
        true => Ok((name, password)),
        false => Err("longer than 256 bytes"),
    }
}

/// The servers' name for a user who gives none.
const DEFAULT_USER: &str = "default";
/// Longest line of a file, in bytes.
const LINE_LEN_MAX: usize = 256;
/// Limit on passwords of one pool: each login attempt is compared with all of them.
const USERS_MAX: usize = 1000;
/// Limit on faulty lines of one file that are reported one by one.
const TOLD_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of users and passwords in a text, or the messages about it.
    fn check(text: &str) -> String {
        users_of(text).map_or_else(|told| told.join("; "), |users| users.to_string())
    }

    #[test]
    fn lines_are_pairs_but_for_comments_and_blank_ones() {
        let text = "# Ours.\n\nanna:old\r\nanna:new:er\n   \nbob:two words # no comment\n";
        assert_eq!(check(text), "2 users with 3 passwords");
        let users = users_of(text).unwrap();
        for (name, password) in
            [("anna", "old"), ("anna", "new:er"), ("bob", "two words # no comment")]
        {
            assert!(users.admit(name.as_bytes(), password.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_login_to_servers_is_one_line_without_spaces() {
        let check = |text: &str| {
            let found = credentials_of_one_word(text).map(|it| (it.name, it.password));
            found.map_err(|told| told.join("; "))
        };
        let expected = ("anna".to_string(), "a:b".to_string());
        assert_eq!(check("# Ours.\nanna:a:b\n"), Ok(expected));
        for (text, told) in [
            ("", "0 `name:password` lines"),
            ("a:secret\nb:secret\n", "2 `name:password` lines"),
            ("a:se cret\n", "ends at its first space"),
            ("secret\n", "line 1: no colon"),
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
            assert!(message.starts_with("line 3: "), "{message}");
            assert!(message.contains(told), "{message}");
            assert!(!message.contains("secret") && !message.contains("ppp"), "{message}");
        }
        assert!(check("").contains("nobody could log in"));
        assert!(check(&"a:b\n".repeat(1001)).contains("1001 passwords; at most 1000"));
        assert!(
            check(&"ab\n".repeat(9))
                .ends_with("line 5: no colon: write `name:password`; 4 more lines are wrong")
        );
    }
}
