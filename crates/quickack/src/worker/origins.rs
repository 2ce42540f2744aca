//! Where failed logins come from, until they are told of: a few addresses by name.

use std::fmt;
use std::net::IpAddr;

#[derive(Default)]
pub struct Origins {
    /// In the order of their first; a unix socket has no address.
    named: Vec<Option<IpAddr>>,
    /// Logins from others than those.
    others: u64,
}

impl Origins {
    pub fn note(&mut self, from: Option<IpAddr>) {
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
            match from {
                Some(address) => write!(f, "{comma}{address}")?,
                None => write!(f, "{comma}a unix socket")?,
            }
        }
        match self.others {
            0 => Ok(()),
            others => write!(f, "; {others} of them from other addresses"),
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
        origins.note(None);
        for last in [1, 1, 2, 3, 4, 5, 4] {
            origins.note(Some(IpAddr::from([192, 0, 2, last])));
        }
        let text = "a unix socket, 192.0.2.1, 192.0.2.2, 192.0.2.3; 3 of them from other addresses";
        assert_eq!(origins.to_string(), text);
    }
}
