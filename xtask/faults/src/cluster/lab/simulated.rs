// SPDX-License-Identifier: Apache-2.0
//! A fourth node that exists only as records in etcd. The injector writes them itself, so they can have times that no
//! real node has: its clock steps back and forth by decades at each heartbeat.
//!
//! The records are written as docs/reference/cluster.md describes them, without code of the product.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::setup::{ClusterRunSetup, PREFIX};
use super::cluster_host::ClusterHost;
use super::etcd::revision_of;
use crate::FaultsError;
use crate::lab::output;
use crate::moment::pause;
use crate::setup::LabSetup;

/// The name of the simulated node.
pub const SIMULATED: &str = "sim";
/// Time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(700);
/// The times of the clock, one after the other.
const CLOCK: [&str; 3] = ["1970-01-02T00:00:00Z", "2099-12-31T23:59:59Z", "2026-01-01T00:00:00Z"];

/// A simulated node.
pub struct SimulatedNode {
    has_ended: Arc<AtomicBool>,
    heartbeat: Option<JoinHandle<()>>,
    role_keys: Vec<String>,
}

/// The part that the simulated node has in the group of the first instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedPart {
    Primary,
    Backup,
    /// It has two instances with the same VRID and addresses.
    TwoBackups,
}

impl SimulatedPart {
    /// The word in the log of the injector.
    pub fn word(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
            Self::TwoBackups => "two-backups",
        }
    }

    fn role(self) -> &'static str {
        if self == Self::Primary { "primary" } else { "backup" }
    }

    fn instances(self) -> &'static [&'static str] {
        if self == Self::TwoBackups { &["VI_1", "VI_COPY"] } else { &["VI_1"] }
    }
}

impl SimulatedNode {
    /// Registers the node with a role of the first instance, and begins its heartbeat.
    pub fn start(
        host: &ClusterHost,
        setup: &ClusterRunSetup,
        part: SimulatedPart,
    ) -> Result<Self, FaultsError> {
        let lease = grant(host, setup.times.lease)?;
        let member = grant(host, 600)?;
        let put = |key: &str, value: &Value, lease: &str| put(host, key, value, lease);
        put(&format!("member/{SIMULATED}"), &member_record("running", &member)?, &member)?;
        let mut role_keys = Vec::new();
        for instance in part.instances() {
            let key = role_key(setup, instance);
            put(&key, &role_record(setup, instance, part.role()), &member)?;
            role_keys.push(key);
        }
        let mut seen = put(&format!("node/{SIMULATED}"), &node_record(setup, 1, 0), &lease)?;
        // A claim is confirmed by a heartbeat after the claim.
        seen = put(&format!("node/{SIMULATED}"), &node_record(setup, 2, seen), &lease)?;
        let has_ended = Arc::new(AtomicBool::new(false));
        let heartbeat = Heartbeat {
            words: host
                .etcdctl(&[])
                .get_args()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            lease,
            setup: setup.clone(),
            has_ended: Arc::clone(&has_ended),
        };
        let heartbeat = std::thread::spawn(move || heartbeat.run(seen));
        Ok(Self { has_ended, heartbeat: Some(heartbeat), role_keys })
    }

    /// Ends the heartbeat: the lease expires.
    pub fn fall_silent(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        if let Some(heartbeat) = self.heartbeat.take() {
            let _ = heartbeat.join();
        }
    }

    /// Ends the node as an orderly stop does, and forgets it.
    pub fn stop(&mut self, host: &ClusterHost) -> Result<(), FaultsError> {
        self.fall_silent();
        let member = grant(host, 600)?;
        let record = member_record("stopped", &member)?;
        put(host, &format!("member/{SIMULATED}"), &record, &member)?;
        // A role without a member is that of a lost node, so the member is last.
        let mut keys = vec![format!("node/{SIMULATED}")];
        keys.extend(self.role_keys.clone());
        keys.push(format!("member/{SIMULATED}"));
        keys.iter().try_for_each(|key| {
            output(&mut host.etcdctl(&["del", &format!("{PREFIX}{key}")])).map(drop)
        })
    }
}

