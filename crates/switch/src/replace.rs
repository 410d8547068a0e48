// SPDX-License-Identifier: Apache-2.0
//! Replaces one monitor, and repairs a replacement that was interrupted.
//!
//! ```text
//!   checks ─▶ record ─▶ launcher ready ─▶ old ends, new starts ─▶ verified ─▶ record deleted
//!     │                      │                   │                   │
//!     └──── nothing changed ◀┘                   │                   └─ not verified: record stays
//!                                                └─ new fails: the old program is started again
//! ```

use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use vipwatch_core::{ErrorChain, InstanceId};
use vipwatch_linux::file::read_head;
use vipwatch_linux::netns::NetnsId;

use crate::check::{RouterMonitors, is_in_pid_file};
use crate::command_line::MonitorCommand;
use crate::failure::SwitchFailure;
use crate::launch::{ReadyLauncher, StartCommand, StartPlan};
use crate::log::{SwitchLog, SwitchLogError};
use crate::monitor::{MonitorProgram, RunningMonitor, running_monitors};
use crate::plan::{arguments_for, start_command, start_plan};
use crate::program::{KnownPrograms, TargetProgram};
use crate::state::StateMark;
use crate::stop::{StopOrder, StopResult, stop};
use crate::unfinished::{RecordDirectory, UnfinishedRecord};
use crate::verify::{Expectation, LogMark, VerifiedMonitor, VerifyError, verify};

/// Everything that the replacements of one run share.
#[derive(Debug)]
pub(crate) struct Replacer<'a> {
    pub(crate) target: &'a TargetProgram,
    /// The programs of `--program`.
    pub(crate) named: &'a [PathBuf],
    pub(crate) records: &'a RecordDirectory,
    pub(crate) log: SwitchLog,
    pub(crate) primary_word: Option<&'static str>,
    pub(crate) needs_agent: bool,
    pub(crate) timeout: Duration,
}

