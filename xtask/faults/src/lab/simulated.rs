// SPDX-License-Identifier: Apache-2.0
//! A fourth node that exists only as records in etcd. The injector writes them itself, so they can have times that no
//! real node has: its clock steps back and forth by decades at each heartbeat.
//!
//! The records are written as docs/reference/cluster.md describes them, without code of the product.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::etcd::EtcdClient;
use crate::moment::pause;
use crate::setup::{ClusterTimes, LabSetup, PREFIX};
use crate::{FaultsError, LabResult};

/// The name of the simulated node.
pub const SIMULATED: &str = "sim";
/// Time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(700);
/// Seconds of its membership lease.
const MEMBER_LEASE: i64 = 600;
/// The times of the clock, one after the other.
const CLOCK: [&str; 3] = ["1970-01-02T00:00:00Z", "2099-12-31T23:59:59Z", "2026-01-01T00:00:00Z"];

/// The part that the simulated node has in the group of the first instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimulatedPart {
    Primary,
    Backup,
    /// It has two instances with the same VRID and addresses.
    TwoBackups,
}

/// The records of a simulated node in etcd.
#[derive(Clone)]
struct SimulatedRecords {
    etcd: EtcdClient,
    times: ClusterTimes,
    /// Its heartbeat lease and its membership lease, as hexadecimal numbers.
    lease: String,
    member: String,
}

/// A simulated node.
pub struct SimulatedNode {
    records: SimulatedRecords,
    has_ended: Arc<AtomicBool>,
    heartbeat: Option<JoinHandle<()>>,
    role_keys: Vec<String>,
}

impl SimulatedNode {
    /// Registers the node with a role of the first instance, and begins its heartbeat.
    pub fn start(
        etcd: EtcdClient,
        setup: &LabSetup,
        times: ClusterTimes,
        part: SimulatedPart,
    ) -> LabResult<Self> {
        let (lease, member) = (grant(&etcd, times.lease)?, grant(&etcd, MEMBER_LEASE)?);
        let records = SimulatedRecords { etcd, times, lease, member };
        records.put_member("running")?;
        let role = if part == SimulatedPart::Primary { "primary" } else { "backup" };
        let twice = (part == SimulatedPart::TwoBackups).then_some("VI_COPY");
        let mut role_keys = Vec::new();
        for instance in ["VI_1"].into_iter().chain(twice) {
            role_keys.push(records.put_role(setup, instance, role)?);
        }
        // A claim is confirmed by a heartbeat after the claim.
        let seen = records.put_node(2, records.put_node(1, 0)?)?;
        let has_ended = Arc::new(AtomicBool::new(false));
        let (beat, end) = (records.clone(), Arc::clone(&has_ended));
        let heartbeat = Some(std::thread::spawn(move || beat.renew(seen, &end)));
        Ok(Self { records, has_ended, heartbeat, role_keys })
    }

    /// Ends the heartbeat: the lease expires.
    pub fn fall_silent(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        if let Some(heartbeat) = self.heartbeat.take() {
            let _ = heartbeat.join();
        }
    }

    /// Ends the node as an orderly stop does, and forgets it.
    pub fn stop(&mut self) -> LabResult {
        self.fall_silent();
        self.records.put_member("stopped")?;
        // A role without a member is that of a lost node, so the member is last.
        let mut keys = vec![format!("node/{SIMULATED}")];
        keys.append(&mut self.role_keys);
        keys.push(format!("member/{SIMULATED}"));
        let etcd = &self.records.etcd;
        keys.iter().try_for_each(|key| etcd.run(&["del", &format!("{PREFIX}{key}")]).map(drop))
    }
}

/// A new lease, as the hexadecimal number that `etcdctl` prints.
fn grant(etcd: &EtcdClient, seconds: i64) -> LabResult<String> {
    let text = etcd.run(&["lease", "grant", &seconds.to_string()])?;
    let lease = text.split_whitespace().nth(1).map(str::to_owned);
    lease.ok_or_else(|| FaultsError(format!("no lease in {text:?}")))
}

impl SimulatedRecords {
    /// Renews the lease and the record of the node until it ends.
    fn renew(&self, mut seen: i64, has_ended: &AtomicBool) {
        for number in 3.. {
            pause(HEARTBEAT);
            if has_ended.load(Ordering::Relaxed) {
                return;
            }
            // A put does not renew the lease.
            let _ = self.etcd.run(&["lease", "keep-alive", "--once", &self.lease]);
            seen = self.put_node(number, seen).unwrap_or(seen);
        }
    }

    /// Writes a record; returns the revision.
    fn put(&self, key: &str, value: &Value, lease: &str) -> LabResult<i64> {
        let (key, value) = (format!("{PREFIX}{key}"), value.to_string());
        self.etcd.revision(&["put", &key, &value, "--lease", lease])
    }

    fn put_node(&self, heartbeat: usize, seen: i64) -> LabResult<i64> {
        let record = json!({
            "schema": 1, "node": SIMULATED, "epoch": "simulated", "process": "simulated", "version": "0.0.0",
            "heartbeat": heartbeat, "seen": seen, "seq": 1, "instances": 1, "at": CLOCK[heartbeat % CLOCK.len()],
            "started": CLOCK[(heartbeat + 1) % CLOCK.len()], "heartbeat_ms": self.times.heartbeat * 1000,
            "lease_s": self.times.lease,
        });
        self.put(&format!("node/{SIMULATED}"), &record, &self.lease)
    }

    fn put_member(&self, state: &str) -> LabResult<i64> {
        let lease = i64::from_str_radix(&self.member, 16)?;
        let record = json!({
            "schema": 1, "node": SIMULATED, "epoch": "simulated", "state": state, "lease": lease, "at": CLOCK[1],
        });
        self.put(&format!("member/{SIMULATED}"), &record, &self.member)
    }

    /// Writes the role of an instance; returns its key.
    fn put_role(&self, setup: &LabSetup, instance: &str, role: &str) -> LabResult<String> {
        let (facts, family) = (setup.instance(0), if setup.is_ipv6 { "ipv6" } else { "ipv4" });
        let key = format!("role/vrrp:{family}:{}/{SIMULATED}/{instance}", facts.vrid);
        let record = json!({
            "schema": 1, "node": SIMULATED, "instance": instance, "name": instance, "epoch": "simulated", "seq": 1,
            "role": role, "since": CLOCK[0], "origin": "keepalived", "interface": "eth0", "vrid": facts.vrid,
            "priority": 50, "advert_ms": setup.advert_millis, "vrrp_version": setup.version,
            "addresses": facts.addresses, "adverts": "other",
            "recent": [{ "seq": 1, "at": CLOCK[0], "to": role }],
        });
        self.put(&key, &record, &self.member).map(|_| key)
    }
}
