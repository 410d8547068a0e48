// SPDX-License-Identifier: Apache-2.0
//! The routes of the API, with real curl.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use vipwatch_api::client::{Client, ClientError};
use vipwatch_api::{
    AnswerSource, ConfigDocument, FindingItem, FindingList, HealthDocument, HistoryDocument,
    HistoryFilter, InstanceDetail, InstanceList, NodeStatus, RoleKind, SilenceItem, SilenceList,
    TargetList, TimelineItem, VersionDocument,
};
use vipwatch_testkit::{Lab, NodeFixture, Routers, wait_for};

use crate::curl::{curl, get, parse_answer, read_to_end};
use crate::http_server::HttpServer;
use crate::support::{ADD_VIP, REMOVE_VIP, fixture_with, instance_conf, vi_1_conf};

fn ids(list: &InstanceList) -> Vec<&str> {
    list.items.iter().map(|item| item.id.as_str()).collect()
}

fn wait_for_instance(fixture: &NodeFixture, id: &str, role: RoleKind) {
    wait_for(role.word(), || {
        let detail: InstanceDetail = get(fixture, &format!("/v1/instances/{id}"));
        (detail.instance.role == role).then_some(())
    });
}

#[test]
fn curl_reads_each_route_of_a_node() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for_instance(&fixture, "VI_1", RoleKind::Primary);
    let status: NodeStatus = get(&fixture, "/v1/status");
    assert_eq!(
        (status.source, status.roles.instances, status.roles.primary),
        (AnswerSource::Node, 1, 1)
    );
    assert!(status.seq >= 2 && !status.epoch.is_empty());
    let list: InstanceList = get(&fixture, "/v1/instances");
    assert_eq!(
        (list.items[0].role, list.items[0].addresses[0].held),
        (RoleKind::Primary, Some(true))
    );
    let detail: InstanceDetail = wait_for("the transition in the history", || {
        let detail: InstanceDetail = get(&fixture, "/v1/instances/VI_1");
        (detail.timeline.len() == 2).then_some(detail)
    });
    assert_eq!((detail.history_error, detail.timeline[1].to.as_str()), (None, "primary"));
    let history: HistoryDocument = get(&fixture, "/v1/history");
    assert_eq!((history.epoch, history.items.len()), (status.epoch, 2));
    let findings: FindingList = get(&fixture, "/v1/findings");
    let audit: FindingList = curl(&fixture, &["-X", "POST"], "/v1/audit").document();
    assert_eq!((audit.instances, findings.instances), (1, 1));
    let detail: InstanceDetail = get(&fixture, "/v1/instances/VI_1");
    assert!(detail.audited_at.is_some(), "the request had the instance audited: {detail:?}");
    let version: VersionDocument = get(&fixture, "/v1/version");
    assert_eq!((version.service.as_str(), i64::from(version.pid)), ("node", i64::from(node.pid())));
    assert_eq!(version.config_file, Some(fixture.config().display().to_string()));
    assert_eq!(version.commit.as_deref().unwrap_or_default(), env!("VIPWATCH_COMMIT"));
    let config: ConfigDocument = get(&fixture, "/v1/config");
    let socket = fixture.socket().display().to_string();
    assert_eq!(config.settings["node"]["socket"], socket);
    let _: TargetList = get(&fixture, "/v1/targets");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get::<HealthDocument>(&fixture, path).status, "ok");
    }
    assert_eq!(curl(&fixture, &[], "/v1/reports").problem(), (404, "no-receiver"));
    assert_eq!(curl(&fixture, &["--head"], "/v1/status").status, 200);
}

#[test]
fn a_reload_and_its_error_are_in_the_version_document() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    assert_eq!(get::<VersionDocument>(&fixture, "/v1/version").last_reload, None);
    fixture.configure("[node]\nno_such_key = 1\n");
    node.reload();
    let version: VersionDocument = get(&fixture, "/v1/version");
    let error = version.last_reload.unwrap().error.unwrap();
    assert!(error.contains("no_such_key"), "{error}");
    fixture.configure("[node]\naudit_every = \"1h\"\n");
    node.reload();
    let version: VersionDocument = get(&fixture, "/v1/version");
    assert_eq!(version.last_reload.unwrap().error, None);
    let config: ConfigDocument = get(&fixture, "/v1/config");
    assert_eq!(config.settings["node"]["audit_every"], "1h");
}

