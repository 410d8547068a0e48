//! The command line, as it was given: strings that are only known to be text.

use std::ffi::OsString;
use std::time::Duration;

use lexopt::{Arg, Parser};

use crate::announce;
use crate::daemon::RunMode;
use crate::failure::{Code, Failure};
use crate::options::{self, Opt, OptionKind};
use crate::words::Word;

/// The name the agent executes, and looks for in process lists.
pub(crate) const PROGRAM: &str = "neutron-keepalived-state-change";

/// How values were attached; it tells the agent's generation (see [`crate::words`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgumentSpelling {
    /// `--opt=value`: agents up to 28.
    Equals,
    /// `--opt value`: agents from 29, and people.
    Space,
}

/// What was asked for.
#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) router_id: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) conf_dir: Option<String>,
    pub(crate) monitor_interface: Option<String>,
    pub(crate) monitor_cidr: Option<String>,
    pub(crate) pid_file: Option<String>,
    pub(crate) state_path: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) log_file: Option<String>,
    pub(crate) config_files: Vec<String>,
    pub(crate) config_dirs: Vec<String>,
    pub(crate) syslog_facility: Option<String>,
    pub(crate) conntrackd: Option<bool>,
    pub(crate) debug: Option<bool>,
    pub(crate) syslog: Option<bool>,
    pub(crate) primary_word: Option<Word>,
    pub(crate) audit_interval: Option<Duration>,
    pub(crate) announce: Option<announce::AnnounceMode>,
    pub(crate) allow_any_agent: bool,
    /// How the router's id was attached.
    pub(crate) spelling: Option<ArgumentSpelling>,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Invocation {
    Help,
    Version,
    Check(Args),
    Run(Args, RunMode),
}

/// Reads the command line, program name included. The last occurrence of an option wins.
pub(crate) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Invocation, Failure> {
    let mut parser = Parser::from_iter(line);
    let mut args = Args::default();
    let mut mode = RunMode::Daemon;
    let mut is_check = false;
    while let Some(arg) = parser.next().map_err(|error| usage(error.to_string()))? {
        let opt = recognise(&arg)?;
        match opt.meaning {
            OptionKind::Help => return Ok(Invocation::Help),
            OptionKind::Version => return Ok(Invocation::Version),
            OptionKind::Foreground => mode = RunMode::Foreground,
            OptionKind::Check => is_check = true,
            meaning => {
                let value = opt.value.map(|_| value(&mut parser, opt)).transpose()?;
                args.set(opt, meaning, value)?;
            }
        }
    }
    Ok(if is_check { Invocation::Check(args) } else { Invocation::Run(args, mode) })
}

