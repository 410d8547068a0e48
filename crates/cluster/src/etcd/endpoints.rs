// SPDX-License-Identifier: Apache-2.0
//! The endpoints of etcd, tried one after the other.

use std::time::Duration;

use vipwatch_core::{Backoff, Jitter};

use super::{EtcdConnection, EtcdError, EtcdPosition, EtcdSettings};

/// The waits between attempts when no endpoint can be used.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Which endpoint is next, and the wait before the next attempt.
#[derive(Debug)]
pub(crate) struct EndpointOrder {
    next: usize,
    backoff: Backoff,
    jitter: Jitter,
}

impl EndpointOrder {
    /// `seed` differs between nodes, so that they do not all use the same endpoint and do not retry at the same time.
    pub(crate) fn new(seed: u64) -> Self {
        let next = usize::try_from(seed % 1024).unwrap_or(0);
        let backoff = Backoff::new(FIRST_WAIT, MAX_WAIT);
        Self { next, backoff, jitter: Jitter::new(seed) }
    }

    /// The same with shorter waits, if `max` is less than the usual maximum.
    pub(crate) fn with_max_wait(mut self, max: Duration) -> Self {
        self.backoff.set_max_wait(max.clamp(FIRST_WAIT, MAX_WAIT));
        self
    }

    /// Connects to the first endpoint that answers a read of `key`, which a majority of the members must confirm. Each
    /// endpoint is tried once; the error is that of the last one.
    pub(crate) async fn connect(
        &mut self,
        settings: &EtcdSettings,
        key: &str,
    ) -> Result<(EtcdConnection, EtcdPosition), EtcdError> {
        let mut last = EtcdError::NoEndpoint;
        for _ in &settings.endpoints {
            let endpoint = &settings.endpoints[self.next % settings.endpoints.len()];
            self.next = self.next.wrapping_add(1);
            // The state of a TLS handshake is large.
            let attempt = Box::pin(async {
                let connection = EtcdConnection::open(settings, endpoint).await?;
                let position = connection.position(key).await?;
                Ok::<_, EtcdError>((connection, position))
            });
            match attempt.await {
                Ok(connected) => return Ok(connected),
                Err(error) => {
                    let cause = vipwatch_core::ErrorChain(&error).to_string();
                    tracing::debug!(endpoint, error = cause, "cannot use the endpoint of etcd");
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// The wait after a failure.
    pub(crate) fn next_wait(&mut self) -> Duration {
        self.backoff.next_wait(&mut self.jitter)
    }

    /// A connection has worked: the next wait is the first one again.
    pub(crate) fn reset(&mut self) {
        self.backoff.reset();
    }
}
