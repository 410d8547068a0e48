// SPDX-License-Identifier: Apache-2.0
//! `vipwatch top` gives the terminal back: at signals, after a panic, and if there is no terminal at all.

use rustix::process::{Pid, Signal, kill_process};
use vipwatch_testkit::{Lab, NodeFixture, PtyProcess, wait_for};

use crate::support::{fixture_with, node_fixture, vi_1_conf};
use crate::top::{start_top, top_command};

fn send(top: &PtyProcess, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(top.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Whether the screen that the shell had before is shown, with its cursor.
fn is_restored(top: &mut PtyProcess) -> bool {
    let screen = top.screen();
    !screen.alternate_screen() && !screen.hide_cursor()
}

/// Whether the process is stopped, as `/proc` shows it.
fn is_stopped(top: &PtyProcess) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", top.pid())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

fn started(fixture: &NodeFixture) -> PtyProcess {
    let mut top = start_top(fixture, &[]);
    top.wait_for("VI_1");
    top
}

#[test]
fn a_signal_that_ends_top_restores_the_terminal() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = started(&fixture);
        send(&top, signal);
        assert!(top.end().success(), "{signal:?}");
        assert!(is_restored(&mut top), "{signal:?}");
    }
}

#[test]
fn a_stopped_top_gives_the_terminal_back_and_draws_again_when_it_continues() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    let mut top = started(&fixture);
    send(&top, Signal::TSTP);
    wait_for("a stopped process", || is_stopped(&top).then_some(()));
    assert!(is_restored(&mut top));
    send(&top, Signal::CONT);
    wait_for("the screen", || top.screen().alternate_screen().then_some(()));
    top.wait_for("VI_1");
    // Ctrl-Z does the same: the terminal passes the key on and does not stop the process itself.
    top.press("\u{1a}");
    wait_for("a stopped process", || is_stopped(&top).then_some(()));
    assert!(is_restored(&mut top));
    send(&top, Signal::CONT);
    top.wait_for("VI_1");
    top.press("\u{3}");
    assert!(top.end().success());
    assert!(is_restored(&mut top));
}

#[test]
fn a_panic_in_any_thread_restores_the_terminal_before_its_message() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    for thread in ["top-events", "top-requests", "top-keys"] {
        let mut command = top_command(&fixture, &[]);
        command.env("VIPWATCH_TEST_PANIC", thread);
        let mut top = PtyProcess::start(&command, 80, 24);
        assert_eq!(top.end().code(), Some(101), "{thread}");
        assert!(is_restored(&mut top), "{thread}");
        let message = top.text();
        assert!(message.contains("a panic that a test has asked for"), "{message}");
    }
}

#[test]
fn a_terminal_that_hangs_up_ends_top() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    let mut top = started(&fixture);
    top.hang_up();
    top.end();
}

#[test]
fn without_a_terminal_that_can_draw_top_says_what_to_do() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    let output = fixture.run(&["top"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("top needs a terminal") && errors.contains("--once"), "{errors}");
    let mut command = top_command(&fixture, &[]);
    command.env("TERM", "dumb");
    let mut top = PtyProcess::start(&command, 80, 24);
    assert_eq!(top.end().code(), Some(2));
    let text = top.text();
    assert!(text.contains("TERM is dumb") && text.contains("--once"), "{text}");
}

#[test]
fn without_a_node_top_ends_with_the_usual_error() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let mut top = start_top(&fixture, &[]);
    assert_eq!(top.end().code(), Some(6));
    let text = top.text();
    assert!(text.contains("no vipwatch node is listening on"), "{text}");
    assert!(!String::from_utf8_lossy(top.written()).contains("\u{1b}[?1049h"), "{text}");
}
