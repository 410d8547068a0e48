// SPDX-License-Identifier: Apache-2.0
//! The rules of vipwatch, without I/O: from observed facts to roles, and from changes to actions.
//!
//! - The state of one watched address (drop-in): [`observation`], [`tracker`], [`neutron_state`].
//! - The role of an instance with several addresses (node): [`snapshot`], [`role`], [`role_kind`], [`reconcile`], [`audit`],
//!   [`flapping`], [`routing`].
//! - Why a role changed (node): [`cause`].
//! - Delivery to consumers: [`delivery`], [`notification`], [`backoff`], [`debounce`], [`rate_limiter`].
//! - Announcements of addresses: [`announce`].
//! - keepalived's configuration files and command line: [`keepalived`]; its processes: [`keepalived_process`].
//! - VRRP advertisements: [`vrrp`] decodes them, [`witness`] keeps what they say about each virtual router.
//! - The table of all findings: [`finding`].
//! - Small shared types: [`instance`], [`moment`], [`error_chain`], [`untrusted`].
//!
//! The crate reads no clock, opens no file and writes no log. The caller passes the time as a [`Moment`] and
//! performs the returned actions, so every rule can be tested without a kernel.

pub mod announce;
pub mod audit;
pub mod backoff;
pub mod cause;
pub mod conntrack_sync;
pub mod debounce;
pub mod delivery;
pub mod error_chain;
pub mod finding;
mod first_of;
pub mod flapping;
pub mod instance;
pub mod keepalived;
pub mod keepalived_process;
pub mod moment;
pub mod neutron_state;
pub mod notification;
pub mod observation;
pub mod rate_limiter;
pub mod reconcile;
pub mod role;
pub mod role_kind;
pub mod routing;
pub mod snapshot;
pub mod tracker;
pub mod untrusted;
pub mod vrrp;
pub mod witness;

pub use announce::AnnouncePlan;
pub use backoff::{Backoff, Jitter};
pub use cause::{Cause, CauseKind};
pub use debounce::ReportedState;
pub use delivery::{Delivery, DeliveryFailure, Outcome};
pub use error_chain::ErrorChain;
pub use finding::{FindingKind, Severity};
pub use first_of::first_of;
pub use instance::{
    InstanceId, LinkName, NameError, NetnsName, NetnsProcess, WatchedAddress, parse_vip,
};
pub use moment::Moment;
pub use neutron_state::NeutronState;
pub use notification::{Conclusion, DeliveryMode, EventKind};
pub use observation::{LinkIndex, Observation, SnapshotReason, Usability};
pub use rate_limiter::{RateLimit, RateLimiter};
pub use reconcile::Trigger;
pub use role::{Fault, Role};
pub use role_kind::RoleKind;
pub use snapshot::{LinkAddress, Snapshot};
pub use tracker::{ChangeCause, StateChange, Tracker};
pub use untrusted::{
    escape_for_shell, escape_untrusted, escape_untrusted_json, escape_untrusted_within,
};
