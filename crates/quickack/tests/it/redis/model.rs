//! Servers of the test's own: one that says what the test wants, and one that stands between
//! quickack and a real server and cuts its connections at a moment of the test's choice.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::net::sockopt;
use testkit::resp::{Reply, Speaker, command};

/// A server that notes every command and answers as its rule says.
pub struct Model {
    pub address: SocketAddr,
    commands: Arc<Mutex<Vec<String>>>,
}

/// What it does about a command.
pub enum Turn {
    Say(Vec<u8>),
    /// Says so much and closes.
    Close(Vec<u8>),
    /// Says so much and resets the connection.
    Reset(Vec<u8>),
}

/// What it does about the command, in lower case with spaces between its words.
type Rule = dyn Fn(&str) -> Turn + Send + Sync;

impl Model {
    /// The first words on a link are answered as Redis 7.0 does.
    pub fn start(rule: impl Fn(&str) -> Turn + Send + Sync + 'static) -> Model {
        Model::start_bare(move |words| greeting(words).map_or_else(|| rule(words), Turn::Say))
    }

    /// The same, and they are the rule's affair as well.
    pub fn start_bare(rule: impl Fn(&str) -> Turn + Send + Sync + 'static) -> Model {
        let rule: Arc<Rule> = Arc::new(rule);
        let commands = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&commands);
        let address = listen(move |stream| serve(stream, &*rule, &notes));
        Model { address, commands }
    }

    /// How often it was asked something that begins so.
    pub fn count(&self, start: &str) -> usize {
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.iter().filter(|command| command.starts_with(start)).count()
    }
}

/// Calls `serve` for each connection, in a thread of its own.
fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port on loopback");
    let address = listener.local_addr().expect("a bound listener has an address");
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    address
}

fn serve(mut stream: TcpStream, rule: &Rule, notes: &Mutex<Vec<String>>) {
    let (mut held, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        // A command reads like a reply that is an array.
        while let Ok(Some((request, len))) = Reply::parse(&held) {
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

/// Closing it now tells the other side so at once.
fn reset(stream: &TcpStream) {
    // What was written is read first: a reset overtakes what is on its way.
    let _ = stream.take_error();
    sockopt::set_socket_linger(stream, Some(std::time::Duration::ZERO)).expect("TCP has it");
}

fn words(request: &Reply) -> String {
    let words = request.elements().into_iter().filter_map(Reply::bytes);
    let words = words.map(|word| String::from_utf8_lossy(word).to_lowercase());
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

/// Stands before a real server: a command that begins with `word` is executed there, and its answer
/// never comes back, for the connection is closed.
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

/// A reply as it is written; those that the tests need.
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
