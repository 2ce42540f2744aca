//! Where failed logins come from, until they are told of: a few addresses and names in words.

use std::fmt;
use std::net::IpAddr;

#[derive(Default)]
pub struct Origins {
    /// In the order of their first.
    named: Vec<Origin>,
    /// Logins from others than those.
    others: u64,
}

#[derive(PartialEq, Eq)]
struct Origin {
    /// A unix socket has no address.
    address: Option<IpAddr>,
    /// The name in printable form; empty if it is not shown.
    name: String,
    /// There is such a user.
    is_known: bool,
}

impl Origins {
    pub fn note(&mut self, address: Option<IpAddr>, name: String, is_known: bool) {
        let from = Origin { address, name, is_known };
        if self.named.contains(&from) {
            return;
        }
        match self.named.len() < NAMED_MAX {
            true => self.named.push(from),
            false => self.others += 1,
        }
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, from) in self.named.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match from.address {
                Some(address) => write!(f, "{comma}{address}")?,
                None => write!(f, "{comma}a unix socket")?,
            }
            if !from.name.is_empty() {
                let why = if from.is_known { "wrong password" } else { "no such user" };
                write!(f, " as \"{}\" ({why})", from.name)?;
            }
        }
        match self.others {
            0 => Ok(()),
            others => write!(f, "; {others} of them from other addresses or with other names"),
        }
    }
}

/// Attempts from many addresses must not make the line long.
const NAMED_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_few_addresses_of_failed_logins_are_named_and_the_others_counted() {
        let mut origins = Origins::default();
        origins.note(None, String::new(), false);
        for (last, name) in
            [(1, "anna"), (1, "anna"), (1, "bob"), (2, ""), (4, ""), (5, ""), (2, "")]
        {
            let address = IpAddr::from([192, 0, 2, last]);
            origins.note(Some(address), name.to_string(), name == "anna");
        }
        let text = "a unix socket, 192.0.2.1 as \"anna\" (wrong password), 192.0.2.1 as \"bob\" \
                    (no such user), 192.0.2.2; 2 of them from other addresses or with other names";
        assert_eq!(origins.to_string(), text);
    }
}
