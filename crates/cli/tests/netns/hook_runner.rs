// SPDX-License-Identifier: Apache-2.0
//! The hook runner: users of hooks, the checked program, the end of everything that a hook has started, and requests
//! that are refused.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use vipwatch_testkit::monitor::{end_of, is_alive};
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for};

use crate::access::as_other_user;
use crate::support::{
    ADD_VIP, PROGRAM, REMOVE_VIP, behind_old_filter, fixture_with, on_old_kernel, read, vi_1_conf,
    wait_for_content, wait_for_role, write_hook,
};

/// Configures one hook, with further keys.
fn configure(fixture: &NodeFixture, program: &Path, keys: &str) {
    let program = program.display();
    fixture.configure(&format!(
        "[[notify]]\n[[notify.hook]]\nname = \"test\"\nprogram = \"{program}\"\n{keys}\n"
    ));
}

/// A hook runner with a socket. Dropping it kills the process.
struct RunnerProcess(Child);

impl Drop for RunnerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The path of a runner's socket, in a directory that other users cannot pass.
fn runner_socket(lab: &Lab) -> PathBuf {
    let directory = lab.path().join("hook-runner");
    std::fs::create_dir(&directory).unwrap();
    set_mode(&directory, 0o700);
    directory.join("socket")
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

/// The command that starts a hook runner with a listening socket, as systemd does.
fn runner_command(fixture: &NodeFixture, socket: &Path) -> Command {
    let listener = UnixListener::bind(socket).unwrap();
    let mut command = Command::new("sh");
    let script =
        "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" hook-runner \"$@\"";
    command.args(["-c", script, PROGRAM, "--config"]).arg(fixture.config());
    command.stdin(std::os::fd::OwnedFd::from(listener));
    command
}

/// Starts a hook runner for the node.
fn start_runner(fixture: &NodeFixture, socket: &Path) -> RunnerProcess {
    RunnerProcess(runner_command(fixture, socket).spawn().unwrap())
}

/// The pids of the children of a process.
fn children(parent: i32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let status = read(&PathBuf::from(format!("/proc/{pid}/status")));
        status.lines().any(|line| line == format!("PPid:\t{parent}"))
    };
    pids.filter(is_child).collect()
}

/// The pids that a hook has written to a file, one on each line.
fn pids(file: &Path) -> Vec<i32> {
    read(file).lines().filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn a_hook_runs_as_its_user_with_the_groups_and_the_home_of_the_user() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let text = "echo ids $(id -u) $(id -g) $(id -G) of $USER in $(pwd); cat | head -c 9";
    let hook = write_hook(&lab.path().join("hook"), text);
    configure(&fixture, &hook, "user = \"nobody\"\ngroup = \"1\"");
    let _node = fixture.start();
    fixture.wait_for_log("hook output: ids 65534 1 1 65534 of nobody in /");
    fixture.wait_for_log("hook output: {\"address");
}

#[test]
fn an_unknown_user_of_a_hook_is_an_error_with_its_position() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let hook = write_hook(&lab.path().join("hook"), "true");
    configure(&fixture, &hook, "user = \"no-such-user\"");
    let config = fixture.config();
    let output = Command::new(PROGRAM).args(["config", "check"]).arg(&config).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(text.contains(&format!("{}:5:8: user: there is no user", config.display())), "{text}");
    assert!(text.contains("write the number"), "{text}");
}

#[test]
fn a_script_is_the_checked_file_although_its_path_leads_to_another_one() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let other = write_hook(&lab.path().join("other"), "echo exchanged");
    let text = format!(
        "mv {} $VIPWATCH_PROGRAM; echo \"first $0 $VIPWATCH_PROGRAM\"; grep -c first $0",
        other.display()
    );
    let hook = write_hook(&lab.path().join("hook"), &text);
    configure(&fixture, &hook, "");
    let _node = fixture.start();
    fixture.wait_for_log("hook output: first /proc/self/fd/");
    fixture.wait_for_log(&format!(" {}", hook.display()));
    fixture.wait_for_log("hook output: 1");
    assert_eq!(read(&hook), "#!/bin/sh\necho exchanged\n");
}

