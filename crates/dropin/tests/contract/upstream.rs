// SPDX-License-Identifier: Apache-2.0
//! Neutron's own functional tests of its monitor, run from outside the process and under their original names. They
//! search for the log lines of Neutron's Python monitors.

use vipwatch_testkit::{Behaviour, FakeAgent, Release, peer_of, wait_for};

use crate::{fixture, subject};

fn logs_changes(release: Release) {
    let (_lab, mut router, _agent) = fixture(release);
    router.conntrackd = release == Release::V26;
    let _monitor = router.start(&subject());
    router.wait_for_log("Initial status of router");
    let logs = |word: &str| {
        router.wait_for_log(&format!("Wrote router {} state {word}", router.id));
        if router.conntrackd {
            router.wait_for_log(&format!(
                "Synced connection tracking state on {word} for router {}",
                router.id
            ));
        }
    };
    let word = release.primary();
    router.take_vip();
    logs(word);
    router.drop_vip();
    logs("backup");
}

#[test]
fn test_read_queue_change_state() {
    logs_changes(Release::V29);
}

#[test]
fn test_read_queue_change_state_as_called_by_26_with_conntrackd() {
    logs_changes(Release::V26);
}

#[test]
fn test_read_queue_change_state_as_called_by_15() {
    logs_changes(Release::V15);
}

#[test]
fn test_handle_initial_state_backup() {
    let (_lab, router, _agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    router.wait_for_log(&format!("Initial status of router {} is backup", router.id));
}

#[test]
fn test_handle_initial_state_primary() {
    let (_lab, router, _agent) = fixture(Release::V26);
    router.take_vip();
    let _monitor = router.start(&subject());
    router.wait_for_log(&format!("Initial status of router {} is primary", router.id));
}

#[test]
fn test_handle_initial_state_master() {
    let (_lab, router, _agent) = fixture(Release::V14_0_0);
    router.take_vip();
    let _monitor = router.start(&subject());
    router.wait_for_log(&format!("Initial status of router {} is master", router.id));
}

#[test]
fn test_handle_initial_state_backup_error_reading_initial_status() {
    let (_lab, mut router, agent) = fixture(Release::V26);
    router.take_vip();
    router.cidr = "failed_IP_address".to_owned();
    let _monitor = router.start(&subject());
    router.wait_for_log(&format!("Timeout reading the initial status of router {}", router.id));
    router.wait_for_log(&format!("Initial status of router {} is backup", router.id));
    agent.wait_for_words(&["backup"]);
    assert_eq!(router.state().as_deref(), Some("backup"));
}

#[test]
fn test_conntrackd_disabled() {
    let (_lab, router, _agent) = fixture(Release::V26);
    let _monitor = router.start(&subject());
    router.wait_for_log(&format!("Notified agent router {}", router.id));
    assert!(!router.log().contains("conntrack"), "{}", router.log());
}

#[test]
fn test_parse_and_handle_event_wrong_device_completes_without_error() {
    let (_lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let peer = peer_of(&router.link);
    router.netns.ip(&format!("address add {} dev {peer}", router.cidr));
    router.netns.ip(&format!("address del {} dev {peer}", router.cidr));
    // The monitor has read the events of the other link when it reacts to a later event of the watched link.
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    assert!(monitor.is_alive());
}

#[test]
fn test_parse_and_handle_event_fails_writing_state() {
    let (_lab, router, agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    router.wait_for_state("backup");
    std::fs::rename(&router.conf_dir, router.conf_dir.with_extension("away")).unwrap();
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
    std::fs::rename(router.conf_dir.with_extension("away"), &router.conf_dir).unwrap();
    router.wait_for_state("primary");
}

#[test]
fn test_parse_and_handle_event_fails_notifying_agent() {
    let (lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    drop(agent);
    router.take_vip();
    router.wait_for_state("primary");
    router.drop_vip();
    router.wait_for_state("backup");
    assert!(monitor.is_alive());
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    agent.wait_for_words(&["backup"]);
}

#[test]
fn test_interface_added_after_initialization() {
    let (_lab, router, agent) = fixture(Release::V29);
    router.netns.ip(&format!("link del {}", router.link));
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    router.netns.add_link(&router.link);
    router.take_vip();
    agent.wait_for_words(&["backup", "primary"]);
}

#[test]
fn test_add_and_remove_multiple_ips() {
    let (_lab, router, agent) = fixture(Release::V29);
    let _monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let (editor, link) = router.editor();
    let others: Vec<_> = (1..=100).map(|n| format!("10.9.8.{n}/32").parse().unwrap()).collect();
    for cidr in &others {
        editor.add(link, *cidr);
    }
    router.take_vip();
    for cidr in &others {
        editor.remove(link, *cidr);
    }
    agent.wait_for_words(&["backup", "primary"]);
    assert_eq!(router.state().as_deref(), Some("primary"));
}

#[test]
fn test_add_remove_ip_address_and_interface_for_both_families() {
    for cidr in ["169.254.0.1/24", "fd00:1::5/64"] {
        let (_lab, mut router, agent) = fixture(Release::V29);
        router.cidr = cidr.to_owned();
        router.netns.ip(&format!("link set {} addrgenmode none", router.link));
        let _monitor = router.start(&subject());
        agent.wait_for_words(&["backup"]);
        let (editor, link) = router.editor();
        editor.add(link, cidr.parse().unwrap());
        agent.wait_for_words(&["backup", "primary"]);
        // The kernel removes the addresses of a deleted link.
        router.netns.ip(&format!("link del {}", router.link));
        agent.wait_for_word("backup");
        wait_for("backup in the state file", || {
            (router.state().as_deref() == Some("backup")).then_some(())
        });
    }
}
