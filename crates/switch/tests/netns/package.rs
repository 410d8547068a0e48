// SPDX-License-Identifier: Apache-2.0
//! The package's scripts, with a hostile agent's user.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use vipwatch_testkit::monitor::{end_of, output_of};
use vipwatch_testkit::{Lab, run, script};

/// Installs the package's files for Neutron 16 in mounts of the shell, where `/etc/neutron` belongs to the agent's user,
/// and runs the script twice. In the second run, programs of the test come before those of the system.
const CONFIGURED: &str = r#"
mount -t tmpfs tmpfs "$1"
for directory in usr/bin usr/lib usr/share var/lib etc; do
    mkdir -p "$1/$directory/u" "$1/$directory/w"
    options="lowerdir=/$directory,upperdir=$1/$directory/u,workdir=$1/$directory/w"
    mount -t overlay -o "$options" overlay "/$directory"
done
mkdir -p /usr/lib/vipwatch /usr/share/vipwatch-neutron /etc/neutron/rootwrap.d
mkdir -p /usr/lib/python3/dist-packages/neutron-16.0.0.dist-info
: > /usr/lib/python3/dist-packages/neutron-16.0.0.dist-info/METADATA
printf '#!/bin/sh\n' > /usr/bin/neutron-keepalived-state-change
printf '#!/bin/sh\n' > /usr/lib/vipwatch/neutron-keepalived-state-change
cp "$2/rootwrap/vipwatch.filters" "$2/kill-scripts/neutron-keepalived-state-change-monitor-kill" \
    /usr/share/vipwatch-neutron
cp "$2/logrotate/template" /usr/share/vipwatch-neutron/logrotate
printf '[DEFAULT]\ndebug = true\n' > /etc/neutron/neutron-keepalived-state-change.conf
chown -R 65534:65534 /etc/neutron
(umask 077 && echo canary-word > "$1/secret")
"$2/neutron/neutron-setup" configure rpm
# Another word and another filter, so that the second run has to write both files.
sed -i s/master/primary/ /etc/neutron/neutron-keepalived-state-change.conf
echo '# new' >> /usr/share/vipwatch-neutron/vipwatch.filters
PATH="$3:$PATH" SECRET="$1/secret" FOUND="$1/found" "$2/neutron/neutron-setup" configure rpm
cat /etc/neutron/neutron-keepalived-state-change.conf
stat -c 'owner %u' /etc/neutron/neutron-keepalived-state-change.conf
if [ -e "$1/found" ] || grep -r canary-word /etc/neutron /var/lib/vipwatch-neutron; then echo disclosed; fi
"#;

/// A program that exchanges the file for a link to the secret, as the agent's user, when the real one has read it.
fn exchanging(program: &str, file: &str) -> String {
    format!(
        "PATH=${{PATH#*:}}\n{program} \"$@\"; code=$?\ncase \" $* \" in *\" /etc/neutron/{file} \"*)\n\
         setpriv --reuid 65534 --clear-groups ln -sfn \"$SECRET\" /etc/neutron/{file};; esac\nexit $code"
    )
}

#[test]
fn a_file_that_the_agents_user_exchanges_for_a_link_is_not_disclosed() {
    let lab = Lab::new();
    let programs = lab.path().join("programs");
    let mounts = lab.path().join("mounts");
    for directory in [&programs, &mounts] {
        std::fs::create_dir(directory).unwrap();
    }
    script(&programs.join("cp"), &exchanging("cp", "neutron-keepalived-state-change.conf"));
    script(&programs.join("cmp"), &exchanging("cmp", "rootwrap.d/vipwatch.filters"));
    let watching = "PATH=${PATH#*:}\nif grep -q canary-word \"$3\"; then : > \"$FOUND\"; fi\nexec install \"$@\"";
    script(&programs.join("install"), watching);
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", CONFIGURED, "sh"]);
    let output = run(command.arg(&mounts).arg(packaging).arg(&programs));
    assert!(!output.contains("disclosed"), "{output}");
    assert!(
        output.contains("debug = true") && output.contains("primary_word = master"),
        "{output}"
    );
    assert!(output.contains("owner 65534"), "{output}");
}

/// Rootwrap runs the script as root, with arguments of the agent's user.
#[test]
fn the_kill_script_ends_monitors_and_no_other_process() {
    let lab = Lab::new();
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kill-scripts");
    let kill = |pid: u32| {
        let name = "neutron-keepalived-state-change-monitor-kill";
        output_of(Command::new(format!("{directory}/{name}")).args(["15", &pid.to_string()]))
    };
    let [binary, shell] = ["binary", "shell"].map(|name| {
        let path = lab.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path.join("neutron-keepalived-state-change")
    });
    run(Command::new("cp").arg("/bin/sleep").arg(&binary));
    // It waits without a child process, which would outlive it.
    script(&shell, "read -r _");
    for command in [Command::new(&binary).arg("1000"), &mut Command::new(&shell)] {
        let mut monitor = command.stdin(Stdio::piped()).spawn().unwrap();
        let output = kill(monitor.id());
        assert!(output.status.success(), "{output:?}");
        assert_eq!(end_of(&mut monitor).unwrap().signal(), Some(15));
        assert!(!kill(monitor.id()).status.success(), "the process does not exist any more");
    }
    // The name of a monitor as an argument does not make it one.
    let mut other = Command::new("sleep").args(["1000", "0"]).arg0(&binary).spawn().unwrap();
    let output = kill(other.id());
    let ended = other.try_wait().unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(!output.status.success() && ended.is_none(), "{output:?}");
}
