// SPDX-License-Identifier: Apache-2.0
//! The switch stops at the first doubt, with a message, and leaves a monitor for every router.

use std::os::unix::fs::PermissionsExt;

use vipwatch_testkit::monitor::{is_alive, output_of, read_pid};
use vipwatch_testkit::{Behaviour, Release, script};

use crate::fixture::{EndOfTest, SwitchLab, executable, pid_of, start_old, text};
use crate::replacement::STANDIN;

#[test]
fn a_program_that_fails_at_its_start_is_replaced_by_the_old_one_and_the_run_stops() {
    let lab = SwitchLab::new();
    let routers = [1, 2].map(|number| lab.router(number));
    let old: Vec<_> = routers.iter().map(|router| start_old(&lab, router)).collect();
    let program = lab.lab.path().join("neutron-keepalived-state-change");
    script(&program, "exit 3");
    let output = lab.to_neutron(&program, "");
    let _ends = routers.each_ref().map(EndOfTest);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("the old program runs again"), "{}", text(&output));
    let hint = format!("neutron-keepalived-state-change.log and {}", lab.log_path().display());
    assert!(text(&output).contains(&hint), "{}", text(&output));
    assert_eq!(executable(pid_of(&routers[0])), lab.old);
    assert!(old[1].is_alive(), "the second router is not touched");
    assert_eq!(lab.record_count(), 0);
}

/// Neutron's programs write the pid file before they watch anything, and the state file has the old monitor's word.
#[test]
fn a_program_of_neutron_that_does_not_write_the_state_is_not_verified() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let _old = start_old(&lab, &router);
    let program = lab.lab.path().join("neutron-keepalived-state-change");
    script(&program, &STANDIN.replace("printf backup > \"$conf_dir/state\"", ""));
    let output = lab.to_neutron(&program, "--timeout 2");
    let _end = EndOfTest(&router);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("has not written"), "{}", text(&output));
}

/// A second monitor would write the state file beside the one that the pid file names.
#[test]
fn a_new_process_that_the_pid_file_does_not_name_ends_before_the_old_program_runs_again() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let _old = start_old(&lab, &router);
    let program = lab.lab.path().join("neutron-keepalived-state-change");
    script(&program, &STANDIN.replace("\"$pid_file\"", "\"$conf_dir/standin\""));
    let output = lab.to_neutron(&program, "--timeout 2");
    let _end = EndOfTest(&router);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("the old program runs again"), "{}", text(&output));
    let standin = read_pid(&router.conf_dir.join("standin")).unwrap();
    assert!(!is_alive(standin), "{}", lab.log());
    assert_eq!(executable(pid_of(&router)), lab.old);
}

#[test]
fn without_an_agent_that_listens_nothing_is_changed() {
    let mut lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    lab.agent = None;
    let output = lab.to_vipwatch("");
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(text(&output).contains("does not listen"), "{}", text(&output));
    assert!(old.is_alive());

    let output = lab.to_vipwatch("--without-agent --timeout 5");
    assert!(output.status.success(), "{}", text(&output));
    let _end = EndOfTest(&router);
    assert!(lab.log().contains("agent not-checked"));
}

#[test]
fn an_agent_that_does_not_answer_stops_the_run_and_the_next_run_verifies_the_monitor() {
    let lab = SwitchLab::new();
    let routers = [1, 2].map(|number| lab.router(number));
    let old: Vec<_> = routers.iter().map(|router| start_old(&lab, router)).collect();
    let agent = lab.agent.as_ref().unwrap();
    agent.set_behaviour(Behaviour::Hanging);
    let output = lab.to_vipwatch("--timeout 2");
    let _ends = routers.each_ref().map(EndOfTest);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("not verified after 2 s"), "{}", text(&output));
    assert!(old[1].is_alive(), "the second router is not touched");
    assert_eq!((executable(pid_of(&routers[0])), lab.record_count()), (lab.new.clone(), 1));

    agent.set_behaviour(Behaviour::Threaded);
    let output = lab.to_vipwatch("");
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("repaired"), "{}", text(&output));
    assert_eq!((executable(pid_of(&routers[1])), lab.record_count()), (lab.new.clone(), 0));
}

/// A monitor logs only its first report. A failover before the next run changes the word that the agent must have.
#[test]
fn an_unfinished_replacement_is_verified_after_a_failover() {
    let lab = SwitchLab::new();
    let mut router = lab.router(1);
    // Later ones pass --debug.
    router.release = Release::V22;
    let _old = start_old(&lab, &router);
    let agent = lab.agent.as_ref().unwrap();
    agent.set_behaviour(Behaviour::Hanging);
    let output = lab.to_vipwatch("--timeout 2");
    let _end = EndOfTest(&router);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    agent.set_behaviour(Behaviour::Threaded);
    let notified = || router.log().matches("Notified agent").count();
    vipwatch_testkit::wait_for("the first report", || (notified() == 2).then_some(()));
    router.take_vip();
    router.wait_for_state("primary");

    let output = lab.to_vipwatch("--timeout 5");
    assert!(output.status.success(), "{}", text(&output));
    assert!(lab.log().contains("state primary, agent own-report"), "{}", lab.log());
    assert_eq!(lab.record_count(), 0);
}

#[test]
fn a_log_that_cannot_be_written_stops_the_run_before_anything_is_changed() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    let mut command = lab.command("to-vipwatch");
    let output = output_of(command.arg("--program").arg(&lab.new).args(["--log", "/dev/full"]));
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(text(&output).contains("/dev/full") && text(&output).contains("nothing was changed"));
    assert!(old.is_alive());
}