#[test]
fn everything_that_a_hook_has_started_ends_at_its_timeout() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    check_end_at_timeout(&lab, &netns, &fixture);
}

#[test]
fn everything_that_a_hook_has_started_ends_at_its_timeout_on_a_kernel_without_pidfd() {
    let lab = Lab::new();
    let (netns, _) = fixture_with(&lab, &[vi_1_conf()]);
    let fixture = NodeFixture::new(&on_old_kernel(&lab), lab.path());
    check_end_at_timeout(&lab, &netns, &fixture);
}

#[test]
fn everything_that_a_hook_has_started_ends_at_its_timeout_behind_a_filter_without_pidfd() {
    let lab = Lab::new();
    let (netns, _) = fixture_with(&lab, &[vi_1_conf()]);
    let fixture = NodeFixture::new(&behind_old_filter(&lab), lab.path());
    check_end_at_timeout(&lab, &netns, &fixture);
}

fn check_end_at_timeout(lab: &Lab, netns: &TestNetns, fixture: &NodeFixture) {
    let started = lab.path().join("started");
    // Each of the processes has left the session and ignores all signals that can be ignored. For `backup` the program
    // hangs, for `primary` it ends before them.
    let child =
        format!("trap '' TERM HUP INT; echo $$ >> {}; sleep 1000; sleep 1000", started.display());
    let text = format!(
        "for i in 1 2 3; do (setsid sh -c \"(setsid sh -c '{}' &) & \" &); done\n\
         [ $VIPWATCH_TO = primary ] || sleep 1000",
        child.replace('\'', "'\\''").replace('$', "\\$")
    );
    let hook = write_hook(&lab.path().join("hook"), &text);
    configure(fixture, &hook, "timeout = \"8s\"");
    let _node = fixture.start();
    wait_for("three processes", || (pids(&started).len() == 3).then_some(()));
    fixture.wait_for_log("the program took longer than 8000 ms and was killed");
    wait_for("their end", || (!pids(&started).into_iter().any(is_alive)).then_some(()));
    netns.ip(ADD_VIP);
    wait_for("three more", || (pids(&started).len() == 6).then_some(()));
    wait_for("their end", || (!pids(&started).into_iter().any(is_alive)).then_some(()));
    let results = fixture.run_text(&["targets", "-o", "json"]);
    let results: Value = serde_json::from_str(&results).unwrap();
    assert_eq!(results["items"][0]["delivered"], 1, "the hook that ended: {results}");
}

/// Each process starts the next one and ends, so that a list of the processes is out of date at once.
#[test]
fn a_chain_of_processes_that_replace_each_other_ends_at_the_timeout_of_its_hook() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (chain, started) = (lab.path().join("chain"), lab.path().join("started"));
    let next = format!("setsid {} < /dev/null > /dev/null 2>&1 &", chain.display());
    write_hook(&chain, &format!("echo $$ > {}\n{next}", started.display()));
    let hook = write_hook(&lab.path().join("hook"), &format!("{next}\nsleep 1000"));
    configure(&fixture, &hook, "timeout = \"3s\"");
    let node = fixture.start();
    wait_for("the chain", || pids(&started).first().copied());
    fixture.wait_for_log("the program took longer than 3000 ms and was killed");
    let runner = children(node.pid())[0];
    // The supervisor of the run ends when no process is left below it.
    wait_for("the end of the supervisor", || children(runner).is_empty().then_some(()));
    let last = pids(&started);
    assert!(!last.into_iter().any(is_alive));
}

/// A program that connects to a socket as a node does.
fn connect_command(socket: &Path) -> String {
    let connect =
        format!("import socket; socket.socket(socket.AF_UNIX).connect(\"{}\")", socket.display());
    format!("python3 -c '{connect}'")
}

