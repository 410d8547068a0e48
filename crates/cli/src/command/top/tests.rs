// SPDX-License-Identifier: Apache-2.0
//! Tests of the printed frame.

use clap::Parser;

use super::*;
use crate::args::{CliArgs, Command};
use crate::samples;

/// The options of this command line.
pub(super) fn options(line: &[&str]) -> TopArgs {
    let args = CliArgs::try_parse_from(["vipwatch", "top"].iter().chain(line)).unwrap();
    let Command::Top(options) = args.command else { panic!("not top") };
    options
}

/// The documents of a node with four instances and three findings.
pub(super) fn sample_snapshot() -> NodeDocuments {
    NodeDocuments {
        status: samples::node_status(),
        instances: samples::instances(),
        findings: samples::findings().items,
    }
}

#[test]
fn a_printed_frame_has_all_instances_and_the_wanted_width() {
    let options = options(&["--once", "--width", "120", "--height", "15"]);
    let text = printed_frame(&options, sample_snapshot(), None, &Style::of_tests());
    assert_eq!(text.lines().count(), 15);
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_printed_frame_is_as_high_as_its_rows_but_not_higher_than_200_of_them() {
    let mut snapshot = sample_snapshot();
    let sample = snapshot.instances[1].clone();
    snapshot.instances = (0..300)
        .map(|number| {
            let mut instance = sample.clone();
            instance.id = format!("VI_{number:03}");
            instance
        })
        .collect();
    let mut model = Model::new(&options(&[]), snapshot);
    model.arrange();
    let other_lines = view::overview_height(&model, 0);
    assert_eq!(view::overview_height(&model, DEFAULT_ROWS), other_lines - 1 + 200);
}

#[test]
fn a_frame_waits_for_its_turn_and_an_idle_screen_for_the_next_second() {
    let first = FramePace { last: None, is_needed: true };
    assert!(first.wait().is_zero());
    let now = Some(Instant::now());
    let (needed, idle) =
        (FramePace { last: now, is_needed: true }, FramePace { last: now, is_needed: false });
    assert!(!needed.wait().is_zero() && needed.wait() <= FRAME_INTERVAL);
    assert!(idle.wait() > needed.wait() && idle.wait() <= TICK);
}

#[test]
fn colours_follow_the_option() {
    assert!(has_colors(ColorChoice::Always));
    assert!(!has_colors(ColorChoice::Never));
}
