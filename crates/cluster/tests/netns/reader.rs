// SPDX-License-Identifier: Apache-2.0
//! The reader of the command line.

use std::time::Duration;

use vipwatch_api::ClusterNodeState;
use vipwatch_cluster::reader::{EtcdReader, ReadProgress};
use vipwatch_testkit::{Etcd, Lab, wait_showing};

use crate::node::{TestNode, lasting_session, state_of};
use crate::support::settings;

use ClusterNodeState::{Live, Lost, Stopped};

/// Follows etcd until the node has a state. Returns the states of the node after each change.
#[track_caller]
fn states_until(
    reader: &mut EtcdReader,
    node: &str,
    wanted: ClusterNodeState,
) -> Vec<ClusterNodeState> {
    let mut states = Vec::new();
    wait_showing("the state of the node", String::new, || {
        if reader.wait(Duration::from_secs(1)) == ReadProgress::Changed {
            states.extend(state_of(&reader.view(), node));
        }
        (states.last() == Some(&wanted)).then_some(())
    });
    states
}

/// `node/NODE` and `member/NODE` are written in one transaction, and arrive in any order.
#[test]
fn a_node_that_is_restarted_in_an_orderly_way_is_never_lost_for_a_reader() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let start = || {
        let node = TestNode::start(lasting_session(&settings(&etcd), "a"), &[]);
        node.wait_registered();
        node
    };
    let mut node = start();
    let mut reader = EtcdReader::open(settings(&etcd), "test".parse().unwrap()).unwrap();
    assert_eq!(state_of(&reader.view(), "a"), Some(Live));
    for _ in 0..20 {
        node.stop();
        let states = states_until(&mut reader, "a", Stopped);
        assert!(!states.contains(&Lost), "{states:?}");
        node = start();
        let states = states_until(&mut reader, "a", Live);
        assert!(!states.contains(&Lost), "{states:?}");
    }
}
