//! A scratch directory and network namespaces that go away with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use crate::AddressEditor;

/// Set by `cargo xtask` for whatever it runs inside its own namespaces.
pub const MARK: &str = "VIPWATCH_LAB";

/// A scratch directory, and the namespaces made for one test.
#[derive(Debug)]
pub struct Lab {
    directory: TempDir,
    number: u32,
}

impl Lab {
    /// A new lab. Panics where namespaces cannot be made: asked but unable is a failure.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        assert!(
            std::env::var_os(MARK).is_some(),
            "this needs network namespaces of its own; hint: run `cargo xtask test`"
        );
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Short: the agent's socket must fit into 107 bytes.
        let directory =
            tempfile::Builder::new().prefix("vw").tempdir_in("/tmp").expect("a scratch directory");
        Self { directory, number }
    }

    /// Sets what belongs to this lab apart from what belongs to others.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The scratch directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A new namespace, loopback up.
    pub fn netns(&self, name: &str) -> TestNetns {
        TestNetns::create(&format!("vw{}-{}-{name}", std::process::id(), self.number))
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

/// A network namespace; deleted, with every process in it, when dropped.
#[derive(Debug)]
pub struct TestNetns {
    name: String,
}

impl TestNetns {
    /// Makes a namespace called `name`.
    pub fn create(name: &str) -> Self {
        run(Command::new("ip").args(["netns", "add", name]));
        let netns = Self { name: name.to_owned() };
        netns.ip("link set lo up");
        netns
    }

    /// One that is there already.
    pub(crate) fn adopt(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// Leaves it to somebody else to delete.
    pub(crate) fn forget(mut self) {
        self.name.clear();
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its handle.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Runs `ip` in it, with words separated by spaces.
    #[track_caller]
    pub fn ip(&self, words: &str) {
        run(Command::new("ip").arg("-n").arg(&self.name).args(words.split_whitespace()));
    }

    /// What `ip` says of the addresses of `link`.
    pub fn addresses(&self, link: &str) -> String {
        run(Command::new("ip").args(["-n", &self.name, "address", "show", "dev", link]))
    }

    /// Makes a pair of links, both up; the second is called `name` with a `p` behind.
    pub fn add_link(&self, name: &str) {
        let peer = peer_of(name);
        self.ip(&format!("link add {name} type veth peer name {peer}"));
        self.ip(&format!("link set {name} up"));
        self.ip(&format!("link set {peer} up"));
    }

    /// A command that will run in it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Opens something in it, on a thread that is spent for the purpose.
    pub fn visit<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let handle = std::fs::File::open(self.path()).expect("the namespace exists");
        std::thread::scope(|scope| {
            let visit = scope.spawn(move || {
                use std::os::fd::AsFd;
                move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("the right to enter a namespace");
                work()
            });
            visit.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A hand that changes addresses in it.
    pub fn editor(&self) -> AddressEditor {
        self.visit(AddressEditor::new)
    }

    /// Processes in it.
    pub fn pids(&self) -> Vec<i32> {
        let output = Command::new("ip").args(["netns", "pids", &self.name]).output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Deletes it now.
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

/// The other end of a link made by [`TestNetns::add_link`].
pub fn peer_of(name: &str) -> String {
    let mut peer = name.chars().take(14).collect::<String>();
    peer.push('p');
    peer
}

/// Writes a shell script that can be run at once. A child writes it: a file that is open for writing cannot
/// be run, and what we have open, others have who are just being started from another thread.
#[track_caller]
pub fn script(path: &Path, text: &str) {
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
    run(Command::new("sh").args(["-c", write, "sh", text]).arg(path));
}

/// Runs `command` to its end; panics with what it printed if it fails.
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
