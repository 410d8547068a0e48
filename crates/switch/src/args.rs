// SPDX-License-Identifier: Apache-2.0
//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};
use strum::{EnumString, IntoStaticStr};
use vipwatch_core::InstanceId;

use crate::failure::{SwitchCode, SwitchFailure};

/// The text of `--help`.
pub(crate) const HELP: &str = "\
Replace the running monitors of Neutron's HA routers one by one, in either direction.

Usage: vipwatch-neutron-switch COMMAND [OPTION...]

Commands:
  status        Show which program monitors each router, and compare its state with the kernel
  to-vipwatch   Replace Neutron's monitors, and monitors of another version, by the installed vipwatch
  to-neutron    Replace the monitors of vipwatch by Neutron's own program

Options:
  --router ID        Only this router; may be repeated
  --again            Also replace monitors that run the wanted program already, for example after a change of their
                     configuration; the word for a primary may change then
  --dry-run          Check everything and print what would be done; change nothing
  --json             Print the result as JSON on standard output
  --without-agent    Replace monitors although the L3 agent does not run; its answer is not checked
  --timeout SECONDS  Wait so long for each new monitor [60]
  --state-path DIR   state_path of the L3 agent [/var/lib/neutron]
  --neutron-config DIR
                     Configuration of the L3 agent [/etc/neutron]
  --program FILE     Start this program instead of the installed one; may be repeated: a failed start goes back to
                     the one that the old monitor runs
  --log FILE         Append every step to this file [/var/log/vipwatch/neutron-switch.log]
  --records DIR      Keep records of unfinished replacements here [/run/vipwatch-neutron-switch]
  -h, --help         Print this and exit
  --version          Print the version and exit

A monitor is replaced in these steps: the checks of `--dry-run`; a helper process joins the cgroup of the old monitor,
ends it (SIGTERM, after 10 s SIGKILL) and starts the new program with the same arguments, as the agent would. Then the
new monitor is verified: it runs, its pid file is right, its state file agrees with the addresses in the kernel, and
the agent has answered a report. Only then the next one follows. At the first doubt the program stops; run it again
to continue. keepalived is never touched: no router fails over.

Run it as root on the network node; if the agent runs in a container, inside that container.

Exit codes: 0 all chosen monitors run the wanted program; 1 stopped at a doubt; 2 wrong usage; 3 not root, or a
capability is missing; 4 something is missing, nothing was changed.

Examples:
  vipwatch-neutron-switch status
  vipwatch-neutron-switch to-vipwatch --dry-run
  vipwatch-neutron-switch to-vipwatch --router 5c7d3a1e-0b1f-4c55-8f0e-1d1c2b3a4f5e
  vipwatch-neutron-switch to-neutron
";

/// The command to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum SwitchCommand {
    Status,
    ToVipwatch,
    ToNeutron,
}

/// The options of the command line.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each one is a switch of the command line")]
pub(crate) struct SwitchArgs {
    pub(crate) command: SwitchCommand,
    /// Empty: all routers.
    pub(crate) routers: Vec<InstanceId>,
    /// Also monitors that run the wanted program already.
    pub(crate) is_again: bool,
    pub(crate) is_dry_run: bool,
    pub(crate) is_json: bool,
    pub(crate) needs_agent: bool,
    pub(crate) timeout: Duration,
    pub(crate) state_path: PathBuf,
    pub(crate) neutron_config: PathBuf,
    /// Empty: the installed ones.
    pub(crate) programs: Vec<PathBuf>,
    pub(crate) log: PathBuf,
    pub(crate) records: PathBuf,
}

/// The request of the command line.
#[derive(Debug)]
pub(crate) enum SwitchInvocation {
    Help,
    Version,
    /// The helper process that `to-vipwatch` and `to-neutron` start; not for users.
    Launcher,
    Run(SwitchArgs),
}

/// The internal command of the helper process.
pub(crate) const LAUNCHER: &str = "launch-monitor";

