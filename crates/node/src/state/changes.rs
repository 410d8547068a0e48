// SPDX-License-Identifier: Apache-2.0
//! Reports which instances have changed, to the session with etcd.

use std::fmt;
use std::sync::OnceLock;

use vipwatch_core::InstanceId;

use crate::cluster::MarkInstance;

/// The function that is called with each changed instance.
#[derive(Default)]
pub(super) struct InstanceChanges(OnceLock<MarkInstance>);

impl InstanceChanges {
    /// Only the first call has an effect.
    pub(super) fn set(&self, report: MarkInstance) {
        let _ = self.0.set(report);
    }

    pub(super) fn report(&self, id: &InstanceId) {
        if let Some(report) = self.0.get() {
            report(id);
        }
    }
}

impl fmt::Debug for InstanceChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InstanceChanges").field(&self.0.get().is_some()).finish()
    }
}
