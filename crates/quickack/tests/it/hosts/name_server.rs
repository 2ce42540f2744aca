//! A name server of the test's own, on an address of the loopback network that nobody else has. It
//! answers as the test says: late, wrongly, or not at all.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What is answered to a question about one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Addresses(Vec<Ipv4Addr>),
    /// The same, which hold for so many seconds.
    Holding(u32, Vec<Ipv4Addr>),
    /// SRV records, which hold for so many seconds.
    Services(u32, Vec<Service>),
    /// The same in a packet that has only the first of them and says that it is cut. The whole
    /// answer comes over TCP, if it is to.
    Cut {
        over_tcp: bool,
        services: Vec<Service>,
    },
    /// The same with another number than the question has.
    WrongNumber(Vec<Service>),
    /// The same, about a question that was not asked.
    WrongQuestion(Vec<Service>),
    /// The same, so late.
    Late(Duration, Vec<Ipv4Addr>),
    /// NXDOMAIN.
    NoSuchName,
    /// SERVFAIL.
    Failure,
    /// Bytes that are no answer.
    Garbage,
    /// It has this name, and no address.
    Empty,
    Silence,
}

/// An SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub priority: u16,
    pub weight: u16,
    pub port: u16,
    pub target: String,
}

impl Service {
    pub fn new(target: &str, port: u16) -> Service {
        Service { priority: 1, weight: 1, port, target: target.to_string() }
    }
}

pub struct NameServer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<BTreeMap<String, Answer>>,
    questions: AtomicU64,
    ends: AtomicBool,
}

impl NameServer {
    pub fn start(answers: &[(&str, Answer)]) -> NameServer {
        let (ours, mut next) = (std::process::id(), 0..=u8::MAX);
        let socket = next.find_map(|number| {
            let [_, _, high, low] = ours.to_be_bytes();
            let ip = Ipv4Addr::new(127, 100 + high % 100, low, number.max(1));
            Some((UdpSocket::bind((ip, 53)).ok()?, TcpListener::bind((ip, 53)).ok()?))
        });
        let (socket, listener) = socket.expect("root may take port 53 of a loopback address");
        let shared = Arc::new(Shared::default());
        let address = socket.local_addr().unwrap();
        let (served, served_too) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            thread::spawn(move || serve(&socket, &served)),
            thread::spawn(move || serve_streams(&listener, &served_too)),
        ];
        let server = NameServer { address, shared, threads };
        answers.iter().for_each(|(name, answer)| server.set(name, answer.clone()));
        server
    }

    pub fn set(&self, name: &str, answer: Answer) {
        self.shared.answers.lock().unwrap().insert(name.to_string(), answer);
    }

    /// Questions so far.
    pub fn questions(&self) -> u64 {
        self.shared.questions.load(Ordering::Relaxed)
    }

    /// Its port answers nobody any more.
    pub fn die(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.die();
    }
}

fn serve(socket: &UdpSocket, shared: &Shared) {
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut question = [0; 512];
    while !shared.ends.load(Ordering::Relaxed) {
        let Ok((len, client)) = socket.recv_from(&mut question) else { continue };
        let question = question[..len].to_vec();
        shared.questions.fetch_add(1, Ordering::Relaxed);
        let answer = shared.answers.lock().unwrap().get(&name_of(&question)).cloned();
        let send = |bytes: &[u8]| {
            // A client that has given up is no concern of ours.
            let _ = socket.send_to(bytes, client);
        };
        match answer.unwrap_or(Answer::NoSuchName) {
            Answer::Addresses(all) => send(&reply(&question, 0, &all)),
            Answer::Holding(ttl, all) => send(&addresses(&question, 0, ttl, &all)),
            Answer::Services(ttl, all) => send(&services(&question, ttl, &all)),
            Answer::Cut { services: all, .. } => {
                let mut cut = services(&question, 0, &all[..1]);
                cut[2] |= 0x02;
                send(&cut);
            }
            Answer::WrongNumber(all) => {
                let mut other = services(&question, 0, &all);
                other[0] ^= 0xff;
                send(&other);
            }
            Answer::WrongQuestion(all) => {
                let mut other = services(&question, 0, &all);
                other[13] ^= 0x01;
                send(&other);
            }
            Answer::Empty => send(&reply(&question, 0, &[])),
            Answer::NoSuchName => send(&reply(&question, 3, &[])),
            Answer::Failure => send(&reply(&question, 2, &[])),
            Answer::Garbage => {
                send(&[0xff; 3]);
                send(&[&question[..2], &[0xc0; 200]].concat());
            }
            Answer::Silence => {}
            Answer::Late(delay, all) => {
                let (bytes, socket) = (reply(&question, 0, &all), socket.try_clone().unwrap());
                thread::spawn(move || {
                    thread::sleep(delay);
                    let _ = socket.send_to(&bytes, client);
                });
            }
        }
    }
}

