// SPDX-License-Identifier: Apache-2.0
//! `/metrics` and the metrics file of a running node.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use serde_json::Value;
use vipwatch_api::FindingList;
use vipwatch_testkit::agent::SocketRemains;
use vipwatch_testkit::{Behaviour, Etcd, FakeAgent, Lab, NodeFixture, Routers, wait_for};

use crate::curl::{CurlAnswer, curl, get};
use crate::receiver_process::{ReceiverProcess, report_until_accepted};
use crate::support::{
    ADD_VIP, REMOVE_VIP, fixture_with, instance_conf, node_fixture, query_json, vi_1_conf,
    wait_for_role, write,
};

const REFERENCE: &str = include_str!("../../../../docs/reference/metrics.md");

/// The metrics in the older text format.
fn classic(fixture: &NodeFixture, path: &str) -> String {
    let answer = curl(fixture, &["-H", "accept: text/plain"], path);
    assert_eq!(answer.content_type, "text/plain; version=0.0.4; charset=utf-8", "{answer:?}");
    answer.body
}

/// Checks a text with Prometheus' own parser and rules for names.
#[track_caller]
fn check_with_promtool(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}\n{text}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{text}");
}

/// The value of the sample with this name and labels.
fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn the_role_and_its_changes_are_in_the_metrics_and_promtool_accepts_them() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[[group]]\nname = \"web\"\ninstances = \"VI_*\"\n");
    let _node = fixture.start();
    let labels =
        format!("vrrp_group=\"group:web\",vrrp_instance=\"VI_1\",netns=\"{}\"", netns.name());
    let primary = format!("vipwatch_role_primary{{{labels}}}");
    assert_eq!(value(&classic(&fixture, "/metrics"), &primary), Some(0.0));
    netns.ip(ADD_VIP);
    let text = wait_for("the primary", || {
        let text = classic(&fixture, "/metrics");
        (value(&text, &primary) == Some(1.0)).then_some(text)
    });
    let sample = |sample: &str| value(&text, sample);
    assert_eq!(sample(&format!("vipwatch_role{{{labels},role=\"primary\"}}")), Some(1.0));
    assert_eq!(sample(&format!("vipwatch_role{{{labels},role=\"backup\"}}")), Some(0.0));
    assert_eq!(
        sample(&format!("vipwatch_transitions_total{{{labels},to=\"primary\"}}")),
        Some(1.0)
    );
    assert_eq!(sample("vipwatch_instances{role=\"primary\"}"), Some(1.0));
    assert!(sample("process_resident_memory_bytes").unwrap() > 1e6);
    check_with_promtool(&text);
    check_with_promtool(&classic(&fixture, "/metrics/keepalived"));
    for name in ["VI_1", "group:web"] {
        let shown = fixture.run_text(&["show", name]);
        let line = |line: &str| line.split_whitespace().eq(["group", "group:web"]);
        assert!(shown.lines().any(line), "{shown}");
    }
    netns.ip(REMOVE_VIP);
    let state = wait_for("the backup in the names of keepalived exporters", || {
        let text = classic(&fixture, "/metrics/keepalived");
        text.contains("vrrp_instance=\"VI_1\"} 1\n").then_some(text)
    });
    assert!(state.contains("keepalived_vrrp_state{iname=\"VI_1\",intf=\"eth0\","), "{state}");
    assert!(state.contains(",ip_address=\"192.0.2.9/24\","), "{state}");
}

