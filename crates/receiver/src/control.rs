// SPDX-License-Identifier: Apache-2.0
//! Messages from the owner of a receiver to its thread.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use vipwatch_core::InstanceId;
use vipwatch_linux::wake_queue::WakeQueue;

use crate::policy::ReceiverPolicy;

#[derive(Debug)]
pub(crate) enum ControlMessage {
    /// Use this policy from now on.
    SetPolicy(ReceiverPolicy),
    /// Accept connections on this listener instead of the old one. Open connections are served to their end.
    Listen(OwnedFd),
    /// Delete the states and stored reports of these instances.
    Forget(Vec<InstanceId>),
    /// Delete the settled reports of each instance up to a sequence number: the sink has counted them as missed.
    DeleteUndelivered(BTreeMap<InstanceId, i64>),
    /// Finish the requests that have begun, then end the thread.
    Stop,
}

/// BOUND: the owner sends a few messages for each reload of the configuration, at most one `Forget` a day, and one
/// `Stop`; the sink sends one `DeleteUndelivered` for each cleanup.
pub(crate) type ControlQueue = WakeQueue<ControlMessage>;
