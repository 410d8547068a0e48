// SPDX-License-Identifier: Apache-2.0
//! Listening sockets and connections, on a unix socket or on TCP.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_send_buffer_size, set_tcp_nodelay, set_tcp_user_timeout};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;
use vipwatch_api::{ErrorCode, ProblemDocument};
use vipwatch_linux::peer;

/// Send buffer of a connection in bytes, for which the kernel reserves twice as much. An event stream that its client does
/// not read holds so much kernel memory, and the thread has copied so much in vain; the default is 208 KiB. With half of
/// it, one segment of the loopback link fills the buffer, and the client acknowledges each one after 40 ms.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// A TCP connection ends if the other host acknowledges nothing for this time. The kernel's default is about 15 minutes.
const TCP_TIMEOUT: Duration = Duration::from_mins(1);

/// How the bytes of a TCP connection are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Without encryption.
    Plain,
    Tls,
}

/// The client of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebClient {
    /// A process on this machine, on the unix socket.
    User(u32),
    /// A TCP connection from `peer` to the address `server` of this machine.
    Network { peer: IpAddr, server: IpAddr, transport: Transport },
}

impl WebClient {
    pub(crate) fn transport(self) -> Transport {
        match self {
            Self::User(_) => Transport::Plain,
            Self::Network { transport, .. } => transport,
        }
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub(crate) enum Listener {
    /// The unix socket, and its group if the members may use it.
    Unix(UnixListener, Option<u32>),
    Tcp(TcpListener, Transport),
}

impl Listener {
    pub(crate) async fn accept(&self) -> io::Result<ClientSocket> {
        let socket = match self {
            Self::Unix(listener, _) => ClientSocket::Unix(listener.accept().await?.0),
            Self::Tcp(listener, _) => ClientSocket::Tcp(listener.accept().await?.0),
        };
        socket.set_options();
        Ok(socket)
    }

    /// The client of a connection, if it may use this socket.
    pub(crate) fn client(&self, socket: &ClientSocket) -> Result<WebClient, ProblemDocument> {
        match (self, socket) {
            (Self::Unix(_, group), ClientSocket::Unix(stream)) => {
                let user = trusted_user(stream, *group).ok().flatten();
                user.map(WebClient::User).ok_or_else(foreign_user)
            }
            (Self::Tcp(_, transport), ClientSocket::Tcp(stream)) => {
                network_client(stream, *transport).map_err(|error| {
                    ProblemDocument::new(ErrorCode::Internal, format!("the connection: {error}"))
                })
            }
            // A listening socket accepts connections of its own kind only, and TLS begins later.
            (Self::Unix(..) | Self::Tcp(..), _) => Err(foreign_user()),
        }
    }

    /// Whether a client understands an answer that is not encrypted.
    pub(crate) fn has_plain_answers(&self) -> bool {
        !matches!(self, Self::Tcp(_, Transport::Tls))
    }
}

fn foreign_user() -> ProblemDocument {
    let detail = "only root, the user of the process and members of the socket's group may use it";
    let hint = "run it as root, or as a member of the group in `socket_group`, which changes only with a restart";
    ProblemDocument::new(ErrorCode::NotPermitted, detail).with_hint(hint)
}

/// The user of the client, if it may use the API: root, the user of this process, and members of the socket's group.
fn trusted_user(stream: &UnixStream, group: Option<u32>) -> io::Result<Option<u32>> {
    let user = peer::credentials(stream)?.user;
    let is_own = user == 0 || user == rustix::process::geteuid().as_raw();
    let is_member = match group {
        Some(group) if !is_own => peer::is_member(stream, group)?,
        _ => false,
    };
    Ok(Some(user).filter(|_| is_own || is_member))
}

fn network_client(stream: &TcpStream, transport: Transport) -> io::Result<WebClient> {
    let (peer, server) = (stream.peer_addr()?.ip(), stream.local_addr()?.ip());
    Ok(WebClient::Network { peer, server, transport })
}

/// One connection.
#[derive(Debug)]
pub(crate) enum ClientSocket {
    Unix(UnixStream),
    Tcp(TcpStream),
    /// A TCP connection after its TLS handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl ClientSocket {
    /// Sets the options of a new connection. If one fails, the connection works with the default.
    fn set_options(&self) {
        let _ = set_socket_send_buffer_size(self, SEND_BUFFER_BYTES);
        if let Self::Tcp(_) = self {
            // An event is one small packet, which must not wait for the next one.
            let _ = set_tcp_nodelay(self, true);
            let timeout = u32::try_from(TCP_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
            let _ = set_tcp_user_timeout(self, timeout);
        }
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.get_ref().0.as_fd(),
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