#[test]
fn deliveries_announcements_and_the_main_loop_are_counted() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let states = lab.path().join("states");
    std::fs::create_dir_all(states.join("VI_1")).unwrap();
    fixture.configure(&format!(
        "[[notify]]\nstate_file = \"{}/{{id}}\"\nannounce = true\n\
         [[notify.hook]]\nname = \"ok\"\nprogram = [\"/bin/true\"]\n\
         [[notify.hook]]\nname = \"fails\"\nprogram = [\"/bin/false\"]\nretries = 0\non = [\"primary\"]\n",
        states.display()
    ));
    let _node = fixture.start();
    let count = |text: &str, stage: &str| {
        value(text, &format!("vipwatch_delivery_latency_seconds_count{{stage=\"{stage}\"}}"))
    };
    netns.ip(ADD_VIP);
    let text = wait_for("the announcement and the failed hook", || {
        let text = classic(&fixture, "/metrics");
        let failed =
            "vipwatch_outlet_given_up_total{target=\"fails\",kind=\"hook\",source=\"node\"}";
        let finding = "vipwatch_findings{name=\"hook-failed\",severity=\"warning\"}";
        let is_complete = count(&text, "announce") == Some(1.0)
            && value(&text, failed) == Some(1.0)
            && value(&text, finding) == Some(1.0);
        is_complete.then_some(text)
    });
    assert!(count(&text, "file").unwrap() >= 1.0, "{text}");
    assert_eq!(count(&text, "agent"), Some(0.0));
    let all = "vipwatch_delivery_latency_seconds_bucket{le=\"+Inf\",stage=\"file\"}";
    assert_eq!(value(&text, all), count(&text, "file"), "the last bucket has all");
    assert!(value(&text, "vipwatch_announcements_total{result=\"sent\"}").unwrap() >= 1.0);
    assert!(value(&text, "vipwatch_main_loop_turn_seconds_count").unwrap() >= 1.0);
    let delivered = "vipwatch_outlet_delivered_total{target=\"ok\",kind=\"hook\",source=\"node\"}";
    wait_for("the other hook", || {
        (value(&classic(&fixture, "/metrics"), delivered) >= Some(1.0)).then_some(())
    });
    check_with_promtool(&text);
}

#[test]
fn states_that_a_restarted_agent_gets_again_have_no_latency() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("m{}", lab.number()), 2, 0);
    let fixture = node_fixture(&lab);
    let socket = lab.path().join("keepalived-state-change");
    fixture.configure(&format!("[[notify]]\norigin = \"neutron\"\nagent = {socket:?}\n"));
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    let _node = fixture.start();
    let wait_for_acknowledged = |word: &str| {
        wait_for(&format!("both routers acknowledged as {word}"), || {
            let status = query_json(&fixture, &["status"]);
            let instances = status["instances"].as_array().unwrap();
            let is_known = |instance: &Value| instance["agent"]["acknowledged"] == word;
            (instances.len() == 2 && instances.iter().all(is_known)).then_some(())
        });
    };
    wait_for_acknowledged("backup");
    for router in &routers.each {
        router.take();
    }
    wait_for_acknowledged("primary");
    let latencies = |text: &str| {
        value(text, "vipwatch_delivery_latency_seconds_count{stage=\"agent\"}").unwrap()
    };
    let delivered = |text: &str| {
        let name = "vipwatch_outlet_delivered_total{";
        let of_agent = |line: &&str| line.starts_with(name) && line.contains("kind=\"agent\"");
        let line = text.lines().find(of_agent).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let before = wait_for("the latencies of four transitions", || {
        let text = classic(&fixture, "/metrics");
        (latencies(&text) >= 4.0).then_some(text)
    });
    agent.stop(SocketRemains::Nothing);
    let agent = FakeAgent::listen(lab.path(), Behaviour::Threaded);
    wait_for("both states at the new agent", || (agent.count() >= 2).then_some(()));
    wait_for("both deliveries to be counted", || {
        (delivered(&classic(&fixture, "/metrics")) >= delivered(&before) + 2.0).then_some(())
    });
    let after = classic(&fixture, "/metrics");
    assert_eq!((latencies(&before), latencies(&after)), (4.0, 4.0), "{after}");
}

#[test]
fn an_instance_that_flaps_is_counted_once() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    for _ in 0..4 {
        netns.ip(ADD_VIP);
        wait_for_role(&fixture, "VI_1", "primary");
        netns.ip(REMOVE_VIP);
        wait_for_role(&fixture, "VI_1", "backup");
    }
    let text = classic(&fixture, "/metrics");
    let netns = netns.name();
    let group = text.split("vrrp_group=\"").nth(1).unwrap().split('"').next().unwrap();
    let labels = format!("vrrp_group=\"{group}\",vrrp_instance=\"VI_1\",netns=\"{netns}\"");
    assert_eq!(value(&text, &format!("vipwatch_flaps_total{{{labels}}}")), Some(1.0), "{text}");
    let transitions = format!("vipwatch_transitions_total{{{labels},to=\"primary\"}}");
    assert_eq!(value(&text, &transitions), Some(4.0), "{text}");
    let released = "keepalived_release_master_total{iname=\"VI_1\",intf=\"eth0\",vrid=\"";
    let compat = classic(&fixture, "/metrics/keepalived");
    let line = compat.lines().find(|line| line.starts_with(released)).unwrap();
    assert!(line.ends_with(" 4"), "{line}");
}

