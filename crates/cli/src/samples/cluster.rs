// SPDX-License-Identifier: Apache-2.0
//! Documents about a cluster of three nodes with fixed values, for tests of the output.

use vipwatch_api::{
    ClusterBasis, ClusterConnectionState, ClusterFindingItem, ClusterFindingList, ClusterGroupItem,
    ClusterGroupList, ClusterHistory, ClusterHistoryItem, ClusterMemberItem, ClusterNeutron,
    ClusterNodeItem, ClusterNodeList, ClusterNodeState, ClusterScope, ClusterSource, ClusterState,
    ClusterStatus, FindingScope, GroupState, GroupSummary, IgnoredSummary, NeutronRouterSummary,
    NodeSummary, RoleKind, Schema, Severity,
};

use super::at;

/// The view of node `net-1`, which follows etcd.
pub(crate) fn basis() -> ClusterBasis {
    ClusterBasis {
        node: Some("net-1".to_owned()),
        source: ClusterSource::Node,
        domain: Some("default".to_owned()),
        scope: ClusterScope::Full,
        connection: ClusterConnectionState::Connected,
        endpoint: Some("https://10.0.0.1:2379".to_owned()),
        stale_since: None,
        error: None,
        revision: 812,
        unknown: vec!["node net-3 is lost: its roles are the last known".to_owned()],
    }
}

/// The same view after the connection to etcd was lost.
pub(crate) fn stale_basis() -> ClusterBasis {
    ClusterBasis {
        connection: ClusterConnectionState::Stale,
        stale_since: Some(at("14:55:00")),
        error: Some("cannot connect to https://10.0.0.1:2379: connection refused".to_owned()),
        ..basis()
    }
}

fn member(node: &str, instance: &str, role: RoleKind, priority: u8) -> ClusterMemberItem {
    let is_lost = node == "net-3";
    ClusterMemberItem {
        node: node.to_owned(),
        node_state: if is_lost { ClusterNodeState::Lost } else { ClusterNodeState::Live },
        instance: instance.to_owned(),
        role,
        reason: None,
        since: Some(at("13:00:00")),
        seq: 41,
        cause: Some("preempted-peer".to_owned()),
        priority: Some(priority),
        netns: None,
        interface: "eth0".to_owned(),
        findings: Vec::new(),
        confirmed: true,
        keepalived: Some(true),
        hears_other: None,
        source: None,
        sync_group: None,
        missing: Vec::new(),
    }
}

fn group(id: &str, state: GroupState, members: Vec<ClusterMemberItem>) -> ClusterGroupItem {
    let holds = |member: &&ClusterMemberItem| {
        let is_live = member.node_state == ClusterNodeState::Live;
        is_live && matches!(member.role, RoleKind::Primary | RoleKind::Partial)
    };
    ClusterGroupItem {
        id: id.to_owned(),
        state,
        primaries: members.iter().filter(holds).map(|member| member.node.clone()).collect(),
        addresses: Vec::new(),
        members,
        findings: Vec::new(),
    }
}

/// A group in each state.
pub(crate) fn groups() -> ClusterGroupList {
    use RoleKind::{Backup, Fault, Primary};
    let two = vec![member("net-1", "VI_1", Primary, 100), member("net-2", "VI_1", Primary, 50)];
    let none = vec![member("net-1", "db", Backup, 100), member("net-2", "db", Fault, 50)];
    let unclear = vec![
        member("net-1", "web-a", Primary, 100),
        member("net-1", "web-b", Backup, 100),
        member("net-2", "web", Backup, 50),
    ];
    let unknown = vec![member("net-2", "lb", Backup, 50), member("net-3", "lb", Primary, 100)];
    let router = "5e9b1d0c-7a8f-4a52-9d3e-1c2b3a4d5e6f";
    let one = vec![
        member("net-1", router, Backup, 50),
        member("net-2", router, Primary, 50),
        member("net-3", router, Backup, 50),
    ];
    let with = |mut group: ClusterGroupItem, addresses: &[&str], findings: &[&str]| {
        group.addresses = addresses.iter().map(|&address| address.to_owned()).collect();
        group.findings = findings.iter().map(|&finding| finding.to_owned()).collect();
        group
    };
    let items = vec![
        with(
            group("vrrp:ipv4:51:192.0.2.10", GroupState::TwoPrimaries, two),
            &["192.0.2.10", "192.0.2.11"],
            &["cluster-two-primaries"],
        ),
        with(
            group("group:db", GroupState::NoPrimary, none),
            &["192.0.2.20"],
            &["cluster-no-primary"],
        ),
        with(group("group:web", GroupState::Ambiguous, unclear), &["2001:db8::10"], &[]),
        with(group("group:lb", GroupState::Unknown, unknown), &["192.0.2.40"], &[]),
        with(
            group(&format!("router:{router}"), GroupState::OnePrimary, one),
            &["169.254.0.1"],
            &[],
        ),
    ];
    ClusterGroupList { schema: Schema::ClusterGroups, basis: basis(), items }
}

/// Groups with their primary on net-1 and a backup on net-2.
pub(crate) fn many_groups(number: u32) -> ClusterGroupList {
    let items = (1..=number).map(|number| {
        let id = format!("router-{number:02}");
        let members = vec![
            member("net-1", &id, RoleKind::Primary, 100),
            member("net-2", &id, RoleKind::Backup, 90),
        ];
        group(&format!("router:{id}"), GroupState::OnePrimary, members)
    });
    let items = items.collect();
    ClusterGroupList { schema: Schema::ClusterGroups, basis: basis(), items }
}

