//! What the system's resolver does not tell: SRV records, and how long an answer of DNS holds. This
//! asks the name servers of `/etc/resolv.conf`, over UDP, and over TCP what does not fit. A crate
//! reads and writes the messages; sockets and what is believed are ours.
//!
//! An answer counts only if it is whole, has the number and the question that were sent, and comes
//! from where they were sent to.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, ResourceRecord, TYPE};

/// The servers that SRV records name, as the lines of a list, and how long they hold. Only those
/// of the lowest priority count, each as much as any other: registries change weights with the
/// load, and that must move no keys.
pub fn servers(name: &str) -> Result<(String, Duration), String> {
    let reply = ask(name, TYPE::SRV, ROUNDS)?;
    read_servers(&reply, name)
}

/// How long these addresses hold for this host; None if DNS has others, as where `/etc/hosts`
/// decides.
pub fn holds(host: &str, addresses: &[SocketAddr]) -> Option<Duration> {
    let mut least = Duration::MAX;
    for (kind, is_v4) in [(TYPE::A, true), (TYPE::AAAA, false)] {
        let ours: BTreeSet<IpAddr> =
            addresses.iter().map(SocketAddr::ip).filter(|ip| ip.is_ipv4() == is_v4).collect();
        if ours.is_empty() {
            continue;
        }
        let reply = ask(host, kind, 1).ok()?;
        let (found, ttl) = read_addresses(&reply, host)?;
        if found != ours {
            return None;
        }
        least = least.min(ttl);
    }
    (least < Duration::MAX).then_some(least)
}

fn read_servers(reply: &[u8], name: &str) -> Result<(String, Duration), String> {
    let packet = Packet::parse(reply).map_err(|error| super::plain_words(&error.to_string()))?;
    let name = parse_name(name)?;
    let mut servers = Vec::new();
    let mut ttl = Duration::MAX;
    for record in records(&packet, &name) {
        ttl = ttl.min(Duration::from_secs(record.ttl.into()));
        let RData::SRV(srv) = &record.rdata else { continue };
        // Names are the same in any case, keys' places are not.
        let target = srv.target.to_string().to_ascii_lowercase();
        if target.is_empty() || target == "." {
            return Err("its record says that there is no such service".to_string());
        }
        servers.push((srv.priority, target, srv.port));
    }
    let lowest = servers.iter().map(|(priority, ..)| *priority).min();
    let lowest = lowest.ok_or_else(|| "it has no SRV records".to_string())?;
    let best = servers.into_iter().filter(|(priority, ..)| *priority == lowest);
    let lines: BTreeSet<String> =
        best.map(|(_, target, port)| format!("{target}:{port}:1\n")).collect();
    Ok((lines.into_iter().collect(), ttl))
}

fn read_addresses(reply: &[u8], host: &str) -> Option<(BTreeSet<IpAddr>, Duration)> {
    let packet = Packet::parse(reply).ok()?;
    let name = parse_name(host).ok()?;
    let (mut found, mut ttl) = (BTreeSet::new(), Duration::MAX);
    for record in records(&packet, &name) {
        ttl = ttl.min(Duration::from_secs(record.ttl.into()));
        match &record.rdata {
            RData::A(a) => drop(found.insert(Ipv4Addr::from(a.address).into())),
            RData::AAAA(aaaa) => drop(found.insert(Ipv6Addr::from(aaaa.address).into())),
            _ => {}
        }
    }
    (!found.is_empty()).then_some((found, ttl))
}

/// The records about a name, and about those that it is another name of.
fn records<'p>(packet: &'p Packet<'_>, name: &Name<'_>) -> Vec<&'p ResourceRecord<'p>> {
    let mut names = vec![name.clone().into_owned()];
    for _ in 0..ALIASES_MAX {
        let alias = packet.answers.iter().find_map(|record| match &record.rdata {
            RData::CNAME(target) if names.contains(&record.name) => {
                (!names.contains(&target.0)).then(|| target.0.clone().into_owned())
            }
            _ => None,
        });
        match alias {
            Some(alias) => names.push(alias),
            None => break,
        }
    }
    let is_ours =
        |record: &&ResourceRecord<'_>| record.class == CLASS::IN && names.contains(&record.name);
    packet.answers.iter().filter(is_ours).collect()
}

fn parse_name(name: &str) -> Result<Name<'_>, String> {
    let name = name.trim_end_matches('.');
    Name::new(name).map_err(|_| format!("`{}` is no name", super::plain_words(name)))
}

