// SPDX-License-Identifier: Apache-2.0
//! Routing netlink (`rtnetlink(7)`): [`decode`] turns bytes into messages, [`socket`] sends and receives datagrams,
//! `dump` reads the answer to a dump.

pub mod decode;
pub(crate) mod dump;
pub mod socket;
