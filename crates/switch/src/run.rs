// SPDX-License-Identifier: Apache-2.0
//! `to-vipwatch` and `to-neutron`: one router after the other, until all are done or there is a doubt.

use std::time::{Duration, Instant};

use vipwatch_core::{ErrorChain, InstanceId};
use vipwatch_linux::clock;
use vipwatch_linux::netns::NetnsId;
use vipwatch_linux::process_table::is_alive;

use crate::agent;
use crate::agent_config;
use crate::agent_name;
use crate::args::{SwitchArgs, SwitchCommand};
use crate::check::{RouterMonitors, by_router, check, primary_word};
use crate::document::{ReplacementDocument, ReplacementResult, ReplacementRow};
use crate::failure::SwitchFailure;
use crate::log::SwitchLog;
use crate::monitor::{ContainerMonitor, MonitorList, RunningMonitor, running_monitors};
use crate::program::{KnownPrograms, TargetProgram};
use crate::progress::Progress;
use crate::replace::{Replacer, Resumed};
use crate::status::document_of;
use crate::stop::wait_a_moment;
use crate::unfinished::{RecordDirectory, RecordError, UnfinishedRecord};
use crate::verify::VerifiedMonitor;

/// How long a second process with the command line of a monitor may exist after a start.
const SECOND_MONITOR_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of a run: the document, and the doubt that has ended it.
pub(crate) struct SwitchResult {
    pub(crate) document: ReplacementDocument,
    pub(crate) failure: Option<SwitchFailure>,
}

/// Replaces the chosen monitors, or checks whether it would be possible.
pub(crate) fn switch(args: &SwitchArgs) -> Result<SwitchResult, SwitchFailure> {
    let programs = KnownPrograms::find(&args.programs)?;
    let target = match args.command {
        SwitchCommand::ToNeutron => programs.into_neutron()?,
        SwitchCommand::ToVipwatch | SwitchCommand::Status => programs.into_vipwatch()?,
    };
    let records = if args.is_dry_run {
        RecordDirectory::read_only(&args.records)
    } else {
        RecordDirectory::lock(&args.records).map_err(|error| record_failure(&error))?
    };
    check_agent(args)?;
    if args.needs_agent {
        agent_config::check_action(&args.neutron_config)?;
    }
    let mut run = Run::new(args, &target, &records)?;
    // ORDER: before the first replacement.
    let has_changed_name = !args.is_dry_run && agent_name::lead_to(&target)?;
    let mut failure = run.all_routers().err();
    // For single routers, the agent's other monitors stay those of vipwatch.
    let is_single = !args.routers.is_empty() && args.command == SwitchCommand::ToNeutron;
    if has_changed_name && is_single {
        failure = failure.or(agent_name::resume().map_err(SwitchFailure::into_doubt).err());
    }
    // The code for a missing file says that nothing was changed.
    if has_changed_name || run.has_replaced() {
        failure = failure.map(SwitchFailure::into_doubt);
    }
    run.progress.clear();
    let document = ReplacementDocument {
        schema: "vipwatch-neutron-switch/1",
        command: args.command.into_str(),
        is_dry_run: args.is_dry_run,
        target: document_of(&target),
        ok: failure.is_none(),
        routers: run.rows,
    };
    Ok(SwitchResult { document, failure })
}

fn record_failure(error: &RecordError) -> SwitchFailure {
    let failure = SwitchFailure::environment(ErrorChain(error));
    match error {
        RecordError::Locked => failure.hint("wait until it has ended; its log shows its steps"),
        _ => failure.hint("make room on the disk or make it writable; nothing was changed"),
    }
}

/// Fails if the agent cannot receive reports: then it is not possible to verify that it has the states.
fn check_agent(args: &SwitchArgs) -> Result<(), SwitchFailure> {
    if !args.needs_agent || agent::is_listening(&args.state_path) {
        return Ok(());
    }
    let socket = agent::socket_of(&args.state_path);
    Err(SwitchFailure::environment(format!("the L3 agent does not listen on {}", socket.display()))
        .hint("start the agent, name its directory with --state-path, or add --without-agent"))
}

