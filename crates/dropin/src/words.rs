//! Which word the agent expects for a primary: `master` until Neutron 16, `primary` since
//! 17. No option tells the release, so it is concluded from how we were called, unless an
//! operator says it. The table is in `docs/reference/options.md`.

use std::io;

use vipwatch_core::NeutronState;
use vipwatch_outlets::agent::StateWords;

use crate::args::{Args, ArgumentSpelling};

/// A word for "primary".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Master,
    Primary,
}

impl Word {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "master" => Some(Self::Master),
            "primary" => Some(Self::Primary),
            _ => None,
        }
    }

    /// What each role is called.
    pub(crate) fn words(self) -> StateWords {
        match self {
            Self::Master => |role| match role {
                NeutronState::Primary => "master",
                NeutronState::Backup => "backup",
            },
            Self::Primary => |role| match role {
                NeutronState::Primary => "primary",
                NeutronState::Backup => "backup",
            },
        }
    }
}

/// What the way we were called says about the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// 12 to 14: no `--log-file`.
    Stein,
    /// 15: with one, and started inside the namespace.
    Train,
    /// 16 to 21. LIMIT: 16 says `master` and calls us exactly as 17 does; there the word
    /// must be configured.
    Ussuri,
    /// 22 and later: `PROCESS_TAG`, `--enable_conntrackd`, `--debug`, or values after a
    /// space.
    Antelope,
}

impl Era {
    /// The release that calls as `args` do. `has_process_tag`: `PROCESS_TAG` is in the environment. `is_inside`: the
    /// process was started inside the watched namespace; it is asked only where that makes a difference, and an error
    /// is not taken for "outside".
    pub(crate) fn conclude(
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

    pub(crate) fn word(self) -> Word {
        match self {
            Self::Stein | Self::Train => Word::Master,
            Self::Ussuri | Self::Antelope => Word::Primary,
        }
    }

    /// Neutron's own program logged at debug level until 22, whatever was asked.
    pub(crate) fn forces_debug(self) -> bool {
        match self {
            Self::Stein | Self::Train | Self::Ussuri => true,
            Self::Antelope => false,
        }
    }

    /// For people.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Stein => "called as Neutron 12 to 14 do (no --log-file)",
            Self::Train => "called as Neutron 15 does (inside the namespace)",
            Self::Ussuri => "called as Neutron 16 to 21 do; for 16, set primary_word = master",
            Self::Antelope => "called as Neutron 22 and later do",
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
    fn each_release_is_told_in_its_own_word() {
        let word = |args: &Args, has_process_tag, is_inside| {
            Era::conclude(args, has_process_tag, || Ok(is_inside)).unwrap().word()
        };
        assert_eq!(
            word(&args(ArgumentSpelling::Equals, false), false, true),
            Word::Master,
            "12 to 14"
        );
        assert_eq!(word(&args(ArgumentSpelling::Equals, true), false, true), Word::Master, "15");
        assert_eq!(
            word(&args(ArgumentSpelling::Equals, true), false, false),
            Word::Primary,
            "17 to 21"
        );
        assert_eq!(
            word(&args(ArgumentSpelling::Equals, true), true, false),
            Word::Primary,
            "22 to 28"
        );
        assert_eq!(word(&args(ArgumentSpelling::Space, true), false, false), Word::Primary, "29");
        let debug = Args { debug: Some(true), ..args(ArgumentSpelling::Equals, true) };
        assert_eq!(word(&debug, false, true), Word::Primary, "26 in a wrapper");
    }

    #[test]
    fn an_unknown_namespace_is_an_error_only_where_the_word_depends_on_it() {
        let cannot_tell = || Err(io::ErrorKind::NotFound.into());
        let conclude = |args: &Args| Era::conclude(args, false, cannot_tell);
        assert!(conclude(&args(ArgumentSpelling::Equals, true)).is_err(), "15, or 16 to 21");
        assert_eq!(conclude(&args(ArgumentSpelling::Equals, false)).unwrap(), Era::Stein);
        assert_eq!(conclude(&args(ArgumentSpelling::Space, true)).unwrap(), Era::Antelope);
    }
}
