//! A seeded random run on a real namespace, beside an independent recorder.

use ipnet::IpNet;
use rustix::process::Signal;
use vipwatch_testkit::agent::Leftover;
use vipwatch_testkit::{Agent, Manner, Recorder, Release, wait_for};

use crate::{stage, subject};

/// `SplitMix64`: the same seed, the same run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// Adds, removes, refreshes, noise, a stopped reader, an agent that goes and comes: in the
/// end file and agent say what the kernel holds, and on the way no word that it never held.
fn random_run(seed: u64) {
    let (lab, router, agent) = stage(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let mut agent = Some(agent);
    let (hand, link) = router.hand();
    let vip: IpNet = router.cidr.parse().unwrap();
    let mut recorder = Recorder::start(&router.netns, link, vip);
    let mut dice = Dice(seed);
    let mut is_held = false;
    let mut is_stopped = false;
    let mut noise = Vec::new();
    for step in 0..400_u32 {
        match dice.roll(20) {
            0..=6 if is_held => {
                hand.remove(link, vip);
                is_held = false;
            }
            0..=6 => {
                hand.add(link, vip);
                is_held = true;
            }
            7..=9 if is_held => hand.refresh(link, vip),
            10..=14 => {
                let other: IpNet =
                    format!("10.{}.{}.9/32", step / 200, step % 200).parse().unwrap();
                hand.add(link, other);
                noise.push(other);
            }
            15..=16 => {
                if let Some(other) = noise.pop() {
                    hand.remove(link, other);
                }
            }
            17 => {
                monitor.signal(if is_stopped { Signal::CONT } else { Signal::STOP });
                is_stopped = !is_stopped;
            }
            18 => match agent.take() {
                Some(gone) => gone.stop(if dice.roll(2) == 0 {
                    Leftover::Nothing
                } else {
                    Leftover::DeadSocket
                }),
                None => agent = Some(Agent::listen(lab.path(), Manner::Threaded)),
            },
            _ => {}
        }
    }
    monitor.signal(Signal::CONT);
    let agent = agent.unwrap_or_else(|| Agent::listen(lab.path(), Manner::Threaded));
    assert_eq!(recorder.catch_up(), is_held, "seed {seed}: the recorder and the hand disagree");
    let word = if is_held { "primary" } else { "backup" };
    wait_for(&format!("seed {seed}: the end; log:\n{}", router.log()), || {
        let told = agent.words().last().cloned();
        (router.state().as_deref() == Some(word) && told.as_deref() == Some(word)).then_some(())
    });
    // No spurious transition: the log alternates, and never has more changes than there were.
    let log = router.log();
    let said: Vec<bool> = log
        .lines()
        .filter_map(|line| line.split(&format!("Router {} is ", router.id)).nth(1))
        .map(|rest| rest.starts_with("primary"))
        .skip(1)
        .collect();
    assert!(said.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}: {log}");
    assert!(
        said.len() <= recorder.changes.len(),
        "seed {seed}: {} of {}",
        said.len(),
        recorder.changes.len()
    );
    assert!(!log.contains("disagreed"), "seed {seed}: {log}");
}

#[test]
fn random_runs_end_in_the_truth() {
    for seed in 1..=6 {
        random_run(seed);
    }
}
