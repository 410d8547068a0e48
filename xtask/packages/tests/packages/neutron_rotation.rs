// SPDX-License-Identifier: Apache-2.0
//! The rotation of the monitors' logs by the real logrotate, in directories of another user than root.

use crate::neutron::NeutronRoot;

const FILE: &str = "/etc/logrotate.d/neutron-keepalived-state-change";
const ROTATE: &str = "logrotate --force --state /run/rotation.state /etc/logrotate.d/neutron-keepalived-state-change 2>&1";
const FOLLOW: &str = "/usr/lib/vipwatch/neutron-setup follow dpkg 2>&1";
/// The directory of one router.
const ROUTER: &str = "/var/lib/neutron/ha_confs/5c7d3a1e-0b1f-4c55-8f0e-000000000001";

/// A root with the user of the agent, the directory of a router and the package.
fn installed() -> NeutronRoot {
    let root = NeutronRoot::new();
    root.install_neutron("2:29.0.0-1");
    root.succeed(&format!(
        "useradd --system --user-group neutron && mkdir -p {ROUTER} && chown -R neutron: /var/lib/neutron"
    ));
    root.install().expect();
    root
}

/// Writes a line to the log, as a monitor does.
fn log(root: &NeutronRoot, line: &str) {
    root.succeed(&format!(
        "setpriv --reuid neutron --regid neutron --clear-groups sh -c \
         'echo {line} >> {ROUTER}/neutron-keepalived-state-change.log'"
    ));
}

#[test]
fn logrotate_works_as_the_owner_of_the_logs() {
    let root = installed();
    // As root, logrotate refuses a directory that a group of other users can write.
    root.succeed(&format!("chmod 0770 {ROUTER}"));
    for line in ["first", "second"] {
        log(&root, line);
        root.succeed(ROTATE);
    }
    let name = format!("{ROUTER}/neutron-keepalived-state-change.log");
    assert_eq!(
        root.succeed(&format!("cat {name}.1; zcat {name}.2.gz; ! test -e {name}")),
        "second\nfirst"
    );
    let owners = root.succeed(&format!("stat -c %U:%G {ROUTER}/*"));
    assert_eq!(owners, "neutron:neutron\nneutron:neutron");
}

#[test]
fn a_link_in_the_directory_of_neutrons_user_does_not_lead_logrotate_to_files_of_root() {
    let root = installed();
    root.succeed(&format!(
        "mkdir -m 0755 /srv/files && echo root > /srv/files/neutron-keepalived-state-change.log
         setpriv --reuid neutron --regid neutron --clear-groups ln -s /srv/files {ROUTER}/../other"
    ));
    log(&root, "line");
    let text = root.run(ROTATE).text();
    assert_eq!(root.succeed("ls /srv/files"), "neutron-keepalived-state-change.log", "{text}");
    assert!(text.contains("Permission denied"), "{text}");
    root.succeed(&format!("cat {ROUTER}/neutron-keepalived-state-change.log.1"));
}

#[test]
fn the_file_for_logrotate_has_the_owner_of_the_directory_and_follows_neutron() {
    let root = NeutronRoot::new();
    let user = || root.succeed(&format!("grep -x ' *su .*' {FILE}"));
    // Without Neutron, its user and its directory there is nothing to rotate.
    root.install().expect();
    root.succeed(&format!("! test -e {FILE}"));
    root.succeed("useradd --system --user-group neutron");
    root.install_neutron("2:29.0.0-1");
    assert_eq!(user(), "su neutron neutron");

    root.succeed("useradd --system --gid users cloud && mkdir /var/lib/neutron && chown cloud /var/lib/neutron");
    root.succeed(FOLLOW);
    assert_eq!(user(), "su cloud users");
    root.succeed(&format!("chown root /var/lib/neutron && {FOLLOW}"));
    root.succeed(&format!("! grep -w su {FILE} && mkdir -p {ROUTER}"));
    root.succeed(&format!("echo line > {ROUTER}/neutron-keepalived-state-change.log && {ROTATE}"));
    root.succeed(&format!("test -f {ROUTER}/neutron-keepalived-state-change.log.1"));

    // An owner without a name, as after a container of another image.
    let text = root.succeed(&format!("chown 42435 /var/lib/neutron/ha_confs && {FOLLOW}"));
    assert!(text.contains("has no name on this machine"), "{text}");
    root.succeed(&format!("! test -e {FILE}"));
}

#[test]
fn a_changed_file_for_logrotate_stays_and_an_unchanged_one_is_removed_with_the_package() {
    let root = installed();
    root.succeed("dpkg -r vipwatch-neutron 2>&1");
    root.succeed(&format!("! test -e {FILE} && ! test -e /var/lib/vipwatch-neutron"));
    root.install().expect();
    root.succeed(&format!("sed -i s/weekly/daily/ {FILE}"));
    root.install_neutron("2:29.0.1-1");
    root.succeed("dpkg -P vipwatch-neutron 2>&1");
    root.succeed(&format!("grep daily {FILE}"));
}
