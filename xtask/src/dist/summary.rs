// SPDX-License-Identifier: Apache-2.0
//! The end of a build: checksums, and a table or JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{DistRelease, archive};
use crate::{TaskError, build};

/// A file that was made.
pub struct Artifact {
    pub name: String,
    /// In bytes.
    pub size: u64,
    pub sha256: String,
}

/// Reads size and sum of each file, and writes `SHA256SUMS` to `out`.
pub fn check_sums(files: &[PathBuf], out: &Path) -> Result<Vec<Artifact>, TaskError> {
    let mut artifacts = Vec::new();
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let size = fs::metadata(path)?.len();
        artifacts.push(Artifact { name, size, sha256: archive::sha256(path)? });
    }
    artifacts.sort_by(|a, b| a.name.cmp(&b.name));
    let lines = artifacts.iter().map(|file| format!("{}  {}\n", file.sha256, file.name));
    build::write(&out.join("SHA256SUMS"), lines.collect::<String>().as_bytes())?;
    Ok(artifacts)
}

/// The table of all files.
pub fn table(artifacts: &[Artifact], out: &Path) -> String {
    let width = artifacts.iter().map(|file| file.name.len()).max().unwrap_or_default();
    let mut text = format!("{:width$}  {:>9}  SHA-256\n", "FILE", "KiB");
    for Artifact { name, size, sha256 } in artifacts {
        let _ = writeln!(text, "{name:width$}  {:>9}  {sha256}", size.div_ceil(1024));
    }
    let _ = write!(text, "{} files and SHA256SUMS in {}", artifacts.len(), out.display());
    text
}

/// The same as JSON.
pub fn json(artifacts: &[Artifact], release: &DistRelease, out: &Path) -> String {
    let files = artifacts.iter().map(
        |Artifact { name, size, sha256 }| json!({ "name": name, "size": size, "sha256": sha256 }),
    );
    let value = json!({
        "version": release.version,
        "commit": release.commit,
        "directory": out,
        "files": files.collect::<Vec<_>>(),
    });
    value.to_string()
}
