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
/// Seconds of the lease of its membership.
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

/// A simulated node.
pub struct SimulatedNode {
    etcd: EtcdClient,
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
        put_member(&etcd, "running", &member)?;
        let role = if part == SimulatedPart::Primary { "primary" } else { "backup" };
        let twice = (part == SimulatedPart::TwoBackups).then_some("VI_COPY");
        let mut role_keys = Vec::new();
        for instance in ["VI_1"].into_iter().chain(twice) {
            let family = if setup.is_ipv6 { "ipv6" } else { "ipv4" };
            let vrid = setup.instance(0).vrid;
            let key = format!("role/vrrp:{family}:{vrid}/{SIMULATED}/{instance}");
            put(&etcd, &key, &role_record(setup, instance, role), &member)?;
            role_keys.push(key);
        }
        let mut seen = put_node(&etcd, times, 1, 0, &lease)?;
        // A claim is confirmed by a heartbeat after the claim.
        seen = put_node(&etcd, times, 2, seen, &lease)?;
        let has_ended = Arc::new(AtomicBool::new(false));
        let (thread_etcd, thread_end) = (etcd.clone(), Arc::clone(&has_ended));
        let heartbeat = std::thread::spawn(move || {
            beat(&thread_etcd, times, &lease, seen, &thread_end);
        });
        Ok(Self { etcd, has_ended, heartbeat: Some(heartbeat), role_keys })
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
        let member = grant(&self.etcd, MEMBER_LEASE)?;
        put_member(&self.etcd, "stopped", &member)?;
        // A role without a member is that of a lost node, so the member is last.
        let mut keys = vec![format!("node/{SIMULATED}")];
        keys.append(&mut self.role_keys);
        keys.push(format!("member/{SIMULATED}"));
        keys.iter().try_for_each(|key| self.etcd.run(&["del", &format!("{PREFIX}{key}")]).map(drop))
    }
}

/// Renews the lease and the record until the node ends.
fn beat(
    etcd: &EtcdClient,
    times: ClusterTimes,
    lease: &str,
    mut seen: i64,
    has_ended: &AtomicBool,
) {
    for number in 3.. {
        pause(HEARTBEAT);
        if has_ended.load(Ordering::Relaxed) {
            return;
        }
        // A put does not renew the lease.
        let _ = etcd.run(&["lease", "keep-alive", "--once", lease]);
        seen = put_node(etcd, times, number, seen, lease).unwrap_or(seen);
    }
}

/// A new lease, as the hexadecimal number that `etcdctl` prints.
fn grant(etcd: &EtcdClient, seconds: i64) -> LabResult<String> {
    let text = etcd.run(&["lease", "grant", &seconds.to_string()])?;
    let lease = text.split_whitespace().nth(1).map(str::to_owned);
    lease.ok_or_else(|| FaultsError(format!("no lease in {text:?}")))
}

/// Writes a record; returns the revision.
fn put(etcd: &EtcdClient, key: &str, value: &Value, lease: &str) -> LabResult<i64> {
    etcd.revision(&["put", &format!("{PREFIX}{key}"), &value.to_string(), "--lease", lease])
}

fn put_node(
    etcd: &EtcdClient,
    times: ClusterTimes,
    heartbeat: usize,
    seen: i64,
    lease: &str,
) -> LabResult<i64> {
    let record = json!({
        "schema": 1, "node": SIMULATED, "epoch": "simulated", "process": "simulated", "version": "0.0.0",
        "heartbeat": heartbeat, "seen": seen, "seq": 1, "instances": 1, "at": CLOCK[heartbeat % CLOCK.len()],
        "started": CLOCK[(heartbeat + 1) % CLOCK.len()], "heartbeat_ms": times.heartbeat * 1000,
        "lease_s": times.lease,
    });
    put(etcd, &format!("node/{SIMULATED}"), &record, lease)
}

fn put_member(etcd: &EtcdClient, state: &str, lease: &str) -> LabResult<i64> {
    let record = json!({
        "schema": 1, "node": SIMULATED, "epoch": "simulated", "state": state,
        "lease": i64::from_str_radix(lease, 16)?, "at": CLOCK[1],
    });
    put(etcd, &format!("member/{SIMULATED}"), &record, lease)
}

fn role_record(setup: &LabSetup, instance: &str, role: &str) -> Value {
    let facts = setup.instance(0);
    json!({
        "schema": 1, "node": SIMULATED, "instance": instance, "name": instance, "epoch": "simulated", "seq": 1,
        "role": role, "since": CLOCK[0], "origin": "keepalived", "interface": "eth0", "vrid": facts.vrid,
        "priority": 50, "advert_ms": setup.advert_millis, "vrrp_version": setup.version,
        "addresses": facts.addresses, "heard": "other",
        "recent": [{ "seq": 1, "at": CLOCK[0], "to": role }],
    })
}
