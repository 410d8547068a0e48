// SPDX-License-Identifier: Apache-2.0
//! Leases: etcd deletes the keys of a lease when it ends.

use std::time::Duration;

use super::grpc::GrpcStream;
use super::kv::{revision, text};
use super::messages::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
};
use super::{EtcdConnection, EtcdError};

/// The request in errors.
const RENEWAL: &str = "the renewal of a lease";

/// The id of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// A lease that exists.
#[derive(Debug)]
pub struct LeaseState {
    /// Its keys.
    pub keys: Vec<String>,
}

/// A lease that is kept alive over one stream.
pub struct LeaseStream {
    id: LeaseId,
    stream: GrpcStream<LeaseKeepAliveRequest>,
}

impl EtcdConnection {
    /// Makes a lease.
    pub async fn grant(&self, ttl: Duration) -> Result<LeaseId, EtcdError> {
        let ttl = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        Ok(LeaseId(self.call("the request for a lease", LeaseGrantRequest { ttl }).await?.id))
    }

    /// Ends a lease, and deletes its keys. A lease that has ended already is no error.
    pub async fn revoke(&self, id: LeaseId) -> Result<(), EtcdError> {
        match self.call("the end of a lease", LeaseRevokeRequest { id: id.0 }).await {
            Ok(_) | Err(EtcdError::LeaseEnded { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The keys of a lease; `None` if it has ended.
    pub async fn lease_state(&self, id: LeaseId) -> Result<Option<LeaseState>, EtcdError> {
        let request = LeaseTimeToLiveRequest { id: id.0, keys: true };
        let answer = match self.call("the read of a lease", request).await {
            Err(EtcdError::LeaseEnded { .. }) => return Ok(None),
            answer => answer?,
        };
        if answer.ttl <= 0 {
            return Ok(None);
        }
        Ok(Some(LeaseState { keys: answer.keys.into_iter().map(text).collect() }))
    }

    /// Renews a lease, and opens a stream for further renewals.
    pub async fn keep_lease(&self, id: LeaseId) -> Result<LeaseStream, EtcdError> {
        let open = async {
            let mut stream = self.client().open(LeaseKeepAliveRequest { id: id.0 }).await?;
            let answer = stream.answers.message().await?;
            Ok((stream, answer))
        };
        let (stream, answer) =
            self.answer(RENEWAL, open).await.map_err(|error| ended(error, id))?;
        renewed(answer, id)?;
        Ok(LeaseStream { id, stream })
    }

    /// Renews a lease again; returns the revision of etcd.
    pub async fn renew(&self, stream: &mut LeaseStream) -> Result<i64, EtcdError> {
        let LeaseStream { id, stream } = stream;
        let renew = async {
            // An error means that the stream has ended. Its answers say why.
            let _ = stream.requests.send(LeaseKeepAliveRequest { id: id.0 }).await;
            stream.answers.message().await
        };
        let answer = self.answer(RENEWAL, renew).await.map_err(|error| ended(error, *id))?;
        renewed(answer, *id)
    }
}

/// The revision in the answer to a renewal. etcd answers with a TTL of 0 if the lease has ended.
fn renewed(answer: Option<LeaseKeepAliveResponse>, id: LeaseId) -> Result<i64, EtcdError> {
    match answer {
        Some(answer) if answer.ttl > 0 => Ok(revision(answer.header)),
        Some(_) => Err(EtcdError::LeaseEnded { lease: id.0 }),
        None => Err(EtcdError::Disconnected { request: RENEWAL, text: "end of stream".to_owned() }),
    }
}

/// Adds the id of the lease to an error.
fn ended(error: EtcdError, id: LeaseId) -> EtcdError {
    match error {
        EtcdError::LeaseEnded { .. } => EtcdError::LeaseEnded { lease: id.0 },
        error => error,
    }
}
