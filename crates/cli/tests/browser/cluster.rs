// SPDX-License-Identifier: Apache-2.0
//! The view of the cluster: without a cluster, with a real one, with 10,000 groups, and with a view that is stale.

use vipwatch_testkit::{ColorScheme, Etcd, Lab, NodeFixture};

use crate::accessibility::{axe_script, violations};
use crate::modules::with_module;
use crate::support::{Page, configure, instance, node_with_instances, web_address};

/// Hands the page documents of a cluster as the worker does: `groups` groups, three nodes and one finding.
fn send_cluster(page: &Page, groups: usize, connection: &str) {
    let body = format!(
        "const head = {{node: 'net-1', source: 'node', domain: 'default', scope: 'full', connection: '{connection}',\
         endpoint: null, stale_since: '2026-11-16T14:55:00Z', error: '{connection}' === 'stale' ? 'connection refused' : null, revision: 812,\
         unknown: ['node net-3 is lost: its roles are the last known ones']}};\
         const node = (name, state) => ({{node: name, state, is_reporter: name === 'net-1', version: '0.1.0', epoch: 'e',\
         heartbeat: 1, at: '2026-11-16T14:59:00Z', instances: 1, primaries: 1, backups: 1}});\
         const member = (node, role, instance) => ({{node, node_state: node === 'net-3' ? 'lost' : 'live', instance, role,\
         reason: null, since: null, seq: 1, cause: null, priority: 100, netns: null, interface: 'eth0', findings: []}});\
         const group = (number) => ({{id: `router:r-${{number}}`, state: number === 0 ? 'two-primaries' : 'one-primary',\
         primaries: number === 0 ? ['net-1', 'net-2'] : ['net-2'], addresses: [`10.0.${{number >> 8}}.${{number & 255}}/32`],\
         members: [member('net-1', number === 0 ? 'primary' : 'backup', `r-${{number}}`), member('net-2', 'primary', `r-${{number}}`),\
         member('net-3', 'backup', `r-${{number}}`)], findings: number === 0 ? ['cluster-two-primaries'] : []}});\
         const finding = {{id: '1', name: 'cluster-two-primaries', severity: 'critical', confidence: 'certain', scope: 'cluster',\
         group: 'router:r-0', nodes: ['net-1', 'net-2'], text: 'net-1 and net-2 hold 10.0.0.0', hint: 'look at both', evidence: [],\
         opened: '2026-11-16T14:58:00Z', closed: null, reporter: 'net-1', delivered: []}};\
         const send = (name, items) => {{ for (let at = 0; at === 0 || at < items.length; at += 250)\
         it.receive({{kind: 'cluster', name, items: items.slice(at, at + 250), isLast: at + 250 >= items.length, head}}); }};\
         send('nodes', [node('net-1', 'live'), node('net-2', 'live'), node('net-3', 'lost')]); send('findings', [finding]);\
         send('groups', Array.from({{length: {groups}}}, (_, number) => group(number)));\
         it.receive({{kind: 'cluster', name: 'status', value: {{...head, findings: 1}}}}); return true;"
    );
    assert_eq!(with_module(page, "store.js", &body), true);
}

/// The page of a node that has no cluster.
#[track_caller]
fn open_cluster(fixture: &NodeFixture) -> Page {
    let page = Page::open(web_address(fixture), "#/cluster");
    page.wait_for_content("No cluster is configured on this node");
    page
}

fn one_instance() -> String {
    instance("VI_1", 1, "eth0", "192.0.2.9/24")
}

#[test]
fn without_a_cluster_the_view_says_how_to_configure_one_and_no_link_leads_to_it() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, &one_instance());
    let _node = fixture.start();
    let page = open_cluster(&fixture);
    assert_eq!(page.browser.run("return document.querySelector('#cluster-link').hidden"), true);
    page.close();
}

