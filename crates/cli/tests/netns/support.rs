// SPDX-License-Identifier: Apache-2.0
//! Helpers for tests of the node: fixtures, configuration files, queries and hooks.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::io::Errno;
use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, script, wait_for};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_vipwatch");

/// Arguments of `ip` that make the instance of [`vi_1_conf`] primary.
pub(crate) const ADD_VIP: &str = "address add 192.0.2.9/24 dev eth0";
/// Arguments of `ip` that make the instance of [`vi_1_conf`] backup.
pub(crate) const REMOVE_VIP: &str = "address del 192.0.2.9/24 dev eth0";

/// The directories, files and commands of one node in the directory of the lab.
pub(crate) fn node_fixture(lab: &Lab) -> NodeFixture {
    NodeFixture::new(Path::new(PROGRAM), lab.path())
}

/// A namespace with the link `eth0`, and a node with these instances of that namespace in its keepalived.conf.
pub(crate) fn fixture_with(lab: &Lab, instances: &[String]) -> (TestNetns, NodeFixture) {
    let netns = lab.netns("k");
    netns.add_link("eth0");
    let fixture = node_fixture(lab);
    let text = format!("net_namespace {}\n{}", netns.name(), instances.concat());
    write(&fixture.keepalived_conf(), &text);
    (netns, fixture)
}

/// A test that opens ten thousand files takes it: two of them at the same time would exceed the limit of the process.
pub(crate) static MANY_FILES: Mutex<()> = Mutex::new(());

/// The text of a keepalived instance. The family of the first address decides: addresses of the other family
/// are excluded ones, because keepalived ignores them in `virtual_ipaddress`.
pub(crate) fn instance_conf(name: &str, link: &str, vips: &[&str]) -> String {
    let is_v6 = |vip: &&str| vip.contains(':');
    let of_family = |is_wanted_v6: bool| {
        let vips = vips.iter().copied().filter(|vip| is_v6(vip) == is_wanted_v6);
        vips.collect::<Vec<_>>().join("\n  ")
    };
    let is_first_v6 = vips.first().is_some_and(is_v6);
    let (advertised, excluded) = (of_family(is_first_v6), of_family(!is_first_v6));
    let excluded = match excluded.as_str() {
        "" => String::new(),
        excluded => format!(" virtual_ipaddress_excluded {{\n  {excluded}\n }}\n"),
    };
    // Instances on one link need different virtual router ids.
    let vrid = 1 + name.bytes().map(u32::from).sum::<u32>() % 254;
    format!(
        "vrrp_instance {name} {{\n interface {link}\n virtual_router_id {vrid}\n priority 100\n \
         virtual_ipaddress {{\n  {advertised}\n }}\n{excluded}}}\n"
    )
}

/// The instance `VI_1` on `eth0` with the address 192.0.2.9/24.
pub(crate) fn vi_1_conf() -> String {
    instance_conf("VI_1", "eth0", &["192.0.2.9/24"])
}

/// The JSON output of a command of `vipwatch`.
pub(crate) fn query_json(fixture: &NodeFixture, args: &[&str]) -> Value {
    let output = fixture.run(&[args, &["-o", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The role of the first instance with an id that begins with `id`; empty if there is none.
pub(crate) fn role(fixture: &NodeFixture, id: &str) -> String {
    let answer = query_json(fixture, &["status", id]);
    answer["instances"][0]["role"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn wait_for_role(fixture: &NodeFixture, id: &str, expected: &str) {
    wait_for(expected, || (role(fixture, id) == expected).then_some(()));
}

/// Replaces a file in one step, so that no reader sees an incomplete file.
pub(crate) fn write(path: &Path, text: &str) {
    write_with_mode(path, text, 0o644);
}

pub(crate) fn write_with_mode(path: &Path, text: &str, mode: u32) {
    let directory = path.parent().unwrap();
    std::fs::create_dir_all(directory).unwrap();
    let mut file = tempfile::NamedTempFile::new_in(directory).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let mode = std::fs::Permissions::from_mode(mode);
    file.as_file().set_permissions(mode).unwrap();
    file.persist(path).unwrap();
}

/// The content of a file; empty if it cannot be read.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Waits until the file has this content, white space at both ends aside.
pub(crate) fn wait_for_content(path: &Path, expected: &str) {
    wait_for(expected, || (read(path).trim() == expected).then_some(()));
}

/// Writes an executable shell script that a node may run as a hook; returns its path.
pub(crate) fn write_hook(path: &Path, text: &str) -> PathBuf {
    script(path, text);
    path.to_owned()
}

/// The transitions that `history` prints with these arguments, oldest first.
pub(crate) fn transitions(fixture: &NodeFixture, args: &[&str]) -> Vec<Value> {
    let answer = query_json(fixture, &[&["history"], args].concat());
    let items = answer["items"].as_array().unwrap().iter();
    items.filter(|item| item["type"] == "transition").cloned().collect()
}

/// "ID ROLE" of each recorded change, oldest first.
pub(crate) fn recorded(fixture: &NodeFixture) -> Vec<String> {
    let changes = transitions(fixture, &[]);
    let text = |change: &Value| format!("{} {}", change["id"], change["to"]).replace('"', "");
    changes.iter().map(text).collect()
}

/// Waits until the change "ID ROLE" is recorded.
pub(crate) fn wait_for_record(fixture: &NodeFixture, expected: &str) {
    wait_for(expected, || recorded(fixture).iter().any(|line| line == expected).then_some(()));
}

/// Answers the calls of newer kernels as an older one does, and becomes the program.
const OLD_KERNEL: &str = r#"#!/usr/bin/python3
import ctypes, os, struct, sys
NUMBERS = [437, 434, 424]  # openat2, pidfd_open, pidfd_send_signal
code = [(0x20, 0, 0, 0)]
for position, number in enumerate(NUMBERS):
    code.append((0x15, len(NUMBERS) - position, 0, number))
code += [(0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x00050000 | ERROR)]
text = b"".join(struct.pack("HBBI", *one) for one in code)
buffer = ctypes.create_string_buffer(text)
program = struct.pack("HL", len(code), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv(PROGRAM, [PROGRAM] + sys.argv[1:])
"#;

/// The program under test, on a kernel before `openat2` and descriptors of processes.
pub(crate) fn on_old_kernel(lab: &Lab) -> PathBuf {
    without_new_calls(lab, Errno::NOSYS)
}

/// The program under test, in a container whose filter refuses the same calls.
pub(crate) fn behind_old_filter(lab: &Lab) -> PathBuf {
    without_new_calls(lab, Errno::PERM)
}

fn without_new_calls(lab: &Lab, error: Errno) -> PathBuf {
    let program = lab.path().join("vipwatch-without-new-calls");
    let text = OLD_KERNEL.replace("PROGRAM", &format!("{PROGRAM:?}"));
    let text = text.replace("ERROR", &error.raw_os_error().to_string());
    write_with_mode(&program, &text, 0o755);
    program
}