struct Run<'a> {
    args: &'a SwitchArgs,
    target: &'a TargetProgram,
    /// `None` with `--dry-run`.
    replacer: Option<Replacer<'a>>,
    monitors: Vec<RunningMonitor>,
    in_containers: Vec<ContainerMonitor>,
    unfinished: Vec<UnfinishedRecord>,
    primary_word: Option<&'static str>,
    rows: Vec<ReplacementRow>,
    progress: Progress,
}

impl<'a> Run<'a> {
    fn new(
        args: &'a SwitchArgs,
        target: &'a TargetProgram,
        records: &'a RecordDirectory,
    ) -> Result<Self, SwitchFailure> {
        let MonitorList { here: monitors, in_containers, .. } =
            MonitorList::read(&args.state_path)?;
        let unfinished = records.records().map_err(|error| record_failure(&error))?;
        // A change of the configuration may change the word.
        let primary_word = if args.is_again { None } else { primary_word(&monitors) };
        let replacer = if args.is_dry_run {
            None
        } else {
            Some(Replacer {
                target,
                named: &args.programs,
                records,
                log: open_log(args, target)?,
                primary_word,
                needs_agent: args.needs_agent,
                timeout: args.timeout,
            })
        };
        let progress = Progress::new(0);
        let rows = Vec::new();
        let run = Self {
            args,
            target,
            replacer,
            monitors,
            in_containers,
            unfinished,
            primary_word,
            rows,
            progress,
        };
        run.check_chosen()?;
        Ok(run)
    }

    fn is_chosen(&self, router: &str) -> bool {
        let routers = &self.args.routers;
        routers.is_empty() || routers.iter().any(|chosen| chosen.as_str() == router)
    }

    /// Fails if a router of `--router` is not known here.
    fn check_chosen(&self) -> Result<(), SwitchFailure> {
        let is_known = |router: &&InstanceId| {
            self.monitors.iter().any(|monitor| monitor.command.router == **router)
                || self.in_containers.iter().any(|monitor| monitor.command.router == **router)
                || self.unfinished.iter().any(|record| record.router == router.as_str())
        };
        match self.args.routers.iter().find(|router| !is_known(router)) {
            None => Ok(()),
            Some(router) => {
                Err(SwitchFailure::environment(format!("no monitor runs for router {router}"))
                    .hint("`vipwatch-neutron-switch status` lists the monitors"))
            }
        }
    }

    /// ORDER: unfinished replacements come first, because a router may be without a monitor.
    fn all_routers(&mut self) -> Result<(), SwitchFailure> {
        let unfinished: Vec<UnfinishedRecord> = self
            .unfinished
            .iter()
            .filter(|record| self.is_chosen(&record.router))
            .cloned()
            .collect();
        let mut pending = self.chosen_routers();
        self.progress = Progress::new(unfinished.len() + pending.len());
        let mut done = Vec::new();
        for record in unfinished {
            if self.resume(&record)? {
                done.push(record.router);
            }
        }
        let mut failures = Vec::new();
        while !pending.is_empty() {
            for router in pending {
                // A monitor of a router in `done` was started by the repair, or verified.
                if !done.contains(&router) {
                    match self.next_router(&router) {
                        Err(failure) if self.args.is_dry_run => failures.push(failure),
                        result => result?,
                    }
                    done.push(router);
                }
            }
            // The agent may have started monitors of new routers meanwhile.
            self.monitors = running_monitors(&self.args.state_path)?;
            pending = self.chosen_routers();
            pending.retain(|router| !done.contains(router));
            self.progress.grow(pending.len());
        }
        self.check_complete()?;
        failures.extend(self.container_failures());
        joined(failures)
    }

    /// The failures of the chosen monitors in containers, which are not touched.
    ///
    /// ORDER: after all others: a process in a container must not prevent the replacement of other monitors.
    fn container_failures(&mut self) -> Vec<SwitchFailure> {
        let mut monitors = std::mem::take(&mut self.in_containers);
        monitors.retain(|monitor| self.is_chosen(monitor.command.router.as_str()));
        self.progress.grow(monitors.len());
        let failure_of = |ContainerMonitor { pid, command, .. }: &ContainerMonitor| {
            let router = &command.router;
            let failure = SwitchFailure::doubt(format!(
                "router {router}: its monitor, process {pid}, runs in a container with another root directory"
            ))
            .hint("run this command inside the container of the L3 agent");
            let mut row = ReplacementRow::new(router.as_str(), ReplacementResult::Failed);
            row.message = Some(failure.message.clone());
            self.add(row);
            failure
        };
        monitors.iter().map(failure_of).collect()
    }

