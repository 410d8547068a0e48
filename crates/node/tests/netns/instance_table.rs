// SPDX-License-Identifier: Apache-2.0
//! The instance table follows many namespaces on a real kernel, through one socket or one socket per
//! namespace.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_core::role::AddressState;
use vipwatch_core::{InstanceId, Role, Trigger};
use vipwatch_linux::clock;
use vipwatch_linux::inotify::ChangedNames;
use vipwatch_linux::netns::Netns;
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_linux::netns_watcher::{ChangerMark, NetnsEvent, NetnsWatcher};
use vipwatch_node::audit::{Audit, SnapshotRequests};
use vipwatch_node::discovery::{ConfigLocations, InstanceConfig, discover};
use vipwatch_node::receiver::ReceiverHandle;
use vipwatch_node::state::{InstanceEntry, StateStore};
use vipwatch_node::watch::instance_table::{InstanceTable, RoleChange, SNAPSHOT_RATE};
use vipwatch_testkit::{AddressEditor, Lab, TestNetns};

const VIP: &str = "169.254.0.1/24";

/// HA routers as Neutron creates them: each with its own configuration file and its own namespace.
struct RouterFixture {
    lab: Lab,
    routers: Vec<Router>,
}

struct Router {
    id: String,
    netns: TestNetns,
    editor: AddressEditor,
    link: u32,
}

impl RouterFixture {
    fn new(count: usize) -> Self {
        let mut fixture = Self { lab: Lab::new(), routers: Vec::new() };
        for number in 0..count {
            let id = format!("{}-{}-{number}", std::process::id(), fixture.lab.number());
            fixture.routers.push(fixture.router(id));
        }
        fixture
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
            keepalived: vec![keepalived],
            ..ConfigLocations::default()
        });
        assert_eq!(discovery.problems, []);
        discovery.instances
    }

    /// A table that follows all routers. Checks that it reports the first role of each.
    fn follow(&self) -> InstanceTable {
        let mut table = InstanceTable::open().unwrap();
        let changes = table.follow(self.instances(), &ChangedNames::Any);
        assert_eq!(changes.len(), self.routers.len(), "one first role for each router");
        assert!(
            changes.iter().all(|change| change.from.is_none() && change.trigger == Trigger::Start)
        );
        table
    }
}

impl Router {
    fn add_vip(&self) {
        self.editor.add(self.link, VIP.parse().unwrap());
    }

    fn remove_vip(&self) {
        self.editor.remove(self.link, VIP.parse().unwrap());
    }
}

/// Reads events until the table has reported `count` changes.
fn read_changes(table: &mut InstanceTable, count: usize) -> Vec<RoleChange> {
    let mut changes = Vec::new();
    while changes.len() < count {
        let ready = wait(table);
        assert!(ready, "{} of {count} changes: {changes:?}", changes.len());
        changes.extend(table.read().unwrap());
    }
    changes
}

/// Waits for an event or for a deferred snapshot. False if no event came in 10 s and no snapshot is due.
fn wait(table: &InstanceTable) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(table.as_fd(), PollFlags::IN)];
    let due = table.due();
    let limit = due.map_or(Duration::from_secs(10), |due| due.since(clock::now()));
    let ready = poll(&mut polled, Timespec::try_from(limit).ok().as_ref()).unwrap();
    ready > 0 || due.is_some()
}

/// Reads all queued events and takes all deferred snapshots; returns the changes.
fn read_all(table: &mut InstanceTable) -> Vec<RoleChange> {
    let mut changes = table.read().unwrap();
    while table.watcher().is_ready() || table.due().is_some() {
        wait(table);
        changes.extend(table.read().unwrap());
    }
    changes
}

/// Requests a snapshot of every namespace, as the audit does.
fn request_snapshots(table: &mut InstanceTable, fixture: &RouterFixture) {
    for instance in fixture.instances() {
        table.request_snapshot(instance.netns.clone());
    }
}

