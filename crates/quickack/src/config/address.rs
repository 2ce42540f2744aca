//! Addresses of listeners and servers: the two lines that `nutcracker.yml` writes without the
//! spaces that a reader would expect.
//!
//! ```text
//!   listen:    host:port           /path/of/socket [mode]
//!   - server:  host:port:weight [name]     /path/of/socket:weight [name]     embedded
//! ```
//!
//! twemproxy parses both from the right, so a host may contain colons (`::1:11211:1`). This parser
//! does the same, and also accepts brackets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::path::PathBuf;

use proxy::plan::ServerPlan;

use super::foreign;
use super::report::nearest;
use super::value::{self, Fault};

/// The address of a pool's listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Port 0 lets the kernel choose.
    Tcp { host: String, port: u16 },
    /// `mode` is set on the socket file; without it the umask applies.
    Unix { path: PathBuf, mode: Option<u32> },
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
    /// A cache process of this program on a private socket, with a limit on its memory in bytes.
    Embedded {
        memory: usize,
    },
}

impl ServerAddress {
    /// Whether both lead to the same server. Each embedded cache is one of its own.
    pub fn is_same(&self, other: &ServerAddress) -> bool {
        self == other && !matches!(self, ServerAddress::Embedded { .. })
    }

    /// Whether both may lead to the same server though they are spelled in two ways: as a name in
    /// large or small letters, as an IP address, or as names and addresses of this machine.
    pub fn may_be_same(&self, other: &ServerAddress) -> bool {
        let (
            ServerAddress::Tcp { host, port },
            ServerAddress::Tcp { host: their_host, port: theirs },
        ) = (self, other)
        else {
            return self.is_same(other);
        };
        port == theirs && Host::of(host).may_be(&Host::of(their_host))
    }
}

/// One line under `servers:`.
#[derive(Clone, Debug)]
pub struct ServerLine {
    pub address: ServerAddress,
    pub weight: u32,
    /// The name after the address, if one was given.
    pub name: Option<String>,
    /// The name that the ring hashes if none is given.
    pub default_name: String,
    /// The whole line.
    pub text: String,
}

/// A host, however it is spelled.
#[derive(PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    Name(String),
}

impl Host {
    fn of(text: &str) -> Host {
        let ip = text.parse().ok().or_else(|| Some(IpAddr::V4(short_ip(text)?)));
        match ip {
            Some(ip) => Host::Ip(ip.to_canonical()),
            None => Host::Name(text.trim_end_matches('.').to_ascii_lowercase()),
        }
    }

    fn may_be(&self, other: &Host) -> bool {
        self == other || self.is_this_machine() && other.is_this_machine()
    }

    /// Whether it is one of the usual words for this machine. Servers may stand at 127.0.0.2 as
    /// well, to be told apart.
    fn is_this_machine(&self) -> bool {
        match self {
            Host::Ip(ip) => *ip == Ipv4Addr::LOCALHOST || *ip == Ipv6Addr::LOCALHOST,
            Host::Name(name) => name == "localhost",
        }
    }
}

/// Reads an address as inet_aton does, and so the resolver: of one to four numbers, each decimal,
/// octal or hexadecimal, and the last for all bytes that are left (`127.1`).
fn short_ip(text: &str) -> Option<Ipv4Addr> {
    let number = |part: &str| {
        if part.contains('+') {
            return None;
        }
        let hexadecimal = part.strip_prefix("0x").or_else(|| part.strip_prefix("0X"));
        match (hexadecimal, part.strip_prefix('0')) {
            (Some(digits), _) => u32::from_str_radix(digits, 16).ok(),
            (None, Some(digits)) if !digits.is_empty() => u32::from_str_radix(digits, 8).ok(),
            _ => part.parse().ok(),
        }
    };
    let numbers: Vec<u32> = text.split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = numbers.split_last()?;
    let left = u32::checked_sub(4, first.len() as u32).filter(|left| *left > 0)?;
    let is_fit = first.iter().all(|byte| *byte < 256) && u64::from(*last) >> (8 * left) == 0;
    let high = first.iter().fold(0, |ip, byte| ip << 8 | byte);
    is_fit.then(|| Ipv4Addr::from_bits(high.checked_shl(8 * left).unwrap_or(0) | last))
}

impl Address {
    pub fn parse(word: &str) -> Result<Address, Fault> {
        if word.starts_with('/') {
            return unix_listen(word);
        }
        let Some((host, port)) = word.rsplit_once(':') else {
            return Err(Fault::new(format!(
                "`{word}` is not an address: write `host:port` or `/path/of/socket`"
            )));
        };
        let port =
            port_number(port, 0).map_err(|fault| fault.within(host.len() + 1..word.len()))?;
        Ok(Address::Tcp { host: bare_host(host)?.to_string(), port })
    }

    /// Returns a key that two listeners must not share, because they would use the same address.
    pub fn claim(&self) -> Option<String> {
        match self {
            Address::Tcp { port: 0, .. } => None,
            Address::Tcp { .. } => Some(self.to_string()),
            Address::Unix { path, .. } => Some(path.display().to_string()),
        }
    }

    /// Resolves the host's name to addresses. It calls the system's resolver and may block.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        match self {
            Address::Tcp { host, port } => Ok((&**host, *port).to_socket_addrs()?.collect()),
            Address::Unix { .. } => Ok(Vec::new()),
        }
    }
}

