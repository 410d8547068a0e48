// SPDX-License-Identifier: Apache-2.0
//! The JSON documents that the commands print, and their tables.

use std::fmt::Write;

use serde::Serialize;
use vipwatch_core::escape_untrusted;

use crate::monitor::MonitorProgram;

/// The monitor of one router, as `status` shows it.
#[derive(Debug, Serialize)]
pub(crate) struct MonitorRow {
    pub(crate) router: String,
    pub(crate) pid: u32,
    /// `vipwatch`, `neutron-python`, `neutron-script` or `unknown`.
    pub(crate) program: &'static str,
    /// Only for vipwatch; `null` if the version is neither installed nor named with `--program`.
    pub(crate) version: Option<String>,
    pub(crate) user: u32,
    pub(crate) namespace: String,
    /// The word in the state file; `null` if there is none.
    pub(crate) state_file: Option<&'static str>,
    /// The state by the addresses in the namespace; `null` if it cannot be read.
    pub(crate) kernel: Option<&'static str>,
    /// Whether the pid file names this process.
    pub(crate) is_in_pid_file: bool,
    pub(crate) is_in_container: bool,
    /// Problems in words.
    pub(crate) problems: Vec<String>,
}

impl MonitorRow {
    fn shown_version(&self) -> String {
        match &self.version {
            Some(version) => escape_untrusted(version),
            None if self.program == MonitorProgram::Vipwatch.word() => "other".to_owned(),
            None => "-".to_owned(),
        }
    }
}

/// The answer of `status`.
#[derive(Debug, Serialize)]
pub(crate) struct StatusDocument {
    pub(crate) schema: &'static str,
    /// The path and version of the installed vipwatch; `null` if it is not installed.
    pub(crate) vipwatch: Option<ProgramDocument>,
    /// The path and kind of Neutron's own program.
    pub(crate) neutron: Option<ProgramDocument>,
    pub(crate) is_agent_listening: bool,
    /// The program to which the agent's name in `/usr/bin` leads: `vipwatch`, `neutron-python` or `neutron-script`.
    pub(crate) agent_starts: Option<&'static str>,
    pub(crate) monitors: Vec<MonitorRow>,
    /// The number of processes with the command line of a monitor that use another `state_path`, or that neither root nor
    /// the owner of the directory runs.
    pub(crate) foreign_processes: usize,
    /// Routers with an unfinished replacement.
    pub(crate) unfinished: Vec<String>,
}

/// An installed program.
#[derive(Debug, Serialize)]
pub(crate) struct ProgramDocument {
    pub(crate) path: String,
    pub(crate) program: &'static str,
    pub(crate) version: Option<String>,
}

/// The result for one router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[strum(serialize_all = "lowercase")]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ReplacementResult {
    /// The monitor runs the wanted program already.
    Unchanged,
    /// `--dry-run`: it would be replaced.
    #[strum(serialize = "would be replaced")]
    WouldReplace,
    Replaced,
    /// An earlier run was interrupted; this one has verified the new monitor, or started it.
    Repaired,
    /// The agent has deleted the router, or ended its monitor, since the run has begun.
    Gone,
    #[strum(serialize = "FAILED")]
    Failed,
}

/// The result for one router.
#[derive(Debug, Serialize)]
pub(crate) struct ReplacementRow {
    pub(crate) router: String,
    pub(crate) result: ReplacementResult,
    pub(crate) from: Option<&'static str>,
    pub(crate) pid: Option<u32>,
    pub(crate) state: Option<&'static str>,
    /// How it is known that the agent has the state: `monitor-log`, `own-report` or `not-checked`.
    pub(crate) agent: Option<&'static str>,
    pub(crate) seconds: f64,
    pub(crate) message: Option<String>,
}

impl ReplacementRow {
    pub(crate) fn new(router: &str, result: ReplacementResult) -> Self {
        Self {
            router: router.to_string(),
            result,
            from: None,
            pid: None,
            state: None,
            agent: None,
            seconds: 0.0,
            message: None,
        }
    }

    /// One line for an operator.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{}  {}", self.router, self.result);
        if let Some(from) = self.from {
            let _ = write!(line, ", was {from}");
        }
        if let (Some(pid), Some(state)) = (self.pid, self.state) {
            let _ = write!(line, ", pid {pid}, state {state}");
        }
        if self.seconds > 0.0 {
            let _ = write!(line, ", {:.1} s", self.seconds);
        }
        line
    }
}

/// The answer of `to-vipwatch` and `to-neutron`.
#[derive(Debug, Serialize)]
pub(crate) struct ReplacementDocument {
    pub(crate) schema: &'static str,
    pub(crate) command: &'static str,
    pub(crate) is_dry_run: bool,
    pub(crate) target: ProgramDocument,
    pub(crate) routers: Vec<ReplacementRow>,
    /// Whether all chosen monitors run the wanted program, or would.
    pub(crate) ok: bool,
}

impl StatusDocument {
    /// The table of `status`.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let installed = [("vipwatch", &self.vipwatch), ("Neutron", &self.neutron)];
        for (name, program) in installed {
            let shown = program.as_ref().map_or_else(|| "not installed".to_owned(), shown_program);
            let _ = writeln!(text, "{name:<9} {shown}");
        }
        let agent = if self.is_agent_listening { "listens" } else { "does not listen" };
        let starts = self.agent_starts.map(|program| format!("; it starts {program}"));
        let starts = starts.unwrap_or_default();
        let _ = writeln!(text, "{:<9} {agent} on its socket{starts}\n", "agent");
        if self.monitors.is_empty() {
            text.push_str("no monitor runs\n");
        } else {
            let _ = writeln!(
                text,
                "{:<36}  {:>7}  {:<14}  {:<8}  {:<7}  KERNEL",
                "ROUTER", "PID", "PROGRAM", "VERSION", "STATE"
            );
        }
        for row in &self.monitors {
            let _ = writeln!(
                text,
                "{:<36}  {:>7}  {:<14}  {:<8}  {:<7}  {}",
                row.router,
                row.pid,
                row.program,
                row.shown_version(),
                row.state_file.unwrap_or("-"),
                row.kernel.unwrap_or("-")
            );
            for problem in &row.problems {
                let _ = writeln!(text, "  problem: {}", escape_untrusted(problem));
            }
        }
        if self.foreign_processes > 0 {
            let _ = writeln!(
                text,
                "ignored: processes with the command line of a monitor, but another state_path or user: {}",
                self.foreign_processes
            );
        }
        for router in &self.unfinished {
            let _ = writeln!(
                text,
                "unfinished: {}; run the last command again",
                escape_untrusted(router)
            );
        }
        text
    }
}

pub(crate) fn shown_program(program: &ProgramDocument) -> String {
    let version = program.version.as_deref().map(escape_untrusted);
    let version = version.map(|version| format!(" {version}"));
    let path = escape_untrusted(&program.path);
    format!("{path} ({}{})", program.program, version.unwrap_or_default())
}
