// SPDX-License-Identifier: Apache-2.0
//! Makes the web servers of the demo reachable for a browser on this machine.
//!
//! ```text
//! browser ──▶ loopback port of the machine ──▶ unix socket ──▶ web server in the namespace of a node
//!             (process outside the sandbox)    (a file)        (process in the sandbox)
//! ```
//!
//! A unix socket belongs to no network namespace, so that it connects the two processes. Nothing listens beyond loopback.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{Shutdown, shutdown};
use vipwatch_testkit::TestNetns;

use crate::TaskError;

/// The address of the web server in the namespace of each node.
pub const NODE_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9650);

/// The first port of the machine. If it is taken, the kernel chooses another one.
const FIRST_PORT: u16 = 9650;

/// The ports of this machine, and the directory with the unix sockets. Dropping it removes the directory.
pub struct HostPorts {
    pub directory: PathBuf,
    /// One for each node.
    pub addresses: Vec<SocketAddr>,
}

impl HostPorts {
    /// Listens on `count` ports. Connections are accepted until the process ends.
    pub fn open(count: u16) -> Result<Self, TaskError> {
        let directory = std::env::temp_dir().join(format!("vipwatch-demo-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let mut ports = Self { directory, addresses: Vec::new() };
        for number in 0..count {
            let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
            let listener = listen(FIRST_PORT + number).or_else(|_| listen(0))?;
            ports.addresses.push(listener.local_addr()?);
            let socket = socket(&ports.directory, usize::from(number));
            std::thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    // The node may not run yet, or no longer: the browser tries again.
                    if let Ok(server) = UnixStream::connect(&socket) {
                        join(client.into(), server.into());
                    }
                }
            });
        }
        Ok(ports)
    }
}

impl Drop for HostPorts {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The unix socket of node `number`.
fn socket(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("node-{number}.sock"))
}

/// In the sandbox: connects the clients of the unix socket of node `number` with its web server.
pub fn serve(directory: &Path, number: usize, netns: Arc<TestNetns>) -> Result<(), TaskError> {
    let listener = UnixListener::bind(socket(directory, number))?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A socket stays in the namespace in which it was opened.
            if let Ok(server) = netns.visit(|| TcpStream::connect(NODE_ADDRESS)) {
                join(client.into(), server.into());
            }
        }
    });
    Ok(())
}

/// Copies both directions of a connection, on threads of their own, until both have ended.
fn join(client: OwnedFd, server: OwnedFd) {
    let (Ok(client_copy), Ok(server_copy)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    std::thread::spawn(move || copy(client.into(), server.into()));
    std::thread::spawn(move || copy(server_copy.into(), client_copy.into()));
}

/// Copies each part as it arrives: an event stream is never complete.
fn copy(mut from: File, mut to: File) {
    let mut buffer = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other direction ends, too: a client that is gone reads no more events.
    for end in [from.as_fd(), to.as_fd()] {
        let _ = shutdown(end, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_in_both_directions_and_an_end_is_passed_on() {
        let (mut client, outer) = UnixStream::pair().unwrap();
        let (inner, mut server) = UnixStream::pair().unwrap();
        join(outer.into(), inner.into());
        client.write_all(b"question").unwrap();
        let mut question = [0; 8];
        server.read_exact(&mut question).unwrap();
        server.write_all(b"answer").unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!((&question, answer.as_str()), (b"question", "answer"));
    }
}
