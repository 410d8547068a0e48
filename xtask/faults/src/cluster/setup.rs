// SPDX-License-Identifier: Apache-2.0
//! The lab of one seed: keepalived's configuration, and the times of the cluster view.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::random::SeededRandom;
use crate::setup::LabSetup;

/// The number of hosts. Each has keepalived, a member of etcd and a node.
pub const HOSTS: usize = 3;
/// The name of the target of all nodes.
pub const TARGET: &str = "recorder";
/// The address of the recorder of notifications.
pub const RECORDER: &str = "10.7.0.254:8080";
/// The prefix of all keys of vipwatch.
pub const PREFIX: &str = "/vipwatch/v1/default/";

/// `node.audit_every` of each node: the shortest time that it accepts.
pub const AUDIT_SECONDS: u64 = 10;
/// The group that one node can have in its configuration.
pub const GROUP: &str = "lab";

/// Seconds of the settings of `[cluster]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterTimes {
    pub heartbeat: u64,
    pub lease: u64,
    pub settle: u64,
    pub slow_settle: u64,
}

/// The properties of one lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRunSetup {
    /// keepalived's configuration, which all hosts share.
    pub keepalived: LabSetup,
    pub times: ClusterTimes,
    pub min_backups: u8,
    /// Each node follows all groups of the domain.
    pub has_full_view: bool,
    /// The injector can step the wall clock of each node.
    pub has_own_clocks: bool,
}

/// The files and the name of one `vipwatch node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFiles {
    pub name: String,
    pub config: PathBuf,
    pub state: PathBuf,
    pub socket: PathBuf,
}

impl NodeFiles {
    /// Those of the node of a host.
    pub fn of_host(host: usize, directory: &Path) -> Self {
        Self {
            name: node_name(host),
            config: directory.join("vipwatch.toml"),
            state: directory.join("state"),
            socket: directory.join("node.sock"),
        }
    }

    /// Those of a second node on a host, with the name of the node of another host.
    pub fn of_twin(name: String, directory: &Path) -> Self {
        Self {
            name,
            config: directory.join("twin.toml"),
            state: directory.join("twin-state"),
            socket: directory.join("twin.sock"),
        }
    }
}

impl ClusterRunSetup {
    pub fn of(seed: u64) -> Self {
        let mut random = SeededRandom::new(seed ^ 0xC1_5735);
        let mut priorities = vec![150, 120, 90];
        random.shuffle(&mut priorities);
        let is_ipv6 = random.chance(25);
        let version = if is_ipv6 || random.chance(50) { 3 } else { 2 };
        let keepalived = LabSetup {
            seed,
            priorities,
            version,
            is_ipv6,
            is_unicast: random.chance(25),
            has_vmac: false,
            has_sync_group: random.chance(40),
            has_track_script: false,
            is_nopreempt: random.chance(30),
            has_two_addresses: is_ipv6 || random.chance(30),
            captures_sent: false,
            advert_millis: if version == 3 { random.one_of(&[1000, 500]) } else { 1000 },
        };
        let times = ClusterTimes { heartbeat: 1, lease: 3, settle: 2, slow_settle: 4 };
        let min_backups = if random.chance(50) { 2 } else { 1 };
        let has_full_view = random.chance(30);
        Self { keepalived, times, min_backups, has_full_view, has_own_clocks: false }
    }

    /// A short description for the table of results.
    pub fn label(&self) -> String {
        let mut label = self.keepalived.label();
        let _ = write!(label, " backups>={}", self.min_backups);
        if self.has_full_view {
            label.push_str(" full");
        }
        label
    }

    /// Everything that the checker must know about the lab.
    pub fn document(&self) -> Value {
        let mut document = self.keepalived.document();
        document["kind"] = json!("cluster");
        document["label"] = json!(self.label());
        document["min_backups"] = json!(self.min_backups);
        document["is_ipv6"] = json!(self.keepalived.is_ipv6);
        let ClusterTimes { heartbeat, lease, settle, slow_settle } = self.times;
        document["times"] = json!({
            "heartbeat": heartbeat, "lease": lease, "settle": settle, "slow_settle": slow_settle,
            "audit": AUDIT_SECONDS,
        });
        document
    }

    /// The configuration of a node on one host, in the directory of the host.
    pub fn node_conf(&self, host: usize, directory: &Path, files: &NodeFiles) -> String {
        let directory = directory.display();
        let (state, socket) = (files.state.display(), files.socket.display());
        let ClusterTimes { heartbeat, lease, settle, slow_settle } = self.times;
        let view = if self.has_full_view { "full" } else { "own" };
        let endpoints: Vec<String> = (0..HOSTS)
            .map(|member| format!("\"http://{}:2379\"", etcd_address((host + member) % HOSTS)))
            .collect();
        format!(
            "[node]\nname = \"{name}\"\nstate_dir = \"{state}\"\nsocket = \"{socket}\"\n\
             log = \"text\"\naudit_every = \"{AUDIT_SECONDS}s\"\n[find]\nkeepalived_conf = \"{directory}/keepalived.conf\"\n\
             neutron_state_path = \"{directory}/neutron\"\n[witness]\nenabled = true\nsent = []\n\
             [cluster]\nendpoints = [{endpoints}]\nview = \"{view}\"\nheartbeat = \"{heartbeat}s\"\n\
             lease = \"{lease}s\"\nsettle = \"{settle}s\"\nslow_settle = \"{slow_settle}s\"\n\
             min_backups = {min_backups}\n\
             [[notify]]\ninstances = [\"*\"]\n[[notify.webhook]]\nname = \"{TARGET}\"\n\
             url = \"http://{RECORDER}/{name}\"\non = [\"finding\"]\ndeliver = \"every\"\n",
            name = files.name,
            endpoints = endpoints.join(", "),
            min_backups = self.min_backups,
        )
    }
}

/// The lines of a node's configuration that put the first instance into [`GROUP`].
pub fn group_conf() -> String {
    format!("[[group]]\nname = \"{GROUP}\"\ninstances = [\"VI_1\"]\n")
}

/// The name of a node.
pub fn node_name(host: usize) -> String {
    format!("node{host}")
}

/// The address of a member of etcd in the management network.
pub fn etcd_address(host: usize) -> String {
    format!("10.8.0.{}", host + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_lab_and_other_seeds_give_other_labs() {
        assert_eq!(ClusterRunSetup::of(7), ClusterRunSetup::of(7));
        let labels: std::collections::BTreeSet<String> =
            (0..50).map(|seed| ClusterRunSetup::of(seed).label()).collect();
        assert!(labels.len() > 20, "{labels:?}");
    }

    #[test]
    fn all_members_are_endpoints_of_each_node() {
        let directory = Path::new("/lab");
        let files = NodeFiles::of_host(1, directory);
        let text = ClusterRunSetup::of(1).node_conf(1, directory, &files);
        assert!(
            text.contains("endpoints = [\"http://10.8.0.2:2379\", \"http://10.8.0.3:2379\""),
            "{text}"
        );
    }
}
