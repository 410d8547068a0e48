//! Many namespaces through one socket, on a real kernel.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_linux::clock;
use vipwatch_linux::netns_watcher::NetnsWatcher;
use vipwatch_node::discovery::{ConfigLocations, InstanceConfig, discover};
use vipwatch_node::watch::instance_table::{
    Cause, InstanceTable, NetnsSearch, RoleChange, SNAPSHOT_RATE,
};
use vipwatch_testkit::{AddressEditor, Lab, TestNetns};

const VIP: &str = "169.254.0.1/24";

/// Routers, each in a namespace of its own, as Neutron would have them.
struct Stage {
    lab: Lab,
    routers: Vec<Router>,
}

struct Router {
    id: String,
    netns: TestNetns,
    editor: AddressEditor,
    link: u32,
}

impl Stage {
    fn new(count: usize) -> Self {
        let mut stage = Self { lab: Lab::new(), routers: Vec::new() };
        for number in 0..count {
            let id = format!("{}-{}-{number}", std::process::id(), stage.lab.number());
            stage.routers.push(stage.router(id));
        }
        stage
    }

    fn router(&self, id: String) -> Router {
        let directory = self.lab.path().join("ha_confs").join(&id);
        std::fs::create_dir_all(&directory).unwrap();
        let text = format!(
            "vrrp_instance VR_1 {{\n interface ha-1\n virtual_router_id 1\n virtual_ipaddress {{\n  \
             {VIP} dev ha-1\n }}\n}}\n"
        );
        let mut file = std::fs::File::create(directory.join("keepalived.conf")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let netns = TestNetns::create(&format!("qrouter-{id}"));
        netns.add_link("ha-1");
        let editor = netns.editor();
        let link = editor.link("ha-1");
        Router { id, netns, editor, link }
    }

    fn instances(&self) -> Vec<Arc<InstanceConfig>> {
        let keepalived = self.lab.path().join("keepalived.conf");
        let discovery = discover(&ConfigLocations {
            neutron: self.lab.path().to_owned(),
            keepalived,
            config_id: None,
        });
        assert_eq!(discovery.problems, []);
        discovery.instances
    }

    /// Follows everything, once the new links have come to rest.
    fn follow(&self) -> InstanceTable {
        let mut table = InstanceTable::open().unwrap();
        let found = table.follow(self.instances(), NetnsSearch::All);
        assert_eq!(found.len(), self.routers.len(), "each is told of once, at the start");
        assert!(found.iter().all(|change| change.from.is_none() && change.cause == Cause::Start));
        table
    }
}

impl Router {
    fn take(&self) {
        self.editor.add(self.link, VIP.parse().unwrap());
    }

    fn give_up(&self) {
        self.editor.remove(self.link, VIP.parse().unwrap());
    }
}

/// Reads until `count` changes have come.
fn changes(table: &mut InstanceTable, count: usize) -> Vec<RoleChange> {
    let mut changes = Vec::new();
    while changes.len() < count {
        let ready = wait(table);
        assert!(ready, "{} of {count} changes: {changes:?}", changes.len());
        changes.extend(table.read().unwrap());
    }
    changes
}

/// Waits for an event, or until the roster has something to do; false if neither happens.
fn wait(table: &InstanceTable) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(table.as_fd(), PollFlags::IN)];
    let due = table.due();
    let limit = due.map_or(Duration::from_secs(10), |due| due.since(clock::now()));
    let ready = poll(&mut polled, Timespec::try_from(limit).ok().as_ref()).unwrap();
    ready > 0 || due.is_some()
}

/// Reads everything that has happened; the changes.
fn read_all(table: &mut InstanceTable) -> Vec<RoleChange> {
    let mut changes = table.read().unwrap();
    while table.watcher().is_ready() || table.due().is_some() {
        wait(table);
        changes.extend(table.read().unwrap());
    }
    changes
}

fn said(change: &RoleChange) -> (String, String) {
    let from = change.from.as_ref().map_or("-", |from| from.as_str());
    (change.found.id.to_string(), format!("{from} {} {}", change.to.as_str(), change.cause.word()))
}

