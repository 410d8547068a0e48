// SPDX-License-Identifier: Apache-2.0
//! A node with as many instances as a network node has, under load, kills, reloads and random changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::routers::{HaRouter, LINK, VIP, vip, write_conf};
use vipwatch_testkit::wait::{wait_within, wait_within_showing};
use vipwatch_testkit::{Lab, NodeFixture, Routers};

use crate::support::{node_fixture, query_json, transitions};

/// Time limit for a step with a thousand namespaces on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_mins(2);

/// The number of namespaces in the largest test: `VIPWATCH_NAMESPACES`, or 1000.
fn namespace_count() -> usize {
    let value = std::env::var("VIPWATCH_NAMESPACES").ok();
    value.and_then(|text| text.parse().ok()).unwrap_or(1000)
}

/// The role of each instance by its id, as `status` shows it.
fn roles(fixture: &NodeFixture) -> BTreeMap<String, String> {
    let answer = query_json(fixture, &["status"]);
    let instances = answer["instances"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    instances.map(|instance| (text(&instance["id"]), text(&instance["role"]))).collect()
}

/// The number of instances with this role.
fn count(fixture: &NodeFixture, role: &str) -> usize {
    roles(fixture).values().filter(|found| *found == role).count()
}

/// The content of the state file of an instance; empty if there is none.
fn state_file_of(directory: &Path, id: &str) -> String {
    std::fs::read_to_string(directory.join(id).join("state")).unwrap_or_default()
}

/// The shortest configurable time between two audits of a namespace.
const FREQUENT_AUDITS: &str = "[node]\naudit_every = \"10s\"\n";

fn metric(fixture: &NodeFixture, name: &str) -> Option<u64> {
    query_json(fixture, &["status"])["metrics"][name].as_u64()
}

/// Waits until all namespaces have been audited since this call.
fn wait_for_audit_of(fixture: &NodeFixture, namespaces: usize) {
    let audits = || metric(fixture, "vipwatch_audits_total").unwrap();
    let wanted = audits() + u64::try_from(namespaces).unwrap();
    let shown = || format!("{} of {wanted}", audits());
    wait_within_showing(STEP_TIMEOUT, "an audit", shown, || (audits() >= wanted).then_some(()));
}

/// All recorded changes, oldest first.
fn history(fixture: &NodeFixture) -> Vec<Value> {
    transitions(fixture, &["-n", "1000000"])
}

/// A pseudo-random generator (xorshift): the same seed gives the same numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }
}

#[test]
fn a_thousand_routers_with_floating_addresses_fail_over_at_once() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("m{}", lab.number()), namespace_count(), 5);
    let all = routers.each.len();
    let fixture = node_fixture(&lab);
    let states = lab.path().join("states");
    fixture.configure(&format!(
        "{FREQUENT_AUDITS}[[notify]]\norigin = \"neutron\"\nstate_file = \"{}/{{id}}\"\n",
        states.display()
    ));
    let mut node = fixture.start_within(STEP_TIMEOUT);
    wait_within(STEP_TIMEOUT, "all instances to be backup", || {
        (count(&fixture, "backup") == all).then_some(())
    });
    for (role, is_held) in [("primary", true), ("backup", false)] {
        for router in &routers.each {
            if is_held { router.take() } else { router.give_up() }
        }
        wait_within(STEP_TIMEOUT, role, || {
            routers
                .each
                .iter()
                .all(|router| state_file_of(&states, &router.id) == role)
                .then_some(())
        });
        wait_within(STEP_TIMEOUT, role, || (count(&fixture, role) == all).then_some(()));
    }
    assert!(node.is_alive());
    wait_for_audit_of(&fixture, all);
    assert_eq!(metric(&fixture, "vipwatch_namespaces"), u64::try_from(all).ok());
    assert_eq!(metric(&fixture, "vipwatch_netlink_sockets"), Some(1));
    assert_eq!(metric(&fixture, "vipwatch_audit_corrections_total"), Some(0));
    assert!(node.stop().success());
    // Each change is recorded once and in order. Causes and findings take numbers of the same sequence, so a gap between
    // two changes is no loss, but a number that neither table has is one.
    let missing = "SELECT max(seq) - min(seq) + 1 - count(*) FROM \
                   (SELECT seq FROM transition UNION ALL SELECT seq FROM event)";
    assert_eq!(query(&fixture.state_dir().join("history.sqlite"), missing), "0");
    let changes = {
        let state = fixture.state_dir();
        transitions(&fixture, &["-n", "1000000", "--state-dir", state.to_str().unwrap()])
    };
    let seqs: Vec<i64> = changes.iter().map(|change| change["seq"].as_i64().unwrap()).collect();
    assert!(
        seqs.is_sorted_by(|a, b| a < b),
        "sequence numbers rise without a repetition: {seqs:?}"
    );
    let mut roles_by_id: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for change in &changes {
        let roles = roles_by_id.entry(change["id"].as_str().unwrap()).or_default();
        if let Some(before) = roles.last() {
            assert_eq!(change["from"].as_str(), Some(*before), "{change}");
        }
        roles.push(change["to"].as_str().unwrap());
    }
    assert_eq!(roles_by_id.len(), all);
    for (id, roles) in roles_by_id {
        assert_eq!(roles.last(), Some(&"backup"), "{id}");
        assert!(roles.contains(&"primary"), "{id}: {roles:?}");
        assert!(roles.windows(2).all(|pair| pair[0] != pair[1]), "{id}: {roles:?}");
    }
}

