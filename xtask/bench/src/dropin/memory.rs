// SPDX-License-Identifier: Apache-2.0
//! Memory and processes of each instance, started directly and started by a Neutron 29 agent through sudo and
//! rootwrap.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::{Behaviour, FakeAgent, Lab, Router, pause};

use super::{Program, ProgramPaths, Running, progress, router_for, set, spin, start_many};
use crate::measure::{self, family, kill_all, memory};
use crate::report::{BenchTarget, Row};

/// Measures the memory and the number of processes of each of `count` instances.
pub(super) fn footprint(paths: &ProgramPaths, count: u32, rows: &mut Vec<Row>) {
    let names = ["RSS", "PSS", "USS"];
    let mut table = names.map(|name| Row::new(format!("{name} each, {count} instances"), "KiB"));
    let mut processes = Row::new(format!("processes each, {count} instances"), "");
    if count == 50 {
        table[1].target = Some(BenchTarget::AtMost(80.0));
        table[2].target = Some(BenchTarget::AtMost(64.0));
    }
    for program in Program::ALL {
        if program == Program::Daemon && count > 1 {
            // Each daemon needs 120 MiB and three seconds to start: one instance is measured, not many.
            continue;
        }
        progress(&format!("footprint of {count}"), program);
        let lab = Lab::new();
        let _agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let (routers, running) = start_many(paths, program, &lab, count);
        routers.iter().for_each(Router::take_vip);
        for router in &routers {
            spin(Duration::from_mins(1), || {
                (router.state().as_deref() == Some("primary")).then_some(())
            });
        }
        pause(Duration::from_secs(1));
        let pids: Vec<i32> = running.iter().flat_map(Running::pids).collect();
        let sum = memory(&pids);
        let share = f64::from(count);
        for (row, value) in table.iter_mut().zip([sum.rss, sum.pss, sum.uss]) {
            set(row, program, Some(value / share));
        }
        set(&mut processes, program, Some(measure::count(pids.len()) / share));
    }
    rows.extend(table);
    rows.push(processes);
}

/// Measures the same for monitors that are started through sudo and rootwrap, with the processes of both that
/// stay alive.
pub(super) fn wrapped(paths: &ProgramPaths, count: u32, rows: &mut Vec<Row>) {
    let mut memory_row =
        Row::new(format!("PSS each through sudo and rootwrap, {count} instances"), "KiB");
    let mut processes =
        Row::new(format!("processes each through sudo and rootwrap, {count} instances"), "");
    for program in [Program::Ours, Program::Script] {
        progress("through sudo and rootwrap", program);
        let lab = Lab::new();
        let _agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let rootwrap = match rootwrap(paths, program, lab.path()) {
            Ok(rootwrap) => rootwrap,
            Err(reason) => {
                eprintln!("bench: not measured through rootwrap: {reason}");
                return;
            }
        };
        let routers: Vec<_> = (1..=count).map(|number| router_for(program, &lab, number)).collect();
        let mut spawned = Vec::new();
        let mut pids = Vec::new();
        for router in &routers {
            let mut command = Command::new("sudo");
            command.arg(paths.script.join("bin/neutron-rootwrap")).arg(&rootwrap);
            command.arg("neutron-keepalived-state-change").args(router.arguments());
            // The agent opens these pipes too, and does not read them.
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            spawned.push(command.spawn().expect("sudo starts"));
            if spin(Duration::from_secs(30), || router.state()).is_none() {
                eprintln!("bench: not measured through rootwrap: the monitor did not start");
                return;
            }
        }
        pause(Duration::from_secs(1));
        for (child, router) in spawned.iter_mut().zip(&routers) {
            pids.extend(read_pid(&router.pid_file()).map(family).into_iter().flatten());
            if matches!(child.try_wait(), Ok(None)) {
                pids.extend(family(i32::try_from(child.id()).expect("a pid")));
            }
        }
        pids.sort_unstable();
        pids.dedup();
        set(&mut memory_row, program, Some(memory(&pids).pss / f64::from(count)));
        set(&mut processes, program, Some(measure::count(pids.len()) / f64::from(count)));
        kill_all(pids);
        for mut child in spawned {
            let _ = child.wait();
        }
    }
    rows.extend([memory_row, processes]);
}

/// Writes a rootwrap configuration that starts `program`; returns its path.
fn rootwrap(paths: &ProgramPaths, program: Program, directory: &Path) -> Result<PathBuf> {
    let bin = directory.join("bin");
    std::fs::create_dir(&bin)?;
    let executable = match program {
        Program::Ours => paths.subject.clone(),
        Program::Script | Program::Daemon | Program::Limit => {
            paths.script.join("bin/neutron-keepalived-state-change")
        }
    };
    std::os::unix::fs::symlink(executable, bin.join("neutron-keepalived-state-change"))?;
    let filters = directory.join("filters");
    std::fs::create_dir(&filters)?;
    let filter = "[Filters]\nmonitor: CommandFilter, neutron-keepalived-state-change, root\n";
    measure::write_file(&filters.join("l3.filters"), filter);
    let config = directory.join("rootwrap.conf");
    let (filters, bin) = (filters.display(), bin.display());
    let text = format!("[DEFAULT]\nfilters_path={filters}\nexec_dirs={bin}\nuse_syslog=False\n");
    measure::write_file(&config, &text);
    let probe = Command::new("sudo").args(["-n", "true"]).output()?;
    if !probe.status.success() {
        return Err(Error::other("sudo does not work in this namespace"));
    }
    Ok(config)
}
