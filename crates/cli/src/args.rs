//! The command line: commands, options, help texts, and the configuration with the options applied.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use vipwatch_core::{ErrorChain, LinkName, NetnsName};
use vipwatch_node::Config;
use vipwatch_node::config::{ConfigError, octal, span};
use vipwatch_node::discovery::check_file;
use vipwatch_receiver::simulate::Behaviour;

use crate::complete::live_ids;
use crate::failure::{CommandError, ExitStatus};

/// Show which virtual addresses this node holds, as the kernel knows them, in every network namespace
#[derive(Debug, Parser)]
#[command(version, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct CliArgs {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success, 1 the answer is no, 2 wrong usage, 3 not permitted, \
                          4 something needed is missing.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the role of every instance, since when, and why
    #[command(after_help = "Examples:\n  vipwatch status\n  vipwatch status VI_1 --expect primary")]
    Status(StatusArgs),
    /// Show one instance: addresses, deliveries, findings and recent transitions
    #[command(after_help = "Example:\n  vipwatch show VI_1")]
    Show(ShowArgs),
    /// List everything that is wrong on this node, with a hint for each
    Doctor(DoctorArgs),
    /// Print every change of role as it happens, one line for each
    #[command(
        after_help = "Examples:\n  vipwatch watch\n  vipwatch watch VI_1 --transitions 1 --format json"
    )]
    Watch(WatchArgs),
    /// Run the node: follow every instance, notify the targets and record the history
    Node(NodeArgs),
    /// Run a receiver for the reports of monitors, in place of Neutron's L3 agent
    #[command(
        visible_alias = "agent",
        after_help = "Examples:\n  vipwatch receiver --allow neutron\n  vipwatch receiver status"
    )]
    Receiver(ReceiverArgs),
    /// Check, show, migrate or explain the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show recorded transitions: which instance, when, and the cause
    #[command(
        after_help = "Examples:\n  vipwatch history --since 2h --id VI_1\n  vipwatch history --flaps"
    )]
    History(HistoryArgs),
    /// List the instances that are configured on this node, and problems in their files
    Discover(DiscoverArgs),
    /// Announce addresses to their networks (gratuitous ARP, unsolicited neighbour advertisements)
    #[command(after_help = "Example:\n  vipwatch announce 192.0.2.10 --netns blue --check 2")]
    Announce(AnnounceArgs),
    /// Print a completion script for a shell, which completes the ids of instances
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    #[default]
    Table,
    /// JSON for scripts; docs/reference/cli.md describes the fields
    Json,
}

/// Options of every command that queries the node, or the kernel instead.
#[derive(Debug, Arguments)]
pub(crate) struct QueryOptions {
    /// Read the node's configuration from this file
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Connect to the node on this socket
    #[arg(long, value_name = "PATH", env = "VIPWATCH_SOCKET")]
    socket: Option<PathBuf>,
    /// Query the files and the kernel instead of the node; this needs root
    #[arg(long)]
    direct: bool,
    /// Look for Neutron's directory `ha_confs` in this directory; does not query the node
    #[arg(long, value_name = "DIR")]
    state_path: Option<PathBuf>,
    /// Look for instances in this configuration of keepalived; does not query the node
    #[arg(long, value_name = "FILE")]
    keepalived_conf: Option<PathBuf>,
    /// Print in this format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

impl QueryOptions {
    /// The configuration with these options applied.
    pub(crate) fn settings(&self) -> Result<Config, CommandError> {
        let config = Config::load(self.config.as_deref()).map_err(|error| config_error(&error))?;
        if let Some(file) = &self.keepalived_conf {
            check_file(file).map_err(|error| unreadable(file, &error))?;
        }
        Ok(self.apply(config))
    }

