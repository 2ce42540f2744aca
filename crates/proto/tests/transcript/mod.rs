//! Transcripts: bytes on a wire, and how a protocol must read them. They are read from
//! `testdata/<protocol>/*.txt`, where each row is a few lines:
//!
//! ```text
//!   # Why this row is here.
//!   > set k 0 0 1\r\na\r\n        sent by a client (or: ? get, then < a reply to it)
//!   < STORED\r\n                  answered by the real server, `[close]` if it closed
//!   = set [k] body 1              the protocol's reading of it, message by message
//!   % 3                           our answer is for a connection with RESP3
//!   ! the reason                  the reason why our answer differs from the real server's
//! ```
//!
//! `anywhere` or `at 3` is the route of a request without keys, `alone` stands for one that needs a
//! pool of one server, and `split` for one whose keys may be on several servers, or `each` if each
//! key has an answer of its own.
//!
//! A row with an `@` is about the route to a server and back:
//!
//! ```text
//!   > mg k T9\r\n                 sent by a client
//!   @ classic                     the server's capabilities: classic, or meta as well
//!   ~ gats 9 k\r\n               sent to the server; nothing if the request is refused
//!   < VALUE k 0 1 7\r\na\r\nEND\r\n
//!   = HD\r\n                     the client's answer
//! ```
//!
//! Bytes are written as in C: `\r \n \t \0 \xNN`; `{ab*3}` is `ababab`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use proto::{
    Adapted, AfterLocal, Answer, Ask, Asked, Capabilities, Class, ConnKey, Facts, ItemKind, Local,
    Make, MarkUse, NAMED, Parsed, Place, Progress, Protocol, Quiet, Refusal, Request, Resume,
    Session, Shown, Span,
};

/// Returns the protocol of clients that is the same as that of this protocol's servers. Its table
/// names the requests that servers get.
pub fn servers(protocol: &dyn Protocol) -> &'static dyn Protocol {
    let is_it = |named: &&&dyn Protocol| protocol.name().starts_with(named.name());
    *NAMED.iter().find(is_it).expect("a protocol is named, or of a family that is")
}

const REDIS: Make = Make { name: "redis", version: [7, 0, 15], like: [7, 0, 15] };

/// The proxy's facts and its servers' capabilities, for local commands.
pub const FACTS: Facts<'static> = Facts {
    pool: "cache",
    version: "0.1.0",
    capabilities: Some(proto::memcached::META.and(proto::redis::RESP3).made_by(REDIS)),
    databases: 16,
    conn_key: ConnKey { proto_version: 2, database: 0 },
    servers: 4,
    clients: 1,
    uptime_s: 100,
    has_users: false,
    endpoints: None,
    age_s: 0,
    topics: [0; 3],
};

/// One row of a transcript.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// File and line, for messages.
    pub place: String,
    /// The bytes that a client sends; empty in a row about a reply.
    pub request: Vec<u8>,
    /// The command that a reply answers; empty in a row about a request.
    pub asked: String,
    /// The bytes that the server sends, and whether it closes.
    pub server: Option<(Vec<u8>, bool)>,
    /// The server's capabilities, in a row about the route to it.
    pub capabilities: Option<Capabilities>,
    /// The bytes sent to that server.
    pub sent: Vec<u8>,
    /// The protocol's reading of the row; in a row about the route to a server, the client's
    /// answer.
    pub meaning: String,
    /// The protocol version of the connection; 0 is the one in which it begins.
    pub proto_version: u8,
    /// The reason why our answer differs from the server's.
    pub reason: String,
}

/// All rows of a protocol, from all of its files.
pub fn rows(protocol: &dyn Protocol) -> Vec<Row> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(protocol.name());
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("testdata").map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let rows: Vec<Row> = files.iter().flat_map(|file| read(file)).collect();
    assert!(rows.len() > 20, "{} has too few transcripts", folder.display());
    rows
}

fn read(file: &Path) -> Vec<Row> {
    let text = std::fs::read_to_string(file).expect("a transcript");
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let mut rows: Vec<Row> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let rest = line.get(2..).unwrap_or("");
        if line.starts_with("> ") || line.starts_with("? ") {
            rows.push(Row { place: format!("{name}:{}", number + 1), ..Row::default() });
        }
        let Some(row) = rows.last_mut() else { continue };
        match line.as_bytes().first() {
            None | Some(b'#') => {}
            Some(b'>') => row.request = bytes(rest),
            Some(b'@') => {
                row.capabilities = Some(match rest {
                    "meta" => proto::memcached::META,
                    _ => Capabilities::default(),
                });
            }
            Some(b'~') => row.sent = bytes(rest),
            Some(b'?') => row.asked = rest.to_string(),
            Some(b'<') => {
                let closes = rest.ends_with("[close]");
                let said = rest.strip_suffix("[close]").unwrap_or(rest).trim_end_matches(' ');
                row.server = Some((bytes(said), closes));
            }
            Some(b'=') => row.meaning = rest.to_string(),
            Some(b'%') => row.proto_version = rest.parse().expect("2 or 3"),
            Some(b'!') => row.reason = rest.to_string(),
            _ => panic!("{name}:{}: what is this line?", number + 1),
        }
    }
    rows
}

