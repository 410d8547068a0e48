// SPDX-License-Identifier: Apache-2.0
//! A disk that hangs: an ext4 file system on a loop device, frozen as storage without a path freezes it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use vipwatch_packages::{Root, suite};

const STATE_DIR: &str = "var/lib/vipwatch";

/// A frozen file system. A shell thaws it when this value is dropped, and also when the test is killed: its standard input is
/// closed then. If all processes of the suite are killed, a shell outside of their namespace does (`xtask/src/sandbox.rs`).
struct Frozen(Child);

impl Frozen {
    fn new(mounted: &Path) -> Self {
        let thaw = "read _; exec fsfreeze --unfreeze \"$0\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", thaw]).arg(mounted).stdin(Stdio::piped());
        let frozen = Self(shell.spawn().unwrap());
        run(Command::new("fsfreeze").arg("--freeze").arg(mounted));
        frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

/// Mounts a new file system at the state directory of the root.
fn mount_state_dir(root: &Root) -> PathBuf {
    let image = root.path().with_file_name("disk");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
    let mounted = root.path().join(STATE_DIR);
    std::fs::create_dir_all(&mounted).unwrap();
    run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mounted));
    mounted
}

#[test]
fn a_disk_that_hangs_does_not_end_the_node_and_the_history_continues_afterwards() {
    let root = Root::debian(&suite());
    let mounted = mount_state_dir(&root);
    let machine = root.boot();
    machine.write(
        "/etc/systemd/system/vipwatch-node.service.d/watchdog.conf",
        "[Service]\nWatchdogSec=3\nTimeoutAbortSec=3\n",
    );
    machine.succeed("ip netns add blue && ip -n blue link add eth0 type veth peer name other");
    machine.install(&["vipwatch"]);
    machine.write(
        "/etc/vipwatch/vipwatch.toml",
        "[find]\nprocesses = false\n[[instance]]\nid = \"database\"\nnetns = \"blue\"\nlink = \"eth0\"\n\
         addresses = [\"192.0.2.10/24\"]\n",
    );
    machine.succeed("systemctl restart vipwatch-node.service");
    let process = "systemctl show --property MainPID --value vipwatch-node.service";
    let first = machine.succeed(process);
    let frozen = Frozen::new(&mounted);
    machine.succeed("ip -n blue address add 192.0.2.10/24 dev eth0");
    machine.wait_until("the role", "vipwatch status --role primary -o name | grep database");
    // The finding opens after three times the limit of the watchdog.
    let finding = "vipwatch doctor | grep 'no progress for'";
    machine.wait_until("the finding", finding);
    assert_eq!(machine.succeed(process), first);
    drop(frozen);
    machine.wait_until("the end of the finding", &format!("! {finding}"));
    machine.wait_until("the record", "vipwatch history -o json | grep '\"primary\"'");
    assert_eq!(machine.succeed(process), first);
}
