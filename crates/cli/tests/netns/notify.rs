// SPDX-License-Identifier: Apache-2.0
//! Deliveries of the node to state files, agents and the network.

use serde_json::Value;
use vipwatch_testkit::agent::SocketRemains;
use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::{
    Behaviour, FakeAgent, Lab, NodeFixture, Routers, TestNetns, Wire, run, stays, wait_for,
};

use crate::support::{
    ADD_VIP, REMOVE_VIP, fixture_with, instance_conf, node_fixture, query_json, role, transitions,
    vi_1_conf, wait_for_content, write,
};

#[test]
fn a_state_file_holds_the_role_and_is_removed_with_its_instance() {
    let lab = Lab::new();
    let (netns, fixture) =
        fixture_with(&lab, &[vi_1_conf(), instance_conf("DB", "eth0", &["192.0.2.3/24"])]);
    let states = lab.path().join("states");
    fixture.configure(&format!(
        "[[notify]]\ninstances = \"VI_*\"\nstate_file = \"{}/{{id}}\"\n",
        states.display()
    ));
    let node = fixture.start();
    let file = states.join("VI_1/state");
    wait_for_content(&file, "backup");
    assert!(!states.join("DB").exists(), "no rule matches DB");
    netns.ip(ADD_VIP);
    wait_for_content(&file, "primary");
    netns.ip("link set eth0p down");
    netns.ip(REMOVE_VIP);
    wait_for_content(&file, "fault");
    // A file blocks the path of the directory: the node writes the role once the file is removed.
    std::fs::remove_dir_all(states.join("VI_1")).unwrap();
    write(&states.join("VI_1"), "not a directory");
    netns.ip("link set eth0p up");
    wait_for("the failure to be a finding", || {
        fixture.run_text(&["doctor"]).contains("file-failed").then_some(())
    });
    std::fs::remove_file(states.join("VI_1")).unwrap();
    wait_for_content(&file, "backup");
    wait_for("the finding to end", || {
        (!fixture.run_text(&["doctor"]).contains("file-failed")).then_some(())
    });
    // The node removes the state file of an instance that it does not follow any more.
    let text = format!(
        "net_namespace {}\n{}",
        netns.name(),
        instance_conf("DB", "eth0", &["192.0.2.3/24"])
    );
    write(&fixture.keepalived_conf(), &text);
    wait_for("the file to be removed", || (!file.exists()).then_some(()));
    assert!(node.stop().success());
}

#[test]
fn a_state_file_added_by_a_reload_gets_the_current_role() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip(ADD_VIP);
    let node = fixture.start();
    let states = lab.path().join("states");
    fixture.configure(&format!("[[notify]]\nstate_file = \"{}/{{id}}\"\n", states.display()));
    node.reload();
    wait_for_content(&states.join("VI_1/state"), "primary");
    fixture.configure("");
    node.reload();
    netns.ip(REMOVE_VIP);
    wait_for("the backup role", || (role(&fixture, "VI_1") == "backup").then_some(()));
    assert!(!states.join("VI_1/state").exists(), "the state file of a removed rule is removed");
    // Adding a rule is no change of role: only the two roles are recorded.
    let to = |change: &Value| change["to"].as_str().unwrap().to_owned();
    let recorded = wait_for("the record", || {
        let roles: Vec<String> = transitions(&fixture, &[]).iter().map(to).collect();
        (roles.last()? == "backup").then_some(roles)
    });
    assert_eq!(recorded, ["primary", "backup"]);
}

