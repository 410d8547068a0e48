// SPDX-License-Identifier: Apache-2.0
//! The transactions of the simulated etcd.

use std::collections::BTreeSet;

use tonic::Status;

use super::EtcdStore;
use crate::etcd::messages::{
    Compare, DeleteRangeRequest, PutRequest, RequestOp, RequestOpKind, ResponseOp, TargetUnion,
    TxnRequest, TxnResponse, WatchEvent,
};

/// The maximum number of operations. It is etcd's default.
const MAX_OPERATIONS: usize = 128;

impl EtcdStore {
    /// Carries out a transaction; returns its answer and its changes.
    pub(in crate::simulation) fn txn(
        &mut self,
        request: &TxnRequest,
    ) -> Result<(TxnResponse, Vec<WatchEvent>), Status> {
        let succeeded = request.compare.iter().all(|compare| self.is_true(compare));
        let operations = if succeeded { &request.success } else { &request.failure };
        self.check(operations)?;
        let has_writes = operations.iter().any(|operation| self.is_write(operation));
        if has_writes {
            self.revision += 1;
        }
        let (mut responses, mut events) = (Vec::new(), Vec::new());
        for operation in operations {
            let mut response_range = None;
            match &operation.request {
                Some(RequestOpKind::Range(range)) => response_range = Some(self.range(range)?),
                Some(RequestOpKind::Put(put)) => {
                    events.push(self.put(&put.key, put.value.clone(), put.lease));
                }
                Some(RequestOpKind::DeleteRange(delete)) => events.extend(self.delete(&delete.key)),
                None => {}
            }
            responses.push(ResponseOp { response_range });
        }
        self.note(&events);
        let header = Some(self.header());
        Ok((TxnResponse { header, succeeded, responses }, events))
    }

    fn is_true(&self, compare: &Compare) -> bool {
        let stored = self.get(&compare.key);
        match compare.target_union {
            Some(TargetUnion::CreateRevision(revision)) => {
                stored.map_or(0, |value| value.create_revision) == revision
            }
            Some(TargetUnion::ModRevision(revision)) => {
                stored.map_or(0, |value| value.mod_revision) == revision
            }
            Some(TargetUnion::Lease(lease)) => stored.map_or(0, |value| value.lease) == lease,
            None => false,
        }
    }

    /// etcd rejects a transaction as a whole.
    fn check(&self, operations: &[RequestOp]) -> Result<(), Status> {
        if operations.len() > MAX_OPERATIONS {
            let text = "etcdserver: too many operations in txn request";
            return Err(Status::invalid_argument(text));
        }
        let mut written = BTreeSet::new();
        for operation in operations {
            let key = match &operation.request {
                Some(RequestOpKind::Put(PutRequest { key, lease, .. })) => {
                    if !self.has_lease(*lease) {
                        let text = "etcdserver: requested lease not found";
                        return Err(Status::not_found(text));
                    }
                    key
                }
                Some(RequestOpKind::DeleteRange(DeleteRangeRequest { key })) => key,
                _ => continue,
            };
            if !written.insert(key) {
                let text = "etcdserver: duplicate key given in txn request";
                return Err(Status::invalid_argument(text));
            }
        }
        Ok(())
    }

    fn is_write(&self, operation: &RequestOp) -> bool {
        match &operation.request {
            Some(RequestOpKind::Put(_)) => true,
            Some(RequestOpKind::DeleteRange(delete)) => self.get(&delete.key).is_some(),
            _ => false,
        }
    }
}
