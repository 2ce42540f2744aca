//! One side of the test: its connections, and its cas numbers.

use std::net::SocketAddr;

use super::Burst;
use super::book::Translated;
use super::excuses::Behind;
use super::keys::{ENCODED_KEY_MAX, Key, LANES};
use super::reply::{self, Reply};
use super::request::Wire;
use crate::differential::exchange::{Conn, Lane, exchange};
use crate::wire::base64;
use crate::wire::binary::{NOOP, Packet};

pub struct Side {
    /// None for memcached itself.
    pub behind: Option<Behind>,
    pub translated: Translated,
    address: SocketAddr,
    /// For each protocol, as many connections as there may be lanes.
    text: Vec<Conn>,
    binary: Vec<Conn>,
}

impl Side {
    pub fn new(behind: Option<Behind>, address: SocketAddr) -> Side {
        let conns = || (0..LANES).map(|_| Conn::connect(address)).collect();
        let translated = Translated::new(behind);
        Side { behind, translated, address, text: conns(), binary: conns() }
    }

    /// Returns the number of its own cas numbers that are known.
    pub fn numbers(&self) -> usize {
        self.translated.known()
    }

    /// Returns its answers to each burst; the barrier's answer is the last one.
    pub fn ask(&mut self, round: &[Burst]) -> Result<Vec<Vec<Reply>>, String> {
        for burst in round.iter().filter(|burst| burst.fresh) {
            let address = self.address;
            self.conns(burst.wire)[burst.conn] = Conn::connect(address);
        }
        let mut lanes = Vec::new();
        let (mut text, mut binary) = (lend(&mut self.text), lend(&mut self.binary));
        for burst in round {
            let mut bytes = Vec::new();
            for request in &burst.requests {
                request.render(|cas| self.translated.own(cas), &mut bytes);
            }
            let conns = match burst.wire {
                Wire::Text => &mut text,
                Wire::Binary => &mut binary,
            };
            let conn = conns[burst.conn].take().expect("a connection has one burst a round");
            lanes.push(match burst.wire {
                Wire::Text => {
                    bytes.extend_from_slice(b"mn\r\n");
                    let own = burst.requests.iter().filter(|request| request.name == "mn").count();
                    text_lane(conn, bytes, &burst.cuts, own + 1)
                }
                Wire::Binary => {
                    Packet::new(NOOP, burst.barrier).push(&mut bytes);
                    let barrier = Some(burst.barrier);
                    Lane::new(conn, bytes, &burst.cuts, reply::packet, move |replies| {
                        replies.last().is_some_and(|reply| reply.opaque() == barrier)
                    })
                }
            });
        }
        let answered = exchange(&mut lanes);
        let closed = |lane: &Lane<'_, Reply>| lane.closed.then(Reply::closed);
        let all = lanes.into_iter().map(|mut lane| {
            lane.replies.extend(closed(&lane));
            lane.replies
        });
        let replies: Vec<Vec<Reply>> = all.collect();
        if !answered {
            return Err(self.silence(round, &replies));
        }
        for (burst, replies) in round.iter().zip(&replies) {
            if replies.last() == Some(&Reply::closed()) {
                let address = self.address;
                self.conns(burst.wire)[burst.conn] = Conn::connect(address);
            }
        }
        Ok(replies)
    }

    fn conns(&mut self, wire: Wire) -> &mut Vec<Conn> {
        match wire {
            Wire::Text => &mut self.text,
            Wire::Binary => &mut self.binary,
        }
    }

    /// Deletes a key, if text can name it.
    pub fn forget(&mut self, key: &Key) -> Result<(), String> {
        let mut bytes = b"md ".to_vec();
        if key.plain {
            bytes.extend_from_slice(&key.raw);
        } else if key.raw.len() <= ENCODED_KEY_MAX {
            bytes.extend_from_slice(&base64::encode(&key.raw));
            bytes.extend_from_slice(b" b");
        } else {
            return Ok(());
        }
        bytes.extend_from_slice(b" q\r\nmn\r\n");
        match exchange(&mut [text_lane(&mut self.text[0], bytes, &[], 1)]) {
            true => Ok(()),
            false => Err(format!("{:?} does not answer an md", self.behind)),
        }
    }

    fn silence(&self, round: &[Burst], replies: &[Vec<Reply>]) -> String {
        let mut text = format!("{:?} (None is memcached) says nothing more\n", self.behind);
        for (burst, replies) in round.iter().zip(replies) {
            text.push_str(&super::tally::dialogue(burst, replies));
        }
        text
    }
}

fn lend(conns: &mut [Conn]) -> Vec<Option<&mut Conn>> {
    conns.iter_mut().map(Some).collect()
}

/// Makes a lane of text whose last answer is the `MN` with that number.
fn text_lane<'a>(
    conn: &'a mut Conn,
    bytes: Vec<u8>,
    cuts: &'a [u16],
    barriers: usize,
) -> Lane<'a, Reply> {
    Lane::new(conn, bytes, cuts, reply::text, move |replies| {
        replies.iter().filter(|reply| reply.first() == b"MN").count() >= barriers
    })
}
