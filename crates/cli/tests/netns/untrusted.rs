//! Text from files and programs is escaped wherever an operator reads it.

use vipwatch_testkit::{Lab, NodeFixture, wait_for};

use crate::notify::program;
use crate::{instance, stage};

/// RIGHT-TO-LEFT OVERRIDE: what follows is shown from right to left.
const OVERRIDE: char = '\u{202e}';
const ESCAPE: &str = "\\u{202e}";

/// What a command prints; panics if an override character reaches the reader.
fn said(place: &NodeFixture, words: &[&str]) -> String {
    let said = place.say(words);
    assert!(!said.contains(OVERRIDE), "{words:?}: {said:?}");
    said
}

#[test]
fn a_bidi_override_in_a_file_is_escaped_in_every_answer_and_in_the_log() {
    let lab = Lab::new();
    // The link exists nowhere: its name is the reason for the role.
    let bad = instance("VI_1", &format!("e{OVERRIDE}th0"), &["192.0.2.9/24"]);
    let (_netns, place) = stage(&lab, &[bad, format!("vrrp_instance B{OVERRIDE} {{\n")]);
    let hook =
        program(&lab.path().join(format!("h{OVERRIDE}k")), &format!("echo a{OVERRIDE}b; exit 1"));
    place.configure(&format!("[[outlet]]\nhook = {{ program = \"{}\" }}\n", hook.display()));
    let _node = place.start();
    place.wait_for_log("hook says: a");
    wait_for("the failed hook", || said(&place, &["show", "VI_1"]).contains("hook").then_some(()));
    wait_for("the record", || said(&place, &["history"]).contains("VI_1").then_some(()));
    for words in [&["status"][..], &["show", "VI_1"], &["history"], &["doctor"]] {
        assert!(said(&place, words).contains(ESCAPE), "{words:?}: {}", place.say(words));
        let json = said(&place, &[words, &["--format", "json"]].concat());
        assert!(json.contains("\\u202e"), "{words:?}: {json}");
    }
    let log = place.log();
    assert!(log.contains(&format!("hook says: a{ESCAPE}b")) && !log.contains(OVERRIDE), "{log}");
}
