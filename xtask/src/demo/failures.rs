// SPDX-License-Identifier: Apache-2.0
//! Causes failures and repairs them, until the user ends the demo.

use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};

use super::screen::Screen;
use super::{DemoNode, Line, NAMES};

/// Time between two failures.
const FAILURE_INTERVAL: Duration = Duration::from_secs(6);

/// Time between two queries of the roles, which the table on the screen shows.
const QUERY_INTERVAL: Duration = Duration::from_millis(500);

/// The running demo.
pub struct Demo<'a> {
    pub nodes: &'a mut [DemoNode],
    pub switch: &'a BridgeSwitch,
    pub screen: &'a mut Screen,
    pub lines: Receiver<Line>,
    pub signals: Signals,
}

impl Demo<'_> {
    /// Causes failures until Ctrl-C or `limit`; returns whether it was Ctrl-C.
    pub fn cause_failures(&mut self, limit: Option<Duration>) -> bool {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut next_failure = Instant::now() + FAILURE_INTERVAL;
        let mut next_query = Instant::now();
        let mut failures = 0;
        while end.is_none_or(|end| Instant::now() < end) {
            if self.wait(false) {
                return true;
            }
            let now = Instant::now();
            if now >= next_failure {
                next_failure = now + FAILURE_INTERVAL;
                repair(self.nodes, self.switch, self.screen);
                cause_failure(self.nodes, self.switch, failures, self.screen);
                failures += 1;
            }
            self.draw(&mut next_query);
        }
        false
    }

    /// Keeps the nodes running without failures until Enter or Ctrl-C.
    pub fn keep(&mut self) {
        repair(self.nodes, self.switch, self.screen);
        self.screen.keep();
        let mut next_query = Instant::now();
        while !self.wait(true) {
            self.draw(&mut next_query);
        }
    }

    /// Waits a little, and takes the lines of the nodes; returns whether the user ends the demo.
    fn wait(&mut self, ends_with_enter: bool) -> bool {
        let stdin = std::io::stdin();
        // Without a terminal, the input may have ended before the demo began.
        let has_keys = ends_with_enter && std::io::IsTerminal::is_terminal(&stdin);
        let signals = PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN);
        let mut waiting = vec![signals];
        waiting.extend(has_keys.then(|| PollFd::new(&stdin, PollFlags::IN)));
        let _ = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
        let has_key = waiting.get(1).is_some_and(|stdin| !stdin.revents().is_empty());
        for (number, line) in self.lines.try_iter() {
            self.screen.add(self.nodes[number].name, &line);
        }
        has_key || self.signals.read() == Some(Signal::Stop)
    }

    fn draw(&mut self, next_query: &mut Instant) {
        if self.screen.is_terminal() && Instant::now() >= *next_query {
            *next_query = Instant::now() + QUERY_INTERVAL;
            self.nodes.iter_mut().for_each(DemoNode::query_roles);
        }
        self.screen.draw(self.nodes);
    }
}

/// Repairs the last failure.
fn repair(nodes: &mut [DemoNode], switch: &BridgeSwitch, screen: &mut Screen) {
    for node in nodes.iter_mut() {
        if node.keepalived.is_none() {
            screen.add_action(node.name, "keepalived is started again");
            let keepalived = Keepalived::start_with(&node.netns, node.lab.path(), &node.config);
            node.keepalived = Some(keepalived);
        }
        if std::mem::take(&mut node.is_cut) {
            screen.add_action(node.name, "the cable is plugged in again");
            switch.reconnect(&node.port);
        }
    }
}

/// Causes the next failure: in turn a stopped keepalived and a cut cable, on one node after the other.
fn cause_failure(
    nodes: &mut [DemoNode],
    switch: &BridgeSwitch,
    failures: usize,
    screen: &mut Screen,
) {
    let node = &mut nodes[failures / 2 % NAMES.len()];
    if failures.is_multiple_of(2) {
        screen.add_action(node.name, "keepalived is stopped");
        if let Some(keepalived) = node.keepalived.take() {
            keepalived.stop();
        }
    } else {
        screen.add_action(node.name, "the cable is cut");
        switch.disconnect(&node.port);
        node.is_cut = true;
    }
}
