// SPDX-License-Identifier: Apache-2.0
//! An instance without addresses (`no_virtual_ipaddress`): its adverts show its role.

use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::{AdvertSender, Lab, TestAdvert, wait_for, wait_showing};

use crate::support::{wait_for_role, write};
use crate::witness::Host;

const CONF: &str = "vrrp_instance VI {\nstate BACKUP\ninterface eth0\nvirtual_router_id 11\n\
                    priority 100\nversion 3\nno_virtual_ipaddress\n}\n";

/// An advert without addresses from 192.0.2.`source`.
fn advert(priority: u8, source: u8) -> TestAdvert {
    let signed = TestAdvert::multicast(11, priority, [192, 0, 2, source], [192, 0, 2, 100]);
    TestAdvert { version: 3, addresses: vec![], key: None, ..signed }
}

#[test]
fn an_instance_without_addresses_has_the_role_that_its_adverts_show() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [other, host] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    write(&host.fixture.keepalived_conf(), CONF);
    let peer = AdvertSender::start(&other.netns, "eth0", advert(150, 10));
    let _node = host.fixture.start();
    // Without a first role that is unknown.
    wait_for("the first role", || host.fixture.log().contains("instance is backup").then_some(()));
    let own = AdvertSender::start(&host.netns, "eth0", advert(200, 11));
    wait_for_role(&host.fixture, "VI", "primary");
    let doctor = || host.fixture.run_text(&["doctor"]);
    let found = |text: &str| {
        wait_showing(text, doctor, || doctor().contains(text).then_some(()));
    };
    found("this node advertises, and 192.0.2.10 (priority 150) does too");
    drop(own);
    wait_for_role(&host.fixture, "VI", "backup");
    drop(peer);
    wait_for_role(&host.fixture, "VI", "unknown");
    found("no-primary");
    let history = host.fixture.run_text(&["history", "VI"]);
    assert!(!history.contains("an address"), "{history}");
    host.netns.ip("link set eth0 down");
    wait_for_role(&host.fixture, "VI", "fault");
    host.netns.ip("link set eth0 up");
    wait_for_role(&host.fixture, "VI", "unknown");
    let log = host.fixture.log();
    for finding in ["partly-held", "address-misplaced", "published-role-wrong", "kernel-not-read"] {
        assert!(!log.contains(finding), "{finding}: {log}");
    }
}