#[test]
fn a_program_that_other_users_can_change_is_refused() {
    let lab = SwitchLab::new();
    std::fs::set_permissions(&lab.new, PermissionsExt::from_mode(0o757)).unwrap();
    let output = lab.to_vipwatch("");
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(text(&output).contains("users other than its owner can write"), "{}", text(&output));
    std::fs::set_permissions(&lab.new, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(lab.roots.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let output = lab.to_vipwatch("");
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(text(&output).contains("can write to the directory"), "{}", text(&output));
}

#[test]
fn a_configuration_that_the_new_program_refuses_is_found_before_the_old_one_ends() {
    let lab = SwitchLab::new();
    let mut router = lab.router(1);
    let config = lab.lab.path().join("extra.conf");
    script(&config, "");
    router.extra = vec![format!("--config-file={}", config.display())];
    let old = start_old(&lab, &router);
    std::fs::set_permissions(&config, PermissionsExt::from_mode(0o666)).unwrap();
    let output = lab.to_vipwatch("");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("the new program would not start"), "{}", text(&output));
    assert!(old.is_alive());
}

#[test]
fn without_root_every_command_is_refused() {
    let lab = SwitchLab::new();
    for command in ["status", "to-vipwatch", "to-neutron"] {
        let mut switch = std::process::Command::new("setpriv");
        switch.args(["--reuid", "65534", "--clear-groups"]);
        // The directory of the build may be closed to other users.
        let program = lab.lab.path().join("vipwatch-neutron-switch");
        let from = env!("CARGO_BIN_EXE_vipwatch-neutron-switch");
        vipwatch_testkit::run(std::process::Command::new("install").arg(from).arg(&program));
        std::fs::set_permissions(lab.lab.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let output = output_of(switch.arg(&program).arg(command));
        assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    }
}

/// Root without `CAP_SYS_PTRACE`, as in many containers, cannot read the executable of a process with more privileges.
#[test]
fn a_monitor_that_cannot_be_examined_is_an_error_and_not_a_missing_row() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let program = lab.lab.path().join("neutron-keepalived-state-change");
    script(&program, "exec 0< /dev/zero; while read -r _; do :; done; sleep 1000");
    let mut child = std::process::Command::new(&program).args(router.arguments()).spawn().unwrap();
    let line =
        || std::fs::read_to_string(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
    vipwatch_testkit::wait_for("the shell", || line().starts_with("/bin/sh\0").then_some(()));
    let status = lab.command("status");
    let mut command = std::process::Command::new("setpriv");
    command.args(["--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]);
    command.arg(status.get_program()).args(status.get_args());
    let output = output_of(&mut command);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let needle = format!("the monitor of router {}", router.id);
    assert!(text(&output).contains(&needle), "{}", text(&output));
    assert!(text(&output).contains("CAP_SYS_PTRACE"), "{}", text(&output));
}

#[test]
fn a_monitor_that_the_pid_file_does_not_name_is_a_doubt() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    std::fs::remove_file(router.pid_file()).unwrap();
    let output = lab.to_vipwatch("");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("does not name its monitor"), "{}", text(&output));
    assert!(old.is_alive());
}

#[test]
fn an_agent_that_would_end_without_a_monitor_stops_the_run_before_anything_is_changed() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let old = start_old(&lab, &router);
    let directory = lab.lab.path().join("neutron");
    std::fs::create_dir(&directory).unwrap();
    let option = "[AGENT]\ncheck_child_processes_action = exit\n";
    script(&directory.join("l3_agent.ini"), option);
    let output = lab.to_vipwatch(&format!("--neutron-config {}", directory.display()));
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(text(&output).contains("check_child_processes_action"), "{}", text(&output));
    assert!(old.is_alive());
}

/// As on a full `/run`: messages are for an error only.
#[test]
fn a_file_for_messages_that_cannot_be_written_does_not_leave_a_router_without_a_monitor() {
    let lab = SwitchLab::new();
    let router = lab.router(1);
    let _old = start_old(&lab, &router);
    let messages = lab.records().join(format!("{}.messages", router.id));
    std::fs::create_dir_all(&messages).unwrap();
    let output = lab.to_vipwatch("--timeout 5");
    let _end = EndOfTest(&router);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(executable(pid_of(&router)), lab.new);
}

#[test]
fn a_dry_run_names_every_monitor_that_cannot_be_replaced() {
    let lab = SwitchLab::new();
    let routers = [1, 2, 3].map(|number| lab.router(number));
    let _old = routers.each_ref().map(|router| start_old(&lab, router));
    for router in &routers[..2] {
        std::fs::remove_file(router.pid_file()).unwrap();
    }
    let output = lab.to_vipwatch("--dry-run");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert_eq!(text(&output).matches("  FAILED").count(), 2, "{}", text(&output));
    assert_eq!(text(&output).matches("  would be replaced").count(), 1, "{}", text(&output));
    assert!(text(&output).contains("2 monitors cannot be replaced"), "{}", text(&output));
}

#[test]
fn a_router_that_is_not_here_is_refused() {
    let lab = SwitchLab::new();
    let output = lab.to_vipwatch("--router 00000000-0000-0000-0000-000000000000");
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(text(&output).contains("no monitor runs for router"), "{}", text(&output));
}
