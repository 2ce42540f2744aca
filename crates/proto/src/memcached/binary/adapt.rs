//! Adapts a binary request to a server, which uses text: to classic commands where they mean
//! exactly the same on every server, and otherwise to meta commands where the server has them.

use super::super::commands::{
    self, ADD, APPEND, CACHEDUMP, CAS, DECR, DELETE, FLUSH_ALL, GATS_ONE, INCR, MA, MD, MG, MS,
    PREPEND, REPLACE, SET, STATS, STATS_RESET,
};
use super::super::meta::base64;
use super::super::request::stats_words;
use super::super::{META, is_plain};
use super::header::{self, Header};
use super::opcodes::{self, Mode, Shape};
use crate::scan::push_decimal;
use crate::{Adapted, Ask, Capabilities, Quiet, Refusal, Request};

const NO_META: &str = "refused by the proxy: this needs the meta commands, which the server lacks";
/// A value that is longer may be more than a server allows for a whole item, with its key and its
/// head: 1 MiB, or what `-I` says, which is at least 512 KiB as long as `slab_chunk_max` is not set
/// as well. If so, an `ms` of any mode removes the old value; a packet does not, unless it is a
/// `Set`.
const SURE_LEN: u64 = (512 << 10) - 512;
/// The expiry with which an `Increment` creates nothing.
const NO_CREATE: u32 = u32::MAX;

/// Returns the form of a single request for a server with these capabilities.
pub(super) fn adapt(request: &Request, head: &[u8], capabilities: Option<Capabilities>) -> Adapted {
    let fields = Fields::read(request, head);
    match (fields.classic(), capabilities) {
        (Some(command), _) => Adapted::Ask(Ask { command }),
        (None, None) => Adapted::Unknown,
        (None, Some(capabilities)) => match fields.other(capabilities) {
            Some(command) => Adapted::Ask(Ask { command }),
            None => Adapted::Refused(Refusal::ByName(NO_META)),
        },
    }
}

