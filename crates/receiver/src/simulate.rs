//! The socket as Neutron's own servers have it, byte for byte, and as they fail.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// In which manner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Neutron 27 to 29: one read, a thread for each connection, and an answer that is not quite HTTP.
    Threaded,
    /// Neutron up to 26: proper HTTP, and connections that are kept open unless told otherwise.
    Eventlet,
    /// Answers after a while.
    Slow,
    /// Takes the connection and says nothing.
    Hanging,
    /// Hangs up with what was said unread.
    Resetting,
    /// Answers something that is no HTTP.
    Garbage,
    /// Answers with 500.
    Error,
}

impl Manner {
    /// All, with their names.
    pub const ALL: [(&'static str, Self); 7] = [
        ("threaded", Self::Threaded),
        ("eventlet", Self::Eventlet),
        ("slow", Self::Slow),
        ("hanging", Self::Hanging),
        ("resetting", Self::Resetting),
        ("garbage", Self::Garbage),
        ("error", Self::Error),
    ];
}

/// How long a slow one takes.
const SLOW: Duration = Duration::from_secs(2);

/// What Neutron 27 to 29 answers: bare line feeds, a stray apostrophe, and no end.
const THREADED: &[u8] = b"HTTP/1.1 200 OK\nContent-Type: text/plain; charset=UTF-8\n\
                          Connection: close\nContent-Location': http://127.0.0.1/";

/// What was heard, as it was said.
pub type Heard = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Serves `listener` in this manner, for ever. `heard` is told what was said.
pub fn serve(listener: OwnedFd, manner: Manner, heard: &Heard) -> io::Result<()> {
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(false)?;
    std::thread::scope(|scope| {
        loop {
            let (stream, _) = listener.accept()?;
            let served = std::thread::Builder::new().spawn_scoped(scope, move || {
                // Whoever hangs up has had enough.
                let _ = attend(stream, manner, heard);
            });
            // Without a thread this one is not served, as it would not be there.
            drop(served);
        }
    })
}

fn attend(mut stream: UnixStream, manner: Manner, heard: &Heard) -> io::Result<()> {
    if manner == Manner::Resetting {
        // Until something has come, and unread.
        let mut polled = [PollFd::new(&stream, PollFlags::IN)];
        poll(&mut polled, None)?;
        return Ok(());
    }
    loop {
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        heard(&buffer[..length]);
        match manner {
            Manner::Threaded => return stream.write_all(THREADED),
            Manner::Slow => {
                wait(SLOW);
                return stream.write_all(THREADED);
            }
            Manner::Garbage => return stream.write_all(b"\x00\x01garbage\n"),
            Manner::Error => return stream.write_all(&eventlet("500 Internal Server Error", true)),
            Manner::Hanging => {
                // Until the other side has had enough.
                while stream.read(&mut buffer)? > 0 {}
                return Ok(());
            }
            Manner::Eventlet => {
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
            Manner::Resetting => return Ok(()),
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