#[test]
fn a_hook_cannot_have_the_runner_run_other_hooks() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let socket = runner_socket(&lab);
    set_mode(lab.path(), 0o755);
    // The hook has the user of the node, which may use the runner.
    let connect = connect_command(&socket);
    let hook = write_hook(&lab.path().join("hook"), &format!("{connect} 2>&1 | tail -n 1"));
    configure(&fixture, &hook, "user = \"nobody\"");
    let mut command = runner_command(&fixture, &socket);
    set_mode(&socket, 0o666);
    let _runner = RunnerProcess(command.args(["--allow", "nobody"]).spawn().unwrap());
    let fixture = fixture.with_variable("VIPWATCH_HOOK_RUNNER", socket.to_str().unwrap());
    let _node = fixture.start();
    fixture.wait_for_log("hook output: PermissionError");
    // Another service has started this process, for example cron.
    let refused = as_other_user(&[], || UnixStream::connect(&socket)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    for (capability, expected) in
        [("dac_override", true), ("dac_read_search", true), ("net_admin", false)]
    {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.arg(format!("--inh-caps=-all,+{capability}"));
        command.arg(format!("--ambient-caps=-all,+{capability}"));
        let status = command.args(["sh", "-c", &connect]).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.success(), expected, "{capability}");
    }
}

#[test]
fn a_runner_does_not_start_without_a_socket_or_with_one_that_other_users_can_reach() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let socket = runner_socket(&lab);
    set_mode(socket.parent().unwrap(), 0o755);
    let text = |mut command: Command| {
        let mut runner = RunnerProcess(command.stderr(Stdio::piped()).spawn().unwrap());
        let status = end_of(&mut runner.0).expect("the runner ends");
        let text = std::io::read_to_string(runner.0.stderr.take().unwrap()).unwrap();
        (status.code(), text)
    };
    let (code, refused) = text(runner_command(&fixture, &socket));
    assert_eq!(code, Some(3), "{refused}");
    assert!(refused.contains("other users can reach") && refused.contains("0700"), "{refused}");
    let mut alone = Command::new(PROGRAM);
    alone.arg("hook-runner").arg("--config").arg(fixture.config());
    let (code, refused) = text(alone);
    assert_eq!(code, Some(4), "{refused}");
    assert!(refused.contains("passed no socket"), "{refused}");
}

#[test]
fn a_hook_runs_again_after_the_runner_of_the_node_was_killed() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let started = lab.path().join("started");
    // The first run hangs, together with a process that has left its session.
    let text = format!(
        "echo $$ >> {0}; [ $(wc -l < {0}) -gt 1 ] && exit 0\n\
         setsid sleep 1000 & exec sleep 1000",
        started.display()
    );
    let hook = write_hook(&lab.path().join("hook"), &text);
    configure(&fixture, &hook, "timeout = \"10m\"");
    let mut node = fixture.start();
    let first = wait_for("the first run", || pids(&started).first().copied());
    let runner = children(node.pid())[0];
    let supervisor = children(runner)[0];
    let in_session = wait_for("its child", || {
        children(supervisor).into_iter().chain(children(first)).find(|pid| *pid != first)
    });
    kill_process(Pid::from_raw(runner).unwrap(), Signal::KILL).unwrap();
    wait_for("the second run", || (pids(&started).len() == 2).then_some(()));
    for pid in [first, in_session, supervisor] {
        wait_for("the end of the first run", || (!is_alive(pid)).then_some(()));
    }
    assert!(node.is_alive());
    fixture.wait_for_log("the hook runner has ended and is started again");
}

#[test]
fn a_hook_and_its_runner_end_with_the_node() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let started = lab.path().join("started");
    let text = format!("setsid sleep 1000 & echo $! > {}; wait", started.display());
    let hook = write_hook(&lab.path().join("hook"), &text);
    configure(&fixture, &hook, "timeout = \"10m\"");
    let node = fixture.start();
    let child = wait_for("the hook", || pids(&started).first().copied());
    let runner = children(node.pid())[0];
    node.kill();
    for pid in [child, runner] {
        wait_for("its end", || (!is_alive(pid)).then_some(()));
    }
}

#[test]
fn a_node_without_hooks_starts_no_runner() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for_role(&fixture, "VI_1", "primary");
    assert_eq!(children(node.pid()), Vec::<i32>::new());
}