#[test]
fn a_change_in_one_of_many_namespaces_is_told_and_no_other() {
    let stage = Stage::new(20);
    let mut table = stage.follow();
    let seventh = &stage.routers[7];
    seventh.take();
    let told = changes(&mut table, 1);
    assert_eq!(told.len(), 1);
    assert_eq!(said(&told[0]), (seventh.id.clone(), "backup primary address".to_owned()));
    seventh.give_up();
    let told = changes(&mut table, 1);
    assert_eq!(said(&told[0]), (seventh.id.clone(), "primary backup address".to_owned()));
    seventh.netns.ip("link del ha-1");
    let told = changes(&mut table, 1);
    assert_eq!(said(&told[0]), (seventh.id.clone(), "backup fault link".to_owned()));
}

#[test]
fn an_answer_about_us_is_not_taken_for_one_about_them() {
    let stage = Stage::new(1);
    // The watcher's own namespace holds the same address on a link of the same name.
    let own = stage.lab.netns("own");
    own.add_link("ha-1");
    own.ip(&format!("address add {VIP} dev ha-1"));
    own.visit(|| {
        let mut table = InstanceTable::open().unwrap();
        let told = table.follow(stage.instances(), NetnsSearch::All);
        assert_eq!(said(&told[0]).1, "- backup start");
        stage.routers[0].take();
        let told = changes(&mut table, 1);
        assert_eq!(said(&told[0]).1, "backup primary address");
    });
}

#[test]
fn a_namespace_deleted_and_made_again_under_its_name_is_followed() {
    let mut stage = Stage::new(3);
    let mut table = stage.follow();
    stage.routers[1].take();
    changes(&mut table, 1);
    let Router { id, netns, .. } = stage.routers.remove(1);
    netns.delete();
    let told = changes(&mut table, 1);
    assert_eq!(said(&told[0]), (id.clone(), "primary fault namespace".to_owned()));
    let again = stage.router(id.clone());
    let told = table.follow(stage.instances(), NetnsSearch::All);
    assert_eq!(told.len(), 1, "the others are not touched: {told:?}");
    assert_eq!(said(&told[0]), (id.clone(), "fault backup namespace".to_owned()));
    again.take();
    let told = changes(&mut table, 1);
    assert_eq!(said(&told[0]), (id, "backup primary address".to_owned()));
}

#[test]
fn a_namespace_that_changed_hands_unseen_is_not_mistaken_for_the_old_one() {
    let mut stage = Stage::new(1);
    let mut table = stage.follow();
    stage.routers[0].take();
    changes(&mut table, 1);
    // Both happen before anybody reads.
    let Router { id, netns, .. } = stage.routers.remove(0);
    netns.delete();
    let again = stage.router(id);
    let told = table.follow(stage.instances(), NetnsSearch::All);
    assert_eq!(told.last().map(|change| change.to.as_str()), Some("backup"), "{told:?}");
    again.take();
    let mut told = table.read().unwrap();
    while told.last().is_none_or(|change| change.to.as_str() != "primary") {
        told.extend(changes(&mut table, 1));
    }
}

#[test]
fn three_hundred_at_once_are_all_told() {
    let stage = Stage::new(300);
    let mut table = stage.follow();
    stage.routers.iter().for_each(Router::take);
    let told = changes(&mut table, 300);
    assert!(told.iter().all(|change| change.to.as_str() == "primary"));
    stage.routers.iter().step_by(2).for_each(Router::give_up);
    let told = changes(&mut table, 150);
    assert!(told.iter().all(|change| change.to.as_str() == "backup"));
}

#[test]
fn a_storm_that_nobody_reads_ends_in_the_truth() {
    let stage = Stage::new(5);
    let mut table = stage.follow();
    let other = "10.9.9.9/32".parse().unwrap();
    let noisy = &stage.routers[0];
    for _ in 0..30_000 {
        noisy.editor.add(noisy.link, other);
        noisy.editor.remove(noisy.link, other);
    }
    stage.routers[3].take();
    let told = changes(&mut table, 1);
    assert_eq!(said(&told[0]), (stage.routers[3].id.clone(), "backup primary resync".to_owned()));
}