/// Returns the bytes that a transcript's text stands for.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(inner) = rest.strip_prefix('{') {
            let (inner, after) = inner.split_once('}').expect("a closing brace");
            let (what, times) = inner.rsplit_once('*').expect("{what*times}");
            out.extend_from_slice(&bytes(what).repeat(times.parse().expect("a number of times")));
            rest = after;
        } else if first == '\\' {
            let len = if rest[1..].starts_with('x') { 4 } else { 2 };
            out.push(match &rest[1..2] {
                "r" => b'\r',
                "n" => b'\n',
                "t" => b'\t',
                "0" => 0,
                "x" => u8::from_str_radix(&rest[2..4], 16).expect("two hex digits"),
                other => panic!("\\{other} in a transcript"),
            });
            rest = &rest[len..];
        } else {
            assert!(first.is_ascii(), "write {first:?} as \\xNN");
            out.push(first as u8);
            rest = &rest[1..];
        }
    }
    out
}

/// Describes one request, in the notation of transcripts.
pub fn meaning(protocol: &dyn Protocol, request: &Request, head: &[u8], keys: &[Span]) -> String {
    let name = protocol.command_name(request.command);
    let mut out = match request.class {
        Class::Refuse(Refusal::Unknown) => "refused".to_string(),
        _ => name.to_string(),
    };
    if !request.arguments.of(head).is_empty() {
        write!(out, " ({})", request.arguments.of(head).escape_ascii()).unwrap();
    }
    if keys.len() > 10 {
        write!(out, " [{} keys]", keys.len()).unwrap();
    }
    for key in keys.iter().take_while(|_| keys.len() <= 10) {
        match key.of(head) {
            long if long.len() > 40 => write!(out, " [{} bytes]", long.len()).unwrap(),
            short => write!(out, " [{}]", short.escape_ascii()).unwrap(),
        }
    }
    if !request.trailer.is_empty() || request.body > 0 {
        write!(out, " body {}", request.body).unwrap();
    }
    match request.quiet {
        Quiet::Loud => {}
        Quiet::Sparing => out.push_str(" sparing"),
        Quiet::Silent => out.push_str(" quiet"),
    }
    match request.class {
        Class::Fetch { ask, .. } if request.keep => {
            let row = &servers(protocol).commands()[usize::from(ask.command)];
            write!(out, " as {}", row.name).unwrap();
        }
        Class::Split { element_per_key, .. } => {
            out.push_str(if element_per_key { " each" } else { " split" })
        }
        Class::Single { writes: false } => out.push_str(" again"),
        _ => {}
    }
    match request.place {
        Place::Nth(place) | Place::From(place) => write!(out, " at {place}").unwrap(),
        Place::Any if matches!(request.class, Class::Single { .. }) => out.push_str(" anywhere"),
        Place::Sole => out.push_str(" alone"),
        Place::Own => out.push_str(" own"),
        Place::Nowhere => out.push_str(" nowhere"),
        Place::Any | Place::Keys => {}
    }
    if request.marks == MarkUse::Sets {
        out.push_str(" marks");
    }
    if let Class::Refuse(refusal) = request.class {
        let said = words(protocol, &asked(request, head), &Answer::Refused(refusal));
        write!(out, " -> {}", escaped(said.trim_ascii_end())).unwrap();
    }
    out
}

/// Returns the request that is being answered, with its head.
pub fn asked<'a>(request: &Request, head: &'a [u8]) -> Asked<'a> {
    let (command, quiet) = (request.command, request.quiet);
    Asked { command, quiet, ask: Ask::default(), head, at: 0, next: None }
}

