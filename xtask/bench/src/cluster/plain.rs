// SPDX-License-Identifier: Apache-2.0
//! The same changes by a plain client of etcd: one put for each change, and one watch of the prefix. It has no lease, no
//! transaction and no view, so that it is a lower limit for one change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{Client, WatchOptions};
use tokio::sync::Semaphore;
use tokio::time::timeout;

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

/// Changes many keys at once, each with a request of its own on one connection, and at most [`MAX_REQUESTS`] at a time; the time from the start to the watch of
/// each in ms.
pub fn at_once(endpoint: &str, count: usize) -> Vec<f64> {
    run(async {
        let (writer, mut stream) = clients(endpoint).await;
        let began = Instant::now();
        let slots = Arc::new(Semaphore::new(MAX_REQUESTS));
        for number in 0..count {
            let (mut writer, slots) = (writer.clone(), slots.clone());
            tokio::spawn(async move {
                let _slot = slots.acquire().await.expect("the semaphore stays open");
                writer.put(key(number), VALUE, None).await.expect("put");
            });
        }
        let mut times: HashMap<Vec<u8>, f64> = HashMap::new();
        while times.len() < count {
            let answer = timeout(EVENT_TIMEOUT, stream.message()).await.expect("an answer in time");
            let answer = answer.expect("watch").expect("an event");
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
