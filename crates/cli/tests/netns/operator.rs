// SPDX-License-Identifier: Apache-2.0
//! What an operator sees on two nodes with real keepalived, after keepalived was killed on the primary.

use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns, wait_for, wait_showing};

use crate::findings::wait_for_findings;
use crate::support::{PROGRAM, wait_for_role};

/// A host with keepalived and a node, which captures adverts and reads processes.
struct Machine {
    fixture: NodeFixture,
    keepalived: Option<Keepalived>,
    netns: TestNetns,
    _node: NodeProcess,
}

impl Machine {
    fn start(lab: &Lab, switch: &BridgeSwitch, number: u8, instance: &str, priority: u8) -> Self {
        let netns = lab.netns(&number.to_string());
        switch.plug(&netns, "eth0", &format!("p{number}"));
        netns.ip(&format!("address add 192.0.2.{number}/24 dev eth0"));
        netns.ip("route add 224.0.0.0/4 dev eth0");
        let directory = lab.path().join(number.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        let fixture = NodeFixture::new(PROGRAM.as_ref(), &directory).on(&netns).with_processes();
        // Both nodes see the processes of this machine: each leaves out those of the other one.
        let other = lab.path().join((21 - number).to_string()).join("*");
        fixture.configure(&format!(
            "[witness]\nenabled = true\n[find]\nexclude = \"{}\"\n",
            other.display()
        ));
        let conf = format!(
            "vrrp_instance {instance} {{\n interface eth0\n virtual_router_id 11\n \
             priority {priority}\n advert_int 1\n virtual_ipaddress {{\n  192.0.2.100/24\n }}\n}}\n"
        );
        let keepalived = Some(Keepalived::start_with(&netns, &directory, &conf));
        let node = fixture.start();
        Self { fixture, keepalived, netns, _node: node }
    }

    fn run(&self, words: &[&str]) -> String {
        self.fixture.run_text(words)
    }
}

#[test]
fn both_nodes_show_that_a_killed_keepalived_has_left_its_address() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let id = format!("SPLIT_{}", lab.number());
    let mut first = Machine::start(&lab, &switch, 10, &id, 150);
    wait_for_role(&first.fixture, &id, "primary");
    let second = Machine::start(&lab, &switch, 11, &id, 100);
    wait_for("adverts of the primary", || {
        second.run(&["show", &id]).contains("priority 150").then_some(())
    });
    first.keepalived.take().unwrap().kill();
    let expected = ["keepalived-gone-address-left", "two-primaries"];
    wait_for_findings(&first.fixture, Some(&id), &expected);
    wait_for_role(&second.fixture, &id, "primary");
    let wait_for_texts = |machine: &Machine, words: &[&str], texts: &[&str]| {
        wait_showing(
            &format!("{texts:?} of {words:?}"),
            || machine.run(words),
            || {
                let printed = machine.run(words);
                texts.iter().all(|text| printed.contains(text)).then_some(())
            },
        );
    };
    // The node with the dead keepalived names the fault, the other node with the same address, and the remedy.
    let dead =
        ["keepalived-gone-address-left", "start keepalived here", "192.0.2.11 (priority 100)"];
    wait_for_texts(&first, &["doctor"], &dead);
    wait_for_texts(&first, &["show", &id], &[&dead[..], &["keepalived      gone"]].concat());
    // The node also finds the keepaliveds of other tests, so that the number of findings may be higher than two.
    let status = ["keepalived-gone-address-left", " critical (`vipwatch doctor`"];
    wait_for_texts(&first, &["status"], &status);
    // The other node took over as it should. Its page says that the former primary did not hand over.
    let stopped = "192.0.2.10 peer, priority 150";
    let left = "has stopped without a hand-over and may still hold the addresses";
    wait_for_texts(&second, &["show", &id], &["role            primary", stopped, left]);
    wait_for_findings(&second.fixture, Some(&id), &[]);
    // The remedy of the hint ends both findings.
    first.netns.ip("address del 192.0.2.100/24 dev eth0");
    wait_for_findings(&first.fixture, Some(&id), &["keepalived-gone"]);
}
