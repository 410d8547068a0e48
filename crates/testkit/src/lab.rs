// SPDX-License-Identifier: Apache-2.0
//! A temporary directory and temporary network namespaces for one test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use crate::AddressEditor;

/// Environment variable that `cargo xtask` sets for programs that run inside its namespaces.
pub const LAB_VARIABLE: &str = "VIPWATCH_LAB";

/// A temporary directory. It also gives the namespaces of a test their names.
#[derive(Debug)]
pub struct Lab {
    directory: TempDir,
    number: u32,
}

impl Lab {
    /// Creates a lab. Panics outside of `cargo xtask`: a test that cannot run is a failed test.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        assert!(
            std::env::var_os(LAB_VARIABLE).is_some(),
            "this needs network namespaces of its own; hint: run `cargo xtask test`"
        );
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The directory has a short path: the path of the agent's socket may have 107 bytes.
        let directory =
            tempfile::Builder::new().prefix("vw").tempdir().expect("create a temporary directory");
        Self { directory, number }
    }

    /// A number that no other lab of this process has.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The temporary directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Creates a namespace, with the loopback link up.
    pub fn netns(&self, name: &str) -> TestNetns {
        TestNetns::create(&format!("vw{}-{}-{name}", std::process::id(), self.number))
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

/// A network namespace. Dropping it kills every process in it and deletes it.
#[derive(Debug)]
pub struct TestNetns {
    name: String,
}

impl TestNetns {
    /// Creates the namespace `name`, with the loopback link up.
    pub fn create(name: &str) -> Self {
        run(Command::new("ip").args(["netns", "add", name]));
        let netns = Self { name: name.to_owned() };
        netns.ip("link set lo up");
        netns
    }

    /// Takes ownership of an existing namespace.
    pub(crate) fn adopt(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// Drops the value without deleting the namespace.
    pub(crate) fn forget(mut self) {
        self.name.clear();
    }

    /// Name of the namespace, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path of the namespace's file.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Runs `ip` in the namespace; `words` are its arguments, separated by spaces. Panics if it fails.
    #[track_caller]
    pub fn ip(&self, words: &str) {
        run(Command::new("ip").arg("-n").arg(&self.name).args(words.split_whitespace()));
    }

    /// The output of `ip address show` for `link`.
    pub fn addresses(&self, link: &str) -> String {
        run(Command::new("ip").args(["-n", &self.name, "address", "show", "dev", link]))
    }

    /// Creates a veth pair with both ends up. The name of the other end is [`peer_of`] `name`.
    pub fn add_link(&self, name: &str) {
        let peer = peer_of(name);
        self.ip(&format!("link add {name} type veth peer name {peer}"));
        self.ip(&format!("link set {name} up"));
        self.ip(&format!("link set {peer} up"));
    }

    /// A command that runs `program` in the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `work` in the namespace, on a thread that does nothing else.
    pub fn visit<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let handle = std::fs::File::open(self.path()).expect("open the namespace");
        std::thread::scope(|scope| {
            let visit = scope.spawn(move || {
                use std::os::fd::AsFd;
                move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("enter the namespace");
                work()
            });
            visit.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Sends an IPv4 packet with its header `count` times. The kernel corrects its total length and header checksum.
    pub fn send_ipv4(&self, packet: &[u8], count: usize) {
        use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, sendto, socket};
        const IPPROTO_RAW: u32 = 255;
        self.visit(|| {
            let protocol = std::num::NonZeroU32::new(IPPROTO_RAW).map(Protocol::from_raw);
            let socket = socket(AddressFamily::INET, SocketType::RAW, protocol);
            let socket = socket.expect("open a raw socket");
            let address: [u8; 4] = packet[16..20].try_into().expect("four bytes");
            let to = std::net::SocketAddrV4::new(address.into(), 0);
            for _ in 0..count {
                sendto(&socket, packet, SendFlags::empty(), &to).expect("send a packet");
            }
        });
    }

    /// Opens a netlink socket that changes addresses in the namespace.
    pub fn editor(&self) -> AddressEditor {
        self.visit(AddressEditor::new)
    }

    /// The processes in the namespace.
    pub fn pids(&self) -> Vec<i32> {
        let output = Command::new("ip").args(["netns", "pids", &self.name]).output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Deletes the namespace now.
    pub fn delete(self) {}
}

impl Drop for TestNetns {
    fn drop(&mut self) {
        if self.name.is_empty() {
            return;
        }
        for pid in self.pids().into_iter().filter_map(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ =
            Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status();
    }
}

/// Name of the other end of a link of [`TestNetns::add_link`]: `name` with a `p`, at most 15 bytes.
pub fn peer_of(name: &str) -> String {
    let mut peer = name.chars().take(14).collect::<String>();
    peer.push('p');
    peer
}

/// Writes a shell script that can be run at once. A child process writes it: the kernel does not run a file
/// that any process has open for writing, and a process that another thread starts at this moment inherits the
/// descriptors of the test.
#[track_caller]
pub fn script(path: &Path, text: &str) {
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
    run(Command::new("sh").args(["-c", write, "sh", text]).arg(path));
}

/// Runs `command` to its end and returns its output. Panics with its errors if it fails.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
