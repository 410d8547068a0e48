// SPDX-License-Identifier: Apache-2.0
//! The exact command line of each release, from the first start to the second.

use std::path::PathBuf;

use rustix::process::Signal;
use vipwatch_testkit::{Lab, Release, script};

use crate::{fixture, subject};

/// The program for a release. Release 16 starts it exactly as 17 does but expects another word, which the
/// operator configures.
fn program(lab: &Lab, release: Release) -> PathBuf {
    if release != Release::V16 {
        return subject();
    }
    let etc = lab.path().join("etc");
    std::fs::create_dir_all(etc.join("neutron")).unwrap();
    let file = etc.join("neutron/neutron-keepalived-state-change.conf");
    let mut file = std::fs::File::create(file).unwrap();
    std::io::Write::write_all(&mut file, b"[vipwatch]\nprimary_word = master\n").unwrap();
    // The script mounts its own /etc in its own mount namespace, so that the command line is unchanged.
    let path = lab.path().join("neutron-keepalived-state-change");
    let inner =
        format!("mount --bind {} /etc && exec {} \"$@\"", etc.display(), subject().display());
    script(&path, &format!("exec unshare --mount sh -c '{inner}' sh \"$@\""));
    path
}

/// Does what an agent does with a monitor: starts it, finds it active, receives its states, stops it, and starts it
/// again.
fn starts_finds_and_stops(release: Release) {
    let (lab, router, agent) = fixture(release);
    let program = program(&lab, release);
    let mut monitor = router.start(&program);
    assert!(monitor.is_active(&router.id), "the agent finds it by its command line");
    agent.wait_for_words(&["backup"]);
    assert_eq!(agent.requests()[0].router(), router.id);

    router.take_vip();
    router.wait_for_state(release.primary());
    agent.wait_for_word(release.primary());
    router.drop_vip();
    router.wait_for_state("backup");
    agent.wait_for_word("backup");

    monitor.signal(Signal::TERM);
    if release.removes_pid_file() {
        let _ = std::fs::remove_file(router.pid_file());
    }
    monitor.wait_until_gone();
    assert!(!router.pid_file().exists(), "the pid file is removed");

    let monitor = router.start(&program);
    assert!(monitor.is_active(&router.id));
}

macro_rules! releases {
    ($(fn $name:ident() = $release:ident;)*) => {
        $(#[test]
        fn $name() {
            starts_finds_and_stops(Release::$release);
        })*
    };
}

releases! {
    fn queens_12_starts_finds_and_stops_the_monitor() = V12;
    fn queens_12_0_6_starts_finds_and_stops_the_monitor() = V12_0_6;
    fn rocky_13_starts_finds_and_stops_the_monitor() = V13;
    fn rocky_13_0_3_starts_finds_and_stops_the_monitor() = V13_0_3;
    fn stein_14_0_0_starts_finds_and_stops_the_monitor() = V14_0_0;
    fn stein_14_0_1_starts_finds_and_stops_the_monitor() = V14_0_1;
    fn stein_14_0_2_starts_finds_and_stops_the_monitor() = V14_0_2;
    fn train_15_starts_finds_and_stops_the_monitor() = V15;
    fn ussuri_16_starts_finds_and_stops_the_monitor() = V16;
    fn victoria_17_starts_finds_and_stops_the_monitor() = V17;
    fn wallaby_18_starts_finds_and_stops_the_monitor() = V18;
    fn xena_19_starts_finds_and_stops_the_monitor() = V19;
    fn yoga_20_starts_finds_and_stops_the_monitor() = V20;
    fn zed_21_starts_finds_and_stops_the_monitor() = V21;
    fn antelope_22_starts_finds_and_stops_the_monitor() = V22;
    fn bobcat_23_starts_finds_and_stops_the_monitor() = V23;
    fn caracal_24_starts_finds_and_stops_the_monitor() = V24;
    fn dalmatian_25_starts_finds_and_stops_the_monitor() = V25;
    fn epoxy_26_starts_finds_and_stops_the_monitor() = V26;
    fn flamingo_27_starts_finds_and_stops_the_monitor() = V27;
    fn gazpacho_28_starts_finds_and_stops_the_monitor() = V28;
    fn release_29_starts_finds_and_stops_the_monitor() = V29;
}