#[test]
fn a_reload_applies_groups_and_a_changed_metrics_section_needs_a_restart() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    assert!(classic(&fixture, "/metrics").contains("vrrp_group=\"vrrp:ipv4:"));
    fixture.configure(
        "[[group]]\nname = \"web\"\ninstances = \"VI_*\"\n[metrics]\nper_instance = false\n",
    );
    node.reload();
    let text = classic(&fixture, "/metrics");
    assert!(text.contains("vipwatch_role_primary{vrrp_group=\"group:web\","), "{text}");
    fixture.wait_for_log("this setting changes only after a restart");
    fixture.configure("");
    node.reload();
    assert!(classic(&fixture, "/metrics").contains("vrrp_group=\"vrrp:ipv4:"));
}

#[test]
fn prometheus_gets_open_metrics_and_other_types_are_refused() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    let accept = |accept: &str| -> CurlAnswer {
        curl(&fixture, &["-H", &format!("accept: {accept}")], "/metrics")
    };
    for accepted in ["application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "*/*"] {
        let answer = accept(accepted);
        let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert_eq!((answer.status, answer.content_type.as_str()), (200, open));
        assert!(answer.body.ends_with("\n# EOF\n"), "{}", answer.body);
    }
    assert_eq!(accept("application/json").problem(), (406, "not-acceptable"));
    assert_eq!(curl(&fixture, &[], "/metrics?a=b").problem(), (400, "invalid-request"));
    assert_eq!(curl(&fixture, &["-X", "POST"], "/metrics").problem(), (405, "method-not-allowed"));
    let head = curl(&fixture, &["--head"], "/metrics");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[test]
fn per_instance_false_leaves_only_numbers_of_the_whole_node() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    fixture.configure("[metrics]\nper_instance = false\n");
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for_role(&fixture, "VI_1", "primary");
    let text = classic(&fixture, "/metrics");
    assert!(!text.contains("VI_1") && !text.contains(netns.name()), "{text}");
    assert_eq!(value(&text, "vipwatch_instances{role=\"primary\"}"), Some(1.0));
    assert_eq!(value(&text, "vipwatch_transitions_total{to=\"primary\"}"), Some(1.0));
    check_with_promtool(&text);
}

#[test]
fn the_result_of_conntrackd_is_in_the_metrics_of_its_router_if_the_file_is_valid() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[]);
    let id = "5e9b1d0c-7a8f-4a52-9d3e-1c2b3a4d5e6f";
    let directory = lab.path().join("ha_confs").join(id);
    write(&directory.join("keepalived.conf"), &instance_conf("VR_1", "ha-1", &["169.254.0.1/24"]));
    let status = directory.join("conntrack.status");
    write(&status, "primary 1731800000123 12345 0\n");
    let node = fixture.start();
    let labels =
        format!("vrrp_group=\"router:{id}\",vrrp_instance=\"{id}\",netns=\"qrouter-{id}\"");
    let success = format!("vipwatch_conntrack_sync_success{{{labels},state=\"primary\"}}");
    let duration =
        format!("vipwatch_conntrack_sync_duration_seconds{{{labels},state=\"primary\"}}");
    let ended = format!("vipwatch_conntrack_sync_timestamp_seconds{{{labels}}}");
    let text = classic(&fixture, "/metrics");
    assert_eq!(value(&text, &success), Some(1.0), "{text}");
    assert_eq!(value(&text, &duration), Some(0.012_345));
    assert_eq!(value(&text, &ended), Some(1_731_800_000.123));
    check_with_promtool(&text);
    let routers = |text: &str, result: &str| {
        value(text, &format!("vipwatch_conntrack_routers{{result=\"{result}\"}}"))
    };
    assert_eq!((routers(&text, "success"), routers(&text, "failure")), (Some(1.0), Some(0.0)));
    write(&status, "primary 1731800000123 12345 2\n");
    assert_eq!(value(&classic(&fixture, "/metrics"), &success), Some(0.0));
    // The number of routers does not need metrics of instances.
    fixture.configure("[metrics]\nper_instance = false\n");
    assert!(node.stop().success());
    let node = fixture.start();
    let text = classic(&fixture, "/metrics");
    assert_eq!((routers(&text, "success"), routers(&text, "failure")), (Some(0.0), Some(1.0)));
    assert!(!text.contains("vipwatch_conntrack_sync_success"), "{text}");
    fixture.configure("");
    assert!(node.stop().success());
    let _node = fixture.start();
    let long = "primary 1 2 0\n".repeat(100_000);
    for invalid in ["", "primary\n", "x\"} 1\nvipwatch_forged 1 2 3\n", &long] {
        write(&status, invalid);
        let text = classic(&fixture, "/metrics");
        assert!(!text.contains("\nvipwatch_conntrack_sync_success{"), "{text}");
        assert!(!text.contains("vipwatch_forged"), "{text}");
    }
    // A link to another file is not followed, and a pipe does not block.
    std::fs::remove_file(&status).unwrap();
    write(&directory.join("other"), "primary 1 2 0\n");
    std::os::unix::fs::symlink(directory.join("other"), &status).unwrap();
    assert!(!classic(&fixture, "/metrics").contains("\nvipwatch_conntrack_sync_success{"));
    std::fs::remove_file(&status).unwrap();
    vipwatch_testkit::run(Command::new("mkfifo").arg(&status));
    assert!(!classic(&fixture, "/metrics").contains("\nvipwatch_conntrack_sync_success{"));
}

#[test]
fn a_receiver_process_exports_its_reports_and_no_instances() {
    let lab = Lab::new();
    let receiver = ReceiverProcess::start(lab.path(), &[]);
    report_until_accepted(lab.path(), "5e9b1d0c-7a8f-4a52-9d3e-1c2b3a4d5e6f", "backup");
    // Only the path of the socket is used.
    let fixture = node_fixture(&lab).with_socket(&lab.path().join("agent.sock"));
    let text = wait_for("the settled report", || {
        let text = classic(&fixture, "/metrics");
        let standby = value(&text, "vipwatch_receiver_routers{state=\"standby\"}");
        (standby == Some(1.0)).then_some(text)
    });
    assert_eq!(value(&text, "vipwatch_receiver_reports_total"), Some(1.0));
    assert!(text.contains("service=\"receiver\"} 1\n"), "{text}");
    assert!(!text.contains("vipwatch_role") && !text.contains("vipwatch_history"), "{text}");
    check_with_promtool(&text);
    assert_eq!(curl(&fixture, &[], "/metrics/keepalived").problem(), (404, "unknown-route"));
    drop(receiver);
}

/// What a document or an answer says about one metric.
#[derive(Debug, PartialEq, Eq)]
struct Described {
    kind: String,
    labels: BTreeSet<String>,
}

/// The metrics of the reference: the first two columns of its tables.
fn documented() -> BTreeMap<String, Described> {
    let mut all = BTreeMap::new();
    for line in REFERENCE.lines().filter(|line| line.starts_with("| `")) {
        let columns: Vec<&str> = line.split(" | ").collect();
        let kind = columns.get(1).copied().unwrap_or_default();
        if !["counter", "gauge", "histogram", "info"].contains(&kind) {
            continue;
        }
        let code = columns[0].trim_start_matches("| ").trim_matches('`');
        let (name, labels) = code.split_once('{').unwrap_or((code, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        let described =
            Described { kind: kind.to_owned(), labels: labels.map(str::to_owned).collect() };
        assert!(all.insert(name.to_owned(), described).is_none(), "{name} is documented twice");
    }
    all
}

/// The metrics of an answer in the older text format; labels of metrics with a sample.
fn exported(text: &str) -> BTreeMap<String, Described> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let kind = if name.ends_with("_info") { "info" } else { kind };
            all.insert(
                name.to_owned(),
                Described { kind: kind.to_owned(), labels: BTreeSet::new() },
            );
        } else if let Some((name, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end).filter(|base| all.contains_key(*base)));
            let described = all.get_mut(base.unwrap_or(name)).unwrap();
            // No value of these tests contains a comma or a quote.
            let labels = rest.split('}').next().unwrap().split("\",");
            let names = labels.filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
            described.labels.extend(names.filter(|name| name != "le"));
        }
    }
    all
}

#[test]
fn the_reference_has_every_metric_of_a_running_node_with_its_type_and_labels() {
    let lab = Lab::new();
    // A link that the witness captures in both directions, a target that fails, and a cluster with one node.
    let etcd = Etcd::single(lab.path());
    let (netns, fixture) = fixture_with(
        &lab,
        &[vi_1_conf(), instance_conf("VI_2", "ha-1", &["192.0.2.20/24", "2001:db8::1/64"])],
    );
    netns.add_link("ha-1");
    let socket = lab.path().join("receiver.sock");
    fixture.clone().with_processes().configure(&format!(
        "[witness]\n[cluster]\nendpoints = {:?}\n[cluster.neutron]\nurl = \"http://127.0.0.1:9\"\n[receiver]\nsocket = {socket:?}\n\
         [[receiver.hook]]\nname = \"other\"\nprogram = [\"/bin/true\"]\n\
         [[notify]]\n[[notify.hook]]\nname = \"fails\"\nprogram = [\"/bin/false\"]\n",
        etcd.endpoints()
    ));
    let fixture = fixture.with_processes();
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    let text = wait_for("samples of findings, of targets and of the witness", || {
        let both = [classic(&fixture, "/metrics"), classic(&fixture, "/metrics/keepalived")];
        let text = both.concat();
        let has = |sample: &str| text.contains(sample);
        let is_complete = has("\nvipwatch_findings{")
            && has("\nvipwatch_outlet_failing{")
            && has("\nvipwatch_cluster_groups{")
            && has("\nkeepalived_advertisements_sent_total{")
            && has("\nkeepalived_advertisements_received_total{");
        is_complete.then_some(text)
    });
    let (documented, exported) = (documented(), exported(&text));
    let names = |all: &BTreeMap<String, Described>| all.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&documented), names(&exported));
    for (name, known) in &exported {
        assert_eq!(known.kind, documented[name].kind, "the type of {name}");
        if !known.labels.is_empty() {
            assert_eq!(known.labels, documented[name].labels, "the labels of {name}");
        }
    }
}

/// The number of findings of each name and severity.
type FindingCounts = BTreeMap<(String, String), usize>;

fn listed_by_doctor(fixture: &NodeFixture) -> FindingCounts {
    let mut counts = FindingCounts::new();
    for item in query_json(fixture, &["doctor"])["items"].as_array().unwrap() {
        let word = |key: &str| item[key].as_str().unwrap().to_owned();
        *counts.entry((word("name"), word("severity"))).or_default() += 1;
    }
    counts
}

fn counted_in_metrics(fixture: &NodeFixture) -> FindingCounts {
    let text = classic(fixture, "/metrics");
    let samples = text.lines().filter_map(|line| line.strip_prefix("vipwatch_findings{"));
    let counts = samples.map(|sample| {
        let words: Vec<&str> = sample.split('"').collect();
        let count = sample.rsplit(' ').next().unwrap().parse().unwrap();
        ((words[1].to_owned(), words[3].to_owned()), count)
    });
    counts.collect()
}

#[test]
fn the_metrics_count_exactly_the_findings_that_doctor_lists() {
    let lab = Lab::new();
    let clash = vi_1_conf().replace("VI_1", "VI_2");
    let lost = instance_conf("LOST", "missing", &["192.0.2.3/24"]);
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf(), clash, lost]);
    fixture.configure(
        "[receiver]\ninterval = \"0s\"\n\
         [[notify]]\n[[notify.hook]]\nname = \"fails\"\nprogram = [\"/bin/false\"]\nretries = 0\n",
    );
    let node = fixture.start();
    report_until_accepted(lab.path(), "deleted", "primary");
    fixture.configure("[nodes]\n");
    node.reload();
    let wanted = [
        "address-configured-twice",
        "hook-failed",
        "link-fault",
        "node-configuration",
        "report-for-unknown-instance",
        "vrid-clash",
    ];
    wait_for("each kind of finding", || {
        let listed = listed_by_doctor(&fixture);
        wanted.iter().all(|name| listed.keys().any(|(listed, _)| listed == name)).then_some(())
    });
    let same = wait_for("the same numbers", || {
        let listed = listed_by_doctor(&fixture);
        (listed == counted_in_metrics(&fixture)).then_some(listed)
    });
    assert!(same.len() >= wanted.len(), "{same:?}");
}

#[test]
fn a_metrics_file_that_cannot_be_written_is_a_finding_until_it_can() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let directory = lab.path().join("textfile");
    let file = directory.join("vipwatch.prom");
    fixture.configure(&format!("[metrics]\ntextfile = {file:?}\ntextfile_every = \"1s\"\n"));
    let node = fixture.start();
    let has_finding = || {
        let findings: FindingList = get(&fixture, "/v1/findings");
        findings.items.iter().any(|item| item.name == "node-textfile")
    };
    wait_for("the finding", || has_finding().then_some(()));
    fixture.wait_for_log("cannot write the metrics file");
    std::fs::create_dir(&directory).unwrap();
    let text = wait_for("the file", || std::fs::read_to_string(&file).ok());
    wait_for("the end of the finding", || (!has_finding()).then_some(()));
    assert_eq!(fixture.log().matches("cannot write the metrics file").count(), 1, "logged once");
    check_with_promtool(&text);
    assert!(text.contains("vipwatch_role_primary{"), "{text}");
    assert!(node.stop().success());
    assert!(!file.exists(), "a stopped node leaves no old values");
}
