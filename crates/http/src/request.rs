//! The head of a request. `httparse` reads its grammar; this file decides what of it is accepted.
//!
//! The result never depends on how the bytes were cut: a head is looked at up to its bound only,
//! and a prefix of it is either incomplete or has the same result.

use crate::exposition::Format;
use crate::response::Status;

/// The result of looking at the bytes that have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The head is not whole yet.
    Partial,
    Request(Request),
    /// It cannot be served. Where it ends is not known, so the connection has to be closed.
    Refused(Status),
}

/// A request without a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: Method,
    /// The path without its query.
    pub path: String,
    /// The format of metrics that the client prefers.
    pub format: Format,
    /// The connection stays open after the answer.
    pub keep_alive: bool,
    /// The client speaks HTTP/1.0, in which this must be said.
    pub is_old: bool,
    /// Length of the head in bytes.
    pub len: usize,
}

/// A method, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    /// The answer is that of a GET without its body.
    Head,
    Other,
}

/// Looks for a whole request at the beginning of `bytes`.
pub fn parse(bytes: &[u8]) -> Parsed {
    let head = &bytes[..bytes.len().min(HEAD_LEN_MAX)];
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(len)) => match accept(&request, len) {
            Ok(request) => Parsed::Request(request),
            Err(status) => Parsed::Refused(status),
        },
        Ok(httparse::Status::Partial) if head.len() < HEAD_LEN_MAX => Parsed::Partial,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Parsed::Refused(Status::HeadTooLarge)
        }
        Err(httparse::Error::Version) => Parsed::Refused(Status::VersionNotSupported),
        Err(_) => Parsed::Refused(Status::BadRequest),
    }
}

fn accept(request: &httparse::Request<'_, '_>, len: usize) -> Result<Request, Status> {
    let method = match request.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => Method::Other,
    };
    let is_old = request.version == Some(0);
    let fields = Fields::of(request.headers)?;
    // RFC 9112, 3.2: without it, or with two, it is not known who is asked.
    if fields.hosts > 1 || (fields.hosts == 0 && !is_old) {
        return Err(Status::BadRequest);
    }
    Ok(Request {
        method,
        path: path(request.path.unwrap_or_default()).to_string(),
        format: Format::preferred(&fields.accept),
        keep_alive: !fields.close && (!is_old || fields.keep_alive),
        is_old,
        len,
    })
}

/// The fields of a head that matter.
#[derive(Default)]
struct Fields {
    hosts: usize,
    close: bool,
    keep_alive: bool,
    /// All `Accept` fields, as one list.
    accept: String,
}

impl Fields {
    fn of(headers: &[httparse::Header<'_>]) -> Result<Fields, Status> {
        let mut fields = Fields::default();
        let mut lengths = 0;
        for header in headers {
            let value = String::from_utf8_lossy(header.value);
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("host") {
                fields.hosts += 1;
            } else if is("connection") {
                for word in value.split(',').map(str::trim) {
                    fields.close |= word.eq_ignore_ascii_case("close");
                    fields.keep_alive |= word.eq_ignore_ascii_case("keep-alive");
                }
            } else if is("accept") {
                fields.accept = [&fields.accept, ",", &*value].concat();
            } else if is("transfer-encoding") {
                return Err(Status::ContentTooLarge);
            } else if is("content-length") {
                lengths += 1;
                check_length(&value, lengths)?;
            }
        }
        Ok(fields)
    }
}

/// Two lengths, or one that is no number, could mean different things to a balancer and to us.
fn check_length(value: &str, count: usize) -> Result<(), Status> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    match is_number && count == 1 {
        false => Err(Status::BadRequest),
        true if value.bytes().all(|byte| byte == b'0') => Ok(()),
        true => Err(Status::ContentTooLarge),
    }
}

/// The path of a target: `/metrics?x`, or `http://host/metrics` as a proxy would ask for it.
fn path(target: &str) -> &str {
    let path = match target.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => {
            rest.find('/').map_or("/", |at| &rest[at..])
        }
        _ => target,
    };
    path.split(['?', '#']).next().unwrap_or_default()
}

