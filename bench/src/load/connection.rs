//! One client connection: outstanding requests, the reply reader, and unsent output.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::reply::{Asked, Context, Reader};

pub struct Connection {
    pub socket: OwnedFd,
    /// Requests sent and not answered, oldest first.
    pub asked: VecDeque<Asked>,
    /// Due times of requests that wait for room (open loop).
    pub waiting: VecDeque<u64>,
    /// Output; `out[sent..]` is not written yet.
    pub out: Vec<u8>,
    sent: usize,
    /// EPOLLOUT is armed.
    pub blocked: bool,
    reader: Reader,
}

/// The result of one receive.
pub enum Received {
    /// That many requests are answered.
    Answered(usize),
    /// There was no input.
    Nothing,
}

impl Connection {
    /// Starts to connect; on loopback the TCP handshake is over when this returns.
    pub fn open(
        to: SocketAddrV4,
        from: Option<Ipv4Addr>,
        nodelay: bool,
    ) -> Result<Connection, String> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fault = |what: &str, errno: Errno| format!("{what} {to}: {errno}");
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
            .map_err(|errno| fault("socket for", errno))?;
        sockopt::set_tcp_nodelay(&socket, nodelay).map_err(|errno| fault("TCP_NODELAY", errno))?;
        if let Some(host) = from {
            net::bind(&socket, &SocketAddrV4::new(host, 0))
                .map_err(|errno| fault("bind", errno))?;
        }
        match net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(fault("connect to", errno)),
        }
        Ok(Connection {
            socket,
            asked: VecDeque::new(),
            waiting: VecDeque::new(),
            out: Vec::new(),
            sent: 0,
            blocked: false,
            reader: Reader::default(),
        })
    }

    /// Sends `out`; returns true if the kernel accepted everything.
    #[inline]
    pub fn transmit(&mut self) -> Result<bool, String> {
        self.transmit_to(self.out.len())
    }

    /// Sends `out` up to `end` in one write.
    pub fn transmit_to(&mut self, end: usize) -> Result<bool, String> {
        match net::send(&self.socket, &self.out[self.sent..end], SendFlags::NOSIGNAL) {
            Ok(len) => self.sent += len,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => {}
            Err(errno) => return Err(format!("send: {errno}")),
        }
        if self.sent < end {
            return Ok(false);
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        Ok(true)
    }

    /// Performs one read, and parses the replies in it.
    #[inline]
    pub fn receive(
        &mut self,
        scratch: &mut [u8],
        context: &mut Context,
        clock: impl Fn() -> u64,
    ) -> Result<Received, String> {
        let len = match net::recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
            Ok((0, _)) => return Err("the other side closed the connection".into()),
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(errno) => return Err(format!("recv: {errno}")),
        };
        context.now_ns = clock();
        self.reader.receive(&scratch[..len], &mut self.asked, context).map(Received::Answered)
    }
}