/// The thread of the heartbeat.
struct Heartbeat {
    words: Vec<String>,
    lease: String,
    setup: ClusterRunSetup,
    has_ended: Arc<AtomicBool>,
}

impl Heartbeat {
    fn run(&self, mut seen: i64) {
        for number in 3.. {
            pause(HEARTBEAT);
            if self.has_ended.load(Ordering::Relaxed) {
                return;
            }
            // A put does not renew the lease.
            let _ = output(self.etcdctl().args(["lease", "keep-alive", "--once", &self.lease]));
            let mut command = self.etcdctl();
            let record = node_record(&self.setup, number, seen).to_string();
            command.args(["put", &format!("{PREFIX}node/{SIMULATED}"), &record]);
            command.args(["--lease", &self.lease, "-w", "json"]);
            if let Ok(revision) = output(&mut command).and_then(|text| revision_of(&text)) {
                seen = revision;
            }
        }
    }

    /// `nsenter`, which runs `etcdctl` in the namespaces of the host.
    fn etcdctl(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.env("ETCDCTL_API", "3").args(&self.words);
        command
    }
}

/// A new lease, as the hexadecimal number that `etcdctl` prints.
fn grant(host: &ClusterHost, seconds: u64) -> Result<String, FaultsError> {
    let text = output(&mut host.etcdctl(&["lease", "grant", &seconds.to_string()]))?;
    let lease = text.split_whitespace().nth(1).map(str::to_owned);
    lease.ok_or_else(|| FaultsError(format!("no lease in {text:?}")))
}

/// Writes a record; returns the revision.
fn put(host: &ClusterHost, key: &str, value: &Value, lease: &str) -> Result<i64, FaultsError> {
    let (key, value) = (format!("{PREFIX}{key}"), value.to_string());
    let words = ["put", &key, &value, "--lease", lease, "-w", "json"];
    revision_of(&output(&mut host.etcdctl(&words))?)
}

fn node_record(setup: &ClusterRunSetup, heartbeat: usize, seen: i64) -> Value {
    json!({
        "schema": 1, "node": SIMULATED, "epoch": "simulated", "process": "simulated", "version": "0.0.0",
        "heartbeat": heartbeat, "seen": seen, "seq": 1, "instances": 1, "at": CLOCK[heartbeat % CLOCK.len()],
        "started": CLOCK[(heartbeat + 1) % CLOCK.len()], "heartbeat_ms": setup.times.heartbeat * 1000,
        "lease_s": setup.times.lease,
    })
}

fn member_record(state: &str, lease: &str) -> Result<Value, FaultsError> {
    let lease = i64::from_str_radix(lease, 16)?;
    Ok(json!({
        "schema": 1, "node": SIMULATED, "epoch": "simulated", "state": state, "lease": lease, "at": CLOCK[1],
    }))
}

fn role_key(setup: &ClusterRunSetup, instance: &str) -> String {
    let family = if setup.keepalived.is_ipv6 { "ipv6" } else { "ipv4" };
    format!("role/vrrp:{family}:{}/{SIMULATED}/{instance}", LabSetup::vrid(0))
}

fn role_record(setup: &ClusterRunSetup, instance: &str, role: &str) -> Value {
    json!({
        "schema": 1, "node": SIMULATED, "instance": instance, "name": instance, "epoch": "simulated", "seq": 1,
        "role": role, "since": CLOCK[0], "origin": "keepalived", "interface": "eth0", "vrid": LabSetup::vrid(0),
        "priority": 50, "advert_ms": setup.keepalived.advert_millis, "vrrp_version": setup.keepalived.version,
        "addresses": setup.keepalived.addresses(0), "adverts": "other",
        "recent": [{ "seq": 1, "at": CLOCK[0], "to": role }],
    })
}
