// SPDX-License-Identifier: Apache-2.0
//! Other systems: the oldest Debian, RPMs, and the OCI image.

use std::path::{Path, PathBuf};
use std::process::Command;

use vipwatch_packages::{Root, directory, suite};

/// The path of the only file in the directory of the packages that begins and ends with these texts.
fn shipped(begin: &str, end: &str) -> PathBuf {
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory("VIPWATCH_PACKAGES"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(begin) && name.ends_with(end)
        })
        .collect();
    assert_eq!(found.len(), 1, "{begin}*{end}: {found:?}");
    found.remove(0)
}

/// Runs a program of the machine that runs the tests; returns its output.
#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{text}{errors}");
    text
}

#[test]
fn the_packages_work_on_debian_11_with_systemd_247() {
    let machine = Root::debian("bullseye").boot();
    assert!(machine.succeed("systemctl --version").starts_with("systemd 247"));
    machine.install(&["vipwatch", "vipwatch-neutron"]);
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
    machine.succeed("vipwatch status && systemctl reload vipwatch-node.service");
    // systemd 247 would log a directive that it does not know.
    let log = machine.succeed("journalctl --no-pager");
    let unknown: Vec<&str> =
        log.lines().filter(|line| line.contains("Unknown") && line.contains("vipwatch")).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    machine.succeed("dpkg --purge vipwatch vipwatch-neutron");
    machine.succeed("test ! -e /var/lib/vipwatch && test ! -e /etc/vipwatch");
}

#[test]
fn the_rpms_can_be_installed_started_and_erased_again() {
    let root = Root::debian(&suite());
    let rpm = |words: &[&str], file: &str| {
        let mut command = Command::new("rpm");
        command.arg("--root").arg(root.path()).args(words);
        if !file.is_empty() {
            command.arg(shipped(file, ".rpm"));
        }
        succeed(&mut command)
    };
    // The root is a Debian system: its systemd is not in rpm's database.
    rpm(&["--initdb"], "");
    rpm(&["--install", "--nodeps"], "vipwatch-0");
    rpm(&["--install", "--nodeps"], "vipwatch-neutron-0");
    let list = rpm(&["--query", "--list", "vipwatch"], "");
    assert!(list.contains("/usr/lib/systemd/system/vipwatch-node.service"), "{list}");
    assert!(list.contains("/usr/share/man/man1/vipwatch.1.gz"), "{list}");
    let list = rpm(&["--query", "--list", "vipwatch-neutron"], "");
    assert!(list.contains("/usr/share/man/man8/vipwatch-neutron-switch.8.gz"), "{list}");
    let scripts = rpm(&["--query", "--triggers", "vipwatch-neutron"], "");
    assert!(scripts.contains("triggerin") && scripts.contains("openstack-neutron"), "{scripts}");
    rpm(&["--verify", "--nodeps", "vipwatch", "vipwatch-neutron"], "");
    let machine = root.boot();
    machine.succeed("systemctl enable --now vipwatch-node.service");
    machine.succeed("vipwatch status");
    let mut erase = Command::new("rpm");
    erase.arg("--root").arg(machine.root().path());
    succeed(erase.args(["--erase", "--nodeps", "vipwatch", "vipwatch-neutron"]));
    machine.succeed(
        "test ! -e /usr/bin/vipwatch && test ! -e /usr/lib/systemd/system/vipwatch-node.service",
    );
}

#[test]
fn the_programs_of_the_oci_image_run_without_any_other_file() {
    let root = Root::debian(&suite());
    let base = root.path().join("oci");
    let (layout, tree) = (base.join("layout"), base.join("tree"));
    for directory in [&layout, &tree] {
        std::fs::create_dir_all(directory).unwrap();
    }
    let image = shipped("vipwatch-", "-oci.tar");
    succeed(Command::new("tar").arg("-xf").arg(image).arg("-C").arg(&layout));
    let blobs = layout.join("blobs/sha256");
    for entry in std::fs::read_dir(&blobs).unwrap() {
        // The name of each blob is its sum.
        let path = entry.unwrap().path();
        let sum = succeed(Command::new("sha256sum").arg(&path));
        assert!(sum.starts_with(path.file_name().unwrap().to_str().unwrap()), "{sum}");
        let is_layer = std::fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]);
        if is_layer {
            succeed(Command::new("tar").arg("-xzf").arg(&path).arg("-C").arg(&tree));
        }
    }
    let machine = root.boot();
    machine.succeed("mkdir -p /oci/tree/proc && mount -t proc proc /oci/tree/proc");
    let mut node = machine.spawn("exec chroot /oci/tree /usr/bin/vipwatch node");
    machine.wait_until("an answer of the node", "chroot /oci/tree /usr/bin/vipwatch status");
    machine.succeed("test -e /oci/tree/var/lib/vipwatch/history.sqlite");
    node.kill();
}

