// SPDX-License-Identifier: Apache-2.0
//! Which instances a node follows when files, namespaces and addresses appear, change and disappear.

use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::routers::{VIP, write_conf};
use vipwatch_testkit::{Lab, NodeFixture, Routers, wait_for};

use crate::support::{
    PROGRAM, fixture_with, instance_conf, node_fixture, query_json, recorded, role, vi_1_conf,
    wait_for_record, wait_for_role, write,
};

#[test]
fn a_new_instance_is_followed_and_an_incomplete_file_changes_nothing() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    let conf = |text: &str| {
        let text = format!("net_namespace {}\n{text}", netns.name());
        write(&fixture.keepalived_conf(), &text);
    };
    // No reload is needed: the node watches the directory of the file.
    let two = vi_1_conf() + &instance_conf("VI_2", "eth0", &["192.0.2.2/24"]);
    conf(&two);
    wait_for_record(&fixture, "VI_2 backup");
    // The file is incomplete: the node follows both instances as before.
    conf(&two[..two.len() - 20]);
    fixture.wait_for_log("is not closed");
    netns.ip("address add 192.0.2.2/24 dev eth0");
    wait_for_record(&fixture, "VI_2 primary");
    node.reload();
    let expected = ["VI_1 backup", "VI_2 backup", "VI_2 primary"];
    assert_eq!(recorded(&fixture), expected, "VI_1 has not changed");
    assert!(fixture.run_text(&["doctor"]).contains("configuration-problem"));
    // The file is complete again and does not contain VI_2.
    conf(&vi_1_conf());
    wait_for("VI_2 to be removed", || {
        (fixture.run(&["status", "VI_2"]).status.code() == Some(4)).then_some(())
    });
    assert_eq!(
        fixture.run(&["doctor"]).status.code(),
        Some(0),
        "{}",
        fixture.run_text(&["doctor"])
    );
}

#[test]
fn an_instance_in_the_configuration_of_vipwatch_is_followed() {
    let lab = Lab::new();
    let netns = lab.netns("own");
    netns.add_link("eth0");
    let fixture = node_fixture(&lab);
    fixture.configure(&format!(
        "[[instance]]\nid = \"mine\"\nnetns = \"{}\"\naddresses = [\"192.0.2.9/24 dev eth0\"]\n",
        netns.name()
    ));
    let _node = fixture.start();
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&fixture, "mine", "primary");
    assert_eq!(query_json(&fixture, &["status"])["instances"][0]["origin"], "vipwatch");
    let shown = fixture.run_text(&["config", "show"]);
    assert!(shown.contains("instance.1.id"), "{shown}");
}

#[test]
fn a_router_that_appears_and_disappears_is_followed_without_a_reload() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    std::fs::create_dir_all(lab.path().join("ha_confs")).unwrap();
    let _node = fixture.start();
    let routers = Routers::new(lab.path(), &format!("r{}", lab.number()), 1, 0);
    let id = routers.each[0].id.clone();
    wait_for("the router to be known", || {
        fixture.run(&["status", &id]).status.success().then_some(())
    });
    routers.each[0].take();
    wait_for_role(&fixture, &id, "primary");
    // The agent writes another address into the file.
    let conf = lab.path().join("ha_confs").join(&id).join("keepalived.conf");
    let text = std::fs::read_to_string(&conf).unwrap().replace(VIP, "169.254.0.9/24");
    write(&conf, &text);
    wait_for("the change of configuration", || {
        let answer = query_json(&fixture, &["status", &id]);
        (answer["instances"][0]["trigger"] == "config").then_some(())
    });
    assert_eq!(role(&fixture, &id), "backup");
    write_conf(lab.path(), &id, &[]);
    wait_for_role(&fixture, &id, "primary");
    std::fs::remove_dir_all(lab.path().join("ha_confs").join(&id)).unwrap();
    wait_for("the router to be removed", || {
        (fixture.run(&["status", &id]).status.code() == Some(4)).then_some(())
    });
}

#[test]
fn one_socket_per_namespace_is_reported_and_works() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[node]\nlisten = \"per-netns\"\n");
    let _node = fixture.start();
    fixture.wait_for_log("using one netlink socket per namespace");
    wait_for("the metric", || {
        let metrics = &query_json(&fixture, &["status"])["metrics"];
        (metrics["vipwatch_netlink_sockets"] == 2).then_some(())
    });
    assert!(fixture.run_text(&["doctor"]).contains("node-one-socket"));
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_role(&fixture, "VI_1", "primary");
    netns.delete();
    wait_for_role(&fixture, "VI_1", "fault");
}

#[test]
fn both_nodes_see_a_failover_of_real_keepalived() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let sides: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let directory = lab.path().join(name);
            std::fs::create_dir_all(&directory).unwrap();
            let netns = lab.netns(name);
            switch.plug(&netns, "eth0", &format!("port-{name}"));
            (netns, directory)
        })
        .collect();
    sides[0].0.ip("address add 192.0.2.1/24 dev eth0");
    sides[1].0.ip("address add 192.0.2.2/24 dev eth0");
    let mut keepaliveds: Vec<Option<Keepalived>> = Vec::new();
    let mut nodes = Vec::new();
    for ((netns, directory), priority) in sides.iter().zip([150, 100]) {
        let keepalived = Keepalived::start(netns, directory, "eth0", "192.0.2.9/24", priority);
        keepaliveds.push(Some(keepalived));
        // The first keepalived must be primary before the second starts, or the order of the starts would decide.
        if keepaliveds.len() == 1 {
            wait_for("the first keepalived to be primary", || {
                netns.addresses("eth0").contains("192.0.2.9/24").then_some(())
            });
        }
        let conf = std::fs::read_to_string(directory.join("keepalived.conf")).unwrap();
        // The node has its own directory and its own copy of the file, with the namespace added.
        let fixture = NodeFixture::new(std::path::Path::new(PROGRAM), &directory.join("node"));
        write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{conf}", netns.name()));
        nodes.push((fixture.start(), fixture));
    }
    let roles = || [role(&nodes[0].1, ""), role(&nodes[1].1, "")];
    wait_for("a primary and a backup", || (roles() == ["primary", "backup"]).then_some(()));
    keepaliveds[0].take().unwrap().kill();
    // A killed keepalived does not remove its address. The other one adds it too, so both nodes hold it.
    wait_for("two primaries", || (roles() == ["primary", "primary"]).then_some(()));
    sides[0].0.ip("address del 192.0.2.9/24 dev eth0");
    wait_for("one primary", || (roles() == ["backup", "primary"]).then_some(()));
}
