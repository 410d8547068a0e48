//! The only door to the kernel, and the only place that says `unsafe`.
//!
//! [`monitor`] watches one namespace over one netlink socket and speaks in
//! [`Observation`](vipwatch_core::Observation)s; [`survey`] asks it once for everything;
//! [`fleet`] does both for all namespaces of a node;
//! [`netlink`] is the codec and the socket under both; [`announce`] speaks to the network; [`netns`] finds and enters namespaces; [`process`], [`signal`] and
//! [`privilege`] are what a daemon is made of; [`directory`] tells when a file appears or
//! goes, and [`notice`] does so for thousands of directories; [`mod@file`] reads with care; [`account`] knows users by name; [`listen`] makes sockets that can be met; [`peer`] who is at the other end of one; [`clock`] is the time;
//! [`inbox`] is how threads tell one who waits for many; [`worker`] starts threads that the watchdog watches.
//!
//! There is no policy here: nothing in this crate knows what a primary is.

pub mod account;
pub mod announce;
pub mod clock;
pub mod directory;
pub mod file;
pub mod fleet;
pub mod inbox;
pub mod listen;
pub mod monitor;
pub mod netlink;
pub mod netns;
pub mod notice;
pub mod peer;
pub mod privilege;
pub mod process;
pub mod signal;
pub mod survey;
pub mod sysctl;
pub mod worker;