    /// The chosen routers with a monitor, sorted.
    fn chosen_routers(&self) -> Vec<String> {
        let routers = self.monitors.iter().map(|monitor| monitor.command.router.to_string());
        let mut routers: Vec<String> = routers.filter(|router| self.is_chosen(router)).collect();
        routers.dedup();
        routers
    }

    fn has_replaced(&self) -> bool {
        let is_replaced = |row: &ReplacementRow| {
            matches!(row.result, ReplacementResult::Replaced | ReplacementResult::Repaired)
        };
        self.rows.iter().any(is_replaced)
    }

    /// Looks at the router again and replaces its monitor: since the run has begun, the agent may have deleted the router
    /// or started its monitor again.
    fn next_router(&mut self, router: &str) -> Result<(), SwitchFailure> {
        let mut monitors = running_monitors(&self.args.state_path)?;
        monitors.retain(|monitor| monitor.command.router.as_str() == router);
        match by_router(monitors).pop() {
            None => {
                self.add(ReplacementRow::new(router, ReplacementResult::Gone));
                Ok(())
            }
            Some(Ok(monitors)) => self.one_router(&monitors),
            Some(Err(duplicates)) => Err(self.fail(&duplicates.monitor, duplicates.failure)),
        }
    }

    /// Fails if a chosen monitor runs another program at the end, for example because the agent has started it again.
    fn check_complete(&self) -> Result<(), SwitchFailure> {
        let is_left = |monitor: &&RunningMonitor| {
            self.is_chosen(monitor.command.router.as_str()) && !self.target.is_run_by(monitor)
        };
        let mut left: Vec<&str> =
            self.monitors.iter().filter(is_left).map(|one| one.command.router.as_str()).collect();
        left.dedup();
        if self.args.is_dry_run || left.is_empty() {
            return Ok(());
        }
        let message = format!(
            "monitors have started with another program meanwhile: router {}",
            left.join(", ")
        );
        Err(SwitchFailure::doubt(message).hint("run the same command again"))
    }

    /// Completes an unfinished replacement. Returns whether the router is done.
    fn resume(&mut self, record: &UnfinishedRecord) -> Result<bool, SwitchFailure> {
        self.progress.begin(&record.router);
        let is_same = |monitor: &&RunningMonitor| monitor.command.router.as_str() == record.router;
        let monitor = self.monitors.iter().find(is_same).cloned();
        let began = Instant::now();
        let Some(replacer) = self.replacer.as_mut() else {
            self.add(ReplacementRow::new(&record.router, ReplacementResult::WouldReplace));
            return Ok(true);
        };
        match replacer.resume(record, monitor.as_ref()) {
            Ok(Resumed::Verified(verified) | Resumed::Repaired(verified)) => {
                let row = ReplacementRow::new(&record.router, ReplacementResult::Repaired);
                self.add(filled(row, &verified, began));
                Ok(true)
            }
            Ok(Resumed::StillOld | Resumed::RouterGone) => Ok(false),
            Err(failure) => {
                let mut row = ReplacementRow::new(&record.router, ReplacementResult::Failed);
                row.message = Some(failure.message.clone());
                self.add(row);
                Err(failure)
            }
        }
    }

