//! Servers of the test's own: one with replies of the test's choice, and one between quickack and a
//! real server that cuts its connections at a moment of the test's choice.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::sockopt;
use testkit::process::{Speaker, listen};
use testkit::wire::resp::{Reply, command, read_command};

/// A server that records every command and replies by its rule.
pub struct Model {
    pub address: SocketAddr,
    commands: Arc<Mutex<Vec<String>>>,
}

/// A reaction to a command.
pub enum Turn {
    Say(Vec<u8>),
    /// Sends these bytes and closes.
    Close(Vec<u8>),
    /// Sends these bytes and resets the connection.
    Reset(Vec<u8>),
}

/// Returns the reaction to a command, given in lower case with spaces between its words.
type Rule = dyn Fn(&str) -> Turn + Send + Sync;

impl Model {
    /// Starts one that answers the handshake as Redis 7.0 does.
    pub fn start(rule: impl Fn(&str) -> Turn + Send + Sync + 'static) -> Model {
        Model::start_bare(move |words| greeting(words).map_or_else(|| rule(words), Turn::Say))
    }

    /// Starts one whose rule also answers the handshake.
    pub fn start_bare(rule: impl Fn(&str) -> Turn + Send + Sync + 'static) -> Model {
        let rule: Arc<Rule> = Arc::new(rule);
        let commands = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&commands);
        let address = listen(move |stream| serve(stream, &*rule, &notes));
        Model { address, commands }
    }

    /// Returns the number of commands that begin with `start`.
    pub fn count(&self, start: &str) -> usize {
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.iter().filter(|command| command.starts_with(start)).count()
    }
}

fn serve(mut stream: TcpStream, rule: &Rule, notes: &Mutex<Vec<String>>) {
    let (mut held, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        while let Some((request, len)) = read_command(&held) {
            held.drain(..len);
            let words = words(&request);
            notes.lock().unwrap_or_else(PoisonError::into_inner).push(words.clone());
            let turn = rule(&words);
            let (text, ends) = match &turn {
                Turn::Say(text) => (text, false),
                Turn::Close(text) | Turn::Reset(text) => (text, true),
            };
            if stream.write_all(text).is_err() {
                return;
            }
            if matches!(turn, Turn::Reset(_)) {
                reset(&stream);
            }
            if ends {
                return;
            }
        }
        match stream.read(&mut chunk) {
            Ok(n) if n > 0 => held.extend_from_slice(&chunk[..n]),
            _ => return,
        }
    }
}

/// Makes a close send a reset to the other side at once.
fn reset(stream: &TcpStream) {
    // Written bytes are read first, because a reset would overtake bytes on their way.
    let _ = stream.take_error();
    sockopt::set_socket_linger(stream, Some(std::time::Duration::ZERO)).expect("TCP has it");
}

fn words(request: &[Vec<u8>]) -> String {
    let words = request.iter().map(|word| String::from_utf8_lossy(word).to_lowercase());
    words.collect::<Vec<_>>().join(" ")
}

fn greeting(words: &str) -> Option<Vec<u8>> {
    let text = match words {
        _ if words.starts_with("hello") => {
            "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n\
             $5\r\nproto\r\n:2\r\n$2\r\nid\r\n:5\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n\
             $4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
        }
        "ping" => "+PONG\r\n",
        _ if words.starts_with("select") || words.starts_with("auth") => "+OK\r\n",
        _ => return None,
    };
    Some(text.into())
}

/// Starts a relay to a real server. A command that begins with `word` is executed there, but its
/// answer is lost, because the connection is closed.
pub fn swallow(server: SocketAddr, word: &'static str) -> Model {
    let speaker = Mutex::new(Speaker::connect(server));
    Model::start(move |words| {
        let mut speaker = speaker.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<&str> = words.split(' ').collect();
        speaker.send(&command(&all));
        let reply = raw(speaker.reply().expect("the server answers"));
        if words.starts_with(word) { Turn::Close(Vec::new()) } else { Turn::Say(reply) }
    })
}

/// Renders the kinds of replies that the tests need.
fn raw(reply: Reply) -> Vec<u8> {
    match reply {
        Reply::Simple(text) => [b"+", &text[..], b"\r\n"].concat(),
        Reply::Error(text) => [b"-", &text[..], b"\r\n"].concat(),
        Reply::Integer(number) => format!(":{number}\r\n").into_bytes(),
        Reply::Bulk(text) => [format!("${}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat(),
        Reply::Null(_) => b"$-1\r\n".to_vec(),
        other => panic!("a reply that no test asks for: {other:?}"),
    }
}
