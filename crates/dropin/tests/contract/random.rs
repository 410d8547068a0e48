//! A seeded random run on a real namespace, beside an independent recorder.

use ipnet::IpNet;
use rustix::process::Signal;
use vipwatch_testkit::agent::SocketRemains;
use vipwatch_testkit::{
    AddressEditor, AddressRecorder, Behaviour, FakeAgent, Release, Router, wait_showing,
};

use crate::{stage, subject};

/// `SplitMix64`: the same seed, the same run.
struct Jitter(u64);

impl Jitter {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// What the world can do to a router, and what it has done.
struct World<'a> {
    router: &'a Router,
    editor: AddressEditor,
    /// The watched link, or what was the watched link, by whatever name.
    link: Option<u32>,
    is_renamed: bool,
    has_vip: bool,
    vip: IpNet,
    noise: Vec<IpNet>,
}

impl<'a> World<'a> {
    fn new(router: &'a Router) -> Self {
        let (editor, link) = router.editor();
        let vip = router.cidr.parse().unwrap();
        let noise = Vec::new();
        Self { router, editor, link: Some(link), is_renamed: false, has_vip: false, vip, noise }
    }

    fn is_primary(&self) -> bool {
        self.link.is_some() && !self.is_renamed && self.has_vip
    }

    fn move_vip(&mut self) {
        let Some(link) = self.link else { return };
        if self.has_vip {
            self.editor.remove(link, self.vip);
        } else {
            self.editor.add(link, self.vip);
        }
        self.has_vip = !self.has_vip;
    }

    fn refresh(&self) {
        if let Some(link) = self.link.filter(|_| self.has_vip) {
            self.editor.refresh(link, self.vip);
        }
    }

    fn make_noise(&mut self, number: u32) {
        let Some(link) = self.link else { return };
        let other = format!("10.{}.{}.9/32", number / 200, number % 200).parse().unwrap();
        self.editor.add(link, other);
        self.noise.push(other);
    }

    fn end_noise(&mut self) {
        if let Some((link, other)) = self.link.zip(self.noise.pop()) {
            self.editor.remove(link, other);
        }
    }

    /// More events than any queue holds, unless it is read meanwhile.
    fn storm(&self, mut read: impl FnMut()) {
        let Some(link) = self.link else { return };
        let other = "10.99.99.9/32".parse().unwrap();
        for turn in 0..12_000 {
            self.editor.add(link, other);
            self.editor.remove(link, other);
            if turn % 50 == 0 {
                read();
            }
        }
    }

    fn rename(&mut self) {
        let Router { netns, link: name, .. } = self.router;
        if self.link.is_none() {
            return;
        }
        let (from, to) =
            if self.is_renamed { ("away", name.as_str()) } else { (name.as_str(), "away") };
        netns.ip(&format!("link set {from} down"));
        netns.ip(&format!("link set {from} name {to}"));
        netns.ip(&format!("link set {to} up"));
        self.is_renamed = !self.is_renamed;
    }

    fn delete_or_create(&mut self) {
        let Router { netns, link: name, .. } = self.router;
        if self.link.take().is_some() {
            netns.ip(&format!("link del {}", if self.is_renamed { "away" } else { name }));
        } else {
            netns.add_link(name);
            self.link = Some(self.editor.link(name));
        }
        (self.is_renamed, self.has_vip) = (false, false);
        self.noise.clear();
    }
}

/// Adds, removes, refreshes, noise, links that go, come and change their names, a stopped
/// reader, lost events, an agent that goes and comes: in the end file and agent say what the
/// kernel holds, and on the way nothing that it never held.
fn random_run(seed: u64) {
    let (lab, router, agent) = stage(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let mut agent = Some(agent);
    let mut world = World::new(&router);
    let mut recorder = AddressRecorder::start(&router.netns, &router.link, world.vip);
    let mut dice = Jitter(seed);
    let mut is_stopped = false;
    for step in 0..400_u32 {
        match dice.roll(40) {
            0..=12 => world.move_vip(),
            13..=17 => world.refresh(),
            18..=26 => world.make_noise(step),
            27..=30 => world.end_noise(),
            31 => world.rename(),
            32 => world.delete_or_create(),
            33..=34 => {
                monitor.signal(if is_stopped { Signal::CONT } else { Signal::STOP });
                is_stopped = !is_stopped;
            }
            35..=36 => match agent.take() {
                Some(gone) => gone.stop(if dice.roll(2) == 0 {
                    SocketRemains::Nothing
                } else {
                    SocketRemains::DeadSocket
                }),
                None => agent = Some(FakeAgent::listen(lab.path(), Behaviour::Threaded)),
            },
            _ => {}
        }
        if step == 200 {
            monitor.signal(Signal::STOP);
            if world.link.is_none() {
                world.delete_or_create();
            }
            world.storm(|| {
                recorder.catch_up();
            });
            world.move_vip();
            is_stopped = true;
        }
        // An ordinary user's queue is short.
        recorder.catch_up();
    }
    monitor.signal(Signal::CONT);
    let agent = agent.unwrap_or_else(|| FakeAgent::listen(lab.path(), Behaviour::Threaded));
    let is_primary = world.is_primary();
    assert_eq!(recorder.catch_up(), is_primary, "seed {seed}: the recorder and the hand disagree");
    let expected = if is_primary { "primary" } else { "backup" };
    let diagnostics = || format!("{:?}; log:\n{}", agent.words().last(), router.log());
    wait_showing(&format!("{expected} in the end, seed {seed}"), diagnostics, || {
        let told = agent.words().last().cloned();
        (router.state().as_deref() == Some(expected) && told.as_deref() == Some(expected))
            .then_some(())
    });
    // No spurious transition: the log alternates, and never has more changes than there were.
    router.wait_for_log("the kernel dropped events");
    let log = router.log();
    let said: Vec<bool> = log
        .lines()
        .filter_map(|line| line.split(&format!("Router {} is ", router.id)).nth(1))
        .map(|rest| rest.starts_with("primary"))
        .skip(1)
        .collect();
    assert!(said.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}: {log}");
    let changes = recorder.changes.len();
    assert!(said.len() <= changes, "seed {seed}: {} of {changes}", said.len());
    // In order: with confirmations and repetitions taken together, the words take turns too.
    let mut words = agent.words();
    words.dedup();
    assert!(words.len() <= changes + 1, "seed {seed}: {words:?}");
    assert!(log.contains("the kernel dropped events"), "seed {seed}: {log}");
    assert!(!log.contains("disagreed"), "seed {seed}: {log}");
}

#[test]
fn random_runs_end_in_the_truth() {
    for seed in 1..=6 {
        random_run(seed);
    }
}
