//! Requests in the newer protocols: meta lines and binary packets. Each request has its own opaque,
//! which identifies its answer: only some quiet requests are answered.

use super::ask::Asker;
use super::client::Asked;
use super::journal::UpdateKind;
use crate::wire::binary::Packet;

/// A request of meta or binary.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub what: What,
    /// The opcode, if it is a packet.
    pub opcode: Option<u8>,
    pub opaque: u32,
    /// Only some of its outcomes are answered.
    pub is_sparing: bool,
    /// Its answer contains the key.
    pub tells_key: bool,
    /// It is sent in its own form, so that its answer has the marks of the item.
    pub is_marked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Get {
        key: usize,
    },
    /// A read that also sets the expiry: its number in the journal.
    GetAndTouch {
        key: usize,
        number: u32,
    },
    /// A read that creates a missing item and asks one client to fill it.
    Vivify {
        key: usize,
        number: u32,
    },
    /// An update whose outcome is in the journal.
    Update {
        number: u32,
        adds: Adds,
    },
    Delete {
        key: usize,
    },
    Barrier,
}

/// The kind of a store, on which binary's error status depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adds {
    Add,
    Replace,
    Other,
}

impl Form {
    /// Returns the number in the journal.
    pub fn update(&self) -> Option<u32> {
        match self.what {
            What::GetAndTouch { number, .. }
            | What::Vivify { number, .. }
            | What::Update { number, .. } => Some(number),
            What::Get { .. } | What::Delete { .. } | What::Barrier => None,
        }
    }

    pub fn changes(&self) -> bool {
        !matches!(self.what, What::Get { .. } | What::Barrier)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Get,
    Store,
    Delta,
    Delete,
    Vivify,
    Invalidate,
    Touch,
}

const META: &[(usize, Kind)] = &[
    (40, Kind::Get),
    (30, Kind::Store),
    (10, Kind::Delta),
    (8, Kind::Delete),
    (8, Kind::Vivify),
    (4, Kind::Invalidate),
];

const BINARY: &[(usize, Kind)] =
    &[(45, Kind::Get), (30, Kind::Store), (10, Kind::Delta), (8, Kind::Delete), (7, Kind::Touch)];

impl Asker<'_> {
    /// Sends one loud meta request, or quiet ones followed by a barrier.
    pub fn meta(&mut self) {
        if self.random.permille(700) {
            let kind = self.random.weighted(META);
            return self.meta_one(kind, false);
        }
        for _ in 0..self.random.range(1, 8) {
            // Silent ones among them must also be settled.
            match self.random.below(4) {
                0 => self.quiet_store(),
                _ => {
                    let kind = self.random.weighted(META);
                    self.meta_one(kind, true);
                }
            }
        }
        let before = self.client.unsent.len();
        self.client.unsent.extend_from_slice(b"mn\r\n");
        self.form(What::Barrier, None, before, false, false, false);
    }

    fn meta_one(&mut self, kind: Kind, sparing: bool) {
        let key = self.key();
        let text = self.keys[key].text.clone();
        let before = self.client.unsent.len();
        let tells_key = self.random.permille(300);
        let mut line = String::new();
        let mut data = Vec::new();
        let mut is_marked = true;
        let what = match kind {
            Kind::Get => {
                line.push_str(&format!("mg {text} v f c"));
                is_marked = false;
                What::Get { key }
            }
            Kind::Vivify | Kind::Touch => {
                let number = self.new_update(UpdateKind::Vivify, Some(key), false);
                line.push_str(&format!("mg {text} v N{number} f c"));
                What::Vivify { key, number }
            }
            Kind::Store => {
                let number = self.new_update(UpdateKind::Store, Some(key), false);
                self.may_remove(number, true);
                data = self.value(number);
                let (mode, adds) = *self.random.pick(&[
                    ("", Adds::Other),
                    ("", Adds::Other),
                    (" ME", Adds::Add),
                    (" MR", Adds::Replace),
                    (" MA", Adds::Other),
                ]);
                line.push_str(&format!("ms {text} {} F{number}{mode}", data.len()));
                What::Update { number, adds }
            }
            Kind::Delta => {
                let number = self.new_update(UpdateKind::Delta, Some(key), false);
                line.push_str(&format!("ma {text} D{number} v"));
                What::Update { number, adds: Adds::Other }
            }
            Kind::Delete => {
                line.push_str(&format!("md {text}"));
                What::Delete { key }
            }
            Kind::Invalidate => {
                let number = self.new_update(UpdateKind::Invalidate, Some(key), false);
                line.push_str(&format!("md {text} I T{number}"));
                What::Update { number, adds: Adds::Other }
            }
        };
        let opaque = self.client.requests + 1;
        line.push_str(&format!(" O{}x{opaque}", self.client.number));
        if tells_key {
            line.push_str(" k");
        }
        if sparing {
            line.push_str(" q");
        }
        line.push_str("\r\n");
        self.client.unsent.extend_from_slice(line.as_bytes());
        if line.starts_with("ms") {
            self.client.unsent.extend_from_slice(&data);
            self.client.unsent.extend_from_slice(b"\r\n");
        }
        self.form(what, None, before, sparing, tells_key, is_marked);
    }

