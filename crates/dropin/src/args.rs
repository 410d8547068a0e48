// SPDX-License-Identifier: Apache-2.0
//! Parses the command line into [`Args`]. The values are still text; `setup` checks them.

use std::ffi::OsString;
use std::time::Duration;

use lexopt::{Arg, Parser};

use crate::announce::AnnounceMode;
use crate::daemon::RunMode;
use crate::failure::{Code, Failure};
use crate::options::{self, Opt, OptionKind};
use crate::primary_word::PrimaryWord;

/// The name that the agent executes and searches for in process lists.
pub(crate) const PROGRAM: &str = "neutron-keepalived-state-change";

/// How the values follow their options. It indicates the agent's release (see [`crate::primary_word`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgumentSpelling {
    /// `--opt=value`: agents up to 28.
    Equals,
    /// `--opt value`: agents from 29, and usually operators.
    Space,
}

/// The options of the command line; `None` if an option was not given.
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
    pub(crate) primary_word: Option<PrimaryWord>,
    pub(crate) audit_interval: Option<Duration>,
    pub(crate) announce: Option<AnnounceMode>,
    pub(crate) allow_any_agent: bool,
    /// How the value of `--router_id` follows its option.
    pub(crate) spelling: Option<ArgumentSpelling>,
}

/// What the command line asks the program to do.
#[derive(Debug)]
pub(crate) enum Invocation {
    Help,
    Version,
    Check(Args),
    Run(Args, RunMode),
}

/// Parses the command line, which includes the program name. If an option is given twice, the last one counts.
pub(crate) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Invocation, Failure> {
    let mut parser = Parser::from_iter(line);
    let mut args = Args::default();
    let mut mode = RunMode::Daemon;
    let mut is_check = false;
    while let Some(arg) = parser.next().map_err(|error| usage(error.to_string()))? {
        let opt = find_option(&arg)?;
        match opt.kind {
            OptionKind::Help => return Ok(Invocation::Help),
            OptionKind::Version => return Ok(Invocation::Version),
            OptionKind::Foreground => mode = RunMode::Foreground,
            OptionKind::Check => is_check = true,
            kind => {
                let value = opt.value.map(|_| read_value(&mut parser, opt)).transpose()?;
                args.set(opt, kind, value)?;
            }
        }
    }
    Ok(if is_check { Invocation::Check(args) } else { Invocation::Run(args, mode) })
}

fn find_option(arg: &Arg<'_>) -> Result<&'static Opt, Failure> {
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
            Err(usage(format!("unexpected argument {word:?}: only options are accepted")))
        }
    }
}

fn read_value(parser: &mut Parser, opt: &Opt) -> Result<(String, ArgumentSpelling), Failure> {
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
        kind: OptionKind,
        value: Option<(String, ArgumentSpelling)>,
    ) -> Result<(), Failure> {
        let spelling = value.as_ref().map(|(_, spelling)| *spelling);
        let text = value.map(|(text, _)| text);
        match kind {
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
                let word = parse_value(opt, text, PrimaryWord::parse, PrimaryWord::VALUES)?;
                self.primary_word = Some(word);
            }
            OptionKind::AuditInterval => {
                let interval = parse_value(opt, text, parse_interval, INTERVAL_VALUES)?;
                self.audit_interval = Some(interval);
            }
            OptionKind::Announce => {
                let mode = parse_value(opt, text, AnnounceMode::parse, AnnounceMode::VALUES)?;
                self.announce = Some(mode);
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

/// Parses the value of an option; `expected` describes the valid values.
fn parse_value<T>(
    opt: &Opt,
    text: Option<String>,
    parse: impl FnOnce(&str) -> Option<T>,
    expected: &str,
) -> Result<T, Failure> {
    let text = text.unwrap_or_default();
    parse(&text).ok_or_else(|| {
        usage(format!("invalid value {text:?} for --{}: expected {expected}", opt.name))
    })
}

/// The values that [`parse_interval`] accepts, for messages.
pub(crate) const INTERVAL_VALUES: &str = "1 to 86400 seconds";

/// Parses an interval of 1 to 86400 seconds.
pub(crate) fn parse_interval(text: &str) -> Option<Duration> {
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
    fn values_after_a_space_and_after_an_equals_sign_are_distinguished() {
        let equals = args(&["--router_id=a", "--user=0"]);
        assert_eq!(equals.router_id.as_deref(), Some("a"));
        assert_eq!(equals.spelling, Some(ArgumentSpelling::Equals));
        let space = args(&["--router_id", "a", "--user", "0"]);
        assert_eq!(space.user.as_deref(), Some("0"));
        assert_eq!(space.spelling, Some(ArgumentSpelling::Space));
    }

    #[test]
    fn the_last_occurrence_of_an_option_counts() {
        let args = args(&["--user=1", "--user", "2", "--debug", "--nodebug"]);
        assert_eq!((args.user.as_deref(), args.debug), (Some("2"), Some(false)));
    }

    #[test]
    fn the_root_helper_options_of_neutron_14_are_accepted_and_ignored() {
        let args = args(&[
            "--AGENT-root_helper=sudo neutron-rootwrap /etc/neutron/rootwrap.conf",
            "--AGENT-root_helper_daemon=None",
            "--AGENT-root_helper_daemon=",
            "--group=7",
        ]);
        assert_eq!(args.group.as_deref(), Some("7"));
    }

    #[test]
    fn the_message_about_an_unknown_option_names_it() {
        for line in [&["--no-such-thing"][..], &["--no-such-thing=1"], &["-x"], &["word"]] {
            let failure = parsed(line).unwrap_err();
            assert_eq!(failure.code, Code::Usage);
            let name = line[0].split('=').next().unwrap();
            assert!(failure.message.contains(name), "{}", failure.message);
        }
    }

    #[test]
    fn the_message_about_a_missing_or_invalid_value_names_the_option_or_the_value() {
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