    /// As [`Self::settings`], for a command that queries a node. Errors of the file are reported, and its valid
    /// settings are used: the running node has not applied the file either. A file without read permission
    /// is skipped.
    pub(crate) fn node_settings(&self) -> Result<NodeSettings, CommandError> {
        let loaded = Config::load_lenient(self.config.as_deref());
        let (config, errors, unread) = match loaded {
            Ok((config, errors)) => (config, errors, None),
            // The command line names the socket, so the file is not needed.
            Err(_) if self.socket.is_some() => (Config::default(), Vec::new(), None),
            Err(error) if error.is_not_permitted() => (Config::default(), Vec::new(), Some(error)),
            Err(error) => return Err(config_error(&error)),
        };
        let config = self.apply(config);
        if let Some(error) = errors.first() {
            let text = format!("{error}; connecting to {} anyway", config.socket.display());
            crate::failure::warn(&text);
        }
        Ok(NodeSettings { config, unread })
    }

    fn apply(&self, mut config: Config) -> Config {
        if let Some(socket) = &self.socket {
            config.socket.clone_from(socket);
        }
        if let Some(path) = &self.state_path {
            config.locations.neutron.clone_from(path);
        }
        if let Some(path) = &self.keepalived_conf {
            config.locations.keepalived.clone_from(path);
        }
        config
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
    /// The error for the case that no node is listening on the default socket, and this user cannot read the
    /// configuration, which may name another socket. `None` if the configuration was read.
    pub(crate) fn unread(&self) -> Option<CommandError> {
        let error = self.unread.as_ref()?;
        let message = format!("no vipwatch node is listening on {}", self.config.socket.display());
        let hint =
            format!("{}: if it sets node.socket, give that path with --socket", ErrorChain(error));
        Some(CommandError::new(ExitStatus::Missing, message).hint(hint))
    }
}

/// The error for a file of keepalived that cannot be read.
fn unreadable(file: &Path, error: &std::io::Error) -> CommandError {
    let code = match error.kind() {
        ErrorKind::PermissionDenied => ExitStatus::NotPermitted,
        ErrorKind::NotFound => ExitStatus::Missing,
        _ => ExitStatus::No,
    };
    CommandError::new(code, format!("cannot read {}: {error}", file.display()))
        .hint("--keepalived-conf takes a configuration file of keepalived, which is a text file")
}

/// The error and hint for a configuration that cannot be used.
pub(crate) fn config_error(error: &ConfigError) -> CommandError {
    let code = match error {
        ConfigError::Read { .. } if error.is_not_permitted() => ExitStatus::NotPermitted,
        ConfigError::Read { .. } | ConfigError::StateDir { .. } | ConfigError::Socket(_) => {
            ExitStatus::Missing
        }
        ConfigError::Exposed(_) | ConfigError::Readable(_) => ExitStatus::NotPermitted,
        ConfigError::Invalid(_) => ExitStatus::No,
    };
    let failure = CommandError::new(code, ErrorChain(error));
    match error {
        ConfigError::Read { .. } => failure,
        ConfigError::Exposed(_) => failure.hint("run `chown root` and `chmod go-w` on the file"),
        ConfigError::Readable(file) => failure.hint(format!(
            "chmod 0640 {}; commands that query the node do not need to read it",
            file.display()
        )),
        ConfigError::StateDir { .. } => failure.hint("set node.state_dir to another directory"),
        ConfigError::Socket(_) => failure.hint("set the socket to another path"),
        ConfigError::Invalid(_) => match error.file_with_renamed_keys() {
            Some(file) => failure.hint(format!("run `vipwatch config migrate {}`", file.display())),
            None => failure.hint("`vipwatch config example` shows every key"),
        },
    }
}

/// `vipwatch status`.
#[derive(Debug, Arguments)]
pub(crate) struct StatusArgs {
    /// Show only these instances; the beginning of an id is enough
    #[arg(value_name = "ID", add = ArgValueCompleter::new(live_ids))]
    pub(crate) ids: Vec<String>,
    /// Exit with 1 unless every instance shown has this role
    #[arg(long, value_enum, value_name = "ROLE")]
    pub(crate) expect: Option<ExpectedRole>,
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch watch`.
#[derive(Debug, Arguments)]
pub(crate) struct WatchArgs {
    /// Show only these instances; the beginning of an id is enough
    #[arg(value_name = "ID", add = ArgValueCompleter::new(live_ids))]
    pub(crate) ids: Vec<String>,
    /// Exit after this number of transitions
    #[arg(long, value_name = "N", alias = "changes", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) transitions: Option<u64>,
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch show`.
#[derive(Debug, Arguments)]
pub(crate) struct ShowArgs {
    /// Show this instance; the beginning of its id is enough
    #[arg(value_name = "ID", add = ArgValueCompleter::new(live_ids))]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch doctor`.
#[derive(Debug, Arguments)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch node`.
#[derive(Debug, Arguments)]
pub(crate) struct NodeArgs {
    /// Read the configuration from this file [default: /etc/vipwatch/vipwatch.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Override `node.state_dir`: the directory of the history
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Override `node.socket`: the socket for the other commands
    #[arg(long, value_name = "PATH", env = "VIPWATCH_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Override `find.neutron_state_path`: Neutron's `state_path`
    #[arg(long, value_name = "DIR")]
    pub(crate) state_path: Option<PathBuf>,
    /// Override `find.keepalived_conf`: the configuration of keepalived
    #[arg(long, value_name = "FILE")]
    pub(crate) keepalived_conf: Option<PathBuf>,
    /// Override `node.log`: the destination of the log
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log: Option<LogTo>,
    /// Log debug messages
    #[arg(long)]
    pub(crate) debug: bool,
}

/// The values of `--log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogTo {
    /// Text to standard error
    Text,
    /// JSON to standard error, one object in each line
    Json,
    /// Journald with fields
    Journald,
}

/// `vipwatch config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the file and list every error
    Check {
        /// Check this file [default: /etc/vipwatch/vipwatch.toml]
        #[arg(value_name = "FILE", env = "VIPWATCH_CONFIG")]
        file: Option<PathBuf>,
    },
    /// Show the settings in use, and the targets of each instance
    Show {
        #[command(flatten)]
        query: QueryOptions,
    },
    /// Rewrite a file that uses old names of keys; comments and formatting stay
    #[command(after_help = "Examples:\n  vipwatch config migrate --check\n  \
                            vipwatch config migrate /etc/vipwatch/vipwatch.toml")]
    Migrate {
        /// Rewrite this file [default: /etc/vipwatch/vipwatch.toml]
        #[arg(value_name = "FILE", env = "VIPWATCH_CONFIG")]
        file: Option<PathBuf>,
        /// Print the changes without writing; exit with 1 if there are any
        #[arg(long)]
        check: bool,
    },
    /// Print an example with every key and its explanation
    Example,
}

/// `vipwatch receiver`.
#[derive(Debug, Arguments)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReceiverArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ReceiverCommand>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// The subcommands of `vipwatch receiver`; without one, it runs a receiver.
#[derive(Debug, Subcommand)]
pub(crate) enum ReceiverCommand {
    /// Show the reports, the settled states and the deliveries
    Status(ReceiverStatusArgs),
}

/// `vipwatch receiver status`.
#[derive(Debug, Arguments)]
pub(crate) struct ReceiverStatusArgs {
    /// Connect to this socket [default: that of `vipwatch receiver`, otherwise that of the node]
    #[arg(long, value_name = "PATH")]
    pub(crate) status_socket: Option<PathBuf>,
    /// Read the node's configuration from this file
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Connect to the node on this socket
    #[arg(long, value_name = "PATH", env = "VIPWATCH_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Print metrics in the text format of Prometheus instead
    #[arg(long, conflicts_with = "format")]
    pub(crate) metrics: bool,
    /// Print in this format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// The default socket on which `vipwatch receiver` answers `vipwatch receiver status`.
pub(crate) const RECEIVER_SOCKET: &str = "/run/vipwatch/receiver.sock";

/// Options of a receiver, which override `[receiver]` of the configuration.
#[derive(Debug, Arguments)]
pub(crate) struct ServeArgs {
    /// Read `[receiver]` from this file [default: /etc/vipwatch/vipwatch.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Listen on `keepalived-state-change` in this directory, Neutron's `state_path` [default: /var/lib/neutron]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_path: Option<PathBuf>,
    /// Listen on this socket instead
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Keep the journal in this directory [default: /var/lib/vipwatch]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Answer `vipwatch receiver status` on this socket
    #[arg(long, value_name = "PATH", default_value = RECEIVER_SOCKET)]
    pub(crate) status_socket: PathBuf,
    /// Accept reports of this user or group, besides root and the receiver's own user; can be repeated
    #[arg(long, value_name = "USER|@GROUP")]
    pub(crate) allow: Vec<String>,
    /// Set the owner of the socket
    #[arg(long, value_name = "USER")]
    pub(crate) owner: Option<String>,
    /// Set the group of the socket
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Set the permissions of the socket, in octal [default: 660]
    #[arg(long, value_name = "MODE", value_parser = octal)]
    pub(crate) mode: Option<u32>,
    /// Hold a reported primary back for this time, in case it is withdrawn; 0s for not at all [default: 2s]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) interval: Option<Duration>,
    /// Simulate Neutron's L3 agent instead (threaded: 27 to 29, eventlet: up to 26), or one that fails
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(Behaviour::ALL.map(|(name, _)| name)))]
    pub(crate) simulate: Option<String>,
    /// Log debug messages
    #[arg(long)]
    pub(crate) debug: bool,
}

/// `vipwatch history`.
#[derive(Debug, Arguments)]
pub(crate) struct HistoryArgs {
    /// Show only transitions of the last 90s, 15m, 2h, 7d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) since: Option<Duration>,
    /// Show only this instance; if no instance has exactly this id, all with ids that begin with it
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(live_ids))]
    pub(crate) id: Option<String>,
    /// Show at most this number of transitions, the latest ones
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: u64,
    /// Show the number of transitions of each instance instead
    #[arg(long)]
    pub(crate) flaps: bool,
    /// Read the history in this directory; does not query the node
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// The values of `--expect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExpectedRole {
    Primary,
    Backup,
    Partial,
    Fault,
    Unknown,
}

