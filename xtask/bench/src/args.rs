// SPDX-License-Identifier: Apache-2.0
//! What `cargo xtask bench` passes: the name of the bench, `--quick`, and paths in the environment.

use std::path::PathBuf;

/// The measured program, and the number of repetitions.
pub struct BenchArgs {
    /// The program of ours that is measured.
    pub subject: PathBuf,
    /// Fewer repetitions; the results are not meant to be quoted.
    pub is_quick: bool,
}

impl BenchArgs {
    pub fn read() -> Self {
        let is_quick = std::env::args().any(|word| word == "--quick");
        Self { subject: path("VIPWATCH_SUBJECT"), is_quick }
    }

    /// Chooses a value for a quick or for a full run.
    pub fn pick<T>(&self, quick: T, full: T) -> T {
        if self.is_quick { quick } else { full }
    }
}

/// The path in a variable of the environment.
pub fn path(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.unwrap_or_else(|| panic!("{variable} is not set; start this with `cargo xtask bench`"))
}

/// The Python environment with Neutron 29.0.0.
pub fn neutron_29() -> PathBuf {
    path("VIPWATCH_NEUTRON_29")
}

/// The number of namespaces in the environment; `default` without it.
pub fn namespaces(default: usize) -> usize {
    let text = std::env::var("VIPWATCH_NAMESPACES").unwrap_or_default();
    text.parse().unwrap_or(default)
}
