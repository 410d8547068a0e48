//! The socket as Neutron's own servers have it, byte for byte, and as they fail: for whoever wants to test a
//! monitor without OpenStack.

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

/// In which manner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Neutron 27 to 29: one read, a thread for each connection, and an answer that is not quite HTTP.
    Threaded,
    /// Neutron up to 26: proper HTTP, and connections that are kept open unless told otherwise.
    Eventlet,
    /// There is no socket.
    Absent,
    /// There is a socket, and nobody listens.
    Refusing,
    /// Answers after a while.
    Slow,
    /// Takes the connection and says nothing.
    Hanging,
    /// Hangs up with what was said unread.
    Resetting,
    /// Hears what is said, and hangs up without a word.
    Closing,
    /// Answers something that is no HTTP.
    Garbage,
    /// Answers with this status, of those that mean that it was not taken.
    Status(u16),
    /// Answers properly, in pieces of one byte.
    Dribbling,
    /// Answers once as [`Self::Threaded`], is gone for a while, and comes back with another socket.
    Restarting,
}

impl Behaviour {
    /// All, with their names.
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

/// How long a slow one takes.
const SLOW: Duration = Duration::from_secs(2);

/// How long one that restarts is gone.
const GONE: Duration = Duration::from_secs(1);

/// What Neutron 27 to 29 answers: bare line feeds, a stray apostrophe, and no end.
const THREADED: &[u8] = b"HTTP/1.1 200 OK\nContent-Type: text/plain; charset=UTF-8\n\
                          Connection: close\nContent-Location': http://127.0.0.1/";

/// Is told what was said, and in which manner it is answered.
pub type RequestCallback = dyn Fn(&[u8], Behaviour) + Send + Sync;

/// Plays an agent at `socket`, until the process ends.
pub fn play(
    socket: &Path,
    options: SocketOptions,
    behaviour: Behaviour,
    heard: &Arc<RequestCallback>,
) -> Result<(), ReceiverError> {
    let start = ReceiverError::Start;
    match behaviour {
        Behaviour::Absent => {
            // A live one is respected, a dead one removed.
            listen_at(socket, options)?.file.remove();
            wait_for_ever();
        }
        Behaviour::Refusing => {
            listen_at(socket, options)?.file.remove();
            let _bound = bind_only(socket).map_err(start)?;
            wait_for_ever();
        }
        Behaviour::Restarting => loop {
            let bound = listen_at(socket, options)?;
            let listener = UnixListener::from(bound.listener);
            listener.set_nonblocking(false).map_err(start)?;
            let (stream, _) = listener.accept().map_err(start)?;
            // Whoever hangs up has had enough.
            let _ = attend(stream, &CurrentBehaviour::new(Behaviour::Threaded), &**heard);
            bound.file.remove();
            drop(listener);
            wait(GONE);
        },
        _ => {
            let behaviour = Arc::new(CurrentBehaviour::new(behaviour));
            serve(listen_at(socket, options)?.listener, &behaviour, heard).map_err(start)
        }
    }
}

/// A socket with a name, to which nobody listens.
fn bind_only(path: &Path) -> io::Result<OwnedFd> {
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// In which manner the next one is answered; it may change.
#[derive(Debug)]
pub struct CurrentBehaviour {
    behaviour: Mutex<Behaviour>,
    /// Rung when it changes, for those who are kept waiting.
    bell: Condvar,
}

impl CurrentBehaviour {
    /// As of now.
    pub fn new(behaviour: Behaviour) -> Self {
        Self { behaviour: Mutex::new(behaviour), bell: Condvar::new() }
    }

    /// From now on; who was kept waiting is let go.
    pub fn change(&self, behaviour: Behaviour) {
        if let Ok(mut now) = self.behaviour.lock() {
            *now = behaviour;
        }
        self.bell.notify_all();
    }

    /// Waits for as long as it is `behaviour`.
    fn outlast(&self, behaviour: Behaviour) {
        if let Ok(now) = self.behaviour.lock() {
            drop(self.bell.wait_while(now, |now| *now == behaviour));
        }
    }

    /// As it is.
    pub fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().map_or(Behaviour::Closing, |behaviour| *behaviour)
    }
}

/// Serves `listener`, until it is shut down. `heard` is told what was said.
pub fn serve(
    listener: OwnedFd,
    behaviour: &Arc<CurrentBehaviour>,
    heard: &Arc<RequestCallback>,
) -> io::Result<()> {
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(false)?;
    loop {
        let (stream, _) = listener.accept()?;
        let (current, heard) = (Arc::clone(behaviour), Arc::clone(heard));
        let served = std::thread::Builder::new().spawn(move || {
            // Whoever hangs up has had enough.
            let _ = attend(stream, &current, &*heard);
        });
        // Without a thread this one is not served, as it would not be there.
        drop(served);
    }
}

fn attend(
    mut stream: UnixStream,
    current: &CurrentBehaviour,
    heard: &RequestCallback,
) -> io::Result<()> {
    if current.behaviour() == Behaviour::Resetting {
        // Until something has come, and unread.
        let mut polled = [PollFd::new(&stream, PollFlags::IN)];
        poll(&mut polled, None)?;
        return Ok(());
    }
    loop {
        // Once, as the real one does: a request in two pieces is half heard.
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        let behaviour = current.behaviour();
        heard(&buffer[..length], behaviour);
        match behaviour {
            Behaviour::Slow => {
                wait(SLOW);
                return stream.write_all(THREADED);
            }
            Behaviour::Garbage => return stream.write_all(b"\x00\xffnot http at all\n"),
            Behaviour::Status(code) => {
                return stream.write_all(&eventlet(&format!("{code} Whatever"), true));
            }
            Behaviour::Hanging => {
                current.outlast(Behaviour::Hanging);
                return Ok(());
            }
            Behaviour::Dribbling => {
                let answer = eventlet("200 OK", true);
                return answer.iter().try_for_each(|byte| stream.write_all(&[*byte]));
            }
            Behaviour::Eventlet => {
                let text = String::from_utf8_lossy(&buffer[..length]).to_lowercase();
                let is_closed = text.contains("connection: close");
                let has_both =
                    text.contains("x-neutron-router-id:") && text.contains("x-neutron-state:");
                let status = if has_both { "200 OK" } else { "500 Internal Server Error" };
                stream.write_all(&eventlet(status, is_closed))?;
                if is_closed {
                    return Ok(());
                }
            }
            Behaviour::Resetting | Behaviour::Closing => return Ok(()),
            Behaviour::Threaded
            | Behaviour::Restarting
            | Behaviour::Absent
            | Behaviour::Refusing => {
                return stream.write_all(THREADED);
            }
        }
    }
}

/// An answer in the order in which eventlet writes it.
fn eventlet(status: &str, is_closed: bool) -> Vec<u8> {
    let close = if is_closed { "Connection: close\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=UTF-8\r\nContent-Length: 0\r\n\
         Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n{close}\r\n"
    )
    .into_bytes()
}

fn wait(span: Duration) {
    let _ = poll(&mut [], Timespec::try_from(span).ok().as_ref());
}

fn wait_for_ever() -> ! {
    loop {
        wait(Duration::from_hours(1));
    }
}
