// SPDX-License-Identifier: Apache-2.0
//! Which addresses and links make a router primary, and which do not.

use std::time::Duration;

use rustix::process::Signal;
use vipwatch_testkit::wait::stays_showing;
use vipwatch_testkit::{FakeAgent, MonitorProcess, Release, Router, peer_of, stays, wait_for};

use crate::{fixture, subject};

/// How long a state must stay unchanged to count as stable.
const SETTLE_TIME: Duration = Duration::from_millis(300);

/// Starts a monitor that watches `cidr`, and waits for its first state.
fn watched(cidr: &str) -> (vipwatch_testkit::Lab, Router, FakeAgent, MonitorProcess) {
    let (lab, mut router, agent) = fixture(Release::V29);
    cidr.clone_into(&mut router.cidr);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    (lab, router, agent, monitor)
}

/// Checks that the agent received exactly these states, and receives no other one for [`SETTLE_TIME`].
fn stays_at(router: &Router, agent: &FakeAgent, words: &[&str]) {
    let diagnostics = || format!("{:?}; log:\n{}", agent.words(), router.log());
    stays_showing(SETTLE_TIME, &format!("{words:?}"), diagnostics, || agent.words() == words);
}

#[test]
fn another_prefix_length_is_another_address() {
    let (_lab, router, agent, _monitor) = watched("169.254.0.1/24");
    router.netns.ip(&format!("address add 169.254.0.1/32 dev {}", router.link));
    stays_at(&router, &agent, &["backup"]);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
}

#[test]
fn any_notation_of_an_ipv6_address_matches() {
    let (_lab, router, agent, _monitor) = watched("FD00:0001:0:0::00AB/64");
    router.netns.ip(&format!("address add fd00:1::ab/64 dev {} nodad", router.link));
    agent.wait_for_words(&["backup", "primary"]);
    router.netns.ip(&format!("address del fd00:1::ab/64 dev {}", router.link));
    agent.wait_for_word("backup");
}

#[test]
fn an_address_refresh_does_not_change_the_state() {
    let (_lab, router, agent, _monitor) = watched("169.254.0.1/24");
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().unwrap();
    editor.add(link, vip);
    agent.wait_for_words(&["backup", "primary"]);
    // The state followed another one closely, so that it is sent once more. That request is expected.
    let confirmed = agent.words().len() + 1;
    for _ in 0..20 {
        editor.refresh(link, vip);
    }
    router.netns.ip(&format!(
        "address change {} dev {} valid_lft 500 preferred_lft 400",
        router.cidr, router.link
    ));
    stays(SETTLE_TIME, "one notification", || agent.words().len() <= confirmed);
    router.wait_for_log(&format!("Wrote router {} state primary", router.id));
    assert_eq!(router.log().matches("Wrote router").count(), 2, "{}", router.log());
}

#[test]
fn an_ipv6_address_counts_once_and_only_after_duplicate_address_detection() {
    let (_lab, router, agent, _monitor) = watched("fd00:1::5/64");
    router.netns.ip(&format!("address add fd00:1::5/64 dev {}", router.link));
    wait_for("the end of duplicate address detection", || {
        // No primary may be sent while the kernel still marks the address as tentative.
        let is_primary = agent.words().len() > 1;
        let text = router.netns.addresses(&router.link);
        let is_tentative = text.lines().any(|l| l.contains("fd00:1::5") && l.contains("tentative"));
        assert!(!(is_primary && is_tentative), "primary was sent too early");
        (!is_tentative).then_some(())
    });
    agent.wait_for_words(&["backup", "primary"]);
    router.wait_for_log(&format!("Notified agent router {}, state primary", router.id));
    assert_eq!(router.log().matches("state primary").count(), 2, "written once, sent once");
}

#[test]
fn a_duplicate_ipv6_address_never_counts() {
    let (lab, mut router, agent) = fixture(Release::V29);
    let other = lab.netns("other");
    // The other end of the link, in another namespace, already has the address.
    let peer = peer_of(&router.link);
    router.netns.ip(&format!("link set {peer} netns {}", other.name()));
    other.ip(&format!("link set {peer} up"));
    other.ip(&format!("address add fd00:1::5/64 dev {peer} nodad"));
    router.cidr = "fd00:1::5/64".to_owned();
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.netns.ip(&format!("address add fd00:1::5/64 dev {}", router.link));
    wait_for("the kernel to find the duplicate", || {
        router.netns.addresses(&router.link).contains("dadfailed").then_some(())
    });
    stays_at(&router, &agent, &["backup"]);
    assert_eq!(router.state().as_deref(), Some("backup"));
}

