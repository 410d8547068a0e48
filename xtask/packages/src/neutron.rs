// SPDX-License-Identifier: Apache-2.0
//! A package like Neutron's, and one HA router with its agent.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::Root;

/// A stand-in for Neutron's script that needs no other program: it writes pid and state, then waits.
const WAITING_MONITOR: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        --pid_file) pid_file=$2; shift ;;
        --conf_dir) conf_dir=$2; shift ;;
    esac
    shift
done
printf primary > "$conf_dir/state"
printf %s $$ > "$pid_file"
while :; do sleep 1000; done
"#;

/// A shell script that makes one HA router. A service starts its monitor, as the agent does. It needs the package `vipwatch`.
pub const ROUTER: &str = r"
id=5c7d3a1e-0b1f-4c55-8f0e-000000000001
base=/var/lib/neutron
mkdir -p $base/ha_confs/$id $base/external/pids
ip netns add qrouter-$id
ip -n qrouter-$id link add ha-5c7d3a1e-0b type veth peer name peer
ip -n qrouter-$id link set ha-5c7d3a1e-0b up
ip -n qrouter-$id address add 169.254.0.1/24 dev ha-5c7d3a1e-0b
systemd-run --quiet --unit simulated-agent vipwatch simulate-agent threaded --state-path $base
cat > /agent <<END
#!/bin/sh
/usr/bin/neutron-keepalived-state-change --router_id $id --namespace qrouter-$id --conf_dir $base/ha_confs/$id \
    --log-file $base/ha_confs/$id/neutron-keepalived-state-change.log --monitor_interface ha-5c7d3a1e-0b \
    --monitor_cidr 169.254.0.1/24 --pid_file $base/external/pids/$id.monitor.pid --state_path $base --user 0 --group 0 &
exec sleep infinity
END
chmod 755 /agent
systemd-run --quiet --unit neutron-l3-agent --property KillMode=process /agent
";

/// Installs a package with this name and version that has the program as Neutron's monitor; returns the output of dpkg.
#[track_caller]
pub fn install(root: &Root, name: &str, version: &str, program: &Path) -> String {
    let tree = root.path().join("neutron");
    let line = "rm -rf \"$1\" && mkdir -p \"$1/DEBIAN\" \"$1/etc/neutron/rootwrap.d\" \
                \"$1/usr/lib/python3/dist-packages/neutron\" && \
                install -D -m 0755 \"$2\" \"$1/usr/bin/neutron-keepalived-state-change\" && \
                echo \"# $3\" >> \"$1/usr/bin/neutron-keepalived-state-change\" && \
                echo \"# $3\" > \"$1/usr/lib/python3/dist-packages/neutron/__init__.py\" && \
                echo 'exec_dirs=/sbin,/usr/bin,/etc/neutron/kill_scripts' > \"$1/etc/neutron/rootwrap.conf\" && \
                (cd \"$1\" && find usr -type f -exec md5sum {} + > DEBIAN/md5sums) && \
                printf 'Package: %s\\nVersion: %s\\nArchitecture: all\\nMaintainer: A <a@a.invalid>\\n\
                Description: stand-in\\n' \"$4\" \"$3\" > \"$1/DEBIAN/control\"";
    let made = Command::new("sh")
        .args(["-ec", line, "sh"])
        .arg(&tree)
        .arg(program)
        .args([version, name])
        .status();
    assert!(made.unwrap().success());
    root.run("dpkg-deb --root-owner-group -b /neutron /neutron.deb && dpkg -i /neutron.deb 2>&1")
        .expect()
}

/// Installs a package of this version with a monitor that needs no other program.
#[track_caller]
pub fn install_waiting_monitor(root: &Root, version: &str) {
    let program = root.path().join("monitor");
    let mut file = std::fs::File::create(&program).unwrap();
    file.write_all(WAITING_MONITOR.as_bytes()).unwrap();
    drop(file);
    install(root, "neutron-common", version, &program);
}
