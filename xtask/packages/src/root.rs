// SPDX-License-Identifier: Apache-2.0
//! Debian roots: made once with mmdebstrap, kept as a tar archive, and unpacked into memory for each run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{CommandOutcome, Machine, PACKAGES, PREVIOUS, directory};

/// The packages of every root, beside those that every Debian system has.
const INCLUDED: &[&str] =
    &["systemd", "systemd-sysv", "dbus", "iproute2", "keepalived", "python3", "logrotate"];

/// Where the roots are mounted. `cargo xtask test packages` gives the tests their own view of the mounts.
const MOUNTED: &str = "/mnt";

/// The release of Debian for tests that need no certain one: that of the machine that has built `vipwatch`, because a
/// program for tests is not static.
pub fn suite() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    match value("ID").as_deref() {
        Some("debian") => value("VERSION_CODENAME").unwrap_or_else(|| "bookworm".to_owned()),
        _ => "bookworm".to_owned(),
    }
}

/// A root directory that one test may change. It is in memory, and disappears when it is dropped.
pub struct Root {
    /// The root directory itself.
    path: PathBuf,
    /// The mounted directory that has the changes.
    layer: PathBuf,
}

impl Root {
    /// A clean root of a release of Debian, for example `bookworm`. The first call for a release makes it, which takes
    /// one to three minutes.
    pub fn debian(suite: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let base = unpacked(suite);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let layer = Path::new(MOUNTED).join(format!("test-{number}"));
        fs::create_dir(&layer).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=1g", "tmpfs"]).arg(&layer));
        let path = layer.join("root");
        let (upper, scratch) = (layer.join("changes"), layer.join("scratch"));
        for directory in [&path, &upper, &scratch] {
            fs::create_dir(directory).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            base.display(),
            upper.display(),
            scratch.display()
        );
        run(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&path));
        let root = Self { path, layer };
        root.share(&directory("VIPWATCH_PACKAGES"), PACKAGES);
        root.share(&directory("VIPWATCH_PREVIOUS"), PREVIOUS);
        root
    }

    /// The path of the root directory outside of it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory of the machine that runs the tests visible in the root, for reading.
    pub fn share(&self, source: &Path, destination: &str) {
        let destination = self.path.join(destination.trim_start_matches('/'));
        fs::create_dir_all(&destination).unwrap();
        run(Command::new("mount").args(["--bind", "-o", "ro"]).arg(source).arg(&destination));
    }

    /// Runs a shell command in the root without systemd, as `chroot` does.
    pub fn run(&self, script: &str) -> CommandOutcome {
        let mut command = Command::new("chroot");
        command.arg(&self.path).args(["/bin/sh", "-ec", script]);
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        CommandOutcome::new(script, &command.output().unwrap())
    }

    /// Boots the root.
    pub fn boot(self) -> Machine {
        Machine::boot(self)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--recursive", "--lazy"]).arg(&self.layer).status();
        let _ = fs::remove_dir(&self.layer);
    }
}

/// The directory with the unchanged root of a release. It is in memory, once for each test program.
fn unpacked(suite: &str) -> PathBuf {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let base = Path::new(MOUNTED).join(suite);
    if base.exists() {
        return base;
    }
    let archive = archive(suite, &directory("VIPWATCH_ROOTS"));
    let is_mounted = Path::new(MOUNTED).join("mounted");
    if !is_mounted.exists() {
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=4g", "tmpfs", MOUNTED]));
        fs::create_dir(&is_mounted).unwrap();
    }
    let partial = Path::new(MOUNTED).join(format!("{suite}.partial"));
    fs::create_dir(&partial).unwrap();
    run(Command::new("tar")
        .arg("-xpf")
        .arg(&archive)
        .arg("-C")
        .arg(&partial)
        .arg("--numeric-owner"));
    fs::rename(&partial, &base).unwrap();
    base
}

/// The archive with the root of a release, in the directory `roots`; mmdebstrap makes it if it does not exist.
pub fn archive(suite: &str, roots: &Path) -> PathBuf {
    fs::create_dir_all(roots).unwrap();
    let archive = roots.join(format!("{suite}-{}.tar", INCLUDED.join("-")));
    if archive.exists() {
        return archive;
    }
    eprintln!("making the Debian root {} (some minutes, once)", archive.display());
    let partial = archive.with_extension(format!("{}.partial.tar", std::process::id()));
    let include = format!("--include={}", INCLUDED.join(","));
    run(Command::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase", &include])
        .args([
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
        ])
        .args([
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-include=/usr/share/doc/vipwatch*",
        ])
        .args(["--dpkgopt=path-include=/usr/share/man/man*/*vipwatch*"])
        .arg(suite)
        .arg(&partial)
        .args(mirror(suite)));
    fs::rename(&partial, &archive).unwrap();
    archive
}

/// The source of packages for an old release: its updates may be in another archive. For a current release mmdebstrap
/// knows the sources.
fn mirror(suite: &str) -> Option<&'static str> {
    (suite == "bullseye").then_some("deb http://deb.debian.org/debian bullseye main")
}

/// Runs a command of the harness itself.
#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let reason = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {reason}");
}
