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
mod summary;
mod verify;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::{TaskError, TaskResult, build, provision};
use deb::Compression;
use files::{Inputs, Layout, Package};
use programs::X86_64;
pub use programs::vipwatch;
use release::DistRelease;

pub const HELP: &str = "\
Build the programs and the packages that are shipped.

Usage: cargo xtask dist [--quick] [--out DIR] [--version VERSION] [--json] [--verify]

  --quick            Make only the Debian packages, with the debug build of vipwatch, for tests
  --out DIR          Write to DIR instead of target/dist
  --version VERSION  Use this version for the packages instead of that in Cargo.toml
  --json             Print the summary as JSON
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

/// A parsed command line.
struct DistOptions {
    extent: Extent,
    out: PathBuf,
    version: String,
    is_json: bool,
    /// Whether a second build must give the same bytes.
    is_verified: bool,
}

impl DistOptions {
    fn new(extent: Extent, out: PathBuf) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { extent, out, version, is_json: false, is_verified: false }
    }
}

fn parse(args: &[&str]) -> Result<DistOptions, TaskError> {
    let out = std::path::absolute(build::target_directory())?.join("dist");
    let mut options = DistOptions::new(Extent::Full, out);
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| TaskError(format!("{arg} needs a value")));
        match arg {
            "--quick" => options.extent = Extent::Quick,
            "--json" => options.is_json = true,
            "--verify" => options.is_verified = true,
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
    let release = DistRelease::new(&options.version)?;
    let files = make(&options, &release)?;
    let artifacts = summary::check_sums(&files, &options.out)?;
    if options.is_verified {
        verify::run(&options.out, &release)?;
    }
    if options.is_json {
        println!("{}", summary::json(&artifacts, &release, &options.out));
    } else {
        println!("{}", summary::table(&artifacts, &options.out));
    }
    Ok(())
}

/// Makes the Debian packages for tests in `out`, with another version if one is given.
pub fn quick(out: &Path, version: Option<&str>) -> TaskResult {
    let mut options = DistOptions::new(Extent::Quick, out.to_owned());
    if let Some(version) = version {
        version.clone_into(&mut options.version);
    }
    make(&options, &DistRelease::new(&options.version)?)?;
    Ok(())
}

/// Makes everything in `out`, for tests, and builds it a second time.
pub fn full(out: &Path) -> TaskResult {
    let options = DistOptions::new(Extent::Full, out.to_owned());
    let release = DistRelease::new(&options.version)?;
    let files = make(&options, &release)?;
    summary::check_sums(&files, out)?;
    verify::run(out, &release)
}

/// Makes everything; returns the paths.
fn make(options: &DistOptions, release: &DistRelease) -> Result<Vec<PathBuf>, TaskError> {
    let began = Instant::now();
    let progress = |what: &str| eprintln!("xtask: {:>4} s  {what}", began.elapsed().as_secs());
    // All at once, so that a missing program is not noticed after minutes.
    provision::disk_space()?;
    match options.extent {
        Extent::Quick => provision::programs(&[provision::PACKING])?,
        Extent::Full => {
            provision::programs(&[provision::PACKING, provision::MUSL, provision::RPM])?;
        }
    }
    let target = std::path::absolute(build::target_directory())?;
    // Two builds at the same time must not share it.
    let work = target.join(format!("dist-work-{}", std::process::id()));
    let _ = fs::remove_dir_all(&work);
    let generated = work.join("generated");
    fs::create_dir_all(&generated)?;
    fs::create_dir_all(&options.out)?;
    remove_old(&options.out)?;
    let mut made = Vec::new();
    let inputs = match options.extent {
        Extent::Quick => debug_programs(&work, generated)?,
        Extent::Full => {
            let programs = programs::build(progress)?;
            for (program, architecture) in
                [(&programs.dropin, "x86_64"), (&programs.dropin_aarch64, "aarch64")]
            {
                let name = format!("{}-{}-{architecture}", build::DROPIN, release.version);
                fs::copy(program, options.out.join(&name))?;
                made.push(options.out.join(name));
            }
            let programs::Programs { vipwatch, dropin, switch, .. } = programs;
            Inputs { vipwatch, dropin, switch, generated }
        }
    };
    progress("completions, manual pages, licences");
    generated::write(&inputs.generated, &inputs.vipwatch, release)?;
    let compression = match options.extent {
        Extent::Quick => Compression::Fast,
        Extent::Full => Compression::Small,
    };
    for package in Package::ALL {
        progress(&format!("Debian package {}", package.name()));
        made.push(deb::make(package, &inputs, release, compression, &work, &options.out)?);
    }
    if options.extent == Extent::Full {
        made.extend(other_formats(&inputs, release, &work, &options.out, progress)?);
    }
    fs::remove_dir_all(work)?;
    progress("done");
    Ok(made)
}

