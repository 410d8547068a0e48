//! Follows instances: which there are, and which role each of them has.
//!
//! [`instance_table`] turns the events of network namespaces into role changes. [`follower`] joins it with
//! [`crate::discovery`]. [`look`] reads the role of every instance once, without following it.

pub mod follower;
pub mod instance_table;
pub mod look;
