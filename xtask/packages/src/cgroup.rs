// SPDX-License-Identifier: Apache-2.0
//! A control group for each machine. Without it, the systemds of two machines would share one, and end each other's
//! processes.

use std::fs;
use std::path::{Path, PathBuf};

/// The hierarchies in which systemd manages processes: both of a mixed system, or the only one.
const HIERARCHIES: [&str; 3] =
    ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// The control groups of one machine, one in each hierarchy.
pub(crate) struct Cgroup {
    pub(crate) paths: Vec<PathBuf>,
}

impl Cgroup {
    /// Creates the groups.
    pub(crate) fn new(name: &str) -> Self {
        let is_hierarchy = |path: &&str| Path::new(path).join("cgroup.procs").exists();
        let paths: Vec<PathBuf> = HIERARCHIES
            .into_iter()
            .filter(is_hierarchy)
            .map(|hierarchy| Path::new(hierarchy).join(name))
            .collect();
        assert!(!paths.is_empty(), "/sys/fs/cgroup has no hierarchy that systemd can use");
        for path in &paths {
            fs::create_dir_all(path).unwrap_or_else(|error| {
                panic!("cannot create the control group {}: {error}", path.display())
            });
        }
        Self { paths }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for path in &self.paths {
            remove(path);
        }
    }
}

/// Removes a group with the groups in it. The files in them belong to the kernel.
fn remove(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}