/// Makes what is shipped beside the Debian packages.
fn other_formats(
    inputs: &Inputs,
    release: &DistRelease,
    work: &Path,
    out: &Path,
    progress: impl Fn(&str),
) -> Result<Vec<PathBuf>, TaskError> {
    let mut made = Vec::new();
    for package in Package::ALL {
        progress(&format!("RPM {}", package.name()));
        made.push(rpm::make(package, inputs, release, work, out)?);
    }
    progress("archive");
    made.push(tarball(inputs, release, work, out)?);
    progress("OCI image");
    made.push(oci::make(inputs, release, work, out)?);
    progress("bills of materials");
    made.extend(sbom::make(release, work, out)?);
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
fn tarball(
    inputs: &Inputs,
    release: &DistRelease,
    work: &Path,
    out: &Path,
) -> Result<PathBuf, TaskError> {
    let name = format!("vipwatch-{}-x86_64", release.version);
    let tree = work.join("archive");
    for package in Package::ALL {
        archive::stage(&files::files(package, Layout::Merged, inputs)?, &tree.join(&name))?;
    }
    let mut readme = TARBALL_README.to_owned();
    for package in Package::ALL {
        for file in files::files(package, Layout::Merged, inputs)? {
            let _ = writeln!(readme, "{:04o}  /{}", file.mode, file.destination);
        }
    }
    build::write(&tree.join(&name).join(TARBALL_README_PATH), readme.as_bytes())?;
    let path = out.join(format!("{name}.tar"));
    archive::tar(&tree, &[&name], &path, release)?;
    archive::gzip(&path)?;
    Ok(out.join(format!("{name}.tar.gz")))
}

/// Removes the results of an earlier build: other versions must not stay beside the new one.
fn remove_old(out: &Path) -> TaskResult {
    for entry in fs::read_dir(out)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() && is_artifact(&name) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Whether a file has the name of a result, of any version: the directory may have other files.
fn is_artifact(name: &str) -> bool {
    const FORMS: [(&str, &str); 10] = [
        ("vipwatch_", "-1_amd64.deb"),
        ("vipwatch-neutron_", "-1_amd64.deb"),
        ("vipwatch-", "-1.x86_64.rpm"),
        ("vipwatch-neutron-", "-1.x86_64.rpm"),
        ("vipwatch-", "-x86_64.tar.gz"),
        ("vipwatch-", "-oci.tar"),
        ("vipwatch-", ".cdx.json"),
        ("vipwatch-neutron-", ".cdx.json"),
        ("neutron-keepalived-state-change-", "-x86_64"),
        ("neutron-keepalived-state-change-", "-aarch64"),
    ];
    let has_form = |(prefix, suffix): &(&str, &str)| {
        let version = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
        version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
    };
    name == "SHA256SUMS" || FORMS.iter().any(has_form)
}

/// Builds the programs for tests, without debug information, which would make the packages large.
fn debug_programs(work: &Path, generated: PathBuf) -> Result<Inputs, TaskError> {
    let (vipwatch, switch) = ("vipwatch", "vipwatch-neutron-switch");
    let directory = build::debug_programs(&[vipwatch, switch])?;
    let program = |name: &str| -> Result<PathBuf, TaskError> {
        let path = work.join(name);
        let status =
            Command::new("strip").arg("-o").arg(&path).arg(directory.join(name)).status()?;
        if status.success() { Ok(path) } else { Err(TaskError(format!("cannot strip {name}"))) }
    };
    Ok(Inputs {
        vipwatch: program(vipwatch)?,
        dropin: build::dropin()?,
        switch: program(switch)?,
        generated,
    })
}

#[cfg(test)]
mod tests {
    use super::is_artifact;

    #[test]
    fn only_results_of_an_earlier_build_are_removed() {
        for name in [
            "vipwatch_0.1.0-1_amd64.deb",
            "vipwatch-neutron-0.0.1-1.x86_64.rpm",
            "vipwatch-neutron-0.1.0.cdx.json",
            "vipwatch-0.1.0-oci.tar",
            "neutron-keepalived-state-change-0.1.0-aarch64",
            "SHA256SUMS",
        ] {
            assert!(is_artifact(name), "{name}");
        }
        for name in ["vipwatch.toml", "vipwatch-notes.txt", "vipwatch-backup-x86_64.tar.gz"] {
            assert!(!is_artifact(name), "{name}");
        }
    }
}