#[test]
fn rpmlint_has_no_error_that_is_not_explained() {
    let settings =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/rpm/rpmlint.toml");
    let mut command = Command::new("rpmlint");
    command.arg("--config").arg(settings).arg(shipped("vipwatch-0", ".rpm"));
    let text = succeed(command.arg(shipped("vipwatch-neutron-0", ".rpm")));
    assert!(text.contains("0 errors, 0 warnings"), "{text}");
}

/// A server on the socket of the agent. It writes each reported state to `/reports`.
const AGENT: &str = "import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        with open('/reports', 'a') as reports:
            print(self.headers['X-Neutron-Router-Id'], self.headers['X-Neutron-State'], file=reports)
        self.send_response(200)
        self.end_headers()
    do_GET = do_POST
    def address_string(self):
        return 'monitor'
socketserver.UnixStreamServer('/state/keepalived-state-change', Handler).serve_forever()
";

/// Starts the drop-in for aarch64 in the emulator, as Neutron's agent does. `state` is its state file.
const EMULATED: &str = "exec ip netns exec router /emulator \
    /packages/neutron-keepalived-state-change-*-aarch64 --router_id=router --namespace=router --conf_dir=/conf \
    --monitor_interface=ha-1 --monitor_cidr=169.254.0.1/24 --pid_file=/conf/pid --state_path=/state --user=0 --group=0";

#[test]
fn the_drop_in_for_aarch64_follows_an_address_under_emulation() {
    let root = Root::debian(&suite());
    let emulator = "/usr/bin/qemu-aarch64-static";
    std::fs::copy(emulator, root.path().join("emulator")).unwrap();
    let machine = root.boot();
    machine.succeed(
        "mkdir /conf /state && ip netns add router
         ip -n router link add ha-1 type veth peer name peer
         for link in lo ha-1 peer; do ip -n router link set $link up; done",
    );
    machine.write("/agent.py", AGENT);
    let mut agent = machine.spawn("exec python3 /agent.py");
    machine.wait_until("the socket of the agent", "test -S /state/keepalived-state-change");
    let mut monitor = machine.spawn(EMULATED);
    let address = |verb: &str| {
        machine.succeed(&format!("ip -n router address {verb} 169.254.0.1/24 dev ha-1"));
    };
    machine.wait_until("the first state", "grep backup /conf/state");
    address("add");
    machine.wait_until("the address", "grep -e master -e primary /conf/state");
    address("del");
    machine.wait_until("no address", "grep backup /conf/state");
    let last = "tail --lines 1 /reports | grep --line-regexp 'router backup'";
    machine.wait_until("the report of the last state", last);
    let reports = machine.succeed("uniq /reports | tr '\\n' ' '");
    assert!(reports.starts_with("router backup router primary router backup"), "{reports}");
    agent.kill();
    machine.succeed("kill -TERM $(cat /conf/pid)");
    // The process that was started has ended already: the monitor continues in the background.
    assert!(monitor.wait().success());
    machine.wait_until("the end of the monitor, without its pid file", "test ! -e /conf/pid");
}

#[test]
fn the_oldest_supported_systemd_knows_every_directive_of_the_units() {
    let machine = Root::debian("bullseye").boot();
    assert!(machine.succeed("systemctl --version").starts_with("systemd 247 "));
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    for unit in std::fs::read_dir(units).unwrap() {
        let path = unit.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        machine.write(&format!("/etc/systemd/system/{name}"), &text);
    }
    // The program of the tests does not run on this system; systemd only looks for the file.
    machine.succeed("cp /bin/true /usr/bin/vipwatch && systemctl daemon-reload");
    let output =
        machine.run("systemd-analyze verify --man=no /etc/systemd/system/vipwatch-*.* 2>&1");
    let of_units: Vec<&str> =
        output.stdout.lines().filter(|line| line.contains("vipwatch")).collect();
    assert!(output.is_ok() && of_units.is_empty(), "{}", output.text());
}
