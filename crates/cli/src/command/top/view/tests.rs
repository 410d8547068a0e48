// SPDX-License-Identifier: Apache-2.0
//! Golden screens of every view.

use ratatui::crossterm::event::{KeyCode, KeyEvent};
use vipwatch_api::{InstanceItem, TimelineItem};

use super::super::model::TopMessage;
use super::super::node_data::{Answer, Request};
use super::super::tests::{options, sample_snapshot};
use super::*;
use crate::samples::{self, at};

const PLAIN: Theme = Theme { has_colors: false };

fn model() -> Model {
    Model::new(&options(&[]), sample_snapshot())
}

fn take(model: &mut Model, message: TopMessage) {
    model.take(message).unwrap();
}

fn press(model: &mut Model, codes: &[KeyCode]) {
    for code in codes {
        take(model, TopMessage::Key(KeyEvent::from(*code)));
    }
}

fn buffer(model: &mut Model, theme: Theme, width: u16, height: u16) -> Buffer {
    model.arrange();
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(model, &Style::of_tests(), theme, &mut buffer);
    buffer
}

fn text(model: &mut Model, width: u16, height: u16) -> String {
    plain_text(&buffer(model, PLAIN, width, height))
}

/// The model with the detail view of `VI_1`.
fn detail_model() -> Model {
    let mut model = model();
    press(&mut model, &[KeyCode::Down, KeyCode::Down, KeyCode::Enter]);
    assert_eq!(model.next_request(), Some(Request::Detail("VI_1".to_owned())));
    take(
        &mut model,
        TopMessage::Answer(Box::new(Answer::Detail(Box::new(samples::instance_detail())))),
    );
    model
}

#[test]
fn the_overview_has_counts_instances_and_findings() {
    insta::assert_snapshot!(text(&mut model(), 80, 20));
}

#[test]
fn a_wide_overview_has_details_and_a_narrow_one_the_most_important_columns() {
    insta::assert_snapshot!("overview_wide", text(&mut model(), 140, 16));
    insta::assert_snapshot!("overview_narrow", text(&mut model(), 40, 12));
}

#[test]
fn the_detail_has_cause_stopwatch_timeline_findings_and_addresses() {
    insta::assert_snapshot!(text(&mut detail_model(), 100, 60));
}

#[test]
fn the_detail_scrolls_to_its_end_and_not_further() {
    let mut model = detail_model();
    let whole = text(&mut model, 100, 60);
    let lines = whole.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>();
    press(&mut model, &[KeyCode::End]);
    let end = text(&mut model, 100, 20);
    let last = lines[lines.len() - 2];
    assert_eq!(end.lines().nth(18), Some(last), "{end}");
    press(&mut model, &[KeyCode::Up]);
    assert_eq!(text(&mut model, 100, 20).lines().nth(17), end.lines().nth(16));
}

#[test]
fn an_instance_that_was_removed_and_a_detail_that_cannot_be_read_are_explained() {
    let mut model = model();
    press(&mut model, &[KeyCode::Enter]);
    let request = model.next_request().unwrap();
    let failed = Answer::Failed(request, "no answer".to_owned());
    take(&mut model, TopMessage::Answer(Box::new(failed)));
    let screen = text(&mut model, 80, 30);
    assert!(screen.contains("the details cannot be read: no answer"), "{screen}");
    model.data.instances.remove("web");
    let screen = text(&mut model, 80, 30);
    assert!(screen.contains("web is not configured on this node"), "{screen}");
}

#[test]
fn history_findings_and_help() {
    let mut model = model();
    let entries: Vec<TimelineItem> = samples::history().items;
    take(&mut model, TopMessage::Answer(Box::new(Answer::History(entries))));
    press(&mut model, &[KeyCode::Char('h')]);
    insta::assert_snapshot!("history", text(&mut model, 110, 12));
    press(&mut model, &[KeyCode::Char('f')]);
    insta::assert_snapshot!("findings", text(&mut model, 80, 18));
    press(&mut model, &[KeyCode::Char('?')]);
    insta::assert_snapshot!("help", text(&mut model, 90, 26));
}

