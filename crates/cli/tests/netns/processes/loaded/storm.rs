// SPDX-License-Identifier: Apache-2.0
//! Many reloads one after the other: each published role is compared with what the kernel showed before.

use serde_json::Value;
use vipwatch_testkit::wait_showing;

use super::super::ProcessLab;
use super::VIP;
use crate::support::{query_json, wait_for_role};
use crate::watch_command::{WatchCommand, last_event};

/// The second address of an edit. Each edit has one of its own, so that a role names the file by which it was judged.
fn second(number: usize) -> String {
    format!("192.0.2.{}/24", 100 + number)
}

/// An address that the kernel had, as the node knew it at one of its events: keepalived had loaded its file and added it.
struct AddedAddress {
    cidr: String,
    /// The sequence number of the node's last event.
    seq: i64,
}

impl AddedAddress {
    /// Waits until the kernel has the address, and the node follows it.
    #[track_caller]
    fn wait_for(lab: &ProcessLab, cidr: String) -> Self {
        lab.wait_for_presence(&cidr, true);
        let seq = wait_showing(
            "the node to follow the second address",
            || lab.fixture.log(),
            || {
                let shown = query_json(&lab.fixture, &["show", &lab.name])["instance"].take();
                let addresses = shown["addresses"].as_array()?;
                let is_held = |one: &Value| one["cidr"] == cidr.as_str() && one["held"] == true;
                let is_followed = addresses.iter().any(is_held) && shown["role"] == "primary";
                is_followed.then(|| query_json(&lab.fixture, &["status"])["seq"].as_i64())?
            },
        );
        Self { cidr, seq }
    }
}

/// Why a published role differs from that of the kernel; `None` if it does not.
fn mistake(event: &Value, added: &[AddedAddress]) -> Option<String> {
    let addresses = event["addresses"].as_array().unwrap().iter();
    let cidrs: Vec<&str> = addresses.map(|one| one["cidr"].as_str().unwrap()).collect();
    match (event["to"].as_str().unwrap(), cidrs.as_slice()) {
        ("primary", [VIP] | [_, VIP]) => None,
        // keepalived has loaded a file with a second address and has not added that yet. One that was there is gone
        // because keepalived has loaded the next file, which does not have it.
        ("partial", [second, VIP]) if event["reason"] == "holds 1 of 2 addresses" => {
            let earlier = added.iter().find(|one| one.cidr == *second)?;
            let is_later = event["seq"].as_i64().unwrap() > earlier.seq;
            is_later.then(|| format!("{second} was there at event {}", earlier.seq))
        }
        (role, cidrs) => Some(format!("{role} of {cidrs:?}")),
    }
}

#[test]
fn in_a_storm_of_reloads_no_published_role_differs_from_the_kernels() {
    let lab = ProcessLab::new("STORM");
    let _keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    wait_for_role(&lab.fixture, &lab.name, "primary");
    let after = last_event(&lab.fixture);
    let mut watch = WatchCommand::new(&lab.fixture, &["--json", "--after", &after]);
    let mut added = Vec::new();
    for number in (0..100).step_by(2) {
        let address = second(number);
        lab.edit(&lab.conf_with(&address));
        lab.reload();
        match number {
            // The node knows every third file before the next one. It sees the end of their address first.
            _ if number % 3 == 1 => added.push(AddedAddress::wait_for(&lab, address.clone())),
            // Another third is overtaken by the next edit.
            _ if number % 3 != 0 => lab.wait_for_presence(&address, true),
            _ => {}
        }
        lab.edit(&lab.conf());
        lab.reload();
        if (number + 1) % 3 != 0 {
            lab.wait_for_presence(&address, false);
        }
    }
    lab.wait_for_presence(&second(98), false);
    lab.wait_for_watched(1);
    lab.wait_for_findings(&[]);
    lab.netns.ip(&format!("address del {VIP} dev eth0"));
    let own = std::iter::from_fn(|| Some(watch.read_transition()))
        .filter(|event| event["id"] == lab.name.as_str());
    let events: Vec<Value> = own.take_while(|event| event["to"] != "backup").collect();
    let mistakes: Vec<String> = events
        .iter()
        .filter_map(|event| Some(format!("{}: {event}", mistake(event, &added)?)))
        .collect();
    assert!(mistakes.is_empty(), "{mistakes:#?}\n{}", lab.fixture.log());
    assert!(events.last().is_none_or(|event| event["to"] == "primary"), "{events:#?}");
}
