// SPDX-License-Identifier: Apache-2.0
//! `status`: which program monitors each router.

use std::path::Path;

use vipwatch_core::ErrorChain;

use crate::agent;
use crate::args::SwitchArgs;
use crate::check::is_in_pid_file;
use crate::command_line::MonitorCommand;
use crate::document::{MonitorRow, ProgramDocument, StatusDocument};
use crate::failure::SwitchFailure;
use crate::monitor::{ContainerMonitor, MonitorList, MonitorProgram, RunningMonitor};
use crate::program::{AGENT_NAME, KnownPrograms, TargetProgram};
use crate::state::{state_in_kernel, state_of_word, word_in_file};
use crate::unfinished::RecordDirectory;

/// Reads the state of all monitors.
pub(crate) fn status(args: &SwitchArgs) -> Result<StatusDocument, SwitchFailure> {
    let MonitorList { here, in_containers, foreign } = MonitorList::read(&args.state_path)?;
    let is_chosen = |command: &MonitorCommand| {
        args.routers.is_empty() || args.routers.contains(&command.router)
    };
    let programs = KnownPrograms::find(&args.programs)?;
    let mut monitors: Vec<MonitorRow> = Vec::new();
    for monitor in here.iter().filter(|one| is_chosen(&one.command)) {
        let version = programs.running_version(monitor).map(str::to_owned);
        monitors.push(MonitorRow { version, ..row(monitor, &here) });
    }
    monitors.extend(in_containers.iter().filter(|one| is_chosen(&one.command)).map(container_row));
    let records = RecordDirectory::read_only(&args.records).records();
    let records = records.map_err(|error| SwitchFailure::environment(ErrorChain(&error)))?;
    Ok(StatusDocument {
        schema: "vipwatch-neutron-switch-status/1",
        vipwatch: programs.vipwatch().map(document_of),
        neutron: programs.neutron().map(document_of),
        is_agent_listening: agent::is_listening(&args.state_path),
        foreign_processes: foreign,
        agent_starts: TargetProgram::at(Path::new(AGENT_NAME)).ok().map(|one| one.kind.word()),
        monitors,
        unfinished: records.into_iter().map(|record| record.router).collect(),
    })
}

pub(crate) fn document_of(program: &TargetProgram) -> ProgramDocument {
    ProgramDocument {
        path: program.path.display().to_string(),
        program: program.kind.word(),
        version: program.version.clone(),
    }
}

/// The row of a monitor in a container: its files are those of the container, and are not read.
fn container_row(monitor: &ContainerMonitor) -> MonitorRow {
    MonitorRow {
        router: monitor.command.router.to_string(),
        pid: monitor.pid,
        program: MonitorProgram::Unknown.word(),
        version: None,
        user: monitor.user,
        namespace: monitor.command.netns.to_string(),
        state_file: None,
        kernel: None,
        is_in_pid_file: false,
        is_in_container: true,
        problems: vec!["it runs in a container: run this command there".to_owned()],
    }
}

fn row(monitor: &RunningMonitor, all: &[RunningMonitor]) -> MonitorRow {
    let command = &monitor.command;
    let word = word_in_file(&command.conf_dir);
    let kernel = state_in_kernel(command).ok();
    let mut row = MonitorRow {
        router: command.router.to_string(),
        pid: monitor.id.pid,
        program: monitor.program.word(),
        version: None,
        user: monitor.user,
        namespace: command.netns.to_string(),
        state_file: word,
        kernel: kernel.map(vipwatch_core::NeutronState::as_str),
        is_in_pid_file: is_in_pid_file(monitor),
        is_in_container: false,
        problems: Vec::new(),
    };
    if monitor.program == MonitorProgram::Unknown {
        row.problems.push("it runs neither Neutron's program nor vipwatch's".to_owned());
    }
    if !row.is_in_pid_file {
        row.problems.push(format!("{} does not name it", command.pid_file.display()));
    }
    if all.iter().filter(|other| other.command.router == command.router).count() > 1 {
        row.problems.push("another process monitors this router too".to_owned());
    }
    match (word, kernel) {
        (Some(word), Some(kernel)) if state_of_word(word) != kernel => {
            row.problems.push("the state file disagrees with the kernel".to_owned());
        }
        (None, _) => row.problems.push("there is no state file".to_owned()),
        _ => {}
    }
    row
}
