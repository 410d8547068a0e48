//! Each release's exact command line, from start to respawn.

use rustix::process::Signal;
use vipwatch_testkit::Release;

use crate::{stage, subject};

/// What an agent does with a monitor in its life: start, find active, be told, stop,
/// start again.
fn lives_its_life(release: Release) {
    let (_lab, router, agent) = stage(release);
    let mut monitor = router.start(&subject());
    assert!(monitor.is_active(&router.id), "the agent finds it by its command line");
    agent.wait_for_words(&["backup"]);
    assert_eq!(agent.letters()[0].router(), router.id);

    router.take_vip();
    router.wait_for_state(release.primary());
    agent.wait_for_word(release.primary());
    router.drop_vip();
    router.wait_for_state("backup");
    agent.wait_for_word("backup");

    monitor.signal(Signal::TERM);
    monitor.wait_until_gone();
    assert!(!router.pid_file().exists(), "its pid file is gone with it");

    let monitor = router.start(&subject());
    assert!(monitor.is_active(&router.id));
}

#[test]
fn queens_12_starts_finds_hears_and_stops_it() {
    lives_its_life(Release::V12);
}

#[test]
fn stein_14_0_0_starts_finds_hears_and_stops_it() {
    lives_its_life(Release::V14_0_0);
}

#[test]
fn train_15_starts_finds_hears_and_stops_it() {
    lives_its_life(Release::V15);
}

#[test]
fn antelope_22_starts_finds_hears_and_stops_it() {
    lives_its_life(Release::V22);
}

#[test]
fn epoxy_26_starts_finds_hears_and_stops_it() {
    lives_its_life(Release::V26);
}

#[test]
fn release_29_starts_finds_hears_and_stops_it() {
    lives_its_life(Release::V29);
}

#[test]
fn ussuri_16_is_told_in_the_configured_word() {
    let (lab, router, agent) = stage(Release::V29);
    let config = lab.path().join("vipwatch.conf");
    std::io::Write::write_all(
        &mut std::fs::File::create(&config).unwrap(),
        b"[vipwatch]\nprimary_word = master\n",
    )
    .unwrap();
    router.take_vip();
    let mut command = router.command(&subject());
    command.arg("--config-file").arg(&config);
    let child = command.spawn().unwrap();
    agent.wait_for_words(&["master"]);
    router.wait_for_state("master");
    crate::reap(child);
}
