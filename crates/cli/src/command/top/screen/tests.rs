// SPDX-License-Identifier: Apache-2.0
//! Tests of filters, order and positions.

use super::super::tests::{options, sample_snapshot};
use super::*;

const ROUTER: &str = "5e9b1d0c-7a8f-4a52-9d3e-1c2b3a4d5e6f";

/// The rows with these options.
fn rows(line: &[&str]) -> Vec<String> {
    let mut screen = ScreenState::new(&options(line));
    screen.arrange(&NodeData::new(sample_snapshot()));
    screen.rows
}

#[test]
fn the_most_serious_role_is_first_and_equal_roles_are_sorted_by_id() {
    assert_eq!(rows(&[]), ["web", "db", "VI_1", ROUTER]);
    assert_eq!(rows(&["--sort", "id"]), [ROUTER, "VI_1", "db", "web"]);
    assert_eq!(rows(&["--sort", "since"]), ["web", "VI_1", "db", ROUTER]);
}

#[test]
fn the_filter_finds_ids_namespaces_addresses_roles_and_details_in_any_case() {
    for (text, expected) in [
        ("vi_", vec!["VI_1"]),
        ("QROUTER", vec![ROUTER]),
        ("192.0.2.2", vec!["db"]),
        ("2001:db8", vec!["web"]),
        ("backup", vec![ROUTER]),
        ("no carrier", vec!["web"]),
        ("nothing like this", vec![]),
    ] {
        assert_eq!(rows(&[text]), expected, "{text}");
    }
    assert_eq!(rows(&["--role", "fault,partial"]), ["web", "db"]);
}

#[test]
fn the_selection_stays_on_its_instance_when_the_order_changes() {
    let data = NodeData::new(sample_snapshot());
    let mut screen = ScreenState::new(&options(&[]));
    screen.arrange(&data);
    screen.position.step(2);
    screen.choose();
    assert_eq!(screen.selected.as_deref(), Some("VI_1"));
    screen.is_reversed = true;
    screen.arrange(&data);
    assert_eq!((screen.position.selected, screen.selected.as_deref()), (1, Some("VI_1")));
}

#[test]
fn every_choice_of_roles_comes_once_and_then_all_again() {
    let mut screen = ScreenState::new(&options(&[]));
    let mut texts = Vec::new();
    for _ in 0..8 {
        texts.push(screen.roles_text());
        screen.next_roles();
    }
    let expected =
        ["all", "fault,unknown,partial", "fault", "unknown", "partial", "primary", "backup", "all"];
    assert_eq!(texts, expected);
}

#[test]
fn the_selected_row_is_always_visible() {
    let mut position = ListPosition::default();
    position.fit(0, 10);
    assert_eq!(position, ListPosition { selected: 0, first: 0 });
    position.step(isize::MAX);
    position.fit(100, 10);
    assert_eq!(position, ListPosition { selected: 99, first: 90 });
    position.step(-5);
    position.fit(100, 10);
    assert_eq!(position, ListPosition { selected: 94, first: 90 });
    position.step(isize::MIN);
    position.fit(100, 10);
    assert_eq!(position, ListPosition { selected: 0, first: 0 });
    // The terminal grows while the end of the list is visible.
    position.step(isize::MAX);
    position.fit(20, 5);
    position.fit(20, 15);
    assert_eq!(position, ListPosition { selected: 19, first: 5 });
}
