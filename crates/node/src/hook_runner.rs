// SPDX-License-Identifier: Apache-2.0
//! The hook runner: a process that runs the programs of hooks, so that the node itself needs no right to do so.
//!
//! ```text
//!   node: worker thread ──connect, request──▶ runner ──fork──▶ supervisor of one run ──▶ program, as the hook's user
//!         (client)      ◀────────────answer────────────────────┘    (run)                   └─▶ whatever it starts
//! ```
//!
//! The runner reads the hooks from the configuration file itself and runs only those. A request names a hook, and
//! carries its input and variables. It also carries the definition that the node has read, and the runner refuses a
//! request with another definition than that of its file.
//!
//! The runner is a service of its own with a socket of systemd, or a child of the node, to which the node passes one end of a
//! socket pair for each run. Both use the same messages ([`protocol`]). The runner has one thread, because it forks.

pub(crate) mod client;
mod hook_table;
pub(crate) mod protocol;
mod run;
mod server;

pub use self::server::{RequestSource, Runner, RunnerError};

/// The default path of the runner's socket.
pub const SOCKET: &str = "/run/vipwatch-hook-runner/socket";

/// The user of the node, from which the runner accepts requests besides root.
pub const NODE_USER: &str = "vipwatch";

/// The messages of the runner, on any bytes.
#[cfg(fuzzing)]
pub mod fuzzing {
    use super::protocol::{RunAnswer, RunRequest, receive, send};

    /// Receives a request and sends it again; `None` if the bytes have none.
    pub fn resent_request(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut sent = Vec::new();
        send(&mut sent, &receive::<RunRequest>(bytes).ok()?).ok()?;
        Some(sent)
    }

    /// The same for an answer.
    pub fn resent_answer(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut sent = Vec::new();
        send(&mut sent, &receive::<RunAnswer>(bytes).ok()?).ok()?;
        Some(sent)
    }
}
