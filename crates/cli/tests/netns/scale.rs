//! As many as a network node has, and everything at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::routers::{LINK, VIP, vip, write_conf};
use vipwatch_testkit::wait::{wait_within, wait_within_showing};
use vipwatch_testkit::{Lab, NodeFixture, Routers};

use crate::{json, place};

/// For a thousand of anything, on a busy machine.
const LONG: Duration = Duration::from_mins(2);

/// How many namespaces the large tests have: a network node's thousand, or what
/// `VIPWATCH_NAMESPACES` says.
fn many() -> usize {
    let said = std::env::var("VIPWATCH_NAMESPACES").ok();
    said.and_then(|text| text.parse().ok()).unwrap_or(1000)
}

/// The role of everybody, by what the node says.
fn roles(place: &NodeFixture) -> BTreeMap<String, String> {
    let answer = json(place, &["status"]);
    let each = answer["instances"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    each.map(|one| (text(&one["id"]), text(&one["role"]))).collect()
}

fn count(place: &NodeFixture, role: &str) -> usize {
    roles(place).values().filter(|one| *one == role).count()
}

fn state_of(directory: &Path, id: &str) -> String {
    std::fs::read_to_string(directory.join(id).join("state")).unwrap_or_default()
}

/// Has every namespace audited as often as can be configured.
const AUDITED: &str = "[node]\naudit_every = \"10s\"\n";

fn metric(place: &NodeFixture, name: &str) -> Option<u64> {
    json(place, &["status"])["metrics"][name].as_u64()
}

/// Waits until all namespaces have been audited since this call.
fn wait_for_audit_of(place: &NodeFixture, namespaces: usize) {
    let audits = || metric(place, "vipwatch_audits_total").unwrap();
    let enough = audits() + u64::try_from(namespaces).unwrap();
    let shown = || format!("{} of {enough}", audits());
    wait_within_showing(LONG, "an audit", shown, || (audits() >= enough).then_some(()));
}

/// The changes that are recorded, oldest first.
fn history(place: &NodeFixture) -> Vec<Value> {
    let answer = json(place, &["history", "--limit", "1000000"]);
    answer["changes"].as_array().unwrap().clone()
}

/// Numbers that are the same for the same seed.
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
    let routers = Routers::new(lab.path(), &format!("m{}", lab.number()), many(), 5);
    let all = routers.each.len();
    let place = place(&lab);
    let states = lab.path().join("states");
    place.configure(&format!(
        "{AUDITED}[[outlet]]\norigin = \"neutron\"\nstate_file = \"{}/{{id}}\"\n",
        states.display()
    ));
    let mut node = place.start_within(LONG);
    wait_within(LONG, "all to be backup", || (count(&place, "backup") == all).then_some(()));
    for (word, act) in [("primary", true), ("backup", false)] {
        for router in &routers.each {
            if act { router.take() } else { router.give_up() }
        }
        wait_within(LONG, word, || {
            routers.each.iter().all(|one| state_of(&states, &one.id) == word).then_some(())
        });
        wait_within(LONG, word, || (count(&place, word) == all).then_some(()));
    }
    assert!(node.is_alive());
    wait_for_audit_of(&place, all);
    assert_eq!(metric(&place, "vipwatch_namespaces"), u64::try_from(all).ok());
    assert_eq!(metric(&place, "vipwatch_netlink_sockets"), Some(1));
    assert_eq!(metric(&place, "vipwatch_audit_corrections_total"), Some(0));
    assert!(node.stop().success());
    // All of it is recorded, in order, and nothing twice.
    let changes = {
        let state = place.state_dir();
        let words = ["history", "--limit", "1000000", "--state-dir", state.to_str().unwrap()];
        json(&place, &words)["changes"].as_array().unwrap().clone()
    };
    let seqs: Vec<i64> = changes.iter().map(|change| change["seq"].as_i64().unwrap()).collect();
    assert!(seqs.is_sorted_by(|a, b| a + 1 == *b), "no gap, no repetition");
    let mut of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for change in &changes {
        of.entry(change["id"].as_str().unwrap()).or_default().push(change["to"].as_str().unwrap());
    }
    assert_eq!(of.len(), all);
    for (id, words) in of {
        assert_eq!(words.last(), Some(&"backup"), "{id}");
        assert!(words.contains(&"primary"), "{id}: {words:?}");
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]), "{id}: {words:?}");
    }
}