#[test]
fn hooks_wait_for_a_runner_that_is_not_there_and_that_is_a_finding() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (socket, output) = (runner_socket(&lab), lab.path().join("output"));
    let text = format!("echo $VIPWATCH_TO >> {}", output.display());
    let hook = write_hook(&lab.path().join("hook"), &text);
    configure(&fixture, &hook, "");
    let fixture = fixture.with_variable("VIPWATCH_HOOK_RUNNER", socket.to_str().unwrap());
    let node = fixture.start();
    let findings = || fixture.run_text(&["doctor"]);
    wait_for("the finding", || findings().contains("node-hook-runner").then_some(()));
    let text = findings();
    assert!(text.contains("cannot reach the hook runner on"), "{text}");
    assert!(text.contains("systemctl status vipwatch-hook-runner.socket"), "{text}");
    let runner = start_runner(&fixture, &socket);
    wait_for_content(&output, "backup");
    wait_for("the end of the finding", || (!findings().contains("node-hook-runner")).then_some(()));
    assert_eq!(children(node.pid()), Vec::<i32>::new(), "the node starts no runner of its own");
    drop(runner);
}

#[test]
fn a_node_that_cannot_see_the_program_of_a_hook_starts_and_the_runner_runs_it() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (socket, output) = (runner_socket(&lab), lab.path().join("output"));
    let hook = lab.path().join("hook");
    configure(&fixture, &hook, "");
    let _runner = start_runner(&fixture, &socket);
    let fixture = fixture.with_variable("VIPWATCH_HOOK_RUNNER", socket.to_str().unwrap());
    // The program is not there for the node, as below /root in its unit.
    let _node = fixture.start();
    fixture.wait_for_log(&format!("cannot open {}", hook.display()));
    write_hook(&hook, &format!("echo $VIPWATCH_TO >> {}", output.display()));
    netns.ip(ADD_VIP);
    wait_for_content(&output, "primary");
}

#[test]
fn a_hook_that_has_changed_in_the_file_runs_after_the_node_has_reloaded_it() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (socket, output) = (runner_socket(&lab), lab.path().join("output"));
    let hook = |name: &str| {
        let text = format!("echo {name} $VIPWATCH_TO >> {}", output.display());
        write_hook(&lab.path().join(name), &text)
    };
    let (old, new) = (hook("old"), hook("new"));
    configure(&fixture, &old, "");
    let _runner = start_runner(&fixture, &socket);
    let fixture = fixture.with_variable("VIPWATCH_HOOK_RUNNER", socket.to_str().unwrap());
    let node = fixture.start();
    wait_for_content(&output, "old backup");
    configure(&fixture, &new, "");
    netns.ip(ADD_VIP);
    wait_for_content(&output, "old backup\nold primary");
    node.reload();
    netns.ip(REMOVE_VIP);
    wait_for_content(&output, "old backup\nold primary\nnew backup");
}

