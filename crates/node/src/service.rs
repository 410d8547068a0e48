// SPDX-License-Identifier: Apache-2.0
//! The interface of a service process to the service manager and the operator: messages to systemd (`sd_notify(3)`), the socket
//! and signals that it takes over at its start, the status text, and the state in the log.

mod dump;
mod status_text;

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use vipwatch_core::Moment;
use vipwatch_linux::clock;
use vipwatch_linux::listen::inherited;
use vipwatch_linux::privilege::clear_ambient_set;
use vipwatch_linux::signal::ServiceSignals;
use vipwatch_linux::worker::{stalled, watchdog_period};
use vipwatch_receiver::ListenSource;

pub use self::dump::write_state_dump;
pub use self::status_text::StatusText;

/// The file descriptors that a process takes over or opens before anything else.
#[derive(Debug)]
pub struct StartupFds {
    /// The socket that systemd passed to the process (`LISTEN_FDS`); without one, the receiver creates its own.
    pub listen_source: ListenSource,
    /// The signals that control the process.
    pub signals: ServiceSignals,
}

impl StartupFds {
    /// Takes over the socket and blocks the signals. Call while the process has one thread.
    pub fn take() -> io::Result<Self> {
        // ORDER: before the process opens a file, which could get the same descriptor number.
        let listen_source = inherited().map_or(ListenSource::New, ListenSource::Given);
        // ORDER: before a thread is started, because threads inherit the ambient set and the blocked signals.
        clear_ambient_set().map_err(io::Error::other)?;
        Ok(Self { listen_source, signals: ServiceSignals::block()? })
    }
}

/// Sends `state` to systemd. Does nothing if systemd did not start the process, or if sending fails.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Ok(socket) = UnixDatagram::unbound() else { return };
    // Otherwise a full socket of systemd would block the process.
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    let name = path.as_encoded_bytes();
    let sent = match name.strip_prefix(b"@") {
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            std::os::unix::net::SocketAddr::from_abstract_name(name)
                .and_then(|address| socket.send_to_addr(state.as_bytes(), &address))
        }
        None => socket.send_to(state.as_bytes(), &path),
    };
    let _ = sent;
}

/// Reports that the process reloads its configuration, with the time at which that began.
pub fn notify_reloading() {
    let now = clock::now().since(Moment::new(Duration::ZERO));
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
}

/// systemd's watchdog. It is notified while the main loop runs and every worker makes progress.
#[derive(Debug)]
pub struct Watchdog {
    /// `None` if systemd has no watchdog for this process.
    timer: Option<Timer>,
}

#[derive(Debug)]
struct Timer {
    /// The time after which systemd kills a process that has not notified it.
    period: Duration,
    /// The time of the next notification.
    next: Moment,
    /// The name of a worker that makes no progress and was logged; `None` if all do.
    stalled: Option<String>,
}

impl Watchdog {
    /// Reads the period from the environment (`WATCHDOG_USEC`).
    pub fn from_environment() -> Self {
        let timer = |period| Timer { period, next: clock::now(), stalled: None };
        Self { timer: watchdog_period().map(timer) }
    }

    /// The time of the next notification; `None` if there is no watchdog.
    pub fn due(&self) -> Option<Moment> {
        self.timer.as_ref().map(|timer| timer.next)
    }

    /// Notifies systemd if it is time and if every worker has made progress within the period.
    pub fn tick(&mut self, now: Moment) {
        let Some(timer) = self.timer.as_mut().filter(|timer| timer.next <= now) else { return };
        // sd_watchdog_enabled(3) recommends half of the period.
        timer.next = now + timer.period / 2;
        let stalled = stalled(timer.period);
        match (&stalled, &timer.stalled) {
            (None, _) => notify("WATCHDOG=1"),
            (Some(thread), None) => {
                tracing::error!(thread, "a thread makes no progress; the watchdog is not fed");
            }
            (Some(_), Some(_)) => {}
        }
        timer.stalled = stalled;
    }
}
