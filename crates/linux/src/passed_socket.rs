// SPDX-License-Identifier: Apache-2.0
//! Passes one end of a socket pair to another process, over a socket that both have (`SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Two ends of a socket that keeps the boundaries of messages. A read at one end fails when the other end is closed.
pub fn control_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Passes `socket` to the process at the other end of `control`.
pub fn pass(control: impl AsFd, socket: impl AsFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let passed = [socket.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&passed));
    sendmsg(control, &[IoSlice::new(b"s")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next socket that the other process has passed; `None` if it has closed its end.
pub fn receive(control: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(control, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let sockets = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "a message without a socket");
    sockets.map(Some).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_passed_socket_works_and_the_end_of_the_other_process_is_noticed() {
        let (sender, receiver) = control_pair().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        pass(&sender, &far).unwrap();
        drop(far);
        let mut passed = UnixStream::from(receive(&receiver).unwrap().unwrap());
        near.write_all(b"text").unwrap();
        drop(near);
        let mut text = String::new();
        passed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        drop(sender);
        assert!(receive(&receiver).unwrap().is_none());
    }
}