/// The instance id, and "FROM TO CAUSE" (FROM is "-" for a first role).
fn summary(change: &RoleChange) -> (String, String) {
    let from = change.from.as_ref().map_or("-", |from| from.as_str());
    (
        change.instance.id.to_string(),
        format!("{from} {} {}", change.to.as_str(), change.trigger.as_str()),
    )
}

#[test]
fn a_change_in_one_of_many_namespaces_is_the_only_one_reported() {
    let fixture = RouterFixture::new(20);
    let mut table = fixture.follow();
    let seventh = &fixture.routers[7];
    seventh.add_vip();
    let changes = read_changes(&mut table, 1);
    assert_eq!(changes.len(), 1);
    assert_eq!(summary(&changes[0]), (seventh.id.clone(), "backup primary address".to_owned()));
    seventh.remove_vip();
    let changes = read_changes(&mut table, 1);
    assert_eq!(summary(&changes[0]), (seventh.id.clone(), "primary backup address".to_owned()));
    seventh.netns.ip("link del ha-1");
    let changes = read_changes(&mut table, 1);
    assert_eq!(summary(&changes[0]), (seventh.id.clone(), "backup fault link".to_owned()));
}

#[test]
fn a_snapshot_reads_the_namespace_of_the_router_and_not_that_of_the_watcher() {
    let fixture = RouterFixture::new(1);
    // The watcher's own namespace holds the same address on a link of the same name.
    let own = fixture.lab.netns("own");
    own.add_link("ha-1");
    own.ip(&format!("address add {VIP} dev ha-1"));
    own.visit(|| {
        let mut table = InstanceTable::open().unwrap();
        let changes = table.follow(fixture.instances(), &ChangedNames::Any);
        assert_eq!(summary(&changes[0]).1, "- backup start");
        fixture.routers[0].add_vip();
        let changes = read_changes(&mut table, 1);
        assert_eq!(summary(&changes[0]).1, "backup primary address");
    });
}

#[test]
fn a_namespace_that_is_deleted_and_created_again_is_followed() {
    let mut fixture = RouterFixture::new(3);
    let mut table = fixture.follow();
    fixture.routers[1].add_vip();
    read_changes(&mut table, 1);
    let Router { id, netns, .. } = fixture.routers.remove(1);
    netns.delete();
    let changes = read_changes(&mut table, 1);
    assert_eq!(summary(&changes[0]), (id.clone(), "primary fault namespace".to_owned()));
    let again = fixture.router(id.clone());
    let changes = table.follow(fixture.instances(), &ChangedNames::Any);
    assert_eq!(changes.len(), 1, "the other routers do not change: {changes:?}");
    assert_eq!(summary(&changes[0]), (id.clone(), "fault backup namespace".to_owned()));
    again.add_vip();
    let changes = read_changes(&mut table, 1);
    assert_eq!(summary(&changes[0]), (id, "backup primary address".to_owned()));
}

#[test]
fn a_namespace_that_is_replaced_before_the_table_reads_is_not_mistaken_for_the_old_one() {
    let mut fixture = RouterFixture::new(1);
    let mut table = fixture.follow();
    fixture.routers[0].add_vip();
    read_changes(&mut table, 1);
    // The namespace is deleted and created before the table reads the first event.
    let Router { id, netns, .. } = fixture.routers.remove(0);
    netns.delete();
    let again = fixture.router(id);
    let changes = table.follow(fixture.instances(), &ChangedNames::Any);
    assert_eq!(changes.last().map(|change| change.to.as_str()), Some("backup"), "{changes:?}");
    again.add_vip();
    let mut changes = table.read().unwrap();
    while changes.last().is_none_or(|change| change.to.as_str() != "primary") {
        changes.extend(read_changes(&mut table, 1));
    }
}

