// SPDX-License-Identifier: Apache-2.0
//! The files of the packages that are generated: completions, manual pages, the changelog of Debian and the licences of
//! the crates that are linked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::files::{PACKAGES, Package};
use super::{DistInputs, DistRelease, archive};
use crate::{TaskError, TaskResult, build, man, process};

/// Writes everything that does not depend on the format of the package.
pub fn write(inputs: &DistInputs) -> TaskResult {
    let DistInputs { generated: directory, vipwatch, release, .. } = inputs;
    fs::create_dir_all(directory.join("completions"))?;
    for shell in ["bash", "zsh", "fish"] {
        let text = process::output(Command::new(vipwatch).args(["completions", shell]))?;
        build::write(&directory.join("completions").join(shell), &text)?;
    }
    man::write(&directory.join("man"))?;
    for package in &PACKAGES {
        let name = package.name;
        let changelog = changelog(name, release)?;
        build::write(&directory.join(format!("{name}.changelog")), changelog.as_bytes())?;
        let licenses_file = directory.join(format!("{name}.licenses"));
        build::write(&licenses_file, licenses(package)?.as_bytes())?;
        archive::gzip(&licenses_file)?;
    }
    Ok(())
}

/// The changelog in Debian's format: one entry, which refers to the changelog of the project.
fn changelog(name: &str, release: &DistRelease) -> Result<String, TaskError> {
    let (version, maintainer, date) =
        (&release.version, super::MAINTAINER, release.date("--rfc-email")?);
    Ok(format!(
        "{name} ({version}-1) unstable; urgency=medium\n\n  * Version {version} of vipwatch; its changes are in CHANGELOG.md of the \
         project.\n\n -- {maintainer}  {date}\n"
    ))
}

/// The licences of the crates that the programs of a package link, with equal texts once.
fn licenses(package: &Package) -> Result<String, TaskError> {
    let linked = linked_crates(package)?;
    let metadata =
        process::output(build::cargo().args(["metadata", "--format-version=1", "--locked"]))?;
    let metadata: Value = serde_json::from_slice(&metadata)?;
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for dependency in metadata["packages"].as_array().into_iter().flatten() {
        let word = |key: &str| dependency[key].as_str().unwrap_or_default();
        let name = format!("{} v{}", word("name"), word("version"));
        if dependency["source"].is_null() || !linked.contains(&name) {
            continue;
        }
        let crate_name = format!("{name} ({})", word("license"));
        let directory = Path::new(word("manifest_path")).parent().unwrap_or(Path::new("/"));
        for text in license_texts(directory)? {
            texts.entry(text).or_default().insert(crate_name.clone());
        }
    }
    let mut result =
        "Licences of the crates that are linked into the programs of this package.\n".to_owned();
    for (text, crates) in texts {
        let _ = write!(result, "\n{:=<80}\n", "");
        for name in crates {
            let _ = writeln!(result, "{name}");
        }
        let _ = write!(result, "{:-<80}\n{}\n", "", text.trim_end());
    }
    Ok(result)
}

/// `name vVERSION` of each crate in the programs of a package, without those that only run in the compiler.
fn linked_crates(package: &Package) -> Result<BTreeSet<String>, TaskError> {
    let crates = package.crate_directories.iter();
    let text = process::text(
        build::cargo()
            .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
            .args(crates.map(|name| format!("--package=vipwatch-{name}")))
            .args(["--target", super::X86_64]),
    )?;
    let words = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    Ok(text.lines().filter(|line| !line.contains("(proc-macro)")).map(words).collect())
}

/// The texts of the licence files of a crate.
fn license_texts(directory: &Path) -> Result<Vec<String>, TaskError> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_license = ["LICEN", "COPYING", "NOTICE"].iter().any(|word| name.starts_with(word));
        if is_license && entry.file_type()?.is_file() {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path())?).into_owned());
        }
    }
    Ok(texts)
}
