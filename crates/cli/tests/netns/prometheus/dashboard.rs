// SPDX-License-Identifier: Apache-2.0
//! The Grafana dashboard: its form, and every query in it.

use std::collections::BTreeSet;

use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture, wait_showing};

use super::{EXAMPLES, Prometheus, TwoNodes};
use crate::support::{ADD_VIP, wait_for_role};

fn dashboard() -> Value {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/grafana/vipwatch.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn panels(dashboard: &Value) -> &[Value] {
    dashboard["panels"].as_array().unwrap()
}

/// One query of a panel.
struct PanelQuery {
    panel: String,
    expr: String,
}

fn queries(dashboard: &Value) -> Vec<PanelQuery> {
    let mut queries = Vec::new();
    for panel in panels(dashboard) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(PanelQuery {
                panel: panel["title"].as_str().unwrap().to_owned(),
                expr: target["expr"].as_str().unwrap().to_owned(),
            });
        }
    }
    queries
}

/// Replaces the variables of Grafana by values that select everything.
fn without_variables(expr: &str) -> String {
    let replaced = expr.replace("$__rate_interval", "1m");
    let names = ["job", "node", "group"];
    names.iter().fold(replaced, |text, name| text.replace(&format!("\"${name}\""), "\".+\""))
}

/// There is no Grafana here: these are the fields without which it does not import or draw a panel.
#[test]
fn the_dashboard_has_the_fields_that_grafana_requires() {
    let dashboard = dashboard();
    for field in ["title", "uid", "description"] {
        assert!(dashboard[field].as_str().is_some_and(|text| !text.is_empty()), "{field}");
    }
    assert!(dashboard["id"].is_null(), "Grafana assigns the id");
    assert!((36..=41).contains(&dashboard["schemaVersion"].as_u64().unwrap()));
    assert!(dashboard["time"]["from"].is_string() && dashboard["time"]["to"].is_string());
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: the id occurs twice");
        let position = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        let (x, y, w, h) = (position("x"), position("y"), position("w"), position("h"));
        assert!(w > 0 && h > 0 && x + w <= 24, "{title}: {}", panel["gridPos"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{title}: panels overlap at {cell:?}");
        }
        let kind = panel["type"].as_str().unwrap();
        if kind == "row" {
            assert!(panel["panels"].as_array().unwrap().is_empty() && panel["collapsed"] == false);
            continue;
        }
        assert!(["stat", "timeseries", "table", "state-timeline"].contains(&kind), "{kind}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(panel["fieldConfig"]["defaults"].is_object(), "{title}");
        assert!(panel["fieldConfig"]["overrides"].is_array() && panel["options"].is_object());
        let targets = panel["targets"].as_array().unwrap();
        let refs: BTreeSet<&str> =
            targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert!(!targets.is_empty() && refs.len() == targets.len(), "{title}: refId");
        for target in targets {
            assert_eq!(target["datasource"]["type"], "prometheus", "{title}");
            assert!(target["expr"].as_str().is_some_and(|expr| !expr.is_empty()), "{title}");
            assert_ne!(target["instant"], target["range"], "{title}");
        }
    }
    let required = dashboard["__requires"].as_array().unwrap();
    for panel in panels(&dashboard).iter().filter(|panel| panel["type"] != "row") {
        assert!(required.iter().any(|one| one["id"] == panel["type"]), "{}", panel["type"]);
    }
}

#[test]
fn every_variable_of_the_dashboard_is_defined_before_its_use() {
    let dashboard = dashboard();
    let mut known: Vec<String> = vec!["__rate_interval".to_owned()];
    let check = |text: &str, known: &[String]| {
        for part in text.split('$').skip(1) {
            let part = part.trim_start_matches('{');
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let name = &part[..part.find(|c| !is_name(c)).unwrap_or(part.len())];
            assert!(known.iter().any(|one| one == name), "${name} in {text}");
        }
    };
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if variable["type"] == "query" {
            assert_eq!(variable["datasource"]["uid"], "${datasource}");
            assert_eq!(variable["definition"], variable["query"]["query"]);
            check(variable["definition"].as_str().unwrap(), &known);
            assert_eq!(variable["allValue"], ".+");
        } else {
            assert_eq!(
                (&variable["type"], &variable["query"]),
                (&"datasource".into(), &"prometheus".into())
            );
        }
        known.push(variable["name"].as_str().unwrap().to_owned());
    }
    let all = queries(&dashboard);
    assert!(all.len() > 30);
    for query in &all {
        check(&query.expr, &known);
    }
    for name in known.iter().skip(2) {
        let is_used = all.iter().any(|query| query.expr.contains(&format!("${name}\"")));
        assert!(is_used, "${name} is not used");
    }
}

/// Queries that select faults: they may be empty on healthy nodes.
const MAY_BE_EMPTY: [&str; 2] = ["Groups that need attention", "Flapping"];

#[test]
fn prometheus_answers_every_query_of_the_dashboard() {
    let lab = Lab::new();
    let nodes = TwoNodes::new(&lab);
    let _running = nodes.fixtures.each_ref().map(NodeFixture::start);
    nodes.instances[0].ip(ADD_VIP);
    wait_for_role(&nodes.fixtures[0], "VI_1", "primary");
    let prometheus = Prometheus::start(lab.path(), &nodes.monitoring);
    // Rates need two scrapes of both nodes.
    prometheus.wait_for_value("count(count_over_time(vipwatch_netlink_sockets[1m]) >= 2)", "2");
    let dashboard = dashboard();
    for PanelQuery { panel, expr } in queries(&dashboard) {
        let query = without_variables(&expr);
        assert!(!query.contains('$'), "{query}");
        if MAY_BE_EMPTY.contains(&panel.as_str()) {
            let _ = prometheus.query(&query);
            continue;
        }
        let shown = || format!("{:?}", prometheus.api("query", &[format!("query={query}")]));
        wait_showing(&format!("data for {panel}: {query}"), shown, || {
            (!prometheus.query(&query).is_empty()).then_some(())
        });
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(definition) = variable["definition"].as_str() else { continue };
        let inner = definition.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (selector, label) = inner.rsplit_once(", ").unwrap();
        let selector = format!("match[]={}", without_variables(selector));
        let series = prometheus.api("series", &[selector]).unwrap();
        let series = series.as_array().unwrap();
        assert!(
            !series.is_empty() && series.iter().all(|one| one[label].is_string()),
            "{definition}"
        );
    }
}