#[test]
fn a_stale_screen_says_since_when_and_why() {
    let mut model = model();
    let reason = "the connection to /run/vipwatch/node.sock was closed".to_owned();
    take(&mut model, TopMessage::Lost { at: at("14:59:00"), reason });
    let first = text(&mut model, 120, 12).lines().next().unwrap().to_owned();
    let expected = "vipwatch top  node-1  STALE since 2026-11-16 15:59:00+01:00 (1m): \
                    the connection to /run/vipwatch/node.sock was closed";
    assert_eq!(first, expected);
}

#[test]
fn a_terminal_that_is_too_small_says_so() {
    insta::assert_snapshot!(text(&mut model(), 30, 5), @r"
    terminal too small: 30x5
    at least 40x8 is needed
    q: quit
    ");
    // Every size can be drawn.
    let mut model = detail_model();
    for code in [KeyCode::Char('h'), KeyCode::Char('f'), KeyCode::Char('?'), KeyCode::Char('o')] {
        for (width, height) in [(0, 0), (1, 1), (40, 8), (41, 9), (69, 8), (70, 8), (300, 100)] {
            text(&mut model, width, height);
        }
        press(&mut model, &[code]);
    }
}

#[test]
fn colours_are_used_only_if_they_are_wanted() {
    let has_colors = |theme| {
        let buffer = buffer(&mut model(), theme, 80, 20);
        buffer.content.iter().any(|cell| cell.fg != ratatui::style::Color::Reset)
    };
    assert!(has_colors(Theme { has_colors: true }));
    assert!(!has_colors(PLAIN));
}

#[test]
fn hostile_texts_are_escaped_and_cannot_break_the_screen() {
    let hostile = "a\u{1b}[2J\u{202e}b\nc\u{7}";
    let mut snapshot = sample_snapshot();
    snapshot.status.node = hostile.to_owned();
    for finding in &mut snapshot.findings {
        finding.text = format!("{hostile}{}", "日本語".repeat(200));
        finding.hint = hostile.to_owned();
    }
    let instance = InstanceItem {
        id: hostile.to_owned(),
        netns: Some(hostile.repeat(100)),
        reason: Some(hostile.to_owned()),
        ..snapshot.instances[0].clone()
    };
    snapshot.instances.push(instance);
    let mut model = Model::new(&options(&["a\u{1b}"]), snapshot);
    let reason = hostile.to_owned();
    take(&mut model, TopMessage::Lost { at: at("14:59:00"), reason });
    for keys in [vec![], vec![KeyCode::Enter], vec![KeyCode::Char('f')], vec![KeyCode::Char('h')]] {
        press(&mut model, &keys);
        let screen = text(&mut model, 100, 30);
        let is_harmful = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!screen.contains(is_harmful), "{screen:?}");
        assert!(screen.contains("\\u{1b}[2J\\u{202e}b"), "{screen}");
    }
}

#[test]
fn long_texts_are_wrapped_at_spaces_and_long_words_are_divided() {
    let lines = paint::wrapped("name one two three", 9, 2);
    assert_eq!(lines, ["name one", "  two", "  three"]);
    assert_eq!(paint::wrapped("abcdefghij", 4, 1), ["abcd", " efg", " hij"]);
    assert_eq!(paint::wrapped("日本語", 4, 0), ["日本", "語"]);
    assert_eq!(paint::wrapped("", 4, 0), [""]);
}

