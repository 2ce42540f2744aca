//! A server's capabilities, the key of a connection to it, and its errors that may be waited out.

/// The capabilities of a server beyond those of every server: a set, of which the protocol of the
/// servers alone knows what each member means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    bits: u32,
    pub make: Make,
}

/// A server's identity, as clients may see it. Versions are major, minor, patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Make {
    /// The name of the program; empty where the servers differ.
    pub name: &'static str,
    pub version: [u16; 3],
    /// The version of the program that it claims to be compatible with, or its own version.
    pub like: [u16; 3],
}

impl Make {
    /// Returns the common identity, with the older versions.
    fn common(self, other: Make) -> Make {
        Make {
            name: if self.name == other.name { self.name } else { "" },
            version: self.version.min(other.version),
            like: self.like.min(other.like),
        }
    }
}

impl Capabilities {
    /// Makes the set of this one member.
    pub const fn one(member: u8) -> Capabilities {
        let make = Make { name: "", version: [0; 3], like: [0; 3] };
        Capabilities { bits: 1 << member, make }
    }

    /// Returns the capabilities that either has; the identity is this one's.
    pub const fn and(self, other: Capabilities) -> Capabilities {
        Capabilities { bits: self.bits | other.bits, make: self.make }
    }

    /// Returns the same capabilities of a server with this identity.
    pub const fn made_by(self, make: Make) -> Capabilities {
        Capabilities { bits: self.bits, make }
    }

    /// Whether these capabilities include all the others.
    pub fn include(self, others: Capabilities) -> bool {
        others.bits & !self.bits == 0
    }

    /// Returns the capabilities that both have.
    pub fn common(self, other: Capabilities) -> Capabilities {
        Capabilities { bits: self.bits & other.bits, make: self.make.common(other.make) }
    }
}

/// The connection key. Links are shared only by requests with the same connection key, because the
/// handshake on a link holds for everything that follows on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnKey {
    /// The version of the servers' protocol; 0 where there is only one.
    pub proto_version: u8,
    /// The number of the database.
    pub database: u32,
}

/// The result of the handshake on a new link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeReply {
    /// The server's answer, of `len` bytes, showed its capabilities.
    Welcome { len: usize, capabilities: Capabilities },
    /// The server refuses our credentials, or requires a login that we did not try.
    LoginRefused,
    /// The server takes no further connection. It is well, and answers on those that it has.
    Refused,
    /// The server refuses this connection key; otherwise it is well.
    SetupRefused,
    /// The server is busy with something that takes long. It refuses nothing, but the link has not
    /// got its connection key. The answer has come whole: the handshake may be repeated.
    Busy,
}
