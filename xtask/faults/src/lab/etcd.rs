// SPDX-License-Identifier: Apache-2.0
//! The member of etcd on each host, and `etcdctl` in its namespaces.

use std::process::Command;

use serde_json::Value;

use super::host::LabHost;
use super::output;
use crate::setup::{HOSTS, etcd_address};
use crate::{FaultsError, LabResult};

/// The member of the own host.
const OWN_MEMBER: &str = "http://127.0.0.1:2379";

/// `etcdctl` in the namespaces of a host, with the member of this host as its server.
#[derive(Debug, Clone)]
pub struct EtcdClient {
    /// The first process of the host.
    init: u32,
}

impl LabHost {
    /// Starts the member of etcd. Its data is in memory, so that a slow disk delays no answer.
    pub fn start_etcd(&self) -> LabResult {
        let (index, own) = (self.index, etcd_address(self.index));
        let member = |host: usize| format!("m{host}=http://{}:2380", etcd_address(host));
        let members = (0..HOSTS).map(member).collect::<Vec<String>>().join(",");
        let line = format!(
            "etcd --name m{index} --data-dir /run/etcd --listen-peer-urls http://{own}:2380 \
             --initial-advertise-peer-urls http://{own}:2380 \
             --listen-client-urls http://{own}:2379,{OWN_MEMBER} --advertise-client-urls http://{own}:2379 \
             --initial-cluster-token lab --initial-cluster-state new --initial-cluster {members}"
        );
        self.start_service("etcd", &line)
    }

    pub fn etcd(&self) -> EtcdClient {
        EtcdClient { init: self.init }
    }
}

impl EtcdClient {
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-n", "-m", "-p", "--", "etcdctl"]);
        command.args(["--endpoints", OWN_MEMBER, "--command-timeout=1500ms"]).args(words);
        command.env("ETCDCTL_API", "3");
        command
    }

    pub fn run(&self, words: &[&str]) -> LabResult<String> {
        output(&mut self.command(words))
    }

    /// Whether the member of this host is the leader. A member that does not answer is not.
    pub fn is_leader(&self) -> bool {
        let text = self.run(&["endpoint", "status", "-w", "json"]).unwrap_or_default();
        let status: Value = serde_json::from_str(&text).unwrap_or_default();
        let (leader, own) =
            (&status[0]["Status"]["leader"], &status[0]["Status"]["header"]["member_id"]);
        leader.as_u64().is_some_and(|leader| leader != 0 && own.as_u64() == Some(leader))
    }

    /// The value of a key; `None` if there is none, or if etcd does not answer.
    pub fn value(&self, key: &str) -> Option<String> {
        let text = self.run(&["get", key, "--print-value-only"]).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Removes the history of etcd up to its present revision.
    pub fn compact(&self) -> LabResult {
        let revision = self.revision(&["get", "/revision"])?.to_string();
        self.run(&["compact", &revision]).map(drop)
    }

    /// Runs a command; returns the revision in the header of its answer.
    pub fn revision(&self, words: &[&str]) -> LabResult<i64> {
        let text = output(self.command(words).args(["-w", "json"]))?;
        let answer: Value = serde_json::from_str(&text)?;
        let revision = answer["header"]["revision"].as_i64();
        revision.ok_or_else(|| FaultsError(format!("no revision in {text:?}")))
    }
}