#[test]
fn a_node_that_is_killed_at_random_points_keeps_all_written_records() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("x{}", lab.number()), 20, 0);
    let fixture = node_fixture(&lab);
    let mut random = Random(4711);
    let mut last = 0;
    for round in 0..8 {
        let node = fixture.start();
        // A random number of changes, then SIGKILL.
        for _ in 0..random.below(400) {
            let router = &routers.each[random.below(routers.each.len())];
            let (editor, link) = router.editor();
            editor.add(link, vip());
            editor.remove(link, vip());
        }
        node.kill();
        let state = fixture.state_dir();
        let args = ["-n", "1000000", "--state-dir", state.to_str().unwrap()];
        let changes = transitions(&fixture, &args);
        let seqs: Vec<i64> = changes.iter().map(|change| change["seq"].as_i64().unwrap()).collect();
        assert!(seqs.is_sorted_by(|a, b| a < b), "round {round}: {seqs:?}");
        assert!(seqs.last().copied().unwrap_or(0) >= last, "written records are kept");
        last = seqs.last().copied().unwrap_or(0);
        // A run that was killed is a gap once the next run has begun.
        let answer = query_json(&fixture, &[&["history"], &args[..]].concat());
        let items = answer["items"].as_array().unwrap().iter();
        let gaps = items.filter(|item| item["type"] == "gap");
        let reasons: Vec<&Value> = gaps.map(|gap| &gap["reason"]).collect();
        assert_eq!(reasons, vec!["killed"; round], "each run is recorded as killed");
        assert_eq!(query(&state.join("history.sqlite"), "PRAGMA integrity_check"), "ok");
    }
    let _node = fixture.start();
    assert!(roles(&fixture).values().all(|role| role == "backup"));
    assert!(fixture.run_text(&["history"]).contains("the node was killed"));
}

/// The answer of SQLite to a query of a database, which may not have been closed.
fn query(file: &Path, query: &str) -> String {
    let mut command = std::process::Command::new("sqlite3");
    let output = output_of(command.arg("-readonly").arg(file).arg(query));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_reload_under_load_loses_no_instance_and_no_change() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("l{}", lab.number()), 50, 0);
    let fixture = node_fixture(&lab);
    let states = lab.path().join("states");
    let rule =
        format!("[[notify]]\norigin = \"neutron\"\nstate_file = \"{}/{{id}}\"\n", states.display());
    fixture.configure(&rule);
    let node = fixture.start();
    let mut random = Random(17);
    let mut primary = BTreeSet::new();
    for round in 0..30 {
        for _ in 0..20 {
            let number = random.below(routers.each.len());
            let router = &routers.each[number];
            if primary.remove(&number) {
                router.give_up();
            } else {
                primary.insert(number);
                router.take();
            }
        }
        let more = if round % 2 == 0 { "[node]\naudit_every = \"1m\"\n" } else { "" };
        fixture.configure(&format!("{more}{rule}"));
        node.reload();
    }
    let expected = |number: usize| if primary.contains(&number) { "primary" } else { "backup" };
    wait_within(STEP_TIMEOUT, "the last role of each router", || {
        let mut numbered = routers.each.iter().enumerate();
        numbered
            .all(|(number, router)| state_file_of(&states, &router.id) == expected(number))
            .then_some(())
    });
    // No instance was dropped meanwhile: each change starts with the role of the change before it.
    let mut before: BTreeMap<String, String> = BTreeMap::new();
    for change in history(&fixture) {
        let text = |key: &str| change[key].as_str().unwrap_or_default().to_owned();
        if let Some(before) = before.insert(text("id"), text("to")) {
            assert_eq!(text("from"), before, "{change}");
        }
        assert!(["start", "address"].contains(&text("trigger").as_str()), "{change}");
    }
    assert_eq!(before.len(), 50);
}

