// SPDX-License-Identifier: Apache-2.0
//! The page after a lost connection.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use vipwatch_testkit::{Lab, wait_for};

use crate::proxy::{self, Verdict};
use crate::support::{Page, configure, instance, node_with_instances, recorded, web_address};

const ADD: &str = "address add 192.0.2.9/24 dev eth0";
const REMOVE: &str = "address del 192.0.2.9/24 dev eth0";

/// The numbers of the transitions on the page, from top to bottom.
fn shown(page: &Page) -> Vec<String> {
    let script = "return [...document.querySelectorAll('.rows .grid-row[data-seq]')]\
                  .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top).map((row) => row.dataset.seq)";
    let seqs = page.browser.run(script);
    seqs.as_array().unwrap().iter().map(|seq| seq.as_str().unwrap().to_owned()).collect()
}

#[test]
fn after_a_restart_of_the_node_the_page_continues_without_a_lost_or_doubled_transition() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let node = fixture.start();
    let address = web_address(&fixture);
    configure(&fixture, &address.to_string(), "");
    let page = Page::open(address, "#/history");
    page.mark();
    let newest = |count: usize, role: &str| {
        page.wait_for_text(".history-table .total, .total", &format!("{count} transitions"));
        page.wait_for(role, &format!("document.querySelector('.rows .role-{role}')"));
    };
    netns.ip(ADD);
    newest(2, "primary");
    netns.ip(REMOVE);
    newest(3, "backup");
    assert!(node.stop().success());
    page.wait_for("the banner", "/stale since \\d\\d:\\d\\d:\\d\\d/.test(document.querySelector('#stale-banner')?.innerText)");
    page.wait_for_text("#link-text", "stale");
    assert_eq!(shown(&page).len(), 3, "the last known state stays on the screen");
    // The role changes while no node runs, and before the page has connected again.
    netns.ip(ADD);
    let _node = fixture.start();
    netns.ip(REMOVE);
    page.wait_for("no banner", "document.querySelector('#stale-banner') === null");
    page.wait_for_text("#link-text", "live");
    netns.ip(ADD);
    page.wait_for(
        "the last transition",
        "document.querySelector('.total').innerText === '6 transitions'",
    );
    let expected = recorded(&fixture);
    assert_eq!(expected.len(), 6, "{}", fixture.log());
    assert_eq!(shown(&page), expected);
    assert_eq!(shown(&page).iter().collect::<BTreeSet<_>>().len(), 6, "each once");
    page.wait_for_content("no node ran");
    page.visit("#/");
    page.wait_for_text(".tile[data-role=primary] .tile-number", "1");
    page.check_mark();
    page.close_after_errors();
}

#[test]
fn a_page_whose_history_was_replaced_reads_everything_again() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let node = fixture.start();
    let address = web_address(&fixture);
    configure(&fixture, &address.to_string(), "");
    let page = Page::open(address, "#/history");
    netns.ip(ADD);
    page.wait_for_text(".total", "2 transitions");
    assert!(node.stop().success());
    std::fs::remove_dir_all(fixture.state_dir()).unwrap();
    netns.ip(REMOVE);
    let _node = fixture.start();
    page.wait_for_text("#link-text", "live");
    page.wait_for_text(".total", "1 transition");
    assert_eq!(shown(&page), recorded(&fixture));
    netns.ip(ADD);
    page.wait_for_text(".total", "2 transitions");
    assert_eq!(shown(&page), recorded(&fixture));
    page.close_after_errors();
}

/// Tells the page that its tab is hidden, or visible. The driver has only one tab, which is always visible.
fn set_hidden(page: &Page, is_hidden: bool) {
    page.browser.run(&format!(
        "Object.defineProperty(document, 'hidden', {{ configurable: true, value: {is_hidden} }});\
         document.dispatchEvent(new Event('visibilitychange'))"
    ));
}

#[test]
fn a_hidden_tab_ends_its_stream_and_gets_the_missed_events_when_it_is_visible_again() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/history");
    page.wait_for_text(".total", "1 transition");
    page.mark();
    set_hidden(&page, true);
    page.wait_for_text("#link-text", "paused");
    for (change, number) in [(ADD, 2), (REMOVE, 3), (ADD, 4)] {
        netns.ip(change);
        wait_for("the transition", || (recorded(&fixture).len() == number).then_some(()));
    }
    assert_eq!(shown(&page).len(), 1, "no event arrives while the tab is hidden");
    set_hidden(&page, false);
    page.wait_for_text("#link-text", "live");
    page.wait_for_text(".total", "4 transitions");
    assert_eq!(shown(&page), recorded(&fixture));
    page.check_mark();
    page.close();
}

#[test]
fn a_request_without_an_answer_ends_and_reconnect_now_ends_it_at_once() {
    let lab = Lab::new();
    let (_netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let _node = fixture.start();
    // The first attempt ends by its time limit; the second one would last as long.
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    let address = proxy::start(web_address(&fixture), move |head| {
        let is_held = head.contains(" /v1/status") && seen.fetch_add(1, Ordering::Relaxed) < 2;
        if is_held { Verdict::Hold } else { Verdict::Forward }
    });
    let page = Page::open_before_live(address, "#/");
    page.wait_for_text("#link-text", "stale");
    page.wait_for_content("the node does not answer");
    wait_for("the second attempt", || (requests.load(Ordering::Relaxed) == 2).then_some(()));
    page.browser.run_async(
        "import('/assets/store.js').then(({ store, onChange }) => { window.ended = 0;\
         onChange((parts) => { if (parts.has('link') && store.link.state === 'stale') window.ended += 1; }) }).then(arguments[1])",
        &Value::Null,
    );
    page.click("#stale-banner button");
    page.wait_for_text("#link-text", "live");
    page.wait_for_text(".total", "1 instance");
    assert_eq!(
        page.browser.run("return window.ended"),
        0,
        "an attempt has ended by its time limit"
    );
    page.close_after_errors();
}
