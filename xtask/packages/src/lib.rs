// SPDX-License-Identifier: Apache-2.0
//! Systems for tests of the packages: a clean Debian root, changed in memory only, and booted with its own systemd.
//!
//! ```text
//! let machine = Root::debian(&suite()).boot();
//! machine.install(&["vipwatch"]);
//! machine.succeed("systemctl is-active vipwatch-node.service");
//! ```
//!
//! `cargo xtask test packages` starts the tests in namespaces of their own for mounts and processes, so that the kernel
//! removes both at the end, also after a kill.

mod cgroup;
mod load;
mod machine;
pub mod neutron;
mod outcome;
mod process;
mod root;

pub use load::RoleChanges;
pub use machine::Machine;
pub use outcome::CommandOutcome;
pub use process::MachineProcess;
pub use root::{Root, archive, suite};

use std::path::PathBuf;

/// The directory in a root that has the packages.
pub const PACKAGES: &str = "/packages";

/// The directory in a root that has packages of the same programs with a lower version.
pub const PREVIOUS: &str = "/previous";

/// A directory that `cargo xtask test packages` passes to the tests.
///
/// # Panics
/// If the variable is missing.
#[track_caller]
pub fn directory(variable: &str) -> PathBuf {
    let value = std::env::var_os(variable);
    let value = value.unwrap_or_else(|| {
        panic!("{variable} is not set\n  hint: run the tests with `cargo xtask test packages`")
    });
    PathBuf::from(value)
}