/// Returns the proxy's own answers to a row's requests, and whether it closes; `None` if a server
/// is asked.
pub fn own_words(protocol: &dyn Protocol, row: &Row) -> Option<(Vec<u8>, bool)> {
    let mut said = Vec::new();
    let mut session = session(protocol, row.proto_version);
    let mut rest = &row.request[..];
    for (outcome, _) in frames(protocol, &row.request) {
        let request = match outcome {
            Parsed::Complete(request) => request,
            Parsed::Malformed("") => return Some((said, true)),
            Parsed::Malformed(why) => {
                let asked = Asked { head: rest, ..Asked::no_request() };
                said.extend(words(protocol, &asked, &Answer::Refused(Refusal::Bad(why))));
                return Some((said, true));
            }
            Parsed::Incomplete => break,
        };
        let head = &rest[..request.head as usize];
        if own_word(protocol, &request, head, &mut session, &mut said)? == AfterLocal::Close {
            return Some((said, true));
        }
        rest = rest.get(request.len() as usize..).unwrap_or(b"");
    }
    Some((said, false))
}

/// Returns the session of a connection that has chosen nothing but its protocol version.
pub fn session(protocol: &dyn Protocol, proto_version: u8) -> Session {
    let begin = protocol.conn_key(0);
    let proto_version = if proto_version == 0 { begin.proto_version } else { proto_version };
    Session { id: 7, conn_key: ConnKey { proto_version, ..begin }, ..Session::default() }
}

/// Returns the proxy's answer to one request, and the client's next state.
pub fn own_word(
    protocol: &dyn Protocol,
    request: &Request,
    head: &[u8],
    session: &mut Session,
    out: &mut Vec<u8>,
) -> Option<AfterLocal> {
    let asked = asked(request, head);
    let silent = request.quiet == Quiet::Silent;
    let answer = match request.class {
        Class::Refuse(why) => Answer::Refused(why),
        Class::Local(Local::Version) => Answer::Version(""),
        Class::Local(Local::Nothing | Local::Begin | Local::Unwatch) => Answer::Ok,
        Class::Local(Local::Execute | Local::Discard) => Answer::Refused(Refusal::OutOfPlace),
        Class::Local(Local::Barrier) => Answer::Barrier,
        Class::Local(Local::Own) => {
            return Some(protocol.local(request, head, session, &FACTS, out));
        }
        Class::Local(Local::Quit) => {
            protocol.answer(&asked, &Answer::Bye, out);
            return Some(AfterLocal::Close);
        }
        _ => return None,
    };
    if !silent {
        protocol.answer(&asked, &answer, out);
    }
    Some(AfterLocal::Continue)
}

fn words(protocol: &dyn Protocol, asked: &Asked<'_>, answer: &Answer<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    protocol.answer(asked, answer, &mut out);
    out
}

/// Returns the message to a server with the row's capabilities for the row's first request, and the
/// client's answer when the server has replied as in the row.
pub fn way(protocol: &dyn Protocol, row: &Row) -> (Vec<u8>, Vec<u8>) {
    let mut keys = Vec::new();
    let stream = &row.request[..];
    let parsed = protocol.parse_request(stream, &mut Resume::default(), &mut keys);
    let Parsed::Complete(request) = parsed else { panic!("{}: {parsed:?}", row.place) };
    let (head, body) = stream.split_at(request.head as usize);
    let (sent, ask) = match carried(protocol, &request, head, &keys, body, row.capabilities) {
        Ok(carried) => carried,
        Err(refusal) => {
            let answer = Answer::Refused(refusal);
            return (Vec::new(), words(protocol, &asked(&request, head), &answer));
        }
    };
    let said = row.server.as_ref().map_or(&b""[..], |(said, _)| said);
    let kept = if request.keep { head } else { b"" };
    let asked = Asked { ask, ..asked(&request, kept) };
    (sent, told(protocol, &asked, request.keep, said))
}

/// Returns the message for a request to a server with these capabilities.
pub fn carried(
    protocol: &dyn Protocol,
    request: &Request,
    head: &[u8],
    keys: &[Span],
    body: &[u8],
    capabilities: Option<Capabilities>,
) -> Result<(Vec<u8>, Ask), Refusal> {
    let mut sent = Vec::new();
    let ask = match request.class {
        Class::Fetch { ask, .. } => {
            let mut text = Vec::new();
            protocol.open_fetch(request, head, &mut text);
            for key in keys {
                protocol.upstream().push_fetch(key.of(head), &mut text);
            }
            protocol.upstream().seal_fetch(ask, keys.len(), &text, &mut sent);
            return Ok((sent, ask));
        }
        Class::Broadcast { ask, .. } => ask,
        Class::Single { .. } | Class::Split { .. } => {
            match protocol.adapt(request, head, capabilities) {
                Adapted::Ask(ask) => ask,
                Adapted::Refused(refusal) => return Err(refusal),
                Adapted::Unknown => panic!("the capabilities were given"),
            }
        }
        Class::Refuse(refusal) => return Err(refusal),
        Class::Local(_) => panic!("no server is asked"),
    };
    protocol.write_head(request, head, keys, ask, &mut sent);
    sent.extend_from_slice(body);
    protocol.write_tail(request, ask, &mut sent);
    Ok((sent, ask))
}