#[test]
fn a_node_that_is_killed_at_random_points_loses_only_what_it_had_not_written() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("x{}", lab.number()), 20, 0);
    let place = place(&lab);
    let mut random = Random(4711);
    let mut last = 0;
    for round in 0..8 {
        let node = place.start();
        // Between nothing and a storm, and then, without a warning, the end.
        for _ in 0..random.below(400) {
            let router = &routers.each[random.below(routers.each.len())];
            let (editor, link) = router.editor();
            editor.add(link, vip());
            editor.remove(link, vip());
        }
        node.kill();
        let state = place.state_dir();
        let words = ["history", "--limit", "1000000", "--state-dir", state.to_str().unwrap()];
        let answer = json(&place, &words);
        let changes = answer["changes"].as_array().unwrap();
        let seqs: Vec<i64> = changes.iter().map(|one| one["seq"].as_i64().unwrap()).collect();
        assert!(seqs.is_sorted_by(|a, b| a < b), "round {round}: {seqs:?}");
        assert!(seqs.last().copied().unwrap_or(0) >= last, "what was written stays");
        last = seqs.last().copied().unwrap_or(0);
        let runs = answer["runs"].as_array().unwrap();
        assert_eq!(runs.len(), round + 1);
        assert!(runs.iter().all(|run| run["ended"].is_null()), "it is known that each was killed");
        assert_eq!(integrity(&state.join("history.sqlite")), "ok");
    }
    let _node = place.start();
    assert!(roles(&place).values().all(|role| role == "backup"));
    assert!(place.say(&["history"]).contains("(killed)"));
}

/// What SQLite's own tool says of a file that nobody has closed.
fn integrity(file: &Path) -> String {
    let mut command = std::process::Command::new("sqlite3");
    let output = output_of(command.arg("-readonly").arg(file).arg("PRAGMA integrity_check"));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn reloading_under_load_drops_nobody() {
    let lab = Lab::new();
    let routers = Routers::new(lab.path(), &format!("l{}", lab.number()), 50, 0);
    let place = place(&lab);
    let states = lab.path().join("states");
    let outlet =
        format!("[[outlet]]\norigin = \"neutron\"\nstate_file = \"{}/{{id}}\"\n", states.display());
    place.configure(&outlet);
    let node = place.start();
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
        place.configure(&format!("{more}{outlet}"));
        node.reload();
    }
    let expected = |number: usize| if primary.contains(&number) { "primary" } else { "backup" };
    wait_within(LONG, "everybody's last word", || {
        let mut each = routers.each.iter().enumerate();
        each.all(|(number, one)| state_of(&states, &one.id) == expected(number)).then_some(())
    });
    // Whoever was followed was followed all the time: each change continues the one before.
    let mut before: BTreeMap<String, String> = BTreeMap::new();
    for change in history(&place) {
        let text = |key: &str| change[key].as_str().unwrap_or_default().to_owned();
        if let Some(before) = before.insert(text("id"), text("to")) {
            assert_eq!(text("from"), before, "{change}");
        }
        assert!(["start", "address"].contains(&text("cause").as_str()), "{change}");
    }
    assert_eq!(before.len(), 50);
}

/// What a router should be said to be, by what was done to it.
#[derive(Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was done or not")]
struct Truth {
    is_made: bool,
    has_link: bool,
    is_renamed: bool,
    holds: bool,
    is_down: bool,
    is_configured: bool,
}

impl Truth {
    fn role(&self) -> Option<&'static str> {
        let role = match self {
            Self { is_configured: false, .. } => return None,
            Self { is_made: false, .. }
            | Self { has_link: false, .. }
            | Self { is_renamed: true, .. } => "fault",
            Self { holds: true, .. } => "primary",
            Self { is_down: true, .. } => "fault",
            _ => "backup",
        };
        Some(role)
    }
}

