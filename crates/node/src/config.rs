// SPDX-License-Identifier: Apache-2.0
//! The node's configuration: one TOML file, which may be absent.
//!
//! Every key has a default, so a node without a file watches the instances of keepalived's usual files.
//! [`Config::parse`] reports every error of a file at once, each with its line; for an unknown key it
//! suggests the nearest known one.

mod cluster;
mod credentials;
mod document;
mod effective;
mod header;
mod hook_account;
mod metrics;
mod notify;
mod programs;
mod protected_file;
mod receiver;
mod secret_line;
mod sections;
mod service_credential;
mod target_name;
mod target_secrets;
mod target_url;
mod targets;
mod web;
mod witness;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strum::IntoStaticStr;

use crate::discovery::{ConfigLocations, InstanceConfig};
use vipwatch_cluster::key::ClusterName;
use vipwatch_history::Retention;
use vipwatch_linux::file::TextFile;
use vipwatch_linux::listen::{ListenError, check_path};

pub use self::cluster::{
    ClusterConfig, ClusterFileError, ClusterIdentityFiles, ClusterLogin, EtcdEndpoint,
    EtcdFileError, KeystoneConfig, KeystoneIdentity, KeystoneUser, NeutronApiConfig,
};
pub use self::document::{SettingError, nearest, span};
pub use self::header::HeaderValue;
pub use self::hook_account::{HookAccount, HookAccountError, ResolvedAccount};
pub use self::metrics::{InstanceGroup, InstanceGroups, MetricsConfig};
pub use self::notify::{AgentRule, BatchSettings, Hook, Rule, Target, Template, Webhook};
pub use self::programs::ProgramCheck;
pub use self::protected_file::{FileContent, ProtectedFileError};
pub use self::receiver::{AllowedAccounts, ReceiverConfig, UnknownAccount, Upstream, octal};
pub use self::secret_line::SecretError;
pub use self::service_credential::ServiceCredential;
pub use self::target_secrets::TargetSecretError;
pub use self::target_url::{HttpUrl, TargetUrl};
pub use self::web::{WebConfig, WebFile, WebTlsFiles};
pub use self::witness::WitnessConfig;

/// The default path of the configuration file, which need not exist.
pub const FILE: &str = "/etc/vipwatch/vipwatch.toml";

/// The default path of the node's socket.
pub const SOCKET: &str = "/run/vipwatch/node.sock";

/// The default state directory, which holds the history and the receiver's journal.
pub const STATE_DIR: &str = "/var/lib/vipwatch";

/// A configuration with every key and its explanation.
pub const EXAMPLE: &str = include_str!("config/example.toml");

/// Maximum size of the file in bytes.
const MAX_FILE_SIZE: u64 = 4 << 20;

/// How the node receives netlink events of the network namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Listen {
    /// One socket for all namespaces; one socket in each namespace where the kernel refuses that.
    #[default]
    Auto,
    /// One socket in each namespace.
    PerNetns,
}

/// The destination and format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum LogFormat {
    /// Journald with fields, if standard error leads to journald; otherwise text to standard error.
    #[default]
    Auto,
    /// Text to standard error.
    Text,
    /// JSON on standard error, one object per line.
    Json,
    /// Journald with fields.
    Journald,
}

