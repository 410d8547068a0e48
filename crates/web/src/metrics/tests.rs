// SPDX-License-Identifier: Apache-2.0
//! Tests of the text of metrics.

use std::sync::Arc;

use vipwatch_core::Role;
use vipwatch_core::keepalived::{FilePosition, VirtualAddress, VrrpInstance};
use vipwatch_node::discovery::{InstanceConfig, Origin};
use vipwatch_node::state::InstanceEntry;
use vipwatch_node::view::{ApiContext, keepalived_metrics, metrics};
use vipwatch_node::{Config, direct};

use super::*;

fn instance(id: &str, name: &str) -> InstanceConfig {
    let link = "eth0".parse().unwrap();
    let cidr = "192.0.2.1/24".parse().unwrap();
    let vrrp = VrrpInstance {
        position: FilePosition { file: 0, line: 1 },
        name: name.to_owned(),
        interface: Some(link),
        tracks_interface: true,
        vrid: Some(51),
        down_timer_adverts: 3,
        addresses: vec![VirtualAddress { cidr, link, base: None, is_excluded: false }],
        ..VrrpInstance::default()
    };
    InstanceConfig {
        id: id.parse().unwrap(),
        origin: Origin::Keepalived,
        netns: None,
        file: Arc::from(std::path::Path::new("/f")),
        vrrp: Arc::new(vrrp),
    }
}

fn context(instances: impl IntoIterator<Item = InstanceConfig>) -> ApiContext {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { state_dir: directory.path().to_owned(), ..Config::default() };
    let context = direct::history_context(&config);
    for instance in instances {
        let entry = InstanceEntry::new(Arc::new(instance), Role::Primary, Arc::from([]));
        context.store.insert(entry);
    }
    context
}

fn text(snapshot: MetricsSnapshot, format: MetricsFormat) -> String {
    MetricsText::new(snapshot, format).map(Result::unwrap).collect()
}

#[test]
fn open_metrics_has_one_head_for_each_family_and_an_end() {
    let instances = (0..500).map(|number| instance(&format!("I{number:04}"), "n"));
    let context = context(instances);
    let text = text(metrics(&context), MetricsFormat::OpenMetrics);
    assert!(text.ends_with("\n# EOF\n"), "{}", &text[text.len() - 100..]);
    for name in ["vipwatch_role_primary", "vipwatch_role", "vipwatch_delivery_latency_seconds"] {
        assert_eq!(text.matches(&format!("# TYPE {name} ")).count(), 1, "{name}");
    }
    assert!(text.contains("# TYPE vipwatch_transitions counter\n"), "without _total");
    assert!(text.contains("# TYPE vipwatch_build info\n"), "without _info");
    assert_eq!(text.matches("\nvipwatch_role_primary{").count(), 500);
    assert_eq!(text.matches("\nvipwatch_role{").count(), 2500);
    // The samples of a family are together.
    let is_of_role: Vec<bool> =
        text.lines().map(|line| line.starts_with("vipwatch_role{")).collect();
    let first = is_of_role.iter().position(|is_one| *is_one).unwrap();
    assert!(is_of_role[first..first + 2500].iter().all(|is_one| *is_one));
}

#[test]
fn parts_are_small_whatever_the_number_of_instances() {
    let context = context((0..2000).map(|number| instance(&format!("I{number}"), "n")));
    let parts = MetricsText::new(metrics(&context), MetricsFormat::OpenMetrics);
    let sizes: Vec<usize> = parts.map(|part| part.unwrap().len()).collect();
    assert!(sizes.len() > 20, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size < 3 * PART_BYTES), "{sizes:?}");
}

#[test]
fn the_older_format_has_full_names_and_neither_end_nor_info() {
    let text = text(metrics(&context([instance("A", "A")])), MetricsFormat::Classic);
    assert!(text.contains("# TYPE vipwatch_transitions_total counter\n"));
    assert!(text.contains("# TYPE vipwatch_build_info gauge\n"));
    assert!(
        text.contains("\nvipwatch_delivery_latency_seconds_bucket{le=\"+Inf\",stage=\"file\"} 0\n")
    );
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    assert_eq!(text.matches("# TYPE vipwatch_role ").count(), 1);
}

#[test]
fn hostile_names_cannot_end_a_label_or_add_a_line() {
    let long = "x".repeat(255);
    let names = [
        "a\"} 1\nvipwatch_role_primary{vrrp_group=\"forged\"} 1",
        "back\\slash\\",
        "\u{202e}gnp.exe\u{2066}",
        "<script>alert(1)</script>",
        "tab\tnul\0esc\u{1b}[2J",
        &long,
    ];
    let instances =
        names.iter().enumerate().map(|(number, name)| instance(&format!("I{number}"), name));
    let context = context(instances);
    let text = text(keepalived_metrics(&context), MetricsFormat::OpenMetrics);
    let states: Vec<&str> =
        text.lines().filter(|line| line.starts_with("keepalived_vrrp_state{")).collect();
    assert_eq!(states.len(), names.len(), "one line for each instance");
    assert!(!text.contains("\nvipwatch_role_primary"), "{text}");
    for (line, name) in states.iter().zip(names) {
        let escaped = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        assert!(line.contains(&format!("iname=\"{escaped}\",intf=")), "{line}");
    }
}

#[test]
fn a_client_gets_the_format_that_it_names() {
    let negotiate = |accept: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        MetricsFormat::negotiate(&headers).ok()
    };
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                      application/openmetrics-text;version=0.0.1;q=0.4,\
                      text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for accept in [prometheus, "*/*", "", "application/openmetrics-text"] {
        assert_eq!(negotiate(accept), Some(MetricsFormat::OpenMetrics), "{accept}");
    }
    for accept in ["text/plain", "text/html, text/*;q=0.5", "TEXT/PLAIN; version=0.0.4, */*"] {
        assert_eq!(negotiate(accept), Some(MetricsFormat::Classic), "{accept}");
    }
    assert_eq!(negotiate("image/png"), None);
    let none = MetricsFormat::negotiate(&HeaderMap::new()).unwrap();
    assert_eq!(none, MetricsFormat::OpenMetrics);
}
