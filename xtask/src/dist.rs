//! `cargo xtask dist`: builds the programs and packs them for distribution.

mod deb;
mod files;
mod generated;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::{TaskError, TaskResult, build, provision};
use deb::Compression;
use files::{Inputs, Package};

pub const HELP: &str = "\
Build the programs and the packages that are shipped.

Usage: cargo xtask dist [--quick] [--out DIR] [--version VERSION]

  --quick            Make only the Debian packages, with the debug build of vipwatch, for tests
  --out DIR          Write to DIR instead of target/dist
  --version VERSION  Use this version for the packages instead of that in Cargo.toml

Examples:
  cargo xtask dist
  cargo xtask dist --quick --out /tmp/packages
";

/// The compiler target of the packages.
const X86_64: &str = "x86_64-unknown-linux-musl";

/// The maintainer in the changelog of the Debian packages.
const MAINTAINER: &str = "The vipwatch authors <authors@vipwatch.invalid>";

/// The version and the time that the packages carry.
pub struct Release {
    pub version: String,
    /// The time of the commit, in seconds since 1970. All files in the packages have it.
    pub epoch: u64,
}

/// A parsed command line.
struct DistOptions {
    is_quick: bool,
    out: PathBuf,
    version: String,
}

fn parse(args: &[&str]) -> Result<DistOptions, TaskError> {
    let mut options = DistOptions {
        is_quick: false,
        out: build::target_directory().join("dist"),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| TaskError(format!("{arg} needs a value")));
        match arg {
            "--quick" => options.is_quick = true,
            "--out" => options.out = std::path::absolute(value()?)?,
            "--version" => value()?.clone_into(&mut options.version),
            other => {
                return Err(TaskError(format!(
                    "unknown argument {other:?}\n  hint: `cargo xtask dist --help` lists the options"
                )));
            }
        }
    }
    Ok(options)
}

pub fn run(args: &[&str]) -> TaskResult {
    let options = parse(args)?;
    let files = make(&options)?;
    for file in files {
        println!("{}", file.display());
    }
    Ok(())
}

/// The Debian packages for tests: the debug build in `out`, with `version` or that of Cargo.toml.
pub fn quick(out: &Path) -> TaskResult {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    make(&DistOptions { is_quick: true, out: out.to_owned(), version })?;
    Ok(())
}

fn make(options: &DistOptions) -> Result<Vec<PathBuf>, TaskError> {
    let began = Instant::now();
    provision::programs(&[provision::PACKING])?;
    let release = Release { version: options.version.clone(), epoch: commit_time()? };
    let work = build::target_directory().join("dist-work");
    let _ = fs::remove_dir_all(&work);
    let generated = work.join("generated");
    fs::create_dir_all(&generated)?;
    fs::create_dir_all(&options.out)?;
    let inputs = Inputs {
        vipwatch: debug_program("vipwatch-cli", "vipwatch", &work)?,
        dropin: build::dropin()?,
        switch: if build::root().join("crates/switch").exists() {
            Some(debug_program("vipwatch-switch", "vipwatch-neutron-switch", &work)?)
        } else {
            None
        },
        generated,
    };
    generated::write(&inputs.generated, &inputs.vipwatch, &release)?;
    let mut made = Vec::new();
    for package in Package::ALL {
        let compression = if options.is_quick { Compression::Fast } else { Compression::Small };
        eprintln!(
            "xtask: {:>4.0} s: Debian package {}",
            began.elapsed().as_secs_f64(),
            package.name()
        );
        made.push(deb::make(package, &inputs, &release, compression, &work, &options.out)?);
    }
    Ok(made)
}

/// Builds a program for tests, without debug information, which would make the package large.
fn debug_program(package: &str, name: &str, work: &Path) -> Result<PathBuf, TaskError> {
    build::run_cargo(&["build", "--quiet", "--package", package])?;
    let program = work.join(name);
    let status = Command::new("strip")
        .arg("-o")
        .arg(&program)
        .arg(build::target_directory().join("debug").join(name))
        .status()?;
    if status.success() { Ok(program) } else { Err(TaskError("strip failed".to_owned())) }
}

/// `SOURCE_DATE_EPOCH`, or the time of the newest commit.
fn commit_time() -> Result<u64, TaskError> {
    let text = if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        text
    } else {
        let output = Command::new("git")
            .args(["log", "-1", "--format=%ct"])
            .current_dir(build::root())
            .output()?;
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    text.trim().parse().map_err(|error| {
        TaskError(format!(
            "cannot read the time of the commit ({error})\n  hint: outside of a git clone, set SOURCE_DATE_EPOCH to \
             a number of seconds"
        ))
    })
}
