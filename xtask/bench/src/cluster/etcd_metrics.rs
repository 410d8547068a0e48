// SPDX-License-Identifier: Apache-2.0
//! The metrics of etcd itself.

use vipwatch_testkit::Etcd;

/// Counters and gauges of one member.
#[derive(Debug, Clone, Default)]
pub struct EtcdMetrics {
    /// The size of the database, in bytes.
    pub database_bytes: f64,
    /// The bytes that the member has sent to its clients.
    pub sent_bytes: f64,
    /// Committed proposals: transactions, heartbeats and leases that changed something.
    pub proposals: f64,
    /// The CPU time of the member, in seconds.
    pub cpu: f64,
    /// Upper limits in seconds and cumulative counts of the time of an fsync of the log.
    fsyncs: Vec<(f64, f64)>,
}

impl EtcdMetrics {
    /// Reads the metrics of the member at `http://HOST:PORT`.
    pub fn read(endpoint: &str) -> Self {
        Self::parse(&Etcd::metrics(endpoint))
    }

    fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let fsync = name.strip_prefix("etcd_disk_wal_fsync_duration_seconds_bucket{le=\"");
            if let Some(limit) = fsync.and_then(|rest| rest.strip_suffix("\"}")) {
                metrics.fsyncs.push((limit.parse().unwrap_or(f64::INFINITY), value));
            }
            match name {
                "etcd_mvcc_db_total_size_in_bytes" => metrics.database_bytes = value,
                "etcd_network_client_grpc_sent_bytes_total" => metrics.sent_bytes = value,
                "process_cpu_seconds_total" => metrics.cpu = value,
                "etcd_server_proposals_committed_total" => metrics.proposals = value,
                _ => {}
            }
        }
        metrics
    }

    /// The growth of the counters since an earlier moment. The size of the database is that of now.
    pub fn since(&self, before: &Self) -> Self {
        let fsyncs = self.fsyncs.iter().zip(&before.fsyncs);
        Self {
            database_bytes: self.database_bytes,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            proposals: self.proposals - before.proposals,
            cpu: self.cpu - before.cpu,
            fsyncs: fsyncs.map(|(now, then)| (now.0, now.1 - then.1)).collect(),
        }
    }

    /// The limit in ms that 99 % of the fsyncs did not exceed; `None` if there were none, or if they took longer than the
    /// greatest limit.
    pub fn fsync_p99_ms(&self) -> Option<f64> {
        let total = self.fsyncs.last()?.1;
        let bucket = self.fsyncs.iter().find(|(_, count)| *count >= total * 0.99)?;
        (total > 0.0 && bucket.0.is_finite()).then_some(bucket.0 * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# TYPE etcd_mvcc_db_total_size_in_bytes gauge
etcd_mvcc_db_total_size_in_bytes 20480
etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"} 98
etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.002\"} 100
etcd_disk_wal_fsync_duration_seconds_bucket{le=\"+Inf\"} 100
etcd_network_client_grpc_sent_bytes_total 1.5e+06
";

    #[test]
    fn metrics_are_read_by_name() {
        let metrics = EtcdMetrics::parse(TEXT);
        assert!((metrics.database_bytes - 20_480.0).abs() < 0.1);
        assert!((metrics.sent_bytes - 1_500_000.0).abs() < 0.1);
        assert_eq!(metrics.fsync_p99_ms(), Some(2.0));
        assert_eq!(metrics.since(&metrics).fsync_p99_ms(), None, "no fsync since then");
    }
}