#[test]
fn three_hundred_simultaneous_changes_are_all_reported() {
    let fixture = RouterFixture::new(300);
    let mut table = fixture.follow();
    fixture.routers.iter().for_each(Router::add_vip);
    let changes = read_changes(&mut table, 300);
    assert!(changes.iter().all(|change| change.to.as_str() == "primary"));
    fixture.routers.iter().step_by(2).for_each(Router::remove_vip);
    let changes = read_changes(&mut table, 150);
    assert!(changes.iter().all(|change| change.to.as_str() == "backup"));
}

#[test]
fn roles_match_the_kernel_after_an_event_storm_that_was_not_read() {
    let fixture = RouterFixture::new(5);
    let mut table = fixture.follow();
    let other = "10.9.9.9/32".parse().unwrap();
    let noisy = &fixture.routers[0];
    for _ in 0..30_000 {
        noisy.editor.add(noisy.link, other);
        noisy.editor.remove(noisy.link, other);
    }
    fixture.routers[3].add_vip();
    let changes = read_changes(&mut table, 1);
    assert_eq!(
        summary(&changes[0]),
        (fixture.routers[3].id.clone(), "backup primary resync".to_owned())
    );
}

#[test]
fn events_about_other_links_and_addresses_cause_no_snapshots() {
    for watcher in [NetnsWatcher::open().unwrap(), NetnsWatcher::open_per_netns().unwrap()] {
        let fixture = RouterFixture::new(2);
        let mut table = InstanceTable::over(watcher);
        table.follow(fixture.instances(), &ChangedNames::Any);
        let busy = &fixture.routers[0];
        busy.netns.add_link("tap0");
        read_all(&mut table);
        let before = table.snapshots();
        let (tap, other) = (busy.editor.link("tap0"), "10.9.9.9/32".parse().unwrap());
        let mut changes = Vec::new();
        for _ in 0..300 {
            busy.editor.add(tap, other);
            changes.extend(table.read().unwrap());
            busy.editor.remove(tap, other);
            changes.extend(table.read().unwrap());
        }
        for _ in 0..30 {
            for words in ["link add t1 type veth peer name t2", "link set t1 up", "link del t1"] {
                busy.netns.ip(words);
                changes.extend(table.read().unwrap());
            }
        }
        changes.extend(read_all(&mut table));
        assert!(changes.is_empty(), "{changes:?}");
        // The watched links may still have changed state after their creation: a few snapshots are allowed.
        let count = table.snapshots() - before;
        assert!(count <= 5, "{count} snapshots for 690 events about other links");
        // A change of a watched address is reported in both namespaces.
        for router in &fixture.routers {
            router.add_vip();
            let changes = read_changes(&mut table, 1);
            assert_eq!(
                summary(&changes[0]),
                (router.id.clone(), "backup primary address".to_owned())
            );
        }
    }
}

#[test]
fn a_change_is_reported_while_other_addresses_of_the_namespace_keep_changing() {
    let fixture = RouterFixture::new(1);
    let busy = &fixture.routers[0];
    busy.netns.add_link("tap0");
    // More addresses than fit into one datagram of a dump: the kernel marks such a dump as inconsistent
    // (NLM_F_DUMP_INTR) when an address changes meanwhile.
    let tap = busy.editor.link("tap0");
    for number in 0..8000 {
        let cidr = format!("10.9.{}.{}/32", number / 250, number % 250 + 1);
        busy.editor.add(tap, cidr.parse().unwrap());
    }
    let mut table = fixture.follow();
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
        let mut changes = Vec::new();
        let ends = std::time::Instant::now() + Duration::from_secs(30);
        for expected in ["primary", "backup", "primary"] {
            if expected == "primary" {
                busy.add_vip();
            } else {
                busy.remove_vip();
            }
            let is_reported = |changes: &[RoleChange]| {
                changes.last().is_some_and(|change: &RoleChange| change.to.as_str() == expected)
            };
            while !is_reported(&changes) && std::time::Instant::now() < ends {
                wait(&table);
                changes.extend(table.read().unwrap());
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let words: Vec<&str> = changes.iter().map(|change| change.to.as_str()).collect();
        assert_eq!(words, ["primary", "backup", "primary"]);
    });
    // One snapshot for each change. The watched link may still have changed state after its creation.
    let count = table.snapshots() - before;
    assert!(count <= 5, "{count} snapshots for 3 changes");
}

