//! Networks from which a listener accepts a PROXY header.

use std::net::IpAddr;

use ipnet::IpNet;

use super::value::Fault;

/// Adds the networks of a word: one, or `from [several, with commas]`.
pub fn networks(word: &str, into: &mut Vec<IpNet>) -> Result<(), Fault> {
    let list = word.strip_prefix("from ").unwrap_or(word).trim();
    let inside = list.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(list);
    for item in inside.split(',') {
        into.push(network(item.trim())?);
    }
    Ok(())
}

/// Parses `10.0.0.0/8` or a single address, which stands for itself alone.
fn network(word: &str) -> Result<IpNet, Fault> {
    if let Ok(address) = word.parse::<IpAddr>() {
        return Ok(IpNet::from(address));
    }
    let network: IpNet = word
        .parse()
        .map_err(|_| Fault::new(format!("`{word}` is not a network such as 10.0.0.0/8 or ::1")))?;
    match network.trunc() {
        exact if exact == network => Ok(network),
        exact => {
            let message = format!("`{word}` names a host inside its network");
            Err(Fault::new(message).suggest(Some(&exact.to_string())))
        }
    }
}
