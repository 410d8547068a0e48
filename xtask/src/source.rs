// SPDX-License-Identifier: Apache-2.0
//! The tracked files of the repository as text, for `tidy`, `scripts` and `sample`.

use std::path::Path;
use std::process::Command;

use crate::{TaskError, build, process};

/// A text file that git tracks, or would add.
pub struct SourceFile {
    /// Relative to the root of the repository.
    pub path: String,
    pub text: String,
}

impl SourceFile {
    pub fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }

    pub fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    pub fn is_document(&self) -> bool {
        self.has_extension("md")
    }

    /// Whether the file is part of a shipped program. It may still have a test module.
    pub fn is_product(&self) -> bool {
        self.is_rust()
            && self.path.starts_with("crates/")
            && self.path.contains("/src/")
            && !self.path.starts_with("crates/testkit/")
            && !self.is_test()
    }

    /// The text before the inline test module, which is the last item of a file.
    pub fn without_tests(&self) -> &str {
        self.text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default()
    }

    /// Whether the whole file is test code: an integration test, or a test module in a file of its own.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }
}

/// Reads all tracked files, sorted by path. Binary and deleted files are left out.
pub fn tracked_files() -> Result<Vec<SourceFile>, TaskError> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let names = process::text(git.current_dir(build::root()))?;
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    names.dedup();
    let read = |name: &str| {
        let text = std::fs::read_to_string(build::root().join(name)).ok()?;
        Some(SourceFile { path: name.to_owned(), text })
    };
    Ok(names.into_iter().filter_map(read).collect())
}

/// The text of the file with this path; empty if there is none.
pub fn text_of<'a>(files: &'a [SourceFile], path: &str) -> &'a str {
    files.iter().find(|file| file.path == path).map_or("", |file| &file.text)
}