/// Length of a head in bytes, at most. Prometheus sends some 300 bytes.
pub const HEAD_LEN_MAX: usize = 8 * 1024;
/// Fields of a head, at most.
const HEADERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that `text` is a request, whole only with its last byte; returns it.
    fn check(text: &str) -> Request {
        for len in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..len]), Parsed::Partial, "{}", &text[..len]);
        }
        let more = [text.as_bytes(), b"GET /next HTTP/1.1\r\n"].concat();
        assert_eq!(parse(text.as_bytes()), parse(&more));
        match parse(text.as_bytes()) {
            Parsed::Request(request) => {
                assert_eq!(request.len, text.len());
                request
            }
            other => panic!("{text}: {other:?}"),
        }
    }

    fn check_refused(text: &str, status: Status) {
        assert_eq!(parse(text.as_bytes()), Parsed::Refused(status), "{text}");
        let first = (0..=text.len()).map(|len| parse(&text.as_bytes()[..len]));
        let first = first.into_iter().find(|parsed| *parsed != Parsed::Partial);
        assert_eq!(first, Some(Parsed::Refused(status)), "{text}");
    }

    #[test]
    fn a_request_says_what_it_wants_and_whether_the_connection_stays() {
        let plain = check("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((plain.method, &*plain.path, plain.keep_alive), (Method::Get, "/metrics", true));
        assert!(!check("GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n").keep_alive);
        assert!(!check("GET / HTTP/1.1\r\nhost: a\r\nConnection: a, close , b\r\n\r\n").keep_alive);
        let old = check("HEAD /a?b#c HTTP/1.0\r\n\r\n");
        assert_eq!((old.method, &*old.path, old.keep_alive), (Method::Head, "/a", false));
        assert!(old.is_old);
        assert!(check("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keep_alive);
        assert_eq!(check("BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n").method, Method::Other);
        check("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    }

    #[test]
    fn a_target_is_a_path_whoever_asks() {
        for (target, wanted) in [
            ("/a/b", "/a/b"),
            ("/?q=http://x/y", "/"),
            ("http://host:80/a?b", "/a"),
            ("HTTP://host", "/"),
            ("*", "*"),
            ("https://host/a", "https://host/a"),
        ] {
            assert_eq!(path(target), wanted, "{target}");
        }
    }

    #[test]
    fn what_has_a_body_or_more_than_one_meaning_is_refused() {
        let get = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        check_refused(&get("Content-Length: 1"), Status::ContentTooLarge);
        check_refused(&get("Transfer-Encoding: chunked"), Status::ContentTooLarge);
        check_refused(&get("Content-Length: 0\r\nContent-Length: 0"), Status::BadRequest);
        for length in ["+1", "-0", "0x0", "", "0, 0", "99999999999999999999999a"] {
            check_refused(&get(&format!("Content-Length: {length}")), Status::BadRequest);
        }
        check_refused(&get("Host: b"), Status::BadRequest);
        check_refused("GET / HTTP/1.1\r\n\r\n", Status::BadRequest);
        check_refused("GET / HTTP/1.1\r\nHost : a\r\n\r\n", Status::BadRequest);
        check_refused("GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", Status::BadRequest);
        check_refused("GET /\0 HTTP/1.1\r\n\r\n", Status::BadRequest);
        check_refused("PRI * HTTP/2.0\r\n\r\n", Status::VersionNotSupported);
    }

    #[test]
    fn a_head_has_a_bound() {
        let of = |len: usize| {
            let start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
            format!("{start}{}\r\n\r\n", "x".repeat(len - start.len() - 4))
        };
        assert!(matches!(parse(of(HEAD_LEN_MAX).as_bytes()), Parsed::Request(_)));
        check_refused(&of(HEAD_LEN_MAX + 1), Status::HeadTooLarge);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        check_refused(&many, Status::HeadTooLarge);
    }
}
