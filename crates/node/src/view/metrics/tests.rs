// SPDX-License-Identifier: Apache-2.0
//! Tests of the values of metrics.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use vipwatch_core::{Role, RoleKind};

use super::*;
use crate::Config;
use crate::direct::history_context;
use crate::discovery::example;
use crate::state::TransitionCounts;

/// The samples of a family as text: labels, then the value.
fn samples(snapshot: &MetricsSnapshot, name: &str) -> Vec<String> {
    let family = snapshot.families().iter().find(|family| family.name == name).unwrap();
    let mut lines = Vec::new();
    snapshot.emit(family, 0..snapshot.steps(family), &mut |labels, value| {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let value = match value {
            MetricValue::Count(count) => count.to_string(),
            MetricValue::Number(number) => number.to_string(),
            MetricValue::Histogram(histogram) => format!("histogram {}", histogram.count),
        };
        lines.push(format!("{} {value}", labels.join(" ")).trim().to_owned());
    });
    lines
}

/// A context with one primary.
fn context(config: &Config) -> ApiContext {
    let context = history_context(config);
    let entry = InstanceEntry {
        since: SystemTime::UNIX_EPOCH + Duration::from_millis(1500),
        counts: TransitionCounts::default()
            .with(None, RoleKind::Backup)
            .with(Some(RoleKind::Backup), RoleKind::Primary),
        ..InstanceEntry::new(Arc::new(example()), Role::Primary, Arc::from([]))
    };
    context.store.insert(entry);
    context
}

#[test]
fn an_instance_has_its_role_as_a_number_and_as_a_state_set() {
    let snapshot = metrics(&context(&Config::default()));
    let labels = "vrrp_group=vrrp:ipv4:1:192.0.2.1 vrrp_instance=A netns=";
    assert_eq!(samples(&snapshot, "vipwatch_role_primary"), [format!("{labels} 1")]);
    let roles = samples(&snapshot, "vipwatch_role");
    assert_eq!(roles.len(), 5);
    assert!(roles.contains(&format!("{labels} role=primary 1")));
    assert_eq!(roles.iter().filter(|line| line.ends_with(" 1")).count(), 1);
    let since = samples(&snapshot, "vipwatch_role_since_timestamp_seconds");
    assert_eq!(since, [format!("{labels} 1.5")]);
    let transitions = samples(&snapshot, "vipwatch_transitions_total");
    let expected = ["fault 0", "primary 1", "backup 1"].map(|end| format!("{labels} to={end}"));
    assert_eq!(transitions, expected);
    let counts = samples(&snapshot, "vipwatch_instances");
    assert_eq!(counts[2..4], ["role=partial 0", "role=primary 1"]);
}

#[test]
fn without_metrics_of_instances_only_sums_remain() {
    let mut config = Config::default();
    config.metrics.is_per_instance = false;
    let context = context(&config);
    let to_primary = &context.store.counters.transitions_to[RoleKind::Primary as usize];
    to_primary.fetch_add(3, std::sync::atomic::Ordering::Relaxed);
    let snapshot = metrics(&context);
    let mut per_instance = Vec::new();
    for family in snapshot.families() {
        snapshot.emit(family, 0..snapshot.steps(family), &mut |labels, _| {
            if labels.iter().any(|(name, _)| *name == "vrrp_instance") {
                per_instance.push(family.name);
            }
        });
    }
    assert_eq!(per_instance, [""; 0]);
    assert!(samples(&snapshot, "vipwatch_transitions_total").contains(&"to=primary 3".to_owned()));
    assert!(samples(&snapshot, "vipwatch_instances").contains(&"role=primary 1".to_owned()));
}

#[test]
fn every_counter_of_the_status_is_a_family() {
    let context = context(&Config::default());
    let snapshot = metrics(&context);
    let names: BTreeSet<&str> = snapshot.families().iter().map(|family| family.name).collect();
    for (name, _) in context.store.counters.metrics() {
        assert!(names.contains(name), "{name} is not in /metrics");
    }
}

#[test]
fn the_label_is_the_id_of_the_group() {
    let context = context(&Config::default());
    let id = example().id;
    context.store.amend(&id, |entry| entry.group = "group:web".into());
    let lines = samples(&metrics(&context), "vipwatch_role_primary");
    assert_eq!(lines, ["vrrp_group=group:web vrrp_instance=A netns= 1"]);
}

#[test]
fn names_follow_the_rules_of_prometheus_and_no_label_is_one_of_its_own() {
    let context = context(&Config::default());
    for snapshot in [metrics(&context), keepalived_metrics(&context)] {
        let names: BTreeSet<&str> = snapshot.families().iter().map(|family| family.name).collect();
        assert_eq!(names.len(), snapshot.families().len(), "a name occurs twice");
        for family in snapshot.families() {
            let MetricFamily { name, kind, help, .. } = family;
            assert_eq!(name.ends_with("_total"), *kind == MetricKind::Counter, "{name}");
            assert_eq!(name.ends_with("_info"), *kind == MetricKind::Info, "{name}");
            let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.chars().all(is_plain), "{name}");
            assert!(!help.contains(['\n', '\\', '"']) && !help.ends_with('.'), "{name}: {help}");
            snapshot.emit(family, 0..snapshot.steps(family), &mut |labels, _| {
                let is_reserved = |label: &str| ["instance", "job", "le"].contains(&label);
                assert!(labels.iter().all(|(label, _)| !is_reserved(label)), "{name}");
            });
        }
    }
}

#[test]
fn the_names_of_keepalived_exporters_have_their_labels_and_numbers() {
    let context = context(&Config::default());
    let snapshot = keepalived_metrics(&context);
    let state = samples(&snapshot, "keepalived_vrrp_state");
    assert_eq!(state, ["iname=A intf=eth0 vrid=1 ip_address=192.0.2.1 vrrp_instance=A 2"]);
    let master = samples(&snapshot, "keepalived_become_master_total");
    assert_eq!(master, ["iname=A intf=eth0 vrid=1 vrrp_instance=A 1"]);
    assert!(samples(&snapshot, "keepalived_up").is_empty(), "processes are not read");
    for (role, number) in [(Role::Backup, Some("1")), (Role::Unknown("x".into()), None)] {
        context.store.amend(&example().id, |entry| entry.role = role);
        let state = samples(&keepalived_metrics(&context), "keepalived_vrrp_state");
        assert_eq!(state.first().map(|line| &line[line.len() - 1..]), number);
    }
}

#[test]
fn a_silence_of_the_cluster_is_counted_on_the_node_that_it_covers() {
    let mut context = context(&Config::default());
    let silences = crate::silence::Silences::new(Vec::new()).unwrap();
    let now = SystemTime::now();
    let row = silences.add(None, Duration::from_hours(1), "reboot", "root").unwrap();
    silences.set_of_cluster([(("cli.x".to_owned(), None), row)].into(), now);
    context.silences = Some(Arc::new(silences));
    assert_eq!(samples(&metrics(&context), "vipwatch_silences"), ["2"]);
    let items = crate::view::silences(&context).items;
    assert_eq!(
        (items[0].cluster_id.as_deref(), items[1].cluster_id.as_deref()),
        (None, Some("cli.x"))
    );
}
