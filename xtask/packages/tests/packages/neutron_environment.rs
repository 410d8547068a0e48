// SPDX-License-Identifier: Apache-2.0
//! The package vipwatch-neutron beside Neutron in a virtual environment of a deployment tool.

use crate::neutron::{NeutronRoot, OURS, PROGRAM};

const FOLLOW: &str = "/usr/lib/vipwatch/neutron-setup follow dpkg 2>&1";
const FILTER: &str = "/etc/neutron/rootwrap.d/vipwatch.filters";

/// Adds Neutron to a virtual environment, as pip does: its metadata and the program.
fn add(root: &NeutronRoot, environment: &str, version: &str) {
    root.succeed(&format!(
        "packages={environment}/lib/python3.8/site-packages
         mkdir -p $packages/neutron-{version}.dist-info {environment}/bin /etc/neutron/rootwrap.d
         echo 'Name: neutron' > $packages/neutron-{version}.dist-info/METADATA
         ln -s lib {environment}/lib64
         echo '#!/bin/sh' > {environment}/bin/neutron-keepalived-state-change"
    ));
}

#[test]
fn neutron_16_in_a_virtual_environment_gets_its_word_and_the_rootwrap_filter() {
    for environment in
        ["/openstack/venvs/neutron-21.2.10", "/var/lib/kolla/venv", "/opt/stack/data/venv"]
    {
        let root = NeutronRoot::new();
        add(&root, environment, "16.4.2");
        let text = root.install().expect();
        assert!(root.conf().contains("primary_word = master"), "{environment}: {text}");
        root.succeed(&format!("cmp {FILTER} /usr/share/vipwatch-neutron/vipwatch.filters"));
        assert!(
            text.contains(
                "after each upgrade of it run: /usr/lib/vipwatch/neutron-setup follow dpkg"
            ),
            "{text}"
        );
        assert!(
            text.contains(&format!("is in a virtual environment: {environment}/bin/")),
            "{text}"
        );
        assert_eq!(root.succeed(&format!("readlink {PROGRAM}")), OURS);
        assert_eq!(root.succeed("/usr/lib/vipwatch/neutron-setup release"), "16");

        // The upgrade of the environment, and the command that the message names.
        root.succeed(&format!("rm -r {environment}"));
        add(&root, environment, "18.6.0");
        root.succeed(FOLLOW);
        assert!(root.conf().contains("primary_word = primary"), "{}", root.conf());
        root.succeed(&format!("! test -e {FILTER}"));
        root.succeed("dpkg -P vipwatch-neutron 2>&1");
        assert_eq!(root.conf(), "");
    }
}

#[test]
fn several_releases_in_virtual_environments_are_named_and_change_nothing() {
    let root = NeutronRoot::new();
    let first = "/openstack/venvs/neutron-21.2.10";
    add(&root, first, "16.4.2");
    root.install().expect();
    let conf = root.conf();
    add(&root, "/openstack/venvs/neutron-22.4.5", "17.4.1");
    let text = root.succeed(FOLLOW);
    assert!(text.contains("several releases of Neutron (16 17)"), "{text}");
    assert!(
        text.contains("hint: if the agent is of Neutron 16, set primary_word = master"),
        "{text}"
    );
    assert_eq!((root.conf(), root.succeed(&format!("ls {FILTER}"))), (conf, FILTER.to_owned()));
    assert_eq!(root.succeed("/usr/lib/vipwatch/neutron-setup release"), "");
    root.succeed(&format!("rm -r {first}"));
    let text = root.succeed(FOLLOW);
    assert!(!text.contains("several") && root.conf().contains("primary_word = primary"), "{text}");
}

#[test]
fn a_virtual_environment_without_metadata_is_named_with_what_old_releases_need() {
    let root = NeutronRoot::new();
    add(&root, "/opt/neutron", "16.4.2");
    root.succeed("rm -r /opt/neutron/lib/python3.8/site-packages/neutron-*");
    let text = root.install().expect();
    for expected in [
        "the release of Neutron is not known: neither word nor rootwrap filter is set",
        "hint: if the agent is of Neutron 16, set primary_word = master in the section [vipwatch] of /etc/neutron/",
        "hint: if it is of Neutron 12 to 17, copy /usr/share/vipwatch-neutron/vipwatch.filters to ",
        "is in a virtual environment: /opt/neutron/bin/",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    root.succeed(&format!("! test -e {FILTER}"));
    assert_eq!(root.conf(), "");
}
