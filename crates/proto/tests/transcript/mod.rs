//! Transcripts: what is said on a wire, and what a protocol must make of it. Read from
//! `testdata/<protocol>/*.txt`, where each row is a few lines:
//!
//! ```text
//!   # Why this row is here.
//!   > set k 0 0 1\r\na\r\n        what a client sends (or: ? get, then < a reply to it)
//!   < STORED\r\n                  what the real server answered, `[close]` if it hung up
//!   = set [k] body 1              what the protocol makes of it, message by message
//!   ! the reason                  why our words differ from the real server's
//! ```
//!
//! Bytes are written as in C: `\r \n \t \0 \xNN`; `{ab*3}` is `ababab`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use proto::{
    Answer, Ask, Asked, Class, Local, Parsed, Protocol, Quiet, Refusal, Request, Resume, Span,
};

/// One row of a transcript.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// File and line, for messages.
    pub place: String,
    /// What a client sends; empty in a row about a reply.
    pub request: Vec<u8>,
    /// The command that a reply answers; empty in a row about a request.
    pub asked: String,
    /// What the server says, and whether it hangs up.
    pub server: Option<(Vec<u8>, bool)>,
    /// What the protocol makes of it.
    pub meaning: String,
    /// Why our words differ from the server's.
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
            Some(b'?') => row.asked = rest.to_string(),
            Some(b'<') => {
                let closes = rest.ends_with("[close]");
                let said = rest.strip_suffix("[close]").unwrap_or(rest).trim_end_matches(' ');
                row.server = Some((bytes(said), closes));
            }
            Some(b'=') => row.meaning = rest.to_string(),
            Some(b'!') => row.reason = rest.to_string(),
            _ => panic!("{name}:{}: what is this line?", number + 1),
        }
    }
    rows
}

/// The bytes that a transcript's text stands for.
fn bytes(text: &str) -> Vec<u8> {
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

/// What one request means, in a transcript's words.
pub fn meaning(protocol: &dyn Protocol, request: &Request, head: &[u8], keys: &[Span]) -> String {
    let name = protocol.commands()[usize::from(request.command)].name;
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
    if !request.trailer.is_empty() {
        write!(out, " body {}", request.body).unwrap();
    }
    if request.quiet == Quiet::Silent {
        out.push_str(" quiet");
    }
    if let Class::Refuse(refusal) = request.class {
        write!(out, " -> {}", words(protocol, &Answer::Refused(refusal)).trim_end()).unwrap();
    }
    out
}

/// What the proxy says of its own accord to a row's requests; `None` where a server is asked.
pub fn own_words(protocol: &dyn Protocol, stream: &[u8]) -> Option<(String, bool)> {
    let mut said = String::new();
    for (outcome, _) in frames(protocol, stream) {
        match outcome {
            Parsed::Complete(request) if request.quiet == Quiet::Silent => match request.class {
                Class::Refuse(_) | Class::Local(_) => {}
                _ => return None,
            },
            Parsed::Complete(request) => match request.class {
                Class::Refuse(why) => said.push_str(&words(protocol, &Answer::Refused(why))),
                Class::Local(Local::Version) => {
                    said.push_str(&words(protocol, &Answer::Version("1.6.18")));
                }
                Class::Local(Local::Nothing) => said.push_str(&words(protocol, &Answer::Ok)),
                Class::Local(Local::Quit) => return Some((said, true)),
                _ => return None,
            },
            Parsed::Malformed(why) => {
                said.push_str(&words(protocol, &Answer::Refused(Refusal::Bad(why))));
                return Some((said, true));
            }
            Parsed::Incomplete => break,
        }
    }
    Some((said, false))
}

fn words(protocol: &dyn Protocol, answer: &Answer<'_>) -> String {
    let mut out = Vec::new();
    protocol.answer(&Asked::nobody(), answer, &mut out);
    String::from_utf8(out).expect("our words are text")
}

/// Each message of a stream and what it means, up to the first that is not whole.
pub fn frames(protocol: &dyn Protocol, stream: &[u8]) -> Vec<(Parsed<Request>, String)> {
    let mut found = Vec::new();
    let mut keys = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let outcome = protocol.parse_request(rest, &mut Resume::default(), &mut keys);
        let Parsed::Complete(request) = outcome else {
            let text = match outcome {
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

/// What a stream of requests means, in one line.
pub fn story(protocol: &dyn Protocol, stream: &[u8]) -> String {
    let told: Vec<String> = frames(protocol, stream).into_iter().map(|(_, text)| text).collect();
    told.join(" | ")
}

/// What a server's reply means, in one line.
pub fn reply_story(protocol: &dyn Protocol, ask: Ask, stream: &[u8]) -> String {
    let mut told = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        match protocol.upstream().parse_reply(ask, rest) {
            Parsed::Complete(item) => {
                let key = item.key.of(rest);
                let mut text = format!("{:?}", item.kind).to_lowercase();
                if !key.is_empty() {
                    write!(text, " [{}] body {}", key.escape_ascii(), item.body).unwrap();
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

/// The row of the command table with that name.
pub fn ask(protocol: &dyn Protocol, name: &str) -> Ask {
    let row = protocol.commands().iter().position(|row| row.name == name);
    Ask { command: row.unwrap_or_else(|| panic!("{name} is no command")) as u8 }
}
