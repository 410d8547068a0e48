// SPDX-License-Identifier: Apache-2.0
//! Filters and views are in the address.

use vipwatch_testkit::{Lab, wait_for};

use crate::proxy::{self, Verdict};
use crate::support::{Page, instance, node_with_instances, recorded, web_address, write};

fn instances() -> String {
    [
        instance("alpha", 1, "eth0", "192.0.2.1/24"),
        instance("beta", 2, "eth0", "192.0.2.2/24"),
        instance("broken", 3, "missing", "192.0.2.3/24"),
    ]
    .concat()
}

const IDS: &str = ".rows .c-id a";

#[test]
fn filters_are_in_the_address_and_links_and_the_back_button_restore_them() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_instances(&lab, &instances());
    netns.ip("address add 192.0.2.1/24 dev eth0");
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/?role=fault");
    page.wait_for_text(".total", "1 of 3 instances");
    assert_eq!(page.texts(IDS), ["broken"]);
    page.click(".tile[data-role=primary]");
    page.wait_for_text(".total", "2 of 3 instances");
    assert_eq!(page.fragment(), "#/?role=fault&role=primary");
    page.browser.back();
    page.wait_for_text(".total", "1 of 3 instances");
    assert_eq!(page.fragment(), "#/?role=fault");
    page.click(".tile[data-role=all]");
    page.wait_for_text(".total", "3 instances");
    page.browser.run("document.querySelector('#search').focus()");
    page.browser.press("192.0.2.2");
    page.wait_for_text(".total", "1 of 3 instances");
    assert_eq!(page.fragment(), "#/?q=192.0.2.2");
    page.browser.reload();
    page.wait_for_text(".total", "1 of 3 instances");
    assert_eq!(page.texts(IDS), ["beta"]);
    page.visit("#/?sort=id&dir=desc");
    page.wait_for_text(".rows .c-id a", "broken");
    assert_eq!(page.texts(IDS), ["broken", "beta", "alpha"]);
    page.visit("#/?only=problems");
    page.wait_for_text(".total", "1 of 3 instances");
    page.visit("#/?q=nothing-has-this-text");
    page.wait_for_content("No instance matches the filter");
    page.close();
}

#[test]
fn every_view_can_be_opened_by_its_address() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_instances(&lab, &instances());
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/instance/alpha");
    page.wait_for_text("#instance-role .role", "backup");
    netns.ip("address add 192.0.2.1/24 dev eth0");
    page.wait_for_text("#instance-role .role", "primary");
    page.visit("#/history?id=alpha");
    page.wait_for_text(".total", "2 transitions");
    page.visit("#/history?id=alpha&since=2000-01-01T00:00:00Z&until=2000-01-02T00:00:00Z");
    page.wait_for_text(".total", "0 transitions");
    page.visit("#/history?id=nothing");
    page.wait_for(
        "the problem",
        "document.querySelector('.notice:not([hidden])')?.innerText.includes('nothing')",
    );
    page.visit("#/findings?severity=info");
    page.wait_for_content("No finding matches the filter");
    page.visit("#/instance/nothing");
    page.wait_for_content("there is no instance \"nothing\" on this node");
    page.visit("#/no-such-view");
    page.wait_for_content("There is no such view");
    // The node answers these with 404, and the browser reports each in its console.
    page.close_after_errors();
}

#[test]
fn a_view_of_one_instance_never_shows_another_one_whose_id_begins_with_it() {
    let lab = Lab::new();
    let longer = instance("VI_10", 10, "eth0", "192.0.2.10/24");
    let both = format!("{}{longer}", instance("VI_1", 1, "eth0", "192.0.2.1/24"));
    let (netns, fixture) = node_with_instances(&lab, &both);
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/history?id=VI_1&last=constructor");
    page.wait_for_text(".total", "1 transition");
    netns.ip("address add 192.0.2.10/24 dev eth0");
    wait_for("the transition", || (recorded(&fixture).len() == 3).then_some(()));
    netns.ip("address add 192.0.2.1/24 dev eth0");
    page.wait_for_text(".total", "2 transitions");
    assert_eq!(page.texts(".rows .h-id"), ["VI_1", "VI_1"]);
    page.visit("#/instance/VI_1");
    page.wait_for_text("#instance-role .role", "primary");
    write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{longer}", netns.name()));
    page.wait_for_content("there is no instance \"VI_1\" on this node");
    assert_eq!(page.browser.count("#instance-role"), 0);
    // The node answers some requests with 404, and the browser reports each in its console.
    page.close_after_errors();
}

#[test]
fn a_view_does_not_say_that_all_is_well_before_the_findings_are_read() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, "");
    let _node = fixture.start();
    let address = proxy::start(web_address(&fixture), |head| {
        if head.contains(" /v1/findings") { Verdict::Hold } else { Verdict::Forward }
    });
    let page = Page::open_before_live(address, "#/");
    page.wait_for_content("This node has no instances");
    page.wait_for_content("Reading the state of the node");
    assert!(!page.browser.text("body").contains("Nothing needs attention"));
    page.visit("#/findings");
    page.wait_for_text(".findings .empty", "Reading…");
    page.wait_for_text(".total", "Reading…");
    page.browser.close();
}

#[test]
fn a_history_that_cannot_be_read_does_not_hold_up_the_page_and_the_views_say_why() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let _node = fixture.start();
    let address = proxy::start(web_address(&fixture), |head| {
        let body = r#"{"code":"internal","status":500,"detail":"the disk is broken"}"#;
        if head.contains(" /v1/history") {
            Verdict::Problem("500 Internal Server Error", body)
        } else {
            Verdict::Forward
        }
    });
    let page = Page::open(address, "#/");
    page.wait_for_text(".total", "1 instance");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    page.wait_for_text(".tile[data-role=primary] .tile-number", "1");
    page.visit("#/history");
    page.wait_for_text(".notice", "the disk is broken");
    page.visit("#/instance/VI_1");
    page.wait_for_content("The history cannot be read: the disk is broken");
    page.wait_for_text("#instance-role .role", "primary");
    // The browser reports each 500 in its console.
    page.close_after_errors();
}
