// SPDX-License-Identifier: Apache-2.0
//! Finds the instances of this node, in the files that keepalived is run with.
//!
//! ```text
//!   scanner.rs           which files: <state_path>/ha_confs/ID/keepalived.conf of each Neutron HA router,
//!      │                 keepalived's own configuration, and those that running processes use
//!      │                 (ordinary_files.rs); scanner/reading.rs reads each
//!      ▼
//!   config_file.rs       one file, parsed with the files that it includes (include.rs, include_pattern.rs), or what its
//!      │                 process has loaded (loaded_config.rs)
//!      │
//!      ▼
//!   instance_config.rs   the instances in it
//! ```
//!
//! In a node, `worker.rs` does this on a thread of its own. A file that cannot be read or parsed is a problem with its name and line, and the other files are still
//! used. The directories are watched by [`crate::watch::follower`].

mod config_file;
mod include;
mod include_pattern;
mod instance_config;
mod loaded_config;
mod ordinary_files;
mod scanner;
mod worker;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vipwatch_core::keepalived::Version;

use crate::processes::KeepalivedTable;

#[cfg(test)]
pub(crate) use self::instance_config::example;
pub use self::instance_config::{InstanceConfig, Origin, netns_of_router};
pub(crate) use self::loaded_config::PendingEdit;
pub use self::scanner::ConfigScanner;
pub(crate) use self::worker::{DiscoveryWorker, Scan};

/// A file that was written less than this ago may be incomplete, and is not used yet.
pub const SETTLE: Duration = Duration::from_millis(100);

/// How long the instances of a file are kept after the file has disappeared. Editors, `cp` and configuration
/// management remove a file and write it again within less.
pub const MISSING_FILE_HOLD: Duration = Duration::from_secs(5);

/// Where the configuration of keepalived is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigLocations {
    /// Neutron's `state_path`.
    pub neutron: PathBuf,
    /// The configuration files of ordinary keepalived: paths, or patterns with `*`, `?` and `[…]`.
    pub keepalived: Vec<PathBuf>,
    /// Files that are left out: paths or patterns.
    pub exclude: Vec<PathBuf>,
    /// Whether running processes of keepalived are read: which configurations they use, and whether they run.
    pub has_processes: bool,
    /// Whether the instances of processes in containers are followed, with an origin of their own.
    pub has_containers: bool,
    /// The configuration id, which decides keepalived's conditional lines (`@id`), as its option `-i` does.
    /// `None`: the host name without its domain.
    pub config_id: Option<String>,
    /// The version of keepalived for files that no process with a known version uses.
    pub version: Version,
}

impl ConfigLocations {
    /// The configuration id in force.
    pub fn config_id(&self) -> String {
        self.config_id.clone().unwrap_or_else(|| {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            host.split('.').next().unwrap_or_default().to_owned()
        })
    }
}

impl Default for ConfigLocations {
    fn default() -> Self {
        Self {
            neutron: PathBuf::from("/var/lib/neutron"),
            keepalived: vec![PathBuf::from("/etc/keepalived/keepalived.conf")],
            exclude: Vec::new(),
            has_processes: true,
            has_containers: false,
            config_id: None,
            version: Version::NEWEST,
        }
    }
}

/// A problem with a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConfigProblem {
    /// The file or directory.
    pub file: PathBuf,
    /// The line, counted from 1; `None` if the problem is with the whole file.
    pub line: Option<u32>,
    /// The error.
    pub text: String,
    /// The content that the node uses meanwhile.
    pub content: ContentInUse,
    /// Whether keepalived cannot hold the addresses of an instance because of it.
    pub loses_addresses: bool,
    /// Whether it is a note: it hides no instance, and keepalived loses nothing.
    pub is_harmless: bool,
}

/// The content of a file with a problem that the node uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContentInUse {
    /// This version of the file, without the part that has the problem.
    Rest,
    /// The last version of the file that was valid.
    LastValid,
}

impl ConfigProblem {
    fn new(file: &Path, line: Option<u32>, text: String) -> Self {
        let (file, content) = (file.to_owned(), ContentInUse::Rest);
        Self { file, line, text, content, loses_addresses: false, is_harmless: false }
    }

    /// The same problem of a file, or directory, of which the last valid version stays in use.
    fn with_last_valid(self) -> Self {
        Self {
            content: ContentInUse::LastValid,
            loses_addresses: false,
            is_harmless: false,
            ..self
        }
    }
}

/// The result of one scan.
#[derive(Debug, Default)]
pub struct DiscoveryResult {
    /// All instances, sorted by id. An instance that has not changed since the last scan is the same `Arc`.
    pub instances: Vec<Arc<InstanceConfig>>,
    /// The problems, sorted by file and line.
    pub problems: Vec<ConfigProblem>,
    /// Whether instances may exist that are not in the list: a file or directory cannot be read, the content of a file in
    /// use may have others, or a limit was exceeded.
    pub may_hide_instances: bool,
    /// A file is being written: another scan is worthwhile after [`SETTLE`].
    pub is_unsettled: bool,
    /// Time until the first missing file counts as deleted; `None` if no file is missing.
    pub hold_ends_in: Option<Duration>,
}

impl DiscoveryResult {
    fn problem(&mut self, file: &Path, line: Option<u32>, text: String) {
        self.problems.push(ConfigProblem::new(file, line, text));
    }
}

/// Scans `locations` once. The processes of keepalived are not read.
pub fn discover(locations: &ConfigLocations) -> DiscoveryResult {
    ConfigScanner::new(locations.clone(), Vec::new()).scan()
}

/// The configurations that running processes of keepalived use, and those processes; `None` if `locations` leave them
/// out, or if they cannot be read.
pub fn read_processes(locations: &ConfigLocations) -> Option<KeepalivedTable> {
    let table = KeepalivedTable::new(None, locations.has_containers);
    let mut table = table.ok().filter(|_| locations.has_processes)?;
    table.scan(Instant::now());
    Some(table)
}

/// Checks that `file` can be a configuration file of keepalived: it exists, is a text file, and does not begin
/// with a byte order mark. For a file that an operator names.
pub fn check_file(file: &Path) -> io::Result<()> {
    include::check(file)
}

/// Reads a configuration with its includes below a directory.
#[cfg(fuzzing)]
pub mod fuzzing {
    use std::io;
    use std::io::Write;
    use std::path::{Path, PathBuf};

    use vipwatch_core::keepalived::Program;
    use vipwatch_linux::root_directory::RootDirectory;

    use super::include::{self, Author, ConfigRequest};

    /// A directory tree.
    #[derive(Debug)]
    pub struct IncludeTree {
        root: RootDirectory,
        file: PathBuf,
    }

    impl IncludeTree {
        /// Opens the tree below `directory`.
        pub fn open(directory: &Path) -> io::Result<Self> {
            let root = RootDirectory::at(directory)?;
            Ok(Self { root, file: directory.join("first.conf") })
        }
    }

    /// Writes `text` into the first file of the tree; returns the names of the instances.
    pub fn load(tree: &IncludeTree, text: &str) -> Vec<String> {
        let written = std::fs::File::create(&tree.file);
        written.and_then(|mut file| file.write_all(text.as_bytes())).unwrap_or_default();
        let loaded = include::load(ConfigRequest {
            root: &tree.root,
            file: Path::new("/first.conf"),
            program: Program { config_id: "node", ..Program::default() },
            process: None,
            author: Author::Operator,
        });
        loaded.configuration.instances.into_iter().map(|instance| instance.name).collect()
    }
}

#[cfg(test)]
mod tests;
