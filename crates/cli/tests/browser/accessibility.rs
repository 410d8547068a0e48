// SPDX-License-Identifier: Apache-2.0
//! axe-core finds no violation, and a phone shows every view without scrolling sideways.

use serde_json::{Value, json};
use vipwatch_testkit::{ColorScheme, Lab, script};

use crate::support::{Page, configure, instance, node_with_instances, web_address};

/// The text of axe-core.
pub(crate) fn axe_script() -> String {
    let file = std::env::var("VIPWATCH_AXE").expect("VIPWATCH_AXE; hint: cargo xtask test browser");
    std::fs::read_to_string(file).unwrap()
}

/// The violations on the page: rule, help text and elements.
pub(crate) fn violations(page: &Page) -> Vec<String> {
    // The colours during a transition, for example to another theme, have no contrast of their own to check.
    let script = "const done = arguments[1]; \
                  const moving = () => document.getAnimations().filter((one) => one.playState === 'running' \
                      && one.effect.getComputedTiming().endTime !== Infinity); \
                  const settled = async () => { while (moving().length) { \
                      await Promise.allSettled(moving().map((one) => one.finished)); } }; \
                  settled().then(() => axe.run(document, {resultTypes: ['violations']})).then((result) => \
                  done(result.violations), (error) => done([{id: 'axe itself', help: String(error), nodes: []}]))";
    let found = page.browser.run_async(script, &Value::Null);
    let text = |one: &Value| {
        let nodes = one["nodes"].as_array().into_iter().flatten();
        let nodes: Vec<String> = nodes
            .take(3)
            .map(|node| format!("{}: {}", node["target"], node["failureSummary"]))
            .collect();
        format!("{}: {} {}", one["id"], one["help"], nodes.join("; "))
    };
    found.as_array().unwrap().iter().map(text).collect()
}

#[test]
fn axe_finds_no_violation_on_any_view_in_light_and_dark_on_a_screen_and_on_a_phone() {
    let axe = axe_script();
    let lab = Lab::new();
    let conf = [
        instance("alpha", 1, "eth0", "192.0.2.1/24"),
        instance("beta", 2, "eth0", "192.0.2.2/24"),
        instance("broken", 3, "missing", "192.0.2.3/24"),
    ]
    .concat();
    let (netns, fixture) = node_with_instances(&lab, &conf);
    let hook = lab.path().join("hook");
    script(&hook, "exit 1");
    let rule = format!("[[notify]]\nhook = {{ program = \"{}\" }}\n", hook.display());
    configure(&fixture, "127.0.0.1:0", &rule);
    let _node = fixture.start();
    netns.ip("address add 192.0.2.1/24 dev eth0");
    let page = Page::open(web_address(&fixture), "#/");
    page.wait_for_text(".tile[data-role=primary] .tile-number", "1");
    page.wait_for_content("hook failed");
    for scheme in [ColorScheme::Light, ColorScheme::Dark] {
        page.browser.set_color_scheme(scheme);
        for width in [1360, 900, 360] {
            page.browser.resize(width, 800);
            for (view, shown) in [
                ("#/", "broken"),
                ("#/?role=fault&sort=since", "1 of 3 instances"),
                ("#/instance/alpha", "Stopwatch"),
                ("#/instance/broken", "does not exist"),
                ("#/history", "What one node cannot know"),
                ("#/findings", "What to do"),
                ("#/cluster", "No cluster is configured"),
                ("#/unknown", "There is no such view"),
            ] {
                page.visit(view);
                page.wait_for_content(shown);
                page.browser.run(&format!("if (!window.axe) {{ {axe} }}"));
                let found = violations(&page);
                assert!(found.is_empty(), "{view} {} {width}: {found:#?}", scheme.word());
                page.check_width();
            }
        }
    }
    let dark = page.browser.run("return getComputedStyle(document.body).backgroundColor");
    for expected in ["light", "dark"] {
        page.click("#theme-button");
        page.wait_for_text("#theme-button", &format!("Theme: {expected}"));
        let color = page.browser.run("return getComputedStyle(document.body).backgroundColor");
        assert_eq!(color == dark, expected == "dark", "{expected}: {color}");
    }
    assert_eq!(page.browser.run("return document.documentElement.lang"), json!("en"));
    page.close();
}
