//! What names of hosts mean, as the system's resolver says (`getaddrinfo`): `nsswitch.conf`,
//! `/etc/hosts` and name servers decide. A look-up may take minutes and cannot be interrupted.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// The addresses of a host, with port 0; or why there are none.
pub type Found = Result<Vec<SocketAddr>, String>;

/// Whether a host is written as a name, so that somebody has to be asked.
pub fn is_name(host: &str) -> bool {
    host.len() <= NAME_LEN_MAX && host.parse::<IpAddr>().is_err()
}

/// Asks the system, and waits for as long as it takes.
pub fn ask(host: &str) -> Found {
    if host.len() > NAME_LEN_MAX {
        return Err(format!("a name of more than {NAME_LEN_MAX} characters"));
    }
    match (host, 0).to_socket_addrs() {
        Ok(found) => {
            let found: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
            if found.is_empty() { Err("it has no address".to_string()) } else { Ok(found) }
        }
        Err(error) => Err(said(&error.to_string())),
    }
}

/// What the system said, without the words that each of its answers begins with.
fn said(error: &str) -> String {
    let words = error.strip_prefix("failed to lookup address information: ").unwrap_or(error);
    super::plain_words(words)
}

/// Addresses of one host that count; nobody has more.
const ADDRESSES_MAX: usize = 64;
/// A name in DNS is no longer (RFC 1035, 2.3.4).
const NAME_LEN_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_no_names() {
        assert!(is_name("localhost") && is_name("1.2.3") && !is_name("1.2.3.4") && !is_name("::1"));
    }
}
