// SPDX-License-Identifier: Apache-2.0
//! One attempt to deliver one or several notifications to a target.
//!
//! A server that rejects the content of a batch ([`PostError::is_about_content`]) gets it divided until the rejected
//! notifications are found. Only those are given up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;
use vipwatch_api::{BatchDocument, NotificationBody, NotificationDocument, Schema, StatesDocument};
use vipwatch_core::ErrorChain;
use vipwatch_core::notification::AttemptResult;
use vipwatch_history::DeliverySource;

use super::notification::Notification;
use super::post::{PostClient, PostError};
use super::target::TargetSettings;
use super::{hook, ipv6};
use crate::config::{Target, Webhook};
use crate::event::NodeIdentity;
use crate::event::time;
use crate::hook_runner::client::HookRunner;

/// A notification that is being delivered.
#[derive(Debug, Clone)]
pub(super) struct OutgoingEvent {
    pub(super) notification: Arc<dyn Notification>,
    /// Number of lost notifications that the target must be informed of.
    pub(super) missed: u32,
}

/// The result for one notification.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    pub(super) result: AttemptResult,
    /// `None` after a success.
    pub(super) error: Option<String>,
}

impl Attempt {
    pub(super) const DELIVERED: Self = Self { result: AttemptResult::Delivered, error: None };
}

/// Delivers to one target.
#[derive(Debug)]
pub(super) struct Sender {
    client: PostClient,
    identity: NodeIdentity,
    hook_runner: Arc<HookRunner>,
}

impl Sender {
    pub(super) fn new(identity: NodeIdentity, hook_runner: Arc<HookRunner>) -> Self {
        Self { client: PostClient::default(), identity, hook_runner }
    }

    /// Reads the certificates of an address now, so that they are known if the file disappears. A failure is reported
    /// at the first delivery.
    pub(super) fn prepare(&self, settings: &TargetSettings) {
        let target = match settings {
            TargetSettings::Webhook(webhook) => &webhook.target,
            TargetSettings::Upstream(upstream) => &upstream.target,
            TargetSettings::Hook(_) | TargetSettings::Ipv6(_) => return,
        };
        let _ = self.client.prepare(target);
    }

    /// Delivers `events`, of which there are several only for a target with batches; returns the result for each.
    /// `may_divide` is false while the process shuts down: the next process delivers the batch again.
    pub(super) fn deliver(
        &self,
        settings: &TargetSettings,
        events: &[OutgoingEvent],
        may_divide: &dyn Fn() -> bool,
    ) -> Vec<Attempt> {
        match settings {
            TargetSettings::Hook(hook) => {
                let run = |event: &OutgoingEvent| {
                    let document = self.document(event);
                    hook::deliver(&self.hook_runner, hook, &*event.notification, &document)
                };
                events.iter().map(run).collect()
            }
            TargetSettings::Ipv6(state_path) => {
                events.iter().map(|event| ipv6::deliver(&*event.notification, state_path)).collect()
            }
            TargetSettings::Webhook(webhook) => {
                let post = |part: &[OutgoingEvent]| self.post_notifications(webhook, part);
                let after = |error: &PostError| {
                    if error.may_pass() { AttemptResult::Failed } else { AttemptResult::Rejected }
                };
                divide(events, may_divide, post, after)
            }
            TargetSettings::Upstream(upstream) => {
                let post = |part: &[OutgoingEvent]| self.post(&upstream.target, &self.states(part));
                // A wrong token or path may be corrected: only content that the server rejects is given up.
                let after = |error: &PostError| {
                    let is_rejected = error.is_about_content();
                    if is_rejected { AttemptResult::Rejected } else { AttemptResult::Failed }
                };
                divide(events, may_divide, post, after)
            }
        }
    }

    fn document(&self, event: &OutgoingEvent) -> NotificationDocument {
        let body = event.notification.body(&self.identity);
        NotificationDocument { body, missed: event.missed }
    }

    fn post_notifications(
        &self,
        webhook: &Webhook,
        part: &[OutgoingEvent],
    ) -> Result<(), PostError> {
        match part {
            [event] if webhook.batch.is_none() => self.post(&webhook.target, &self.document(event)),
            part => self.post(&webhook.target, &self.batch(part)),
        }
    }

    fn post(&self, target: &Target, document: &impl Serialize) -> Result<(), PostError> {
        let body = serde_json::to_string(document).unwrap_or_default();
        self.client.send(target, &body)
    }

    fn batch(&self, part: &[OutgoingEvent]) -> BatchDocument {
        BatchDocument {
            schema: Schema::Batch,
            node: self.identity.node.to_string(),
            epoch: self.identity.epoch.to_string(),
            count: part.len(),
            summary: summary(part),
            notifications: part.iter().map(|event| self.document(event)).collect(),
        }
    }

    fn states(&self, part: &[OutgoingEvent]) -> StatesDocument {
        let bodies = part.iter().map(|event| event.notification.body(&self.identity));
        let states = bodies.filter_map(|body| match body {
            NotificationBody::Report(report) => Some((report.id, report.state)),
            NotificationBody::Transition(_)
            | NotificationBody::Removed(_)
            | NotificationBody::Finding(_) => None,
        });
        StatesDocument {
            schema: Schema::States,
            node: self.identity.node.to_string(),
            epoch: self.identity.epoch.to_string(),
            source: DeliverySource::Receiver.as_str().to_owned(),
            at: time(SystemTime::now()),
            seq: part.iter().map(|event| event.notification.seq()).max().unwrap_or(0),
            summary: summary(part),
            states: states.collect(),
        }
    }
}

