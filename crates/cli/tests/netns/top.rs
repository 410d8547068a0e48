// SPDX-License-Identifier: Apache-2.0
//! `vipwatch top` on a pseudo-terminal: what its screen shows, and what its keys do.

use std::process::Command;
use std::time::Duration;

use vipwatch_testkit::{Lab, NodeFixture, PtyProcess, stays, wait_for};

use crate::support::{
    ADD_VIP, PROGRAM, REMOVE_VIP, fixture_with, instance_conf, node_fixture, vi_1_conf,
    wait_for_role, write,
};

/// Starts `vipwatch top` on a terminal of 80 columns and 24 rows.
pub(crate) fn start_top(fixture: &NodeFixture, args: &[&str]) -> PtyProcess {
    PtyProcess::start(&top_command(fixture, args), 80, 24)
}

pub(crate) fn top_command(fixture: &NodeFixture, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("top").args(args).arg("--socket").arg(fixture.socket());
    command
}

/// The words of the row of an instance; empty if it is not on the screen.
fn row(screen: &str, id: &str) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows = screen.lines().map(|line| words(line.trim_start_matches('>')));
    rows.into_iter().find(|words| words.get(2).is_some_and(|word| word == id)).unwrap_or_default()
}

#[test]
fn a_failover_appears_without_a_key_and_its_detail_has_the_stopwatch() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    let mut top = start_top(&fixture, &[]);
    let screen = top.wait_for_text("a backup", |screen| {
        row(screen, "VI_1").get(1).is_some_and(|role| role == "backup")
    });
    assert!(screen.lines().next().unwrap().contains("  live"), "{screen}");
    assert!(top.screen().alternate_screen());
    netns.ip(ADD_VIP);
    let screen = top.wait_for_text("a primary", |screen| {
        row(screen, "VI_1").first().is_some_and(|letter| letter == "P")
    });
    assert!(screen.contains("1 instance: 1 primary"), "{screen}");
    assert_eq!(row(&screen, "VI_1")[3], netns.name(), "{screen}");
    top.resize(100, 40);
    // LIMIT: crossterm 0.29 loses a key that arrives together with a change of the size, until the next key.
    top.wait_for_text("a frame of the new size", |screen| {
        screen.lines().nth(39).is_some_and(|line| line.contains("q quit"))
    });
    top.press("\r");
    top.wait_for("last transition: backup → primary");
    let screen = top.wait_for("192.0.2.9/24 on eth0: held");
    assert!(screen.contains("  kernel       0.00 ms"), "{screen}");
    let bar = screen.lines().find(|line| line.starts_with('b') && line.contains("bP"));
    assert!(bar.is_some(), "the timeline has both roles:\n{screen}");
    // The detail is live, too.
    netns.ip(REMOVE_VIP);
    top.wait_for("last transition: primary → backup");
    top.press("h");
    top.wait_for("VI_1  primary → backup");
    top.press("q");
    assert!(top.end().success());
    assert!(!top.screen().alternate_screen() && !top.screen().hide_cursor());
}

#[test]
fn the_terminal_shows_the_frame_that_once_prints() {
    let lab = Lab::new();
    let instances =
        ["VI_1", "VI_2", "VI_3"].map(|name| instance_conf(name, "eth0", &["192.0.2.9/24"]));
    let (_netns, fixture) = fixture_with(&lab, &instances);
    let _node = fixture.start();
    let mut top = start_top(&fixture, &["--sort", "id"]);
    top.wait_for("VI_3");
    // Ages differ while a second passes between the two.
    wait_for("equal screens", || {
        let args = ["top", "--once", "--sort", "id", "--width", "80", "--height", "24"];
        let printed = fixture.run(&args).stdout;
        (String::from_utf8_lossy(&printed) == top.text()).then_some(())
    });
}

