//! What tests and benches stand on: throw-away namespaces, hands that change addresses,
//! an agent that can misbehave in every known way, and the monitor as the agent starts it.
//!
//! Only for tests, benches and the demo. Everything here needs the power to make network
//! namespaces, which `cargo xtask` arranges; without it a test fails and says so.
//!
//! The codec used here is not ours: what the tests see and do is independent of what they
//! test.

pub mod address_editor;
pub mod agent;
pub mod dump;
pub mod keepalived;
pub mod lab;
pub mod monitor;
pub mod node;
pub mod recorder;
pub mod release;
pub mod routers;
pub mod wait;
pub mod wire;

pub use address_editor::AddressEditor;
pub use agent::{Behaviour, FakeAgent};
pub use dump::{Dump, DumpInstance, DumpLab};
pub use lab::{Lab, TestNetns, peer_of, run, script};
pub use monitor::{MonitorProcess, Router};
pub use node::{NodeFixture, NodeProcess};
pub use recorder::AddressRecorder;
pub use release::Release;
pub use routers::Routers;
pub use wait::{pause, stays, wait_for, wait_showing};
pub use wire::Wire;