/// The number of notifications by event.
fn summary(part: &[OutgoingEvent]) -> BTreeMap<String, u64> {
    let mut summary = BTreeMap::new();
    for event in part {
        *summary.entry(event.notification.kind().as_str().to_owned()).or_default() += 1;
    }
    summary
}

/// Posts `events` with `post`, divided while the server rejects their content. `after` is the result that follows from
/// an error that concerns all notifications of a request.
fn divide(
    events: &[OutgoingEvent],
    may_divide: &dyn Fn() -> bool,
    post: impl Fn(&[OutgoingEvent]) -> Result<(), PostError>,
    after: impl Fn(&PostError) -> AttemptResult,
) -> Vec<Attempt> {
    let mut attempts = Vec::with_capacity(events.len());
    let mut parts = vec![events];
    while let Some(part) = parts.pop() {
        let Err(error) = post(part) else {
            attempts.extend(vec![Attempt::DELIVERED; part.len()]);
            continue;
        };
        if error.is_about_content() && part.len() > 1 && may_divide() {
            let (first, second) = part.split_at(part.len() / 2);
            parts.extend([second, first]);
            continue;
        }
        let is_single = part.len() == 1;
        let result = match after(&error) {
            // An undivided batch: the rejected notification is not known.
            AttemptResult::Rejected if error.is_about_content() && !is_single => {
                AttemptResult::Failed
            }
            result => result,
        };
        let failed = Attempt { result, error: Some(ErrorChain(&error).to_string()) };
        attempts.extend(vec![failed.clone(); part.len()]);
        if !is_single || result == AttemptResult::Failed {
            // The server cannot be reached, or accepts nothing: the other parts would fail as well.
            let left = events.len() - attempts.len();
            attempts.extend(vec![failed; left]);
            break;
        }
    }
    attempts
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::notify::notification::RecordedTransition;

    fn events(count: i64) -> Vec<OutgoingEvent> {
        let event = |seq: i64| {
            let record = vipwatch_history::Record {
                seq,
                at: 0,
                instance: format!("i{seq}"),
                netns: None,
                from: None,
                to: Some(vipwatch_core::RoleKind::Primary),
                trigger: "address".to_owned(),
                reason: None,
                cause: None,
            };
            let id = record.instance.parse().unwrap();
            let read_at = vipwatch_linux::clock::now();
            let notification = RecordedTransition { record, id, instance: None, read_at };
            OutgoingEvent { notification: Arc::new(notification), missed: 0 }
        };
        (1..=count).map(event).collect()
    }

    fn after(error: &PostError) -> AttemptResult {
        if error.may_pass() { AttemptResult::Failed } else { AttemptResult::Rejected }
    }

    #[test]
    fn each_4xx_divides_a_batch_except_those_about_the_whole_target() {
        for status in (400..500).filter(|status| ![408, 425, 429].contains(status)) {
            let post = |part: &[OutgoingEvent]| {
                let has_bad = part.iter().any(|event| event.notification.seq() == 1);
                if has_bad { Err(PostError::Refused(status)) } else { Ok(()) }
            };
            let attempts = divide(&events(4), &|| true, post, after);
            let is_delivered = |attempt: &&Attempt| attempt.result == AttemptResult::Delivered;
            let delivered = attempts.iter().filter(is_delivered).count();
            let is_about_target = [401, 403, 404, 405, 407, 409].contains(&status);
            assert_eq!(delivered, if is_about_target { 0 } else { 3 }, "{status}");
        }
    }

    #[test]
    fn a_rejected_batch_is_divided_until_the_rejected_notification_is_found() {
        let sizes = RefCell::new(Vec::new());
        let post = |part: &[OutgoingEvent]| {
            sizes.borrow_mut().push(part.len());
            let has_bad = part.iter().any(|event| event.notification.seq() == 6);
            if has_bad { Err(PostError::Refused(422)) } else { Ok(()) }
        };
        let attempts = divide(&events(8), &|| true, post, after);
        let rejected: Vec<usize> = (1..)
            .zip(&attempts)
            .filter(|(_, attempt)| attempt.result == AttemptResult::Rejected)
            .map(|(seq, _)| seq)
            .collect();
        assert_eq!((attempts.len(), rejected), (8, vec![6]));
        assert_eq!(*sizes.borrow(), [8, 4, 4, 2, 1, 1, 2]);
    }

    #[test]
    fn a_batch_that_fails_or_may_not_be_divided_is_tried_again_as_a_whole() {
        for (error, may_divide) in
            [(PostError::Status(503), true), (PostError::Refused(400), false)]
        {
            let error = RefCell::new(Some(error));
            let post = |_: &[OutgoingEvent]| Err(error.borrow_mut().take().unwrap());
            let attempts = divide(&events(5), &|| may_divide, post, after);
            assert_eq!(attempts.len(), 5);
            assert!(attempts.iter().all(|attempt| attempt.result == AttemptResult::Failed));
        }
    }

    #[test]
    fn a_server_that_fails_after_a_part_was_accepted_gets_only_the_rest_again() {
        let calls = RefCell::new(0);
        let post = |part: &[OutgoingEvent]| {
            *calls.borrow_mut() += 1;
            match *calls.borrow() {
                1 => Err(PostError::Refused(413)),
                2 => Ok(()),
                _ => {
                    assert_eq!(part.len(), 2);
                    Err(PostError::Status(500))
                }
            }
        };
        let results: Vec<AttemptResult> = divide(&events(4), &|| true, post, after)
            .iter()
            .map(|attempt| attempt.result)
            .collect();
        let (delivered, failed) = (AttemptResult::Delivered, AttemptResult::Failed);
        assert_eq!(results, [delivered, delivered, failed, failed]);
    }
}
