// SPDX-License-Identifier: Apache-2.0
//! Metrics of the comparison with Neutron. Only the reporter asks Neutron, so only it has samples of the results.

use std::time::SystemTime;

use vipwatch_api::{ClusterNeutron, Timestamp};
use vipwatch_linux::clock;

use super::{EmitSample, MetricFamily, MetricValue, emit_one};
use crate::cluster::{ClusterService, NeutronCounters, NeutronErrorKind};

/// The facts about the comparison at one moment.
#[derive(Debug)]
pub(super) struct NeutronNumbers {
    status: ClusterNeutron,
    counters: NeutronCounters,
}

impl NeutronNumbers {
    /// `None` if no comparison is configured.
    pub(super) fn read(cluster: &ClusterService) -> Option<Self> {
        Some(Self { status: cluster.neutron()?, counters: cluster.neutron_counters()? })
    }
}

pub(super) const FAMILIES: &[MetricFamily] = families! { Neutron:
    Gauge "vipwatch_cluster_neutron_routers",
        "Routers with this result of the last comparison with Neutron; only the reporter has samples" =>
        |neutron, emit| {
            if neutron.status.is_asking && neutron.status.compared.is_some() {
                emit_routers(&neutron.status, emit);
            }
        };
    Gauge "vipwatch_cluster_neutron_compared_seconds",
        "Time since all routers were compared with Neutron; only the reporter has a sample" =>
        |neutron, emit| {
            if let Some(compared) = neutron.status.compared {
                emit(&[], MetricValue::Number(seconds_since(compared)));
            }
        };
    Counter "vipwatch_cluster_neutron_requests_total", "Routers that this node has asked Neutron about" =>
        |neutron, emit| emit_one(emit, neutron.counters.requests);
    Counter "vipwatch_cluster_neutron_errors_total", "Requests to Neutron without a usable answer" => |neutron, emit| {
        for (kind, count) in NeutronErrorKind::ALL.into_iter().zip(neutron.counters.errors) {
            emit(&[("kind", kind.word())], MetricValue::Count(count));
        }
    };
};

fn emit_routers(status: &ClusterNeutron, emit: &mut EmitSample<'_>) {
    let routers = status.routers;
    let counts = [
        ("equal", routers.equal),
        ("different", routers.different),
        ("unmatched", routers.unmatched),
        ("not-compared", routers.not_compared),
    ];
    for (result, count) in counts {
        emit(&[("result", result)], MetricValue::Count(count));
    }
}

fn seconds_since(time: Timestamp) -> f64 {
    let now = clock::unix_millis(SystemTime::now());
    let millis = now.saturating_sub(time.as_millisecond()).max(0);
    #[expect(clippy::cast_precision_loss, reason = "less than 2^52 ms")]
    let seconds = millis as f64 / 1000.0;
    seconds
}
