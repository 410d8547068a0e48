// SPDX-License-Identifier: Apache-2.0
//! The same changes by a plain client of etcd: one put for each change, and one watch of the prefix. It has no lease, no
//! transaction and no view, so that it is a lower limit for one change.

use std::collections::HashMap;
use std::time::Instant;

use etcd_client::{Client, WatchOptions};

use crate::measure::ms;

/// The prefix of the keys.
const PREFIX: &str = "/plain/";

/// A value as long as a record of a role.
const VALUE: [u8; 512] = [b'x'; 512];

/// Changes one key after the other; the time from each to the watch in ms.
pub fn one_by_one(endpoint: &str, count: usize) -> Vec<f64> {
    run(async {
        let (mut writer, mut stream) = clients(endpoint).await;
        let mut times = Vec::with_capacity(count);
        for number in 0..count {
            let began = Instant::now();
            writer.put(key(number), VALUE, None).await.expect("put");
            stream.message().await.expect("watch").expect("an event");
            times.push(ms(began.elapsed()));
        }
        times
    })
}

/// Changes many keys at once, each with a request of its own on one connection; the time from the start to the watch of
/// each in ms.
pub fn at_once(endpoint: &str, count: usize) -> Vec<f64> {
    run(async {
        let (writer, mut stream) = clients(endpoint).await;
        let began = Instant::now();
        for number in 0..count {
            let mut writer = writer.clone();
            tokio::spawn(async move { writer.put(key(number), VALUE, None).await.map(|_| ()) });
        }
        let mut times: HashMap<Vec<u8>, f64> = HashMap::new();
        while times.len() < count {
            let answer = stream.message().await.expect("watch").expect("an event");
            let at = ms(began.elapsed());
            let changed = answer.events().iter().filter_map(|event| event.kv());
            times.extend(changed.map(|entry| (entry.key().to_vec(), at)));
        }
        times.into_values().collect()
    })
}

fn key(number: usize) -> String {
    format!("{PREFIX}{number}")
}

/// A client that writes, and a watch of another client.
async fn clients(endpoint: &str) -> (Client, etcd_client::WatchStream) {
    let writer = Client::connect([endpoint], None).await.expect("connect to etcd");
    let mut watcher = Client::connect([endpoint], None).await.expect("connect to etcd");
    let options = WatchOptions::new().with_prefix();
    let mut stream = watcher.watch(PREFIX, Some(options)).await.expect("watch");
    let created = stream.message().await.expect("watch").expect("an answer");
    assert!(created.created(), "the first answer creates the watch");
    (writer, stream)
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("start a runtime").block_on(work)
}
