// SPDX-License-Identifier: Apache-2.0
//! Follows instances: which ones exist, and which role each of them has.
//!
//! [`instance_table`] turns the events of network namespaces into role changes. [`follower`] joins it with
//! [`crate::discovery`]. [`look`] reads the role of every instance once, for commands that run without a node.

pub mod follower;
pub mod instance_table;
pub mod look;
