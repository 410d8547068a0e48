// SPDX-License-Identifier: Apache-2.0
//! `vipwatch-neutron-switch` with Neutron's own programs, releases 28 (Python) and 29 (script), and its own agent code.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use vipwatch_testkit::monitor::{children, is_alive, output_of, read_pid};
use vipwatch_testkit::neutron::{Neutron, NeutronAgent};
use vipwatch_testkit::wait::wait_within_showing;
use vipwatch_testkit::{Lab, Release, Router, run, wait_for};

/// Maximum time until the agent applies a state.
const APPLY_TIMEOUT: Duration = Duration::from_mins(1);

struct SwitchLab {
    lab: Lab,
    dropin: PathBuf,
    neutron: PathBuf,
}

impl SwitchLab {
    fn new(neutron: Neutron) -> Self {
        let lab = Lab::new();
        let dropin = std::env::var_os("VIPWATCH_SUBJECT").map(PathBuf::from);
        let dropin = dropin.expect("VIPWATCH_SUBJECT is set by `cargo xtask test`");
        // Neutron's program has the name that the Debian package gives to it.
        let [dropin, neutron] = [
            (dropin, "vipwatch/neutron-keepalived-state-change"),
            (neutron.monitor(), "neutron-keepalived-state-change.neutron"),
        ]
        .map(|(from, name)| {
            let to = lab.path().join(name);
            run(Command::new("install").args(["-D", "-m", "0755"]).arg(from).arg(&to));
            to
        });
        Self { lab, dropin, neutron }
    }

    fn switch(&self, command: &str, program: &PathBuf) -> Output {
        let mut switch = Command::new(env!("CARGO_BIN_EXE_vipwatch-neutron-switch"));
        switch.arg(command).arg("--program").arg(program).stdin(Stdio::null());
        switch.arg("--state-path").arg(self.lab.path());
        switch.arg("--log").arg(self.lab.path().join("switch.log"));
        switch.arg("--records").arg(self.lab.path().join("records"));
        output_of(&mut switch)
    }
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{out}\n{err}", output.status)
}

fn wait_until_applied(agent: &mut NeutronAgent, router: &Router, state: &str) {
    let what = format!("the agent to apply {state}");
    wait_within_showing(
        APPLY_TIMEOUT,
        &what,
        || router.log(),
        || (agent.applied().get(&router.id).map(String::as_str) == Some(state)).then_some(()),
    );
}

/// Whether a process receives the changes of addresses in the router's namespace. Neutron's programs begin with that a moment
/// after they have read the first state, and lose a change between the two.
fn reads_addresses(router: &Router) -> bool {
    let table = output_of(router.netns.command("cat").arg("/proc/net/netlink"));
    // "sk Eth Pid Groups …": `Eth` is 0 for routing messages.
    String::from_utf8_lossy(&table.stdout).lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        matches!(fields.as_slice(), [_, "0", _, groups, ..] if groups.chars().any(|c| c != '0'))
    })
}

