// SPDX-License-Identifier: Apache-2.0
//! Connections to etcd for tests.

use std::future::Future;
use std::time::Duration;

use vipwatch_cluster::etcd::{EtcdConnection, EtcdError, EtcdSettings};
use vipwatch_testkit::Etcd;

/// Runs a future to its end.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// Settings for all members of `etcd`.
pub(crate) fn settings(etcd: &Etcd) -> EtcdSettings {
    EtcdSettings { timeout: Duration::from_secs(10), ..EtcdSettings::new(etcd.endpoints()) }
}

/// A connection to the first member.
pub(crate) async fn connect(etcd: &Etcd) -> EtcdConnection {
    open(&settings(etcd)).await.unwrap()
}

/// A connection to the first endpoint of the settings.
pub(crate) async fn open(settings: &EtcdSettings) -> Result<EtcdConnection, EtcdError> {
    EtcdConnection::open(settings, &settings.endpoints[0]).await
}
