//! A thousand real monitors report to `vipwatch agent` at once.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_testkit::release::MonitorCall;
use vipwatch_testkit::routers::{LINK, VIP};
use vipwatch_testkit::wait::wait_within;
use vipwatch_testkit::{Lab, Release, Routers};

use crate::PROGRAM;
use crate::receiver::{ReceiverProcess, socket};

const ALL: usize = 1000;

/// For a thousand of anything, on a busy machine.
const LONG: Duration = Duration::from_mins(2);

/// Processes that are killed when dropped.
#[derive(Default)]
struct Crowd(Vec<Child>);

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Our drop-in, which is built beside the program.
fn dropin() -> PathBuf {
    let path = Path::new(PROGRAM).with_file_name("neutron-keepalived-state-change");
    assert!(path.exists(), "{} is not built; hint: run `cargo xtask test`", path.display());
    path
}

fn monitor(directory: &Path, id: &str, netns: &str) -> Child {
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
fn a_thousand_of_our_monitors_report_at_once_and_the_receiver_is_killed_meanwhile() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("t{}", lab.number()), ALL, 0);
    let mut agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    let mut crowd = Crowd::default();
    for router in &routers.each {
        crowd.0.push(monitor(lab.path(), &router.id, router.netns.name()));
    }
    let settled = |agent: &ReceiverProcess, word: &str| (agent.settled(word) == ALL).then_some(());
    wait_within(LONG, "all to be backup", || settled(&agent, "backup"));
    for (word, is_taken, is_killed) in
        [("primary", true, false), ("backup", false, true), ("primary", true, true)]
    {
        for router in &routers.each {
            if is_taken { router.take() } else { router.give_up() }
        }
        if is_killed {
            wait_within(LONG, "some", || (agent.settled(word) > ALL / 10).then_some(()));
            agent.kill();
            agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
        }
        wait_within(LONG, word, || settled(&agent, word));
    }
}

#[test]
fn a_thousand_curls_report_at_once_and_none_is_lost() {
    let lab = Lab::new();
    let agent = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    for word in ["backup", "primary"] {
        let mut crowd = Crowd::default();
        for number in 0..ALL {
            let mut curl = Command::new("curl");
            curl.args(["--silent", "--fail", "--output", "/dev/null", "-X", "POST"]);
            curl.args(["-H", &format!("X-Neutron-Router-Id: r{number}")]);
            curl.args(["-H", &format!("X-Neutron-State: {word}")]);
            // As the script of Neutron 29 does.
            curl.args(["-H", "Connection: close", "--unix-socket"]).arg(socket(lab.path()));
            crowd.0.push(curl.arg("http://127.0.0.1/").spawn().unwrap());
        }
        for curl in &mut crowd.0 {
            assert!(curl.wait().unwrap().success(), "a report was lost");
        }
        assert_eq!(agent.settled(word), ALL);
    }
    assert_eq!(agent.status()["accepted"], 2 * ALL);
}
