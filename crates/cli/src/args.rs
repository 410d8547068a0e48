//! The command line.

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

/// Where every virtual address of this node is: straight from the kernel, in every network
/// namespace.
#[derive(Debug, Parser)]
#[command(version, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct CliArgs {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 fine, 1 the answer is no, 2 wrong usage, 3 not permitted, \
                          4 something needed is missing.";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Who is primary here, since when, and why
    Status(StatusArgs),
    /// One instance: its addresses, who was told, who disagrees, and its past
    Show(ShowArgs),
    /// Everything that is wrong on this node, and what to do about it
    Doctor(DoctorArgs),
    /// Every change of role on this node as it happens, one line each
    Watch(WatchArgs),
    /// Follow every instance of this node, tell whoever wants to know, and remember
    Node(NodeArgs),
    /// Take what monitors report, as Neutron's agent does, and lose nothing; or play one that fails
    #[command(visible_alias = "agent")]
    Receiver(ReceiverArgs),
    /// Check, show or explain the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// What was recorded: what failed over, when, and what told
    History(HistoryArgs),
    /// What there is to watch on this node, and what is wrong with its configuration
    Discover(DiscoverArgs),
    /// Announce addresses to their networks (gratuitous ARP, unsolicited neighbour advertisements)
    Announce(AnnounceArgs),
    /// Print a completion script for a shell; it asks the node for ids
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

/// How to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// For scripts; the schema is in docs/reference/cli.md
    Json,
}

/// Whom to ask, and where to look.
#[derive(Debug, Arguments)]
pub(crate) struct QueryTarget {
    /// The node's configuration
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The node's socket
    #[arg(long, value_name = "PATH", env = "VIPWATCH_SOCKET")]
    socket: Option<PathBuf>,
    /// Do not ask the node: read the files and ask the kernel, which takes root
    #[arg(long)]
    direct: bool,
    /// Look below this for Neutron's directory `ha_confs`; not by asking the node
    #[arg(long, value_name = "DIR")]
    state_path: Option<PathBuf>,
    /// Look for instances in this file of keepalived's; not by asking the node
    #[arg(long, value_name = "FILE")]
    keepalived_conf: Option<PathBuf>,
    /// How to answer
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

impl QueryTarget {
    /// The configuration, with what was said here instead.
    pub(crate) fn settings(&self) -> Result<Config, CommandError> {
        let config = Config::load(self.config.as_deref()).map_err(|error| wrong(&error))?;
        if let Some(file) = &self.keepalived_conf {
            check_file(file).map_err(|error| unreadable(file, &error))?;
        }
        Ok(self.with_what_was_said(config))
    }

    /// As [`Self::settings`], for a command that asks a node. A wrong file is reported and its rest is
    /// used: a node that runs has not taken it. A file that this user may not read is not needed.
    pub(crate) fn settings_for_asking(&self) -> Result<Asking, CommandError> {
        let loaded = Config::load_for_asking(self.config.as_deref());
        let (config, faults, unread) = match loaded {
            Ok((config, faults)) => (config, faults, None),
            // The socket is given.
            Err(_) if self.socket.is_some() => (Config::default(), Vec::new(), None),
            Err(error) if error.is_not_permitted() => (Config::default(), Vec::new(), Some(error)),
            Err(error) => return Err(wrong(&error)),
        };
        let config = self.with_what_was_said(config);
        if let Some(fault) = faults.first() {
            let text = format!("{fault}; asking at {} all the same", config.socket.display());
            crate::failure::warn(&text);
        }
        Ok(Asking { config, unread })
    }

    fn with_what_was_said(&self, mut config: Config) -> Config {
        if let Some(socket) = &self.socket {
            config.socket.clone_from(socket);
        }
        if let Some(path) = &self.state_path {
            config.places.neutron.clone_from(path);
        }
        if let Some(path) = &self.keepalived_conf {
            config.places.keepalived.clone_from(path);
        }
        config
    }

    /// Whether the node is not to be asked: it would look elsewhere.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct || self.state_path.is_some() || self.keepalived_conf.is_some()
    }
}

/// Where to ask.
#[derive(Debug)]
pub(crate) struct Asking {
    /// The configuration, or the defaults.
    pub(crate) config: Config,
    /// Why the configuration could not be read, if this user may not.
    unread: Option<ConfigError>,
}