#[test]
fn floating_addresses_that_are_added_later_are_announced() {
    let lab = Lab::new();
    let id = format!("f{}-{}", std::process::id(), lab.number());
    let (router, peer) = (TestNetns::create(&format!("qrouter-{id}")), lab.netns("p"));
    let switch = BridgeSwitch::new(&lab);
    switch.plug(&router, "eth0", "port-r");
    switch.plug(&peer, "eth0", "port-p");
    let fixture: NodeFixture = node_fixture(&lab);
    // 192.0.2.1 decides the role; the floating address 192.0.2.77 does not.
    let conf = "vrrp_instance R {\n interface eth0\n virtual_router_id 1\n virtual_ipaddress {\n 192.0.2.1/24 dev eth0\n }\n \
                virtual_ipaddress_excluded {\n 192.0.2.77/32 dev eth0\n }\n}\n";
    write(&lab.path().join("ha_confs").join(&id).join("keepalived.conf"), conf);
    fixture.configure(
        "[[notify]]\norigin = \"neutron\"\n\
         announce = { count = 3, gap = \"100ms\", second_burst = \"0s\" }\n",
    );
    let _node = fixture.start();
    let wire = Wire::tap(&peer, "eth0");
    router.ip("address add 192.0.2.1/24 dev eth0");
    wire.wait_for("192.0.2.1", 2);
    router.ip("address add 192.0.2.77/32 dev eth0");
    wire.wait_for("192.0.2.77", 2);
    // Without a carrier the announcement waits until the link has one.
    router.ip("address del 192.0.2.1/24 dev eth0");
    wait_for("the backup role", || (role(&fixture, &id) == "backup").then_some(()));
    switch.disconnect("port-r");
    router.ip("address add 192.0.2.1/24 dev eth0");
    wait_for("the primary role", || (role(&fixture, &id) == "primary").then_some(()));
    let before = wire.frames().len();
    switch.reconnect("port-r");
    wait_for("the frames", || (wire.frames().len() >= before + 4).then_some(()));
}

#[test]
fn neutron_routers_are_only_observed_unless_a_rule_names_their_origin() {
    let lab = Lab::new();
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    let routers = Routers::new(lab.path(), &format!("o{}", lab.number()), 1, 0);
    let router = &routers.each[0];
    let fixture = node_fixture(&lab);
    let socket = lab.path().join("keepalived-state-change");
    let rule = |origin: &str| {
        let states = lab.path().join("states");
        format!(
            "[[notify]]\n{origin}state_file = \"{}/{{id}}\"\nagent = \"{}\"\n",
            states.display(),
            socket.display()
        )
    };
    fixture.configure(&rule(""));
    let node = fixture.start();
    router.take();
    wait_for("the primary role", || (role(&fixture, &router.id) == "primary").then_some(()));
    assert_eq!(agent.count(), 0);
    assert!(!lab.path().join("states").exists());
    assert!(!lab.path().join("ha_confs").join(&router.id).join("state").exists());
    fixture.configure(&rule("origin = \"neutron\"\n"));
    node.reload();
    agent.wait_for_words(&["primary"]);
    assert_eq!(agent.last().unwrap().router(), router.id);
    router.give_up();
    agent.wait_for_word("backup");
    wait_for("the acknowledgement of the agent", || {
        let agent = &query_json(&fixture, &["status"])["instances"][0]["agent"];
        (agent["acknowledged"] == "backup").then_some(())
    });
}

#[test]
fn an_agent_gets_the_current_states_when_it_starts_and_when_it_restarts() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("a{}", lab.number()), 3, 0);
    let fixture = node_fixture(&lab);
    let socket = lab.path().join("keepalived-state-change");
    fixture.configure(&format!(
        "[[notify]]\norigin = \"neutron\"\nagent = \"{}\"\n",
        socket.display()
    ));
    let _node = fixture.start();
    for router in &routers.each {
        router.take();
    }
    wait_for("the finding", || {
        fixture.run_text(&["doctor"]).contains("agent-behind").then_some(())
    });
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    wait_for("all three states", || (agent.count() >= 3).then_some(()));
    assert!(agent.requests().iter().all(|request| request.word() == "primary"));
    agent.stop(SocketRemains::Nothing);
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    wait_for("all three states at the new agent", || (agent.count() >= 3).then_some(()));
}

