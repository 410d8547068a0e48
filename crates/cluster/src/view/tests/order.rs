// SPDX-License-Identifier: Apache-2.0
//! The view does not depend on the order in which changes and range reads arrive.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// The changes of etcd: change N has revision N + 1.
#[derive(Debug, Clone)]
struct Change {
    key: usize,
    /// `None` for a deletion.
    value: Option<Vec<u8>>,
}

fn keys() -> Vec<ClusterKey> {
    let name = |name: &str| name.parse().unwrap();
    vec![
        ClusterKey::Node(name("a")),
        ClusterKey::Member(name("a")),
        role_key(&vrid_51(), "a", "VI_1"),
        role_key(&vrid_51(), "b", "VI_1"),
        role_key(&router("8b1c"), "a", "8b1c"),
        role_key(&router("8b1c"), "b", "8b1c"),
    ]
}

fn value(key: usize, seq: i64) -> Vec<u8> {
    let record = |node, instance| {
        let mut record = role_record(node, instance, Primary);
        record.seq = seq;
        // Instances that belong together or not, by addresses of which some are valid on their link only.
        let addresses: &[&str] = match seq % 4 {
            0 => &["192.0.2.80/24"],
            1 => &["169.254.0.1/24", "192.0.2.80/24"],
            2 => &["169.254.0.1/24", "192.0.2.81/24"],
            _ => &["169.254.0.1/24"],
        };
        record.addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        encode(&record)
    };
    match key {
        0 => encode(&node_record("a", seq.unsigned_abs(), 0)),
        1 => encode(&member_record("a", MemberState::Running)),
        2 => record("a", "VI_1"),
        3 => record("b", "VI_1"),
        4 => record("a", "8b1c"),
        _ => record("b", "8b1c"),
    }
}

/// One delivery to the view.
#[derive(Debug, Clone)]
enum Arrival {
    Event(Index),
    Read { prefix: Index, at: Index },
}

fn history() -> impl Strategy<Value = Vec<Change>> {
    let change = (0..6_usize, 0..4_u8);
    proptest::collection::vec(change, 1..24).prop_map(|changes| {
        let mut seq = 0;
        let change = |(key, kind)| {
            seq += 1;
            let value = match kind {
                0 => None,
                1 => Some(b"garbage".to_vec()),
                _ => Some(value(key, seq)),
            };
            Change { key, value }
        };
        changes.into_iter().map(change).collect()
    })
}

fn prefixes() -> [String; 6] {
    let keys = key_space();
    [
        keys.all().to_owned(),
        keys.nodes(),
        keys.members(),
        keys.roles(),
        keys.bucket(&vrid_51()),
        keys.bucket(&router("8b1c")),
    ]
}

fn apply(view: &mut ClusterView, history: &[Change], index: usize) {
    let change = &history[index];
    let mod_revision = i64::try_from(index).unwrap() + 1;
    let key = &keys()[change.key];
    view.apply(match &change.value {
        Some(value) => ViewChange::Put(stored(key, value.clone(), mod_revision)),
        None => ViewChange::Deleted { key: key_space().text(key), mod_revision },
    });
}

/// etcd's answer to a read of a prefix after the first `len` changes.
fn read(history: &[Change], len: usize, prefix: &str) -> Vec<StoredValue> {
    let mut values = BTreeMap::new();
    for (index, change) in history[..len].iter().enumerate() {
        let key = &keys()[change.key];
        let text = key_space().text(key);
        match &change.value {
            Some(value) => {
                let revision = i64::try_from(index).unwrap() + 1;
                values.insert(text, stored(key, value.clone(), revision))
            }
            None => values.remove(&text),
        };
    }
    values.into_values().filter(|value| value.key.starts_with(prefix)).collect()
}

/// Everything that the view shows.
fn shown(view: &ClusterView) -> String {
    let nodes: Vec<_> = view.nodes().collect();
    let roles: Vec<_> =
        view.buckets().map(|bucket| view.roles(&bucket).collect::<Vec<_>>()).collect();
    let groups: Vec<_> = view.groups().collect();
    format!("{nodes:#?} {roles:#?} {groups:#?} {:?} {}", view.ignored(), view.revision())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_view_does_not_depend_on_the_order_of_arrival(
        history in history(),
        extra in proptest::collection::vec(
            prop_oneof![
                any::<Index>().prop_map(Arrival::Event),
                (any::<Index>(), any::<Index>()).prop_map(|(prefix, at)| Arrival::Read { prefix, at }),
            ],
            0..12,
        ),
        order in any::<u64>(),
    ) {
        let mut in_order = ClusterView::new(key_space());
        for index in 0..history.len() {
            apply(&mut in_order, &history, index);
        }
        // Each event arrives at least once; further events arrive again, and ranges are read at any revision.
        let each = (0..history.len()).map(|index| (Some(index), None));
        let again = extra.iter().map(|arrival| match arrival {
            Arrival::Event(index) => (Some(index.index(history.len())), None),
            Arrival::Read { prefix, at } => (None, Some((prefix.index(6), at.index(history.len() + 1)))),
        });
        let mut arrivals: Vec<_> = each.chain(again).collect();
        shuffle(&mut arrivals, order);
        let mut view = ClusterView::new(key_space());
        for (event, range) in arrivals {
            if let Some(index) = event {
                apply(&mut view, &history, index);
            }
            if let Some((prefix, len)) = range {
                let prefix = &prefixes()[prefix];
                let revision = i64::try_from(len).unwrap();
                view.replace_range(prefix, read(&history, len, prefix), revision);
            }
        }
        prop_assert_eq!(shown(&view), shown(&in_order));
    }
}

/// An order that follows from a number.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed | 1;
    for index in (1..items.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let other = usize::try_from(state >> 33).unwrap() % (index + 1);
        items.swap(index, other);
    }
}
