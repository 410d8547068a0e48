// SPDX-License-Identifier: Apache-2.0
//! Documents of the API with fixed values, for tests of the output.

pub(crate) mod cluster;

use vipwatch_api::{
    AddressItem, AdvertPresence, AdvertSignature, AdvertSourceItem, AdvertsItem, AgentItem,
    AnswerSource, CaptureState, CauseItem, ConfigProblemItem, FailingDelivery, FailureItem,
    FindingItem, FindingList, GapItem, GapReason, HistoryDocument, InstanceDetail, InstanceItem,
    KeepalivedItem, LatencyMap, NodeStatus, ReceiverProblem, ReloadOutcome, ReportItem, ReportList,
    RoleKind, RoleSummary, Schema, Severity, SeveritySummary, SilenceItem, SilenceList, TargetItem,
    TargetKind, TargetList, TimelineItem, Timestamp, TransitionItem, VersionDocument,
};

/// A time of the afternoon on the day of the samples.
pub(crate) fn at(time: &str) -> Timestamp {
    format!("2026-11-16T{time}Z").parse().unwrap()
}

fn node() -> String {
    "node-1".to_owned()
}

fn address(cidr: &str, held: Option<bool>, floating: bool) -> AddressItem {
    let link = "eth0".to_owned();
    AddressItem { cidr: cidr.to_owned(), link, held, state: None, floating }
}

/// A cause with this word and a sentence.
pub(crate) fn cause(word: &str) -> CauseItem {
    let text = match word {
        "preempted-peer" => "this node (priority 100) preempted 192.0.2.12 (priority 50)",
        "peer-silent" => "192.0.2.12 (priority 150) sent no advert for 3.6 s",
        "start" => "first role of a new instance",
        _ => "the link is missing or down",
    };
    CauseItem {
        cause: Some(word.to_owned()),
        cause_text: Some(text.to_owned()),
        evidence: Some(Box::default()),
    }
}

/// An instance with this role and these addresses.
pub(crate) fn instance(id: &str, role: RoleKind, addresses: Vec<AddressItem>) -> InstanceItem {
    InstanceItem {
        id: id.to_owned(),
        name: id.to_owned(),
        group: "vrrp:ipv4:51:192.0.2.10".to_owned(),
        role,
        reason: None,
        since: Some(at("13:00:00")),
        seq: 41,
        trigger: "address".to_owned(),
        cause: cause("preempted-peer"),
        origin: "keepalived".to_owned(),
        netns: None,
        interface: "eth0".to_owned(),
        vrid: Some(51),
        priority: Some(100),
        file: "/etc/keepalived/keepalived.conf".to_owned(),
        line: 12,
        addresses,
        stages: vec!["file".to_owned(), "webhook".to_owned()],
        latencies: LatencyMap::from([("file".to_owned(), 310)]),
        failures: Vec::new(),
        findings: Vec::new(),
        agent: None,
        report: None,
        silenced_until: None,
        advert_ms: None,
        hears_other: None,
    }
}

/// A primary with a floating address, a backup, a fault and a partial one.
pub(crate) fn instances() -> Vec<InstanceItem> {
    let primary = vec![
        address("192.0.2.10/24", Some(true), false),
        address("198.51.100.7/32", Some(true), true),
    ];
    let primary = InstanceItem {
        findings: vec!["keepalived-gone-address-left".to_owned()],
        failures: vec![FailureItem {
            stage: "webhook".to_owned(),
            target: "chat".to_owned(),
            error: "connection refused".to_owned(),
        }],
        silenced_until: Some(at("17:00:00")),
        ..instance("VI_1", RoleKind::Primary, primary)
    };
    let router = InstanceItem {
        origin: "neutron".to_owned(),
        netns: Some("qrouter-5e9b1d0c-7a8f-4a52-9d3e-1c2b3a4d5e6f".to_owned()),
        since: None,
        ..instance(
            "5e9b1d0c-7a8f-4a52-9d3e-1c2b3a4d5e6f",
            RoleKind::Backup,
            vec![address("169.254.0.1/24", Some(false), false)],
        )
    };
    let fault = InstanceItem {
        reason: Some("its link eth0 has no carrier, and eth1 does not exist either".to_owned()),
        since: Some(at("14:58:30")),
        ..instance(
            "web",
            RoleKind::Fault,
            vec![address("2001:db8:1234:5678:9abc:def0:1234:5678/64", Some(false), false)],
        )
    };
    let partial = InstanceItem {
        reason: Some("holds 1 of 2 addresses".to_owned()),
        ..instance(
            "db",
            RoleKind::Partial,
            vec![
                address("192.0.2.20/24", Some(true), false),
                address("192.0.2.21/24", Some(false), false),
            ],
        )
    };
    vec![router, primary, partial, fault]
}

