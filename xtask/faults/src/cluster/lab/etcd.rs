// SPDX-License-Identifier: Apache-2.0
//! The member of etcd on each host, and `etcdctl` in its namespaces.

use std::process::Command;

use serde_json::Value;

use super::super::setup::{HOSTS, etcd_address};
use super::cluster_host::ClusterHost;
use crate::FaultsError;
use crate::lab::output;

/// The member of the own host.
const OWN_MEMBER: &str = "http://127.0.0.1:2379";

impl ClusterHost {
    /// Starts the member of etcd. Its data is in memory, so that a slow disk delays no answer.
    pub fn start_etcd(&self) -> Result<(), FaultsError> {
        let (index, own) = (self.index(), etcd_address(self.index()));
        let members: Vec<String> = (0..HOSTS)
            .map(|member| format!("m{member}=http://{}:2380", etcd_address(member)))
            .collect();
        let line = format!(
            "etcd --name m{index} --data-dir /run/etcd --listen-peer-urls http://{own}:2380 \
             --initial-advertise-peer-urls http://{own}:2380 \
             --listen-client-urls http://{own}:2379,{OWN_MEMBER} --advertise-client-urls http://{own}:2379 \
             --initial-cluster-token lab --initial-cluster-state new --initial-cluster {}",
            members.join(",")
        );
        self.start_service("etcd", &line)
    }

    /// `etcdctl`, with the member of this host as its server.
    pub fn etcdctl(&self, words: &[&str]) -> Command {
        let mut command = self.base.command("etcdctl");
        command.env("ETCDCTL_API", "3").args([
            "--endpoints",
            OWN_MEMBER,
            "--command-timeout=1500ms",
        ]);
        command.args(words);
        command
    }

    /// Whether the member of this host is the leader. A member that does not answer is not.
    pub fn is_leader(&self) -> bool {
        let Ok(text) = output(&mut self.etcdctl(&["endpoint", "status", "-w", "json"])) else {
            return false;
        };
        let status: Value = serde_json::from_str(&text).unwrap_or_default();
        let status = &status[0]["Status"];
        status["leader"].as_u64().is_some_and(|leader| {
            leader != 0 && status["header"]["member_id"].as_u64() == Some(leader)
        })
    }

    /// The value of a key; `None` if there is none, or if etcd does not answer.
    pub fn etcd_value(&self, key: &str) -> Option<String> {
        let text = output(&mut self.etcdctl(&["get", key, "--print-value-only"])).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The revision of etcd; an error if etcd does not answer.
    pub fn etcd_revision(&self) -> Result<i64, FaultsError> {
        let text = output(&mut self.etcdctl(&["get", "/revision", "-w", "json"]))?;
        revision_of(&text)
    }

    /// Removes the history of etcd up to its present revision.
    pub fn compact_etcd(&self) -> Result<(), FaultsError> {
        let revision = self.etcd_revision()?.to_string();
        output(&mut self.etcdctl(&["compact", &revision])).map(drop)
    }
}

/// The revision in the header of an answer.
pub fn revision_of(text: &str) -> Result<i64, FaultsError> {
    let answer: Value = serde_json::from_str(text)?;
    let revision = answer["header"]["revision"].as_i64();
    revision.ok_or_else(|| FaultsError(format!("no revision in {text:?}")))
}