/// Sends a request as another program could, and returns the text of the refusal.
fn refusal(socket: &Path, request: &Value) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let text = request.to_string();
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    // A runner that refuses the user closes the connection before it has read the request.
    let _ = stream.write_all(&[&length[..], text.as_bytes()].concat());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer: Value = serde_json::from_slice(&answer[4..]).unwrap();
    answer["result"]["refused"]["text"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_runner_refuses_programs_that_are_not_configured_and_users_that_are_not_allowed() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (socket, output) = (runner_socket(&lab), lab.path().join("output"));
    let hook = write_hook(&lab.path().join("hook"), "true");
    configure(&fixture, &hook, "user = \"nobody\"");
    let _runner = start_runner(&fixture, &socket);
    let touch = ["/usr/bin/touch", output.to_str().unwrap()];
    let request = |name: &str, program: &[&str], user: &str, version: u32, variable: &str| {
        let timeout = json!({ "secs": 10, "nanos": 0 });
        let group = Value::Null;
        let definition =
            json!({ "program": program, "user": user, "group": group, "timeout": timeout });
        let environment = json!([[variable, "value"]]);
        json!({ "version": version, "source": "node", "hook": name, "definition": definition,
                "input": "", "environment": environment })
    };
    let own = [hook.to_str().unwrap()];
    let variable = "VIPWATCH_TO";
    for (refused, expected) in [
        (request("other", &touch, "root", 1, variable), "no hook with the name \"other\""),
        (request("test", &touch, "nobody", 1, variable), "the hook \"test\" is different in"),
        (request("test", &own, "root", 1, variable), "the hook \"test\" is different in"),
        (request("test", &own, "nobody", 2, variable), "different versions of the protocol"),
        (request("test", &own, "nobody", 1, "LD_PRELOAD"), "no variable \"LD_PRELOAD\""),
        (
            request("test", &own, "nobody", 1, "VIPWATCH_PROGRAM"),
            "no variable \"VIPWATCH_PROGRAM\"",
        ),
        (request("test", &own, "nobody", 1, "VIPWATCH_CONFIG"), "no variable \"VIPWATCH_CONFIG\""),
    ] {
        let text = refusal(&socket, &refused);
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let mut of_other_file = request("other", &own, "nobody", 1, variable);
    of_other_file["file"] = json!("/srv/other.toml");
    let text = refusal(&socket, &of_other_file);
    let own_file = fixture.config().display().to_string();
    assert!(text.contains(&own_file) && text.contains("has read /srv/other.toml"), "{text}");
    assert!(!output.exists());
    set_mode(&socket, 0o777);
    set_mode(socket.parent().unwrap(), 0o755);
    set_mode(lab.path(), 0o755);
    let valid = request("test", &own, "nobody", 1, variable);
    assert_eq!(refusal(&socket, &valid), "", "root may");
    let text = as_other_user(&[], || refusal(&socket, &valid));
    assert!(text.contains("user 65534 may not use the hook runner"), "{text}");
}

#[test]
fn the_check_and_the_runner_agree_about_the_owner_of_a_program() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let socket = runner_socket(&lab);
    set_mode(lab.path(), 0o755);
    let hook = write_hook(&lab.path().join("hook"), "true");
    std::os::unix::fs::chown(&hook, Some(65534), None).unwrap();
    configure(&fixture, &hook, "");
    let _runner = start_runner(&fixture, &socket);
    let foreign = "the program belongs to user 65534, not to root";
    for (user, group, expected) in [
        (None, None, Some(foreign.to_owned())),
        (Some("daemon"), None, Some(format!("{foreign} or user 1"))),
        (Some("nobody"), None, None),
        (Some("nobody"), Some("daemon"), Some(foreign.to_owned())),
    ] {
        let keys = [("user", user), ("group", group)];
        let keys = keys.map(|(key, value)| value.map(|value| format!("{key} = {value:?}\n")));
        configure(&fixture, &hook, &keys.into_iter().flatten().collect::<String>());
        let check = Command::new(PROGRAM).args(["config", "check"]).arg(fixture.config()).output();
        let check = check.unwrap();
        let timeout = json!({ "secs": 10, "nanos": 0 });
        let definition =
            json!({ "program": [hook], "user": user, "group": group, "timeout": timeout });
        let request = json!({ "version": 1, "source": "node", "hook": "test", "input": "",
                              "definition": definition, "environment": [] });
        let refused = refusal(&socket, &request);
        let checked = String::from_utf8_lossy(&check.stderr).into_owned();
        assert_eq!(check.status.success(), expected.is_none(), "{user:?} {group:?}: {checked}");
        match expected {
            Some(text) => {
                assert_eq!(refused, text);
                assert!(checked.contains(&text), "{checked}");
            }
            None => assert_eq!(refused, ""),
        }
    }
}

#[test]
fn a_hook_may_close_its_input_and_is_refused_when_its_directory_is_exposed() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let directory = lab.path().join("directory");
    std::fs::create_dir(&directory).unwrap();
    let hook = write_hook(&directory.join("hook"), "exec 0<&-; echo closed");
    configure(&fixture, &hook, "");
    let _node = fixture.start();
    fixture.wait_for_log("hook output: closed");
    set_mode(&directory, 0o777);
    netns.ip(ADD_VIP);
    let text = format!("can write to the directory {}", directory.display());
    fixture.wait_for_log(&text);
    let check = Command::new(PROGRAM).args(["config", "check"]).arg(fixture.config()).output();
    let check = String::from_utf8(check.unwrap().stderr).unwrap();
    assert!(check.contains(&text), "{check}");
}
