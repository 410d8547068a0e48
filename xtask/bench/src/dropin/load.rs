// SPDX-License-Identifier: Apache-2.0
//! Measures many events: CPU time, bursts, unrelated events, and changes in many namespaces at once.

use std::time::{Duration, Instant};

use ipnet::IpNet;
use vipwatch_testkit::{Behaviour, FakeAgent, Lab, Router, pause};

use super::{Program, ProgramPaths, Setup, progress, set, setup, start_many};
use crate::measure::{self, Samples, count, cpu, ms};
use crate::report::{BenchTarget, Row};

/// Measures the CPU time of 1,000 changes, one after the other.
pub(super) fn cost(paths: &ProgramPaths, number: usize, rows: &mut Vec<Row>) {
    let mut row = Row::new("CPU per 1,000 changes", "ms").target(BenchTarget::TimesLess(200.0));
    for program in Program::ALL {
        progress("cost", program);
        let setup = setup(paths, program);
        let changes = program.samples(number) / 2 * 2;
        let pids = setup.running.pids();
        let before = cpu(&pids);
        setup.make_changes(changes);
        set(&mut row, program, Some((cpu(&pids) - before) * 1_000.0 / count(changes)));
    }
    rows.push(row);
}

/// Measures the time from the end of 1,000 changes, made as fast as the kernel allows, to the correct state.
pub(super) fn burst(paths: &ProgramPaths, rows: &mut Vec<Row>) {
    let mut row = Row::new("1,000 changes in one burst → right", "ms");
    for program in Program::ALL {
        progress("burst", program);
        let setup = setup(paths, program);
        for turn in 0..999 {
            setup.change(turn % 2 == 0);
        }
        set(&mut row, program, until_right(&setup));
    }
    rows.push(row);
}

/// Measures the time to the correct state after 5,000 events of other addresses with 20 changes among them.
pub(super) fn unrelated(paths: &ProgramPaths, rows: &mut Vec<Row>) {
    let row = Row::new("5,000 unrelated events, 20 changes → right", "ms");
    let mut row = row.target(BenchTarget::AtMost(100.0));
    for program in Program::ALL {
        progress("unrelated events", program);
        let setup = setup(paths, program);
        let mut is_held = false;
        for n in 0..2_500_u32 {
            let other: IpNet =
                format!("10.{}.{}.7/32", n / 250, n % 250).parse().expect("an address");
            setup.editor.add(setup.link, other);
            setup.editor.remove(setup.link, other);
            if n % 120 == 60 {
                is_held = !is_held;
                setup.change(is_held);
            }
        }
        if !is_held {
            setup.change(true);
        }
        set(&mut row, program, until_right(&setup));
    }
    rows.push(row);
}

/// The milliseconds from now until the file and the agent have the state `primary` and keep it for one second; `None` if
/// that does not happen within 90 s.
fn until_right(setup: &Setup) -> Option<f64> {
    let began = Instant::now();
    let end = began + Duration::from_secs(90);
    let mut since: Option<Instant> = None;
    while Instant::now() < end {
        match (setup.is_right(true), since) {
            (true, None) => since = Some(Instant::now()),
            // A monitor with a backlog passes through the right state several times.
            (true, Some(then)) if then.elapsed() > Duration::from_secs(1) => {
                return Some(ms(then - began));
            }
            (false, _) => since = None,
            (true, Some(_)) => {}
        }
        pause(Duration::from_micros(200));
    }
    None
}

/// Measures the reports after the address was added in many namespaces at once.
pub(super) fn at_once(paths: &ProgramPaths, count: u32, rows: &mut Vec<Row>) {
    let name = |what: &str| format!("VIP in {count} namespaces at once{what}");
    let target = (count >= 200).then_some(BenchTarget::TimesLess(20.0));
    let mut half = Row::new(name(" → agent, p50"), "ms").target(target);
    let mut last = Row::new(name(" → agent, last"), "ms");
    let mut missing = Row::new(name(": never reported"), "routers");
    for program in [Program::Ours, Program::Script] {
        progress(&format!("{count} at once"), program);
        let lab = Lab::new();
        let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let (routers, running) = start_many(paths, program, &lab, count);
        let editors: Vec<_> = routers.iter().map(Router::editor).collect();
        pause(Duration::from_secs(1));
        let began = Instant::now();
        for ((editor, link), router) in editors.iter().zip(&routers) {
            editor.add(*link, router.cidr.parse().expect("an address"));
        }
        let is_primary = |report: &vipwatch_testkit::agent::AgentRequest| {
            report.at >= began && report.word() == "primary"
        };
        let first_reports = || {
            let mut first = std::collections::HashMap::new();
            for report in agent.requests().into_iter().filter(&is_primary) {
                first.entry(report.router().to_owned()).or_insert(report.at);
            }
            first
        };
        let end = Instant::now() + Duration::from_secs(20);
        while first_reports().len() < routers.len() && Instant::now() < end {
            pause(Duration::from_millis(20));
        }
        let first = first_reports();
        let samples = Samples::of(first.values().map(|at| ms(*at - began)).collect());
        set(&mut half, program, samples.p50());
        set(&mut last, program, samples.max());
        set(&mut missing, program, Some(measure::count(routers.len() - first.len())));
        drop(running);
    }
    rows.extend([half, last, missing]);
}