    /// Sends a change that is answered only if it fails.
    pub fn quiet_form(&mut self) {
        match self.client.is_binary {
            true => self.packet_of(Kind::Store, true),
            false => self.meta_one(Kind::Store, true),
        }
    }

    /// Sends one loud packet, or quiet ones with or without a loud one after them.
    pub fn binary(&mut self) {
        if self.random.permille(500) {
            let kind = self.random.weighted(BINARY);
            return self.packet_of(kind, false);
        }
        for _ in 0..self.random.range(1, 12) {
            let kind = self.random.weighted(BINARY);
            self.packet_of(kind, true);
        }
        match self.random.below(10) {
            0..3 => {}
            3..5 => self.packet_of(Kind::Get, false),
            _ => self.noop(),
        }
    }

    pub fn noop(&mut self) {
        self.packet(0x0a, What::Barrier, b"", b"", b"", false, false);
    }

    /// Reads all keys, each with one quiet read, followed by a barrier.
    pub fn read_all_binary(&mut self) {
        for key in 0..self.keys.len() {
            let text = self.keys[key].text.clone();
            self.packet(0x0d, What::Get { key }, b"", text.as_bytes(), b"", true, true);
        }
        self.noop();
    }

    fn packet_of(&mut self, kind: Kind, quiet: bool) {
        let key = self.key();
        let text = self.keys[key].text.clone();
        let text = text.as_bytes();
        let tells_key = self.random.permille(300);
        let pick = |loud: u8, sparing: u8| if quiet { sparing } else { loud };
        match kind {
            Kind::Get => {
                let (plain, with_key) = (pick(0x00, 0x09), pick(0x0c, 0x0d));
                let opcode = if tells_key { with_key } else { plain };
                self.packet(opcode, What::Get { key }, b"", text, b"", quiet, tells_key);
            }
            Kind::Touch | Kind::Vivify | Kind::Invalidate => {
                let number = self.new_update(UpdateKind::GetAndTouch, None, false);
                let what = What::GetAndTouch { key, number };
                let (plain, with_key) = (pick(0x1d, 0x1e), pick(0x23, 0x24));
                let opcode = if tells_key { with_key } else { plain };
                let extras = number.to_be_bytes();
                self.packet(opcode, what, &extras, text, b"", quiet, tells_key);
            }
            Kind::Store => self.packet_store(key, text, quiet),
            Kind::Delta => {
                let number = self.new_update(UpdateKind::Delta, Some(key), false);
                let mut extras = u64::from(number).to_be_bytes().to_vec();
                extras.extend_from_slice(&0u64.to_be_bytes());
                extras.extend_from_slice(&u32::MAX.to_be_bytes());
                let opcode = match self.random.permille(700) {
                    true => pick(0x05, 0x15),
                    false => pick(0x06, 0x16),
                };
                let what = What::Update { number, adds: Adds::Other };
                self.packet(opcode, what, &extras, text, b"", quiet, false);
            }
            Kind::Delete => {
                let opcode = pick(0x04, 0x14);
                self.packet(opcode, What::Delete { key }, b"", text, b"", quiet, false);
            }
        }
    }

    fn packet_store(&mut self, key: usize, text: &[u8], quiet: bool) {
        let number = self.new_update(UpdateKind::Store, Some(key), false);
        let data = self.value(number);
        let (loud, sparing, adds) = *self.random.pick(&[
            (0x01, 0x11, Adds::Other),
            (0x01, 0x11, Adds::Other),
            (0x02, 0x12, Adds::Add),
            (0x03, 0x13, Adds::Replace),
            (0x0e, 0x19, Adds::Other),
            (0x0f, 0x1a, Adds::Other),
        ]);
        self.may_remove(number, loud == 0x01);
        let mut extras = number.to_be_bytes().to_vec();
        extras.extend_from_slice(&[0; 4]);
        if matches!(loud, 0x0e | 0x0f) {
            extras.clear();
        }
        let opcode = if quiet { sparing } else { loud };
        self.packet(opcode, What::Update { number, adds }, &extras, text, &data, quiet, false);
    }

    #[allow(clippy::too_many_arguments)]
    fn packet(
        &mut self,
        opcode: u8,
        what: What,
        extras: &[u8],
        key: &[u8],
        data: &[u8],
        sparing: bool,
        tells_key: bool,
    ) {
        let before = self.client.unsent.len();
        let opaque = (self.client.requests + 1) as u32;
        let packet = Packet { extras, key, value: data, ..Packet::new(opcode, opaque) };
        packet.push(&mut self.client.unsent);
        self.form(what, Some(opcode), before, sparing, tells_key, false);
    }

    fn form(
        &mut self,
        what: What,
        opcode: Option<u8>,
        before: usize,
        is_sparing: bool,
        tells_key: bool,
        is_marked: bool,
    ) {
        let opaque = (self.client.requests + 1) as u32;
        let form = Form { what, opcode, opaque, is_sparing, tells_key, is_marked };
        self.expect(Asked::Form(form), before, false, false);
    }
}
