// SPDX-License-Identifier: Apache-2.0
//! The client of etcd: settings, one connection to one endpoint, and the requests that the cluster view needs.
//!
//! A connection belongs to one endpoint. It does not reconnect and does not choose another endpoint: the caller does, so
//! that a member that is dead or slow is left within the time limit of one request.

mod connect;
mod error;
mod settings;

pub use self::connect::Connection;
pub use self::error::{EtcdError, EtcdErrorKind};
pub use self::settings::{ClientCertificate, EtcdLogin, EtcdPassword, EtcdSettings};