impl Asking {
    /// No node is listening on the default socket, and the configuration that may name another one
    /// cannot be read.
    pub(crate) fn unread(&self) -> Option<CommandError> {
        let error = self.unread.as_ref()?;
        let message = format!("no vipwatch node is listening on {}", self.config.socket.display());
        let hint = format!("{}: if it sets node.socket, give that as --socket", ErrorChain(error));
        Some(CommandError::new(ExitStatus::Missing, message).hint(hint))
    }
}

/// Why a file that was named cannot be read.
fn unreadable(file: &Path, error: &std::io::Error) -> CommandError {
    let code = match error.kind() {
        ErrorKind::PermissionDenied => ExitStatus::NotPermitted,
        ErrorKind::NotFound => ExitStatus::Missing,
        _ => ExitStatus::No,
    };
    CommandError::new(code, format!("cannot read {}: {error}", file.display()))
        .hint("--keepalived-conf names a configuration of keepalived's, which is a text file")
}

/// What is wrong with a configuration, for people.
pub(crate) fn wrong(error: &ConfigError) -> CommandError {
    let code = match error {
        ConfigError::Read { .. } if error.is_not_permitted() => ExitStatus::NotPermitted,
        ConfigError::Read { .. } | ConfigError::StateDir { .. } | ConfigError::Socket(_) => {
            ExitStatus::Missing
        }
        ConfigError::Exposed(_) | ConfigError::Readable(_) => ExitStatus::NotPermitted,
        ConfigError::Wrong(_) => ExitStatus::No,
    };
    let failure = CommandError::new(code, ErrorChain(error));
    match error {
        ConfigError::Read { .. } => failure,
        ConfigError::Exposed(_) => failure.hint("chown root, chmod go-w"),
        ConfigError::Readable(file) => failure.hint(format!(
            "chmod 0640 {}; commands that ask the node do not need to read it",
            file.display()
        )),
        ConfigError::StateDir { .. } => failure.hint("give another directory as node.state_dir"),
        ConfigError::Socket(_) => failure.hint("give another path"),
        ConfigError::Wrong(_) => failure.hint("`vipwatch config example` shows every key"),
    }
}

/// `vipwatch status`.
#[derive(Debug, Arguments)]
pub(crate) struct StatusArgs {
    /// These instances only; the beginning of an id is enough
    #[arg(value_name = "ID", add = ArgValueCompleter::new(live_ids))]
    pub(crate) ids: Vec<String>,
    /// End with 1 unless every instance shown is this
    #[arg(long, value_enum, value_name = "ROLE")]
    pub(crate) expect: Option<ExpectedRole>,
    #[command(flatten)]
    pub(crate) place: QueryTarget,
}

/// `vipwatch watch`.
#[derive(Debug, Arguments)]
pub(crate) struct WatchArgs {
    /// These instances only; the beginning of an id is enough
    #[arg(value_name = "ID", add = ArgValueCompleter::new(live_ids))]
    pub(crate) ids: Vec<String>,
    /// End after so many changes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) changes: Option<u64>,
    #[command(flatten)]
    pub(crate) place: QueryTarget,
}

/// `vipwatch show`.
#[derive(Debug, Arguments)]
pub(crate) struct ShowArgs {
    /// The instance; the beginning of its id is enough
    #[arg(value_name = "ID", add = ArgValueCompleter::new(live_ids))]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) place: QueryTarget,
}

/// `vipwatch doctor`.
#[derive(Debug, Arguments)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) place: QueryTarget,
}

/// `vipwatch node`.
#[derive(Debug, Arguments)]
pub(crate) struct NodeArgs {
    /// The configuration; the usual one need not exist
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Where the history is kept, instead of where the configuration says
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Where to answer, instead
    #[arg(long, value_name = "PATH", env = "VIPWATCH_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Neutron's `state_path`, instead
    #[arg(long, value_name = "DIR")]
    pub(crate) state_path: Option<PathBuf>,
    /// keepalived's configuration, instead
    #[arg(long, value_name = "FILE")]
    pub(crate) keepalived_conf: Option<PathBuf>,
    /// How to log, instead
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log: Option<LogTo>,
    /// Log more
    #[arg(long)]
    pub(crate) debug: bool,
}

/// What `--log` can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogTo {
    /// To standard error, for people
    Text,
    /// To standard error, an object a line
    Json,
    /// To journald, with fields
    Journald,
}

/// `vipwatch config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say everything that is wrong with it
    Check {
        /// The file; else /etc/vipwatch/vipwatch.toml
        #[arg(value_name = "FILE", env = "VIPWATCH_CONFIG")]
        file: Option<PathBuf>,
    },
    /// What is in force, and who is told about which instance
    Show {
        #[command(flatten)]
        place: QueryTarget,
    },
    /// A configuration with every key in it, explained
    Example,
}