    fn one_router(&mut self, router: &RouterMonitors) -> Result<(), SwitchFailure> {
        let monitor = &router.monitor;
        let id = &monitor.command.router;
        self.progress.begin(id.as_str());
        if self.target.is_run_by(monitor) && router.remains.is_empty() && !self.args.is_again {
            let mut row = ReplacementRow::new(id.as_str(), ReplacementResult::Unchanged);
            row.pid = Some(monitor.id.pid);
            self.add(row);
            return Ok(());
        }
        if let Err(failure) = check(monitor, self.target, self.primary_word) {
            return self.fail_or_gone(monitor, failure);
        }
        let began = Instant::now();
        let Some(replacer) = self.replacer.as_mut() else {
            let mut row = ReplacementRow::new(id.as_str(), ReplacementResult::WouldReplace);
            row.from = Some(monitor.program.word());
            self.add(row);
            return Ok(());
        };
        match replacer.replace(router) {
            Ok(verified) => {
                let mut row = ReplacementRow::new(id.as_str(), ReplacementResult::Replaced);
                row.from = Some(monitor.program.word());
                self.add(filled(row, &verified, began));
                self.check_alone(monitor)
            }
            Err(failure) => self.fail_or_gone(monitor, failure),
        }
    }

    /// A failure is none if the agent has deleted the router at the same moment.
    fn fail_or_gone(
        &mut self,
        monitor: &RunningMonitor,
        failure: SwitchFailure,
    ) -> Result<(), SwitchFailure> {
        let has_netns = NetnsId::of_name(&monitor.command.netns).map_or(true, |id| id.is_some());
        if has_netns || is_alive(monitor.id) {
            return Err(self.fail(monitor, failure));
        }
        self.add(ReplacementRow::new(monitor.command.router.as_str(), ReplacementResult::Gone));
        Ok(())
    }

    /// Fails if the router has a second monitor now, for example because the agent has started one at the same moment.
    fn check_alone(&self, old: &RunningMonitor) -> Result<(), SwitchFailure> {
        // The foreground process of a daemon has the same command line and ends a moment later.
        let end = clock::now() + SECOND_MONITOR_TIMEOUT;
        let pids = loop {
            let monitors = running_monitors(&self.args.state_path)?;
            let is_same = |one: &&RunningMonitor| one.command.router == old.command.router;
            let pids: Vec<String> =
                monitors.iter().filter(is_same).map(|one| one.id.pid.to_string()).collect();
            if pids.len() <= 1 {
                return Ok(());
            }
            if clock::now() >= end {
                break pids;
            }
            wait_a_moment();
        };
        let (router, pids) = (&old.command.router, pids.join(" and "));
        Err(SwitchFailure::doubt(format!("router {router}: the processes {pids} monitor it at the same time"))
            .hint("end the process that is not in the pid file (`kill -TERM PID`), then run this command again"))
    }

    fn fail(&mut self, monitor: &RunningMonitor, failure: SwitchFailure) -> SwitchFailure {
        let mut row =
            ReplacementRow::new(monitor.command.router.as_str(), ReplacementResult::Failed);
        row.from = Some(monitor.program.word());
        row.message = Some(failure.message.clone());
        self.add(row);
        failure
    }

    fn add(&mut self, row: ReplacementRow) {
        self.progress.end(&row, self.args.is_dry_run);
        self.rows.push(row);
    }
}

/// One failure for all failures of `--dry-run`.
fn joined(failures: Vec<SwitchFailure>) -> Result<(), SwitchFailure> {
    let count = failures.len();
    let Some(mut first) = failures.into_iter().next() else { return Ok(()) };
    if count > 1 {
        first.message =
            format!("{count} monitors cannot be replaced; the first one: {}", first.message);
    }
    Err(first.into_doubt())
}

fn filled(mut row: ReplacementRow, verified: &VerifiedMonitor, began: Instant) -> ReplacementRow {
    row.pid = Some(verified.pid);
    row.state = Some(verified.word);
    row.agent = Some(verified.agent.into_str());
    row.seconds = began.elapsed().as_secs_f64();
    row
}

fn open_log(args: &SwitchArgs, target: &TargetProgram) -> Result<SwitchLog, SwitchFailure> {
    let failed = |error| {
        SwitchFailure::environment(format!("{}; nothing was changed", ErrorChain(&error)))
            .hint("make room on the disk, or name another file with --log")
    };
    let mut log = SwitchLog::open(&args.log).map_err(failed)?;
    let (command, path) = (args.command.into_str(), target.path.display());
    log.line(&format!("{command} begins: the program is {path} ({})", target.kind.word()))
        .map_err(failed)?;
    Ok(log)
}
