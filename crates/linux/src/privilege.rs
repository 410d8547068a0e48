// SPDX-License-Identifier: Apache-2.0
//! Drops privileges that a process does not need any more.

use std::io;

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The user and group of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

impl Identity {
    /// The effective user and group of this process.
    pub fn current() -> Self {
        Self {
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
        }
    }
}

/// The step of dropping privileges that failed.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// The supplementary groups could not be removed.
    #[error("cannot leave the supplementary groups")]
    Groups(#[source] io::Error),
    /// The group could not be changed.
    #[error("cannot become group {0}")]
    Group(u32, #[source] io::Error),
    /// The user could not be changed.
    #[error("cannot become user {0}")]
    User(u32, #[source] io::Error),
    /// Capabilities could not be removed from the bounding set, although this process has the right to.
    #[error("cannot empty the bounding set of capabilities")]
    BoundingSet(#[source] io::Error),
    /// Capabilities could not be removed from the ambient set.
    #[error("cannot empty the ambient set of capabilities")]
    AmbientSet(#[source] io::Error),
    /// Capabilities could not be removed from the other sets.
    #[error("cannot drop capabilities")]
    Capabilities(#[source] io::Error),
    /// `no_new_privs` could not be set: a program that is executed later could gain privileges.
    #[error("cannot set no_new_privs")]
    NoNewPrivileges(#[source] io::Error),
}

/// Privileges that could not be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedPrivileges {
    /// The process has supplementary groups, because it keeps its user and lacks `CAP_SETGID`.
    pub has_groups: bool,
    /// The bounding set could not be emptied, because this process lacks `CAP_SETPCAP`. `no_new_privs` keeps its
    /// capabilities out of reach.
    pub has_bounding_set: bool,
}

/// The permitted capabilities of this process: those it has or may enable.
pub fn permitted() -> Result<CapabilitySet, PrivilegeError> {
    let sets = rustix::thread::capabilities(None);
    let sets = sets.map_err(|errno| PrivilegeError::Capabilities(errno.into()))?;
    Ok(sets.permitted)
}

/// Has programs that this thread and its later threads execute inherit no capabilities. systemd's
/// `AmbientCapabilities=` gives them to this process, and otherwise to every program that it starts.
pub fn clear_ambient_set() -> Result<(), PrivilegeError> {
    match rustix::thread::clear_ambient_capability_set() {
        // Before Linux 4.3 there is no ambient set.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(PrivilegeError::AmbientSet(errno.into())),
    }
}

/// Changes the process to `identity`, without supplementary groups, with only those capabilities of `keep` that it has,
/// and without a way to gain more.
///
/// ORDER: supplementary groups, then group, then user: each step needs a right that the next one drops.
pub fn drop_privileges(
    identity: Identity,
    keep: CapabilitySet,
) -> Result<RetainedPrivileges, PrivilegeError> {
    let Identity { user, group } = identity;
    let is_change = identity != Identity::current();
    let has_groups = !leave_groups(group)?;
    if has_groups && is_change {
        return Err(PrivilegeError::Groups(Errno::PERM.into()));
    }
    let has_bounding_set = !drop_bounding_set(keep)?;
    if is_change {
        let gid = Gid::from_raw(group);
        rustix::thread::set_thread_res_gid(gid, gid, gid)
            .map_err(|errno| PrivilegeError::Group(group, errno.into()))?;
        let uid = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(uid, uid, uid)
            .map_err(|errno| PrivilegeError::User(user, errno.into()))?;
    }
    clear_ambient_set()?;
    let keep = keep.intersection(permitted()?);
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
        .map_err(|errno| PrivilegeError::Capabilities(errno.into()))?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| PrivilegeError::NoNewPrivileges(errno.into()))?;
    Ok(RetainedPrivileges { has_groups, has_bounding_set })
}

/// Leaves all groups but `group`, the group of this process; false if this process is in others and lacks the right to
/// leave them.
fn leave_groups(group: u32) -> Result<bool, PrivilegeError> {
    let failed = |errno: Errno| PrivilegeError::Groups(errno.into());
    match rustix::thread::set_thread_groups(&[]) {
        Ok(()) => Ok(true),
        Err(Errno::PERM) => {
            let groups = rustix::process::getgroups().map_err(failed)?;
            Ok(groups.iter().all(|one| one.as_raw() == group))
        }
        Err(errno) => Err(failed(errno)),
    }
}

/// Removes all capabilities but `keep` from the bounding set, so that a program that this process executes cannot get
/// them; false if this process lacks the right to.
fn drop_bounding_set(keep: CapabilitySet) -> Result<bool, PrivilegeError> {
    for capability in CapabilitySet::all().difference(keep).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // EINVAL: a capability that this kernel does not have.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(Errno::PERM) => return Ok(false),
            Err(errno) => return Err(PrivilegeError::BoundingSet(errno.into())),
        }
    }
    Ok(true)
}
