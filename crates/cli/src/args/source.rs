// SPDX-License-Identifier: Apache-2.0
//! Options that choose the source of an answer: the node and its socket, or the files and the kernel.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args as Arguments;
use vipwatch_core::ErrorChain;
use vipwatch_node::Config;
use vipwatch_node::config::{ConfigError, SettingError};
use vipwatch_node::discovery::check_file;

use super::OutputOptions;
use crate::failure::{CommandError, ExitStatus};

/// Options that name the node.
#[derive(Debug, Arguments)]
pub(crate) struct NodeSocketOptions {
    /// Read the node's configuration from this file
    #[arg(
        long,
        value_name = "FILE",
        env = "VIPWATCH_CONFIG",
        hide_env_values = true,
        help_heading = "Source"
    )]
    pub(crate) config: Option<PathBuf>,
    /// Connect to the node on this socket
    #[arg(
        long,
        value_name = "PATH",
        env = "VIPWATCH_SOCKET",
        hide_env_values = true,
        help_heading = "Source"
    )]
    pub(crate) socket: Option<PathBuf>,
}

/// Options of every command that queries the node and prints the answer.
#[derive(Debug, Arguments)]
pub(crate) struct NodeOptions {
    #[command(flatten)]
    pub(crate) source: NodeSocketOptions,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

impl NodeOptions {
    /// As [`NodeSocketOptions::settings`].
    pub(crate) fn settings(&self) -> Result<NodeSettings, CommandError> {
        self.source.settings()
    }
}

impl NodeSocketOptions {
    /// The settings of a node. Errors of the file are reported, and its valid settings are used: the running node has
    /// not applied the file either. A file without read permission is skipped.
    pub(crate) fn settings(&self) -> Result<NodeSettings, CommandError> {
        let (settings, errors) = self.load()?;
        if let Some(error) = errors.first() {
            let text =
                format!("{error}; connecting to {} anyway", settings.config.socket.display());
            crate::failure::warn(&text);
        }
        Ok(settings)
    }

    /// The same without a report of the file's errors, for a command that gets them from the node.
    pub(crate) fn settings_without_warning(&self) -> Result<NodeSettings, CommandError> {
        self.load().map(|(settings, _errors)| settings)
    }

    /// The settings, and the errors of the file.
    fn load(&self) -> Result<(NodeSettings, Vec<SettingError>), CommandError> {
        let loaded = Config::load_lenient(self.config.as_deref());
        let (mut config, errors, unread) = match loaded {
            Ok((config, errors)) => (config, errors, None),
            // The command line names the socket, so the file is not needed.
            Err(_) if self.socket.is_some() => (Config::default(), Vec::new(), None),
            Err(error) if error.is_not_permitted() => (Config::default(), Vec::new(), Some(error)),
            Err(error) => return Err(config_error(&error)),
        };
        if let Some(socket) = &self.socket {
            config.socket.clone_from(socket);
        }
        Ok((NodeSettings { config, unread }, errors))
    }
}

/// Options of every command that queries the node, or the kernel instead.
#[derive(Debug, Arguments)]
pub(crate) struct QueryOptions {
    #[command(flatten)]
    pub(crate) node: NodeOptions,
    /// Query the files and the kernel instead of the node; this needs root
    #[arg(long, help_heading = "Source")]
    direct: bool,
    /// Look for Neutron's directory `ha_confs` in this directory; does not query the node
    #[arg(long, value_name = "DIR", help_heading = "Source")]
    state_path: Option<PathBuf>,
    /// Look for instances in this configuration of keepalived; does not query the node
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    keepalived_conf: Option<PathBuf>,
}

impl QueryOptions {
    /// The options for the output.
    pub(crate) fn output(&self) -> &OutputOptions {
        &self.node.output
    }

    /// The configuration with these options applied.
    pub(crate) fn settings(&self) -> Result<Config, CommandError> {
        let loaded = Config::load(self.node.source.config.as_deref());
        let mut config = loaded.map_err(|error| config_error(&error))?;
        if let Some(file) = &self.keepalived_conf {
            check_file(file).map_err(|error| unreadable(file, &error))?;
            // Only this file is wanted, and not those that other processes use.
            config.locations.keepalived = vec![file.clone()];
            config.locations.has_processes = false;
        }
        if let Some(socket) = &self.node.source.socket {
            config.socket.clone_from(socket);
        }
        if let Some(path) = &self.state_path {
            config.locations.neutron.clone_from(path);
        }
        Ok(config)
    }

    /// Whether to query the kernel instead of the node: by request, or because the node uses other files.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct || self.state_path.is_some() || self.keepalived_conf.is_some()
    }
}

/// The settings with which a command finds the node.
#[derive(Debug)]
pub(crate) struct NodeSettings {
    /// The configuration, or the defaults.
    pub(crate) config: Config,
    /// The error, if this user has no permission to read the configuration; `None` if it was read.
    unread: Option<ConfigError>,
}

impl NodeSettings {
    /// Fails if this user cannot read the configuration, which may name another socket than the default one. To be called if
    /// no node is listening.
    pub(crate) fn check_read(&self) -> Result<(), CommandError> {
        let Some(error) = &self.unread else { return Ok(()) };
        let message = format!("no vipwatch node is listening on {}", self.config.socket.display());
        let hint =
            format!("{}: if it sets node.socket, give that path with --socket", ErrorChain(error));
        Err(CommandError::new(ExitStatus::NotReachable, message).hint(hint))
    }
}

/// The error for a file of keepalived that cannot be read.
fn unreadable(file: &Path, error: &std::io::Error) -> CommandError {
    let code = match error.kind() {
        ErrorKind::PermissionDenied => ExitStatus::NotPermitted,
        ErrorKind::NotFound => ExitStatus::NotFound,
        _ => ExitStatus::No,
    };
    CommandError::new(code, format!("cannot read {}: {error}", file.display()))
        .hint("--keepalived-conf takes a configuration file of keepalived, which is a text file")
}

/// The error and hint for a configuration that cannot be used.
pub(crate) fn config_error(error: &ConfigError) -> CommandError {
    let code = match error {
        ConfigError::Read { .. } if error.is_not_permitted() => ExitStatus::NotPermitted,
        ConfigError::Read { .. } | ConfigError::TargetSecrets(_) | ConfigError::StateDir { .. } => {
            ExitStatus::NotFound
        }
        ConfigError::Exposed(_) | ConfigError::Readable(_) => ExitStatus::NotPermitted,
        ConfigError::Invalid(_) | ConfigError::Socket(_) => ExitStatus::No,
    };
    let failure = CommandError::new(code, ErrorChain(error));
    match error {
        ConfigError::Read { .. } => failure,
        ConfigError::Exposed(_) => failure.hint("run `chown root` and `chmod go-w` on the file"),
        ConfigError::Readable(file) => failure.hint(format!(
            "chmod 0640 {}; commands that query the node do not need to read it",
            file.display()
        )),
        ConfigError::TargetSecrets(errors) => match errors.first() {
            Some(error) => failure.hint(error.hint()),
            None => failure,
        },
        ConfigError::StateDir { .. } => failure.hint("set node.state_dir to another directory"),
        ConfigError::Socket(_) => failure.hint("set the socket to another path"),
        ConfigError::Invalid(_) => failure.hint("`vipwatch config example` shows every key"),
    }
}
