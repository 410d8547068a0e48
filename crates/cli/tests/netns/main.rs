//! `vipwatch` on a real kernel: in namespaces of its own, which `cargo xtask test` arranges.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod access;
mod direct;
mod log;
mod missing;
mod monitors;
mod node;
mod node_receiver;
mod notify;
mod receiver;
mod report_notifier;
mod scale;
mod selection;
mod server;
mod simulate;
mod storage;
mod threads;
mod tls;
mod untrusted;
mod webhooks;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns};

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_vipwatch");

/// A node in a lab.
fn place(lab: &Lab) -> NodeFixture {
    NodeFixture::new(Path::new(PROGRAM), lab.path())
}

/// The answer to a question, as scripts get it.
fn json(place: &NodeFixture, words: &[&str]) -> Value {
    let output = place.ask(&[words, &["--format", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The role of the instance with this id.
fn role(place: &NodeFixture, id: &str) -> String {
    json(place, &["status", id])["instances"][0]["role"].as_str().unwrap_or_default().to_owned()
}

/// Writes a file, whole at once: nobody who watches it sees half of it.
fn write(path: &Path, text: &str) {
    write_with_mode(path, text, 0o644);
}

fn write_with_mode(path: &Path, text: &str, mode: u32) {
    let directory = path.parent().unwrap();
    std::fs::create_dir_all(directory).unwrap();
    let mut file = tempfile::NamedTempFile::new_in(directory).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let mode = std::fs::Permissions::from_mode(mode);
    file.as_file().set_permissions(mode).unwrap();
    file.persist(path).unwrap();
}

/// An instance as ordinary keepalived is told of it. Addresses of another family than the first are excluded
/// ones: keepalived would ignore them among the others.
fn instance(name: &str, link: &str, vips: &[&str]) -> String {
    let is_v6 = |vip: &&str| vip.contains(':');
    let of = |wanted: bool| {
        let vips = vips.iter().copied().filter(|vip| is_v6(vip) == wanted);
        vips.collect::<Vec<_>>().join("\n  ")
    };
    let is_first_v6 = vips.first().is_some_and(is_v6);
    let (advertised, excluded) = (of(is_first_v6), of(!is_first_v6));
    let excluded = match excluded.as_str() {
        "" => String::new(),
        excluded => format!(" virtual_ipaddress_excluded {{\n  {excluded}\n }}\n"),
    };
    // Instances on one link need different ones.
    let vrid = 1 + name.bytes().map(u32::from).sum::<u32>() % 254;
    format!(
        "vrrp_instance {name} {{\n interface {link}\n virtual_router_id {vrid}\n priority 100\n \
         virtual_ipaddress {{\n  {advertised}\n }}\n{excluded}}}\n"
    )
}

/// The one most tests are about.
fn one() -> String {
    instance("VI_1", "eth0", &["192.0.2.9/24"])
}

/// A namespace with a link, and a keepalived.conf that is about it.
fn stage(lab: &Lab, instances: &[String]) -> (TestNetns, NodeFixture) {
    let netns = lab.netns("k");
    netns.add_link("eth0");
    let place = place(lab);
    let text = format!("net_namespace {}\n{}", netns.name(), instances.concat());
    write(&place.keepalived_conf(), &text);
    (netns, place)
}
