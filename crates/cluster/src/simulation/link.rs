// SPDX-License-Identifier: Apache-2.0
//! The connection of a node to the simulated etcd: delays, cuts, and requests that arrive although the node has given up.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::network::{AnyMessage, Network, NetworkState, connection_error};
use super::stream::AnswerStream;
use crate::etcd::messages::{EtcdRequest, RequestOpKind, TxnRequest};

/// How a process of a node reaches the simulated etcd.
#[derive(Debug, Clone)]
pub(crate) struct EtcdLink {
    network: Arc<Network>,
    node: usize,
    /// The random number of the process.
    seed: u64,
}

impl PartialEq for EtcdLink {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.network, &other.network) && self.node == other.node
    }
}

impl Eq for EtcdLink {}

impl EtcdLink {
    pub(super) fn new(network: &Arc<Network>, node: usize) -> Self {
        let seed = network.state().random.next();
        Self { network: network.clone(), node, seed }
    }

    /// A number instead of the random one of a process.
    pub(crate) fn process_seed(&self) -> u64 {
        self.seed
    }

    pub(crate) async fn connect(&self) -> Result<EtcdChannel, Status> {
        let (network, node) = (self.network.clone(), self.node);
        let epoch = network.state().epoch;
        let channel = EtcdChannel { network, node, epoch };
        channel.travel().await?;
        // A member without a leader accepts connections.
        if channel
            .network
            .state()
            .is_serving()
            .is_err_and(|error| std::error::Error::source(&error).is_some())
        {
            return Err(connection_error("connection refused"));
        }
        Ok(channel)
    }
}

/// A connection.
#[derive(Debug, Clone)]
pub(crate) struct EtcdChannel {
    pub(super) network: Arc<Network>,
    pub(super) node: usize,
    /// The restart of etcd that it belongs to.
    epoch: u64,
}

impl EtcdChannel {
    pub(crate) async fn call<R: EtcdRequest>(&self, message: R) -> Result<R::Answer, Status> {
        self.cut_at_write(&message);
        let mut request = PendingRequest { channel: self, message: Some(Box::new(message)) };
        self.travel().await?;
        let answer = request.handle()?;
        self.travel().await?;
        let answer = answer.downcast().ok().ok_or_else(|| Status::internal("another answer"))?;
        Ok(*answer)
    }

    pub(crate) async fn open<R: EtcdRequest>(
        &self,
        mut waiting: Receiver<R>,
    ) -> Result<AnswerStream<R::Answer>, Status> {
        self.travel().await?;
        self.network.state().is_serving()?;
        let requests = move |context: &mut std::task::Context<'_>| {
            waiting.poll_recv(context).map(|request| request.map(|it| Box::new(it) as AnyMessage))
        };
        Ok(AnswerStream::new(self.clone(), Box::new(requests)))
    }

    /// The time since when the connection is cut; an error if it is closed.
    pub(super) fn check(&self) -> Result<Option<Instant>, Status> {
        let state = self.network.state();
        if state.epoch != self.epoch {
            return Err(connection_error("connection reset by peer"));
        }
        Ok(state.links[self.node].cut_since)
    }

    /// Cuts the link if this is the request that the fault waits for.
    fn cut_at_write(&self, message: &dyn Any) {
        let mut state = self.network.state();
        let link = &mut state.links[self.node];
        if link.cuts_at.is_some_and(|prefix| is_write_of(message, prefix)) {
            link.cuts_at = None;
            link.cut_since = Some(Instant::now());
            self.network.trace.add(format_args!("network: {} is cut", super::NAMES[self.node]));
        }
    }

    /// The way of a message in one direction.
    async fn travel(&self) -> Result<(), Status> {
        let delay = self.network.state().delay(self.node);
        sleep(delay).await;
        loop {
            let changed = self.network.changed.notified();
            if self.check()?.is_none() {
                return Ok(());
            }
            changed.await;
        }
    }
}

/// Whether a request writes a key with this prefix.
fn is_write_of(message: &dyn Any, prefix: &str) -> bool {
    let Some(txn) = message.downcast_ref::<TxnRequest>() else { return false };
    let prefix = format!("{}{prefix}", super::PREFIX);
    txn.success.iter().any(|operation| match &operation.request {
        Some(RequestOpKind::Put(put)) => put.key.starts_with(prefix.as_bytes()),
        _ => false,
    })
}

impl NetworkState {
    pub(super) fn delay(&mut self, node: usize) -> Duration {
        let max = self.links[node].delay;
        self.random.between(Duration::from_millis(1), max)
    }
}

/// A request on its way. If the node gives up, it may arrive nevertheless.
struct PendingRequest<'a> {
    channel: &'a EtcdChannel,
    /// `None` after its arrival.
    message: Option<AnyMessage>,
}

impl PendingRequest<'_> {
    fn handle(&mut self) -> Result<AnyMessage, Status> {
        let message = self.message.take();
        self.channel.network.handle(&message.ok_or_else(|| Status::internal("sent twice"))?)
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let Some(message) = self.message.take() else { return };
        let is_lost = self.channel.network.state().random.chance(50);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if is_lost || self.channel.check().is_err() {
            return;
        }
        let channel = self.channel.clone();
        runtime.spawn(async move {
            if channel.travel().await.is_ok() && channel.network.handle(&message).is_ok() {
                let node = super::NAMES[channel.node];
                channel.network.trace.add(format_args!("network: a late request of {node}"));
            }
        });
    }
}
