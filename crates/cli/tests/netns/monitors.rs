// SPDX-License-Identifier: Apache-2.0
//! A thousand monitors report to `vipwatch receiver` at the same time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::release::MonitorCall;
use vipwatch_testkit::routers::{LINK, VIP};
use vipwatch_testkit::wait::wait_within;
use vipwatch_testkit::{Lab, Release, Routers};

use crate::receiver_process::{ReceiverProcess, socket};
use crate::support::PROGRAM;

const MONITORS: usize = 1000;

/// Time limit for a step with a thousand processes on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_mins(2);

/// Processes that are killed when dropped.
#[derive(Default)]
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// The path of the drop-in, which is built in the same directory as `vipwatch`.
fn dropin() -> PathBuf {
    let path = Path::new(PROGRAM).with_file_name("neutron-keepalived-state-change");
    assert!(path.exists(), "{} is not built; hint: run `cargo xtask test`", path.display());
    path
}

/// Starts the drop-in for one router, with the options of Neutron 29.
fn start_monitor(directory: &Path, id: &str, netns: &str) -> Child {
    let (conf_dir, pids) = (directory.join("ha_confs").join(id), directory.join("external/pids"));
    std::fs::create_dir_all(&pids).unwrap();
    let call = MonitorCall {
        router: id,
        netns,
        conf_dir: &conf_dir,
        link: LINK,
        cidr: VIP,
        pids: &pids,
        state_path: directory,
        user: 0,
        group: 0,
        conntrackd: false,
        debug: false,
    };
    Command::new(dropin())
        .args(Release::V29.arguments(&call))
        .arg("--foreground")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn reports_of_a_thousand_monitors_survive_kills_of_the_receiver() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("t{}", lab.number()), MONITORS, 0);
    let mut receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    let mut processes = Processes::default();
    for router in &routers.each {
        processes.0.push(start_monitor(lab.path(), &router.id, router.netns.name()));
    }
    let all_settled = |receiver: &ReceiverProcess, state: &str| {
        (receiver.count_settled(state) == MONITORS).then_some(())
    };
    wait_within(STEP_TIMEOUT, "all routers to be backup", || all_settled(&receiver, "backup"));
    for (state, is_held, is_killed) in
        [("primary", true, false), ("backup", false, true), ("primary", true, true)]
    {
        for router in &routers.each {
            if is_held { router.take() } else { router.give_up() }
        }
        if is_killed {
            wait_within(STEP_TIMEOUT, "a tenth of the routers", || {
                (receiver.count_settled(state) > MONITORS / 10).then_some(())
            });
            receiver.kill();
            receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
        }
        wait_within(STEP_TIMEOUT, state, || all_settled(&receiver, state));
    }
}

#[test]
fn a_thousand_simultaneous_curl_reports_are_all_accepted() {
    let lab = Lab::new();
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    for state in ["backup", "primary"] {
        let mut processes = Processes::default();
        for number in 0..MONITORS {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--fail", "--output", "/dev/null", "-X", "POST"]);
            curl.args(["-H", &format!("X-Neutron-Router-Id: r{number}")]);
            curl.args(["-H", &format!("X-Neutron-State: {state}")]);
            // The monitor script of Neutron 29 sends this header too.
            curl.args(["-H", "Connection: close", "--unix-socket"]).arg(socket(lab.path()));
            processes.0.push(curl.arg("http://127.0.0.1/").spawn().unwrap());
        }
        for curl in &mut processes.0 {
            assert!(curl.wait().unwrap().success(), "a report was lost");
        }
        assert_eq!(receiver.count_settled(state), MONITORS);
    }
    assert_eq!(receiver.status()["accepted"], 2 * MONITORS);
}
