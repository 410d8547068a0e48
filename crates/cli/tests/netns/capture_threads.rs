// SPDX-License-Identifier: Apache-2.0
//! The packet sockets of a node's witness are in several tables of file descriptors: the kernel closes those of a killed
//! process one after the other in each table, and takes some 12 ms for each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use vipwatch_testkit::{Lab, NodeFixture, NodeProcess, TestNetns, wait_for, wait_showing};

use crate::support::{instance_conf, node_fixture, write};

/// Number of links, and of packet sockets.
const LINKS: usize = 40;

/// A thread must not have more packet sockets than this: 32 of them take less than half a second.
const MAX_SOCKETS_OF_A_THREAD: usize = 32;

/// A namespace with many links, and an instance on each of them.
fn fixture_with_links(lab: &Lab) -> (TestNetns, NodeFixture) {
    let netns = lab.netns("k");
    let fixture = node_fixture(lab);
    let instances = (0..LINKS).map(|number| {
        netns.add_link(&format!("eth{number}"));
        instance_conf(&format!("VI_{number}"), &format!("eth{number}"), &["192.0.2.9/24"])
    });
    let text = format!("net_namespace {}\n{}", netns.name(), instances.collect::<String>());
    write(&fixture.keepalived_conf(), &text);
    fixture.configure("[witness]\n");
    (netns, fixture)
}

/// The inodes of the packet sockets of a namespace, as `/proc/PID/fd` shows them.
fn packet_sockets(netns: &TestNetns) -> BTreeSet<String> {
    let table = netns.visit(|| std::fs::read_to_string("/proc/thread-self/net/packet").unwrap());
    let inodes = table.lines().skip(1).filter_map(|line| line.split_whitespace().last());
    inodes.map(|inode| format!("socket:[{inode}]")).collect()
}

/// The open files in a directory `fd` of `/proc`, without standard input, output and error.
fn files(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let numbered = entries.filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        (number > 2).then(|| std::fs::read_link(entry.path()).ok()).flatten()
    });
    numbered.map(|target| target.to_string_lossy().into_owned()).collect()
}

/// The open files of each thread with this name, by thread id.
fn files_of_threads(node: &NodeProcess, name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.pid())).unwrap().flatten();
    let named = tasks.filter(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    let with_files = named.map(|task| {
        (task.file_name().to_string_lossy().into_owned(), files(&task.path().join("fd")))
    });
    with_files.collect()
}

#[test]
fn a_killed_node_does_not_close_all_packet_sockets_one_after_the_other() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with_links(&lab);
    let node = fixture.start();
    let sockets = wait_for("a socket for each link", || {
        Some(packet_sockets(&netns)).filter(|sockets| sockets.len() == LINKS)
    });
    let main = files(Path::new(&format!("/proc/{}/fd", node.pid())));
    assert!(main.is_disjoint(&sockets), "the table of the process has packet sockets");
    // A thread opens the namespace for a moment while it opens a socket there.
    let threads = wait_showing(
        "threads with packet sockets only",
        || format!("{:?}", files_of_threads(&node, "capture")),
        || {
            let threads = files_of_threads(&node, "capture");
            threads.values().all(|files| files.is_subset(&sockets)).then_some(threads)
        },
    );
    assert!(threads.len() > 1, "{threads:?}");
    for (thread, files) in &threads {
        assert!(files.len() <= MAX_SOCKETS_OF_A_THREAD, "thread {thread}: {files:?}");
    }
    // A socket in two tables would be closed by the last of them.
    let count: usize = threads.values().map(BTreeSet::len).sum();
    assert_eq!(count, LINKS, "{threads:?}");
    node.kill();
    assert_eq!(packet_sockets(&netns), BTreeSet::new());
}

#[test]
fn threads_without_sockets_end() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with_links(&lab);
    let node = fixture.start();
    wait_for("a socket for each link", || (packet_sockets(&netns).len() == LINKS).then_some(()));
    fixture.configure("[witness]\nexclude = [\"eth1*\", \"eth2*\", \"eth3*\"]\n");
    node.reload();
    wait_for("few sockets", || (packet_sockets(&netns).len() == 7).then_some(()));
    fixture.configure("[witness]\nenabled = false\n");
    node.reload();
    wait_for("the end of the threads", || {
        files_of_threads(&node, "capture").is_empty().then_some(())
    });
    assert_eq!(packet_sockets(&netns), BTreeSet::new());
}
