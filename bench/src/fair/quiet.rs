//! The quiet client: a small get of one of its own keys every 5 ms, on one connection, whatever the
//! others do. The latency of a request counts from the time it was due.

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
    pub fn start(to: SocketAddrV4, wire: Wire) -> Quiet {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            // The attackers share its CPU. Its waits must be those for answers.
            super::prefer_this_thread();
            Client::new(to, wire).run(&stopped)
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
    socket: Option<TcpStream>,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Number and due time of the requests that are not answered, oldest first.
    asked: VecDeque<(usize, u64)>,
    count: usize,
    samples: Vec<Sample>,
}

impl Client {
    fn new(to: SocketAddrV4, wire: Wire) -> Client {
        let (asked, samples) = (VecDeque::new(), Vec::new());
        Client { to, wire, socket: None, out: vec![], input: vec![], asked, count: 0, samples }
    }

    fn run(mut self, stop: &AtomicBool) -> Result<Vec<Sample>, String> {
        let mut due_ns = now_ns();
        let mut end_ns = None;
        loop {
            let now = now_ns();
            if end_ns.is_none() && stop.load(Ordering::Relaxed) {
                end_ns = Some(now + PATIENCE_NS);
            }
            match end_ns {
                Some(end_ns) if self.asked.is_empty() || now > end_ns => break,
                Some(_) => {}
                None => {
                    while due_ns <= now {
                        self.ask(due_ns);
                        due_ns += GAP_NS;
                    }
                }
            }
            self.exchange()?;
            let pause_ns = due_ns.saturating_sub(now_ns()).clamp(100_000, GAP_NS);
            self.wait(pause_ns)?;
        }
        let now = now_ns();
        let left = std::mem::take(&mut self.asked);
        left.iter().for_each(|&(_, due)| self.record(due, now, Outcome::Unanswered));
        Ok(self.samples)
    }

    fn ask(&mut self, due_ns: u64) {
        let key = key(self.count);
        let request = match self.wire {
            Wire::Resp => super::attacks::command(&["GET", &key]),
            _ => format!("get {key}\r\n").into_bytes(),
        };
        self.out.extend_from_slice(&request);
        self.asked.push_back((self.count, due_ns));
        self.count += 1;
    }

    fn wait(&self, pause_ns: u64) -> Result<(), String> {
        let pause = Timespec { tv_sec: 0, tv_nsec: pause_ns as _ };
        let Some(socket) = &self.socket else { return Ok(()) };
        let mut interest = PollFlags::IN;
        interest.set(PollFlags::OUT, !self.out.is_empty());
        match rustix::event::poll(&mut [PollFd::new(socket, interest)], Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(format!("poll: {errno}")),
        }
    }

    /// Writes and reads what there is; a connection that ends fails all that it owes.
    fn exchange(&mut self) -> Result<(), String> {
        if self.socket.is_none() {
            let fault = |error| format!("the quiet client cannot connect: {error}");
            let socket = TcpStream::connect(self.to).map_err(fault)?;
            socket.set_nodelay(true).and_then(|()| socket.set_nonblocking(true)).map_err(fault)?;
            self.socket = Some(socket);
        }
        match self.transfer() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                let now = now_ns();
                let why = format!("connection lost: {error}");
                let lost = std::mem::take(&mut self.asked);
                lost.iter()
                    .for_each(|&(_, due)| self.record(due, now, Outcome::Failed(why.clone())));
                self.out.clear();
                self.input.clear();
                self.socket = None;
            }
        }
        Ok(())
    }

    fn transfer(&mut self) -> std::io::Result<()> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        if !self.out.is_empty() {
            let sent = match socket.write(&self.out) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                result => result?,
            };
            self.out.drain(..sent);
        }
        let mut scratch = [0; 16 * 1024];
        let len = socket.read(&mut scratch)?;
        if len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let now = now_ns();
        self.input.extend_from_slice(&scratch[..len]);
        while let Some(&(index, due)) = self.asked.front() {
            let Some((len, outcome)) = answer(self.wire, &self.input, index) else { break };
            self.input.drain(..len);
            self.asked.pop_front();
            self.record(due, now, outcome);
        }
        Ok(())
    }

    fn record(&mut self, due_ns: u64, end_ns: u64, outcome: Outcome) {
        self.samples.push(Sample { due_ns, end_ns, outcome });
    }
}

/// Returns the first answer's length and meaning, or None while it is incomplete.
fn answer(wire: Wire, input: &[u8], index: usize) -> Option<(usize, Outcome)> {
    let expected = match wire {
        Wire::Resp => format!("${VALUE_LEN}\r\n{}\r\n", value(index)),
        _ => format!("VALUE {} 0 {VALUE_LEN}\r\n{}\r\nEND\r\n", key(index), value(index)),
    };
    if input.starts_with(expected.as_bytes()) {
        return Some((expected.len(), Outcome::Served));
    }
    if input.len() < expected.len() && expected.as_bytes().starts_with(input) {
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
        let hit = format!("VALUE quiet:07 0 100\r\n{}\r\nEND\r\n", value(7));
        let check = |input: &str, expected: Option<(usize, Outcome)>| {
            assert_eq!(answer(Wire::Text, input.as_bytes(), 7), expected, "{input}");
        };
        check("", None);
        check(&hit[..40], None);
        check(&hit, Some((hit.len(), Outcome::Served)));
        check("END\r\n", Some((5, Outcome::Failed("END".into()))));
        check("SERVER_ERROR no\r\nEND", Some((17, Outcome::Failed("SERVER_ERROR no".into()))));
        let hit = format!("$100\r\n{}\r\n", value(7));
        let served = Some((hit.len(), Outcome::Served));
        assert_eq!(answer(Wire::Resp, hit.as_bytes(), 7), served);
        assert_eq!(answer(Wire::Resp, b"-ERR no", 7), None);
    }
}
