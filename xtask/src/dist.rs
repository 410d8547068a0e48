// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask dist`: builds the programs and packs them for distribution.

mod archive;
mod deb;
mod files;
mod generated;
mod oci;
mod programs;
mod release;
mod rpm;
mod sbom;
mod verify;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::arguments::Arguments;
use crate::{TaskError, TaskResult, build, process, provision};
use files::{Layout, PACKAGES};
use programs::X86_64;
pub use programs::vipwatch;
use release::DistRelease;

pub const HELP: &str = "\
Build the programs and the packages that are shipped.

Usage: cargo xtask dist [--quick] [--out DIR] [--version VERSION] [--verify]

  --quick            Make only the Debian packages, with the debug build of vipwatch, for tests
  --out DIR          Write to DIR instead of target/dist
  --version VERSION  Use this version for the packages instead of that in Cargo.toml
  --verify           Build a second time in another directory, and fail if a file has other bytes

The result: static programs, Debian packages, RPMs, an archive with the same files, an OCI image, bills of materials
(CycloneDX) and SHA256SUMS. docs/reference/packages.md describes them. The same commit gives the same bytes, in every
directory; SOURCE_DATE_EPOCH replaces the time of the commit.

Examples:
  cargo xtask dist
  cargo xtask dist --quick --out /tmp/packages
";

/// The maintainer in the changelog of the Debian packages.
const MAINTAINER: &str = "The vipwatch authors <authors@vipwatch.invalid>";

/// The files to build.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The Debian packages with debug builds.
    Quick,
    /// Everything that is shipped.
    Full,
}

/// What goes into the packages, and where they are made.
pub struct DistInputs {
    release: DistRelease,
    vipwatch: PathBuf,
    dropin: PathBuf,
    switch: PathBuf,
    /// The directory with completions, manual pages and documents; see [`generated`].
    generated: PathBuf,
    /// The directory for files that are needed during the build only.
    work: PathBuf,
    /// The directory of the results.
    out: PathBuf,
}

pub fn run(args: &[&str]) -> TaskResult {
    let mut args = Arguments::new(args);
    let extent = if args.flag("--quick") { Extent::Quick } else { Extent::Full };
    let is_verified = args.flag("--verify");
    let version = args.value("--version")?;
    let out = args.path("--out")?;
    args.finish()?;
    let out = out.map_or_else(|| target_directory().map(|target| target.join("dist")), Ok)?;
    let names = make(extent, &out, version)?;
    if is_verified {
        verify::run(&out, &release(version)?)?;
    }
    for name in &names {
        println!("{:>9} KiB  {name}", fs::metadata(out.join(name))?.len().div_ceil(1024));
    }
    println!("{} files and SHA256SUMS in {}", names.len(), out.display());
    Ok(())
}

/// Makes the Debian packages for tests in `out`, with another version if one is given.
pub fn quick(out: &Path, version: Option<&str>) -> TaskResult {
    make(Extent::Quick, out, version).map(drop)
}

/// Makes everything in `out`, for tests, and builds it a second time.
pub fn full(out: &Path) -> TaskResult {
    make(Extent::Full, out, None)?;
    verify::run(out, &release(None)?)
}

fn release(version: Option<&str>) -> Result<DistRelease, TaskError> {
    DistRelease::new(version.unwrap_or(env!("CARGO_PKG_VERSION")))
}

fn target_directory() -> Result<PathBuf, TaskError> {
    Ok(std::path::absolute(build::target_directory())?)
}

