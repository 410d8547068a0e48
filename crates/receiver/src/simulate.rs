// SPDX-License-Identifier: Apache-2.0
//! A fake Neutron agent: serves the monitors' socket byte for byte as Neutron's own servers do, or fails in one
//! of the ways in which they fail. It is used to test a monitor without OpenStack.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use vipwatch_linux::listen::{SocketOptions, listen_at};

use crate::ReceiverError;

/// How the fake agent answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Neutron 27 to 29: one read, a thread for each connection, and a reply that is not quite HTTP.
    Threaded,
    /// Neutron up to 26: correct HTTP, and connections that stay open unless the monitor asks to close them.
    Eventlet,
    /// There is no socket.
    Absent,
    /// There is a socket file, and connections are refused.
    Refusing,
    /// Replies after [`SLOW_REPLY_DELAY`].
    Slow,
    /// Accepts the connection and never replies.
    Hanging,
    /// Closes the connection without reading the request, so that the monitor gets a reset.
    Resetting,
    /// Reads the request, and closes the connection without a reply.
    Closing,
    /// Replies with bytes that are not HTTP.
    Garbage,
    /// Replies with this HTTP status, which means that the report was not accepted.
    Status(u16),
    /// Sends a correct reply in pieces of one byte.
    Dribbling,
    /// Replies once as [`Self::Threaded`], removes the socket for [`RESTART_DELAY`], and opens a new one.
    Restarting,
}

