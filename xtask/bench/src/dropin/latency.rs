// SPDX-License-Identifier: Apache-2.0
//! Measures single events: the start of a monitor, a change of the address, the return of the agent, the stop.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use vipwatch_testkit::monitor::read_pid;
use vipwatch_testkit::{Behaviour, FakeAgent, Lab, pause};

use super::{
    ChangeTimes, Program, ProgramPaths, limit, progress, quantile_rows, router_for, set,
    set_quantiles, setup, spin, word,
};
use crate::measure::{Samples, family, kill_all, ms};
use crate::report::{BenchTarget, Row};

/// Measures the time from the start of the monitor to its first state, in the file and at the agent.
pub(super) fn start(paths: &ProgramPaths, count: usize, rows: &mut Vec<Row>) {
    let written = Row::new("spawn → first state written, p50", "ms");
    let mut written = written.target(BenchTarget::AtMost(3.0));
    let mut received = Row::new("spawn → first state received, p50", "ms");
    for program in Program::ALL {
        progress("start", program);
        let mut files = Vec::new();
        let mut reports = Vec::new();
        for _ in 0..program.samples(count) {
            let lab = Lab::new();
            let router = router_for(program, &lab, 1);
            let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
            let state = router.conf_dir.join("state");
            let mut command = paths.command(program, &router);
            let began = Instant::now();
            let mut spawned = command.spawn().expect("the program starts");
            spin(Duration::from_secs(30), || state.exists().then_some(()));
            files.push(ms(began.elapsed()));
            let limit = Duration::from_secs(if program == Program::Ours { 10 } else { 2 });
            spin(limit, || agent.last());
            reports.extend(agent.last().map(|report| ms(report.at - began)));
            if let Some(pid) = read_pid(&router.pid_file()) {
                kill_all(family(pid));
            }
            let _ = spawned.kill();
            let _ = spawned.wait();
        }
        set(&mut written, program, Samples::of(files).p50());
        set(&mut received, program, Samples::of(reports).p50());
    }
    rows.extend([written, received]);
}

/// Measures the time from a change of the address to the state file and to the agent.
pub(super) fn change(paths: &ProgramPaths, count: usize, rows: &mut Vec<Row>) {
    let mut files = quantile_rows("VIP change → file");
    let mut reports = quantile_rows("VIP change → agent");
    reports[0].target = Some(BenchTarget::TimesLess(50.0));
    for program in Program::ALL.into_iter().chain([Program::Limit]) {
        progress("change", program);
        let setup = setup(paths, program);
        let mut times = ChangeTimes::default();
        for turn in 0..program.samples(count) {
            setup.sample(turn % 2 == 0, &mut || {}, &mut times);
        }
        set_quantiles(&mut files, program, times.files);
        set_quantiles(&mut reports, program, times.reports);
    }
    let distances = [limit::distance(&files[0]), limit::distance(&reports[0])];
    rows.extend(files.into_iter().chain(reports).chain(distances));
}

/// Measures the time from the return of the agent's socket, after 2 s of absence, to the report.
pub(super) fn agent_returns(paths: &ProgramPaths, count: usize, rows: &mut Vec<Row>) {
    progress("agent returns", Program::Ours);
    let mut setup = setup(paths, Program::Ours);
    let mut samples = Vec::new();
    for turn in 0..count {
        drop(std::mem::replace(&mut setup.agent, FakeAgent::unreachable()));
        setup.change(turn % 2 == 0);
        pause(Duration::from_secs(2));
        let began = Instant::now();
        setup.agent = FakeAgent::listen(&setup.router.state_path, Behaviour::Threaded);
        let report = setup.agent.wait_for_next(word(turn % 2 == 0), Duration::from_secs(10));
        samples.extend(report.map(|report| ms(report.at - began)));
    }
    let row = Row::new("agent back after 2 s → notified, p50", "ms");
    rows.push(row.ours(Samples::of(samples).p50()));
}

/// Measures the time from SIGTERM to the end of the process.
pub(super) fn stop(paths: &ProgramPaths, count: usize, rows: &mut Vec<Row>) {
    let mut row = Row::new("SIGTERM → gone, max", "ms").target(BenchTarget::AtMost(100.0));
    for program in [Program::Ours, Program::Script] {
        progress("stop", program);
        let mut samples = Vec::new();
        for _ in 0..program.samples(count) {
            let setup = setup(paths, program);
            let pid = setup.running.pid;
            let began = Instant::now();
            let _ = rustix::process::kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM);
            spin(Duration::from_secs(10), || {
                (!vipwatch_testkit::monitor::is_alive(pid)).then_some(())
            });
            samples.push(ms(began.elapsed()));
        }
        set(&mut row, program, Samples::of(samples).max());
    }
    rows.push(row);
}
