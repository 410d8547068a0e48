// SPDX-License-Identifier: Apache-2.0
//! Two nodes with real keepalived: the monitors report the state of the kernel on each node.

use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Behaviour, FakeAgent, Lab, MonitorProcess, Release, Router};

use crate::subject;

const VIP: &str = "169.254.0.1/24";
const PORTS: [&str; 2] = ["port-a", "port-b"];

struct Node {
    keepalived: Option<Keepalived>,
    _monitor: MonitorProcess,
    agent: FakeAgent,
    router: Router,
    _lab: Lab,
}

impl Node {
    fn holds_vip(&self) -> bool {
        self.router.netns.addresses(&self.router.link).contains(VIP)
    }

    fn reports(&self, word: &str) -> bool {
        self.router.state().as_deref() == Some(word)
            && self.agent.words().last().is_some_and(|last| last == word)
    }
}

fn nodes() -> ([Node; 2], BridgeSwitch) {
    let labs = [Lab::new(), Lab::new()];
    let routers = labs.each_ref().map(|lab| {
        let router = Router::new(lab, Release::V29);
        router.netns.ip(&format!("link del {}", router.link));
        router
    });
    let switch = BridgeSwitch::new(&labs[0]);
    for (router, port) in routers.iter().zip(PORTS) {
        switch.plug(&router.netns, &router.link, port);
    }
    let mut addresses = ["192.168.7.1/24", "192.168.7.2/24"].into_iter();
    let mut priorities = [60, 50].into_iter();
    let mut labs = labs.into_iter();
    let nodes = routers.map(|router| {
        let lab = labs.next().unwrap();
        router.netns.ip(&format!("address add {} dev {}", addresses.next().unwrap(), router.link));
        let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
        let monitor = router.start(&subject());
        agent.wait_for_words(&["backup"]);
        let keepalived = Keepalived::start(
            &router.netns,
            &router.conf_dir,
            &router.link,
            VIP,
            priorities.next().unwrap(),
        );
        // keepalived does not preempt here. The first node must be primary before the second one starts, so that the
        // result does not depend on the start times.
        if addresses.len() == 1 {
            let limit = std::time::Duration::from_secs(20);
            vipwatch_testkit::wait::wait_within(limit, "the first node to be primary", || {
                router.netns.addresses(&router.link).contains(VIP).then_some(())
            });
        }
        Node { _lab: lab, router, agent, _monitor: monitor, keepalived: Some(keepalived) }
    });
    (nodes, switch)
}

/// Waits until `primary` is primary and `backup` is backup, in the kernel, the state file and the last notification.
fn wait_for_primary(primary: &Node, backup: &Node) {
    vipwatch_testkit::wait::wait_within(std::time::Duration::from_secs(20), "one primary", || {
        let is_reached = primary.holds_vip()
            && primary.reports("primary")
            && !backup.holds_vip()
            && backup.reports("backup");
        is_reached.then_some(())
    });
}

#[test]
fn a_graceful_stop_makes_the_other_node_primary() {
    let ([mut a, b], _switch) = nodes();
    wait_for_primary(&a, &b);
    a.keepalived.take().unwrap().stop();
    wait_for_primary(&b, &a);
}

#[test]
fn a_cut_link_makes_the_other_node_primary() {
    let ([a, b], switch) = nodes();
    wait_for_primary(&a, &b);
    switch.disconnect(PORTS[0]);
    wait_for_primary(&b, &a);
}

#[test]
fn a_killed_keepalived_leaves_two_primaries_and_both_are_reported() {
    let ([mut a, b], _switch) = nodes();
    wait_for_primary(&a, &b);
    // No process removes the address from the killed node, and the monitor reports what the kernel holds.
    a.keepalived.take().unwrap().kill();
    vipwatch_testkit::wait::wait_within(
        std::time::Duration::from_secs(20),
        "node b to be primary",
        || (b.reports("primary") && b.holds_vip()).then_some(()),
    );
    assert!(a.holds_vip() && a.reports("primary"));
}