fn recognise(arg: &Arg<'_>) -> Result<&'static Opt, Failure> {
    match arg {
        Arg::Long(name) => options::find(name).ok_or_else(|| {
            let failure = usage(format!("unknown option --{}", name.escape_debug()));
            match options::nearest(name) {
                Some(near) => failure.hint(format!("did you mean --{near}?")),
                None => failure.hint(format!("`{PROGRAM} --help` lists the options")),
            }
        }),
        Arg::Short(letter) => options::find_short(*letter)
            .ok_or_else(|| usage(format!("unknown option -{}", letter.escape_debug()))),
        Arg::Value(word) => {
            let word = word.display().to_string();
            Err(usage(format!("unexpected word {word:?}: every argument is an option")))
        }
    }
}

fn value(parser: &mut Parser, opt: &Opt) -> Result<(String, ArgumentSpelling), Failure> {
    let attached = parser.optional_value();
    let spelling =
        if attached.is_some() { ArgumentSpelling::Equals } else { ArgumentSpelling::Space };
    let value = attached
        .map_or_else(|| parser.value(), Ok)
        .map_err(|_missing| usage(format!("option --{} needs a value", opt.name)))?;
    let text = value.into_string().map_err(|raw| {
        let shown = raw.display().to_string();
        usage(format!("the value of --{} is not UTF-8: {shown:?}", opt.name))
    })?;
    Ok((text, spelling))
}

impl Args {
    fn set(
        &mut self,
        opt: &Opt,
        meaning: OptionKind,
        value: Option<(String, ArgumentSpelling)>,
    ) -> Result<(), Failure> {
        let spelling = value.as_ref().map(|(_, spelling)| *spelling);
        let text = value.map(|(text, _)| text);
        match meaning {
            OptionKind::RouterId => {
                self.router_id = text;
                self.spelling = spelling;
            }
            OptionKind::Namespace => self.namespace = text,
            OptionKind::ConfDir => self.conf_dir = text,
            OptionKind::MonitorInterface => self.monitor_interface = text,
            OptionKind::MonitorCidr => self.monitor_cidr = text,
            OptionKind::PidFile => self.pid_file = text,
            OptionKind::StatePath => self.state_path = text,
            OptionKind::User => self.user = text,
            OptionKind::Group => self.group = text,
            OptionKind::LogFile => self.log_file = text,
            OptionKind::ConfigFile => self.config_files.extend(text),
            OptionKind::ConfigDir => self.config_dirs.extend(text),
            OptionKind::SyslogFacility => self.syslog_facility = text,
            OptionKind::Conntrackd(is_on) => self.conntrackd = Some(is_on),
            OptionKind::Debug(is_on) => self.debug = Some(is_on),
            OptionKind::Syslog(is_on) => self.syslog = Some(is_on),
            OptionKind::PrimaryWord => {
                let text = text.unwrap_or_default();
                self.primary_word = Some(Word::parse(&text).ok_or_else(|| {
                    usage(format!("--{} is `master` or `primary`, not {text:?}", opt.name))
                })?);
            }
            OptionKind::AuditInterval => {
                let text = text.unwrap_or_default();
                self.audit_interval = Some(seconds(&text).ok_or_else(|| {
                    usage(format!(
                        "--{} is a number of seconds from 1 to 86400, not {text:?}",
                        opt.name
                    ))
                })?);
            }
            OptionKind::Announce => {
                let text = text.unwrap_or_default();
                self.announce = Some(announce::AnnounceMode::parse(&text).ok_or_else(|| {
                    let words = announce::AnnounceMode::WORDS;
                    usage(format!("--{} is {words}, not {text:?}", opt.name))
                })?);
            }
            OptionKind::AllowAnyAgent => self.allow_any_agent = true,
            OptionKind::Foreground
            | OptionKind::Check
            | OptionKind::Help
            | OptionKind::Version
            | OptionKind::Ignored => {}
        }
        Ok(())
    }
}

/// A number of seconds that makes sense for an interval.
pub(crate) fn seconds(text: &str) -> Option<Duration> {
    text.parse().ok().filter(|seconds| (1..=86_400).contains(seconds)).map(Duration::from_secs)
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(Code::Usage, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<Invocation, Failure> {
        parse(std::iter::once(PROGRAM).chain(line.iter().copied()).map(OsString::from))
    }

    fn args(line: &[&str]) -> Args {
        match parsed(line) {
            Ok(Invocation::Run(args, _)) => args,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn both_spellings_are_read_and_told_apart() {
        let equals = args(&["--router_id=a", "--user=0"]);
        assert_eq!(equals.router_id.as_deref(), Some("a"));
        assert_eq!(equals.spelling, Some(ArgumentSpelling::Equals));
        let space = args(&["--router_id", "a", "--user", "0"]);
        assert_eq!(space.user.as_deref(), Some("0"));
        assert_eq!(space.spelling, Some(ArgumentSpelling::Space));
    }

    #[test]
    fn the_last_occurrence_wins() {
        let args = args(&["--user=1", "--user", "2", "--debug", "--nodebug"]);
        assert_eq!((args.user.as_deref(), args.debug), (Some("2"), Some(false)));
    }

    #[test]
    fn what_stein_passed_about_its_root_helper_is_swallowed() {
        let args = args(&[
            "--AGENT-root_helper=sudo neutron-rootwrap /etc/neutron/rootwrap.conf",
            "--AGENT-root_helper_daemon=None",
            "--AGENT-root_helper_daemon=",
            "--group=7",
        ]);
        assert_eq!(args.group.as_deref(), Some("7"));
    }

    #[test]
    fn an_unknown_option_is_named() {
        for line in [&["--no-such-thing"][..], &["--no-such-thing=1"], &["-x"], &["word"]] {
            let failure = parsed(line).unwrap_err();
            assert_eq!(failure.code, Code::Usage);
            let name = line[0].split('=').next().unwrap();
            assert!(failure.message.contains(name), "{}", failure.message);
        }
    }

    #[test]
    fn a_missing_or_malformed_value_is_named() {
        for (line, word) in [
            (&["--router_id"][..], "router_id"),
            (&["--debug=yes"], "debug"),
            (&["--primary_word=boss"], "boss"),
            (&["--audit_interval=0"], "audit_interval"),
            (&["--announce=loudly"], "loudly"),
        ] {
            let failure = parsed(line).unwrap_err();
            assert_eq!(failure.code, Code::Usage);
            assert!(failure.message.contains(word), "{}", failure.message);
        }
    }
}
