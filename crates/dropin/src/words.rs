//! Which word the agent expects for a primary: `master` until Neutron 16, `primary` since
//! 17. No option tells the release, so it is concluded from how we were called, unless an
//! operator says it. The table is in `docs/reference/options.md`.

use vipwatch_core::Role;
use vipwatch_engine::outlet::agent::Words;

use crate::args::{Args, Spelling};

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
    pub(crate) fn words(self) -> Words {
        match self {
            Self::Master => |role| match role {
                Role::Primary => "master",
                Role::Backup => "backup",
            },
            Self::Primary => |role| match role {
                Role::Primary => "primary",
                Role::Backup => "backup",
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

/// Where we were started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Circumstances {
    /// `PROCESS_TAG` is in the environment.
    pub(crate) has_process_tag: bool,
    /// The watched namespace was ours from the start.
    pub(crate) is_inside: bool,
}

impl Era {
    pub(crate) fn conclude(args: &Args, circumstances: Circumstances) -> Self {
        let is_new = args.spelling == Some(Spelling::Space)
            || circumstances.has_process_tag
            || args.conntrackd.is_some()
            || args.debug.is_some();
        if is_new {
            Self::Antelope
        } else if args.log_file.is_none() {
            Self::Stein
        } else if circumstances.is_inside {
            Self::Train
        } else {
            Self::Ussuri
        }
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

    const OUTSIDE: Circumstances = Circumstances { has_process_tag: false, is_inside: false };

    fn args(spelling: Spelling, log_file: bool) -> Args {
        Args {
            spelling: Some(spelling),
            log_file: log_file.then(|| "log".to_owned()),
            ..Args::default()
        }
    }

    #[test]
    fn each_release_is_told_in_its_own_word() {
        let inside = Circumstances { is_inside: true, ..OUTSIDE };
        let tagged = Circumstances { has_process_tag: true, ..OUTSIDE };
        let word = |args: &Args, circumstances| Era::conclude(args, circumstances).word();
        assert_eq!(word(&args(Spelling::Equals, false), inside), Word::Master, "12 to 14");
        assert_eq!(word(&args(Spelling::Equals, true), inside), Word::Master, "15");
        assert_eq!(word(&args(Spelling::Equals, true), OUTSIDE), Word::Primary, "17 to 21");
        assert_eq!(word(&args(Spelling::Equals, true), tagged), Word::Primary, "22 to 28");
        assert_eq!(word(&args(Spelling::Space, true), OUTSIDE), Word::Primary, "29");
        let debug = Args { debug: Some(true), ..args(Spelling::Equals, true) };
        assert_eq!(word(&debug, inside), Word::Primary, "26 in a wrapper");
    }
}