#[test]
fn a_watched_link_that_is_renamed_and_renamed_back_is_noticed() {
    let fixture = RouterFixture::new(1);
    let mut table = fixture.follow();
    read_all(&mut table);
    let netns = &fixture.routers[0].netns;
    netns.ip("link set ha-1 down");
    netns.ip("link set ha-1 name other");
    let changes = read_all(&mut table);
    assert_eq!(
        changes.last().map(|change| change.to.reason()).as_deref(),
        Some("ha-1 does not exist")
    );
    netns.ip("link set other name ha-1");
    netns.ip("link set ha-1 up");
    let mut last = String::new();
    while last != "backup" {
        last = read_changes(&mut table, 1).pop().unwrap().to.as_str().to_owned();
    }
}

#[test]
fn a_busy_namespace_is_read_at_a_limited_rate_and_once_after_its_last_event() {
    let fixture = RouterFixture::new(2);
    let mut table = fixture.follow();
    let (busy, calm) = (&fixture.routers[0], &fixture.routers[1]);
    read_all(&mut table);
    let (before, began) = (table.snapshots(), std::time::Instant::now());
    let mut changes = Vec::new();
    for _ in 0..1000 {
        busy.add_vip();
        changes.extend(table.read().unwrap());
        busy.remove_vip();
        changes.extend(table.read().unwrap());
    }
    calm.add_vip();
    busy.add_vip();
    changes.extend(read_all(&mut table));
    let count = table.snapshots() - before;
    // The limit for one namespace in the elapsed time.
    let seconds = began.elapsed().as_secs() + 1;
    let limit = u64::from(SNAPSHOT_RATE.burst) + u64::from(SNAPSHOT_RATE.per_second) * seconds;
    // Plus one snapshot of the other namespace.
    assert!(count <= limit + 1, "{count} snapshots in {seconds} s");
    for router in [busy, calm] {
        let last = changes.iter().rfind(|change| change.instance.id.as_str() == router.id);
        assert_eq!(last.map(|change| change.to.as_str()), Some("primary"), "{changes:?}");
    }
    request_snapshots(&mut table, &fixture);
    assert!(read_all(&mut table).is_empty(), "nothing is left for an audit");
}

#[test]
fn a_snapshot_that_the_audit_requests_finds_nothing_where_no_event_was_missed() {
    let fixture = RouterFixture::new(5);
    let mut table = fixture.follow();
    fixture.routers[2].add_vip();
    read_changes(&mut table, 1);
    let before = table.snapshots();
    request_snapshots(&mut table, &fixture);
    let changes = read_all(&mut table);
    assert!(changes.is_empty(), "{changes:?}");
    assert!(table.snapshots() >= before + 5, "each namespace was read");
}

#[test]
fn a_change_whose_event_is_queued_is_not_found_by_the_audit() {
    let fixture = RouterFixture::new(1);
    let mut table = fixture.follow();
    fixture.routers[0].add_vip();
    request_snapshots(&mut table, &fixture);
    assert_eq!(summary(&read_changes(&mut table, 1)[0]).1, "backup primary address");
}

#[test]
fn a_change_without_an_event_is_found_by_the_audit() {
    let fixture = RouterFixture::new(1);
    let mut table = fixture.follow();
    read_all(&mut table);
    fixture.routers[0].add_vip();
    // The test reads the event, so that the table does not receive it.
    while table.watcher().is_ready() {
        rustix::net::recv(&table, &mut [0; 4096], rustix::net::RecvFlags::empty()).unwrap();
    }
    assert!(read_all(&mut table).is_empty(), "there is no event");
    request_snapshots(&mut table, &fixture);
    let changes = read_all(&mut table);
    assert_eq!(
        changes.iter().map(|change| summary(change).1).collect::<Vec<_>>(),
        ["backup primary audit"]
    );
}

