// SPDX-License-Identifier: Apache-2.0
//! Text from files and programs is shown as text.

use vipwatch_testkit::{Lab, script};

use crate::support::{Page, configure, instance, node_with_instances, web_address};

/// RIGHT-TO-LEFT OVERRIDE: the text after it is shown from right to left.
const OVERRIDE: char = '\u{202e}';
const MARKUP: &str = "<img/src=x/onerror=window.isHacked=1>";

#[test]
fn markup_direction_characters_and_long_names_are_shown_as_text_and_keep_the_layout() {
    let lab = Lab::new();
    let long = "x".repeat(64);
    let wide = "W".repeat(200);
    let conf = [
        instance(MARKUP, 1, "<b>x", "192.0.2.1/24"),
        instance("bidi", 2, &format!("e{OVERRIDE}th0"), "192.0.2.2/24"),
        instance(&long, 3, "eth0", "192.0.2.3/24"),
        format!("vrrp_instance B{OVERRIDE}{MARKUP} {{\n"),
    ]
    .concat();
    let (_netns, fixture) = node_with_instances(&lab, &conf);
    let hook = lab.path().join(format!("<b>{OVERRIDE}{wide}"));
    script(&hook, "exit 1");
    let rule = format!("[[notify]]\nhook = {{ program = \"{}\" }}\n", hook.display());
    configure(&fixture, "127.0.0.1:0", &rule);
    let _node = fixture.start();
    let page = Page::open(web_address(&fixture), "#/");
    page.wait_for_text(".tile[data-role=all] .tile-number", "3");
    let id = "~3Cimg~2Fsrc~3Dx~2Fonerror~3Dwindow.isHacked~3D1~3E";
    for width in [1360, 360] {
        page.browser.resize(width, 800);
        for (view, expected) in [
            ("#/", "link fault"),
            ("#/findings", &format!("<b>\\u{{202e}}{wide}")),
            ("#/history", "bidi"),
            (&format!("#/instance/{id}"), MARKUP),
            ("#/instance/bidi", "e\\u{202e}th0"),
            (&format!("#/instance/{long}"), &format!("<b>\\u{{202e}}{wide}")),
            (&format!("#/?q={MARKUP}"), "1 of 3 instances"),
            (&format!("#/instance/{MARKUP}{OVERRIDE}"), "\\u{202e}"),
        ] {
            page.visit(view);
            page.wait_for_content(expected);
            let found = page.browser.run(&format!(
                "return [document.querySelectorAll('main img, main script, main b').length, Boolean(window.isHacked), \
                 document.documentElement.innerText.includes('{OVERRIDE}'), document.title.includes('{OVERRIDE}')]"
            ));
            assert_eq!(found.to_string(), "[0,false,false,false]", "{view}");
            page.check_width();
        }
    }
    // The last view has no instance, and the browser reports the 404 in its console.
    page.close_after_errors();
}
