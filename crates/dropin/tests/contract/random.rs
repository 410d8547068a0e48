// SPDX-License-Identifier: Apache-2.0
//! Seeded random changes in a real namespace, compared with an independent recorder of the kernel's events.

use ipnet::IpNet;
use rustix::process::Signal;
use vipwatch_testkit::agent::SocketRemains;
use vipwatch_testkit::{
    AddressEditor, AddressRecorder, Behaviour, FakeAgent, Release, Router, wait_showing,
};

use crate::{fixture, subject};

/// A `SplitMix64` generator: the same seed gives the same run.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// Changes the links and addresses of a router, and keeps the expected result.
struct RouterChanges<'a> {
    router: &'a Router,
    editor: AddressEditor,
    /// The watched link, which may be renamed; `None` while it is deleted.
    link: Option<u32>,
    is_renamed: bool,
    has_vip: bool,
    vip: IpNet,
    /// Other addresses on the link.
    others: Vec<IpNet>,
}

impl<'a> RouterChanges<'a> {
    fn new(router: &'a Router) -> Self {
        let (editor, link) = router.editor();
        let vip = router.cidr.parse().unwrap();
        let others = Vec::new();
        Self { router, editor, link: Some(link), is_renamed: false, has_vip: false, vip, others }
    }

    fn is_primary(&self) -> bool {
        self.link.is_some() && !self.is_renamed && self.has_vip
    }

    fn toggle_vip(&mut self) {
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

    fn add_other(&mut self, number: u32) {
        let Some(link) = self.link else { return };
        let other = format!("10.{}.{}.9/32", number / 200, number % 200).parse().unwrap();
        self.editor.add(link, other);
        self.others.push(other);
    }

    fn remove_other(&mut self) {
        if let Some((link, other)) = self.link.zip(self.others.pop()) {
            self.editor.remove(link, other);
        }
    }

    /// Causes more events than the kernel queues. `read` is called regularly to empty the recorder's queue.
    fn overflow_queue(&self, mut read: impl FnMut()) {
        let Some(link) = self.link else { return };
        let other = "10.99.99.9/32".parse().unwrap();
        for number in 0..12_000 {
            self.editor.add(link, other);
            self.editor.remove(link, other);
            if number % 50 == 0 {
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
        self.others.clear();
    }
}

/// Makes random changes: addresses are added, removed and refreshed; links are deleted, created and renamed; the monitor
/// is stopped and loses events; the agent ends and starts again. At the end the state file and the agent have the state
/// of the kernel, and no state was reported that the kernel never had.
fn random_run(seed: u64) {
    let (lab, router, agent) = fixture(Release::V29);
    let monitor = router.start(&subject());
    agent.wait_for_words(&["backup"]);
    let mut agent = Some(agent);
    let mut changes = RouterChanges::new(&router);
    let mut recorder = AddressRecorder::start(&router.netns, &router.link, changes.vip);
    let mut random = RandomNumbers(seed);
    let mut is_stopped = false;
    for step in 0..400_u32 {
        match random.below(40) {
            0..=12 => changes.toggle_vip(),
            13..=17 => changes.refresh(),
            18..=26 => changes.add_other(step),
            27..=30 => changes.remove_other(),
            31 => changes.rename(),
            32 => changes.delete_or_create(),
            33..=34 => {
                monitor.signal(if is_stopped { Signal::CONT } else { Signal::STOP });
                is_stopped = !is_stopped;
            }
            35..=36 => match agent.take() {
                Some(running) => running.stop(if random.below(2) == 0 {
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
            if changes.link.is_none() {
                changes.delete_or_create();
            }
            changes.overflow_queue(|| {
                recorder.catch_up();
            });
            changes.toggle_vip();
            is_stopped = true;
        }
        // The queue of an ordinary user's socket is short.
        recorder.catch_up();
    }
    monitor.signal(Signal::CONT);
    let agent = agent.unwrap_or_else(|| FakeAgent::listen(lab.path(), Behaviour::Threaded));
    let is_primary = changes.is_primary();
    assert_eq!(
        recorder.catch_up(),
        is_primary,
        "seed {seed}: the recorder and the expected state differ"
    );
    let expected = if is_primary { "primary" } else { "backup" };
    let diagnostics = || format!("{:?}; log:\n{}", agent.words().last(), router.log());
    wait_showing(&format!("{expected} at the end, seed {seed}"), diagnostics, || {
        let sent = agent.words().last().cloned();
        (router.state().as_deref() == Some(expected) && sent.as_deref() == Some(expected))
            .then_some(())
    });
    router.wait_for_log("the kernel dropped events");
    check_history(seed, &router, &agent, recorder.changes.len());
}

/// Checks the logged and the sent states of a run with `changes` changes of state in the kernel.
fn check_history(seed: u64, router: &Router, agent: &FakeAgent, changes: usize) {
    // The logged states alternate, and there are no more of them than changes in the kernel.
    let log = router.log();
    let logged: Vec<bool> = log
        .lines()
        .filter_map(|line| line.split(&format!("Router {} is ", router.id)).nth(1))
        .map(|rest| rest.starts_with("primary"))
        .skip(1)
        .collect();
    assert!(logged.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}: {log}");
    assert!(logged.len() <= changes, "seed {seed}: {} of {changes}", logged.len());
    // Without repetitions, the states that the agent received alternate too.
    let mut words = agent.words();
    words.dedup();
    assert!(words.len() <= changes + 1, "seed {seed}: {words:?}");
    assert!(log.contains("the kernel dropped events"), "seed {seed}: {log}");
    assert!(!log.contains("disagreed"), "seed {seed}: {log}");
}

#[test]
fn after_random_changes_file_and_agent_have_the_state_of_the_kernel() {
    for seed in 1..=6 {
        random_run(seed);
    }
}