/// The validated settings of a node.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file that was read; `None` without one.
    pub file: Option<PathBuf>,
    /// The name of the node; `None` for the name of the host.
    pub name: Option<ClusterName>,
    /// The directory of the history and of the receiver's journal.
    pub state_dir: PathBuf,
    /// The path of the node's socket.
    pub socket: PathBuf,
    /// The id of the group that may use the socket; root and the node's own user always may.
    pub group: Option<u32>,
    /// How the node receives netlink events.
    pub listen: Listen,
    /// The destination and format of the log.
    pub log: LogFormat,
    /// The time between two audits of a namespace.
    pub audit_every: Duration,
    /// The files in which instances are configured.
    pub locations: ConfigLocations,
    /// The limits of the history.
    pub keep: Retention,
    /// Which adverts are captured.
    pub witness: WitnessConfig,
    /// The TCP addresses of the API.
    pub web: WebConfig,
    /// The etcd of the cluster.
    pub cluster: ClusterConfig,
    /// Which metrics are exported, and where.
    pub metrics: MetricsConfig,
    /// The groups of instances (`[[group]]`).
    pub groups: InstanceGroups,
    /// Maximum number of processes of one hook at the same time.
    pub hooks_at_once: usize,
    /// Instances that are configured in this file (`[[instance]]`) and not in a file of keepalived.
    pub instances: Vec<Arc<InstanceConfig>>,
    /// The rules (`[[notify]]`), in the order of the file.
    pub rules: Vec<Rule>,
    /// The settings of the receiver; `None` if the file has no `[receiver]`.
    pub receiver: Option<ReceiverConfig>,
    /// The socket of the hook runner; `None` if this process starts a runner of its own. It is not in the file.
    pub hook_runner: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            file: None,
            name: None,
            state_dir: PathBuf::from(STATE_DIR),
            socket: PathBuf::from(SOCKET),
            group: None,
            listen: Listen::default(),
            log: LogFormat::default(),
            audit_every: Duration::from_mins(30),
            locations: ConfigLocations::default(),
            keep: Retention::default(),
            witness: WitnessConfig::default(),
            web: WebConfig::default(),
            cluster: ClusterConfig::default(),
            metrics: MetricsConfig::default(),
            groups: InstanceGroups::default(),
            hooks_at_once: 8,
            instances: Vec::new(),
            rules: Vec::new(),
            receiver: None,
            hook_runner: None,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file names programs to run, and users other than root and the node's own can write to it.
    #[error("{} may be written by others than root, and says which programs to run", .0.display())]
    Exposed(PathBuf),
    /// The file contains credentials, and every user of the machine can read it.
    #[error("{} holds credentials, and every user can read it", .0.display())]
    Readable(PathBuf),
    /// Targets have their URLs or headers in files or credentials of the service that cannot be used.
    #[error("{}", TargetSecretError::list(.0))]
    TargetSecrets(Vec<TargetSecretError>),
    /// The node cannot use its state directory.
    #[error("cannot use the directory {}", path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A socket cannot be created.
    #[error(transparent)]
    Socket(#[from] ListenError),
    /// The file has errors.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<SettingError>),
}

impl ConfigError {
    /// Whether this user has no permission to read the file.
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl Config {
    /// Reads `file`; without one, the default file if it exists.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let path = file.unwrap_or(Path::new(FILE));
        match read_file(file)? {
            Some(file) => Self::parse(path, &file.text).map_err(|errors| invalid(&file, errors)),
            None => Ok(Self::default()),
        }
    }

    /// As [`Self::load`], for a process that runs the programs and sends the credentials of the file.
    /// Fails if other users can write to the file, or can read credentials in it, or if a hook's program is missing,
    /// not executable, or can be changed by other users (see [`ProgramCheck`]). The node's start, a reload and
    /// `vipwatch config check` call this function, so that they refuse the same files.
    pub fn load_trusted(file: Option<&Path>, programs: ProgramCheck) -> Result<Self, ConfigError> {
        let path = file.unwrap_or(Path::new(FILE));
        let Some(file) = read_file(file)? else { return Ok(Self::default()) };
        check_writers(path, &file)?;
        let mut config = Self::parse(path, &file.text).map_err(|errors| invalid(&file, errors))?;
        config.file = Some(path.to_owned());
        if file.metadata.mode() & 0o004 != 0 && config.has_credentials() {
            return Err(ConfigError::Readable(path.to_owned()));
        }
        let errors = match programs {
            ProgramCheck::Now(node) => programs::examine_programs(path, &file.text, node),
            ProgramCheck::AtEachRun => Vec::new(),
        };
        if errors.is_empty() { Ok(config) } else { Err(invalid(&file, errors)) }
    }

    /// The hooks of the file, for the hook runner: fails if other users can write to the file. Errors in other parts of the
    /// file do not matter, and each program is checked when it runs.
    pub(crate) fn load_hooks(file: Option<&Path>) -> Result<Self, ConfigError> {
        let path = file.unwrap_or(Path::new(FILE));
        let Some(file) = read_file(file)? else { return Ok(Self::default()) };
        check_writers(path, &file)?;
        Ok(Self::parse_lenient(path, &file.text).0)
    }

