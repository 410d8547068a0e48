// SPDX-License-Identifier: Apache-2.0
//! The word that the agent expects for a primary router: `master` until Neutron 16, `primary` since
//! 17. No option names the release, so the program derives it from its command line and environment, unless an
//! operator sets the word. The table is in `docs/reference/options.md`.

use std::io;

use vipwatch_core::NeutronState;
use vipwatch_outlets::agent::StateWords;

use crate::args::{Args, ArgumentSpelling};

/// The word for "primary" in the state file and in requests to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrimaryWord {
    Master,
    Primary,
}

impl PrimaryWord {
    /// The valid values, for messages.
    pub(crate) const VALUES: &str = "`master` or `primary`";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "master" => Some(Self::Master),
            "primary" => Some(Self::Primary),
            _ => None,
        }
    }

    /// The word for each state.
    pub(crate) fn words(self) -> StateWords {
        match self {
            Self::Master => |state| match state {
                NeutronState::Primary => "master",
                NeutronState::Backup => "backup",
            },
            Self::Primary => |state| match state {
                NeutronState::Primary => "primary",
                NeutronState::Backup => "backup",
            },
        }
    }
}

/// A range of Neutron releases that start the program in the same way. Each variant has the name of one of its releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentRelease {
    /// 12 to 14: no `--log-file`.
    Stein,
    /// 15: with `--log-file`, and started inside the namespace.
    Train,
    /// 16 to 21: with `--log-file`, and started outside the namespace. LIMIT: 16 expects `master` and uses exactly the
    /// same command line as 17; there the word must be configured.
    Ussuri,
    /// 22 and later: `PROCESS_TAG`, `--enable_conntrackd`, `--debug`, or values after a
    /// space.
    Antelope,
}

impl AgentRelease {
    /// Derives the release from the command line. `has_process_tag` says whether `PROCESS_TAG` is in the environment.
    /// `is_inside` returns whether the process was started inside the watched namespace; it is called only where that
    /// makes a difference, and its error is returned.
    pub(crate) fn detect(
        args: &Args,
        has_process_tag: bool,
        is_inside: impl FnOnce() -> io::Result<bool>,
    ) -> io::Result<Self> {
        let is_new = args.spelling == Some(ArgumentSpelling::Space)
            || has_process_tag
            || args.conntrackd.is_some()
            || args.debug.is_some();
        Ok(if is_new {
            Self::Antelope
        } else if args.log_file.is_none() {
            Self::Stein
        } else if is_inside()? {
            Self::Train
        } else {
            Self::Ussuri
        })
    }

    pub(crate) fn word(self) -> PrimaryWord {
        match self {
            Self::Stein | Self::Train => PrimaryWord::Master,
            Self::Ussuri | Self::Antelope => PrimaryWord::Primary,
        }
    }

    /// Whether Neutron's own program of this release always logged at debug level: up to 21 it did.
    pub(crate) fn forces_debug(self) -> bool {
        match self {
            Self::Stein | Self::Train | Self::Ussuri => true,
            Self::Antelope => false,
        }
    }

    /// The text that `--check` prints as the reason for the word.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Stein => "started as Neutron 12 to 14 start it (no --log-file)",
            Self::Train => "started as Neutron 15 starts it (inside the namespace)",
            Self::Ussuri => {
                "started as Neutron 16 to 21 start it; for 16, set primary_word = master"
            }
            Self::Antelope => "started as Neutron 22 and later start it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(spelling: ArgumentSpelling, log_file: bool) -> Args {
        Args {
            spelling: Some(spelling),
            log_file: log_file.then(|| "log".to_owned()),
            ..Args::default()
        }
    }

    #[test]
    fn each_release_gets_the_word_that_it_expects() {
        let word = |args: &Args, has_process_tag, is_inside| {
            AgentRelease::detect(args, has_process_tag, || Ok(is_inside)).unwrap().word()
        };
        assert_eq!(
            word(&args(ArgumentSpelling::Equals, false), false, true),
            PrimaryWord::Master,
            "12 to 14"
        );
        assert_eq!(
            word(&args(ArgumentSpelling::Equals, true), false, true),
            PrimaryWord::Master,
            "15"
        );
        assert_eq!(
            word(&args(ArgumentSpelling::Equals, true), false, false),
            PrimaryWord::Primary,
            "17 to 21"
        );
        assert_eq!(
            word(&args(ArgumentSpelling::Equals, true), true, false),
            PrimaryWord::Primary,
            "22 to 28"
        );
        assert_eq!(
            word(&args(ArgumentSpelling::Space, true), false, false),
            PrimaryWord::Primary,
            "29"
        );
        let debug = Args { debug: Some(true), ..args(ArgumentSpelling::Equals, true) };
        assert_eq!(word(&debug, false, true), PrimaryWord::Primary, "26 in a wrapper");
    }

    #[test]
    fn an_unknown_namespace_is_an_error_only_if_the_word_depends_on_it() {
        let unknown = || Err(io::ErrorKind::NotFound.into());
        let detect = |args: &Args| AgentRelease::detect(args, false, unknown);
        assert!(detect(&args(ArgumentSpelling::Equals, true)).is_err(), "15, or 16 to 21");
        assert_eq!(detect(&args(ArgumentSpelling::Equals, false)).unwrap(), AgentRelease::Stein);
        assert_eq!(detect(&args(ArgumentSpelling::Space, true)).unwrap(), AgentRelease::Antelope);
    }
}
