// SPDX-License-Identifier: Apache-2.0
//! The messages of a running service to the service manager and to the log: the status text, SIGUSR1 and SIGUSR2.

use std::process::Command;

use rustix::process::Signal;
use vipwatch_testkit::{Lab, run, wait_for};

use crate::http_server::HttpServer;
use crate::receiver_process::{ReceiverProcess, report};
use crate::support::{ADD_VIP, REMOVE_VIP, fixture_with, vi_1_conf};

#[test]
fn the_status_text_of_a_node_has_the_roles_and_changes_with_them() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip(ADD_VIP);
    let node = fixture.start();
    let wait_for_status = |expected: &str| {
        wait_for(expected, || {
            // Any event lets the main loop run, which sends the text.
            fixture.run(&["silence", "--all", "--for", "1s", "--reason", "x"]);
            let is_expected = |notice: &String| notice.starts_with(expected);
            node.notices().iter().any(is_expected).then_some(())
        });
    };
    netns.ip(REMOVE_VIP);
    wait_for_status("STATUS=1 instance: backup; ");
    netns.ip(ADD_VIP);
    wait_for_status("STATUS=1 instance: primary; ");
}

#[test]
fn sigusr1_writes_one_line_for_each_instance_target_and_thread_to_the_log() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure(
        "[[notify]]\nwebhook = { name = \"pager\", url = \"http://127.0.0.1:9/\", on = [\"primary\"] }\n",
    );
    let node = fixture.start();
    for count in 1..=2 {
        node.signal(Signal::USR1);
        wait_for("the end of the state", || {
            (fixture.log().matches("state ends").count() == count).then_some(())
        });
    }
    let log = fixture.log();
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).collect::<Vec<_>>();
    let instances = lines("state: instance");
    assert_eq!(instances.len(), 2, "{log}");
    assert!(instances[0].contains("VI_1") && instances[0].contains("backup"), "{instances:?}");
    assert!(lines("state: target").iter().any(|line| line.contains("pager")), "{log}");
    assert!(lines("state: thread").iter().any(|line| line.contains("audit")), "{log}");
    assert_eq!(lines("state: queues").len(), 2, "{log}");
}

#[test]
fn sigusr2_begins_and_ends_debug_messages_and_the_log_says_so() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[]);
    fixture.configure(&format!("[[notify]]\nwebhook = {{ url = \"{}\" }}\n", server.url));
    let node = fixture.start();
    let deliver = |change: &str, count: usize| {
        netns.ip(change);
        wait_for("the delivery", || (server.accepted().len() == count).then_some(()));
    };
    let debug_lines = || fixture.log().lines().filter(|line| line.contains("DEBUG")).count();
    wait_for("the first delivery", || (server.accepted().len() == 1).then_some(()));
    deliver(ADD_VIP, 2);
    node.reload();
    assert_eq!(debug_lines(), 0, "{}", fixture.log());
    node.signal(Signal::USR2);
    fixture.wait_for_log("debug messages are logged until the next SIGUSR2");
    deliver(REMOVE_VIP, 3);
    wait_for("a debug message", || (debug_lines() == 1).then_some(()));
    node.signal(Signal::USR2);
    fixture.wait_for_log("debug messages are no longer logged");
    deliver(ADD_VIP, 4);
    node.reload();
    fixture.wait_for_log("configuration reloaded");
    assert_eq!(debug_lines(), 1, "{}", fixture.log());
}

#[test]
fn a_receiver_writes_its_state_to_the_log() {
    let lab = Lab::new();
    let receiver = ReceiverProcess::start(lab.path(), &["--interval", "0s"]);
    assert_eq!(report(lab.path(), "r1", "primary"), Some(200));
    let pid = receiver.child.id().to_string();
    run(Command::new("kill").args(["-USR1", &pid]));
    wait_for("the state", || receiver.log().contains("state ends").then_some(()));
    let log = receiver.log();
    let router = log.lines().find(|line| line.contains("state: router"));
    assert!(router.is_some_and(|line| line.contains("r1")), "{log}");
}
