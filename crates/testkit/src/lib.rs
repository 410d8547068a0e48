// SPDX-License-Identifier: Apache-2.0
//! For tests, benches and the demo: temporary network namespaces ([`lab`]), address changes
//! ([`address_editor`]), real keepalived ([`keepalived`], [`dump`]), fake agents ([`agent`]), Neutron's own code
//! ([`neutron`]), the drop-in as Neutron starts it ([`monitor`], [`release`]), node processes ([`node`]), programs on a pseudo-terminal ([`pty`]),
//! packet captures ([`wire`]), signed adverts ([`signed_adverts`]), pseudo-random numbers ([`random`]), waiting for facts ([`wait`]), real etcd ([`etcd`]), certificates ([`authority`]), and a real
//! browser ([`browser`]).
//!
//! It needs permission to create network namespaces. `cargo xtask` provides it; without it a test fails with a hint.
//!
//! The netlink codec is not the one of `vipwatch-linux`, so that a mistake in that codec cannot hide from the tests.

pub mod address_editor;
pub mod agent;
pub mod authority;
pub mod browser;
pub mod clock;
pub mod dump;
pub mod etcd;
pub mod keepalived;
pub mod lab;
pub mod monitor;
pub mod neutron;
pub mod node;
pub mod pty;
pub mod random;
pub mod recorder;
pub mod release;
pub mod routers;
pub mod signed_adverts;
pub mod wait;
pub mod wire;

pub use address_editor::AddressEditor;
pub use agent::{Behaviour, FakeAgent};
pub use authority::{Authority, SignedCertificate};
pub use browser::{Browser, ColorScheme};
pub use clock::SteppedClock;
pub use dump::{Dump, DumpInstance, DumpLab};
pub use etcd::{Etcd, EtcdPlace, EtcdProcessOptions, EtcdTls};
pub use lab::{Lab, TestNetns, peer_of, run, script};
pub use monitor::{MonitorProcess, Router};
pub use node::{NodeFixture, NodeProcess};
pub use pty::PtyProcess;
pub use random::Random;
pub use recorder::AddressRecorder;
pub use release::Release;
pub use routers::{HaRouter, Routers};
pub use signed_adverts::{AdvertSender, SigningKey, TestAdvert};
pub use wait::{pause, stays, wait_for, wait_showing, wait_within, wait_within_showing};
pub use wire::Wire;
