// SPDX-License-Identifier: Apache-2.0
//! Compares two layouts of the keys of roles with a real etcd: `role/BUCKET/NODE` and `role/NODE/BUCKET`.
//!
//! ```console
//! $ cargo run --release -p vipwatch-cluster --example key_layout
//! ```

#![expect(clippy::print_stdout, reason = "a program for developers that prints its measurements")]
#![expect(clippy::unwrap_used, reason = "a failure is shown as a panic")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use vipwatch_cluster::etcd::messages::RequestOp;
use vipwatch_cluster::etcd::{EtcdConnection, EtcdSettings, ReadLimit, WatchMessage};
use vipwatch_testkit::Etcd;

/// Each node has as many roles as there are nodes, and each group has a role on two nodes.
const NODES: usize = 100;

/// The length of a role as JSON, in bytes.
const VALUE: usize = 512;

const ROUNDS: usize = 9;

/// The nodes of a group: any two nodes share about two groups.
fn nodes_of(group: usize) -> [usize; 2] {
    let (first, distance) = (group % NODES, group / NODES);
    [first, (first + distance * 2 + 1) % NODES]
}

fn roles() -> impl Iterator<Item = (String, String)> {
    (0..NODES * NODES / 2).flat_map(|group| {
        nodes_of(group).map(|node| {
            let bucket = format!("router:00000000-0000-0000-0000-{group:012}");
            (bucket, format!("network-{node:03}.example.net"))
        })
    })
}

fn main() {
    let directory = std::env::temp_dir().join(format!("key-layout-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let etcd = Etcd::single(&directory);
    let settings =
        EtcdSettings { timeout: Duration::from_secs(10), ..EtcdSettings::new(etcd.endpoints()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connection = EtcdConnection::open(&settings, &settings.endpoints[0]).await.unwrap();
        let own = "network-000.example.net";
        let mine: BTreeSet<String> =
            roles().filter(|(_, node)| node == own).map(|(bucket, _)| bucket).collect();
        let peers: BTreeSet<String> =
            roles().filter(|(bucket, _)| mine.contains(bucket)).map(|(_, node)| node).collect();
        let by_group = |(bucket, node): (String, String)| format!("/g/{bucket}/{node}");
        let by_node = |(bucket, node): (String, String)| format!("/n/{node}/{bucket}");
        let groups: Vec<String> = mine.iter().map(|bucket| format!("/g/{bucket}/")).collect();
        let nodes: Vec<String> = peers.iter().map(|node| format!("/n/{node}/")).collect();
        write(&connection, roles().map(by_group)).await;
        write(&connection, roles().map(by_node)).await;
        println!(
            "{} roles, {} groups of one node, {} nodes share one of them",
            NODES * NODES,
            groups.len(),
            nodes.len()
        );
        measure(&connection, "role/BUCKET/NODE: own groups", &groups, roles().map(by_group)).await;
        measure(
            &connection,
            "role/NODE/BUCKET: nodes with a common group",
            &nodes,
            roles().map(by_node),
        )
        .await;
    });
    drop(etcd);
    std::fs::remove_dir_all(&directory).unwrap();
}

async fn write(connection: &EtcdConnection, keys: impl Iterator<Item = String>) {
    let keys: Vec<String> = keys.collect();
    for batch in keys.chunks(100) {
        let puts = batch.iter().map(|key| RequestOp::put(key, vec![b'x'; VALUE], None)).collect();
        connection.commit(Vec::new(), puts, "/").await.unwrap();
    }
}

/// Reads the ranges several times, and then watches them while all roles of the domain change.
async fn measure(
    connection: &EtcdConnection,
    name: &str,
    ranges: &[String],
    all: impl Iterator<Item = String>,
) {
    let limit = |_: &str| ReadLimit { records: usize::MAX, bytes: usize::MAX };
    let revision = connection.revision("/").await.unwrap();
    let (mut times, mut keys, mut bytes) = (Vec::new(), 0, 0);
    for _ in 0..ROUNDS {
        (keys, bytes) = (0, 0);
        let begin = Instant::now();
        let count = |range: vipwatch_cluster::etcd::RangeValues| {
            keys += range.values.len();
            bytes += range.values.iter().map(|it| it.key.len() + it.value.len()).sum::<usize>();
        };
        connection.read_prefixes(ranges, revision, limit, count).await.unwrap();
        times.push(begin.elapsed());
    }
    times.sort();
    let (mut watcher, _) = connection.watch(&ranges[0], revision + 1).await.unwrap();
    for range in &ranges[1..] {
        watcher.add(range, revision + 1);
    }
    write(connection, all).await;
    let begin = Instant::now();
    let mut events = 0;
    while events < keys {
        if let WatchMessage::Changes { changes, .. } =
            connection.next_message(&mut watcher).await.unwrap()
        {
            events += changes.len();
        }
    }
    println!(
        "{name}: read {keys} keys, {} KiB, {:.1} ms (median of {ROUNDS}); {} watches, {events} changes when all roles \
         change, {:.0} ms after the last write",
        bytes / 1024,
        times[ROUNDS / 2].as_secs_f64() * 1000.0,
        ranges.len(),
        begin.elapsed().as_secs_f64() * 1000.0,
    );
}
