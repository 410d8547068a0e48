// SPDX-License-Identifier: Apache-2.0
//! The last write that etcd has acknowledged. At a new connection it shows whether etcd has lost data since.

use crate::etcd::messages::{RequestOp, RequestOpKind};
use crate::etcd::{EtcdConnection, EtcdError};

/// A key that this process has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AcknowledgedWrite {
    key: Vec<u8>,
    revision: i64,
}

impl AcknowledgedWrite {
    /// The last write after a transaction; `before` is the one before it.
    pub(super) fn after(
        operations: &[RequestOp],
        revision: i64,
        before: Option<Self>,
    ) -> Option<Self> {
        let kinds = || operations.iter().filter_map(|operation| operation.request.as_ref());
        let written = kinds().rev().find_map(|kind| match kind {
            RequestOpKind::Put(put) => Some(put.key.clone()),
            _ => None,
        });
        match written {
            Some(key) => Some(Self { key, revision }),
            None => before.filter(|before| {
                !kinds().any(|kind| {
                    matches!(kind, RequestOpKind::DeleteRange(deleted) if deleted.key == before.key)
                })
            }),
        }
    }

    /// Whether etcd has an older value of the key, or none.
    pub(super) async fn is_lost(&self, connection: &EtcdConnection) -> Result<bool, EtcdError> {
        let key = String::from_utf8_lossy(&self.key);
        let (found, _) = connection.read_key(&key).await?;
        Ok(found.is_none_or(|found| found.mod_revision < self.revision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> RequestOp {
        RequestOp::put(key, "x", None)
    }

    #[test]
    fn the_last_written_key_is_known_until_it_is_deleted() {
        let first = AcknowledgedWrite::after(&[put("/a"), put("/b")], 7, None).unwrap();
        assert_eq!(first, AcknowledgedWrite { key: b"/b".to_vec(), revision: 7 });
        let other = [RequestOp::delete("/a")];
        assert_eq!(AcknowledgedWrite::after(&other, 8, Some(first.clone())), Some(first.clone()));
        let own = [RequestOp::delete("/b")];
        assert_eq!(AcknowledgedWrite::after(&own, 8, Some(first.clone())), None);
        let both = [RequestOp::delete("/b"), put("/c")];
        let next = AcknowledgedWrite::after(&both, 9, Some(first)).unwrap();
        assert_eq!((next.key.as_slice(), next.revision), (b"/c".as_slice(), 9));
    }
}
