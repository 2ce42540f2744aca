//! The handshake on a link, which sets its connection key, and a model server's answer to it.

use proto::ConnKey;
use proxy::plan::PoolPlan;

use crate::sim::conn::Conn;
use crate::sim::server::{Place, Server, Trick};
use crate::wire::resp::{put_bulk, put_line};

use super::server::{LOADING, Words};

/// The handshakes for each connection key of a pool.
pub struct Handshakes(Vec<(ConnKey, Vec<u8>)>);

impl Handshakes {
    pub fn new(plan: &PoolPlan) -> Handshakes {
        let upstream = plan.protocol.upstream();
        let mut ids = Vec::new();
        for database in 0..plan.databases {
            for proto_version in [plan.protocol.conn_key(0).proto_version, 3] {
                let conn_key = ConnKey { proto_version, database };
                let mut text = Vec::new();
                upstream.write_handshake(None, conn_key, &mut text);
                ids.push((conn_key, text));
            }
        }
        Handshakes(ids)
    }

    /// Returns whether the text is a handshake or the beginning of one.
    pub fn begin(&self, text: &[u8]) -> bool {
        self.0.iter().any(|(_, hello)| hello.starts_with(text))
    }

    /// Returns the handshake at the start of `text`, with its connection key.
    fn find(&self, text: &[u8]) -> Option<&(ConnKey, Vec<u8>)> {
        let longer = |number: &&(ConnKey, Vec<u8>)| {
            number.1.len() > text.len() && number.1.starts_with(text)
        };
        if self.0.iter().any(|number| longer(&number)) {
            return None;
        }
        let fitting = self.0.iter().filter(|number| text.starts_with(&number.1));
        fitting.max_by_key(|number| number.1.len())
    }
}

impl Server {
    /// Answers the handshake on a link.
    pub fn handshake(
        &mut self,
        input: &[u8],
        conn: &mut Conn,
        place: &mut Place<'_>,
    ) -> Option<usize> {
        let (conn_key, text) = place.handshakes.find(input)?.clone();
        let start = conn.output.len();
        let trick = self.trick_of();
        let mut at = 0;
        while at < text.len() {
            let words = Words::read(&text[at..]).expect("first words are commands");
            self.handshake_one(&words, conn, place);
            at += words.len;
        }
        match trick {
            Trick::Die => {
                conn.output.truncate(start);
                conn.is_over = true;
            }
            Trick::Poison => {
                conn.output.truncate(start);
                put_line(&mut conn.output, "?what");
                conn.poison = conn.poison.or(Some((start, conn.output.len())));
            }
            // No part of a handshake may be refused in this way, because the refusal must not be
            // believed.
            Trick::ErrorLine | Trick::None | Trick::NoSocket => {}
        }
        conn.conn_key = Some(conn_key);
        Some(text.len())
    }

    fn handshake_one(&mut self, words: &Words, conn: &mut Conn, place: &mut Place<'_>) {
        let model = self.redis.as_ref().expect("it is Redis");
        let is_loading = place.now < model.loads_until;
        let out = &mut conn.output;
        match words.name.as_str() {
            "HELLO" if !model.speaks_three => {
                conn.has_lost_capability = true;
                put_line(out, "-ERR unknown command `HELLO`, with args beginning with: `3`, ");
            }
            "HELLO" => {
                let three = words.count() > 1 && words.at(1) == b"3";
                put_line(out, if three { "%7" } else { "*14" });
                for (name, value) in [
                    ("server", "$5\r\nredis"),
                    ("version", "$6\r\n7.0.15"),
                    ("proto", if three { ":3" } else { ":2" }),
                    ("id", ":5"),
                    ("mode", "$10\r\nstandalone"),
                    ("role", "$6\r\nmaster"),
                    ("modules", "*0"),
                ] {
                    put_bulk(out, name.as_bytes());
                    put_line(out, value);
                }
            }
            "SELECT" => {
                let database: usize = words.text(1).parse().expect("a number");
                let is_there = database < model.databases.len();
                let line = if is_there { "+OK" } else { "-ERR DB index is out of range" };
                put_line(out, line);
            }
            "PING" if is_loading => put_line(out, LOADING),
            "PING" => put_line(out, "+PONG"),
            "INFO" => {
                let version = if model.speaks_three { "7.0.15" } else { "5.0.14" };
                let text =
                    format!("# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n");
                put_bulk(out, text.as_bytes());
            }
            "CLIENT" | "AUTH" => put_line(out, "+OK"),
            other => panic!("the proxy greets by {other:?}"),
        }
    }
}