#[test]
fn addresses_are_announced_when_their_instance_becomes_primary() {
    let lab = Lab::new();
    let (router, peer): (TestNetns, TestNetns) = (lab.netns("r"), lab.netns("p"));
    let switch = BridgeSwitch::new(&lab);
    switch.plug(&router, "eth0", "port-r");
    switch.plug(&peer, "eth0", "port-p");
    let fixture: NodeFixture = node_fixture(&lab);
    let conf = instance_conf("VI_1", "eth0", &["192.0.2.9/24", "192.0.2.10/32"]);
    write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{conf}", router.name()));
    fixture.configure(ANNOUNCE_ONCE);
    let _node = fixture.start();
    let wire = Wire::tap(&peer, "eth0");
    router.ip("address add 192.0.2.9/24 dev eth0");
    wait_for("the partial role", || (role(&fixture, "VI_1") == "partial").then_some(()));
    assert!(wire.frames().is_empty(), "a partial instance is not announced");
    router.ip("address add 192.0.2.10/32 dev eth0");
    wire.wait_for("192.0.2.9", 2);
    wire.wait_for("192.0.2.10", 2);
    wait_for("the latency", || {
        let latencies = &query_json(&fixture, &["status"])["instances"][0]["latencies"];
        latencies["announce"].as_i64().filter(|micros| *micros > 0)
    });
    // The packet sockets of the announcer do not keep the namespace alive.
    let name = router.name().to_owned();
    router.delete();
    wait_for("the fault role", || (role(&fixture, "VI_1") == "fault").then_some(()));
    stays(std::time::Duration::from_millis(50), &name, || role(&fixture, "VI_1") == "fault");
}

/// One round of announcements.
const ANNOUNCE_ONCE: &str = "[[notify]]\nannounce = { count = 1, second_burst = \"0s\" }\n";

#[test]
fn a_completed_announcement_is_not_repeated_after_a_restart() {
    let lab = Lab::new();
    let (router, peer): (TestNetns, TestNetns) = (lab.netns("r"), lab.netns("p"));
    let switch = BridgeSwitch::new(&lab);
    switch.plug(&router, "eth0", "port-r");
    switch.plug(&peer, "eth0", "port-p");
    let fixture: NodeFixture = node_fixture(&lab);
    write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{}", router.name(), vi_1_conf()));
    fixture.configure(ANNOUNCE_ONCE);
    let node = fixture.start();
    let wire = Wire::tap(&peer, "eth0");
    router.ip(ADD_VIP);
    wire.wait_for("192.0.2.9", 2);
    // Before all rounds were sent, a restart repeats the announcement.
    assert!(node.stop().success());
    let before = wire.frames().len();
    let node = fixture.start();
    wait_for("the announcement", || (wire.frames().len() >= before + 2).then_some(()));
    wait_for("the completed announcement", || {
        let mut sqlite = std::process::Command::new("sqlite3");
        let query = "SELECT outcome FROM delivery WHERE target = 'announce' AND instance = 'VI_1'";
        let outcome = run(sqlite.arg(fixture.state_dir().join("history.sqlite")).arg(query));
        (outcome.trim() == "delivered").then_some(())
    });
    assert!(node.stop().success());
    let before = wire.frames().len();
    let _node = fixture.start();
    wait_for("the primary role", || (role(&fixture, "VI_1") == "primary").then_some(()));
    stays(std::time::Duration::from_secs(1), "no frame", || wire.frames().len() == before);
    router.ip(REMOVE_VIP);
    wait_for("the backup role", || (role(&fixture, "VI_1") == "backup").then_some(()));
    router.ip(ADD_VIP);
    wait_for("the announcement", || (wire.frames().len() >= before + 2).then_some(()));
}

