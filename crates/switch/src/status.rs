// SPDX-License-Identifier: Apache-2.0
//! `status`: which program monitors each router.

use std::path::Path;

use vipwatch_core::ErrorChain;

use crate::agent;
use crate::args::SwitchArgs;
use crate::check::is_in_pid_file;
use crate::document::{MonitorRow, ProgramDocument, StatusDocument};
use crate::failure::SwitchFailure;
use crate::monitor::{
    MonitorPlace, MonitorProgram, RunningMonitor, foreign_monitors, running_monitors,
};
use crate::program::{AGENT_NAME, TargetProgram, running_version};
use crate::state::{state_in_kernel, state_of_word, word_in_file};
use crate::unfinished::RecordDirectory;

/// Reads the state of all monitors.
pub(crate) fn status(args: &SwitchArgs) -> Result<StatusDocument, SwitchFailure> {
    let monitors = running_monitors(&args.state_path)?;
    let is_chosen = |monitor: &&RunningMonitor| {
        args.routers.is_empty() || args.routers.contains(&monitor.command.router)
    };
    let records = RecordDirectory::read_only(&args.records).records();
    let records = records.map_err(|error| SwitchFailure::environment(ErrorChain(&error)))?;
    Ok(StatusDocument {
        schema: "vipwatch-neutron-switch-status/1",
        vipwatch: TargetProgram::vipwatch(None).ok().map(|program| document_of(&program)),
        neutron: TargetProgram::neutron(None).ok().map(|program| document_of(&program)),
        is_agent_listening: agent::is_listening(&args.state_path),
        foreign_processes: foreign_monitors(&args.state_path)?,
        agent_starts: TargetProgram::at(Path::new(AGENT_NAME)).ok().map(|one| one.kind.word()),
        monitors: monitors.iter().filter(is_chosen).map(|one| row(one, &monitors)).collect(),
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

fn row(monitor: &RunningMonitor, all: &[RunningMonitor]) -> MonitorRow {
    let command = &monitor.command;
    let is_here = monitor.place == MonitorPlace::Here;
    let word = word_in_file(&command.conf_dir).filter(|_| is_here);
    let kernel = state_in_kernel(command).ok().filter(|_| is_here);
    let mut row = MonitorRow {
        router: command.router.to_string(),
        pid: monitor.id.pid,
        program: monitor.program.word(),
        version: running_version(monitor),
        user: monitor.user,
        namespace: command.netns.to_string(),
        state_file: word,
        kernel: kernel.map(vipwatch_core::NeutronState::as_str),
        is_in_pid_file: is_here && is_in_pid_file(monitor),
        is_in_container: !is_here,
        problems: Vec::new(),
    };
    if !is_here {
        row.problems.push("it runs in a container: run this command there".to_owned());
        return row;
    }
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
