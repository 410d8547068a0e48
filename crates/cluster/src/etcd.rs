// SPDX-License-Identifier: Apache-2.0
//! The client of etcd: settings, one connection to one endpoint, and the requests that the cluster view needs.
//!
//! A connection belongs to one endpoint. It does not reconnect and does not choose another endpoint: the caller does, so
//! that a member that is dead or slow is left within the time limit of one request.

mod connect;
mod endpoints;
mod error;
mod grpc;
mod kv;
mod lease;
pub mod messages;
mod settings;
mod watch;

pub use self::connect::EtcdConnection;
pub use self::error::{EtcdError, EtcdErrorKind};
pub use self::settings::{ClientCertificate, EtcdLogin, EtcdPassword, EtcdSettings, PasswordError};

pub(crate) use self::endpoints::EndpointOrder;
pub(crate) use self::kv::{EtcdPosition, KeyPage, prefix_end};
pub use self::kv::{MAX_OPERATIONS, RangePage, RangeValues, ReadLimit, TxnResult};
pub use self::lease::{LeaseId, LeaseStream};
pub use self::watch::{WatchId, WatchMessage, Watcher};
