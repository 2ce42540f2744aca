//! Servers of a test's own, each connection in a thread.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Returns a listener that nobody serves: the kernel accepts, and nothing is answered.
pub fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port on loopback");
    let address = listener.local_addr().expect("a bound listener has an address");
    (listener, address)
}

/// Calls `serve` for each connection to the address that it returns.
pub fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let (listener, address) = silent();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Answers each line as `answer` says; None closes. The handshake is answered as by memcached,
/// whatever `answer` says of it.
pub fn answer_lines(stream: TcpStream, mut answer: impl FnMut(&str) -> Option<String>) {
    let mut output = stream.try_clone().expect("a socket can be had twice");
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let said = answer(&line);
        let reply = if line == "version" { Some("VERSION 1.6.18\r\n".into()) } else { said };
        if reply.is_none_or(|reply| output.write_all(reply.as_bytes()).is_err()) {
            return;
        }
    }
}