#[test]
fn the_timeline_is_as_wide_as_wanted_and_shows_every_transition() {
    let transitions = [
        samples::transition(1, "12:00:00", "VI_1", "backup"),
        samples::transition(2, "14:00:00", "VI_1", "primary"),
        samples::transition(3, "14:00:00.001", "VI_1", "fault"),
        samples::transition(4, "14:00:00.002", "VI_1", "primary"),
    ];
    let clock = Style::of_tests();
    let bar = |width: usize| {
        let [line, _] = timeline::bar(&transitions, &clock, PLAIN, width).unwrap();
        let area = Rect::new(0, 0, u16::try_from(width).unwrap(), 1);
        let mut buffer = Buffer::empty(area);
        Canvas { clock: &clock, theme: PLAIN, area, buffer: &mut buffer }.put(area, &line);
        plain_text(&buffer).trim_end().to_owned()
    };
    assert_eq!(bar(30), "bbbbbbbbbbbbbbbbbbP!PPPPPPPPPP");
    assert_eq!(bar(4), "bP!P");
    assert_eq!(bar(2), "!P", "the newest parts");
    assert!(timeline::bar(&[], &clock, PLAIN, 30).is_none());
}

#[test]
fn a_list_of_5000_instances_builds_only_the_visible_rows() {
    let mut snapshot = sample_snapshot();
    let sample = snapshot.instances[1].clone();
    let copy = |number: u32| InstanceItem { id: format!("VI_{number:04}"), ..sample.clone() };
    snapshot.instances = (0..5000).map(copy).collect();
    let mut model = Model::new(&options(&["--sort", "id"]), snapshot);
    press(&mut model, &[KeyCode::End]);
    let screen = text(&mut model, 80, 24);
    assert!(screen.contains("> P primary VI_4999"), "{screen}");
    assert_eq!(screen.matches("P primary").count(), model.screen.page);
}

#[test]
fn the_cluster_has_nodes_groups_and_findings() {
    let mut model = model();
    press(&mut model, &[KeyCode::Char('c')]);
    let screen = text(&mut model, 80, 12);
    assert!(screen.contains("no cluster is configured"), "{screen}");
    take(&mut model, TopMessage::Cluster(Box::new(samples::cluster::state())));
    insta::assert_snapshot!("cluster", text(&mut model, 120, 20));
    insta::assert_snapshot!("cluster_narrow", text(&mut model, 60, 16));
}

#[test]
fn a_stale_view_of_the_cluster_says_since_when() {
    let mut model = model();
    let mut state = samples::cluster::state();
    state.basis = samples::cluster::stale_basis();
    take(&mut model, TopMessage::Cluster(Box::new(state)));
    press(&mut model, &[KeyCode::Char('c')]);
    let screen = text(&mut model, 100, 20);
    assert!(screen.contains("\nstale since 2026-11-16 15:55:00+01:00"), "{screen}");
    assert!(screen.contains("cluster STALE"), "{screen}");
}

#[test]
fn a_group_of_ten_thousand_is_found_by_the_filter_and_opens_its_own_instance() {
    let mut model = model();
    let mut state = samples::cluster::state();
    state.groups = samples::cluster::many_groups(10_000).items;
    take(&mut model, TopMessage::Cluster(Box::new(state)));
    press(&mut model, &[KeyCode::Char('c'), KeyCode::Char('/')]);
    press(&mut model, &"router-7777".chars().map(KeyCode::Char).collect::<Vec<_>>());
    let screen = text(&mut model, 100, 20);
    assert!(screen.contains("1 group shown") && screen.contains("router:router-7777"), "{screen}");
    press(&mut model, &[KeyCode::Enter, KeyCode::Enter]);
    assert_eq!(model.screen.detail.as_deref(), Some("router-7777"));
}

#[test]
fn the_detail_has_the_state_of_the_group_in_the_cluster() {
    let mut model = detail_model();
    take(&mut model, TopMessage::Cluster(Box::new(samples::cluster::state())));
    let screen = text(&mut model, 100, 60);
    let line = "cluster         vrrp:ipv4:51:192.0.2.10: two-primaries, held by net-1, net-2";
    assert!(screen.contains(line), "{screen}");
}