pub(crate) fn node_status() -> NodeStatus {
    NodeStatus {
        schema: Schema::Status,
        node: node(),
        source: AnswerSource::Node,
        epoch: "5f3a9c21".to_owned(),
        seq: 44,
        roles: RoleSummary {
            instances: 4,
            primary: 1,
            partial: 1,
            backup: 1,
            fault: 1,
            unknown: 0,
        },
        findings: SeveritySummary { critical: 1, warning: 1, info: 1 },
        health: vec![FindingItem {
            cluster_id: None,
            id: None,
            name: "node-history".to_owned(),
            severity: Severity::Warning,
            text: "cannot write /var/lib/vipwatch/history.db: No space left on device".to_owned(),
            hint: "free some space".to_owned(),
            since: Some(at("14:50:00")),
            silenced_until: None,
            harmless: false,
        }],
        problems: vec![ConfigProblemItem {
            file: "/etc/keepalived/keepalived.conf".to_owned(),
            line: Some(40),
            text: "vrrp_instance B is not closed".to_owned(),
        }],
        silences: silences().items,
        metrics: [("vipwatch_transitions_total".to_owned(), 44)].into(),
    }
}

pub(crate) fn silences() -> SilenceList {
    let silence = |number, id: Option<&str>, reason: &str| SilenceItem {
        number,
        id: id.map(str::to_owned),
        created_at: at("14:00:00"),
        until: at("17:00:00"),
        reason: reason.to_owned(),
        created_by: "root".to_owned(),
        cluster_id: None,
    };
    SilenceList {
        schema: Schema::Silences,
        node: node(),
        items: vec![
            silence(3, Some("VI_1"), "switch replacement"),
            silence(
                4,
                None,
                "kernel update of all nodes in the second room of the data centre, with reboots",
            ),
        ],
    }
}

/// A transition to `to` of the instance `id`.
pub(crate) fn transition(seq: i64, time: &str, id: &str, to: &str) -> TransitionItem {
    TransitionItem {
        seq,
        at: at(time),
        id: id.to_owned(),
        netns: None,
        from: Some(if to == "primary" { RoleKind::Backup } else { RoleKind::Primary }),
        to: to.to_owned(),
        trigger: "address".to_owned(),
        cause: cause(if to == "primary" { "preempted-peer" } else { "peer-silent" }),
        reason: None,
        latencies: LatencyMap::from([("file".to_owned(), 310), ("webhook".to_owned(), 12_500)]),
    }
}

pub(crate) fn history() -> HistoryDocument {
    let gap = |from: &str, until: &str, reason, count| {
        TimelineItem::Gap(GapItem { from: at(from), until: at(until), reason, count })
    };
    let first = TransitionItem {
        from: None,
        trigger: "start".to_owned(),
        cause: cause("start"),
        ..transition(41, "12:00:00", "VI_1", "backup")
    };
    let fault = TransitionItem {
        trigger: "link".to_owned(),
        cause: cause("link-lost"),
        reason: Some("its link eth0 has no carrier, and eth1 does not exist either".to_owned()),
        ..transition(44, "14:58:30.123", "VI_1", "fault")
    };
    HistoryDocument {
        schema: Schema::History,
        node: node(),
        epoch: "5f3a9c21".to_owned(),
        items: vec![
            TimelineItem::Transition(first),
            gap("12:10:00", "12:30:00", GapReason::Killed, None),
            TimelineItem::Transition(transition(
                42,
                "13:00:00",
                "5e9b1d0c-7a8f-4a52-9d3e-1c2b3a4d5e6f",
                "primary",
            )),
            gap("13:10:00", "13:11:00", GapReason::NotWritten, Some(1)),
            TimelineItem::Transition(fault),
        ],
    }
}

pub(crate) fn findings() -> FindingList {
    let finding = |id: Option<&str>, name: &str, severity, text: &str, hint: &str| FindingItem {
        cluster_id: None,
        id: id.map(str::to_owned),
        name: name.to_owned(),
        severity,
        text: text.to_owned(),
        hint: hint.to_owned(),
        since: Some(at("14:55:00")),
        silenced_until: None,
        harmless: false,
    };
    let silenced = FindingItem {
        silenced_until: Some(at("17:00:00")),
        ..finding(
            Some("VI_1"),
            "webhook-failed",
            Severity::Warning,
            "chat: connection refused",
            "the log has all attempts",
        )
    };
    FindingList {
        schema: Schema::Findings,
        node: node(),
        source: AnswerSource::Node,
        instances: 4,
        items: vec![
            finding(
                Some("web"),
                "link-fault",
                Severity::Critical,
                "eth0 has no carrier",
                "check the cable and the switch port",
            ),
            silenced,
            FindingItem {
                since: None,
                ..finding(
                    None,
                    "node-not-running",
                    Severity::Info,
                    "no vipwatch node runs here",
                    "start it",
                )
            },
        ],
        too_young: 1,
        containers: Vec::new(),
        keepaliveds: Some(0),
    }
}

