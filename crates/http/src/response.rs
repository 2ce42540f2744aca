//! An answer: a status, a page, and the head that is sent before it.

use std::rc::Rc;

use crate::request::{Method, Request};

/// The statuses that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok,
    /// The request is not one of HTTP, or has more than one meaning.
    BadRequest,
    NotFound,
    MethodNotAllowed,
    /// The request did not come in time.
    RequestTimeout,
    /// The request has a body.
    ContentTooLarge,
    /// The head is longer than its bound.
    HeadTooLarge,
    ServiceUnavailable,
    VersionNotSupported,
}

/// A page, or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: Status,
    pub content_type: &'static str,
    /// Shared: a page is rendered once for many.
    pub body: Rc<[u8]>,
}

impl Status {
    pub fn code(self) -> u16 {
        self.line().0
    }

    fn line(self) -> (u16, &'static str) {
        match self {
            Status::Ok => (200, "OK"),
            Status::BadRequest => (400, "Bad Request"),
            Status::NotFound => (404, "Not Found"),
            Status::MethodNotAllowed => (405, "Method Not Allowed"),
            Status::RequestTimeout => (408, "Request Timeout"),
            Status::ContentTooLarge => (413, "Content Too Large"),
            Status::HeadTooLarge => (431, "Request Header Fields Too Large"),
            Status::ServiceUnavailable => (503, "Service Unavailable"),
            Status::VersionNotSupported => (505, "HTTP Version Not Supported"),
        }
    }
}

impl Response {
    /// A page of plain text.
    pub fn text(status: Status, text: &str) -> Response {
        Response { status, content_type: TEXT, body: text.as_bytes().into() }
    }

    /// A page for programs.
    pub fn json(text: Vec<u8>) -> Response {
        Response { status: Status::Ok, content_type: "application/json", body: text.into() }
    }

    /// The answer to a request that cannot be read, or that there is no room for.
    pub fn refusal(status: Status) -> Response {
        Response::text(status, &format!("{}\n", status.line().1))
    }

    /// The whole answer in bytes, for a connection that is closed after it.
    pub fn last_bytes(&self, method: Method) -> Vec<u8> {
        let body = if method == Method::Head { &[][..] } else { &self.body };
        [&self.head(None)[..], body].concat()
    }

    /// The head of the answer to `request`; without one, the connection is closed after it.
    pub(crate) fn head(&self, request: Option<&Request>) -> Vec<u8> {
        let (code, words) = self.status.line();
        let (kind, len) = (self.content_type, self.body.len());
        let allow = match self.status {
            Status::MethodNotAllowed => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        let connection = match request {
            Some(Request { keep_alive: true, is_old: true, .. }) => "Connection: keep-alive\r\n",
            Some(Request { keep_alive: true, .. }) => "",
            _ => "Connection: close\r\n",
        };
        let head = format!(
            "HTTP/1.1 {code} {words}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{allow}{connection}\r\n"
        );
        head.into_bytes()
    }

    /// Whether the body follows the head.
    pub(crate) fn has_body(request: Option<&Request>) -> bool {
        request.is_none_or(|request| request.method != Method::Head)
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
