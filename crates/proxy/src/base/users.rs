//! The users of a pool. A name may have several passwords, so that a new one can be deployed
//! everywhere before the old one is removed.
//!
//! The time of a login check depends only on the length of the attempt and on the number of lines:
//! every line is compared to its end, whatever the results of the lines before.

use std::fmt;
use std::rc::Rc;

use subtle::{Choice, ConstantTimeEq};

/// The users of a pool: pairs of a name and one of its passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct Users {
    lines: Vec<Line>,
    /// The different names, in order.
    names: Vec<Rc<str>>,
}

/// A name, a zero, a password, and zeros. Neither part contains a zero, so no two pairs have the
/// same line.
#[derive(Clone, PartialEq, Eq)]
struct Line([u128; LINE_LEN_MAX / 16]);

/// The longest name and password together with the zero between them, in bytes. A password of 255
/// bytes fits if its user's name is short.
pub const LINE_LEN_MAX: usize = 272;

impl Users {
    /// Makes users from pairs of a name and a password. None if a pair is too long or contains a
    /// zero.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Users> {
        let mut lines = Vec::new();
        let mut names = std::collections::BTreeSet::new();
        for (name, password) in pairs {
            names.insert(name);
            lines.push(Line::new(name.as_bytes(), password.as_bytes())?);
        }
        Some(Users { lines, names: names.into_iter().map(Rc::from).collect() })
    }

    /// Returns a user's name, if there is such a user. It is no secret: this is asked about users
    /// who have logged in.
    pub fn find(&self, name: &[u8]) -> Option<Rc<str>> {
        let found = self.names.binary_search_by(|one| one.as_bytes().cmp(name));
        found.ok().map(|at| Rc::clone(&self.names[at]))
    }

    /// Returns the names of all users.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// Whether this is a password of the user with this name.
    pub fn admit(&self, name: &[u8], password: &[u8]) -> bool {
        let Some(tried) = Line::new(name, password) else { return false };
        let any = |found: Choice, line: &Line| found | line.0.ct_eq(&tried.0);
        self.lines.iter().fold(Choice::from(0), any).into()
    }
}

impl Line {
    fn new(name: &[u8], password: &[u8]) -> Option<Line> {
        let mut bytes = [0; LINE_LEN_MAX];
        let has_zero = name.contains(&0) || password.contains(&0);
        if has_zero || name.len() + 1 + password.len() > LINE_LEN_MAX {
            return None;
        }
        bytes[..name.len()].copy_from_slice(name);
        bytes[name.len() + 1..][..password.len()].copy_from_slice(password);
        let mut words = [0; LINE_LEN_MAX / 16];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u128::from_ne_bytes(*bytes);
        }
        Some(Line(words))
    }
}

/// Shows no name or password, since this text reaches people and logs.
impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [names, passwords] = [self.names.len(), self.lines.len()];
        let [of_names, of_passwords] =
            [names, passwords].map(|count| if count == 1 { "" } else { "s" });
        write!(f, "{names} user{of_names} with {passwords} password{of_passwords}")
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: [(&str, &str); 4] =
        [("anna", "old"), ("bob", "x"), ("anna", "new:er"), ("c", "two words")];

    #[test]
    fn every_password_of_a_name_is_taken_and_no_other() {
        let users = Users::new(PAIRS).unwrap();
        for (name, password) in PAIRS {
            assert!(users.admit(name.as_bytes(), password.as_bytes()), "{name}");
        }
        let wrong: [(&[u8], &[u8]); 10] = [
            (b"anna", b"x"),
            (b"bob", b"old"),
            (b"anna", b"ol"),
            (b"anna", b"old "),
            (b"anna", b""),
            (b"", b""),
            (b"", b"anna\0old"),
            (b"anna\0old", b""),
            (b"ann", b"aold"),
            (b"anna", &[b'x'; 5000]),
        ];
        for (name, password) in wrong {
            assert!(!users.admit(name, password), "{name:?} {password:?}");
        }
        assert!(!Users::new([]).unwrap().admit(b"", b""));
        // A file may say the same twice.
        let twice = Users::new([PAIRS[1], PAIRS[0], PAIRS[1]]).unwrap();
        assert!(twice.admit(b"bob", b"x") && twice.admit(b"anna", b"old"));
    }

    #[test]
    fn the_longest_line_has_its_last_byte_compared() {
        let password = "p".repeat(LINE_LEN_MAX - "anna:".len());
        let users = Users::new([("anna", &*password)]).unwrap();
        assert!(users.admit(b"anna", password.as_bytes()));
        assert!(!users.admit(b"anna", &password.as_bytes()[1..]));
        let other = format!("{}q", &password[1..]);
        assert!(!users.admit(b"anna", other.as_bytes()));
        assert!(Users::new([("anna", &*format!("{password}p"))]).is_none());
    }

    #[test]
    fn nothing_secret_is_shown() {
        let users = Users::new(PAIRS).unwrap();
        assert_eq!(
            format!("{users}, {users:?}"),
            "3 users with 4 passwords, (3 users with 4 passwords)"
        );
        assert_eq!(Users::new([("a", "b")]).unwrap().to_string(), "1 user with 1 password");
    }
}
