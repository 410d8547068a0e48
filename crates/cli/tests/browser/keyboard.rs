// SPDX-License-Identifier: Apache-2.0
//! The page without a mouse.

use serde_json::Value;
use vipwatch_testkit::Lab;

use crate::support::{ENTER, Page, TAB, instance, node_with_instances, web_address, write};

const ESCAPE: &str = "\u{e00c}";
const RIGHT: &str = "\u{e014}";

/// The element with the focus, and whether its focus is visible.
fn focus(page: &Page) -> Value {
    page.browser.run(
        "const it = document.activeElement; const style = getComputedStyle(it);\
         return {name: it.id || it.className || it.innerText, \
         isVisible: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2}",
    )
}

/// Presses the tabulator key until the element that a selector matches has the focus.
#[track_caller]
fn tab_to(page: &Page, selector: &str) {
    for _ in 0..60 {
        page.browser.press(TAB);
        let script = format!("return document.activeElement.matches({selector:?})");
        let focus = focus(page);
        assert_eq!(focus["isVisible"], true, "the focus is not visible: {focus}");
        if page.browser.run(&script) == true {
            return;
        }
    }
    panic!("the tabulator key does not reach {selector}");
}

#[test]
fn all_views_can_be_reached_and_used_with_the_keyboard_alone() {
    let lab = Lab::new();
    let conf =
        [instance("alpha", 1, "eth0", "192.0.2.1/24"), instance("beta", 2, "eth0", "192.0.2.2/24")]
            .concat();
    let (_netns, fixture) = node_with_instances(&lab, &conf);
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    page.wait_for_text(".total", "2 instances");
    // The first element leads past the head of the page.
    tab_to(&page, ".skip");
    page.browser.press(ENTER);
    page.wait_for("the focus in the content", "document.activeElement.id === 'main'");
    assert_eq!(page.fragment(), "#/");
    tab_to(&page, ".tile[data-role=backup]");
    page.browser.press(ENTER);
    page.wait_for("the filter", "location.hash === '#/?role=backup'");
    page.wait_for(
        "the focus on the same button",
        "document.activeElement.dataset.role === 'backup'",
    );
    page.browser.press("/");
    page.wait_for("the focus in the search", "document.activeElement.id === 'search'");
    page.browser.press("beta");
    page.wait_for_text(".total", "1 of 2 instances");
    page.browser.press(ESCAPE);
    page.visit("#/");
    page.wait_for_text(".total", "2 instances");
    tab_to(&page, ".map");
    page.browser.press(&format!("{RIGHT}{RIGHT}"));
    page.wait_for(
        "the second cell",
        "document.querySelector('.map-caption').innerText.startsWith('beta · backup')",
    );
    page.browser.press(ENTER);
    page.wait_for("the instance", "location.hash === '#/instance/beta'");
    page.wait_for_text("#instance-role .role", "backup");
    tab_to(&page, ".timeline");
    page.browser.press("+");
    page.wait_for("the zoom in the address", "/from=\\d+&to=\\d+/.test(location.hash)");
    page.browser.press("gh");
    page.wait_for("the history", "location.hash === '#/history'");
    page.browser.press("gf");
    page.wait_for("the findings", "location.hash === '#/findings'");
    page.browser.press("go");
    page.wait_for_text(".total", "2 instances");
    tab_to(&page, ".rows .c-id a");
    page.browser.press(ENTER);
    page.wait_for_text("#instance-role .role", "backup");
    page.close();
}

#[test]
fn the_focus_stays_with_its_instance_when_the_table_is_sorted_again() {
    let lab = Lab::new();
    let conf =
        [instance("alpha", 1, "eth0", "192.0.2.1/24"), instance("beta", 2, "eth0", "192.0.2.2/24")]
            .concat();
    let (netns, fixture) = node_with_instances(&lab, &conf);
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    page.wait_for_text(".total", "2 instances");
    page.browser.run("document.querySelectorAll('.rows .c-id a')[1].focus()");
    netns.ip("address add 192.0.2.2/24 dev eth0");
    page.wait_for_text(".rows .c-id a", "beta");
    page.wait_for("the focus on beta", "document.activeElement.innerText === 'beta'");
    page.browser.press(ENTER);
    page.wait_for("the instance", "location.hash === '#/instance/beta'");
    page.wait_for("the focus in the content", "document.activeElement.id === 'main'");
    page.browser.press("/");
    page.wait_for("the focus in the search", "document.activeElement.id === 'search'");
    page.close();
}

#[test]
fn a_link_keeps_the_focus_while_the_content_around_it_changes() {
    let lab = Lab::new();
    let missing = |vrid: usize| instance(&format!("VI_{vrid}"), vrid, "missing", "192.0.2.9/24");
    let (netns, fixture) = node_with_instances(&lab, &missing(1));
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    page.wait_for("one finding", "/^1 /.test(document.querySelector('.severities a')?.innerText)");
    page.browser.run("document.querySelector('.severities a').focus()");
    let text = format!("net_namespace {}\n{}{}", netns.name(), missing(1), missing(2));
    write(&fixture.keepalived_conf(), &text);
    page.wait_for(
        "two findings, and the focus on the same link",
        "/^2 /.test(document.querySelector('.severities a').innerText) && \
         document.activeElement === document.querySelector('.severities a')",
    );
    page.close();
}
