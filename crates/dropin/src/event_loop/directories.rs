// SPDX-License-Identifier: Apache-2.0
//! Watches two directories: the agent's socket appears in one, the name of the namespace is removed from the other.

use std::path::Path;
use std::time::Duration;

use vipwatch_core::Observation;
use vipwatch_linux::clock;
use vipwatch_linux::dnotify::DirectoryInterest;
use vipwatch_linux::netns::{DIRECTORY, NetnsId};

use super::EventLoop;
use crate::event::{Event, EventLog};

/// How long a monitor tries to notify the agent before it exits, after its namespace was removed.
const FINAL_NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

impl<L: EventLog> EventLoop<L> {
    /// Watches each directory that is not watched yet, or was replaced by another one. A missing directory is tried
    /// again in every audit; the retries of the outlets do not depend on it.
    pub(super) fn watch_directories(&mut self) {
        let agents = self.agent.path().parent().unwrap_or(Path::new("/"));
        if self.agent_directory.as_ref().is_none_or(|watched| !watched.is_at(agents)) {
            self.agent_directory =
                self.directories.watch(agents, DirectoryInterest::Additions).ok();
            // The kernel reported nothing about a socket that was created before the watch began.
            self.agent.socket_appeared();
        }
        let names = Path::new(DIRECTORY);
        if self.netns_directory.as_ref().is_none_or(|watched| !watched.is_at(names)) {
            self.netns_directory = self.directories.watch(names, DirectoryInterest::Removals).ok();
        }
    }

    pub(super) fn read_directories(&mut self) {
        if self.directories.has_changed() {
            self.agent.socket_appeared();
            if self.is_netns_removed() {
                self.leave_netns();
            }
        }
    }

    /// Whether the name of the namespace is gone or belongs to another namespace. If the name cannot be read, for
    /// example without permission, the namespace counts as present.
    pub(super) fn is_netns_removed(&self) -> bool {
        NetnsId::of_name(&self.netns.0).is_ok_and(|named| named != Some(self.netns.1))
    }

    /// Stops watching a namespace that was removed, publishes backup, and schedules the exit.
    pub(super) fn leave_netns(&mut self) {
        if self.exit_deadline.is_some() {
            return;
        }
        let now = clock::now();
        self.exit_deadline = Some(now + FINAL_NOTIFY_TIMEOUT);
        // Open sockets would keep the namespace, its links and its addresses in the kernel.
        self.timers = None;
        self.announcer = None;
        self.log.record(&Event::NamespaceRemoved);
        let observation = Observation::NamespaceRemoved;
        let change = self.tracker.as_mut().and_then(|tracker| tracker.apply(&observation, now));
        if let Some(change) = change {
            self.log.record(&Event::StateChanged(&change));
            self.publish(&change);
        }
    }
}
