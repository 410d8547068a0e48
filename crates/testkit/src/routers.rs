// SPDX-License-Identifier: Apache-2.0
//! Many Neutron routers, each in a namespace of its own, created and deleted together.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ipnet::IpNet;

use crate::{AddressEditor, TestNetns};

/// The address that makes a router primary.
pub const VIP: &str = "169.254.0.1/24";

/// The link that has [`VIP`].
pub const LINK: &str = "ha-1";

/// A set of routers. Dropping it deletes their namespaces.
#[derive(Debug)]
pub struct Routers {
    directory: PathBuf,
    /// The routers.
    pub each: Vec<HaRouter>,
}

/// One router with its namespace.
#[derive(Debug)]
pub struct HaRouter {
    /// Router id.
    pub id: String,
    /// Namespace of the router.
    pub netns: TestNetns,
    editor: AddressEditor,
    link: u32,
    floating: Vec<IpNet>,
}

impl Routers {
    /// Creates `count` routers, each with `floating` floating addresses. `directory` is Neutron's `state_path`. The
    /// router ids begin with `prefix`.
    pub fn new(directory: &Path, prefix: &str, count: usize, floating: usize) -> Self {
        let ids: Vec<String> = (0..count).map(|number| format!("{prefix}-{number}")).collect();
        let names: Vec<String> = ids.iter().map(|id| format!("qrouter-{id}")).collect();
        let add: Vec<String> = names.iter().map(|name| format!("netns add {name}\n")).collect();
        batch(&mut Command::new("ip"), &add.concat());
        let mut routers = Self { directory: directory.to_owned(), each: Vec::new() };
        for (id, name) in ids.into_iter().zip(names) {
            let netns = TestNetns::adopt(&name);
            let peer = crate::peer_of(LINK);
            let links = format!(
                "link add {LINK} type veth peer name {peer}\nlink set lo up\n\
                 link set {LINK} up\nlink set {peer} up\n"
            );
            batch(Command::new("ip").args(["-n", &name]), &links);
            let floating: Vec<IpNet> = (0..floating)
                .map(|n| format!("10.{}.{}.{}/32", n / 62_500, n / 250 % 250, n % 250 + 1))
                .map(|text| text.parse().expect("a valid address"))
                .collect();
            write_conf(directory, &id, &floating);
            let editor = netns.editor();
            let link = editor.link(LINK);
            routers.each.push(HaRouter { id, netns, editor, link, floating });
        }
        routers
    }

    /// The `state_path` with the configurations.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Routers {
    fn drop(&mut self) {
        let names = self.each.iter().map(|router| router.netns.name());
        let del: Vec<String> = names.map(|name| format!("netns del {name}\n")).collect();
        // A test may have deleted some of them already.
        let _ = try_batch(Command::new("ip").arg("-force"), &del.concat());
        for router in self.each.drain(..) {
            router.netns.forget();
        }
    }
}

impl HaRouter {
    /// Adds the addresses in keepalived's order: [`VIP`] first, which makes the router primary.
    pub fn take(&self) {
        self.editor.add(self.link, vip());
        for address in &self.floating {
            self.editor.add(self.link, *address);
        }
    }

    /// Removes the addresses, [`VIP`] last.
    pub fn give_up(&self) {
        for address in &self.floating {
            self.editor.remove(self.link, *address);
        }
        self.editor.remove(self.link, vip());
    }

    /// The address editor of the namespace, and the index of [`LINK`].
    pub fn editor(&self) -> (&AddressEditor, u32) {
        (&self.editor, self.link)
    }
}

/// [`VIP`] as an address.
pub fn vip() -> IpNet {
    VIP.parse().expect("a valid address")
}

/// Writes `keepalived.conf` as the agent does.
pub fn write_conf(directory: &Path, id: &str, floating: &[IpNet]) {
    let directory = directory.join("ha_confs").join(id);
    std::fs::create_dir_all(&directory).expect("create a directory");
    let excluded: Vec<String> =
        floating.iter().map(|address| format!("        {address} dev {LINK}\n")).collect();
    let excluded = excluded.concat();
    let text = format!(
        "vrrp_instance VR_1 {{\n    state BACKUP\n    interface {LINK}\n    \
         virtual_router_id 1\n    priority 50\n    advert_int 2\n    virtual_ipaddress {{\n        \
         {VIP} dev {LINK}\n    }}\n    virtual_ipaddress_excluded {{\n{excluded}    }}\n}}\n"
    );
    // Renamed into place, as the agent does.
    let staged = directory.join("keepalived.conf.new");
    let written = std::fs::File::create(&staged)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&staged, directory.join("keepalived.conf")));
    written.expect("write the configuration");
}

#[track_caller]
fn batch(command: &mut Command, lines: &str) {
    assert!(try_batch(command, lines), "{command:?}: {lines}");
}

fn try_batch(command: &mut Command, lines: &str) -> bool {
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("start ip");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    stdin.write_all(lines.as_bytes()).expect("write to ip");
    drop(stdin);
    child.wait().expect("wait for ip").success()
}