#[test]
fn whatever_happens_the_node_ends_with_the_truth() {
    let seed = std::env::var("VIPWATCH_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(20_261_115);
    println!("seed {seed}: VIPWATCH_SEED={seed} repeats it");
    let lab = Lab::new();
    let mark = format!("w{}", lab.number());
    let routers = Routers::new(lab.path(), &mark, 12, 0);
    let whole = Truth { is_made: true, has_link: true, is_configured: true, ..Truth::default() };
    let mut truths = vec![whole.clone(); routers.each.len()];
    let place = place(&lab);
    place.configure(AUDITED);
    let mut node = Some(place.start());
    let mut random = Random(seed);
    for round in 0..40 {
        for _ in 0..=random.below(15) {
            let number = random.below(truths.len());
            let (router, truth) = (&routers.each[number], &mut truths[number]);
            let ip = |words: &str| router.netns.ip(words);
            let link = if truth.is_renamed { "other" } else { LINK };
            match random.below(10) {
                0..4 if truth.is_made && truth.has_link => {
                    let word = if truth.holds { "del" } else { "add" };
                    ip(&format!("address {word} {VIP} dev {link}"));
                    truth.holds = !truth.holds;
                }
                4 if truth.is_made && truth.has_link => {
                    ip(&format!("link set {LINK}p {}", if truth.is_down { "up" } else { "down" }));
                    truth.is_down = !truth.is_down;
                }
                5 if truth.is_made && truth.has_link => {
                    ip(&format!("link del {link}"));
                    (truth.has_link, truth.holds) = (false, false);
                    (truth.is_renamed, truth.is_down) = (false, false);
                }
                5 if truth.is_made => {
                    router.netns.add_link(LINK);
                    truth.has_link = true;
                }
                6 if truth.is_made && truth.has_link => {
                    ip(&format!("link set {link} down"));
                    let name = if truth.is_renamed { LINK } else { "other" };
                    ip(&format!("link set {link} name {name}"));
                    ip(&format!("link set {name} up"));
                    truth.is_renamed = !truth.is_renamed;
                }
                7 => {
                    let name = router.netns.name();
                    let words: &[&str] = if truth.is_made {
                        &["netns", "del", name]
                    } else {
                        &["netns", "add", name]
                    };
                    vipwatch_testkit::run(std::process::Command::new("ip").args(words));
                    let is_made = !truth.is_made;
                    *truth =
                        Truth { is_configured: truth.is_configured, is_made, ..Truth::default() };
                }
                8 => {
                    let directory = lab.path().join("ha_confs").join(&router.id);
                    if truth.is_configured {
                        std::fs::remove_dir_all(directory).unwrap();
                    } else {
                        write_conf(lab.path(), &router.id, &[]);
                    }
                    truth.is_configured = !truth.is_configured;
                }
                9 if random.below(4) == 0 => {
                    if let Some(node) = node.take() {
                        node.kill();
                    }
                    node = Some(place.start());
                }
                _ => {}
            }
        }
        let expected: BTreeMap<String, String> = routers
            .each
            .iter()
            .zip(&truths)
            .filter_map(|(router, truth)| Some((router.id.clone(), truth.role()?.to_owned())))
            .collect();
        let what = format!("the roles in round {round}, seed {seed}: {expected:?}");
        let shown = || format!("{:?}", roles(&place));
        wait_within_showing(LONG, &what, shown, || (roles(&place) == expected).then_some(()));
        // Asked in each round: a node that is killed takes its counters along.
        let corrections = metric(&place, "vipwatch_audit_corrections_total");
        assert_eq!(corrections, Some(0), "round {round}, seed {seed}: an event was missed");
    }
    wait_for_audit_of(&place, routers.each.len());
    assert_eq!(metric(&place, "vipwatch_audit_corrections_total"), Some(0));
}
