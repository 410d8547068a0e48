//! What a service manager wants to hear (`sd_notify(3)`): ready, stopping, still alive.

use std::os::unix::net::UnixDatagram;

/// Tells the service manager, if there is one. A failure is no reason not to watch.
pub(crate) fn notify(state: &str) {
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

/// Says that the loop turns, where somebody counts on it. It turns every ten seconds at least.
pub(crate) fn notify_watchdog() {
    if std::env::var_os("WATCHDOG_USEC").is_some() {
        notify("WATCHDOG=1");
    }
}
