//! What a service manager wants to hear (`sd_notify(3)`): ready, stopping, still alive.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use vipwatch_core::Moment;
use vipwatch_linux::clock;
use vipwatch_linux::listen::inherited;
use vipwatch_linux::signal::Signals;
use vipwatch_linux::worker::{stalled, watchdog_period};
use vipwatch_receiver::ListenSource;

/// What a process is born with, taken before anything else.
#[derive(Debug)]
pub struct StartupFds {
    /// A socket from a service manager, perhaps.
    pub listen_source: ListenSource,
    /// What we are told with.
    pub signals: Signals,
}

impl StartupFds {
    /// Takes it. Call while there is one thread.
    pub fn take() -> io::Result<Self> {
        // ORDER: before anything is opened that could stand in its place.
        let listen_source = inherited().map_or(ListenSource::New, ListenSource::Given);
        // ORDER: signals before any thread, so that no thread is killed by them.
        Ok(Self { listen_source, signals: Signals::block_for_service()? })
    }
}

/// Tells the service manager, if there is one. A failure is no reason not to watch.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Ok(socket) = UnixDatagram::unbound() else { return };
    // A manager that does not listen must not stop us.
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

/// Says that the configuration is being read again, and when that began.
pub fn notify_reloading() {
    let now = clock::now().since(Moment::new(Duration::ZERO));
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
}

/// The service manager's watchdog: fed for as long as the loop turns and every worker beats.
#[derive(Debug)]
pub struct Watchdog {
    /// `None`: the service manager has none.
    timer: Option<Timer>,
}

#[derive(Debug)]
struct Timer {
    /// The time after which the service manager ends the process.
    period: Duration,
    next: Moment,
    /// A worker that makes no progress, and was logged.
    stalled: Option<String>,
}

impl Watchdog {
    /// As the service manager says (`WATCHDOG_USEC`).
    pub fn from_environment() -> Self {
        let timer = |period| Timer { period, next: clock::now(), stalled: None };
        Self { timer: watchdog_period().map(timer) }
    }

    /// When it is to be fed next.
    pub fn due(&self) -> Option<Moment> {
        self.timer.as_ref().map(|timer| timer.next)
    }

    /// Feeds it if it is time, and if every worker has made progress within its period.
    pub fn tick(&mut self, now: Moment) {
        let Some(timer) = self.timer.as_mut().filter(|timer| timer.next <= now) else { return };
        // Twice as often as it must be.
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
