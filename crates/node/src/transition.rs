// SPDX-License-Identifier: Apache-2.0
//! A transition: a change of role with its sequence number, time and cause; and how it is written as JSON and
//! as a row of the history.

use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_api::NotificationBody;
use vipwatch_core::cause::ChangeDirection;
use vipwatch_core::{Cause, EventKind, InstanceId, Moment, Role, RoleKind, Trigger};
use vipwatch_history::{Latencies, Record};
pub(crate) use vipwatch_linux::clock::from_unix_millis as time_from_millis;
pub use vipwatch_linux::clock::unix_millis as millis;

use crate::cause::cause_record;
use crate::discovery::InstanceConfig;
use crate::event::NodeIdentity;
use crate::notify::notification::{Notification, Subject};

/// A change of role.
#[derive(Debug, Clone)]
pub struct Transition {
    /// The sequence number: ascending, and never used twice on this node.
    pub seq: i64,
    /// When the node read the role from the kernel.
    pub at: SystemTime,
    /// The same moment on the monotonic clock; latencies are measured from here, unless it `is_repeated`.
    pub read_at: Moment,
    /// Whether the role is delivered again after a restart or a reload, long after the kernel's event. Such a delivery
    /// has no latency.
    pub is_repeated: bool,
    /// The instance.
    pub instance: Arc<InstanceConfig>,
    /// The role before, known from this run or from the last one; `None` if it is not known, or if the role
    /// is unchanged since the last run.
    pub from: Option<RoleKind>,
    /// The role now.
    pub to: Role,
    /// Whether the node has more addresses than before, or fewer.
    pub direction: ChangeDirection,
    /// The reason why the role was read.
    pub trigger: Trigger,
    /// Why the role changed; `None` while that is not known.
    pub cause: Option<Arc<Cause>>,
}

impl Transition {
    /// The time from which the latencies of its deliveries are measured; `None` if it `is_repeated`.
    pub(crate) fn measured_from(&self) -> Option<Moment> {
        (!self.is_repeated).then_some(self.read_at)
    }

    /// The row for the history, which stores causes as words.
    pub fn record(&self) -> Record {
        let reason = self.to.reason();
        Record {
            seq: self.seq,
            at: millis(self.at),
            instance: self.instance.id.to_string(),
            netns: self.instance.netns.as_ref().map(ToString::to_string),
            from: self.from,
            to: Some(self.to.kind()),
            trigger: self.trigger.as_str().to_owned(),
            reason: (!reason.is_empty()).then_some(reason),
            cause: self.cause.as_deref().map(cause_record),
        }
    }
}

impl Notification for Transition {
    fn instance(&self) -> Option<&InstanceId> {
        Some(&self.instance.id)
    }

    fn config(&self) -> Option<&InstanceConfig> {
        Some(&self.instance)
    }

    fn subject(&self) -> Subject {
        Subject::Instance(self.instance.id.clone())
    }

    fn kind(&self) -> EventKind {
        EventKind::Role(self.to.kind())
    }

    fn seq(&self) -> i64 {
        self.seq
    }

    fn at(&self) -> SystemTime {
        self.at
    }

    fn read_at(&self) -> Moment {
        self.read_at
    }

    fn measured_from(&self) -> Option<Moment> {
        self.measured_from()
    }

    fn body(&self, identity: &NodeIdentity) -> NotificationBody {
        let event = identity.transition(self, &Latencies::default(), &[]);
        NotificationBody::Transition(Box::new(event))
    }
}

/// Microseconds from `since` to `until`.
pub fn micros(since: Moment, until: Moment) -> i64 {
    i64::try_from(until.since(since).as_micros()).unwrap_or(i64::MAX)
}
