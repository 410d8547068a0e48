// SPDX-License-Identifier: Apache-2.0
//! `vipwatch announce`: which addresses it selects.

use std::process::{Command, Output};

use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, TestNetns, Wire};

use crate::support::{PROGRAM, write_with_mode};

/// A namespace with two instances, a peer that receives the announcements, and a configuration that names both.
struct AnnounceFixture {
    lab: Lab,
    router: TestNetns,
    wire: Wire,
    _peer: TestNetns,
    _switch: BridgeSwitch,
}

impl AnnounceFixture {
    fn new() -> Self {
        let lab = Lab::new();
        let (router, peer) = (lab.netns("r"), lab.netns("p"));
        let switch = BridgeSwitch::new(&lab);
        switch.plug(&router, "eth0", "port-r");
        switch.plug(&peer, "eth0", "port-p");
        for ip in ["192.0.2.9", "192.0.2.10", "192.0.2.11"] {
            router.ip(&format!("address add {ip}/24 dev eth0"));
        }
        let instance = |id: &str, ip: &str| {
            let netns = router.name();
            format!(
                "[[instance]]\nid = {id:?}\nnetns = {netns:?}\naddresses = [\"{ip}/24 dev eth0\"]\n"
            )
        };
        let text = [instance("web-1", "192.0.2.9"), instance("web-10", "192.0.2.10")].concat();
        let none = lab.path().join("none");
        let none = none.display();
        let text = format!(
            "[find]\nneutron_state_path = \"{none}\"\nkeepalived_conf = \"{none}\"\n{text}"
        );
        write_with_mode(&lab.path().join("vipwatch.toml"), &text, 0o640);
        let wire = Wire::tap(&peer, "eth0");
        Self { lab, router, wire, _peer: peer, _switch: switch }
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(["announce", "--count", "1"]).args(args);
        output_of(command.env("VIPWATCH_CONFIG", self.lab.path().join("vipwatch.toml")))
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[test]
fn an_instance_is_announced_by_its_id_in_its_namespace() {
    let fixture = AnnounceFixture::new();
    let output = fixture.run(&["web-1"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    fixture.wire.wait_for("192.0.2.9", 2);
    assert!(
        !text(&output).contains("192.0.2.10"),
        "an exact id is no beginning: {}",
        text(&output)
    );
    let ambiguous = fixture.run(&["web"]);
    assert_eq!(ambiguous.status.code(), Some(4), "as in every command that takes an id");
    assert!(
        text(&ambiguous).contains("\"web\" matches several instances: web-1, web-10"),
        "{}",
        text(&ambiguous)
    );
    let missing = fixture.run(&["db"]);
    assert_eq!(missing.status.code(), Some(4));
    assert!(text(&missing).contains("there is no instance \"db\""), "{}", text(&missing));
}

#[test]
fn without_an_instance_or_address_all_addresses_must_be_asked_for() {
    let fixture = AnnounceFixture::new();
    let netns = fixture.router.name();
    let refused = fixture.run(&["--netns", netns]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(
        text(&refused).contains("hint:") && text(&refused).contains("--all"),
        "{}",
        text(&refused)
    );
    let output = fixture.run(&["--netns", netns, "--all"]);
    // The exit code depends on the link-local address: its duplicate address detection may be under way.
    for ip in ["192.0.2.9", "192.0.2.10", "192.0.2.11"] {
        let is_announced = |line: &str| line.starts_with(ip) && line.contains("announced once");
        assert!(text(&output).lines().any(is_announced), "{ip}: {}", text(&output));
    }
    let both = fixture.run(&["--netns", netns, "--all", "192.0.2.9"]);
    assert_eq!(both.status.code(), Some(2), "{}", text(&both));
    let mixed = fixture.run(&["web-1", "192.0.2.11"]);
    assert_eq!(mixed.status.code(), Some(2), "{}", text(&mixed));
}
