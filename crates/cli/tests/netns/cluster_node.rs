// SPDX-License-Identifier: Apache-2.0
//! A node of a cluster, for tests with a real etcd: a process of its own, with an instance in a namespace of its own.

use std::path::Path;

use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns};

use crate::support::{PROGRAM, query_json, write};

/// Arguments of `ip` that make the instance of a [`ClusterNode`] primary.
pub(crate) const ADD: &str = "address add 192.0.2.80/24 dev eth0";
/// Arguments of `ip` that make the instance of a [`ClusterNode`] backup.
pub(crate) const REMOVE: &str = "address del 192.0.2.80/24 dev eth0";
/// The group of the instances of all nodes.
pub(crate) const GROUP: &str = "vrrp:ipv4:51:192.0.2.80";

/// A node of the cluster.
pub(crate) struct ClusterNode {
    name: &'static str,
    pub(crate) netns: TestNetns,
    pub(crate) fixture: NodeFixture,
    /// The configuration, without the part that differs between tests.
    pub(crate) config: String,
}

impl ClusterNode {
    /// A node with one instance, which is in a namespace of its own. `more` is added to its configuration.
    pub(crate) fn new(lab: &Lab, name: &'static str, endpoints: &[String], more: &str) -> Self {
        Self::with_lease(lab, name, endpoints, "3s", more)
    }

    pub(crate) fn with_lease(
        lab: &Lab,
        name: &'static str,
        endpoints: &[String],
        lease: &str,
        more: &str,
    ) -> Self {
        let netns = lab.netns(name);
        netns.add_link("eth0");
        let directory = lab.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let fixture = NodeFixture::new(Path::new(PROGRAM), &directory);
        write(&fixture.keepalived_conf(), "");
        let instance = format!(
            "[[instance]]\nid = \"VI_1\"\nnetns = \"{}\"\naddresses = [\"192.0.2.80/24 dev eth0\"]\nvrid = 51\n",
            netns.name()
        );
        let cluster = format!(
            "[cluster]\nendpoints = {endpoints:?}\nheartbeat = \"1s\"\nlease = \"{lease}\"\nsettle = \"500ms\"\n"
        );
        let config = format!("[node]\nname = \"{name}\"\n{cluster}{instance}");
        fixture.configure(&format!("{config}{more}"));
        Self { name, netns, fixture, config }
    }

    pub(crate) fn start(&self) -> NodeProcess {
        self.fixture.start()
    }

    /// The members of the group in the view of this node, each as `NODE STATE ROLE`.
    pub(crate) fn members(&self) -> Vec<String> {
        let groups = query_json(&self.fixture, &["cluster", "status"]);
        let group = groups["items"].as_array().into_iter().flatten().find(|one| one["id"] == GROUP);
        let members = group.and_then(|group| group["members"].as_array()).into_iter().flatten();
        let text = |key: &str, member: &Value| member[key].as_str().unwrap_or_default().to_owned();
        members
            .map(|one| {
                let [node, state, role] = ["node", "node_state", "role"].map(|key| text(key, one));
                format!("{node} {state} {role}")
            })
            .collect()
    }

    pub(crate) fn wait_for_members(&self, expected: &[&str]) {
        let what = format!("{} to see {expected:?}", self.name);
        vipwatch_testkit::wait_showing(
            &what,
            || format!("{:?}\n{}", self.members(), self.fixture.log()),
            || (self.members() == expected).then_some(()),
        );
    }

    /// The names of the open findings of the cluster.
    pub(crate) fn findings(&self) -> Vec<String> {
        let list = query_json(&self.fixture, &["cluster", "findings"]);
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().filter_map(|item| Some(item["name"].as_str()?.to_owned())).collect()
    }

    pub(crate) fn wait_for_finding(&self, name: &str) {
        let what = format!("{} to see {name}", self.name);
        vipwatch_testkit::wait_showing(
            &what,
            || self.fixture.log(),
            || self.findings().iter().any(|found| found == name).then_some(()),
        );
    }

    pub(crate) fn connection(&self) -> String {
        let status = query_json(&self.fixture, &["cluster", "status"]);
        status["connection"].as_str().unwrap_or_default().to_owned()
    }
}
