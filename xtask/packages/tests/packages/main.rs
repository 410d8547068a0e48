// SPDX-License-Identifier: Apache-2.0
//! The Debian packages in a clean system with a real systemd: `cargo xtask test packages`.

mod disk;
mod hooks;
mod install;
mod lint;
mod neutron;
mod neutron_environment;
mod neutron_rotation;
mod neutron_suspension;
mod remove;
mod rpm;
mod service;
mod upgrade;