#[test]
fn status_counts_the_findings_and_deliveries_that_the_other_routes_list() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[400]);
    fixture.configure(&format!("[[notify]]\nwebhook = {{ url = \"{}\" }}\n", server.url));
    let node = fixture.start();
    let given_up = || {
        let list: TargetList = get(&fixture, "/v1/targets");
        list.items.iter().map(|target| target.given_up).sum::<u64>()
    };
    wait_for("the rejected delivery", || (given_up() == 1).then_some(()));
    // The next round of housekeeping is up to 10 s away.
    let status: NodeStatus = get(&fixture, "/v1/status");
    assert_eq!(status.metrics["vipwatch_outlet_given_up_total"], 1);
    fixture.configure("[nodes]\n");
    node.reload();
    wait_for("the findings of the delivery and of the configuration", || {
        let list: FindingList = get(&fixture, "/v1/findings");
        let name = |item: &FindingItem| item.name.clone();
        let mut names: Vec<String> = list.items.iter().map(name).collect();
        names.sort();
        (names == ["node-configuration", "webhook-failed"]).then_some(())
    });
    let status: NodeStatus = get(&fixture, "/v1/status");
    assert_eq!(
        (status.findings.critical, status.findings.warning, status.findings.info),
        (0, 2, 0)
    );
}

#[test]
fn instances_are_selected_by_id_address_role_namespace_and_origin() {
    let lab = Lab::new();
    let instances = [
        instance_conf("VI_1", "eth0", &["192.0.2.1/24"]),
        instance_conf("VI_10", "eth0", &["192.0.2.10/24", "2001:db8::10/64"]),
    ];
    let (netns, fixture) = fixture_with(&lab, &instances);
    let _node = fixture.start();
    netns.ip("address add 192.0.2.1/24 dev eth0");
    wait_for_instance(&fixture, "VI_1", RoleKind::Primary);
    let select = |query: &str| -> Vec<String> {
        let list: InstanceList = get(&fixture, &format!("/v1/instances?{query}"));
        ids(&list).into_iter().map(str::to_owned).collect()
    };
    assert_eq!(select("id=VI_1"), ["VI_1"], "an exact id before ids that begin with it");
    assert_eq!(select("id=VI_"), ["VI_1", "VI_10"]);
    assert_eq!(select("id=192.0.2.10"), ["VI_10"]);
    assert_eq!(select("address=2001:db8::10"), ["VI_10"], "an excluded address");
    assert_eq!(select("id=VI_1&address=192.0.2.10"), ["VI_1", "VI_10"]);
    assert_eq!(select("role=primary&role=fault"), ["VI_1"]);
    assert_eq!(select("id=VI_10&role=primary"), Vec::<String>::new());
    assert_eq!(select(&format!("netns={}&origin=keepalived", netns.name())).len(), 2);
    assert_eq!(select("netns="), Vec::<String>::new());
    assert_eq!(select("origin=neutron"), Vec::<String>::new());
    let problem = |path: &str| curl(&fixture, &[], path).problem();
    assert_eq!(problem("/v1/instances?id=VI_1&id=other"), (404, "unknown-instance"));
    assert_eq!(problem("/v1/instances?address=192.0.2.99"), (404, "unknown-instance"));
    assert_eq!(problem("/v1/instances/VI_"), (409, "ambiguous-id"));
    assert_eq!(problem("/v1/instances/no"), (404, "unknown-instance"));
    let detail: InstanceDetail = get(&fixture, "/v1/instances/192.0.2.10");
    assert_eq!(detail.instance.id, "VI_10");
}

