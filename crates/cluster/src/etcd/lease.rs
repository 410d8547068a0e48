// SPDX-License-Identifier: Apache-2.0
//! Leases: etcd deletes the keys of a lease when it ends.

use std::time::Duration;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper, LeaseTimeToLiveOptions};

use super::{EtcdConnection, EtcdError};

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
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl EtcdConnection {
    /// Makes a lease.
    pub async fn grant(&self, ttl: Duration) -> Result<LeaseId, EtcdError> {
        let seconds = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        let mut lease = self.lease();
        Ok(LeaseId(self.answer("the request for a lease", lease.grant(seconds, None)).await?.id()))
    }

    /// Ends a lease, and deletes its keys. A lease that has ended already is no error.
    pub async fn revoke(&self, id: LeaseId) -> Result<(), EtcdError> {
        let mut lease = self.lease();
        match self.answer("the end of a lease", lease.revoke(id.0)).await {
            Ok(_) | Err(EtcdError::LeaseEnded { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The keys of a lease; `None` if it has ended.
    pub async fn lease_state(&self, id: LeaseId) -> Result<Option<LeaseState>, EtcdError> {
        let mut lease = self.lease();
        let options = Some(LeaseTimeToLiveOptions::new().with_keys());
        let answer =
            match self.answer("the read of a lease", lease.time_to_live(id.0, options)).await {
                Err(EtcdError::LeaseEnded { .. }) => return Ok(None),
                answer => answer?,
            };
        if answer.ttl() <= 0 {
            return Ok(None);
        }
        let text = |key: &Vec<u8>| String::from_utf8_lossy(key).into_owned();
        Ok(Some(LeaseState { keys: answer.keys().iter().map(text).collect() }))
    }

    /// Renews a lease, and opens a stream for further renewals.
    pub async fn keep_lease(&self, id: LeaseId) -> Result<LeaseStream, EtcdError> {
        let mut lease = self.lease();
        let opened = self.answer("the renewal of a lease", lease.keep_alive(id.0)).await;
        let (keeper, answers) = opened.map_err(|error| ended(error, id))?;
        Ok(LeaseStream { id, keeper, answers })
    }

    /// Renews a lease again; returns the revision of etcd.
    pub async fn renew(&self, stream: &mut LeaseStream) -> Result<i64, EtcdError> {
        let LeaseStream { id, keeper, answers } = stream;
        let renew = async {
            keeper.keep_alive().await?;
            answers.message().await
        };
        let answer = self.answer("the renewal of a lease", renew).await;
        let request = "the renewal of a lease";
        match answer.map_err(|error| ended(error, *id))? {
            Some(answer) if answer.ttl() > 0 => {
                Ok(answer.header().map_or(0, etcd_client::ResponseHeader::revision))
            }
            Some(_) => Err(EtcdError::LeaseEnded { lease: id.0 }),
            None => Err(EtcdError::Disconnected { request, text: "end of stream".to_owned() }),
        }
    }
}

/// Adds the id of the lease to an error.
fn ended(error: EtcdError, id: LeaseId) -> EtcdError {
    match error {
        EtcdError::LeaseEnded { .. } => EtcdError::LeaseEnded { lease: id.0 },
        error => error,
    }
}