#[test]
fn a_filter_and_a_new_size_change_the_screen() {
    let lab = Lab::new();
    let instances = ["VI_1", "VI_2"].map(|name| instance_conf(name, "eth0", &["192.0.2.9/24"]));
    let (_netns, fixture) = fixture_with(&lab, &instances);
    let _node = fixture.start();
    let mut top = start_top(&fixture, &[]);
    top.wait_for("VI_2");
    top.press("/_1");
    let screen = top.wait_for("1 shown");
    assert!(screen.contains("filter: _1") && row(&screen, "VI_2").is_empty(), "{screen}");
    // The frame and the cursor are two writes.
    wait_for("a cursor in the filter", || (!top.screen().hide_cursor()).then_some(()));
    top.press("\r\u{1b}");
    top.wait_for_text("both", |screen| !row(screen, "VI_2").is_empty());
    top.resize(50, 12);
    let screen = top.wait_for_text("a narrow table", |screen| {
        screen.contains("AGE") && !screen.contains("NETNS") && screen.contains("VI_2")
    });
    assert_eq!(screen.lines().count(), 12);
    top.resize(20, 4);
    top.wait_for("terminal too small");
    top.resize(120, 30);
    top.wait_for_text("the table", |screen| screen.contains("NETNS") && screen.contains("VI_2"));
}

#[test]
fn a_new_instance_appears_and_a_removed_one_disappears() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    let mut top = start_top(&fixture, &[]);
    top.wait_for("VI_1");
    let other = instance_conf("VI_2", "eth0", &["192.0.2.20/24"]);
    write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{other}", netns.name()));
    let screen = top.wait_for_text("only the new instance", |screen| {
        row(screen, "VI_1").is_empty() && !row(screen, "VI_2").is_empty()
    });
    assert_eq!(row(&screen, "VI_2")[1], "backup");
}

#[test]
fn a_screen_is_stale_without_a_node_and_live_after_its_restart() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let node = fixture.start();
    let mut top = start_top(&fixture, &[]);
    top.wait_for("VI_1");
    assert!(node.stop().success());
    let screen = top.wait_for("STALE since");
    assert_eq!(row(&screen, "VI_1")[1], "backup", "the last state stays on the screen");
    netns.ip(ADD_VIP);
    let _node = fixture.start();
    let screen = top.wait_for_text("the new state", |screen| {
        row(screen, "VI_1").get(1).is_some_and(|role| role == "primary")
    });
    assert!(!screen.contains("STALE"), "{screen}");
    netns.ip(REMOVE_VIP);
    top.wait_for_text("an event of the new node", |screen| {
        row(screen, "VI_1").get(1).is_some_and(|role| role == "backup")
    });
}

#[test]
fn an_idle_screen_writes_nothing() {
    let lab = Lab::new();
    let fixture = node_fixture(&lab);
    let _node = fixture.start();
    let mut top = start_top(&fixture, &[]);
    top.wait_for("there are no instances on this node");
    top.press("?");
    top.wait_for("this page");
    let before = top.written().len();
    // Several times the interval at which the screen is compared with the clock.
    stays(Duration::from_secs(3), "no output", || top.written().len() == before);
}

#[test]
fn colours_are_absent_with_no_color_and_present_otherwise() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let _node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    let has_colours = |command: &Command| {
        let mut top = PtyProcess::start(command, 80, 24);
        top.wait_for("b backup");
        let screen = top.screen();
        let cells = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
        cells.into_iter().any(|(row, column)| {
            screen.cell(row, column).is_some_and(|cell| cell.fgcolor() != vt100::Color::Default)
        })
    };
    assert!(has_colours(&top_command(&fixture, &[])));
    assert!(!has_colours(&top_command(&fixture, &["--color", "never"])));
    let mut without = top_command(&fixture, &[]);
    without.env("NO_COLOR", "1");
    assert!(!has_colours(&without));
    let mut always = top_command(&fixture, &["--color", "always"]);
    always.env("NO_COLOR", "1");
    assert!(has_colours(&always));
}
