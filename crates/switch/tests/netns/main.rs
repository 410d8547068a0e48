// SPDX-License-Identifier: Apache-2.0
//! `vipwatch-neutron-switch` with monitors of vipwatch in real namespaces, and with small stand-ins for Neutron's program.
//! The tests with Neutron's own programs are in `tests/neutron`.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod doubts;
mod fixture;
mod interruptions;
mod package;
mod replacement;
mod strangers;
