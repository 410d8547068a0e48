// SPDX-License-Identifier: Apache-2.0
//! Changes appear on the page without a reload.

use vipwatch_testkit::Lab;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};

use crate::support::{
    Page, configure, instance, node_fixture, node_with_instances, web_address, write,
};

/// The configuration of keepalived on one of two hosts.
fn conf(priority: u8) -> String {
    format!(
        "vrrp_instance VI_1 {{\n state BACKUP\n interface eth0\n virtual_router_id 21\n priority {priority}\n \
         advert_int 1\n virtual_ipaddress {{\n  192.0.2.100/24\n }}\n}}\n"
    )
}

#[test]
fn a_failover_of_real_keepalived_appears_without_a_reload_with_its_cause_and_its_latencies() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [own, other] = ["own", "other"].map(|name| {
        let netns = lab.netns(name);
        switch.plug(&netns, "eth0", &format!("p{name}"));
        netns.ip(&format!("address add 192.0.2.{}/24 dev eth0", name.len()));
        netns.ip("route add 224.0.0.0/4 dev eth0");
        netns
    });
    let directory = lab.path().join("other");
    std::fs::create_dir(&directory).unwrap();
    let primary = Keepalived::start_with(&other, &directory, &conf(150));
    let fixture = node_fixture(&lab);
    let states = lab.path().join("states");
    let rule = format!("[[notify]]\nstate_file = \"{}/{{id}}\"\n", states.display());
    configure(&fixture, "127.0.0.1:0", &format!("{rule}[witness]\nenabled = true\n"));
    let text = format!("net_namespace {}\n{}", own.name(), conf(100));
    let _backup = Keepalived::start_with(&own, lab.path(), &text);
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    page.wait_for_text(".tile[data-role=backup] .tile-number", "1");
    page.visit("#/instance/VI_1");
    // With fewer adverts, the node does not know whether it has missed some.
    page.wait_for(
        "adverts of the other host",
        "/192\\.0\\.2\\.5[^]*advertises[^]*([89]|\\d\\d), 0 lost/.test(document.body.innerText)",
    );
    page.mark();
    primary.stop();
    page.wait_for_text("#instance-role .role", "primary");
    page.wait_for_text("#instance-cause", "192.0.2.5 handed over (priority 0)");
    page.wait_for("a latency of the state file", "/^[0-9.]+ (µs|ms|s)$/.test(document.querySelector('[data-stage=file] .sw-value')?.innerText)");
    page.wait_for("bars of both roles", "document.querySelector('.tl-bar.fill-primary') && document.querySelector('.tl-bar.fill-backup')");
    page.click("nav a[data-view=overview]");
    page.wait_for_text(".tile[data-role=primary] .tile-number", "1");
    page.wait_for_text(".rows .grid-row .c-role", "primary");
    page.check_mark();
    page.close();
}

#[test]
fn a_new_instance_a_removed_one_and_a_finding_appear_without_a_reload() {
    let lab = Lab::new();
    let first = instance("VI_1", 1, "eth0", "192.0.2.9/24");
    let (netns, fixture) = node_with_instances(&lab, &first);
    configure(&fixture, "127.0.0.1:0", "[node]\naudit_every = \"10s\"\n");
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    page.wait_for_text(".total", "1 instance");
    page.wait_for_content("Nothing needs attention");
    page.mark();
    let configured = |text: &str| {
        write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{text}", netns.name()));
    };
    configured(&format!("{first}{}", instance("VI_2", 2, "missing", "192.0.2.10/24")));
    page.wait_for_text(".total", "2 instances");
    page.wait_for_text(".tile[data-role=fault] .tile-number", "1");
    page.wait_for_text(".attention-list strong", "link fault");
    page.click("nav a[data-view=findings]");
    page.wait_for_text(".findings .finding[data-name=link-fault] .finding-head a", "VI_2");
    page.wait_for_content("What to do");
    configured(&first);
    page.wait_for("no finding", "document.querySelectorAll('.finding').length === 0");
    page.click("nav a[data-view=overview]");
    page.wait_for_text(".total", "1 instance");
    page.check_mark();
    page.close();
}
