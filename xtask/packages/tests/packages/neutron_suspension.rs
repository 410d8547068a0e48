// SPDX-License-Identifier: Apache-2.0
//! A suspension of the package vipwatch-neutron, which `vipwatch-neutron-switch to-neutron` begins, on Debian.

use crate::neutron::{CONF, NeutronRoot, OURS, PROGRAM};

/// To what the agent's name leads during a suspension.
const SECOND: &str = "neutron-keepalived-state-change.neutron";

const SUSPEND: &str = "/usr/lib/vipwatch/neutron-setup suspend 2>&1";

/// The line that an upgrade of Neutron prints.
const LINE: &str = "vipwatch-neutron: the agent still starts Neutron's program, as chosen by `to-neutron`; \
                    to change that: vipwatch-neutron-switch to-vipwatch";

/// Checks that the agent starts Neutron's program of this version.
#[track_caller]
fn expect_suspended(root: &NeutronRoot, version: &str) {
    assert_eq!(root.succeed(&format!("readlink {PROGRAM}")), SECOND);
    assert_eq!(root.succeed(&format!("tail -n 1 {PROGRAM}")), format!("# {version}"));
    assert_eq!(root.succeed("dpkg -V neutron-common"), "");
}

#[test]
fn an_upgrade_of_neutron_keeps_the_suspension_and_names_the_command_that_ends_it() {
    let root = NeutronRoot::new();
    root.install_neutron("2:21.0.0-7");
    root.succeed("dpkg -i /previous/vipwatch-neutron_*.deb 2>&1");
    root.succeed(SUSPEND);
    let text = root.install_neutron("2:29.0.0-1");
    assert_eq!(text.lines().filter(|line| *line == LINE).count(), 1, "{text}");
    expect_suspended(&root, "2:29.0.0-1");

    // An upgrade of the package itself ends it, and then an upgrade of Neutron prints nothing about it.
    assert!(root.install().is_ok());
    root.expect_in_place();
    let text = root.install_neutron("2:29.0.1-1");
    assert!(!text.contains("to-neutron"), "{text}");
    root.expect_in_place();

    root.succeed(SUSPEND);
    root.succeed("/usr/lib/vipwatch/neutron-setup resume");
    root.install_neutron("2:29.0.2-1");
    root.expect_in_place();
    root.succeed(SUSPEND);
    root.succeed("dpkg -r vipwatch-neutron 2>&1");
    root.expect_back();
}

/// dpkg calls the script with `configure`, as in an installation, when it repeats a trigger that has failed.
#[test]
fn a_repeated_trigger_keeps_the_suspension() {
    let root = NeutronRoot::new();
    root.install_neutron("2:21.0.0-7");
    assert!(root.install().is_ok());
    root.succeed(SUSPEND);
    root.succeed(&format!("echo '# BEGIN vipwatch-neutron' >> {CONF}"));
    root.succeed(
        "sed -i s/21.0.0-7/29.0.0-1/ /neutron/DEBIAN/control /neutron/usr/bin/neutron-keepalived-state-change
         cd /neutron && find usr -type f -exec md5sum {} + > DEBIAN/md5sums
         dpkg-deb --root-owner-group -b /neutron /neutron.deb",
    );
    let failed = root.run("dpkg -i /neutron.deb 2>&1");
    assert!(!failed.is_ok() && failed.text().contains("do not alternate"), "{}", failed.text());
    let text = root.succeed(&format!("sed -i '$d' {CONF} && dpkg --configure -a 2>&1"));
    assert!(text.contains(LINE), "{text}");
    expect_suspended(&root, "2:29.0.0-1");
}

#[test]
fn a_suspension_outlives_a_removal_of_neutron_and_leaves_nothing_after_that_of_the_package() {
    let root = NeutronRoot::new();
    root.install_neutron("2:21.0.0-7");
    assert!(root.install().is_ok());
    root.succeed(SUSPEND);
    root.succeed("dpkg -r neutron-common 2>&1");
    root.install_neutron("2:29.0.0-1");
    expect_suspended(&root, "2:29.0.0-1");
    root.succeed("dpkg -r neutron-common 2>&1 && dpkg -P vipwatch-neutron 2>&1");
    root.succeed(&format!("! ls -d {PROGRAM}* && ! test -e /var/lib/vipwatch-neutron"));
    assert!(root.install().is_ok());
    assert_eq!(root.succeed(&format!("readlink {PROGRAM}")), OURS);
}
