// SPDX-License-Identifier: Apache-2.0
//! Tests of the keys.

use ratatui::crossterm::event::KeyEventState;

use super::super::tests::{options, sample_snapshot};
use super::*;
use crate::args::SortKey;

struct Fixture {
    screen: ScreenState,
    data: NodeData,
}

impl Fixture {
    fn new() -> Self {
        let (mut screen, data) =
            (ScreenState::new(&options(&[])), NodeData::new(sample_snapshot()));
        screen.arrange(&data);
        screen.page = 3;
        Self { screen, data }
    }

    fn press(&mut self, code: KeyCode) -> KeyEffect {
        press(&mut self.screen, &self.data, KeyEvent::from(code))
    }

    fn type_text(&mut self, text: &str) {
        for c in text.chars() {
            self.press(KeyCode::Char(c));
        }
    }
}

#[test]
fn control_keys_work_in_every_state() {
    let mut fixture = Fixture::new();
    fixture.screen.is_typing = true;
    for (c, effect) in [('c', KeyEffect::Quit), ('z', KeyEffect::Suspend), ('l', KeyEffect::Redraw)]
    {
        let key = KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert_eq!(press(&mut fixture.screen, &fixture.data, key), effect);
    }
}

#[test]
fn a_filter_is_typed_kept_and_removed() {
    let mut fixture = Fixture::new();
    fixture.press(KeyCode::Char('/'));
    fixture.type_text("webq");
    assert_eq!(fixture.press(KeyCode::Backspace), KeyEffect::Rearrange);
    assert_eq!((fixture.screen.filter.as_str(), fixture.screen.is_typing), ("web", true));
    fixture.press(KeyCode::Enter);
    assert_eq!((fixture.screen.filter.as_str(), fixture.screen.is_typing), ("web", false));
    assert_eq!(fixture.press(KeyCode::Esc), KeyEffect::Rearrange);
    assert_eq!(fixture.screen.filter, "");
}

#[test]
fn a_filter_has_a_maximum_length() {
    let mut fixture = Fixture::new();
    fixture.press(KeyCode::Char('/'));
    fixture.type_text(&"x".repeat(MAX_FILTER + 50));
    assert_eq!(fixture.screen.filter.len(), MAX_FILTER);
}

#[test]
fn keys_move_select_and_open_the_instance() {
    let mut fixture = Fixture::new();
    fixture.press(KeyCode::Down);
    assert_eq!(fixture.screen.selected.as_deref(), Some("db"));
    fixture.press(KeyCode::PageDown);
    assert_eq!(fixture.screen.position.selected, 3);
    fixture.press(KeyCode::Home);
    assert_eq!(fixture.press(KeyCode::Enter), KeyEffect::OpenDetail);
    assert_eq!(fixture.screen.detail.as_deref(), Some("web"));
}

#[test]
fn a_finding_opens_its_instance_and_a_finding_about_the_node_opens_nothing() {
    let mut fixture = Fixture::new();
    fixture.press(KeyCode::Char('f'));
    assert_eq!(fixture.press(KeyCode::Enter), KeyEffect::OpenDetail);
    assert_eq!(fixture.screen.detail.as_deref(), Some("web"));
    fixture.screen.findings.selected = 2;
    assert_eq!(fixture.data.findings[2].id, None);
    assert_eq!(fixture.press(KeyCode::Enter), KeyEffect::None);
}

#[test]
fn letters_change_the_order_and_the_view() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.press(KeyCode::Char('s')), KeyEffect::Rearrange);
    fixture.press(KeyCode::Char('S'));
    assert_eq!((fixture.screen.sort, fixture.screen.is_reversed), (SortKey::Id, true));
    for (c, view) in
        [('?', View::Help), ('h', View::History), ('f', View::Findings), ('o', View::Overview)]
    {
        fixture.press(KeyCode::Char(c));
        assert_eq!(fixture.screen.view, view);
    }
    fixture.press(KeyCode::Char('?'));
    fixture.press(KeyCode::Esc);
    assert_eq!(fixture.screen.view, View::Overview);
    assert_eq!(fixture.press(KeyCode::Char('q')), KeyEffect::Quit);
}

#[test]
fn the_release_of_a_key_does_nothing() {
    let mut fixture = Fixture::new();
    let key = KeyEvent {
        kind: KeyEventKind::Release,
        state: KeyEventState::NONE,
        ..KeyEvent::from(KeyCode::Char('q'))
    };
    assert_eq!(press(&mut fixture.screen, &fixture.data, key), KeyEffect::None);
}
