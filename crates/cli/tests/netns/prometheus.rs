// SPDX-License-Identifier: Apache-2.0
//! Debian's Prometheus scrapes two nodes, with the shipped scrape configuration and alert rules.

mod dashboard;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_showing};

use crate::support::{ADD_VIP, PROGRAM, REMOVE_VIP, vi_1_conf, wait_for_role, write};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
const PORTS: [u16; 2] = [9650, 9651];
const PROMETHEUS: &str = "127.0.0.1:9090";

/// Two nodes, each with the instance `VI_1` in a namespace of its own. They listen in one further namespace, in which
/// Prometheus runs: no other test can use its ports.
struct TwoNodes {
    monitoring: TestNetns,
    /// The namespaces of the instances.
    instances: [TestNetns; 2],
    fixtures: [NodeFixture; 2],
}

impl TwoNodes {
    fn new(lab: &Lab) -> Self {
        let monitoring = lab.netns("m");
        let instances = ["a", "b"].map(|name| lab.netns(name));
        let fixture = |number: usize| {
            let directory = lab.path().join(format!("node{number}"));
            std::fs::create_dir(&directory).unwrap();
            let fixture = NodeFixture::new(Path::new(PROGRAM), &directory).on(&monitoring);
            instances[number].add_link("eth0");
            let text = format!("net_namespace {}\n{}", instances[number].name(), vi_1_conf());
            write(&fixture.keepalived_conf(), &text);
            fixture.configure(&format!(
                "[web]\nlisten = \"127.0.0.1:{}\"\n\
                 [[notify]]\nstate_file = \"{}/{{id}}\"\nannounce = true\n\
                 [[notify.hook]]\nname = \"ok\"\nprogram = [\"/bin/true\"]\n\
                 [[notify.hook]]\nname = \"fails\"\nprogram = [\"/bin/false\"]\nretries = 0\n",
                PORTS[number],
                directory.join("states").display()
            ));
            fixture
        };
        let fixtures = [fixture(0), fixture(1)];
        Self { monitoring, instances, fixtures }
    }
}

/// A running Prometheus. Dropping it kills the process.
struct Prometheus<'a> {
    netns: &'a TestNetns,
    child: Child,
    log: PathBuf,
}