impl Behaviour {
    /// All behaviours with their names on the command line.
    pub const ALL: [(&'static str, Self); 12] = [
        ("threaded", Self::Threaded),
        ("eventlet", Self::Eventlet),
        ("absent", Self::Absent),
        ("refusing", Self::Refusing),
        ("slow", Self::Slow),
        ("hanging", Self::Hanging),
        ("resetting", Self::Resetting),
        ("closing", Self::Closing),
        ("garbage", Self::Garbage),
        ("error", Self::Status(500)),
        ("dribbling", Self::Dribbling),
        ("restarting", Self::Restarting),
    ];
}

/// Time between request and reply of [`Behaviour::Slow`].
pub const SLOW_REPLY_DELAY: Duration = Duration::from_secs(2);

/// How long the socket of [`Behaviour::Restarting`] is absent.
pub const RESTART_DELAY: Duration = Duration::from_secs(1);

/// Bytes that are read at once. Neutron's server reads 4 KiB, and never a second time.
const REQUEST_BYTES: usize = 4096;

/// The reply of Neutron 27 to 29: bare line feeds, a stray apostrophe, and no blank line at the end.
const THREADED_REPLY: &[u8] = b"HTTP/1.1 200 OK\nContent-Type: text/plain; charset=UTF-8\n\
                                Connection: close\nContent-Location': http://127.0.0.1/";

/// Called with the bytes of each request and the behaviour with which it is answered.
pub type RequestCallback = dyn Fn(&[u8], Behaviour) + Send + Sync;

/// Serves `socket` with one behaviour until the process ends.
pub fn run(
    socket: &Path,
    options: SocketOptions,
    behaviour: Behaviour,
    on_request: &Arc<RequestCallback>,
) -> Result<(), ReceiverError> {
    let start = ReceiverError::Start;
    match behaviour {
        Behaviour::Absent => {
            // Opening it first keeps the socket of a running agent, and removes a stale one.
            listen_at(socket, options)?.file.remove();
            wait_forever();
        }
        Behaviour::Refusing => {
            listen_at(socket, options)?.file.remove();
            let _bound = bind_only(socket).map_err(start)?;
            wait_forever();
        }
        Behaviour::Restarting => loop {
            let bound = listen_at(socket, options)?;
            let listener = UnixListener::from(bound.listener);
            listener.set_nonblocking(false).map_err(start)?;
            let (stream, _) = listener.accept().map_err(start)?;
            // An error means that the monitor has closed the connection.
            let threaded = CurrentBehaviour::new(Behaviour::Threaded);
            let _ = serve_connection(stream, &threaded, &**on_request);
            bound.file.remove();
            drop(listener);
            wait(RESTART_DELAY);
        },
        _ => {
            let behaviour = Arc::new(CurrentBehaviour::new(behaviour));
            serve(listen_at(socket, options)?.listener, &behaviour, on_request).map_err(start)
        }
    }
}

/// A socket that has a file and does not listen.
fn bind_only(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The behaviour for the next request, which a test can change while the agent runs.
#[derive(Debug)]
pub struct CurrentBehaviour {
    behaviour: Mutex<Behaviour>,
    /// Wakes the connections that wait in [`Behaviour::Hanging`].
    changed: Condvar,
}

impl CurrentBehaviour {
    /// Starts with `behaviour`.
    pub fn new(behaviour: Behaviour) -> Self {
        Self { behaviour: Mutex::new(behaviour), changed: Condvar::new() }
    }

    /// Uses `behaviour` for later requests, and closes connections that hang.
    pub fn set(&self, behaviour: Behaviour) {
        if let Ok(mut current) = self.behaviour.lock() {
            *current = behaviour;
        }
        self.changed.notify_all();
    }

    /// Blocks while the behaviour is `behaviour`.
    fn wait_while(&self, behaviour: Behaviour) {
        if let Ok(current) = self.behaviour.lock() {
            drop(self.changed.wait_while(current, |current| *current == behaviour));
        }
    }

    /// The behaviour for the next request.
    pub fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().map_or(Behaviour::Closing, |behaviour| *behaviour)
    }
}

/// Serves `listener` until it is shut down, with a thread for each connection.
pub fn serve(
    listener: OwnedFd,
    behaviour: &Arc<CurrentBehaviour>,
    on_request: &Arc<RequestCallback>,
) -> io::Result<()> {
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(false)?;
    loop {
        let (stream, _) = listener.accept()?;
        let (behaviour, on_request) = (Arc::clone(behaviour), Arc::clone(on_request));
        let spawned = std::thread::Builder::new().spawn(move || {
            // An error means that the monitor has closed the connection.
            let _ = serve_connection(stream, &behaviour, &*on_request);
        });
        // If no thread could be started, the connection is closed.
        drop(spawned);
    }
}

fn serve_connection(
    mut stream: UnixStream,
    current: &CurrentBehaviour,
    on_request: &RequestCallback,
) -> io::Result<()> {
    if current.behaviour() == Behaviour::Resetting {
        // Closing a socket with unread bytes resets the connection.
        let mut polled = [PollFd::new(&stream, PollFlags::IN)];
        poll(&mut polled, None)?;
        return Ok(());
    }
    loop {
        // One read for each request, as Neutron's server does: the second piece of a request is ignored.
        let mut buffer = [0; REQUEST_BYTES];
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        let behaviour = current.behaviour();
        on_request(&buffer[..length], behaviour);
        if behaviour == Behaviour::Hanging {
            current.wait_while(Behaviour::Hanging);
            return Ok(());
        }
        if !reply(&mut stream, behaviour, &buffer[..length])? {
            return Ok(());
        }
    }
}

/// Sends the reply to one request; false if the connection is to be closed.
fn reply(stream: &mut UnixStream, behaviour: Behaviour, request: &[u8]) -> io::Result<bool> {
    match behaviour {
        Behaviour::Slow => {
            wait(SLOW_REPLY_DELAY);
            stream.write_all(THREADED_REPLY)?;
        }
        Behaviour::Garbage => stream.write_all(b"\x00\xffnot http at all\n")?,
        Behaviour::Status(code) => {
            stream.write_all(&eventlet_reply(&format!("{code} Whatever"), true))?;
        }
        Behaviour::Dribbling => {
            let reply = eventlet_reply("200 OK", true);
            reply.iter().try_for_each(|byte| stream.write_all(&[*byte]))?;
        }
        Behaviour::Eventlet => {
            let text = String::from_utf8_lossy(request).to_lowercase();
            let is_close = text.contains("connection: close");
            let has_both =
                text.contains("x-neutron-router-id:") && text.contains("x-neutron-state:");
            let status = if has_both { "200 OK" } else { "500 Internal Server Error" };
            stream.write_all(&eventlet_reply(status, is_close))?;
            return Ok(!is_close);
        }
        Behaviour::Hanging | Behaviour::Resetting | Behaviour::Closing => {}
        Behaviour::Threaded | Behaviour::Restarting | Behaviour::Absent | Behaviour::Refusing => {
            stream.write_all(THREADED_REPLY)?;
        }
    }
    Ok(false)
}

/// A reply with the headers in the order of eventlet's server.
fn eventlet_reply(status: &str, is_close: bool) -> Vec<u8> {
    let close = if is_close { "Connection: close\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=UTF-8\r\nContent-Length: 0\r\n\
         Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n{close}\r\n"
    )
    .into_bytes()
}

fn wait(time: Duration) {
    let _ = poll(&mut [], Timespec::try_from(time).ok().as_ref());
}

fn wait_forever() -> ! {
    loop {
        wait(Duration::from_hours(1));
    }
}
