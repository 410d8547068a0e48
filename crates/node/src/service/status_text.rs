// SPDX-License-Identifier: Apache-2.0
//! The text that `systemctl status` shows: the number of instances with each role, and of findings.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vipwatch_api::RoleSummary;
use vipwatch_core::Moment;

use super::notify;
use crate::view::{self, ApiContext, ServiceKind};

/// Minimum time between two texts. During a failover of a thousand instances, the text changes with each of them.
const MIN_INTERVAL: Duration = Duration::from_secs(2);

/// Sends the status text to systemd when it has changed.
#[derive(Debug, Default)]
pub struct StatusText {
    sent: String,
    /// The earliest time of the next text; `None` before the first one.
    next: Option<Moment>,
}

impl StatusText {
    /// Sends the text if it has changed, at most every two seconds. A change that comes earlier is sent by a later call.
    pub fn update(&mut self, context: &ApiContext, now: Moment) {
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now + MIN_INTERVAL);
        let text = match context.service.kind {
            ServiceKind::Node => {
                let findings = context.store.counters.open_findings.load(Ordering::Relaxed);
                of_node(&view::role_summary(&context.store.view()), findings)
            }
            ServiceKind::Receiver => of_receiver(context),
        };
        if text != self.sent {
            notify(&format!("STATUS={text}"));
            self.sent = text;
        }
    }
}

fn of_node(roles: &RoleSummary, findings: u64) -> String {
    let counts = [
        (roles.fault, "fault"),
        (roles.unknown, "unknown"),
        (roles.partial, "partial"),
        (roles.primary, "primary"),
        (roles.backup, "backup"),
    ];
    let mut text = list(roles.instances, "instance", &counts);
    let _ = match findings {
        0 => write!(text, "; no findings"),
        1 => write!(text, "; 1 finding"),
        many => write!(text, "; {many} findings"),
    };
    text
}

/// The routers by the state that their monitors have reported last.
fn of_receiver(context: &ApiContext) -> String {
    let receiver = context.receiver_handle.status();
    let Some(Ok(view)) = receiver.as_ref().map(|receiver| receiver.view.lock()) else {
        return "no receiver".to_owned();
    };
    let mut states: Vec<(u64, &str)> = Vec::new();
    for report in view.instances.values() {
        let state = report.state.as_str();
        match states.iter_mut().find(|(_, known)| *known == state) {
            Some((count, _)) => *count += 1,
            None => states.push((1, state)),
        }
    }
    states.sort_unstable_by_key(|(_, state)| std::cmp::Reverse(*state));
    let mut text = list(view.instances.len() as u64, "router", &states);
    let _ = match view.problems.len() {
        0 => write!(text, "; no problems"),
        1 => write!(text, "; 1 problem"),
        many => write!(text, "; {many} problems"),
    };
    text
}

/// `3 instances: 2 primary, 1 backup`; counts of zero are left out.
fn list(total: u64, noun: &str, counts: &[(u64, &str)]) -> String {
    match total {
        0 => return format!("no {noun}s"),
        1 => {}
        many => {
            let shown = counts.iter().filter(|(count, _)| *count > 0);
            let shown: Vec<_> = shown.map(|(count, word)| format!("{count} {word}")).collect();
            return format!("{many} {noun}s: {}", shown.join(", "));
        }
    }
    let word = counts.iter().find(|(count, _)| *count > 0).map_or("", |(_, word)| word);
    format!("1 {noun}: {word}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_roles_that_occur_and_the_findings() {
        let none = RoleSummary::default();
        assert_eq!(of_node(&none, 0), "no instances; no findings");
        let one = RoleSummary { instances: 1, primary: 1, ..none };
        assert_eq!(of_node(&one, 1), "1 instance: primary; 1 finding");
        let many = RoleSummary { instances: 1000, primary: 480, backup: 519, fault: 1, ..none };
        let text = "1000 instances: 1 fault, 480 primary, 519 backup; 2 findings";
        assert_eq!(of_node(&many, 2), text);
    }
}
