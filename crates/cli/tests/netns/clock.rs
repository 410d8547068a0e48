// SPDX-License-Identifier: Apache-2.0
//! A wall clock that is set while the node runs.

use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::{Lab, SteppedClock, wait_for, wait_showing};

use crate::deliveries::stored;
use crate::support::{wait_for_role, write};
use crate::witness::{ADVERT, Host, conf, has_logged};

#[test]
fn two_primaries_are_found_after_the_clock_was_set_back_by_eight_hours() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [other, host] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let clock = SteppedClock::new(lab.path());
    let fixture = clock.on(host.fixture.clone());
    write(&fixture.keepalived_conf(), &conf("eth0", 100, "", "192.0.2.100/24"));
    let _node = fixture.start();
    host.netns.ip("address add 192.0.2.100/24 dev eth0");
    wait_for_role(&fixture, "VI", "primary");
    clock.step_to(-8 * 60 * 60);
    wait_showing(
        "two primaries",
        || fixture.log(),
        || {
            other.netns.send_ipv4(&ADVERT, 1);
            has_logged(&fixture, "audit finding", "two-primaries").then_some(())
        },
    );
    // The node has used the clock that was set back.
    let query = "SELECT (SELECT max(at) FROM transition) - (SELECT max(at) FROM event WHERE \
         json_extract(body, '$.finding.name') = 'two-primaries') > 7 * 60 * 60 * 1000";
    wait_for("the event", || (stored(&fixture, query) == "1").then_some(()));
}
