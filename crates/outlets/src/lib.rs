// SPDX-License-Identifier: Apache-2.0
//! Outlets that both programs use: each publishes one change to one kind of consumer.
//!
//! - [`state_file`] replaces the file that holds `primary` or `backup`.
//! - [`agent`] reports the state to Neutron's L3 agent over HTTP on a unix socket.
//! - [`announce`] sends gratuitous ARP and unsolicited neighbour advertisements.
//!
//! An outlet never blocks its caller. It keeps its own retry timer: `due` returns the time of the next
//! attempt, and `tick` performs the attempts that are due.

pub mod advert_interval;
pub mod agent;
pub mod announce;
pub mod state_file;
