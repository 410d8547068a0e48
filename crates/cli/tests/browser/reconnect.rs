//! The page after a lost connection.

use std::collections::BTreeSet;

use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture};

use crate::support::{Page, configure, instance, node_with_instances, web_address};

const ADD: &str = "address add 192.0.2.9/24 dev eth0";
const REMOVE: &str = "address del 192.0.2.9/24 dev eth0";

/// The numbers of the transitions in the node's history, the newest first.
fn recorded(fixture: &NodeFixture) -> Vec<String> {
    let output = fixture.run(&["history", "-n", "1000", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let items = answer["items"].as_array().unwrap().iter().rev();
    items.filter(|item| item["type"] == "transition").map(|item| item["seq"].to_string()).collect()
}

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