/// Makes everything; returns the names of the files.
fn make(extent: Extent, out: &Path, version: Option<&str>) -> Result<Vec<String>, TaskError> {
    let began = Instant::now();
    let progress = |what: &str| eprintln!("xtask: {:>4} s  {what}", began.elapsed().as_secs());
    // All at once, so that a missing program is not noticed after minutes.
    provision::disk_space()?;
    provision::programs(match extent {
        Extent::Quick => &[provision::PACKING],
        Extent::Full => &[provision::PACKING, provision::MUSL, provision::RPM],
    })?;
    // Two builds at the same time must not share it.
    let work = target_directory()?.join(format!("dist-work-{}", std::process::id()));
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(work.join("generated"))?;
    fs::create_dir_all(out)?;
    remove_old(out)?;
    let release = release(version)?;
    let mut made = Vec::new();
    let [vipwatch, dropin, switch] = match extent {
        Extent::Quick => debug_programs(&work)?,
        Extent::Full => {
            let programs = programs::build(progress)?;
            for (program, architecture) in
                [(&programs.dropin, "x86_64"), (&programs.dropin_aarch64, "aarch64")]
            {
                let name = format!("{}-{}-{architecture}", build::DROPIN, release.version);
                fs::copy(program, out.join(&name))?;
                made.push(name);
            }
            [programs.vipwatch, programs.dropin, programs.switch]
        }
    };
    let generated = work.join("generated");
    let out = out.to_owned();
    let inputs = DistInputs { release, vipwatch, dropin, switch, generated, work, out };
    progress("completions, manual pages, licences");
    generated::write(&inputs)?;
    for package in &PACKAGES {
        progress(&format!("Debian package {}", package.name));
        made.push(deb::make(package, &inputs, extent)?);
    }
    if extent == Extent::Full {
        made.extend(other_formats(&inputs, progress)?);
    }
    fs::remove_dir_all(&inputs.work)?;
    made.sort();
    let sums = archive::sha256_lines(&inputs.out, &made)?;
    build::write(&inputs.out.join(SUMS), sums.as_bytes())?;
    progress("done");
    Ok(made)
}

/// The file with the sums of all others.
const SUMS: &str = "SHA256SUMS";

/// Makes what is shipped beside the Debian packages.
fn other_formats(inputs: &DistInputs, progress: impl Fn(&str)) -> Result<Vec<String>, TaskError> {
    let mut made = Vec::new();
    for package in &PACKAGES {
        progress(&format!("RPM {}", package.name));
        made.push(rpm::make(package, inputs)?);
    }
    progress("archive");
    made.push(tarball(inputs)?);
    progress("OCI image");
    made.push(oci::make(inputs)?);
    progress("bills of materials");
    made.extend(sbom::make(inputs)?);
    Ok(made)
}

/// The path of the description of the archive, which is unpacked into `/`.
const TARBALL_README_PATH: &str = "usr/share/doc/vipwatch/README.archive";

/// The beginning of the description; the list of files follows.
const TARBALL_README: &str = "\
vipwatch, for systems without dpkg and rpm. The programs are static.

Copy the files to their paths below. Then, as root:

  systemd-sysusers vipwatch.conf
  systemd-tmpfiles --create vipwatch.conf
  systemctl daemon-reload
  systemctl enable --now vipwatch-node.service

For Neutron: install /usr/lib/vipwatch/neutron-keepalived-state-change by hand, as the guide \"With Neutron\" describes.
Nothing in the archive replaces a file of Neutron.

Mode  Path
";

/// An archive with the files of both packages, for systems without dpkg and rpm.
fn tarball(inputs: &DistInputs) -> Result<String, TaskError> {
    let name = format!("vipwatch-{}-x86_64", inputs.release.version);
    let tree = inputs.work.join("archive");
    let mut readme = TARBALL_README.to_owned();
    for package in &PACKAGES {
        let files = files::files(package, Layout::Merged, inputs)?;
        archive::stage(&files, &tree.join(&name))?;
        for file in files {
            let _ = writeln!(readme, "{:04o}  /{}", file.mode, file.destination);
        }
    }
    build::write(&tree.join(&name).join(TARBALL_README_PATH), readme.as_bytes())?;
    let path = inputs.out.join(format!("{name}.tar"));
    archive::tar(&tree, &[&name], &path, &inputs.release)?;
    archive::gzip(&path)?;
    Ok(format!("{name}.tar.gz"))
}

/// Removes the results of an earlier build, which its sums name: other versions must not stay beside the new one.
fn remove_old(out: &Path) -> TaskResult {
    let sums = fs::read_to_string(out.join(SUMS)).unwrap_or_default();
    let names = sums.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name);
    for path in names.map(|name| out.join(name)).filter(|path| path.is_file()) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Builds the programs for tests, without debug information, which would make the packages large.
fn debug_programs(work: &Path) -> Result<[PathBuf; 3], TaskError> {
    let names = ["vipwatch", "vipwatch-neutron-switch"];
    let directory = build::debug_programs(&names)?;
    let [vipwatch, switch] = names.map(|name| work.join(name));
    for (path, name) in [&vipwatch, &switch].into_iter().zip(names) {
        process::run(Command::new("strip").arg("-o").arg(path).arg(directory.join(name)))?;
    }
    Ok([vipwatch, build::dropin()?, switch])
}
