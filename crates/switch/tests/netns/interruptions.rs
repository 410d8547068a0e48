// SPDX-License-Identifier: Apache-2.0
//! A kill of the switch, at any step, leaves a consistent system, and the next run continues.

use std::process::Child;

use rustix::process::Signal;
use vipwatch_testkit::monitor::{children, is_alive};
use vipwatch_testkit::{MonitorProcess, PtyProcess, Router, wait_for, wait_showing};

use crate::fixture::{
    EndOfTest, SwitchLab, executable, pid_of, rustix_pid, start_old, text, wait_until_ended,
};

/// Starts the switch while the old monitor is stopped, so that it cannot end: the switch waits for that.
fn start_and_wait_for_the_old_monitor(lab: &SwitchLab, old: &MonitorProcess) -> Child {
    old.signal(Signal::STOP);
    let mut command = lab.command("to-vipwatch");
    command.arg("--program").arg(&lab.new).stderr(std::process::Stdio::null());
    let switch = command.spawn().expect("start the switch");
    wait_showing(
        "SIGTERM to the old monitor",
        || lab.log(),
        || has_pending_term(old.pid).then_some(()),
    );
    switch
}

/// Whether SIGTERM waits until the process runs again.
fn has_pending_term(pid: i32) -> bool {
    const SIGTERM_BIT: u64 = 1 << 14;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    pending.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap_or(0) & SIGTERM_BIT != 0)
}

fn kill(pid: i32) {
    let pid = rustix_pid(pid).expect("a pid");
    rustix::process::kill_process(pid, Signal::KILL).expect("a running process");
}

fn own_pid(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("a pid")
}

fn wait_for_the_new_program(lab: &SwitchLab, router: &Router) {
    wait_for("the new program", || {
        let pid =
            vipwatch_testkit::monitor::read_pid(&router.pid_file()).filter(|pid| is_alive(*pid))?;
        (std::fs::read_link(format!("/proc/{pid}/exe")).ok()? == lab.new).then_some(())
    });
}

#[test]
fn a_switch_that_is_killed_while_the_old_monitor_ends_still_starts_the_new_one() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    let mut switch = start_and_wait_for_the_old_monitor(&lab, &old);
    switch.kill().unwrap();
    switch.wait().unwrap();
    // The helper process still works: another run must not begin.
    let output = lab.to_vipwatch("");
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    old.signal(Signal::CONT);
    let _end = EndOfTest(&router);
    wait_for_the_new_program(&lab, &router);
    wait_until_ended(old.pid);
    assert_eq!(lab.record_count(), 1, "the next run verifies it");

    let output = lab.to_vipwatch("");
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("repaired"), "{}", text(&output));
    assert_eq!(lab.record_count(), 0);
}

#[test]
fn a_router_that_an_interrupted_run_has_left_without_a_monitor_gets_one_from_the_next_run() {
    let lab = SwitchLab::new();
    let routers = [1, 2].map(|number| lab.router(number));
    let old: Vec<_> = routers.iter().map(|router| start_old(&lab, router)).collect();
    routers[0].take_vip();
    routers[0].wait_for_state("primary");
    let mut switch = start_and_wait_for_the_old_monitor(&lab, &old[0]);
    // Both processes of the switch, as by a memory limit of their cgroup.
    let launcher = children(own_pid(&switch));
    assert_eq!(launcher.len(), 1);
    kill(launcher[0]);
    switch.kill().unwrap();
    switch.wait().unwrap();
    old[0].signal(Signal::CONT);
    wait_until_ended(old[0].pid);
    assert!(!routers[0].pid_file().exists(), "no monitor is left");
    let status = vipwatch_testkit::monitor::output_of(&mut lab.command("status"));
    assert!(text(&status).contains(&format!("unfinished: {}", routers[0].id)), "{}", text(&status));

    let output = lab.to_vipwatch("");
    let _ends = routers.each_ref().map(EndOfTest);
    assert!(output.status.success(), "{}", text(&output));
    assert!(routers.iter().all(|router| executable(pid_of(router)) == lab.new));
    assert_eq!((routers[0].state().as_deref(), lab.record_count()), (Some("primary"), 0));
}

#[test]
fn a_second_switch_is_refused_while_the_first_one_works() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    let mut switch = start_and_wait_for_the_old_monitor(&lab, &old);
    let output = lab.to_vipwatch("");
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(
        text(&output).contains("another vipwatch-neutron-switch is running"),
        "{}",
        text(&output)
    );
    old.signal(Signal::CONT);
    let _end = EndOfTest(&router);
    assert!(vipwatch_testkit::monitor::end_of(&mut switch).unwrap().success(), "{}", lab.log());
}

#[test]
fn a_monitor_that_does_not_end_after_sigterm_is_killed() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    let mut switch = start_and_wait_for_the_old_monitor(&lab, &old);
    let _end = EndOfTest(&router);
    assert!(vipwatch_testkit::monitor::end_of(&mut switch).unwrap().success(), "{}", lab.log());
    assert!(lab.log().contains("it was killed"), "{}", lab.log());
    assert_eq!(executable(pid_of(&router)), lab.new);
}

#[test]
fn on_a_terminal_a_bar_shows_the_progress_and_a_closed_terminal_does_not_end_the_replacement() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    old.signal(Signal::STOP);
    let mut command = lab.command("to-vipwatch");
    command.arg("--program").arg(&lab.new);
    let mut terminal = PtyProcess::start(&command, 120, 20);
    let bar = format!("[{}] 0/1 {}", "-".repeat(30), router.id);
    terminal.wait_for(&bar);
    wait_showing(
        "SIGTERM to the old monitor",
        || lab.log(),
        || has_pending_term(old.pid).then_some(()),
    );
    terminal.hang_up();
    terminal.end();
    old.signal(Signal::CONT);
    let _end = EndOfTest(&router);
    wait_for_the_new_program(&lab, &router);
    assert!(is_alive(pid_of(&router)));
}

/// A run over hundreds of routers takes minutes. The agent works on meanwhile.
#[test]
fn a_router_that_is_deleted_and_a_router_that_is_added_during_a_run_do_not_stop_it() {
    let lab = SwitchLab::new();
    let routers = [1, 2, 3].map(|number| lab.router(number));
    let first = start_old(&lab, &routers[0]);
    let mut second = start_old(&lab, &routers[1]);
    first.signal(Signal::STOP);
    let mut command = lab.command("to-vipwatch --json");
    command.arg("--program").arg(&lab.new).stdout(std::process::Stdio::piped());
    let switch = command.spawn().unwrap();
    wait_showing(
        "SIGTERM to the old monitor",
        || lab.log(),
        || has_pending_term(first.pid).then_some(()),
    );
    second.signal(Signal::TERM);
    second.wait_until_gone();
    let third = start_old(&lab, &routers[2]);
    first.signal(Signal::CONT);
    let output = switch.wait_with_output().unwrap();
    let _ends = [&routers[0], &routers[2]].map(EndOfTest);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(text(&output).matches("\"gone\"").count(), 1, "{}", text(&output));
    assert_eq!(text(&output).matches("\"replaced\"").count(), 2, "{}", text(&output));
    wait_until_ended(third.pid);
    assert_eq!(executable(pid_of(&routers[2])), lab.new);
}