/// The agent starts Neutron's monitors; they are replaced by vipwatch, and back. The agent finds each monitor active and
/// has the right state all the time.
fn goes_there_and_back(neutron: Neutron, release: Release) {
    let lab = SwitchLab::new(neutron);
    let routers = [1, 2].map(|number| Router::numbered(&lab.lab, release, number));
    let original = neutron.monitor();
    let mut agent = NeutronAgent::start(&lab.lab, neutron, &original, &routers.each_ref());
    routers[0].take_vip();
    for router in &routers {
        agent.send("enable", router);
        router.wait_for_state(if router.id == routers[0].id { "primary" } else { "backup" });
        wait_for("an active monitor", || (agent.send("active", router) == true).then_some(()));
    }
    if neutron == Neutron::V28 {
        // The script of release 29 does not report its first state.
        wait_until_applied(&mut agent, &routers[0], "primary");
    }
    let before = routers.each_ref().map(|router| read_pid(&router.pid_file()).expect("a pid file"));
    let helpers: Vec<i32> = before.iter().flat_map(|pid| children(*pid)).collect();

    let output = lab.switch("to-vipwatch", &lab.dropin);
    assert!(output.status.success(), "{}", text(&output));
    for pid in before.iter().chain(&helpers) {
        let line = || vipwatch_testkit::monitor::command_line(*pid);
        wait_within_showing(
            APPLY_TIMEOUT,
            "the old monitor and its processes to end",
            line,
            || (!is_alive(*pid)).then_some(()),
        );
    }
    wait_until_applied(&mut agent, &routers[0], "primary");
    wait_until_applied(&mut agent, &routers[1], "backup");
    for router in &routers {
        assert_eq!(agent.send("active", router), true);
        let pid = read_pid(&router.pid_file()).expect("a pid file");
        assert_eq!(agent.send("pid", router), pid);
        assert_eq!(
            std::fs::read_link(format!("/proc/{pid}/exe")).expect("a running process"),
            lab.dropin
        );
        let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("a running process");
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let words: Vec<&str> = environment.split('\0').collect();
        assert!(words.iter().any(|word| word.starts_with("PATH=")), "{words:?}");
        // The Python daemon has lost its environment; the switch restores what the agent has passed.
        let service = "neutron-keepalived-state-change-monitor";
        let tag = format!("PROCESS_TAG={service}-{}.monitor", router.id);
        assert_eq!(words.contains(&tag.as_str()), neutron == Neutron::V28, "{words:?}");
    }
    routers[1].take_vip();
    wait_until_applied(&mut agent, &routers[1], "primary");

    let output = lab.switch("to-neutron", &lab.neutron);
    assert!(output.status.success(), "{}", text(&output));
    for router in &routers {
        assert_eq!(agent.send("active", router), true);
        let pid = read_pid(&router.pid_file()).expect("a pid file");
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).expect("a running process");
        assert_ne!(program, lab.dropin);
        assert_eq!(router.state().as_deref(), Some("primary"));
    }
    // Neutron's new monitor sees a failover. What the agent applies is not checked: it drops two states that reach it within
    // an advert interval, and the new monitor has just reported the first one.
    wait_for("a reader of address changes", || reads_addresses(&routers[1]).then_some(()));
    routers[1].drop_vip();
    routers[1].wait_for_state("backup");
    // The agent stops Neutron's monitor as its own.
    for router in &routers {
        let pid = read_pid(&router.pid_file()).expect("a pid file");
        agent.send("disable", router);
        wait_for("the monitor to end", || (!is_alive(pid)).then_some(()));
    }
}

#[test]
fn monitors_of_release_28_are_replaced_by_vipwatch_and_back() {
    goes_there_and_back(Neutron::V28, Release::V28);
}

#[test]
fn monitors_of_release_29_are_replaced_by_vipwatch_and_back() {
    goes_there_and_back(Neutron::V29, Release::V29);
}

/// The subshell and `ip monitor` of a script that was killed run on, and write the state file beside the next monitor.
#[test]
fn processes_that_a_killed_script_has_left_behind_end_with_its_replacement() {
    let lab = SwitchLab::new(Neutron::V29);
    let router = Router::numbered(&lab.lab, Release::V29, 1);
    let _agent = NeutronAgent::start(&lab.lab, Neutron::V29, &lab.dropin, &[&router]);
    let mut killed = router.start(&Neutron::V29.monitor());
    router.wait_for_state("backup");
    let left =
        wait_for("the subshell and ip", || Some(children(killed.pid)).filter(|all| all.len() == 2));
    killed.signal(rustix::process::Signal::KILL);
    killed.wait_until_gone();
    std::fs::remove_file(router.pid_file()).unwrap();
    let second = router.start(&Neutron::V29.monitor());
    assert!(left.iter().all(|pid| is_alive(*pid)), "the script leaves its processes behind");
    wait_for("the processes of the second script", || {
        (children(second.pid).len() == 2).then_some(())
    });

    let output = lab.switch("to-vipwatch", &lab.dropin);
    assert!(output.status.success(), "{}", text(&output));
    for pid in &left {
        wait_for("the processes of the killed script to end", || (!is_alive(*pid)).then_some(()));
    }
    router.stop();
}