    /// As [`Self::load`], for a command that only queries the node: returns the valid settings of the file
    /// and its errors.
    pub fn load_lenient(file: Option<&Path>) -> Result<(Self, Vec<SettingError>), ConfigError> {
        let path = file.unwrap_or(Path::new(FILE));
        match read_file(file)? {
            Some(file) => {
                let (config, errors) = Self::parse_lenient(path, &file.text);
                Ok((Self { file: Some(path.to_owned()), ..config }, errors))
            }
            None => Ok((Self::default(), Vec::new())),
        }
    }

    /// Checks that a node could use the state directory and create its sockets, without creating them.
    pub fn check_paths(&self) -> Result<(), ConfigError> {
        check_directory(&self.state_dir)?;
        check_path(&self.socket)?;
        self.receiver.iter().try_for_each(|receiver| check_path(&receiver.socket))?;
        Ok(())
    }

    /// Settings that have no effect with these instances. They are not errors, because an instance may be configured
    /// later.
    pub fn warnings(&self, instances: &[Arc<InstanceConfig>]) -> Vec<String> {
        let rules = (1..).zip(&self.rules);
        let unmatched = rules.flat_map(|(number, rule): (usize, &Rule)| {
            let patterns = rule.unmatched_patterns(instances);
            patterns.into_iter().map(move |pattern| {
                format!("[[notify]] number {number}: the pattern {pattern:?} matches no instance")
            })
        });
        unmatched.chain(self.groups.warnings(instances)).collect()
    }

    /// Logs the [`Self::warnings`].
    pub(crate) fn log_warnings(&self, instances: &[Arc<InstanceConfig>]) {
        for warning in self.warnings(instances) {
            tracing::warn!(warning, "configuration warning");
        }
    }

    /// The settings in force after a reload of `new`: those that need a restart stay.
    #[must_use]
    pub fn with_reloaded(&self, new: Self) -> Self {
        Self {
            name: self.name.clone(),
            state_dir: self.state_dir.clone(),
            socket: self.socket.clone(),
            group: self.group,
            listen: self.listen,
            log: self.log,
            hooks_at_once: self.hooks_at_once,
            keep: self.keep,
            web: self.web.clone(),
            cluster: self.cluster.clone(),
            metrics: self.metrics.clone(),
            hook_runner: self.hook_runner.clone(),
            locations: ConfigLocations {
                has_processes: self.locations.has_processes,
                has_containers: self.locations.has_containers,
                ..new.locations
            },
            ..new
        }
    }

    /// The name of the node: that of the configuration, or that of the host.
    pub fn node_name(&self) -> Arc<str> {
        self.name.as_ref().map_or_else(crate::name, |name| name.as_str().into())
    }
}

/// Reads `file`; `None` if no file was named and the default one does not exist.
fn read_file(file: Option<&Path>) -> Result<Option<TextFile>, ConfigError> {
    let path = file.unwrap_or(Path::new(FILE));
    match vipwatch_linux::file::read_text_file(path, MAX_FILE_SIZE) {
        Ok(text) => Ok(Some(text)),
        Err(error) if file.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ConfigError::Read { file: path.to_owned(), source }),
    }
}

/// The errors of a file, without its lines unless every user can read the file: others may read the messages.
fn invalid(file: &TextFile, mut errors: Vec<SettingError>) -> ConfigError {
    if file.metadata.mode() & 0o004 == 0 {
        for error in &mut errors {
            error.source_line = None;
        }
    }
    ConfigError::Invalid(errors)
}

/// Fails if users other than root and the user of this process can write to the file.
fn check_writers(path: &Path, file: &TextFile) -> Result<(), ConfigError> {
    let own_user = rustix::process::geteuid().as_raw();
    let is_owner_trusted = file.metadata.uid() == 0 || file.metadata.uid() == own_user;
    if !is_owner_trusted || file.metadata.mode() & 0o022 != 0 {
        return Err(ConfigError::Exposed(path.to_owned()));
    }
    Ok(())
}

/// Checks that `path` is a directory or could be created: its nearest existing ancestor is a directory.
fn check_directory(path: &Path) -> Result<(), ConfigError> {
    let nearest = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok());
    match nearest {
        Some(nearest) if !nearest.is_dir() => {
            let text = format!("{} is not a directory", nearest.display());
            let source = io::Error::new(io::ErrorKind::NotADirectory, text);
            Err(ConfigError::StateDir { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