/// Two live nodes and a lost one.
pub(crate) fn nodes() -> ClusterNodeList {
    let node = |name: &str, state: ClusterNodeState| {
        let is_live = state == ClusterNodeState::Live;
        ClusterNodeItem {
            node: name.to_owned(),
            state,
            is_reporter: name == "net-1",
            version: is_live.then(|| "0.1.0".to_owned()),
            epoch: "5f3a9c21".to_owned(),
            heartbeat: is_live.then_some(1042),
            at: at(if is_live { "14:59:57" } else { "14:40:00" }),
            instances: 3,
            primaries: 1,
            backups: 2,
            followed: is_live.then_some(3),
        }
    };
    let items = vec![
        node("net-1", ClusterNodeState::Live),
        node("net-2", ClusterNodeState::Live),
        node("net-3", ClusterNodeState::Lost),
    ];
    ClusterNodeList { schema: Schema::ClusterNodes, basis: basis(), items }
}

/// The numbers of [`groups`] and [`nodes`].
pub(crate) fn status() -> ClusterStatus {
    ClusterStatus {
        schema: Schema::Cluster,
        basis: basis(),
        reporter: Some("net-1".to_owned()),
        reporter_notifies: Some(true),
        nodes: NodeSummary { live: 2, stopped: 0, lost: 1 },
        groups: GroupSummary {
            total: 5,
            one_primary: 1,
            two_primaries: 1,
            no_primary: 1,
            ambiguous: 1,
            unknown: 1,
        },
        findings: 3,
        silences: Vec::new(),
        ignored: IgnoredSummary { foreign_keys: 1, ..IgnoredSummary::default() },
        neutron: None,
    }
}

/// The comparison with Neutron on the reporter.
pub(crate) fn neutron() -> ClusterNeutron {
    ClusterNeutron {
        url: "https://10.0.0.1:9696".to_owned(),
        is_asking: true,
        compared: Some(at("14:59:48")),
        failing_since: None,
        error: None,
        routers: NeutronRouterSummary { equal: 7, different: 1, unmatched: 0, not_compared: 2 },
    }
}

fn finding(id: &str, name: &str, group: Option<&str>, nodes: &[&str]) -> ClusterFindingItem {
    ClusterFindingItem {
        id: id.to_owned(),
        name: name.to_owned(),
        severity: Severity::Critical,
        confidence: "certain".to_owned(),
        scope: FindingScope::Cluster,
        group: group.map(str::to_owned),
        nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
        text: format!("{} hold addresses of the group", nodes.join(" and ")),
        hint: "look for a network partition between them".to_owned(),
        evidence: vec![
            "net-1: VI_1 is primary since revision 801".to_owned(),
            "net-2: VI_1 is primary since revision 810".to_owned(),
        ],
        opened: at("14:58:00"),
        closed: None,
        reporter: "net-1".to_owned(),
        delivered: vec!["chat".to_owned()],
        silenced: None,
        part_of: None,
    }
}

/// A finding about two primaries, one about a lost node, and one that only this node knows.
pub(crate) fn findings() -> ClusterFindingList {
    let lost = ClusterFindingItem {
        text: "net-3 has sent no heartbeat for 20 s".to_owned(),
        hint: "look at the machine: `ssh net-3 systemctl status vipwatch-node`".to_owned(),
        evidence: Vec::new(),
        delivered: Vec::new(),
        silenced: None,
        part_of: None,
        ..finding("760-cluster-node-lost", "cluster-node-lost", None, &["net-3"])
    };
    let different = ClusterFindingItem {
        severity: Severity::Warning,
        confidence: "probable".to_owned(),
        scope: FindingScope::Local,
        text: "net-1 has 192.0.2.10 and 192.0.2.11, net-2 has 192.0.2.10".to_owned(),
        hint: "compare keepalived's configuration on both nodes".to_owned(),
        ..finding(
            "805-cluster-different-configuration",
            "cluster-different-configuration",
            Some("vrrp:ipv4:51:192.0.2.10"),
            &["net-1", "net-2"],
        )
    };
    let two = finding(
        "810-cluster-two-primaries",
        "cluster-two-primaries",
        Some("vrrp:ipv4:51:192.0.2.10"),
        &["net-1", "net-2"],
    );
    let items = vec![two, lost, different];
    ClusterFindingList { schema: Schema::ClusterFindings, basis: basis(), items }
}

/// A failover, and a finding that was opened and has ended.
pub(crate) fn history() -> ClusterHistory {
    let transition =
        |time: &str, node: &str, from: RoleKind, to: RoleKind| ClusterHistoryItem::Transition {
            at: at(time),
            group: "vrrp:ipv4:51:192.0.2.10".to_owned(),
            node: node.to_owned(),
            instance: "VI_1".to_owned(),
            seq: 41,
            from: Some(from),
            to,
            cause: Some("peer-silent".to_owned()),
        };
    let finding = findings().items.swap_remove(0);
    let (opened, closed) = (at("14:50:04"), at("14:50:09.5"));
    let items = vec![
        transition("14:50:00.25", "net-2", RoleKind::Backup, RoleKind::Primary),
        ClusterHistoryItem::FindingOpened { at: opened, finding: finding.clone() },
        transition("14:50:09.25", "net-1", RoleKind::Primary, RoleKind::Backup),
        ClusterHistoryItem::FindingClosed {
            at: closed,
            finding: ClusterFindingItem { closed: Some(closed), ..finding },
        },
    ];
    ClusterHistory { schema: Schema::ClusterHistory, basis: basis(), items }
}

/// All of the above at one revision.
pub(crate) fn state() -> ClusterState {
    ClusterState {
        basis: basis(),
        nodes: nodes().items,
        groups: groups().items,
        findings: findings().items,
    }
}