/// The changes that the test has made to a router, which decide its expected role.
#[derive(Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact about the router")]
struct RouterState {
    has_netns: bool,
    has_link: bool,
    is_renamed: bool,
    holds_vip: bool,
    is_down: bool,
    is_configured: bool,
}

impl RouterState {
    /// The expected role; `None` if the node must not follow the router.
    fn role(&self) -> Option<&'static str> {
        let role = match self {
            Self { is_configured: false, .. } => return None,
            Self { has_netns: false, .. }
            | Self { has_link: false, .. }
            | Self { is_renamed: true, .. } => "fault",
            Self { holds_vip: true, .. } => "primary",
            Self { is_down: true, .. } => "fault",
            _ => "backup",
        };
        Some(role)
    }

    /// Makes one change to a router and its files, and records it. A choice that is not possible at present, or
    /// that is 9 or greater, does nothing.
    fn change(&mut self, choice: usize, router: &HaRouter, directory: &Path) {
        let ip = |args: &str| router.netns.ip(args);
        let link = if self.is_renamed { "other" } else { LINK };
        match choice {
            0..4 if self.has_netns && self.has_link => {
                let action = if self.holds_vip { "del" } else { "add" };
                ip(&format!("address {action} {VIP} dev {link}"));
                self.holds_vip = !self.holds_vip;
            }
            4 if self.has_netns && self.has_link => {
                ip(&format!("link set {LINK}p {}", if self.is_down { "up" } else { "down" }));
                self.is_down = !self.is_down;
            }
            5 if self.has_netns && self.has_link => {
                ip(&format!("link del {link}"));
                let is_configured = self.is_configured;
                *self = Self { has_netns: true, is_configured, ..Self::default() };
            }
            5 if self.has_netns => {
                router.netns.add_link(LINK);
                self.has_link = true;
            }
            6 if self.has_netns && self.has_link => {
                ip(&format!("link set {link} down"));
                let name = if self.is_renamed { LINK } else { "other" };
                ip(&format!("link set {link} name {name}"));
                ip(&format!("link set {name} up"));
                self.is_renamed = !self.is_renamed;
            }
            7 => {
                let name = router.netns.name();
                let args: &[&str] =
                    if self.has_netns { &["netns", "del", name] } else { &["netns", "add", name] };
                vipwatch_testkit::run(std::process::Command::new("ip").args(args));
                let has_netns = !self.has_netns;
                *self = Self { is_configured: self.is_configured, has_netns, ..Self::default() };
            }
            8 => {
                let conf_dir = directory.join("ha_confs").join(&router.id);
                if self.is_configured {
                    std::fs::remove_dir_all(conf_dir).unwrap();
                } else {
                    write_conf(directory, &router.id, &[]);
                }
                self.is_configured = !self.is_configured;
            }
            _ => {}
        }
    }
}

#[test]
fn roles_match_the_kernel_after_random_changes_and_kills() {
    let seed = std::env::var("VIPWATCH_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(20_261_115);
    println!("seed {seed}; VIPWATCH_SEED={seed} repeats this run");
    let lab = Lab::new();
    let mark = format!("w{}", lab.number());
    let routers = Routers::new(lab.path(), &mark, 12, 0);
    let initial = RouterState {
        has_netns: true,
        has_link: true,
        is_configured: true,
        ..RouterState::default()
    };
    let mut states = vec![initial.clone(); routers.each.len()];
    let fixture = node_fixture(&lab);
    fixture.configure(FREQUENT_AUDITS);
    let mut node = Some(fixture.start());
    let mut random = Random(seed);
    for round in 0..40 {
        for _ in 0..=random.below(15) {
            let number = random.below(states.len());
            let (router, state) = (&routers.each[number], &mut states[number]);
            match random.below(10) {
                9 if random.below(4) == 0 => {
                    if let Some(node) = node.take() {
                        node.kill();
                    }
                    node = Some(fixture.start());
                }
                choice => state.change(choice, router, lab.path()),
            }
        }
        let expected: BTreeMap<String, String> = routers
            .each
            .iter()
            .zip(&states)
            .filter_map(|(router, state)| Some((router.id.clone(), state.role()?.to_owned())))
            .collect();
        let what = format!("the roles in round {round}, seed {seed}: {expected:?}");
        let shown = || format!("{:?}", roles(&fixture));
        wait_within_showing(STEP_TIMEOUT, &what, shown, || {
            (roles(&fixture) == expected).then_some(())
        });
        // Checked in each round, because a killed node loses its counters.
        let corrections = metric(&fixture, "vipwatch_audit_corrections_total");
        assert_eq!(corrections, Some(0), "round {round}, seed {seed}: an event was missed");
    }
    wait_for_audit_of(&fixture, routers.each.len());
    assert_eq!(metric(&fixture, "vipwatch_audit_corrections_total"), Some(0));
}
