// SPDX-License-Identifier: Apache-2.0
//! The settings of a target of any kind, and the rules that follow from them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vipwatch_api::TargetKind;
use vipwatch_core::notification::DeliveryPolicy;
use vipwatch_core::{DeliveryMode, EventKind};
use vipwatch_history::Stage;

use super::notification::Notification;
use crate::config::{Hook, ReceiverConfig, Rule, Upstream, Webhook};
use crate::silence::Silences;

/// The wait after the first failed attempt.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// Maximum number of requests to one webhook at a time.
const POSTS_AT_ONCE: usize = 4;
/// Maximum number of routers for which IPv6 parameters are set at a time.
const IPV6_JOBS_AT_ONCE: usize = 4;
/// Maximum number of routers in one request to the upstream.
const UPSTREAM_BATCH: usize = 10_000;

/// The name of the target that sets IPv6 parameters.
const IPV6_NAME: &str = "ipv6 parameters";

/// A target.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TargetSettings {
    Hook(Arc<Hook>),
    Webhook(Arc<Webhook>),
    Upstream(Arc<Upstream>),
    /// The directory below which Neutron keeps the configurations of its routers (`state_path`).
    Ipv6(PathBuf),
}

/// Many notifications in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchRule {
    /// Maximum number of notifications.
    pub(crate) max: usize,
    /// How long the first notification waits for others.
    pub(crate) wait: Duration,
    /// The shortest time between two requests.
    pub(crate) interval: Duration,
}

impl TargetSettings {
    /// The targets of the rules.
    pub(crate) fn of_rules(rules: &[Rule]) -> Vec<Self> {
        let hooks = rules.iter().flat_map(|rule| rule.hooks.iter().cloned().map(Self::Hook));
        let webhooks =
            rules.iter().flat_map(|rule| rule.webhooks.iter().cloned().map(Self::Webhook));
        hooks.chain(webhooks).collect()
    }

    /// The targets of the receiver.
    pub(crate) fn of_receiver(config: &ReceiverConfig) -> Vec<Self> {
        let ipv6 = config.has_ipv6_params.then(|| Self::Ipv6(config.state_path.clone()));
        let hooks = config.hooks.iter().cloned().map(Self::Hook);
        let webhooks = config.webhooks.iter().cloned().map(Self::Webhook);
        let upstream = config.upstream.iter().cloned().map(Self::Upstream);
        ipv6.into_iter().chain(hooks).chain(webhooks).chain(upstream).collect()
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Hook(hook) => &hook.name,
            Self::Webhook(webhook) => &webhook.name,
            Self::Upstream(upstream) => &upstream.name,
            Self::Ipv6(_) => IPV6_NAME,
        }
    }

    pub(crate) fn kind(&self) -> TargetKind {
        match self {
            Self::Hook(_) => TargetKind::Hook,
            Self::Webhook(_) => TargetKind::Webhook,
            Self::Upstream(_) => TargetKind::Upstream,
            Self::Ipv6(_) => TargetKind::Ipv6,
        }
    }

    /// The stage of the node that the target belongs to.
    pub(crate) fn stage(&self) -> Stage {
        match self {
            Self::Hook(_) => Stage::Hook,
            Self::Webhook(_) | Self::Upstream(_) | Self::Ipv6(_) => Stage::Webhook,
        }
    }

    /// Whether the target is configured for this event.
    pub(crate) fn selects(&self, kind: EventKind) -> bool {
        match self {
            Self::Hook(hook) => hook.on.contains(&kind),
            Self::Webhook(webhook) => webhook.on.contains(&kind),
            Self::Upstream(_) | Self::Ipv6(_) => EventKind::OF_REPORT.contains(&kind),
        }
    }

    /// Whether the target is to receive this notification. A target for every event does not receive the transitions of a
    /// silence. A target for the latest one receives the current role after the silence, and both receive the findings
    /// that are open then.
    pub(crate) fn selects_at(&self, notification: &dyn Notification, silences: &Silences) -> bool {
        let kind = notification.kind();
        let is_step = self.deliver() == DeliveryMode::Every && kind != EventKind::Finding;
        self.selects(kind) && !(is_step && self.is_silenced_at(notification, silences))
    }

    /// Whether a silence covered what the notification is about when it happened.
    pub(crate) fn is_silenced_at(
        &self,
        notification: &dyn Notification,
        silences: &Silences,
    ) -> bool {
        self.can_be_silenced()
            && notification.is_local()
            && silences.covered(notification.instance(), notification.at())
    }

    /// Whether a maintenance silence applies: the target informs people or tools, and is not part of the network.
    pub(crate) fn can_be_silenced(&self) -> bool {
        matches!(self, Self::Hook(_) | Self::Webhook(_))
    }

    fn deliver(&self) -> DeliveryMode {
        match self {
            Self::Hook(hook) => hook.deliver,
            Self::Webhook(webhook) => webhook.deliver,
            Self::Upstream(_) | Self::Ipv6(_) => DeliveryMode::Latest,
        }
    }

    pub(crate) fn policy(&self) -> DeliveryPolicy {
        let settle = match self {
            Self::Hook(hook) => hook.settle,
            Self::Webhook(webhook) => webhook.settle,
            Self::Upstream(upstream) => upstream.settle,
            Self::Ipv6(_) => Duration::ZERO,
        };
        let retries = match self {
            Self::Hook(hook) => Some(hook.retries),
            Self::Webhook(_) | Self::Upstream(_) | Self::Ipv6(_) => None,
        };
        DeliveryPolicy {
            deliver: self.deliver(),
            settle,
            retries,
            first_wait: FIRST_WAIT,
            max_wait: LONGEST_WAIT,
            // The history has transitions, and the receiver's journal has settled reports.
            has_history: true,
        }
    }

    /// `None` if each notification has an attempt of its own.
    pub(crate) fn batch(&self) -> Option<BatchRule> {
        match self {
            Self::Webhook(webhook) => webhook.batch.map(|batch| BatchRule {
                max: batch.max,
                wait: batch.wait,
                interval: Duration::ZERO,
            }),
            Self::Upstream(upstream) => Some(BatchRule {
                max: UPSTREAM_BATCH,
                wait: Duration::ZERO,
                interval: upstream.interval,
            }),
            Self::Hook(_) | Self::Ipv6(_) => None,
        }
    }

    /// Maximum number of attempts at the same time. Batches are sent one after the other, so that an older state never
    /// arrives after a newer one.
    pub(crate) fn at_once(&self, hooks_at_once: usize) -> usize {
        match self {
            _ if self.batch().is_some() => 1,
            Self::Hook(_) => hooks_at_once,
            Self::Webhook(_) | Self::Upstream(_) => POSTS_AT_ONCE,
            Self::Ipv6(_) => IPV6_JOBS_AT_ONCE,
        }
    }
}
