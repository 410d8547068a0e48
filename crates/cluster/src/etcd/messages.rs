// SPDX-License-Identifier: Apache-2.0
//! The messages of etcd that vipwatch sends and receives.
//!
//! Names and numbers are those of etcd's `rpc.proto` and `kv.proto`. Fields that vipwatch neither sets nor reads are left
//! out: in a request they have their default, in an answer they are skipped.
#![allow(
    missing_docs,
    reason = "etcd's rpc.proto and kv.proto describe the messages and their fields"
)]

use prost::Message;

use super::LeaseId;

/// A request, the method that takes it, and its answer.
pub trait EtcdRequest: Message + 'static {
    /// The path of the gRPC method.
    const METHOD: &'static str;
    type Answer: Message + Default + 'static;
}

/// Implements [`EtcdRequest`] for each request, with its method and its answer.
macro_rules! requests {
    ($($request:ident: $method:literal => $answer:ident;)+) => {$(
        impl EtcdRequest for $request {
            const METHOD: &'static str = $method;
            type Answer = $answer;
        }
    )+};
}

requests! {
    RangeRequest: "/etcdserverpb.KV/Range" => RangeResponse;
    PutRequest: "/etcdserverpb.KV/Put" => PutResponse;
    TxnRequest: "/etcdserverpb.KV/Txn" => TxnResponse;
    WatchRequest: "/etcdserverpb.Watch/Watch" => WatchResponse;
    LeaseGrantRequest: "/etcdserverpb.Lease/LeaseGrant" => LeaseGrantResponse;
    LeaseRevokeRequest: "/etcdserverpb.Lease/LeaseRevoke" => LeaseRevokeResponse;
    LeaseKeepAliveRequest: "/etcdserverpb.Lease/LeaseKeepAlive" => LeaseKeepAliveResponse;
    LeaseTimeToLiveRequest: "/etcdserverpb.Lease/LeaseTimeToLive" => LeaseTimeToLiveResponse;
    AuthenticateRequest: "/etcdserverpb.Auth/Authenticate" => AuthenticateResponse;
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

// Keys and transactions.

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub limit: i64,
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// The number of keys in the requested range, including those that the answer leaves out.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// A comparison of a transaction. etcd compares for equality, which is the default of the field `result`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Compare {
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "TargetUnion", tags = "5, 6, 8")]
    pub target_union: Option<TargetUnion>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum CompareTarget {
    Version = 0,
    Create = 1,
    Mod = 2,
    Value = 3,
    Lease = 4,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum TargetUnion {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

impl Compare {
    /// True if the key was created at this revision; 0 if the key must not exist.
    pub fn create_revision_is(key: &str, revision: i64) -> Self {
        Self::new(CompareTarget::Create, key, TargetUnion::CreateRevision(revision))
    }

    /// True if the key was changed last at this revision; 0 if the key must not exist.
    pub fn mod_revision_is(key: &str, revision: i64) -> Self {
        Self::new(CompareTarget::Mod, key, TargetUnion::ModRevision(revision))
    }

    /// True if the key has this lease.
    pub fn lease_is(key: &str, lease: LeaseId) -> Self {
        Self::new(CompareTarget::Lease, key, TargetUnion::Lease(lease.0))
    }

    fn new(target: CompareTarget, key: &str, value: TargetUnion) -> Self {
        let (target, key) = (target as i32, key.as_bytes().to_vec());
        Self { target, key, target_union: Some(value) }
    }
}

/// An operation of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestOp {
    #[prost(oneof = "RequestOpKind", tags = "1, 2, 3")]
    pub request: Option<RequestOpKind>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum RequestOpKind {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

impl RequestOp {
    pub fn range(range: RangeRequest) -> Self {
        Self { request: Some(RequestOpKind::Range(range)) }
    }

    /// Writes a key, with a lease or without one.
    pub fn put(key: &str, value: impl Into<Vec<u8>>, lease: Option<LeaseId>) -> Self {
        let (key, lease) = (key.as_bytes().to_vec(), lease.map_or(0, |lease| lease.0));
        Self { request: Some(RequestOpKind::Put(PutRequest { key, value: value.into(), lease })) }
    }

    /// Deletes one key.
    pub fn delete(key: &str) -> Self {
        let key = key.as_bytes().to_vec();
        Self { request: Some(RequestOpKind::DeleteRange(DeleteRangeRequest { key })) }
    }
}

/// The answer to an operation. The answers to writes have nothing that is used.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub response_range: Option<RangeResponse>,
}

// Watches.

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchRequest {
    #[prost(oneof = "WatchRequestKind", tags = "1, 2")]
    pub request_union: Option<WatchRequestKind>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum WatchRequestKind {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    #[prost(int64, tag = "7")]
    pub watch_id: i64,
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct WatchCancelRequest {
    #[prost(int64, tag = "1")]
    pub watch_id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<WatchEvent>,
}

/// `Event` in `kv.proto`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchEvent {
    #[prost(enumeration = "WatchEventType", tag = "1")]
    pub r#type: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum WatchEventType {
    Put = 0,
    Delete = 1,
}

// Leases.

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseRevokeResponse {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseKeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(bool, tag = "2")]
    pub keys: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct LeaseTimeToLiveResponse {
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub keys: Vec<Vec<u8>>,
}

// Logins.

/// It has no debug format, so that no log line can contain the password.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

/// It has no debug format: the token is as good as the password until it expires.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub token: String,
}

#[cfg(test)]
mod tests;