#[test]
fn ten_thousand_groups_can_be_scrolled_filtered_and_searched() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, &one_instance());
    let _node = fixture.start();
    let page = open_cluster(&fixture);
    send_cluster(&page, 10_000, "connected");
    page.wait_for_text("#main .total", "10,000 groups");
    page.wait_for_text("#cluster-count", "1");
    assert_eq!(page.texts("#cluster-nodes tbody td:nth-child(2)"), ["live", "live", "lost"]);
    page.wait_for_content("net-1 and net-2 hold 10.0.0.0");
    let rows = page.browser.count(".group-table .rows .grid-row");
    assert!(rows < 100, "only rows on the screen exist: {rows}");
    page.wait_for_text(".group-table .rows .g-primary", "net-1, net-2");
    page.browser.run("scrollTo(0, document.documentElement.scrollHeight)");
    page.wait_for(
        "the last group",
        "[...document.querySelectorAll('.rows .g-group')].some((one) => one.innerText === 'router:r-9999')",
    );
    page.click(".tile[data-state=two-primaries]");
    page.wait_for_text("#main .total", "1 of 10,000 groups");
    assert_eq!(page.fragment(), "#/cluster?state=two-primaries");
    page.click(".tile[data-state=two-primaries]");
    page.wait_for_text("#main .total", "10,000 groups");
    page.browser.run("document.querySelector('#group-search').focus()");
    page.browser.press("r-7777");
    page.wait_for_text("#main .total", "1 of 10,000 groups");
    page.wait_for_text(".group-table .rows .g-notes", "net-3 lost (was backup)");
    page.check_width();
    page.browser.resize(360, 800);
    page.check_width();
    page.close();
}

#[test]
fn a_stale_view_has_a_banner_with_its_age_and_keeps_the_last_state() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, &one_instance());
    let _node = fixture.start();
    let page = open_cluster(&fixture);
    send_cluster(&page, 3, "stale");
    page.wait_for(
        "the banner",
        "document.querySelector('#cluster-notice:not([hidden])')?.innerText.startsWith('stale since ')",
    );
    page.wait_for_content("the roles are those of that time: connection refused");
    page.wait_for_text("#main .total", "3 groups");
    send_cluster(&page, 3, "connected");
    page.wait_for("no banner", "document.querySelector('#cluster-notice').hidden");
    page.close();
}

#[test]
fn a_change_in_the_cluster_reaches_the_page_and_a_lost_or_full_etcd_is_a_banner() {
    let lab = Lab::new();
    let mut etcd = Etcd::small(lab.path());
    let (netns, fixture) = node_with_instances(&lab, &one_instance());
    let endpoints = etcd.endpoints();
    let cluster = format!(
        "[node]\nname = \"net-1\"\n[cluster]\nendpoints = {endpoints:?}\nheartbeat = \"1s\"\nlease = \"3s\"\n"
    );
    configure(&fixture, "127.0.0.1:0", &cluster);
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/cluster");
    page.wait_for_text(".group-table .rows .g-state", "unknown");
    page.mark();
    netns.ip("address add 192.0.2.9/24 dev eth0");
    page.wait_for_text(".group-table .rows .g-state", "one primary");
    page.wait_for_text(".group-table .rows .g-primary", "net-1");
    assert_eq!(page.texts("#cluster-nodes tbody td:nth-child(2)"), ["live"]);
    etcd.kill(0);
    page.wait_for(
        "the banner",
        "document.querySelector('#cluster-notice:not([hidden])')?.innerText.startsWith('stale since ')",
    );
    etcd.restart(0);
    page.wait_for("no banner", "document.querySelector('#cluster-notice').hidden");
    etcd.fill();
    page.wait_for_content("etcd rejects the records of this node");
    etcd.make_space();
    page.wait_for("no banner again", "document.querySelector('#cluster-notice').hidden");
    page.click(".group-table .rows .g-group a");
    page.wait_for_text("#instance-role .role", "primary");
    page.check_mark();
    page.close();
}

#[test]
fn axe_finds_no_violation_in_the_view_of_a_cluster() {
    let axe = axe_script();
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, &one_instance());
    let _node = fixture.start();
    let page = open_cluster(&fixture);
    send_cluster(&page, 3, "stale");
    page.wait_for_text("#main .total", "3 groups");
    for scheme in [ColorScheme::Light, ColorScheme::Dark] {
        page.browser.set_color_scheme(scheme);
        for width in [1360, 900, 360] {
            page.browser.resize(width, 800);
            page.browser.run(&format!("if (!window.axe) {{ {axe} }}"));
            let found = violations(&page);
            assert!(found.is_empty(), "{} {width}: {found:#?}", scheme.word());
            page.check_width();
        }
    }
    page.close();
}
