// SPDX-License-Identifier: Apache-2.0
//! The same changes by a plain client of etcd: one put for each change, and one watch of the prefix. It has no lease, no
//! transaction and no view, so that it is a lower limit for one change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::timeout;
use vipwatch_cluster::etcd::messages::PutRequest;
use vipwatch_cluster::etcd::{EtcdConnection, EtcdSettings, WatchMessage, Watcher};
use vipwatch_cluster::view::ViewChange;

use crate::measure::ms;

/// The prefix of the keys.
const PREFIX: &str = "/plain/";

/// A value as long as a record of a role.
const VALUE: [u8; 512] = [b'x'; 512];

/// The maximum number of requests without an answer. etcd rejects requests when about 5,000 wait.
const MAX_REQUESTS: usize = 1_000;

/// Maximum time until the next change arrives.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Changes one key after the other; the time from each to the watch in ms.
pub fn one_by_one(endpoint: &str, count: usize) -> Vec<f64> {
    run(async {
        let (writer, mut watch) = clients(endpoint).await;
        let mut times = Vec::with_capacity(count);
        for number in 0..count {
            let began = Instant::now();
            put(&writer, number).await;
            watch.changed_keys().await;
            times.push(ms(began.elapsed()));
        }
        times
    })
}

/// Changes many keys at once, each with a request of its own on one connection, and at most [`MAX_REQUESTS`] at a time; the time from the start to the watch of
/// each in ms.
pub fn at_once(endpoint: &str, count: usize) -> Vec<f64> {
    run(async {
        let (writer, mut watch) = clients(endpoint).await;
        let writer = Arc::new(writer);
        let began = Instant::now();
        let slots = Arc::new(Semaphore::new(MAX_REQUESTS));
        for number in 0..count {
            let (writer, slots) = (writer.clone(), slots.clone());
            tokio::spawn(async move {
                let _slot = slots.acquire().await.expect("the semaphore stays open");
                put(&writer, number).await;
            });
        }
        let mut times: HashMap<String, f64> = HashMap::new();
        while times.len() < count {
            let changed = watch.changed_keys().await;
            let at = ms(began.elapsed());
            times.extend(changed.into_iter().map(|key| (key, at)));
        }
        times.into_values().collect()
    })
}

async fn put(writer: &EtcdConnection, number: usize) {
    let (key, value) = (format!("{PREFIX}{number}").into_bytes(), VALUE.to_vec());
    writer.call("a put", PutRequest { key, value, lease: 0 }).await.expect("put");
}

/// A watch of the prefix, on a connection of its own.
struct PrefixWatch {
    connection: EtcdConnection,
    watcher: Watcher,
}

impl PrefixWatch {
    /// The keys of the next message with changes.
    async fn changed_keys(&mut self) -> Vec<String> {
        loop {
            let message = self.connection.next_message(&mut self.watcher);
            let message = timeout(EVENT_TIMEOUT, message).await.expect("an event in time");
            if let WatchMessage::Changes { changes, .. } = message.expect("watch") {
                let keys = changes.into_iter().map(|change| match change {
                    ViewChange::Put(value) => value.key,
                    ViewChange::Deleted { key, .. } => key,
                });
                return keys.collect();
            }
        }
    }
}

/// A connection that writes, and a watch.
async fn clients(endpoint: &str) -> (EtcdConnection, PrefixWatch) {
    let mut settings = EtcdSettings::new(vec![endpoint.to_owned()]);
    settings.timeout = EVENT_TIMEOUT;
    let connect =
        async || EtcdConnection::open(&settings, endpoint).await.expect("connect to etcd");
    let (writer, connection) = (connect().await, connect().await);
    let first = connection.revision(PREFIX).await.expect("read") + 1;
    let (watcher, _) = connection.watch(PREFIX, first).await.expect("watch");
    (writer, PrefixWatch { connection, watcher })
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("start a runtime").block_on(work)
}
