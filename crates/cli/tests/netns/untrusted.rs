// SPDX-License-Identifier: Apache-2.0
//! Text from files and programs is escaped wherever an operator reads it.

use vipwatch_testkit::{Lab, NodeFixture, wait_for};

use crate::support::{fixture_with, instance_conf, write_hook};

/// RIGHT-TO-LEFT OVERRIDE: a terminal shows the text after it from right to left.
const OVERRIDE: char = '\u{202e}';
const ESCAPE: &str = "\\u{202e}";

/// The output of a command; panics if it contains the override character.
fn printed(fixture: &NodeFixture, args: &[&str]) -> String {
    let text = fixture.run_text(args);
    assert!(!text.contains(OVERRIDE), "{args:?}: {text:?}");
    text
}

#[test]
fn a_bidi_override_in_a_file_is_escaped_in_every_output_and_in_the_log() {
    let lab = Lab::new();
    // The link does not exist, so its name is part of the reason that `status` prints.
    let bad = instance_conf("VI_1", &format!("e{OVERRIDE}th0"), &["192.0.2.9/24"]);
    let (_netns, fixture) = fixture_with(&lab, &[bad, format!("vrrp_instance B{OVERRIDE} {{\n")]);
    let hook = write_hook(
        &lab.path().join(format!("h{OVERRIDE}k")),
        &format!("echo a{OVERRIDE}b; exit 1"),
    );
    fixture.configure(&format!("[[notify]]\nhook = {{ program = \"{}\" }}\n", hook.display()));
    let _node = fixture.start();
    fixture.wait_for_log("hook output: a");
    wait_for("the failed hook", || {
        printed(&fixture, &["show", "VI_1"]).contains("hook").then_some(())
    });
    wait_for("the record", || printed(&fixture, &["history"]).contains("VI_1").then_some(()));
    for args in [&["status"][..], &["show", "VI_1"], &["history"], &["doctor"]] {
        assert!(printed(&fixture, args).contains(ESCAPE), "{args:?}: {}", fixture.run_text(args));
        for format in ["json", "yaml"] {
            let text = printed(&fixture, &[args, &["-o", format]].concat());
            assert!(text.contains("\\u202e"), "{args:?} {format}: {text}");
        }
    }
    let log = fixture.log();
    assert!(log.contains(&format!("hook output: a{ESCAPE}b")) && !log.contains(OVERRIDE), "{log}");
}