/// The kernel may change between the read of the events and the snapshot, and the event about it comes later.
#[test]
fn a_change_that_happens_during_the_snapshot_of_an_audit_is_not_found_by_the_audit() {
    let fixture = RouterFixture::new(40);
    let mut table = fixture.follow();
    let is_over = AtomicBool::new(false);
    let mut changes = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fixture.routers.iter().for_each(Router::add_vip);
                fixture.routers.iter().for_each(Router::remove_vip);
            }
        });
        while changes.len() < 4_000 {
            request_snapshots(&mut table, &fixture);
            changes.extend(table.read().unwrap());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    changes.extend(read_all(&mut table));
    let audited: Vec<_> =
        changes.iter().filter(|change| change.trigger == Trigger::Audit).map(summary).collect();
    assert_eq!(audited, [], "no event was missed");
}

#[test]
fn an_audit_requests_a_snapshot_where_the_published_role_is_wrong_and_nowhere_else() {
    let fixture = RouterFixture::new(2);
    let mut table = fixture.follow();
    let (wrong, right) = (&fixture.routers[0], &fixture.routers[1]);
    right.add_vip();
    let taken = read_changes(&mut table, 1);
    wrong.add_vip();
    // The table has not read the last event, so its role is that of a missed change.
    let config = |router: &Router| {
        let mut instances = fixture.instances().into_iter();
        instances.find(|instance| instance.id.as_str() == router.id).unwrap()
    };
    let store = Arc::new(StateStore::default());
    for (router, role) in [(wrong, Role::Backup), (right, taken[0].to.clone())] {
        store.insert(InstanceEntry::new(config(router), role, Arc::from([])));
    }
    let requests = SnapshotRequests::new().unwrap();
    let audit = Audit::new(Arc::clone(&store), ReceiverHandle::default(), Some(requests.clone()));
    let ids = store.view().entries.keys().cloned().collect::<Vec<_>>();
    assert_eq!(audit.run(ids, &mut NetnsQuery::open().ok(), || {}), 2);
    let requested = requests.take_all();
    assert_eq!(requested, [Some(format!("qrouter-{}", wrong.id).parse().unwrap())]);
    for netns in requested {
        table.request_snapshot(netns);
    }
    let corrected = read_changes(&mut table, 1);
    assert_eq!(summary(&corrected[0]).0, wrong.id);
    assert_eq!(corrected[0].to, Role::Primary);
}

#[test]
fn a_published_role_that_is_not_the_right_one_of_the_table_is_corrected_once() {
    let fixture = RouterFixture::new(2);
    let mut table = fixture.follow();
    fixture.routers.iter().for_each(Router::add_vip);
    read_changes(&mut table, 2);
    let wrong = &fixture.routers[0].id;
    for instance in fixture.instances() {
        let published =
            |id: &InstanceId| Some(if id.as_str() == wrong { Role::Backup } else { Role::Primary });
        table.set_published(&instance.netns, published);
        table.request_snapshot(instance.netns.clone());
    }
    let changes = read_all(&mut table);
    let summaries: Vec<_> = changes.iter().map(summary).collect();
    assert_eq!(summaries, [(wrong.clone(), "backup primary audit".to_owned())]);
    request_snapshots(&mut table, &fixture);
    assert!(read_all(&mut table).is_empty(), "the role is published now");
}