/// Writes the head in the form of `ask`.
pub(super) fn write_head(request: &Request, head: &[u8], ask: Ask, out: &mut Vec<u8>) {
    let fields = Fields::read(request, head);
    let len = request.body;
    match ask.command {
        FLUSH_ALL => fields.write_flush(out),
        STATS | STATS_RESET..=CACHEDUMP => fields.write_stats(ask.command, out),
        MS => fields.write_ms(len, out),
        MD | MG | MA => fields.write_meta(ask.command, out),
        _ => fields.write_classic(ask.command, len, out),
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the packet that removes the key of a `Set`. As in memcached, an `Add` and the others keep
/// theirs.
pub(super) fn write_removal(request: &Request, head: &[u8], out: &mut Vec<u8>) -> bool {
    let fields = Fields::read(request, head);
    let removes = fields.shape == Shape::Store(Mode::Set);
    if removes {
        header::push_delete(fields.key, out);
    }
    removes
}

/// Writes the end of the data block, since the value of a binary packet has no trailer.
pub(super) fn write_tail(request: &Request, out: &mut Vec<u8>) {
    if matches!(opcodes::opcode(request.command).shape, Shape::Store(_) | Shape::Concat { .. }) {
        out.extend_from_slice(b"\r\n");
    }
}

/// Starts a read of one key.
pub(super) fn open_fetch(request: &Request, head: &[u8], out: &mut Vec<u8>) {
    match opcodes::opcode(request.command).shape {
        Shape::Touch { .. } => {
            out.extend_from_slice(b"gats");
            push(b" ", Fields::read(request, head).ttl(0).into(), out);
        }
        _ => out.extend_from_slice(b"gets"),
    }
}

/// The fields of a request.
struct Fields<'a> {
    header: Header,
    shape: Shape,
    quiet: bool,
    /// Its value may be more than the server allows.
    is_long: bool,
    head: &'a [u8],
    key: &'a [u8],
}

impl<'a> Fields<'a> {
    fn read(request: &Request, head: &'a [u8]) -> Fields<'a> {
        let row = opcodes::opcode(request.command);
        let Some(header) = Header::read(head) else { unreachable!("the parser has read it") };
        let quiet = row.quiet == Quiet::Sparing;
        let is_long = request.body > SURE_LEN;
        Fields { header, shape: row.shape, quiet, is_long, head, key: header.key(head) }
    }

    /// Returns the classic form that means the same on every server. Except for a read, its reply
    /// contains no cas number. So it serves where the client would see none: for a success that a
    /// quiet request hides, and for a `Delete`; and for long values, where the old one counts more.
    fn classic(&self) -> Option<u16> {
        let free = self.header.cas == 0;
        match self.shape {
            _ if !is_plain(self.key) => None,
            Shape::Delete if free => Some(DELETE),
            // Not `mg`, though its answer would be shorter. On a stale item it takes the right to
            // renew the item, and this client could not be informed of that.
            Shape::Touch { .. } => Some(GATS_ONE),
            Shape::Store(mode) if self.quiet || self.is_long && mode != Mode::Set => {
                Some(match mode {
                    _ if !free => CAS,
                    Mode::Set => SET,
                    Mode::Add => ADD,
                    Mode::Replace => REPLACE,
                })
            }
            Shape::Concat { front } if free && (self.quiet || self.is_long) => {
                Some(if front { PREPEND } else { APPEND })
            }
            Shape::Delta { down } if self.quiet && free && !self.creates() => {
                Some(if down { DECR } else { INCR })
            }
            _ => None,
        }
    }

    /// Returns the form for a server with these capabilities.
    fn other(&self, capabilities: Capabilities) -> Option<u16> {
        match self.shape {
            _ if !capabilities.include(META) => None,
            Shape::Get { .. } | Shape::Touch { .. } => Some(MG),
            Shape::Store(_) | Shape::Concat { .. } => Some(MS),
            Shape::Delete => Some(MD),
            Shape::Delta { .. } => Some(MA),
            _ => None,
        }
    }

    fn write_flush(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"flush_all");
        if self.header.extras > 0 {
            push(b" ", self.ttl(0).into(), out);
        }
    }

    /// Writes no more words than servers read.
    fn write_stats(&self, command: u16, out: &mut Vec<u8>) {
        out.extend_from_slice(b"stats");
        let words = self.key.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        for word in words.take(stats_words(command) - 1) {
            out.push(b' ');
            out.extend_from_slice(word);
        }
    }

    fn write_classic(&self, command: u16, len: u64, out: &mut Vec<u8>) {
        let name = match command {
            GATS_ONE => "gats",
            other => commands::TABLE[usize::from(other)].name,
        };
        out.extend_from_slice(name.as_bytes());
        if command == GATS_ONE {
            push(b" ", self.ttl(0).into(), out);
        }
        out.push(b' ');
        out.extend_from_slice(self.key);
        match self.shape {
            Shape::Store(_) => {
                push(b" ", self.header.small(self.head, 0).into(), out);
                push(b" ", self.ttl(4).into(), out);
                push(b" ", len, out);
                if command == CAS {
                    push(b" ", self.header.cas, out);
                }
            }
            Shape::Concat { .. } => push(b" 0 0 ", len, out),
            Shape::Delta { .. } => push(b" ", self.header.large(self.head, 0), out),
            _ => {}
        }
    }

    fn write_ms(&self, len: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"ms ");
        let coded = self.push_key(out);
        push(b" ", len, out);
        if let Shape::Store(mode) = self.shape {
            let (client, ttl) = (self.header.small(self.head, 0), self.ttl(4));
            if client != 0 {
                push(b" F", client.into(), out);
            }
            if ttl != 0 {
                push(b" T", ttl.into(), out);
            }
            // With a cas number, every mode is `cas`.
            match mode {
                Mode::Add if self.header.cas == 0 => out.extend_from_slice(b" ME"),
                Mode::Replace if self.header.cas == 0 => out.extend_from_slice(b" MR"),
                _ => {}
            }
        }
        if let Shape::Concat { front } = self.shape {
            out.extend_from_slice(if front { b" MP" } else { b" MA" });
        }
        self.push_rest(coded, out);
    }

    fn write_meta(&self, command: u16, out: &mut Vec<u8>) {
        out.extend_from_slice(commands::TABLE[usize::from(command)].name.as_bytes());
        out.push(b' ');
        let coded = self.push_key(out);
        match self.shape {
            Shape::Get { .. } => out.extend_from_slice(b" v f"),
            Shape::Touch { value, .. } => {
                push(b" T", self.ttl(0).into(), out);
                out.extend_from_slice(if value { b" v f" } else { b" f" });
            }
            Shape::Delta { down } => {
                out.extend_from_slice(if down { b" MD D" } else { b" D" });
                push_decimal(self.header.large(self.head, 0), out);
                if self.creates() {
                    push(b" N", self.ttl(16).into(), out);
                    push(b" J", self.header.large(self.head, 8), out);
                }
                if !self.quiet {
                    out.extend_from_slice(b" v");
                }
            }
            _ => {}
        }
        self.push_rest(coded, out);
    }

    /// Writes the key; returns whether as base64.
    fn push_key(&self, out: &mut Vec<u8>) -> bool {
        let coded = !is_plain(self.key);
        if coded {
            base64::push(self.key, out);
        } else {
            out.extend_from_slice(self.key);
        }
        coded
    }

    /// Writes the cas number to compare with, the flags that return one, and the encoding of the
    /// key.
    fn push_rest(&self, coded: bool, out: &mut Vec<u8>) {
        let reads = matches!(self.shape, Shape::Get { .. } | Shape::Touch { .. });
        if self.header.cas != 0 && !reads {
            push(b" C", self.header.cas, out);
        }
        if reads || !self.quiet && self.shape != Shape::Delete {
            out.extend_from_slice(b" c");
        }
        if coded {
            out.extend_from_slice(b" b");
        }
    }

    /// Whether an `Increment` creates the item on a miss.
    fn creates(&self) -> bool {
        self.header.small(self.head, 16) != NO_CREATE
    }

    /// Returns an expiry of the extras. Text has one bit less: a time beyond it is past the year
    /// 2038, and becomes the last second before.
    fn ttl(&self, at: usize) -> u32 {
        self.header.small(self.head, at).min(i32::MAX as u32)
    }
}

fn push(before: &[u8], number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(before);
    push_decimal(number, out);
}