pub(crate) fn instance_detail() -> InstanceDetail {
    let mut instance = instances().remove(1);
    instance.agent = Some(AgentItem { acknowledged: Some("primary".to_owned()), failing: None });
    instance.report = Some(reports().items.remove(0));
    InstanceDetail {
        schema: Schema::Instance,
        node: node(),
        source: AnswerSource::Node,
        instance,
        keepalived: Some(KeepalivedItem {
            state: "runs".to_owned(),
            pid: Some(812),
            vrrp_pid: Some(815),
            started: Some(at("12:00:00")),
        }),
        adverts: Some(adverts()),
        findings: findings().items.drain(1..2).collect(),
        audited_at: Some(at("14:59:00")),
        timeline: vec![
            transition(40, "12:00:00", "VI_1", "backup"),
            transition(41, "13:00:00", "VI_1", "primary"),
        ],
        history_error: None,
    }
}

pub(crate) fn adverts() -> AdvertsItem {
    let source = |source: &str, own: bool, priority: u8| AdvertSourceItem {
        source: source.to_owned(),
        own,
        advertising: own,
        priority,
        previous_priority: None,
        interval_ms: 1_000,
        version: 2,
        authentication: "none".to_owned(),
        signature: None,
        unicast: false,
        addresses: vec!["192.0.2.10".to_owned()],
        at: at("14:59:59"),
        age_ms: 650,
        since: at("13:00:00"),
        adverts: 7_200,
        lost: 0,
        jitter_us: 120,
        differences: Vec::new(),
    };
    let peer = AdvertSourceItem {
        signature: Some(AdvertSignature { key_id: 7, clock_difference_ms: -1_250 }),
        lost: 3,
        interval_ms: 2_000,
        age_ms: 7_200_000,
        at: at("13:00:00"),
        differences: vec!["advert interval 2 s instead of 1 s".to_owned()],
        ..source("192.0.2.3", false, 0)
    };
    AdvertsItem {
        link: "eth0".to_owned(),
        capture: CaptureState::Running,
        error: None,
        sent: true,
        since: at("09:00:00"),
        presence: AdvertPresence::Advertised,
        silent_ms: None,
        sources: vec![source("192.0.2.2", true, 100), peer],
        undecoded: 2,
        last_undecoded_at: Some(at("14:58:00")),
        bad: [("checksum".to_owned(), 2), ("hop-limit".to_owned(), 1)].into(),
        last_bad_at: Some(at("14:58:00")),
        dropped: 12,
        overrun_at: Some(at("14:30:00")),
        other_vrids: 1,
    }
}

pub(crate) fn targets() -> TargetList {
    let target = |name: &str, kind, pending| TargetItem {
        name: name.to_owned(),
        kind,
        source: "node".to_owned(),
        pending,
        silenced: 0,
        oldest_pending: (pending > 0).then(|| at("14:58:00")),
        delivered: 40,
        failures: 3 * pending,
        given_up: 0,
        superseded: 1,
        filtered: 2,
        dropped: 0,
        failing: Vec::new(),
    };
    let failing = FailingDelivery { id: "VI_1".to_owned(), error: "connection refused".to_owned() };
    let chat = TargetItem { failing: vec![failing], ..target("chat", TargetKind::Webhook, 1) };
    let items = vec![chat, target("state-files", TargetKind::StateFile, 0)];
    TargetList { schema: Schema::Targets, node: node(), items }
}

pub(crate) fn reports() -> ReportList {
    let report = |id: &str, reported: &str, held: bool| ReportItem {
        id: id.to_owned(),
        reported: reported.to_owned(),
        at: at("14:59:30"),
        settled: (!held).then(|| reported.to_owned()),
        state: (!held).then(|| "active".to_owned()),
        held,
        reports: 2,
    };
    ReportList {
        schema: Schema::Reports,
        node: node(),
        since: at("09:00:00"),
        items: vec![report("VI_1", "primary", false), report("web", "primary", true)],
        targets: targets().items,
        accepted: 7,
        coalesced: 1,
        rejected: [("no_id".to_owned(), 2)].into(),
        unavailable: 0,
        pending: 1,
        connections: 3,
        problems: vec![ReceiverProblem {
            name: "socket".to_owned(),
            text: "the file was removed".to_owned(),
        }],
    }
}

pub(crate) fn version() -> VersionDocument {
    VersionDocument {
        schema: Schema::Version,
        node: node(),
        service: "node".to_owned(),
        version: "1.2.2".to_owned(),
        commit: Some("0a1b2c3".to_owned()),
        pid: 4711,
        started_at: at("09:00:00"),
        config_file: Some("/etc/vipwatch/vipwatch.toml".to_owned()),
        last_reload: Some(ReloadOutcome {
            number: 2,
            at: at("10:00:00"),
            error: Some("line 3: unknown key \"sokcet\"".to_owned()),
            needs_restart: Vec::new(),
            pending: Vec::new(),
        }),
    }
}