impl ServerLine {
    /// The name that the ring hashes, and that identifies the server.
    pub fn ring_name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.default_name)
    }

    pub fn plan(&self) -> ServerPlan {
        let label = self.name.clone().unwrap_or_else(|| self.address.to_string());
        ServerPlan::new(self.ring_name(), &label, self.weight)
    }

    pub fn parse(line: &str) -> Result<ServerLine, Fault> {
        let text = line.to_string();
        let (place, name) = match line.rsplit_once(' ') {
            Some((place, name)) => (place, Some(name)),
            None => (line, None),
        };
        if name == Some("") || place.ends_with(' ') {
            return Err(Fault::new("one space stands between a server's address and its name"));
        }
        if line.contains(char::is_control) {
            // Replies and reports show the line, and a line break in it would end the reply.
            return Err(Fault::new("a server's line may have only visible characters"));
        }
        let name = name.map(str::to_string);
        if place == EMBEDDED {
            let address = ServerAddress::Embedded { memory: 0 };
            let default_name = EMBEDDED.to_string();
            return Ok(ServerLine { address, weight: 1, name, default_name, text });
        }
        let Some((target, weight)) = place.rsplit_once(':') else {
            return Err(not_a_server(line, place));
        };
        let help = place.contains(' ').then_some(foreign::WORDS);
        let weight = value::number(weight, &(1..=WEIGHT_MAX))
            .map_err(|fault| wrong("weight", fault, target.len() + 1..place.len()).help(help))?
            as u32;
        if target.starts_with('/') {
            let default_name = shard::default_node_name_unix(target);
            let address = ServerAddress::Unix(socket_path(target)?);
            return Ok(ServerLine { address, weight, name, default_name, text });
        }
        let Some((host, port_word)) = target.rsplit_once(':') else {
            return Err(not_a_server(line, place));
        };
        let port = port_number(port_word, 1)
            .map_err(|fault| fault.within(host.len() + 1..target.len()))?;
        // The ring hashes the port as it was written, leading zeros included.
        let default_name = match shard::default_node_name(host, port) {
            name if name == host => name,
            _ => target.to_string(),
        };
        let address = ServerAddress::Tcp { host: bare_host(host)?.to_string(), port };
        Ok(ServerLine { address, weight, name, default_name, text })
    }
}

/// The keyword for a cache process of our own.
pub const EMBEDDED: &str = "embedded";
/// twemproxy keeps weights in an `int`.
const WEIGHT_MAX: u64 = i32::MAX as u64;
/// The room for a path in a socket's address, without the terminating zero.
const UNIX_PATH_LEN_MAX: usize = 107;

fn not_a_server(line: &str, place: &str) -> Fault {
    Fault::new(format!(
        "`{line}` is not a server: write `host:port:weight [name]` or \
         `/path/of/socket:weight [name]`"
    ))
    .suggest(nearest(place, [EMBEDDED]))
    .help(place.contains(':').then_some(foreign::NO_WEIGHT))
}

fn wrong(what: &str, fault: Fault, part: Range<usize>) -> Fault {
    Fault::new(format!("wrong {what}: {}", fault.message)).within(part)
}

fn port_number(word: &str, smallest: u64) -> Result<u16, Fault> {
    match value::number(word, &(smallest..=u64::from(u16::MAX))) {
        Ok(port) => Ok(port as u16),
        Err(fault) => Err(Fault::new(format!("wrong port: {}", fault.message))),
    }
}

fn bare_host(host: &str) -> Result<&str, Fault> {
    let bare = match host.strip_prefix('[').and_then(|inside| inside.strip_suffix(']')) {
        Some(inside) => inside,
        None => host,
    };
    if bare.is_empty() {
        return Err(Fault::new("the host is missing before the port"));
    }
    // An IPv6 address has two colons at least.
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "/<>{}$".contains(c);
    if bare.contains(is_odd) || bare.matches(':').count() == 1 {
        return Err(Fault::new(format!("`{bare}` is not a host name")).within(0..host.len()));
    }
    Ok(bare)
}

fn unix_listen(word: &str) -> Result<Address, Fault> {
    let Some((path, mode_word)) = word.rsplit_once(' ') else {
        return Ok(Address::Unix { path: socket_path(word)?, mode: None });
    };
    let octal = mode_word.bytes().all(|byte| byte.is_ascii_digit());
    match u32::from_str_radix(mode_word, 8) {
        // twemproxy sets no mode if it is 0.
        Ok(0) if octal => Ok(Address::Unix { path: socket_path(path)?, mode: None }),
        Ok(mode) if octal && mode <= 0o777 => {
            Ok(Address::Unix { path: socket_path(path)?, mode: Some(mode) })
        }
        _ => Err(Fault::new(format!(
            "`{mode_word}` is not a file mode: three octal digits such as 0770 are"
        ))
        .within(path.len() + 1..word.len())),
    }
}

/// Checks that a socket's path fits into an address.
pub fn socket_path(path: &str) -> Result<PathBuf, Fault> {
    if path.len() > UNIX_PATH_LEN_MAX {
        let len = path.len();
        return Err(Fault::new(format!(
            "a socket's path has at most {UNIX_PATH_LEN_MAX} bytes; this one has {len}"
        )));
    }
    if path.contains(char::is_control) {
        return Err(Fault::new("a socket's path may have only visible characters"));
    }
    Ok(PathBuf::from(path))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } => write_host_port(f, host, *port),
            Address::Unix { path, mode: None } => write!(f, "{}", path.display()),
            Address::Unix { path, mode: Some(mode) } => write!(f, "{} {mode:04o}", path.display()),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp { host, port } => write_host_port(f, host, *port),
            ServerAddress::Unix(path) => write!(f, "{}", path.display()),
            ServerAddress::Embedded { .. } => f.write_str(EMBEDDED),
        }
    }
}

fn write_host_port(f: &mut fmt::Formatter<'_>, host: &str, port: u16) -> fmt::Result {
    match host.contains(':') {
        true => write!(f, "[{host}]:{port}"),
        false => write!(f, "{host}:{port}"),
    }
}
