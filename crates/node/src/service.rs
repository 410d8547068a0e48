//! What a service manager wants to hear (`sd_notify(3)`): ready, stopping, still alive.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use vipwatch_core::Moment;
use vipwatch_linux::clock;
use vipwatch_linux::listen::inherited;
use vipwatch_linux::signal::Signals;
use vipwatch_receiver::Entrance;

/// What a process is born with, taken before anything else.
#[derive(Debug)]
pub struct Inheritance {
    /// A socket from a service manager, perhaps.
    pub entrance: Entrance,
    /// What we are told with.
    pub signals: Signals,
}

impl Inheritance {
    /// Takes it. Call while there is one thread.
    pub fn take() -> io::Result<Self> {
        // ORDER: before anything is opened that could stand in its place.
        let entrance = inherited().map_or(Entrance::New, Entrance::Given);
        // ORDER: signals before any thread, so that no thread is killed by them.
        Ok(Self { entrance, signals: Signals::hold_for_service()? })
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

/// Somebody who counts on our turning.
#[derive(Debug)]
pub struct Watchdog {
    /// How often he wants to hear of it, and when next.
    every: Option<(Duration, Moment)>,
}

impl Watchdog {
    /// As the service manager says.
    pub fn from_environment() -> Self {
        let micros = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        // Twice as often as he must hear of it.
        let every = micros.map(|micros: u64| Duration::from_micros(micros.max(2)) / 2);
        Self { every: every.map(|every| (every, clock::now())) }
    }

    /// When he wants to hear of it next.
    pub fn due(&self) -> Option<Moment> {
        self.every.map(|(_, next)| next)
    }

    /// Tells him, if he wants to hear of it by now.
    pub fn tick(&mut self, now: Moment) {
        if let Some((every, next)) = self.every.as_mut().filter(|(_, next)| *next <= now) {
            notify("WATCHDOG=1");
            *next = now + *every;
        }
    }
}