impl Replacer<'_> {
    /// Replaces the monitor of one router, and verifies the new one.
    pub(crate) fn replace(
        &mut self,
        router: &RouterMonitors,
    ) -> Result<VerifiedMonitor, SwitchFailure> {
        let RouterMonitors { monitor, remains } = router;
        let command = &monitor.command;
        let path = self.executed_path(self.target)?;
        let messages = self.records.messages_of(&command.router);
        let plan = start_plan(monitor, remains, self.target, &path, messages)
            .map_err(|error| SwitchFailure::doubt(format!("router {}: {error}", command.router)))?;
        let previous = KnownPrograms::find(self.named)?.into_way_back(monitor);
        let record = UnfinishedRecord {
            router: command.router.to_string(),
            arguments: command.arguments.clone(),
            plan: StartPlan { stop: None, ..plan.clone() },
            old_pid: monitor.id.pid,
        };
        let launcher = ReadyLauncher::start(&plan, self.records.shared_lock())
            .map_err(|error| untouched(&command.router, &ErrorChain(&error)))?;
        // ORDER: the record and the log line come before the old monitor ends.
        self.records
            .write(&command.router, &record)
            .map_err(|error| untouched(&command.router, &ErrorChain(&error)))?;
        self.step(&format!(
            "router {}: ending {} (pid {}) and starting: {}",
            command.router,
            monitor.program.word(),
            monitor.id.pid,
            plan.command.line()
        ))
        .map_err(|error| {
            self.records.delete(&command.router);
            untouched(&command.router, &ErrorChain(&error))
        })?;
        let log = LogMark::at_end_of(&command.log_file);
        let state = StateMark::of(&command.conf_dir);
        let mut child = self.exchange(launcher, &command.router)?;
        let expected = self.expectation(command, log, Some(state));
        match verify(&expected, Some(&mut child)) {
            Ok(verified) => self.finish(command, verified),
            Err(error) => self.unverified(monitor, previous.as_ref(), &expected, &error),
        }
    }

    /// Ends the old monitor and starts the new one.
    fn exchange(
        &mut self,
        launcher: ReadyLauncher,
        router: &InstanceId,
    ) -> Result<Child, SwitchFailure> {
        match launcher.go() {
            Ok((child, report)) => {
                if report.result == StopResult::Killed {
                    self.note(&format!(
                        "router {router}: the old monitor did not end after SIGTERM; it was killed"
                    ));
                }
                for problem in &report.problems {
                    self.note(&format!("router {router}: after the old monitor: {problem}"));
                }
                Ok(child)
            }
            Err(error) => {
                let message = format!("router {router}: {}", ErrorChain(&error));
                self.note(&message);
                Err(SwitchFailure::doubt(message)
                    .hint("`vipwatch-neutron-switch status` shows what runs; run the same command again to repair it"))
            }
        }
    }

    /// Completes a replacement that an earlier run has not finished. `monitor` is the running monitor of the router.
    pub(crate) fn resume(
        &mut self,
        record: &UnfinishedRecord,
        monitor: Option<&RunningMonitor>,
    ) -> Result<Resumed, SwitchFailure> {
        let failed =
            || SwitchFailure::doubt(format!("the record of router {} is not valid", record.router));
        let command = MonitorCommand::of_arguments(&record.arguments).ok_or_else(failed)?;
        let router = &command.router;
        if let Some(monitor) = monitor {
            // The agent, or a launcher that has outlived the switch, has started a monitor.
            if self.target.is_run_by(monitor) {
                let log = LogMark::before_end_of(&command.log_file);
                let expected = self.expectation(&command, log, None);
                let verified = verify(&expected, None).map_err(|error| {
                    SwitchFailure::doubt(format!("router {router}: {}", ErrorChain(&error)))
                })?;
                return self.finish(&command, verified).map(Resumed::Verified);
            }
            self.records.delete(router);
            return Ok(Resumed::StillOld);
        }
        if !NetnsId::of_name(&command.netns).is_ok_and(|id| id.is_some()) {
            self.note(&format!("router {router}: its namespace is gone; the record is deleted"));
            self.records.delete(router);
            return Ok(Resumed::RouterGone);
        }
        self.note(&format!(
            "router {router}: no monitor runs since an interrupted replacement; starting one"
        ));
        let log = LogMark::at_end_of(&command.log_file);
        let state = StateMark::of(&command.conf_dir);
        let plan = self.repair_plan(record, &command)?;
        let mut child = self.launch(&plan, router)?;
        let expected = self.expectation(&command, log, Some(state));
        let verified = verify(&expected, Some(&mut child)).map_err(|error| {
            SwitchFailure::doubt(format!(
                "router {router}: {}{}",
                ErrorChain(&error),
                self.messages(router)
            ))
        })?;
        self.finish(&command, verified).map(Resumed::Repaired)
    }

    fn launch(&self, plan: &StartPlan, router: &InstanceId) -> Result<Child, SwitchFailure> {
        let failed =
            |error| SwitchFailure::doubt(format!("router {router}: {}", ErrorChain(&error)));
        let launcher = ReadyLauncher::start(plan, self.records.shared_lock()).map_err(failed)?;
        Ok(launcher.go().map_err(failed)?.0)
    }

    /// The plan of the record with the program that is wanted now.
    fn repair_plan(
        &self,
        record: &UnfinishedRecord,
        command: &MonitorCommand,
    ) -> Result<StartPlan, SwitchFailure> {
        let path = self.executed_path(self.target)?;
        let start = StartCommand {
            program: path,
            arguments: arguments_for(self.target, command),
            ..record.plan.command.clone()
        };
        let is_script = self.target.kind == MonitorProgram::Script;
        let messages = (!is_script).then(|| self.records.messages_of(&command.router));
        Ok(StartPlan { command: start, messages, stop: None, ..record.plan.clone() })
    }

    /// The new monitor is not verified. If none runs, the old program is started again.
    fn unverified(
        &mut self,
        monitor: &RunningMonitor,
        previous: Option<&TargetProgram>,
        expected: &Expectation<'_>,
        error: &VerifyError,
    ) -> Result<VerifiedMonitor, SwitchFailure> {
        let router = &monitor.command.router;
        let reason = format!("router {router}: {}{}", ErrorChain(error), self.messages(router));
        self.note(&reason);
        let is_refused = matches!(error, VerifyError::StartFailed(_));
        let mut has_monitor = error.has_monitor();
        if is_refused && runs_another_monitor(monitor) {
            // The agent was faster: because of its monitor, the new one has refused to start.
            match verify(expected, None) {
                Ok(verified) => return self.finish(&monitor.command, verified),
                Err(error) => has_monitor = error.has_monitor(),
            }
        }
        let log_file = monitor.command.log_file.display();
        let look = format!("look for the cause in {log_file} and {}", self.log.path().display());
        if has_monitor {
            return Err(SwitchFailure::doubt(reason).hint(format!(
                "a new monitor runs; {look}, then run the same command again: it is verified first"
            )));
        }
        self.end_started(monitor);
        let (message, hint) = match self.roll_back(monitor, previous) {
            Ok(pid) => {
                self.records.delete(router);
                let which = self.rolled_back_to(previous);
                let message = format!("{reason}; {which} runs again, pid {pid}");
                (message, format!("{look}, then run the same command again"))
            }
            Err(failure) => (
                format!("{reason}; the old program does not start either: {}", failure.message),
                format!(
                    "no monitor runs for this router: {look}, then run the same command again, or wait until the \
                     agent starts one (check_child_processes_interval, 60 s)"
                ),
            ),
        };
        self.note(&message);
        Err(SwitchFailure::doubt(message).hint(hint))
    }

    /// The program that a rollback has started. After an upgrade of the package the file of the old version is gone.
    fn rolled_back_to(&self, previous: Option<&TargetProgram>) -> &'static str {
        match previous {
            Some(previous) if previous.is_same_file(self.target) => {
                "the new program, because the file of the old version is no longer installed,"
            }
            _ => "the old program",
        }
    }

    /// Ends the processes of the wanted program that the pid file does not name. The agent may have started the other
    /// program at the same moment, and a second monitor would write the state file too.
    fn end_started(&mut self, old: &RunningMonitor) {
        let monitors = running_monitors(&old.command.state_path).unwrap_or_default();
        let is_started = |one: &&RunningMonitor| {
            one.command.is_same_instance(&old.command)
                && one.id != old.id
                && self.target.is_run_by(one)
                && !is_in_pid_file(one)
        };
        let started: Vec<RunningMonitor> = monitors.iter().filter(is_started).cloned().collect();
        for one in started {
            let order = StopOrder {
                monitor: one.id.into(),
                descendants: one.descendants.iter().copied().map(Into::into).collect(),
            };
            let (router, pid) = (&old.command.router, one.id.pid);
            let result = match stop(&order) {
                Ok(_) => "was ended: it is not in the pid file".to_owned(),
                Err(error) => format!("is not in the pid file and cannot be ended: {error}"),
            };
            self.note(&format!("router {router}: process {pid} {result}"));
        }
    }

    /// Starts the program of the old monitor again; returns the pid of the monitor.
    fn roll_back(
        &mut self,
        monitor: &RunningMonitor,
        previous: Option<&TargetProgram>,
    ) -> Result<u32, SwitchFailure> {
        let router = &monitor.command.router;
        let previous = previous.ok_or_else(|| {
            SwitchFailure::doubt("it is not installed, and not named with --program")
        })?;
        let path = self.executed_path(previous)?;
        let record = self.records.records().unwrap_or_default();
        let record = record.into_iter().find(|record| record.router == router.as_str());
        let record = record.ok_or_else(|| SwitchFailure::doubt("the record is gone"))?;
        let is_script = previous.kind == MonitorProgram::Script;
        let plan = StartPlan {
            command: start_command(monitor, previous, &path),
            messages: (!is_script).then(|| self.records.messages_of(router)),
            ..record.plan
        };
        let log = LogMark::at_end_of(&monitor.command.log_file);
        let state = StateMark::of(&monitor.command.conf_dir);
        let mut child = self.launch(&plan, router)?;
        let expected = Expectation {
            command: &monitor.command,
            target: previous,
            log,
            state: Some(state),
            primary_word: None,
            needs_agent: false,
            timeout: self.timeout,
        };
        let verified = verify(&expected, Some(&mut child));
        let failed = |error| SwitchFailure::doubt(ErrorChain(&error).to_string());
        verified.map(|verified| verified.pid).map_err(failed)
    }

    fn finish(
        &mut self,
        command: &MonitorCommand,
        verified: VerifiedMonitor,
    ) -> Result<VerifiedMonitor, SwitchFailure> {
        self.records.delete(&command.router);
        self.step(&format!(
            "router {}: pid {} is verified: state {}, agent {}",
            command.router,
            verified.pid,
            verified.word,
            verified.agent.into_str()
        ))
        .map_err(|error| {
            SwitchFailure::doubt(format!(
                "{}; its last monitor is replaced and verified",
                ErrorChain(&error)
            ))
            .hint("make room on the disk, then run the same command again")
        })?;
        Ok(verified)
    }

    fn expectation<'b>(
        &self,
        command: &'b MonitorCommand,
        log: LogMark,
        state: Option<StateMark>,
    ) -> Expectation<'b>
    where
        Self: 'b,
    {
        Expectation {
            command,
            target: self.target,
            log,
            state,
            primary_word: self.primary_word,
            needs_agent: self.needs_agent,
            timeout: self.timeout,
        }
    }

    fn executed_path(&self, program: &TargetProgram) -> Result<PathBuf, SwitchFailure> {
        self.records.named_like_monitor(&program.path).map_err(|error| {
            SwitchFailure::environment(format!(
                "cannot create a name for {}: {error}",
                program.path.display()
            ))
        })
    }

    /// The messages of a program at its start, for an error.
    fn messages(&self, router: &InstanceId) -> String {
        let text = read_head(&self.records.messages_of(router), 2048).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find(|line| !line.trim().is_empty());
        line.map_or_else(String::new, |line| format!(" ({})", line.trim()))
    }

    fn step(&mut self, text: &str) -> Result<(), SwitchLogError> {
        self.log.line(text)
    }

    /// A line that is written if possible: the step that it describes is already done.
    fn note(&mut self, text: &str) {
        let _ = self.log.line(text);
    }
}

/// How an unfinished replacement was completed.
#[derive(Debug)]
pub(crate) enum Resumed {
    /// The new monitor runs, and is verified now.
    Verified(VerifiedMonitor),
    /// No monitor ran; a new one runs and is verified.
    Repaired(VerifiedMonitor),
    /// The old program runs: the replacement starts from the beginning.
    StillOld,
    /// The router was deleted.
    RouterGone,
}

/// Whether another process than `old` monitors its router.
fn runs_another_monitor(old: &RunningMonitor) -> bool {
    running_monitors(&old.command.state_path).is_ok_and(|monitors| {
        monitors.iter().any(|one| one.command.is_same_instance(&old.command) && one.id != old.id)
    })
}

fn untouched(router: &InstanceId, error: &dyn std::fmt::Display) -> SwitchFailure {
    SwitchFailure::doubt(format!("router {router}: {error}; its old monitor runs on"))
        .hint("remove the cause, then run the same command again")
}
