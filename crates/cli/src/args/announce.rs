// SPDX-License-Identifier: Apache-2.0
//! The arguments of `vipwatch announce`.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args as Arguments;
use clap_complete::engine::ArgValueCompleter;
use vipwatch_core::{LinkName, NetnsName};

use super::OutputOptions;
use crate::complete::live_ids;

/// `vipwatch announce`.
#[derive(Debug, Arguments)]
pub(crate) struct AnnounceArgs {
    /// Announce the addresses of this instance, or these addresses; the beginning of an id is enough
    #[arg(value_name = "ID|IP", conflicts_with = "all", add = ArgValueCompleter::new(live_ids))]
    pub(crate) targets: Vec<AnnounceTarget>,
    /// Announce every address of the namespace that may be announced
    #[arg(long)]
    pub(crate) all: bool,
    /// Use this namespace, as `ip netns` lists it [default: that of the instance, or the current one]
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
    /// Find instances with the node's configuration in this file
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputOptions,
}

/// An address, or the id of an instance. An id that looks like an address is an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnnounceTarget {
    Address(IpAddr),
    Id(String),
}

impl FromStr for AnnounceTarget {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_error| Self::Id(text.to_owned()), Self::Address))
    }
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
    use super::*;

    #[test]
    fn seconds_are_positive_and_at_most_an_hour() {
        assert_eq!(seconds("1.1"), Ok(Duration::from_millis(1100)));
        for invalid in ["", "0", "-1", "NaN", "inf", "4000", "1s"] {
            assert!(seconds(invalid).is_err(), "{invalid}");
        }
    }
}