/// Parses the command line, which includes the program name.
pub(crate) fn parse(
    line: impl IntoIterator<Item = OsString>,
) -> Result<SwitchInvocation, SwitchFailure> {
    let mut parser = Parser::from_iter(line);
    let mut command = None;
    let mut args = SwitchArgs {
        command: SwitchCommand::Status,
        routers: Vec::new(),
        is_again: false,
        is_dry_run: false,
        is_json: false,
        needs_agent: true,
        timeout: Duration::from_mins(1),
        state_path: "/var/lib/neutron".into(),
        neutron_config: "/etc/neutron".into(),
        programs: Vec::new(),
        log: "/var/log/vipwatch/neutron-switch.log".into(),
        records: "/run/vipwatch-neutron-switch".into(),
    };
    while let Some(arg) = parser.next().map_err(wrong)? {
        match arg {
            Arg::Short('h') | Arg::Long("help") => return Ok(SwitchInvocation::Help),
            Arg::Long("version") => return Ok(SwitchInvocation::Version),
            Arg::Value(word) if command.is_none() && word == LAUNCHER => {
                return Ok(SwitchInvocation::Launcher);
            }
            Arg::Value(word) if command.is_none() => command = Some(command_of(&word)?),
            Arg::Long("router") => {
                let id: String = parser.value().and_then(ValueExt::string).map_err(wrong)?;
                args.routers.push(router_of(&id)?);
            }
            Arg::Long("again") => args.is_again = true,
            Arg::Long("dry-run") => args.is_dry_run = true,
            Arg::Long("json") => args.is_json = true,
            Arg::Long("without-agent") => args.needs_agent = false,
            Arg::Long("timeout") => args.timeout = seconds(&mut parser)?,
            Arg::Long("state-path") => args.state_path = path(&mut parser)?,
            Arg::Long("neutron-config") => args.neutron_config = path(&mut parser)?,
            Arg::Long("program") => args.programs.push(path(&mut parser)?),
            Arg::Long("log") => args.log = path(&mut parser)?,
            Arg::Long("records") => args.records = path(&mut parser)?,
            other => return Err(wrong(other.unexpected())),
        }
    }
    args.command = command.ok_or_else(|| usage("a command is missing"))?;
    Ok(SwitchInvocation::Run(args))
}

fn command_of(word: &std::ffi::OsStr) -> Result<SwitchCommand, SwitchFailure> {
    let found = word.to_str().and_then(|word| word.parse().ok());
    found.ok_or_else(|| usage(format!("unknown command {}", word.display())))
}

fn router_of(id: &str) -> Result<InstanceId, SwitchFailure> {
    id.parse().map_err(|error| usage(format!("invalid router id {id:?}: {error}")))
}

fn path(parser: &mut Parser) -> Result<PathBuf, SwitchFailure> {
    let path = PathBuf::from(parser.value().map_err(wrong)?);
    std::path::absolute(&path).map_err(|error| usage(format!("{}: {error}", path.display())))
}

fn seconds(parser: &mut Parser) -> Result<Duration, SwitchFailure> {
    let seconds: u64 = parser.value().and_then(|value| value.parse()).map_err(wrong)?;
    if (1..=3600).contains(&seconds) {
        Ok(Duration::from_secs(seconds))
    } else {
        Err(usage("invalid value for --timeout: expected 1 to 3600 seconds"))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn wrong(error: lexopt::Error) -> SwitchFailure {
    usage(error.to_string())
}

fn usage(message: impl std::fmt::Display) -> SwitchFailure {
    SwitchFailure::new(SwitchCode::Usage, message)
        .hint("`vipwatch-neutron-switch --help` lists the commands and options")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<SwitchInvocation, SwitchFailure> {
        parse(
            std::iter::once("vipwatch-neutron-switch")
                .chain(words.iter().copied())
                .map(OsString::from),
        )
    }

    #[test]
    fn the_completion_has_every_command_and_option_of_the_help() {
        let completion =
            include_str!("../../../packaging/completions/vipwatch-neutron-switch.bash");
        let known: Vec<&str> =
            completion.split(|c: char| c.is_whitespace() || "'|)".contains(c)).collect();
        let (usage, _) = HELP.split_once("\n\nA monitor").unwrap();
        let lines = usage.lines().filter_map(|line| line.strip_prefix("  "));
        let first = lines.filter(|line| !line.starts_with(' ')).filter_map(|line| {
            let mut words = line.split_whitespace();
            words.find(|word| !word.starts_with('-') || word.starts_with("--"))
        });
        let missing: Vec<&str> = first.filter(|word| !known.contains(word)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_command_line_that_is_wrong_is_refused_with_the_reason() {
        let cases: [(&[&str], &str); 6] = [
            (&[], "a command is missing"),
            (&["to-python"], "to-python"),
            (&["status", "to-neutron"], "to-neutron"),
            (&["status", "--router", "a/b"], "a/b"),
            (&["status", "--timeout", "0"], "--timeout"),
            (&["status", "--no-such-option"], "--no-such-option"),
        ];
        for (words, reason) in cases {
            let failure = parsed(words).unwrap_err();
            assert_eq!(failure.code, SwitchCode::Usage, "{words:?}");
            assert!(failure.message.contains(reason), "{words:?}: {}", failure.message);
        }
    }

    #[test]
    fn options_may_stand_before_and_after_the_command() {
        let line = ["--dry-run", "to-neutron", "--router=a", "--router", "b", "--timeout=5"];
        let Ok(SwitchInvocation::Run(args)) = parsed(&line) else { panic!() };
        assert_eq!((args.command, args.routers.len()), (SwitchCommand::ToNeutron, 2));
        assert!(args.is_dry_run && args.timeout == Duration::from_secs(5));
    }
}