impl<'a> Prometheus<'a> {
    /// Starts Prometheus with the shipped files. They are changed in what the test cannot wait for: the intervals are one
    /// second, the alerts do not wait (`for`), and there are two targets.
    fn start(directory: &Path, netns: &'a TestNetns) -> Self {
        let scrape = std::fs::read_to_string(format!("{EXAMPLES}/prometheus/scrape.yml")).unwrap();
        let targets = PORTS.map(|port| format!("          - 127.0.0.1:{port}\n")).concat();
        let scrape = scrape
            .replace("_interval: 15s", "_interval: 1s")
            .replace("          - 127.0.0.1:9650\n", &targets);
        assert!(scrape.contains("scrape_interval: 1s") && scrape.contains("127.0.0.1:9651"));
        let is_set = |line: &str| line.trim_start().starts_with("honor_labels");
        assert!(!scrape.lines().any(is_set), "the default setting is tested");
        write(&directory.join("prometheus.yml"), &scrape);
        let rules = std::fs::read_to_string(format!("{EXAMPLES}/prometheus/alerts.yml")).unwrap();
        let is_wait = |line: &&str| line.trim_start().starts_with("for: ");
        assert!(rules.lines().any(|line| is_wait(&line)));
        let rules: Vec<&str> = rules.lines().filter(|line| !is_wait(line)).collect();
        write(&directory.join("alerts.yml"), &rules.join("\n"));
        let log = directory.join("prometheus.log");
        let stderr = std::fs::File::create(&log).unwrap();
        let mut command = netns.command("prometheus");
        command
            .arg(format!("--config.file={}/prometheus.yml", directory.display()))
            .arg(format!("--storage.tsdb.path={}/data", directory.display()))
            .arg(format!("--web.listen-address={PROMETHEUS}"))
            .arg("--log.level=warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        Self { netns, child: command.spawn().unwrap(), log }
    }

    /// The `data` of an answer of its API; `None` if it does not answer yet.
    fn api(&self, path: &str, parameters: &[String]) -> Option<Value> {
        let mut command = self.netns.command("curl");
        command.args(["-sS", "--max-time", "30", "--get"]);
        for parameter in parameters {
            command.arg("--data-urlencode").arg(parameter);
        }
        command.arg(format!("http://{PROMETHEUS}/api/v1/{path}"));
        let output = output_of(&mut command);
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        assert_eq!(answer["status"], "success", "{path} {parameters:?}: {answer}");
        Some(answer["data"].clone())
    }

    /// The series that a query returns at this moment.
    fn query(&self, query: &str) -> Vec<Value> {
        let data = self.api("query", &[format!("query={query}")]).unwrap_or_default();
        match data["resultType"].as_str() {
            Some("vector") => data["result"].as_array().unwrap().clone(),
            _ => Vec::new(),
        }
    }

    /// Waits until the query returns this value in one series.
    #[track_caller]
    fn wait_for_value(&self, query: &str, expected: &str) {
        let shown = || format!("{:?}\n{}", self.query(query), self.log());
        wait_showing(&format!("{query} = {expected}"), shown, || {
            let series = self.query(query);
            let is_expected = |one: &Value| one["value"][1] == expected;
            (series.len() == 1 && series.iter().all(is_expected)).then_some(())
        });
    }

    /// The label `vrrp_group` of each firing alert with this name.
    fn firing(&self, alert: &str) -> Vec<String> {
        let data = self.api("alerts", &[]).unwrap_or_default();
        let alerts = data["alerts"].as_array().cloned().unwrap_or_default();
        let is_wanted =
            |one: &&Value| one["labels"]["alertname"] == alert && one["state"] == "firing";
        let groups = alerts.iter().filter(is_wanted);
        groups.map(|one| one["labels"]["vrrp_group"].as_str().unwrap_or("").to_owned()).collect()
    }

    #[track_caller]
    fn wait_for_firing(&self, alert: &str, expected: &[&str]) {
        let shown = || format!("{:?}\n{}", self.api("alerts", &[]), self.log());
        wait_showing(&format!("{alert} for {expected:?}"), shown, || {
            (self.firing(alert) == expected).then_some(())
        });
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The group of `VI_1` on both nodes.
fn group() -> String {
    let conf = vi_1_conf();
    let vrid = conf.split("virtual_router_id ").nth(1).unwrap().lines().next().unwrap();
    format!("vrrp:ipv4:{vrid}:192.0.2.9")
}

#[test]
fn prometheus_sees_one_primary_two_primaries_and_none_and_the_alerts_fire() {
    let lab = Lab::new();
    let nodes = TwoNodes::new(&lab);
    let _running = nodes.fixtures.each_ref().map(NodeFixture::start);
    nodes.instances[0].ip(ADD_VIP);
    wait_for_role(&nodes.fixtures[0], "VI_1", "primary");
    let prometheus = Prometheus::start(lab.path(), &nodes.monitoring);
    let group = group();
    let sum = "sum by (vrrp_group) (vipwatch_role_primary)";
    prometheus.wait_for_value("count(vipwatch_role_primary)", "2");
    prometheus.wait_for_value(sum, "1");
    for alert in ["VipwatchTwoPrimaries", "VipwatchNoPrimary", "VipwatchNodeDown"] {
        // The rules may have been evaluated while only one of the nodes was known.
        prometheus.wait_for_firing(alert, &[]);
    }
    // Two nodes hold the address.
    nodes.instances[1].ip(ADD_VIP);
    prometheus.wait_for_firing("VipwatchTwoPrimaries", &[&group]);
    prometheus.wait_for_value(sum, "2");
    // No node holds the address.
    nodes.instances.iter().for_each(|netns| netns.ip(REMOVE_VIP));
    prometheus.wait_for_firing("VipwatchNoPrimary", &[&group]);
    prometheus.wait_for_firing("VipwatchTwoPrimaries", &[]);
    prometheus.wait_for_value(sum, "0");
    // One node again.
    nodes.instances[1].ip(ADD_VIP);
    prometheus.wait_for_firing("VipwatchNoPrimary", &[]);
}

#[test]
fn labels_stay_intact_with_the_default_scrape_configuration() {
    let lab = Lab::new();
    let nodes = TwoNodes::new(&lab);
    let running = nodes.fixtures.each_ref().map(NodeFixture::start);
    let prometheus = Prometheus::start(lab.path(), &nodes.monitoring);
    prometheus.wait_for_value("count(vipwatch_role_primary)", "2");
    prometheus.wait_for_value("count(keepalived_vrrp_state == 1)", "2");
    for series in prometheus.query("vipwatch_role_primary") {
        let labels = &series["metric"];
        let (_, port) = labels["instance"].as_str().unwrap().split_once(':').unwrap();
        let at = PORTS.iter().position(|one| one.to_string() == port).unwrap();
        assert_eq!(labels["job"], "vipwatch");
        assert_eq!(labels["vrrp_instance"], "VI_1");
        assert_eq!(labels["vrrp_group"], group());
        assert_eq!(labels["netns"], nodes.instances[at].name());
        assert_eq!(labels.as_object().unwrap().len(), 6, "{labels}");
    }
    let renamed = prometheus.query(
        "{__name__=~\".+\",exported_instance=~\".+\"} or {__name__=~\".+\",exported_job=~\".+\"}",
    );
    assert!(renamed.is_empty(), "{renamed:?}");
    // A node that ends is missed.
    let [first, second] = running;
    first.kill();
    prometheus.wait_for_value("count(up{job=\"vipwatch\"} == 0)", "1");
    prometheus.wait_for_firing("VipwatchNodeDown", &[""]);
    drop(second);
}

#[test]
fn the_tests_of_the_alert_rules_succeed_with_promtool_and_cover_every_alert() {
    let directory = format!("{EXAMPLES}/prometheus");
    for args in [
        &["check", "rules", "alerts.yml"][..],
        &["test", "rules", "alerts_test.yml"],
        &["check", "config", "scrape.yml"],
    ] {
        let output = output_of(Command::new("promtool").args(args).current_dir(&directory));
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let rules = std::fs::read_to_string(format!("{directory}/alerts.yml")).unwrap();
    let tests = std::fs::read_to_string(format!("{directory}/alerts_test.yml")).unwrap();
    let guide = include_str!("../../../../docs/guides/monitoring.md");
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        let blocks: Vec<&str> = tests
            .split("- eval_time: ")
            .filter(|block| block.contains(&format!("alertname: {alert}\n")))
            .collect();
        let is_quiet = |block: &&&str| block.contains("exp_alerts: []");
        let quiet = blocks.iter().filter(is_quiet).count();
        assert!(
            quiet > 0 && quiet < blocks.len(),
            "{alert} needs a case that fires and one that does not"
        );
        assert!(guide.contains(&format!("`{alert}`")), "{alert} is not in the guide");
    }
}