/// Asks the name servers in turn until one has an answer, which is a whole one without an error.
fn ask(name: &str, kind: TYPE, rounds: usize) -> Result<Vec<u8>, String> {
    let servers = name_servers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    let mut why = "no name server is in /etc/resolv.conf".to_string();
    for server in (0..rounds).flat_map(|_| &servers) {
        // Nobody can guess the keys of a hasher.
        let number = RandomState::new().hash_one(0) as u16;
        let question = question(name, kind, number)?;
        let is_answer = |bytes: &[u8]| is_answer(bytes, &question);
        let reply = over_udp(*server, &question, &is_answer).and_then(|reply| {
            let is_cut = Packet::parse(&reply).is_ok_and(|it| it.has_flags(PacketFlag::TRUNCATION));
            // A cut list is half a list; it may even be cut where it cannot be read.
            match is_cut || Packet::parse(&reply).is_err() {
                true => over_tcp(*server, &question),
                false => Ok(reply),
            }
        });
        let reply = match reply {
            Ok(reply) if is_answer(&reply) => reply,
            Ok(_) => {
                why = format!("{server}: its answer is none to the question");
                continue;
            }
            Err(error) => {
                why = format!("{server}: {error}");
                continue;
            }
        };
        match judge(&reply) {
            Verdict::Answer => return Ok(reply),
            Verdict::None(why) => return Err(why),
            Verdict::Failure(error) => why = format!("{server}: {error}"),
        }
    }
    Err(super::plain_words(&why))
}

enum Verdict {
    Answer,
    /// The name has no such records; another server would say the same.
    None(String),
    Failure(String),
}

fn judge(reply: &[u8]) -> Verdict {
    match Packet::parse(reply) {
        Err(error) => Verdict::Failure(format!("its answer cannot be read: {error}")),
        Ok(packet) if packet.has_flags(PacketFlag::TRUNCATION) => {
            Verdict::Failure("its answer is cut short".to_string())
        }
        Ok(packet) => match packet.rcode() {
            RCODE::NoError => Verdict::Answer,
            RCODE::NameError => Verdict::None("there is no such name".to_string()),
            other => Verdict::Failure(format!("it answered {other:?}")),
        },
    }
}

fn question(name: &str, kind: TYPE, number: u16) -> Result<Vec<u8>, String> {
    let mut packet = Packet::new_query(number);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = parse_name(name)?;
    packet.questions.push(Question::new(name, kind.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().map_err(|error| super::plain_words(&error.to_string()))
}

/// Whether bytes are an answer to a question: they repeat its number, and the question itself.
fn is_answer(bytes: &[u8], question: &[u8]) -> bool {
    let is_reply = |head: &[u8]| head[2] & RESPONSE != 0 && head[..2] == question[..2];
    let (Some(head), Some(rest)) = (bytes.get(..HEAD_LEN), bytes.get(HEAD_LEN..)) else {
        return false;
    };
    let asked = &question[HEAD_LEN..];
    let same = rest.get(..asked.len()).is_some_and(|rest| rest.eq_ignore_ascii_case(asked));
    is_reply(head) && head[4..6] == [0, 1] && same
}

fn over_udp(
    server: SocketAddr,
    question: &[u8],
    is_answer: &dyn Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, String> {
    let until = Instant::now() + PATIENCE;
    let exchange = || -> std::io::Result<Option<Vec<u8>>> {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        // From now on nothing comes from elsewhere.
        socket.connect(server)?;
        socket.send(question)?;
        let mut block = [0; UDP_LEN_MAX];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            socket.set_read_timeout(Some(left))?;
            match socket.recv(&mut block) {
                Ok(len) if is_answer(&block[..len]) => return Ok(Some(block[..len].to_vec())),
                // Late, or a lie: the answer may still come.
                Ok(_) => {}
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(error),
            }
        }
    };
    match exchange() {
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err(late()),
        Err(error) => Err(error.to_string()),
    }
}

fn over_tcp(server: SocketAddr, question: &[u8]) -> Result<Vec<u8>, String> {
    let until = Instant::now() + PATIENCE;
    let exchange = || -> std::io::Result<Option<Vec<u8>>> {
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let len = (question.len() as u16).to_be_bytes();
        stream.write_all(&[&len, question].concat())?;
        let (mut reply, mut block) = (Vec::new(), [0; 4096]);
        loop {
            let len = reply.first_chunk().map(|len| 2 + usize::from(u16::from_be_bytes(*len)));
            if len.is_some_and(|len| reply.len() >= len) {
                return Ok(Some(reply.split_off(2)));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut block) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => reply.extend_from_slice(&block[..len]),
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(error),
            }
        }
    };
    match exchange() {
        Ok(Some(reply)) => Ok(reply),
        Ok(None) => Err(late()),
        Err(error) => Err(format!("over TCP: {error}")),
    }
}

fn late() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}

fn is_late(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The name servers of a `resolv.conf`, as the system takes them.
fn name_servers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let is_server = words.next() == Some("nameserver");
        let ip: IpAddr = words.next().filter(|_| is_server)?.parse().ok()?;
        Some(SocketAddr::from((ip, PORT)))
    };
    text.lines().filter_map(server).take(SERVERS_MAX).collect()
}

const PORT: u16 = 53;
/// How long a name server may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often each is asked for SRV records: a packet may be lost.
const ROUNDS: usize = 2;
/// As many as the system asks.
const SERVERS_MAX: usize = 3;
/// A chain of aliases is no longer.
const ALIASES_MAX: usize = 8;
const UDP_LEN_MAX: usize = 4096;
const HEAD_LEN: usize = 12;
/// The bit of a head's third byte that is set in answers (RFC 1035, 4.1.1).
const RESPONSE: u8 = 0x80;

#[cfg(test)]
mod tests;