#[test]
fn the_end_of_one_of_many_namespaces_looks_up_no_name_of_another_one() {
    let mut fixture = RouterFixture::new(20);
    let mut table = fixture.follow();
    // Without a lookup, the table does not notice that the names of the others lead nowhere: the namespaces still exist.
    let Router { id, netns, .. } = fixture.routers.remove(3);
    let others: Vec<std::path::PathBuf> =
        fixture.routers.iter().map(|router| router.netns.path()).collect();
    for path in &others {
        vipwatch_testkit::run(std::process::Command::new("umount").arg("-l").arg(path));
    }
    netns.delete();
    let mut changes = read_changes(&mut table, 1);
    changes.extend(read_all(&mut table));
    let summaries: Vec<_> = changes.iter().map(summary).collect();
    assert_eq!(summaries, [(id, "backup fault namespace".to_owned())]);
}

#[test]
fn another_address_of_a_partial_instance_changes_the_addresses_but_not_the_role() {
    let lab = Lab::new();
    let own = lab.netns("own");
    own.add_link("eth0");
    own.ip(&format!("address add {VIP} dev eth0"));
    own.visit(|| {
        let mut table = InstanceTable::open().unwrap();
        let changes = table.follow(vec![instance_here(&[VIP, "192.0.2.9/24"])], &ChangedNames::Any);
        assert_eq!(changes[0].to, Role::Partial { held: 1, total: 2 });
        assert_eq!(*changes[0].addresses, [AddressState::Held, AddressState::Absent]);
        // Both events are read together: the role between the two is not seen.
        own.ip("address add 192.0.2.9/24 dev eth0");
        own.ip(&format!("address del {VIP} dev eth0"));
        let changes = read_all(&mut table);
        assert!(changes.is_empty(), "{changes:?}");
        let update = table.take_address_changes().pop().unwrap();
        assert_eq!(*update.addresses, [AddressState::Absent, AddressState::Held]);
    });
}

#[test]
fn one_socket_per_namespace_reports_the_same_changes_and_keeps_no_namespace_alive() {
    let mut fixture = RouterFixture::new(3);
    let mut table = InstanceTable::over(NetnsWatcher::open_per_netns().unwrap());
    assert!(table.watcher().fallback_reason().is_some());
    let first = table.follow(fixture.instances(), &ChangedNames::Any);
    assert_eq!(
        (first.len(), table.watcher().sockets()),
        (3, 4),
        "three routers and the own namespace"
    );
    fixture.routers[1].add_vip();
    let changes = read_changes(&mut table, 1);
    assert_eq!(
        summary(&changes[0]),
        (fixture.routers[1].id.clone(), "backup primary address".to_owned())
    );
    let Router { id, netns, .. } = fixture.routers.remove(1);
    netns.delete();
    // These sockets get no event about a deleted namespace: the table notices that the name is gone.
    let changes = table.follow(fixture.instances(), &ChangedNames::Any);
    assert_eq!(summary(&changes[0]), (id.clone(), "primary fault namespace".to_owned()));
    assert_eq!(table.watcher().sockets(), 3, "the socket is closed");
    let again = fixture.router(id.clone());
    let changes = table.follow(fixture.instances(), &ChangedNames::Any);
    assert_eq!(summary(&changes[0]), (id.clone(), "fault backup namespace".to_owned()));
    again.add_vip();
    assert_eq!(summary(&read_changes(&mut table, 1)[0]), (id, "backup primary address".to_owned()));
}

#[test]
fn roles_match_the_kernel_after_an_event_storm_on_one_of_many_sockets() {
    let fixture = RouterFixture::new(3);
    let mut table = InstanceTable::over(NetnsWatcher::open_per_netns().unwrap());
    table.follow(fixture.instances(), &ChangedNames::Any);
    assert_eq!((table.overruns(), table.resyncs()), (0, 0));
    let other = "10.9.9.9/32".parse().unwrap();
    let noisy = &fixture.routers[0];
    for _ in 0..10_000 {
        noisy.editor.add(noisy.link, other);
        noisy.editor.remove(noisy.link, other);
    }
    noisy.add_vip();
    let changes = read_changes(&mut table, 1);
    assert_eq!(summary(&changes[0]).1, "backup primary resync");
    assert!(table.overruns() > 0);
    assert!((1..=table.overruns()).contains(&table.resyncs()), "{}", table.resyncs());
}

