// SPDX-License-Identifier: Apache-2.0
//! The keepalived of several Debian releases, each with its own libraries. The program runs in the system's root directory, as
//! an installed one does: its interpreter and its library path are set.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Need, cache_directory, lock_cache, programs};
use crate::{TaskError, process};

/// Environment variable with the paths of the programs, separated by colons.
pub const VERSIONS: &str = "VIPWATCH_KEEPALIVED_VERSIONS";

/// From 2.3 on, keepalived does not start without this file; it prints its text with `-v`.
const OPTIONS_FILE: &[u8] = b"/etc/keepalived/keepalived.config-opts\0";

/// Unpacks packages, and changes the library path of a program.
const UNPACKING: &[Need] = &[("mmdebstrap", "mmdebstrap"), ("patchelf", "patchelf")];

/// 2.1.5 and 2.3.4 for every run, 2.2.7 and 2.3.3 for `--full`.
const RELEASES: [&str; 4] = ["bullseye", "sid", "bookworm", "trixie"];

/// The paths of the programs in the form of [`VERSIONS`]; missing ones are fetched.
pub fn versions(is_full: bool) -> Result<PathBuf, TaskError> {
    let releases = if is_full { &RELEASES[..] } else { &RELEASES[..2] };
    let paths = releases.iter().map(|release| version(release));
    Ok(std::env::join_paths(paths.collect::<Result<Vec<PathBuf>, TaskError>>()?)?.into())
}

/// The keepalived of one release, below the cache directory.
fn version(release: &str) -> Result<PathBuf, TaskError> {
    let directory = cache_directory()?.join("keepalived").join(release);
    let program = directory.join("usr/sbin/keepalived");
    if program.exists() {
        return Ok(program);
    }
    programs(&[UNPACKING])?;
    let _lock = lock_cache()?;
    if program.exists() {
        return Ok(program);
    }
    eprintln!("xtask: fetching the keepalived of Debian {release} into {}", directory.display());
    let partial = directory.with_extension("partial");
    for earlier in [&directory, &partial] {
        let _ = std::fs::remove_dir_all(earlier);
    }
    std::fs::create_dir_all(&partial)?;
    unpack(release, &partial)?;
    relocate(&partial, &directory)?;
    std::fs::rename(&partial, &directory)?;
    Ok(program)
}

/// Unpacks keepalived and the libraries that it needs; runs no script of a package.
fn unpack(release: &str, directory: &Path) -> Result<(), TaskError> {
    let archive = directory.join("root.tar");
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--variant=extract", "--include=keepalived"]);
    // The index of `sid` is valid for a week only; its signature is checked.
    command.arg("--aptopt=Acquire::Check-Valid-Until \"false\";").arg(release).arg(&archive);
    process::output(command.arg(format!("deb http://deb.debian.org/debian {release} main")))?;
    let mut command = Command::new("tar");
    command.arg("-xf").arg(&archive).arg("-C").arg(directory).arg("--no-same-owner");
    let libraries = format!("*/{}/*", libraries());
    process::output(command.args(["--wildcards", &libraries, "./usr/sbin/keepalived"]))?;
    Ok(std::fs::remove_file(archive)?)
}

/// The name of the directories with the libraries.
fn libraries() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// Makes the program in `from` use the interpreter and the libraries in `to`, to which it will be moved.
fn relocate(from: &Path, to: &Path) -> Result<(), TaskError> {
    let program = from.join("usr/sbin/keepalived");
    let text = process::text(Command::new("patchelf").arg("--print-interpreter").arg(&program))?;
    let name = Path::new(&text).file_name().unwrap_or_default();
    let places = ["lib", "usr/lib"].map(|place| Path::new(place).join(libraries()));
    let place = places.iter().find(|place| from.join(place).join(name).exists());
    let none = || TaskError(format!("{} has no {}", from.display(), name.display()));
    let interpreter = to.join(place.ok_or_else(none)?).join(name);
    let path = std::env::join_paths(places.iter().map(|place| to.join(place)))?;
    let mut command = Command::new("patchelf");
    command.arg("--set-interpreter").arg(interpreter);
    // Libraries of libraries are looked up in the old form of the path only.
    command.arg("--force-rpath").arg("--set-rpath").arg(path);
    process::output(command.arg(&program))?;
    let mut bytes = std::fs::read(&program)?;
    let place = bytes.windows(OPTIONS_FILE.len()).position(|window| window == OPTIONS_FILE);
    if let Some(rest) = place.and_then(|place| bytes.get_mut(place..place + OPTIONS_FILE.len())) {
        rest.fill(0);
        rest[..9].copy_from_slice(b"/dev/null");
    }
    // The file keeps its mode.
    Ok(std::fs::File::options().write(true).open(program)?.write_all(&bytes)?)
}
