//! Giving up what is no longer needed, for good.

use std::io;

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Who to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

impl Identity {
    /// Who this process is now.
    pub fn current() -> Self {
        Self {
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
        }
    }
}

/// Which step of giving up privileges failed.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Supplementary groups stayed.
    #[error("cannot leave the supplementary groups")]
    Groups(#[source] io::Error),
    /// Still in the old group.
    #[error("cannot become group {0}")]
    Group(u32, #[source] io::Error),
    /// Still the old user.
    #[error("cannot become user {0}")]
    User(u32, #[source] io::Error),
    /// Capabilities stayed in the bounding set, although this process may remove them.
    #[error("cannot empty the bounding set of capabilities")]
    BoundingSet(#[source] io::Error),
    /// Capabilities stayed in the ambient set.
    #[error("cannot empty the ambient set of capabilities")]
    AmbientSet(#[source] io::Error),
    /// Capabilities stayed.
    #[error("cannot drop capabilities")]
    Capabilities(#[source] io::Error),
    /// A program run later could gain privileges.
    #[error("cannot set no_new_privs")]
    NoNewPrivileges(#[source] io::Error),
}

/// What becoming another user left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedPrivileges {
    /// The bounding set could not be emptied, because this process lacks `CAP_SETPCAP`. `no_new_privs` keeps its
    /// capabilities out of reach.
    pub has_bounding_set: bool,
}

/// The capabilities this process has or may switch on.
pub fn permitted() -> Result<CapabilitySet, PrivilegeError> {
    let sets = rustix::thread::capabilities(None);
    let sets = sets.map_err(|errno| PrivilegeError::Capabilities(errno.into()))?;
    Ok(sets.permitted)
}

/// Becomes `identity`, with no supplementary groups, those capabilities of `keep` that this process has, no others, and
/// no way to gain more.
///
/// ORDER: groups, then group, then user: each step needs a right that the next gives up.
pub fn become_only(
    identity: Identity,
    keep: CapabilitySet,
) -> Result<RetainedPrivileges, PrivilegeError> {
    let Identity { user, group } = identity;
    let is_other = identity != Identity::current();
    if let Err(errno) = rustix::thread::set_thread_groups(&[]) {
        // An ordinary user may not touch its groups, and has brought them itself.
        if rustix::process::geteuid().is_root() && is_other {
            return Err(PrivilegeError::Groups(errno.into()));
        }
    }
    let has_bounding_set = !drop_bounding_set(keep)?;
    if is_other {
        let gid = Gid::from_raw(group);
        rustix::thread::set_thread_res_gid(gid, gid, gid)
            .map_err(|errno| PrivilegeError::Group(group, errno.into()))?;
        let uid = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(uid, uid, uid)
            .map_err(|errno| PrivilegeError::User(user, errno.into()))?;
    }
    match rustix::thread::clear_ambient_capability_set() {
        // Before Linux 4.3 there is no ambient set.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(PrivilegeError::AmbientSet(errno.into())),
    }
    let keep = keep.intersection(permitted()?);
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
        .map_err(|errno| PrivilegeError::Capabilities(errno.into()))?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| PrivilegeError::NoNewPrivileges(errno.into()))?;
    Ok(RetainedPrivileges { has_bounding_set })
}

/// Removes all but `keep` from the capabilities that a program run from here could get; false if this process lacks the
/// right to.
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
