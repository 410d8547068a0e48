// SPDX-License-Identifier: Apache-2.0
//! The programs as they are shipped: static, with the list of their dependencies in them, and the same bytes in every
//! directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{TaskError, TaskResult, build, process, provision};

/// The compiler target of the packages.
pub const X86_64: &str = "x86_64-unknown-linux-musl";
/// The second compiler target of the drop-in.
pub const AARCH64: &str = "aarch64-unknown-linux-musl";

/// The programs that are shipped.
pub struct Programs {
    pub vipwatch: PathBuf,
    pub dropin: PathBuf,
    pub dropin_aarch64: PathBuf,
    pub switch: PathBuf,
}

/// Builds all programs. `progress` prints what begins.
pub fn build(progress: impl Fn(&str)) -> Result<Programs, TaskError> {
    check_targets(&[X86_64, AARCH64])?;
    progress("vipwatch for x86_64 (several minutes)");
    let vipwatch = program("vipwatch-cli", "vipwatch", "release", X86_64)?;
    progress("vipwatch-neutron-switch for x86_64");
    let switch = program("vipwatch-switch", "vipwatch-neutron-switch", "release", X86_64)?;
    progress("neutron-keepalived-state-change for x86_64");
    let dropin = program("vipwatch-dropin", build::DROPIN, "dropin", X86_64)?;
    progress("neutron-keepalived-state-change for aarch64");
    let dropin_aarch64 = program("vipwatch-dropin", build::DROPIN, "dropin", AARCH64)?;
    Ok(Programs { vipwatch, dropin, dropin_aarch64, switch })
}

/// Builds `vipwatch` alone, for benches. It is shipped for `x86_64` only: on other machines this is the release build of
/// this machine.
pub fn vipwatch() -> Result<PathBuf, TaskError> {
    if std::env::consts::ARCH != "x86_64" {
        return build::vipwatch();
    }
    check_targets(&[X86_64])?;
    program("vipwatch-cli", "vipwatch", "release", X86_64)
}

/// Installs the C compiler for musl; fails if a compiler target cannot be installed.
fn check_targets(targets: &[&str]) -> TaskResult {
    provision::programs(&[provision::MUSL])?;
    match targets.iter().find(|target| !build::has_target(target)) {
        Some(target) => Err(TaskError(format!(
            "the compiler target {target} is missing\n  hint: rustup target add {target}"
        ))),
        None => Ok(()),
    }
}

/// Builds one program; returns its path.
fn program(package: &str, name: &str, profile: &str, target: &str) -> Result<PathBuf, TaskError> {
    // Other compiler flags than those of daily builds: a directory of its own keeps both caches valid.
    let directory = super::target_directory()?.join("dist-build");
    let mut command = Command::new(provision::cargo_auditable()?);
    command.current_dir(build::root());
    command.args(["auditable", "build", "--quiet", "--locked", "--package", package]);
    command.args(["--profile", profile, "--target", target, "--target-dir"]).arg(&directory);
    set_environment(&mut command, &directory)?;
    process::run(&mut command)?;
    let path = directory.join(target).join(profile).join(name);
    is_static(&path)?;
    Ok(path)
}

/// Removes the paths of this machine from the programs, and sets compiler and linker for musl.
fn set_environment(command: &mut Command, directory: &Path) -> TaskResult {
    let home = build::cargo_home().ok_or("neither CARGO_HOME nor HOME is set")?;
    // ORDER: the last prefix that matches counts, and the build directory may be in the repository.
    let prefixes =
        [(build::root(), "/vipwatch"), (home, "/cargo"), (directory.to_owned(), "/build")];
    let (mut rust, mut c) = (Vec::new(), Vec::new());
    for (path, name) in prefixes {
        rust.push(format!("--remap-path-prefix={}={name}", path.display()));
        c.push(format!("-ffile-prefix-map={}={name}", path.display()));
    }
    command.env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}"));
    command.env("CFLAGS_x86_64_unknown_linux_musl", c.join(" "));
    command.env("CC_x86_64_unknown_linux_musl", "musl-gcc");
    // The compiler brings this linker: no other tools for aarch64 are needed.
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld");
    Ok(())
}

/// Fails if a program needs a dynamic loader.
fn is_static(path: &Path) -> TaskResult {
    let headers = process::text(Command::new("readelf").arg("--program-headers").arg(path))?;
    if !headers.contains("INTERP") {
        return Ok(());
    }
    Err(TaskError(format!("{} is not a static program", path.display())))
}