#[test]
fn a_link_deleted_and_created_again_under_the_same_name_is_watched() {
    let (_lab, router, agent, _monitor) = watched("169.254.0.1/24");
    router.take_vip();
    router.wait_for_state("primary");
    router.netns.ip(&format!("link del {}", router.link));
    router.wait_for_state("backup");
    router.netns.add_link(&router.link);
    router.take_vip();
    router.wait_for_state("primary");
    agent.wait_for_word("primary");
}

#[test]
fn renaming_the_link_away_means_backup_and_renaming_it_back_means_primary() {
    let (_lab, router, agent, _monitor) = watched("169.254.0.1/24");
    router.take_vip();
    router.wait_for_state("primary");
    let rename = |from: &str, to: &str| {
        router.netns.ip(&format!("link set {from} down"));
        router.netns.ip(&format!("link set {from} name {to}"));
    };
    rename(&router.link, "elsewhere");
    router.wait_for_state("backup");
    agent.wait_for_word("backup");
    rename("elsewhere", &router.link);
    router.wait_for_state("primary");
    agent.wait_for_word("primary");
}

#[test]
fn a_link_that_is_renamed_to_the_watched_name_is_watched() {
    let (_lab, router, agent, _monitor) = watched("169.254.0.1/24");
    let peer = peer_of(&router.link);
    router.netns.ip(&format!("address add {} dev {peer}", router.cidr));
    stays_at(&router, &agent, &["backup"]);
    router.netns.ip(&format!("link set {} down", router.link));
    router.netns.ip(&format!("link set {} name old", router.link));
    router.netns.ip(&format!("link set {peer} down"));
    router.netns.ip(&format!("link set {peer} name {}", router.link));
    router.wait_for_state("primary");
    agent.wait_for_word("primary");
}

#[test]
fn a_link_that_leaves_a_bridge_still_exists() {
    let (_lab, router, agent, _monitor) = watched("169.254.0.1/24");
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    router.netns.ip("link add br0 type bridge");
    router.netns.ip(&format!("link set {} master br0", router.link));
    router.netns.ip(&format!("link set {} nomaster", router.link));
    stays(SETTLE_TIME, "primary", || router.state().as_deref() == Some("primary"));
    assert!(!router.log().contains("link created, renamed or deleted"), "{}", router.log());
}

#[test]
fn the_state_is_correct_after_more_events_than_the_queue_holds() {
    let (_lab, router, agent, monitor) = watched("169.254.0.1/24");
    let (editor, link) = router.editor();
    let vip = router.cidr.parse().unwrap();
    // The stopped monitor does not read, so that the kernel's queue overflows.
    monitor.signal(Signal::STOP);
    for _ in 0..15 {
        let others: Vec<_> = (0..500)
            .map(|n: u32| format!("10.{}.{}.1/32", n / 250, n % 250).parse().unwrap())
            .collect();
        for cidr in &others {
            editor.add(link, *cidr);
        }
        editor.add(link, vip);
        for cidr in &others {
            editor.remove(link, *cidr);
        }
        editor.remove(link, vip);
    }
    editor.add(link, vip);
    monitor.signal(Signal::CONT);
    router.wait_for_state("primary");
    agent.wait_for_word("primary");
    router.wait_for_log(&format!("Wrote router {} state primary", router.id));
    assert!(router.log().contains("Lost events"), "the queue did not overflow");
    assert_eq!(
        router.log().matches("is primary").count(),
        1,
        "one change of state: {}",
        router.log()
    );
}

#[test]
fn the_audit_restores_a_state_file_that_another_process_changed() {
    let (_lab, router, _agent) = fixture(Release::V29);
    let mut command = router.command(&subject());
    let child = command.args(["--audit_interval", "1"]).spawn().unwrap();
    router.wait_for_state("backup");
    router.take_vip();
    router.wait_for_state("primary");
    std::io::Write::write_all(
        &mut std::fs::File::create(router.conf_dir.join("state")).unwrap(),
        b"backup",
    )
    .unwrap();
    router.wait_for_state("primary");
    assert!(!router.log().contains("disagreed"), "{}", router.log());
    crate::reap(child);
}

#[test]
fn a_monitor_exits_when_its_namespace_is_deleted() {
    let (_lab, router, agent, mut monitor) = watched("169.254.0.1/24");
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    vipwatch_testkit::run(std::process::Command::new("ip").args([
        "netns",
        "del",
        router.netns.name(),
    ]));
    agent.wait_for_word("backup");
    monitor.wait_until_gone();
    router.wait_for_state("backup");
    assert!(!router.pid_file().exists());
}