/// Returns the client's answer for a server's whole reply.
fn told(protocol: &dyn Protocol, asked: &Asked<'_>, keep: bool, said: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = said;
    let (mut found, mut progress) = (false, Progress::default());
    while !rest.is_empty() {
        let parsed = protocol.upstream().parse_reply(asked.ask, &mut progress, rest);
        let Parsed::Complete(item) = parsed else {
            panic!("{parsed:?} of {}", rest.escape_ascii())
        };
        let (whole, after) = rest.split_at(item.len() as usize);
        let (head, tail) = whole.split_at(item.head as usize);
        match item.kind {
            ItemKind::End if found || !keep => protocol.answer(asked, &Answer::End, &mut out),
            ItemKind::End => protocol.answer(asked, &Answer::Miss, &mut out),
            ItemKind::Error => protocol.answer(asked, &Answer::Error(head), &mut out),
            _ if !keep => out.extend_from_slice(whole),
            _ => {
                if let Shown::Body { trailer } = protocol.render(asked, &item, head, &mut out) {
                    out.extend_from_slice(&tail[..item.body as usize]);
                    out.extend_from_slice(trailer);
                }
            }
        }
        found |= item.kind == ItemKind::Value;
        rest = after;
    }
    out
}

/// Returns each message of a stream with its description, up to the first that is incomplete.
pub fn frames(protocol: &dyn Protocol, stream: &[u8]) -> Vec<(Parsed<Request>, String)> {
    let mut found = Vec::new();
    let mut keys = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let outcome = protocol.parse_request(rest, &mut Resume::default(), &mut keys);
        let Parsed::Complete(request) = outcome else {
            let text = match outcome {
                Parsed::Malformed("") => "malformed, and hung up on".to_string(),
                Parsed::Malformed(why) => format!("malformed: {why}"),
                _ => "incomplete".to_string(),
            };
            found.push((outcome, text));
            return found;
        };
        let head = &rest[..request.head as usize];
        found.push((outcome, meaning(protocol, &request, head, &keys)));
        let Some(after) = rest.get(request.len() as usize..) else {
            found.push((Parsed::Incomplete, "body incomplete".to_string()));
            return found;
        };
        rest = after;
    }
    found
}

/// Describes a stream of requests, in one line.
pub fn story(protocol: &dyn Protocol, stream: &[u8]) -> String {
    let told: Vec<String> = frames(protocol, stream).into_iter().map(|(_, text)| text).collect();
    told.join(" | ")
}

/// Describes a server's reply, in one line.
pub fn reply_story(protocol: &dyn Protocol, ask: Ask, stream: &[u8]) -> String {
    let mut told = Vec::new();
    let mut progress = Progress::default();
    let mut rest = stream;
    while !rest.is_empty() {
        match protocol.upstream().parse_reply(ask, &mut progress, rest) {
            Parsed::Complete(item) => {
                let key = item.key.of(rest);
                let mut text = format!("{:?}", item.kind).to_lowercase();
                if !key.is_empty() {
                    write!(text, " [{}]", key.escape_ascii()).unwrap();
                }
                if !item.trailer.is_empty() {
                    write!(text, " body {}", item.body).unwrap();
                }
                told.push(text);
                let Some(after) = rest.get(item.len() as usize..) else {
                    told.push("body incomplete".to_string());
                    break;
                };
                rest = after;
            }
            Parsed::Malformed(why) => {
                told.push(format!("malformed: {why}"));
                break;
            }
            Parsed::Incomplete => {
                told.push("incomplete".to_string());
                break;
            }
        }
    }
    told.join(" | ")
}

/// Returns the entry of the command table with that name.
pub fn ask(protocol: &dyn Protocol, name: &str) -> Ask {
    let row = protocol.commands().iter().position(|row| row.name == name);
    Ask { command: row.unwrap_or_else(|| panic!("{name} is no command")) as u16 }
}

/// Writes bytes in the notation of transcripts.
pub fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n"),
            0 => out.push_str("\\0"),
            b' '..=b'~' if !b"\\{}".contains(&byte) => out.push(byte.into()),
            _ => write!(out, "\\x{byte:02x}").unwrap(),
        }
    }
    out
}
