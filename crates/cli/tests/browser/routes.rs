//! Filters and views are in the address.

use vipwatch_testkit::Lab;

use crate::support::{Page, instance, node_with_instances, web_address};

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
    page.visit("#/findings?severity=odd");
    page.wait_for_content("No finding matches the filter");
    page.visit("#/instance/nothing");
    page.wait_for_content("there is no instance \"nothing\" on this node");
    page.visit("#/no-such-view");
    page.wait_for_content("There is no such view");
    // The node answers these with 404, and the browser reports each in its console.
    page.close_after_errors();
}
