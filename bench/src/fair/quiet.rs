//! The quiet client: a small request for one of its own keys every 5 ms, whatever the others do.
//! The latency of a request counts from the time it was due.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::load::{Wire, now_ns};

/// One request of the quiet client.
#[derive(Clone, Debug)]
pub struct Sample {
    pub due_ns: u64,
    /// The time of the answer, or of the end of the record.
    pub end_ns: u64,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has got its value.
    Served,
    /// It has got something else: an error line, a miss, or the end of its connection.
    Failed(String),
    /// No answer came before the record ended.
    Unanswered,
}

impl Sample {
    pub fn is_served(&self) -> bool {
        self.outcome == Outcome::Served
    }
}

/// The quiet client's way to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Gets, all on one connection.
    Same,
    /// Gets, each on a connection of its own.
    Fresh,
    /// Sets and gets in turn, all on one connection.
    Updates,
}

pub const KEYS: usize = 100;
pub const VALUE_LEN: usize = 100;
/// Between two requests.
const GAP_NS: u64 = 5_000_000;
/// For the answers that are outstanding when it is told to stop: longer than the deadlines.
const PATIENCE_NS: u64 = 6_000_000_000;

pub fn key(index: usize) -> String {
    format!("quiet:{:02}", index % KEYS)
}

pub fn value(index: usize) -> String {
    format!("{:x<VALUE_LEN$}", key(index))
}

/// The quiet client's thread.
pub struct Quiet {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Sample>, String>>,
}

impl Quiet {
    pub fn start(to: SocketAddrV4, wire: Wire, habit: Habit) -> Quiet {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            // The attackers share its CPU. Its waits must be those for answers.
            super::prefer_this_thread();
            Client::new(to, wire, habit).run(&stopped)
        });
        Quiet { stop, thread }
    }

    /// Sends nothing more, waits for the answers, and returns all requests.
    pub fn stop(self) -> Result<Vec<Sample>, String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err("the quiet client panicked".into()))
    }
}

struct Client {
    to: SocketAddrV4,
    wire: Wire,
    habit: Habit,
    connections: Vec<Connection>,
    count: usize,
    samples: Vec<Sample>,
}

impl Client {
    fn new(to: SocketAddrV4, wire: Wire, habit: Habit) -> Client {
        Client { to, wire, habit, connections: Vec::new(), count: 0, samples: Vec::new() }
    }

    fn run(mut self, stop: &AtomicBool) -> Result<Vec<Sample>, String> {
        let mut due_ns = now_ns();
        let mut end_ns = None;
        loop {
            let now = now_ns();
            if end_ns.is_none() && stop.load(Ordering::Relaxed) {
                end_ns = Some(now + PATIENCE_NS);
            }
            let idle = self.connections.iter().all(|each| each.asked.is_empty());
            match end_ns {
                Some(end_ns) if idle || now > end_ns => break,
                Some(_) => {}
                None => {
                    while due_ns <= now {
                        self.ask(due_ns)?;
                        due_ns += GAP_NS;
                    }
                }
            }
            self.exchange();
            let pause_ns = due_ns.saturating_sub(now_ns()).clamp(100_000, GAP_NS);
            self.wait(pause_ns)?;
        }
        let now = now_ns();
        for connection in &mut self.connections {
            connection.fail(now, Outcome::Unanswered, &mut self.samples);
        }
        Ok(self.samples)
    }

    fn ask(&mut self, due_ns: u64) -> Result<(), String> {
        if self.connections.is_empty() || self.habit == Habit::Fresh {
            let fault = |error| format!("the quiet client cannot connect: {error}");
            self.connections.push(Connection::open(self.to).map_err(fault)?);
        }
        let Some(connection) = self.connections.last_mut() else { return Ok(()) };
        let question = Question::new(self.wire, self.habit, self.count);
        connection.out.extend_from_slice(&question.request);
        connection.asked.push_back((question.answer, due_ns));
        self.count += 1;
        Ok(())
    }

    fn wait(&self, pause_ns: u64) -> Result<(), String> {
        let pause = Timespec { tv_sec: 0, tv_nsec: pause_ns as _ };
        let mut polled: Vec<PollFd> = self
            .connections
            .iter()
            .map(|each| PollFd::new(&each.socket, each.interest()))
            .collect();
        match rustix::event::poll(&mut polled, Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(format!("poll: {errno}")),
        }
    }