/// `vipwatch agent`.
#[derive(Debug, Arguments)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReceiverArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ReceiverCommand>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// What else there is to do.
#[derive(Debug, Subcommand)]
pub(crate) enum ReceiverCommand {
    /// Who has reported what, and what was made of it
    Status(ReceiverStatusArgs),
}

/// `vipwatch agent status`.
#[derive(Debug, Arguments)]
pub(crate) struct ReceiverStatusArgs {
    /// Where it answers; else where `vipwatch agent` does by default, else where the node does
    #[arg(long, value_name = "PATH")]
    pub(crate) status_socket: Option<PathBuf>,
    /// The node's configuration
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The node's socket
    #[arg(long, value_name = "PATH", env = "VIPWATCH_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Every number as Prometheus reads it, instead
    #[arg(long, conflicts_with = "format")]
    pub(crate) metrics: bool,
    /// How to answer
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Where `vipwatch agent` answers.
pub(crate) const AGENT_SOCKET: &str = "/run/vipwatch/agent.sock";

/// How to receive. What is given here counts more than what the configuration says.
#[derive(Debug, Arguments)]
pub(crate) struct ServeArgs {
    /// The configuration whose `[agent]` says who is told; else /etc/vipwatch/vipwatch.toml, which
    /// need not exist
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Neutron's `state_path`: the socket is `keepalived-state-change` in it [default: /var/lib/neutron]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_path: Option<PathBuf>,
    /// Another socket
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Where the journal is kept [default: /var/lib/vipwatch]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Where to answer `vipwatch agent status`
    #[arg(long, value_name = "PATH", default_value = AGENT_SOCKET)]
    pub(crate) status_socket: PathBuf,
    /// A user, or the members of a group, who may report besides root and our own user; may be given again
    #[arg(long, value_name = "USER|@GROUP")]
    pub(crate) allow: Vec<String>,
    /// Whose the socket is
    #[arg(long, value_name = "USER")]
    pub(crate) owner: Option<String>,
    /// Which group's the socket is
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// The socket's permissions, in octal [default: 660]
    #[arg(long, value_name = "MODE", value_parser = octal)]
    pub(crate) mode: Option<u32>,
    /// For how long a primary is held back, in case it is taken back; 0s for not at all [default: 2s]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) interval: Option<Duration>,
    /// Be an agent of Neutron's instead (threaded is 27 to 29, eventlet up to 26), or one that fails
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(Behaviour::ALL.map(|(name, _)| name)))]
    pub(crate) simulate: Option<String>,
    /// Log more
    #[arg(long)]
    pub(crate) debug: bool,
}

/// `vipwatch history`.
#[derive(Debug, Arguments)]
pub(crate) struct HistoryArgs {
    /// Since so long ago: 90s, 15m, 2h, 7d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) since: Option<Duration>,
    /// Of this instance; or, if no instance has exactly this id, of those whose ids begin with it
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(live_ids))]
    pub(crate) id: Option<String>,
    /// The last so many
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: u64,
    /// How often each instance has changed, instead of every change
    #[arg(long)]
    pub(crate) flaps: bool,
    /// Read it from here; not by asking the node
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) place: QueryTarget,
}

/// What `--expect` can be.
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
    pub(crate) place: QueryTarget,
}

/// `vipwatch announce`.
#[derive(Debug, Arguments)]
pub(crate) struct AnnounceArgs {
    /// These addresses; without any, all that may be announced
    #[arg(value_name = "IP")]
    pub(crate) addresses: Vec<IpAddr>,
    /// In this namespace, as `ip netns` lists it; the present one if not given
    #[arg(long, value_name = "NAME")]
    pub(crate) netns: Option<NetnsName>,
    /// On this link only
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Option<LinkName>,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) count: u16,
    /// Seconds between two rounds; above 1, older Linux neighbours ignore less
    #[arg(long, value_name = "SECONDS", default_value = "1.1", value_parser = seconds)]
    pub(crate) gap: Duration,
    /// Seconds to listen for other holders afterwards
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) check: Option<Duration>,
    /// How to answer
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_error| "it is not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|span| !span.is_zero() && *span <= Duration::from_hours(1))
        .ok_or_else(|| "it is more than 0 and at most 3600".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        CliArgs::command().debug_assert();
    }

    #[test]
    fn spans_are_positive_and_short() {
        assert_eq!(seconds("1.1"), Ok(Duration::from_millis(1100)));
        for wrong in ["", "0", "-1", "NaN", "inf", "4000", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
