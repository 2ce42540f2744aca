//! A socket pair that keeps messages whole and in order, and passes descriptors: unix(7),
//! `SOCK_SEQPACKET`, `SCM_RIGHTS`.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Makes a pair of sockets, non-blocking and closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends one message with up to [`FDS_MAX`] descriptors. Fails with `AGAIN` if the receiver does
/// not keep up.
pub fn send(fd: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!(fds.len() <= FDS_MAX && !bytes.is_empty(), "the caller keeps to the bounds");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is room for them");
    }
    let flags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
    let sent = net::sendmsg(fd, &[IoSlice::new(bytes)], &mut control, flags)?;
    assert_eq!(sent, bytes.len(), "this kind of socket keeps messages whole");
    Ok(())
}

/// Receives one message into `buffer` and returns its length; 0 if the other end is closed. A
/// message longer than the buffer fails with `MSGSIZE`. Descriptors are appended to `fds`.
pub fn receive(fd: impl AsFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC.union(RecvFlags::DONTWAIT);
    let received = net::recvmsg(fd, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Errno::MSGSIZE);
    }
    Ok(received.bytes)
}

/// Descriptors in one message; the kernel takes up to 253 (`SCM_MAX_FD`).
pub const FDS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_whole_and_carry_descriptors() {
        let (one, other) = pair().unwrap();
        let (inner, passed) = pair().unwrap();
        send(&one, b"first", &[passed.as_fd()]).unwrap();
        send(&one, b"second", &[]).unwrap();
        let (mut buffer, mut fds) = ([0; 64], Vec::new());
        assert_eq!(receive(&other, &mut buffer, &mut fds), Ok(5));
        assert_eq!((&buffer[..5], fds.len()), (&b"first"[..], 1));
        assert_eq!(receive(&other, &mut buffer, &mut fds), Ok(6));
        assert_eq!(receive(&other, &mut buffer, &mut fds), Err(io::Errno::AGAIN));
        send(&fds[0], b"through", &[]).unwrap();
        assert_eq!(receive(&inner, &mut buffer, &mut Vec::new()), Ok(7));
        drop(one);
        assert_eq!(receive(&other, &mut buffer, &mut fds), Ok(0));
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error() {
        let (one, other) = pair().unwrap();
        send(&one, &[7; 100], &[]).unwrap();
        assert_eq!(receive(&other, &mut [0; 64], &mut Vec::new()), Err(io::Errno::MSGSIZE));
    }

    #[test]
    fn an_end_that_does_not_read_is_noticed_and_nothing_is_lost() {
        let (one, other) = pair().unwrap();
        let mut sent = 0;
        while send(&one, &[b'x'; 1000], &[]).is_ok() {
            sent += 1;
        }
        assert_eq!(send(&one, b"more", &[]), Err(io::Errno::AGAIN));
        let mut buffer = [0; 2000];
        for _ in 0..sent {
            assert_eq!(receive(&other, &mut buffer, &mut Vec::new()), Ok(1000));
        }
    }
}