#[test]
fn a_reload_announces_a_primary_again_only_if_its_announcements_or_addresses_have_changed() {
    let lab = Lab::new();
    let (router, peer): (TestNetns, TestNetns) = (lab.netns("r"), lab.netns("p"));
    let switch = BridgeSwitch::new(&lab);
    switch.plug(&router, "eth0", "port-r");
    switch.plug(&peer, "eth0", "port-p");
    let fixture: NodeFixture = node_fixture(&lab);
    let conf = |vips: &[&str]| {
        // The announcer takes the orders of one turn by their id: those of Z after those of VI_1.
        let (first, last) =
            (instance_conf("VI_1", "eth0", vips), instance_conf("Z", "eth0", &["192.0.2.99/24"]));
        format!("net_namespace {}\n{first}{last}", router.name())
    };
    write(&fixture.keepalived_conf(), &conf(&["192.0.2.9/24"]));
    fixture.configure(ANNOUNCE_ONCE);
    let node = fixture.start();
    let wire = Wire::tap(&peer, "eth0");
    router.ip(ADD_VIP);
    wire.wait_for("192.0.2.9", 2);
    let states = lab.path().join("states");
    let state_file = format!("state_file = \"{}/{{id}}\"\n", states.display());
    fixture.configure(&format!("{ANNOUNCE_ONCE}{state_file}"));
    node.reload();
    wait_for_content(&states.join("VI_1/state"), "primary");
    router.ip("address add 192.0.2.99/24 dev eth0");
    wire.wait_for("192.0.2.99", 2);
    assert_eq!(wire.announcements("192.0.2.9").len(), 2, "only the state file is new");
    // The instance is primary before and after its configuration gets another address.
    router.ip("address add 192.0.2.10/32 dev eth0");
    write(&fixture.keepalived_conf(), &conf(&["192.0.2.9/24", "192.0.2.10/32"]));
    wire.wait_for("192.0.2.10", 2);
    let before = wire.wait_for("192.0.2.9", 4).len();
    let twice = ANNOUNCE_ONCE.replace("count = 1", "count = 2");
    fixture.configure(&format!("{twice}{state_file}"));
    node.reload();
    wire.wait_for("192.0.2.9", before + 4);
}

#[test]
fn the_row_of_an_announcement_is_deleted_when_its_instance_or_its_rule_is_gone() {
    let lab = Lab::new();
    let (router, fixture) = fixture_with(&lab, &[]);
    let conf = |names: &[&str]| {
        let instances = names.iter().map(|name| {
            let address = format!("192.0.2.{}/24", name.len());
            instance_conf(name, "eth0", &[&address])
        });
        format!("net_namespace {}\n{}", router.name(), instances.collect::<String>())
    };
    write(&fixture.keepalived_conf(), &conf(&["A", "BB", "CCC"]));
    fixture.configure(ANNOUNCE_ONCE);
    let node = fixture.start();
    for n in 1..=3 {
        router.ip(&format!("address add 192.0.2.{n}/24 dev eth0"));
    }
    let wait_for_rows = |expected: &str| {
        wait_for(&format!("rows {expected:?}"), || {
            let mut sqlite = std::process::Command::new("sqlite3");
            let query = "SELECT group_concat(instance) FROM (SELECT instance FROM delivery \
                         WHERE target = 'announce' ORDER BY instance)";
            let rows = run(sqlite.arg(fixture.state_dir().join("history.sqlite")).arg(query));
            (rows.trim() == expected).then_some(())
        });
    };
    wait_for_rows("A,BB,CCC");
    let rule = "[[notify]]\ninstances = [\"BB\", \"CCC\"]\n";
    fixture.configure(&ANNOUNCE_ONCE.replace("[[notify]]\n", rule));
    node.reload();
    wait_for_rows("BB,CCC");
    write(&fixture.keepalived_conf(), &conf(&["A", "CCC"]));
    wait_for_rows("CCC");
    assert!(node.stop().success());
    write(&fixture.keepalived_conf(), &conf(&["A"]));
    let _node = fixture.start();
    wait_for_rows("");
}
