//! A client reads its socket; each whole answer is judged.

use proxy::ConnId;

use super::client::Asked;
use super::forms::Form;
use super::judge::Judge;
use super::scene::FaultKind;
use super::world::World;
use super::{reply, told};
use crate::wire::binary::HEAD_LEN;

impl World {
    /// Reads the bytes in a client's socket.
    pub fn read_client(&mut self, id: ConnId) {
        let pool_at = self.clients[id.index()].as_ref().map(|client| client.pool);
        let Some(pool_at) = pool_at else { return };
        let has_late = self.queue_timeouts(pool_at) > 0;
        let Some(client) = self.clients[id.index()].as_mut() else { return };
        client.inbox.append(&mut client.socket);
        let inbox = std::mem::take(&mut client.inbox);
        let mut judge = Judge {
            pool_at,
            pool: &self.pools[pool_at],
            plan: &self.pools[pool_at].plan,
            journal: &mut self.journal,
            client,
            summary: &mut self.summary,
            now: self.now,
            tight_memory: self.scene.tight_memory,
            tight_queues: self.scene.tight_queues,
            limits: self.scene.plan.limits,
            has_late,
            reads_in_order: !self.scene.faults.contains(&FaultKind::ErrorLine),
            is_calm: false,
            over: if self.scene.faults.is_empty() { 0 } else { self.over },
            trace: self.trace,
        };
        let mut at = 0;
        while at < inbox.len() {
            let Some(used) = judge.next_answer(&inbox[at..]) else { break };
            at += used;
        }
        client.inbox = inbox;
        client.inbox.drain(..at);
    }
}

impl Judge<'_> {
    /// Judges the first answer, if it is whole, and returns its length.
    fn next_answer(&mut self, input: &[u8]) -> Option<usize> {
        let Some(expect) = self.client.next_expect() else {
            panic!("client {} is told {:?} unasked", self.client.number, lossy(input));
        };
        self.is_calm = self.over == 0 || expect.arrived > self.over;
        match expect.asked {
            Asked::Form(form) => self.read_form(&form, input),
            Asked::Redis(number) => self.read_redis(number, input),
            _ => self.read_reply(input),
        }
    }

    fn read_form(&mut self, form: &Form, input: &[u8]) -> Option<usize> {
        let told = told::parse(form, self.client.number, input)?;
        self.say(&input[..told.len]);
        let is_value = self.client.is_binary && told.len > HEAD_LEN && input[6..8] == [0, 0];
        self.client.ends_with_value = is_value;
        if self.is_given_up(&told.line) {
            return Some(input.len());
        }
        self.hear(&told, input);
        Some(told.len)
    }

    fn read_reply(&mut self, input: &[u8]) -> Option<usize> {
        let expect = self.client.next_expect()?;
        // Without room for its data, an update is refused by its head.
        let by_head = expect.arrived == 0 && self.tight_memory;
        assert!(by_head || expect.arrived != 0, "an answer before its request was whole");
        let reply = reply::parse(&expect.asked, input)?;
        self.say(&input[..reply.len]);
        if self.is_given_up(&lossy(&input[reply.line.clone()])) {
            assert_eq!(reply.len, input.len(), "more follows the last answer");
            return Some(input.len());
        }
        let expect = self.client.drop_expect();
        assert!(!by_head || lossy(&input[..reply.line.end]).starts_with("SERVER_ERROR "));
        self.judge(&expect, &reply, input);
        Some(reply.len)
    }

    /// Checks an end of the connection because there is no room for the head of the next request.
    pub fn is_given_up(&mut self, line: &str) -> bool {
        let words = ["CLIENT_ERROR line too long", "-ERR line too long"];
        let is_over = self.tight_memory && words.contains(&line);
        if is_over {
            self.client.give_up();
        }
        is_over
    }

    pub fn say(&self, answer: &[u8]) {
        if self.trace {
            println!(
                "{:>9} us    client {} is told {:?}",
                self.now.0,
                self.client.number,
                lossy(answer)
            );
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned()
}
