// SPDX-License-Identifier: Apache-2.0
//! A condition about a node.

use super::condition::FindingCondition;
use crate::key::ClusterName;

/// A condition about a node, and whether it holds for so long that a finding is opened.
#[derive(Debug)]
pub(super) struct NodeCondition {
    pub(super) node: ClusterName,
    pub(super) is_settled: bool,
    pub(super) condition: FindingCondition,
}
