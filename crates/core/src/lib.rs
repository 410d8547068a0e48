//! The domain of vipwatch, as values.
//!
//! An [`Observation`] is what the kernel told us. A [`Tracker`] folds observations into a
//! [`Role`] and reports a [`Transition`] when the role changes. [`plan::actions`] says what
//! a transition asks for, and in which order. [`Delivery`] decides when a role must be said
//! (again) to a receiver that may be absent, deaf or forgetful; [`announce::Schedule`] when
//! an address must be announced (again) to a network that may not have listened.
//!
//! [`claim`] is what monitors say, and when a receiver acts on it; [`batch`] how it is told to one who is
//! told of many.
//! [`audit`] compares what the kernel, the files and the agent say of one instance.
//! [`keepalived`] reads what keepalived is configured to move, and [`standing`] says where such an
//! instance stands by what the kernel holds.
//!
//! Nothing here reads a clock, opens a file or logs: time comes in as a [`Moment`], effects
//! go out as values. That is why every rule of the program can be tested without a kernel.

pub mod announce;
pub mod audit;
pub mod backoff;
pub mod batch;
pub mod chain;
pub mod claim;
pub mod delivery;
pub mod instance;
pub mod keepalived;
pub mod moment;
pub mod observation;
pub mod plan;
pub mod role;
pub mod standing;
pub mod tracker;
pub mod untrusted;

pub use announce::{AnnouncePlan, Target};
pub use backoff::{Backoff, Dice};
pub use batch::Batch;
pub use chain::Chain;
pub use delivery::{Delivery, Outcome, Setback};
pub use instance::{InstanceId, LinkName, NameError, NetnsName, Watch, parse_vip};
pub use moment::Moment;
pub use observation::{Inventory, LinkIndex, Look, Observation, Usability};
pub use plan::Action;
pub use role::Role;
pub use standing::{Fault, Standing};
pub use tracker::{Cause, Tracker, Transition};
pub use untrusted::{escape_untrusted, escape_untrusted_json, escape_untrusted_within};
