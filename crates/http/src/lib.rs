//! The server's side of HTTP/1.x, and the formats of Prometheus: bytes in, bytes out, time as an
//! argument.
//!
//! ```text
//!   bytes ─▶ connection.rs ─▶ request.rs ─▶ a GET or HEAD of a path ─▶ the program
//!   bytes ◀─ connection.rs ◀─ response.rs ◀─ a page, or an error       (exposition.rs renders)
//! ```
//!
//! Only GET and HEAD are served, and no request may have a body: nothing can be changed by what
//! comes in. Each connection has one request at a time; what a client pipelines waits in its
//! socket.

mod connection;
mod exposition;
mod request;
mod response;

pub use connection::{Connection, Stage};
pub use exposition::{Exposition, Format, Kind, seconds};
pub use request::{HEAD_LEN_MAX, Method, Parsed, Request, parse};
pub use response::{Response, Status};