#[test]
fn a_floating_address_finds_its_router() {
    let lab = Lab::new();
    let fixture = crate::support::node_fixture(&lab);
    let _routers = Routers::new(lab.path(), &format!("f{}", lab.number()), 1, 2);
    let _node = fixture.start();
    let list: InstanceList = get(&fixture, "/v1/instances");
    let floating = list.items[0].addresses.iter().find(|address| address.floating);
    let Some(floating) = floating else { panic!("the router has no floating address: {list:?}") };
    let address = floating.cidr.split('/').next().unwrap();
    let found: InstanceList = get(&fixture, &format!("/v1/instances?address={address}"));
    assert_eq!(ids(&found), ids(&list));
}

#[test]
fn the_history_is_read_in_pages_without_omission_or_repetition() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    for _ in 0..3 {
        netns.ip(ADD_VIP);
        wait_for_instance(&fixture, "VI_1", RoleKind::Primary);
        netns.ip(REMOVE_VIP);
        wait_for_instance(&fixture, "VI_1", RoleKind::Backup);
    }
    let client = Client::new(fixture.socket());
    let all: Vec<TimelineItem> = wait_for("7 transitions", || {
        let all = client.history(&HistoryFilter::default()).unwrap();
        let all: Vec<_> = all.collect::<Result<_, _>>().unwrap();
        (all.len() == 7).then_some(all)
    });
    let epoch = client.status().unwrap().epoch;
    let mut paged = Vec::new();
    let mut after = Some(format!("{epoch}-0").parse().unwrap());
    while let Some(position) = after.take() {
        let filter =
            HistoryFilter { after: Some(position), limit: Some(2), ..HistoryFilter::default() };
        let page = client.history(&filter).unwrap();
        let page: Vec<TimelineItem> = page.collect::<Result<_, _>>().unwrap();
        if let Some(TimelineItem::Transition(last)) = page.last() {
            after = Some(format!("{epoch}-{}", last.seq).parse().unwrap());
        }
        paged.extend(page);
    }
    assert_eq!(paged, all);
    let limited: HistoryDocument = get(&fixture, "/v1/history?limit=2&id=VI");
    assert_eq!(limited.items, all[5..], "without `after`, the newest");
    let (since, until) = match (&all[2], &all[4]) {
        (TimelineItem::Transition(first), TimelineItem::Transition(last)) => (first.at, last.at),
        other => panic!("{other:?}"),
    };
    let between: HistoryDocument =
        get(&fixture, &format!("/v1/history?since={since}&until={until}"));
    assert_eq!(between.items, all[2..=4]);
    let unknown = curl(&fixture, &[], "/v1/history?id=other");
    assert_eq!(unknown.problem(), (404, "unknown-instance"));
    let other = curl(&fixture, &[], "/v1/history?after=00000000-1");
    assert_eq!(other.problem(), (400, "invalid-request"));
}

#[test]
fn a_silence_is_created_shown_and_ended() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    let post = |body: &str| {
        curl(&fixture, &["-H", "content-type: application/json", "-d", body], "/v1/silences")
    };
    let created = post(r#"{"id":"VI","seconds":3600,"reason":"switch upgrade"}"#);
    assert_eq!(created.status, 201);
    let created: SilenceItem = created.document();
    assert_eq!((created.id.as_deref(), created.created_by.as_str()), (Some("VI_1"), "root"));
    let detail: InstanceDetail = get(&fixture, "/v1/instances/VI_1");
    assert_eq!(detail.instance.silenced_until, Some(created.until));
    for wrong in [
        r#"{"id":null,"seconds":0,"reason":"x"}"#,
        r#"{"seconds":5,"reason":""}"#,
        "{",
        r#"{"x":1}"#,
    ] {
        assert_eq!(post(wrong).problem(), (400, "invalid-request"), "{wrong}");
    }
    assert_eq!(
        post(r#"{"id":"no","seconds":5,"reason":"x"}"#).problem(),
        (404, "unknown-instance")
    );
    assert!(node.stop().success());
    let _node = fixture.start();
    let kept: SilenceList = get(&fixture, "/v1/silences");
    assert_eq!(kept.items, [created], "a restart keeps silences");
    let ended = curl(&fixture, &["-X", "DELETE"], "/v1/silences/1");
    assert_eq!(ended.document::<SilenceItem>().number, 1);
    assert_eq!(
        curl(&fixture, &["-X", "DELETE"], "/v1/silences/1").problem(),
        (404, "unknown-silence")
    );
    assert_eq!(get::<SilenceList>(&fixture, "/v1/silences").items, []);
}

#[test]
fn a_client_of_a_hung_node_gives_up_and_one_of_a_dead_node_says_so() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    let client = Client::new(fixture.socket()).with_timeout(std::time::Duration::from_millis(500));
    node.signal(rustix::process::Signal::STOP);
    assert!(matches!(client.status(), Err(ClientError::TimedOut { .. })));
    assert!(matches!(client.audit(), Err(ClientError::TimedOut { .. })));
    node.signal(rustix::process::Signal::CONT);
    wait_for("an answer", || client.status().ok());
    node.kill();
    assert!(matches!(client.status(), Err(ClientError::NotListening(_))));
}