impl ExpectedRole {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
            Self::Partial => "partial",
            Self::Fault => "fault",
            Self::Unknown => "unknown",
        }
    }
}

/// `vipwatch discover`.
#[derive(Debug, Arguments)]
pub(crate) struct DiscoverArgs {
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch announce`.
#[derive(Debug, Arguments)]
pub(crate) struct AnnounceArgs {
    /// Announce these addresses [default: all that may be announced]
    #[arg(value_name = "IP")]
    pub(crate) addresses: Vec<IpAddr>,
    /// Use this namespace, as `ip netns` lists it [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub(crate) netns: Option<NetnsName>,
    /// Announce only on this link
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Option<LinkName>,
    /// Send this number of rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) count: u16,
    /// Wait this many seconds between two rounds; older Linux neighbours ignore rounds within 1 s
    #[arg(long, value_name = "SECONDS", default_value = "1.1", value_parser = seconds)]
    pub(crate) gap: Duration,
    /// Listen for other holders of the addresses for this many seconds afterwards
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) check: Option<Duration>,
    /// Print in this format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_error| "it must be a number".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|span| !span.is_zero() && *span <= Duration::from_hours(1))
        .ok_or_else(|| "it must be more than 0 and at most 3600".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn receiver_and_its_alias_agent_are_the_same_command() {
        for name in ["receiver", "agent"] {
            let args =
                CliArgs::try_parse_from(["vipwatch", name, "--simulate", "threaded"]).unwrap();
            assert!(matches!(args.command, Command::Receiver(_)), "{name}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        CliArgs::command().debug_assert();
    }

    #[test]
    fn seconds_are_positive_and_at_most_an_hour() {
        assert_eq!(seconds("1.1"), Ok(Duration::from_millis(1100)));
        for invalid in ["", "0", "-1", "NaN", "inf", "4000", "1s"] {
            assert!(seconds(invalid).is_err(), "{invalid}");
        }
    }
}