/// The end of the name in a question (RFC 1035, 4.1.2), which begins behind the head.
fn end_of_name(question: &[u8]) -> usize {
    let mut at = 12;
    while question[at] != 0 {
        at += 1 + usize::from(question[at]);
    }
    at + 1
}

fn name_of(question: &[u8]) -> String {
    let (mut at, mut labels) = (12, Vec::new());
    while question[at] != 0 {
        let len = usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..at + 1 + len]).to_lowercase());
        at += 1 + len;
    }
    labels.join(".")
}

/// An answer with these addresses, if the question is for those of IPv4.
fn reply(question: &[u8], code: u8, all: &[Ipv4Addr]) -> Vec<u8> {
    addresses(question, code, 0, all)
}

fn addresses(question: &[u8], code: u8, ttl: u32, all: &[Ipv4Addr]) -> Vec<u8> {
    let records = all.iter().map(|address| address.octets().to_vec()).collect();
    whole(question, (A, code), ttl, records)
}

fn services(question: &[u8], ttl: u32, all: &[Service]) -> Vec<u8> {
    let record = |service: &Service| {
        let Service { priority, weight, port, target } = service;
        let numbers = [priority, weight, port].map(|number| number.to_be_bytes());
        let label = |label: &str| [&[label.len() as u8], label.as_bytes()].concat();
        let labels: Vec<u8> = target.split('.').flat_map(label).collect();
        [numbers.as_flattened(), &labels, &[0]].concat()
    };
    whole(question, (SRV, 0), ttl, all.iter().map(record).collect())
}

/// An answer with these records, if the question is for such.
fn whole(question: &[u8], (kind, code): (u8, u8), ttl: u32, records: Vec<Vec<u8>>) -> Vec<u8> {
    let end = end_of_name(question);
    let is_asked = question[end..end + 2] == [0, kind];
    let records = if is_asked { records } else { Vec::new() };
    let mut out = question[..2].to_vec();
    out.extend([0x81, 0x80 | code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
    out.extend(&question[12..end + 4]);
    for record in records {
        // The name of the question, the type, class IN.
        out.extend([0xc0, 12, 0, kind, 0, 1]);
        out.extend(ttl.to_be_bytes());
        out.extend((record.len() as u16).to_be_bytes());
        out.extend(record);
    }
    out
}

/// Whole answers, for those who ask again what was cut.
fn serve_streams(listener: &TcpListener, shared: &Shared) {
    listener.set_nonblocking(true).unwrap();
    while !shared.ends.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut len = [0; 2];
        let mut question = Vec::new();
        if stream.read_exact(&mut len).is_ok() {
            question = vec![0; usize::from(u16::from_be_bytes(len))];
            let _ = stream.read_exact(&mut question);
        }
        let answers = shared.answers.lock().unwrap();
        if let Some(Answer::Cut { over_tcp: true, services: all }) =
            answers.get(&name_of(&question))
        {
            let reply = services(&question, 0, all);
            let _ = stream.write_all(&(reply.len() as u16).to_be_bytes());
            let _ = stream.write_all(&reply);
        }
    }
}

/// Types of records (RFC 1035, 3.2.2; RFC 2782).
const A: u8 = 1;
const SRV: u8 = 33;