#[test]
fn events_about_other_links_and_addresses_cause_no_snapshots() {
    for watcher in [NetnsWatcher::open().unwrap(), NetnsWatcher::open_per_netns().unwrap()] {
        let stage = Stage::new(2);
        let mut table = InstanceTable::over(watcher);
        table.follow(stage.instances(), NetnsSearch::All);
        let busy = &stage.routers[0];
        busy.netns.add_link("tap0");
        read_all(&mut table);
        let before = table.snapshots();
        let (tap, other) = (busy.editor.link("tap0"), "10.9.9.9/32".parse().unwrap());
        let mut told = Vec::new();
        for _ in 0..300 {
            busy.editor.add(tap, other);
            told.extend(table.read().unwrap());
            busy.editor.remove(tap, other);
            told.extend(table.read().unwrap());
        }
        for _ in 0..30 {
            for words in ["link add t1 type veth peer name t2", "link set t1 up", "link del t1"] {
                busy.netns.ip(words);
                told.extend(table.read().unwrap());
            }
        }
        told.extend(read_all(&mut table));
        assert!(told.is_empty(), "{told:?}");
        // The watched links may have come to rest meanwhile: some events about them, and no storm.
        let count = table.snapshots() - before;
        assert!(count <= 5, "{count} snapshots for 690 events about other links");
        // What matters is heard there, and elsewhere.
        for router in &stage.routers {
            router.take();
            let told = changes(&mut table, 1);
            assert_eq!(said(&told[0]), (router.id.clone(), "backup primary address".to_owned()));
        }
    }
}

#[test]
fn a_change_is_told_while_others_in_the_same_namespace_come_and_go_all_the_time() {
    let stage = Stage::new(1);
    let busy = &stage.routers[0];
    busy.netns.add_link("tap0");
    // More than fit into one datagram of a dump, which is then disturbed by each change.
    let tap = busy.editor.link("tap0");
    for number in 0..8000 {
        let cidr = format!("10.9.{}.{}/32", number / 250, number % 250 + 1);
        busy.editor.add(tap, cidr.parse().unwrap());
    }
    let mut table = stage.follow();
    read_all(&mut table);
    let before = table.snapshots();
    let is_over = AtomicBool::new(false);
    let noise = busy.netns.editor();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = "10.8.8.8/32".parse().unwrap();
            while !is_over.load(Ordering::Relaxed) {
                noise.add(tap, other);
                noise.remove(tap, other);
            }
        });
        let mut told = Vec::new();
        let ends = std::time::Instant::now() + Duration::from_secs(30);
        for expected in ["primary", "backup", "primary"] {
            if expected == "primary" {
                busy.take();
            } else {
                busy.give_up();
            }
            let is_told = |told: &[RoleChange]| {
                told.last().is_some_and(|one: &RoleChange| one.to.as_str() == expected)
            };
            while !is_told(&told) && std::time::Instant::now() < ends {
                wait(&table);
                told.extend(table.read().unwrap());
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let words: Vec<&str> = told.iter().map(|change| change.to.as_str()).collect();
        assert_eq!(words, ["primary", "backup", "primary"]);
    });
    // The first snapshot after each change was good; the watched link may have come to rest meanwhile.
    let count = table.snapshots() - before;
    assert!(count <= 5, "{count} snapshots for 3 changes");
}

#[test]
fn a_watched_link_that_is_renamed_away_and_back_is_noticed() {
    let stage = Stage::new(1);
    let mut table = stage.follow();
    read_all(&mut table);
    let netns = &stage.routers[0].netns;
    netns.ip("link set ha-1 down");
    netns.ip("link set ha-1 name other");
    let told = read_all(&mut table);
    assert_eq!(
        told.last().map(|change| change.to.reason()).as_deref(),
        Some("ha-1 does not exist")
    );
    netns.ip("link set other name ha-1");
    netns.ip("link set ha-1 up");
    let mut last = String::new();
    while last != "backup" {
        last = changes(&mut table, 1).pop().unwrap().to.as_str().to_owned();
    }
}

#[test]
fn a_namespace_that_changes_all_the_time_is_read_at_a_limited_rate_and_to_its_end() {
    let stage = Stage::new(2);
    let mut table = stage.follow();
    let (busy, calm) = (&stage.routers[0], &stage.routers[1]);
    read_all(&mut table);
    let (before, began) = (table.snapshots(), std::time::Instant::now());
    let mut told = Vec::new();
    for _ in 0..1000 {
        busy.take();
        told.extend(table.read().unwrap());
        busy.give_up();
        told.extend(table.read().unwrap());
    }
    calm.take();
    busy.take();
    told.extend(read_all(&mut table));
    let count = table.snapshots() - before;
    // The rate, for as long as it took.
    let seconds = began.elapsed().as_secs() + 1;
    let limit = u64::from(SNAPSHOT_RATE.burst) + u64::from(SNAPSHOT_RATE.per_second) * seconds;
    // And one of the other namespace.
    assert!(count <= limit + 1, "{count} snapshots in {seconds} s");
    for router in [busy, calm] {
        let last = told.iter().rfind(|change| change.found.id.as_str() == router.id);
        assert_eq!(last.map(|change| change.to.as_str()), Some("primary"), "{told:?}");
    }
    assert!(table.audit(9, |_, _| {}).is_empty(), "nothing is left for an audit");
}

