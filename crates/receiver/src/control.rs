//! What a receiver that runs is told to do: another policy, another socket, somebody to forget, an end.

use std::os::fd::OwnedFd;

use vipwatch_core::InstanceId;
use vipwatch_linux::wake_queue::WakeQueue;

use crate::server::ReceiverPolicy;

/// One order.
#[derive(Debug)]
pub(crate) enum ControlMessage {
    /// From now on, this holds.
    ReceiverPolicy(ReceiverPolicy),
    /// From now on, monitors report here. Whoever is being served is served.
    Listen(OwnedFd),
    /// These are not there any more.
    Forget(Vec<InstanceId>),
    /// It is over.
    Stop,
}

/// Where orders wait.
///
/// BOUND: orders come from the configuration, once for each reload, and from its owner at the end.
pub(crate) type ControlQueue = WakeQueue<ControlMessage>;