#[test]
fn a_handler_that_panics_answers_500_and_the_node_goes_on() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let fixture = fixture.with_variable("VIPWATCH_TEST_PANIC_ROUTE", "/v1/version");
    let _node = fixture.start();
    assert_eq!(curl(&fixture, &[], "/v1/version").problem(), (500, "internal"));
    let status: NodeStatus = get(&fixture, "/v1/status");
    assert_eq!(status.metrics["vipwatch_api_panics_total"], 1);
    fixture.wait_for_log("an API handler panicked");
}

#[test]
fn a_panic_in_the_middle_of_an_answer_or_in_an_event_stream_does_not_end_the_node() {
    for (place, path) in
        [("body of /v1/instances", "/v1/instances"), ("stream of /v1/events", "/v1/events")]
    {
        let lab = Lab::new();
        let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
        let fixture = fixture.with_variable("VIPWATCH_TEST_PANIC_ROUTE", place);
        let node = fixture.start();
        let mut client = UnixStream::connect(fixture.socket()).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        // The server closes the connection; a reset counts, too.
        let _ = client.read_to_string(&mut answer);
        assert!(!answer.contains("VI_1"), "{place}: {answer}");
        let status: NodeStatus = get(&fixture, "/v1/status");
        assert_eq!(status.metrics["vipwatch_api_panics_total"], 1, "{place}");
        assert!(node.stop().success());
    }
}

#[test]
fn a_panic_while_a_connection_is_accepted_ends_that_connection_only() {
    for place in ["accept", "admit"] {
        let lab = Lab::new();
        let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
        let fixture = fixture.with_variable("VIPWATCH_TEST_PANIC_ROUTE", place);
        let node = fixture.start();
        let mut client = UnixStream::connect(fixture.socket()).unwrap();
        let mut answer = String::new();
        // A reset counts, too.
        let _ = client.read_to_string(&mut answer);
        assert_eq!(answer, "", "{place}");
        let status: NodeStatus = get(&fixture, "/v1/status");
        assert_eq!(status.metrics["vipwatch_api_panics_total"], 1, "{place}");
        assert!(node.stop().success());
    }
}

#[test]
fn deadlines_are_checked_again_after_a_panic() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let fixture = fixture.with_variable("VIPWATCH_TEST_PANIC_ROUTE", "close_overdue");
    let node = fixture.start();
    let mut client = UnixStream::connect(fixture.socket()).unwrap();
    client.write_all(b"GET /healthz HTTP/1.1\r\nho").unwrap();
    wait_for("the panic", || {
        let status: NodeStatus = get(&fixture, "/v1/status");
        (status.metrics["vipwatch_api_panics_total"] == 1).then_some(())
    });
    client.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    assert_eq!(
        parse_answer(&read_to_end(&mut client)).unwrap().problem(),
        (408, "request-timeout")
    );
    assert!(node.stop().success());
}