#[test]
fn an_audit_finds_nothing_where_everything_was_heard_and_goes_round() {
    let stage = Stage::new(5);
    let mut table = stage.follow();
    stage.routers[2].take();
    changes(&mut table, 1);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let told = table.audit(2, |found, _| seen.push(found.id.to_string()));
        assert!(told.is_empty(), "{told:?}");
    }
    let ids: std::collections::BTreeSet<&String> = seen.iter().collect();
    assert_eq!((ids.len(), seen.len()), (5, 7), "all of them, and then again: {seen:?}");
}

#[test]
fn what_is_queued_is_heard_and_not_found_by_an_audit() {
    let stage = Stage::new(1);
    let mut table = stage.follow();
    stage.routers[0].take();
    assert!(table.audit(9, |_, _| {}).is_empty(), "it has not been read yet");
    assert_eq!(said(&changes(&mut table, 1)[0]).1, "backup primary address");
}

#[test]
fn a_socket_in_each_namespace_tells_the_same_and_keeps_none_alive() {
    let mut stage = Stage::new(3);
    let mut table = InstanceTable::over(NetnsWatcher::open_per_netns().unwrap());
    assert!(table.watcher().fallback_reason().is_some());
    let found = table.follow(stage.instances(), NetnsSearch::All);
    assert_eq!((found.len(), table.watcher().sockets()), (3, 4), "and one here");
    stage.routers[1].take();
    let told = changes(&mut table, 1);
    assert_eq!(said(&told[0]), (stage.routers[1].id.clone(), "backup primary address".to_owned()));
    let Router { id, netns, .. } = stage.routers.remove(1);
    netns.delete();
    // The kernel does not tell: the names do.
    let told = table.follow(stage.instances(), NetnsSearch::All);
    assert_eq!(said(&told[0]), (id.clone(), "primary fault namespace".to_owned()));
    assert_eq!(table.watcher().sockets(), 3, "it is let go");
    let again = stage.router(id.clone());
    let told = table.follow(stage.instances(), NetnsSearch::All);
    assert_eq!(said(&told[0]), (id.clone(), "fault backup namespace".to_owned()));
    again.take();
    assert_eq!(said(&changes(&mut table, 1)[0]), (id, "backup primary address".to_owned()));
}

#[test]
fn a_storm_in_one_of_many_sockets_ends_in_the_truth() {
    let stage = Stage::new(3);
    let mut table = InstanceTable::over(NetnsWatcher::open_per_netns().unwrap());
    table.follow(stage.instances(), NetnsSearch::All);
    let other = "10.9.9.9/32".parse().unwrap();
    let noisy = &stage.routers[0];
    for _ in 0..10_000 {
        noisy.editor.add(noisy.link, other);
        noisy.editor.remove(noisy.link, other);
    }
    noisy.take();
    let told = changes(&mut table, 1);
    assert_eq!(said(&told[0]).1, "backup primary resync");
    assert!(table.overruns() > 0);
}

#[test]
fn our_own_namespace_is_heard_although_it_has_an_id() {
    let lab = Lab::new();
    let own = lab.netns("own");
    own.add_link("eth0");
    own.visit(|| {
        own.ip(&format!("netns set {} 77", own.name()));
        let mut table = InstanceTable::open().unwrap();
        table.follow(vec![here()], NetnsSearch::All);
        own.ip(&format!("address add {VIP} dev eth0"));
        assert_eq!(said(&changes(&mut table, 1)[0]).1, "backup primary address");
    });
}

/// An instance in the namespace we are in.
fn here() -> Arc<InstanceConfig> {
    let text = format!(
        "vrrp_instance H {{\n interface eth0\n virtual_router_id 1\n virtual_ipaddress {{\n {VIP}\n }}\n}}\n"
    );
    let directory = tempfile::tempdir().unwrap();
    let keepalived = directory.path().join("k.conf");
    std::fs::File::create(&keepalived).unwrap().write_all(text.as_bytes()).unwrap();
    let places =
        ConfigLocations { neutron: directory.path().to_owned(), keepalived, config_id: None };
    discover(&places).instances.remove(0)
}
