//! Requests that the proxy answers by itself, and requests that it refuses, with Redis's own errors
//! where it has some.

use crate::sim::ask::Asker;
use crate::wire::resp::{bulk, push_command};

use super::client::{OK, PROTOCOL_ERROR, ReplyMode};
use super::ledger::{Kind, Loose, Wish};

impl Asker<'_> {
    /// Sends the local commands that clients use at connect and when idle.
    pub fn redis_local(&mut self) {
        let name = format!("n{}", self.client.requests);
        let (kind, arguments): (Kind, &[&[u8]]) = match self.random.below(12) {
            0 => (Kind::Exactly(b"+PONG\r\n".to_vec()), &[b"PING"]),
            1 => (Kind::Exactly(bulk(name.as_bytes())), &[b"PING", name.as_bytes()]),
            2 | 3 => (Kind::Exactly(bulk(name.as_bytes())), &[b"ECHO", name.as_bytes()]),
            4 => (Kind::Begins(b":"), &[b"CLIENT", b"ID"]),
            5 => {
                self.plain(
                    Wish::new(OK.into(), false, Vec::new()),
                    &[b"CLIENT", b"SETNAME", name.as_bytes()],
                );
                self.talk().name = name;
                return;
            }
            6 => {
                let kind = match (self.talk().name.clone(), self.talk().proto_version) {
                    (name, 2) if name.is_empty() => Kind::Exactly(b"$-1\r\n".to_vec()),
                    (name, _) if name.is_empty() => Kind::Exactly(b"_\r\n".to_vec()),
                    (name, _) => Kind::Exactly(bulk(name.as_bytes())),
                };
                (kind, &[b"CLIENT", b"GETNAME"])
            }
            7 if self.talk().proto_version == 3 => (Kind::Begins(b"="), &[b"CLIENT", b"INFO"]),
            7 => (Kind::Begins(b"$"), &[b"CLIENT", b"INFO"]),
            8 => (Kind::Begins(b":"), &[b"COMMAND", b"COUNT"]),
            9 => (Kind::Loose(Loose::Info), &[b"INFO"]),
            10 => (Kind::Loose(Loose::Setting), &[b"CONFIG", b"GET", b"maxmemory"]),
            _ if self.random.permille(200) && self.talk().reply_mode == ReplyMode::On => {
                return self.reset();
            }
            _ => (Kind::Begins(b"-ERR "), &[b"AUTH", b"no users here"]),
        };
        self.plain(Wish::new(kind, false, Vec::new()), arguments);
    }

    /// Resets all session settings of the client.
    fn reset(&mut self) {
        let kind = Kind::Exactly(b"+RESET\r\n".to_vec());
        self.plain(Wish::new(kind, false, Vec::new()), &[b"RESET"]);
        let database = self.plan.database;
        let talk = self.talk();
        talk.scan = None;
        talk.name = String::new();
        (talk.database, talk.proto_version) = (database, 2);
    }

    pub fn redis_bad(&mut self) {
        let (words, arguments): (&'static [u8], &[&[u8]]) = match self.random.below(12) {
            0 => (b"-ERR wrong number of arguments for 'get' command\r\n", &[b"GET"]),
            1 => (b"-ERR wrong number of arguments for 'mset' command\r\n", &[b"mSet", b"a"]),
            2 => (b"-ERR unknown command 'BOGUS'", &[b"BOGUS", b"a\r\nb", b"c"]),
            3 | 5 => (b"-ERR wrong number of arguments for 'watch' command\r\n", &[b"WATCH"]),
            4 => (b"-ERR ", &[b"REPLICAOF", b"here", b"1"]),
            6 => (b"-ERR ", &[b"SHUTDOWN"]),
            7 => (b"-ERR ", &[b"MONITOR"]),
            8 => (b"-ERR ", &[b"CLIENT", b"TRACKING", b"ON"]),
            9 => (b"-ERR ", &[b"EVAL", b"return 1", b"many", b"{00}"]),
            10 => (b"-ERR ", &[b"SCAN"]),
            _ => (b"-ERR ", &[b"DEBUG", b"SLEEP", b"0"]),
        };
        self.plain(Wish::new(Kind::Begins(words), false, Vec::new()), arguments);
    }

    /// Sends a request after which the proxy closes, and more that must not be answered.
    pub fn redis_closing(&mut self) {
        const BAD: &[&[u8]] = &[
            b"*1\r\n+GET\r\n",
            b"*2147483648\r\n",
            b"*1\r\n$-5\r\n",
            b"*x\r\n",
            b"GET \"unbalanced\r\n",
        ];
        if self.talk().reply_mode != ReplyMode::On {
            return self.redis_local();
        }
        let before = self.client.unsent.len();
        let kind = match self.random.permille(500) {
            true => {
                push_command(&["QUIT"], &mut self.client.unsent);
                OK.into()
            }
            false => {
                self.client.unsent.extend_from_slice(self.random.pick::<&[u8]>(BAD));
                Kind::Begins(PROTOCOL_ERROR)
            }
        };
        self.wish(Wish::new(kind, false, Vec::new()), before, true);
        if self.random.permille(500) {
            self.client.unsent.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
            self.client.written += 14;
        }
    }
}
