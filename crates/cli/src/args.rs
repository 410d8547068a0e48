//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};
use vipwatch_core::{LinkName, NetnsName};
use vipwatch_engine::discovery::Places;

/// Where every virtual address of this node is: straight from the kernel, in every network
/// namespace.
#[derive(Debug, Parser)]
#[command(version, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 fine, 1 the answer is no, 2 wrong usage, 3 not permitted, \
                          4 something needed is missing.";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Who is primary here, by what the kernel holds now
    Status(Status),
    /// Every change of role on this node as it happens, one line each
    Watch(Watch),
    /// Follow every instance of this node, and remember every change
    Node(Node),
    /// What was recorded: what failed over, when, and what told
    History(History),
    /// What there is to watch on this node, and what is wrong with its configuration
    Discover(Discover),
    /// Announce addresses to their networks (gratuitous ARP, unsolicited neighbour advertisements)
    Announce(Announce),
    /// Print a completion script for a shell
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

/// Where to look.
#[derive(Debug, Arguments)]
pub(crate) struct Where {
    /// Neutron's `state_path`, which has the directory `ha_confs`
    #[arg(long, value_name = "DIR", default_value = "/var/lib/neutron")]
    state_path: PathBuf,
    /// keepalived's configuration; what it includes is read too
    #[arg(long, value_name = "FILE", default_value = "/etc/keepalived/keepalived.conf")]
    keepalived_conf: PathBuf,
    /// How to answer
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

impl Where {
    pub(crate) fn places(&self) -> Places {
        Places { neutron: self.state_path.clone(), keepalived: self.keepalived_conf.clone() }
    }
}

/// `vipwatch status`.
#[derive(Debug, Arguments)]
pub(crate) struct Status {
    /// These instances only; the beginning of an id is enough
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// End with 1 unless every instance shown is this
    #[arg(long, value_enum, value_name = "ROLE")]
    pub(crate) expect: Option<Expected>,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `vipwatch watch`.
#[derive(Debug, Arguments)]
pub(crate) struct Watch {
    /// These instances only; the beginning of an id is enough
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// End after so many changes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) changes: Option<u64>,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `vipwatch node`.
#[derive(Debug, Arguments)]
pub(crate) struct Node {
    /// Where the history is kept
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub(crate) state_dir: PathBuf,
    /// How many days to keep
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub(crate) keep_days: u32,
    /// How many changes to keep at most
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep_changes: u64,
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `vipwatch history`.
#[derive(Debug, Arguments)]
pub(crate) struct History {
    /// Since so long ago: 90s, 15m, 2h, 7d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) since: Option<Duration>,
    /// Of the instances whose ids begin so
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// The last so many
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: u64,
    /// Where the history is kept
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub(crate) state_dir: PathBuf,
    /// How to answer
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

const STATE_DIR: &str = "/var/lib/vipwatch";

/// What `--expect` can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Expected {
    Primary,
    Backup,
    Partial,
    Fault,
    Unknown,
}

impl Expected {
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
pub(crate) struct Discover {
    #[command(flatten)]
    pub(crate) place: Where,
}

/// `vipwatch announce`.
#[derive(Debug, Arguments)]
pub(crate) struct Announce {
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

/// A number and a unit.
fn span(text: &str) -> Result<Duration, String> {
    let wrong = || "it is a number with s, m, h or d behind it".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_error| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn spans_have_a_unit() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("2h"), Ok(Duration::from_hours(2)));
        assert_eq!(span("7d"), Ok(Duration::from_hours(168)));
        for wrong in ["", "h", "2", "2w", "-1h", "1.5h", "2ü", "99999999999999999999d"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_are_positive_and_short() {
        assert_eq!(seconds("1.1"), Ok(Duration::from_millis(1100)));
        for wrong in ["", "0", "-1", "NaN", "inf", "4000", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
