// SPDX-License-Identifier: Apache-2.0
//! A node that requires a token. A proxy before the node requires it, so that the page alone is tested.

use vipwatch_testkit::Lab;

use crate::proxy::{self, Verdict};
use crate::support::{ENTER, Page, instance, node_with_instances, web_address};

const TOKEN: &str = "a-token-of-this-test";

/// Requests for `/v1/` need the token.
fn require_token(head: &str) -> Verdict {
    let wanted = format!("authorization: bearer {TOKEN}");
    if head.contains(" /v1/") && !head.to_ascii_lowercase().contains(&wanted) {
        let body = r#"{"code":"unauthorized","status":401,"detail":"a token is needed"}"#;
        return Verdict::Problem("401 Unauthorized", body);
    }
    Verdict::Forward
}

#[test]
fn a_page_that_is_not_permitted_asks_for_the_token_and_keeps_it_in_its_tab() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let _node = fixture.start();
    let page = Page::open_before_live(proxy::start(web_address(&fixture), require_token), "#/");
    page.wait_for_text("#link-text", "token needed");
    page.wait_for_content("This node requires a token");
    let enter = |token: &str| {
        page.wait_for("the form", "document.querySelector('#token')");
        page.wait_for("the focus in the field", "document.activeElement.id === 'token'");
        page.browser.run("document.activeElement.value = ''");
        page.browser.press(&format!("{token}{ENTER}"));
    };
    // No request can carry the first one, and no node accepts the second one.
    for invalid in ["a-token-with-an-umlaut-\u{e4}", "too-short"] {
        enter(invalid);
        page.wait_for(
            "a text that says which tokens are valid",
            "document.querySelector('#token').validationMessage.includes('16 to 512 characters')",
        );
        assert_eq!(page.browser.run("return sessionStorage.length"), 0);
    }
    enter("another-token-of-this-test");
    page.wait_for_content("The node rejects this token");
    enter(TOKEN);
    page.wait_for_text("#link-text", "live");
    page.wait_for_text(".total", "1 instance");
    assert_eq!(page.browser.count("#token-form"), 0);
    page.browser.reload();
    page.wait_for_text("#link-text", "live");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    page.wait_for_text(".tile[data-role=primary] .tile-number", "1");
    let stored = page.browser.run("return [sessionStorage.length, localStorage.length, document.cookie, location.href.includes('token')]");
    assert_eq!(stored.to_string(), "[1,0,\"\",false]");
    // The browser reports each 401 in its console.
    page.close_after_errors();
}