    /// Writes and reads what there is; a connection that ends fails all that it owes.
    fn exchange(&mut self) {
        let (habit, samples) = (self.habit, &mut self.samples);
        self.connections.retain_mut(|connection| match connection.transfer(samples) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                let outcome = Outcome::Failed(format!("connection lost: {error}"));
                connection.fail(now_ns(), outcome, samples);
                false
            }
            _ => habit != Habit::Fresh || !connection.asked.is_empty(),
        });
    }
}

/// One request and its answer.
struct Question {
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Question {
    fn new(wire: Wire, habit: Habit, count: usize) -> Question {
        let (key, value) = (key(count), value(count));
        let (request, answer) = match (wire, habit == Habit::Updates && count.is_multiple_of(2)) {
            (Wire::Resp, false) => {
                (super::attacks::command(&["GET", &key]), format!("${VALUE_LEN}\r\n{value}\r\n"))
            }
            (Wire::Resp, true) => {
                (super::attacks::command(&["SET", &key, &value]), "+OK\r\n".to_string())
            }
            (_, false) => (
                format!("get {key}\r\n").into_bytes(),
                format!("VALUE {key} 0 {VALUE_LEN}\r\n{value}\r\nEND\r\n"),
            ),
            (_, true) => (
                format!("set {key} 0 0 {VALUE_LEN}\r\n{value}\r\n").into_bytes(),
                "STORED\r\n".to_string(),
            ),
        };
        Question { request, answer: answer.into_bytes() }
    }
}

struct Connection {
    socket: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Answers to come and the due times of their requests, oldest first.
    asked: VecDeque<(Vec<u8>, u64)>,
}

impl Connection {
    fn open(to: SocketAddrV4) -> std::io::Result<Connection> {
        let socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Connection { socket, out: Vec::new(), input: Vec::new(), asked: VecDeque::new() })
    }

    fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::IN;
        interest.set(PollFlags::OUT, !self.out.is_empty());
        interest
    }

    fn transfer(&mut self, samples: &mut Vec<Sample>) -> std::io::Result<()> {
        if !self.out.is_empty() {
            let sent = match self.socket.write(&self.out) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                result => result?,
            };
            self.out.drain(..sent);
        }
        let mut scratch = [0; 16 * 1024];
        let len = self.socket.read(&mut scratch)?;
        if len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let end_ns = now_ns();
        self.input.extend_from_slice(&scratch[..len]);
        while let Some((expected, due_ns)) = self.asked.front() {
            let Some((len, outcome)) = answer(expected, &self.input) else { break };
            samples.push(Sample { due_ns: *due_ns, end_ns, outcome });
            self.input.drain(..len);
            self.asked.pop_front();
        }
        Ok(())
    }

    /// Ends all that was asked in the same way.
    fn fail(&mut self, end_ns: u64, outcome: Outcome, samples: &mut Vec<Sample>) {
        for (_, due_ns) in self.asked.drain(..) {
            samples.push(Sample { due_ns, end_ns, outcome: outcome.clone() });
        }
    }
}

/// Returns the first answer's length and meaning, or None while it is incomplete.
fn answer(expected: &[u8], input: &[u8]) -> Option<(usize, Outcome)> {
    if input.starts_with(expected) {
        return Some((expected.len(), Outcome::Served));
    }
    if input.len() < expected.len() && expected.starts_with(input) {
        return None;
    }
    let line_len = input.iter().position(|byte| *byte == b'\n')? + 1;
    let line = String::from_utf8_lossy(&input[..line_len]).trim_end().to_string();
    Some((line_len, Outcome::Failed(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_value_or_a_failure() {
        let expected = |wire| Question::new(wire, Habit::Same, 7).answer;
        let hit = format!("VALUE quiet:07 0 100\r\n{}\r\nEND\r\n", value(7));
        let check = |input: &str, outcome: Option<(usize, Outcome)>| {
            assert_eq!(answer(&expected(Wire::Text), input.as_bytes()), outcome, "{input}");
        };
        check("", None);
        check(&hit[..40], None);
        check(&hit, Some((hit.len(), Outcome::Served)));
        check("END\r\n", Some((5, Outcome::Failed("END".into()))));
        check("SERVER_ERROR no\r\nEND", Some((17, Outcome::Failed("SERVER_ERROR no".into()))));
        let hit = format!("$100\r\n{}\r\n", value(7));
        let served = Some((hit.len(), Outcome::Served));
        assert_eq!(answer(&expected(Wire::Resp), hit.as_bytes()), served);
        assert_eq!(answer(&expected(Wire::Resp), b"-ERR no"), None);
    }
}