#[test]
fn a_change_after_the_overrun_of_one_of_many_sockets_is_not_lost() {
    let fixture = RouterFixture::new(1);
    let mut watcher = NetnsWatcher::open_per_netns().unwrap();
    let router = &fixture.routers[0];
    let netns = Netns::open(&router.netns.name().parse().unwrap()).unwrap();
    watcher.watch(&netns).unwrap();
    let other: ipnet::IpNet = "10.9.9.9/32".parse().unwrap();
    for _ in 0..10_000 {
        router.editor.add(router.link, other);
        router.editor.remove(router.link, other);
    }
    let mut events = Vec::new();
    watcher.read(&mut events).unwrap();
    assert_eq!(
        events.last(),
        Some(&NetnsEvent::Lost),
        "the queue is empty when the loss is reported"
    );
    // The caller reads the namespace now, and then this address appears.
    router.add_vip();
    events.clear();
    watcher.read(&mut events).unwrap();
    let is_vip = |event: &NetnsEvent| matches!(event, NetnsEvent::Address(_, event) if event.ip != Some(other.addr()));
    assert!(events.iter().any(is_vip), "{events:?}");
}

#[test]
fn events_of_the_watchers_own_namespace_are_read_although_it_has_an_id() {
    let lab = Lab::new();
    let own = lab.netns("own");
    own.add_link("eth0");
    own.visit(|| {
        own.ip(&format!("netns set {} 77", own.name()));
        let mut table = InstanceTable::open().unwrap();
        table.follow(vec![instance_here(&[VIP])], &ChangedNames::Any);
        own.ip(&format!("address add {VIP} dev eth0"));
        assert_eq!(summary(&read_changes(&mut table, 1)[0]).1, "backup primary address");
    });
}

#[test]
fn the_kernel_says_which_kind_of_program_added_an_ipv6_address_and_not_who_removed_it() {
    let lab = Lab::new();
    let own = lab.netns("own");
    own.add_link("eth0");
    own.visit(|| {
        let mut table = InstanceTable::open().unwrap();
        table.follow(vec![instance_here(&["fd00::9/64"])], &ChangedNames::Any);
        let editor = own.editor();
        let (link, vip) = (editor.link("eth0"), "fd00::9/64".parse().unwrap());
        let mut changer = || read_changes(&mut table, 1)[0].changer;
        // A snapshot because of the new link may show the address before its event. Afterwards, the events of the link have been read.
        editor.add_with_protocol(link, vip, 0x12);
        changer();
        editor.remove(link, vip);
        changer();
        for protocol in [0x12, 0x42] {
            editor.add_with_protocol(link, vip, protocol);
            assert_eq!(changer(), Some(ChangerMark::Protocol(protocol)));
            editor.remove(link, vip);
            assert_eq!(changer(), None);
        }
    });
}

/// An instance with these addresses in the namespace of the test.
fn instance_here(addresses: &[&str]) -> Arc<InstanceConfig> {
    let addresses = addresses.join("\n ");
    let text = format!(
        "vrrp_instance H {{\n interface eth0\n virtual_router_id 1\n virtual_ipaddress {{\n {addresses}\n }}\n}}\n"
    );
    let directory = tempfile::tempdir().unwrap();
    let keepalived = directory.path().join("k.conf");
    std::fs::File::create(&keepalived).unwrap().write_all(text.as_bytes()).unwrap();
    let (neutron, keepalived) = (directory.path().to_owned(), vec![keepalived]);
    let locations = ConfigLocations { neutron, keepalived, ..ConfigLocations::default() };
    discover(&locations).instances.remove(0)
}
