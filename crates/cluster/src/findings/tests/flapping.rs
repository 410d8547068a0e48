// SPDX-License-Identifier: Apache-2.0
//! Groups with a primary that changes again and again.

use super::*;
use crate::sample::role_key;

#[test]
fn six_changes_of_the_claimants_within_ten_minutes_are_flapping_until_the_time_is_over() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    let mut found = Vec::new();
    for _ in 0..3 {
        lab.role("a", Backup);
        found.extend(lab.pass(1.0));
        lab.role("a", Primary);
        found.extend(lab.pass(1.0));
    }
    assert_eq!(found, ["+flapping"]);
    assert_eq!(lab.pass(593.0), [""; 0]);
    assert_eq!(lab.pass(2.0), ["-flapping"]);
}

#[test]
fn a_node_that_is_lost_and_returns_is_not_flapping() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    for _ in 0..8 {
        lab.cluster.lose("a");
        assert_eq!(lab.pass(1.0), [""; 0]);
        lab.cluster.start("a");
        assert_eq!(lab.pass(1.0), [""; 0]);
    }
}

#[test]
fn roles_that_change_while_another_claimant_is_lost_are_flapping() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.cluster.lose("a");
    let mut found = lab.pass(5.0);
    for _ in 0..3 {
        lab.role("b", Primary);
        found.extend(lab.pass(1.0));
        lab.role("b", Backup);
        found.extend(lab.pass(1.0));
    }
    assert_eq!(found, ["+node-lost", "+flapping"]);
}

#[test]
fn slow_changes_are_not_flapping() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    for _ in 0..10 {
        lab.role("b", Primary);
        lab.role("a", Backup);
        assert_eq!(lab.pass(150.0), [""; 0]);
        lab.role("a", Primary);
        lab.role("b", Backup);
        assert_eq!(lab.pass(150.0), [""; 0]);
    }
}

#[test]
fn a_group_that_flaps_has_one_scheduled_evaluation() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    for _ in 0..200 {
        for role in [Backup, Primary] {
            lab.role("a", role);
            lab.pass(1.0);
            assert!(lab.evaluator.schedule.len() <= 1, "{:?}", lab.evaluator.schedule);
        }
    }
    assert_eq!(lab.pass(600.0), ["-flapping"]);
    assert_eq!(lab.evaluator.schedule.len(), 0);
}

#[test]
fn a_bucket_that_is_removed_has_no_scheduled_evaluation() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    assert_eq!(lab.evaluate(), [""; 0]);
    assert_eq!(lab.evaluator.schedule.len(), 1);
    for node in ["a", "b"] {
        lab.cluster.delete(&role_key(&vrid_51(), node, "VI_1"));
    }
    assert_eq!(lab.evaluate(), [""; 0]);
    assert_eq!(lab.evaluator.schedule.len(), 0);
}
