// SPDX-License-Identifier: Apache-2.0
//! Findings: `GET /v1/findings` and `POST /v1/audit`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AnswerSource, FindingKind, Schema, Severity};

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FindingItem {
    /// The id of the instance; null for a finding about the node.
    pub id: Option<String>,
    /// The finding's own id, if it is about several nodes; null for one about this node. Two such findings can have the same
    /// name and instance.
    #[serde(default)]
    pub cluster_id: Option<String>,
    /// The stable name, for example `agent-behind`.
    pub name: String,
    /// How serious it is.
    pub severity: Severity,
    /// A description with the observed values.
    pub text: String,
    /// What to do.
    pub hint: String,
    /// When it was found for the first time; null if that is not known.
    pub since: Option<Timestamp>,
    /// The end of the silence that covers it; null if there is none.
    pub silenced_until: Option<Timestamp>,
    /// Whether it hides no instance: a note about a configuration file that the node uses as a whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub harmless: bool,
}

impl FindingItem {
    /// Whether another item is about the same finding.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.cluster_id, &other.cluster_id) {
            (None, None) => self.id == other.id && self.name == other.name,
            (own, others) => own == others,
        }
    }

    /// What it states; `None` for a finding of a later release.
    pub fn kind(&self) -> Option<FindingKind> {
        FindingKind::from_name(&self.name)
    }
}

/// The answer to `GET /v1/findings` and `POST /v1/audit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FindingList {
    /// [`Schema::Findings`]
    pub schema: Schema,
    /// The name of the node.
    pub node: String,
    /// The origin of the answer.
    pub source: AnswerSource,
    /// The number of instances that were compared.
    pub instances: u64,
    /// The findings, the most serious first.
    pub items: Vec<FindingItem>,
    /// The number of findings that are too young to be reported: after a failover, components follow within seconds.
    pub too_young: u64,
    /// The keepaliveds in containers. They are no findings.
    #[serde(default)]
    pub containers: Vec<ContainerKeepalived>,
    /// The number of running keepaliveds; null if the node cannot read all processes.
    #[serde(default)]
    pub keepaliveds: Option<u64>,
}

/// A running keepalived with another root directory than the node's: in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContainerKeepalived {
    /// The pid.
    pub pid: u32,
    /// Its network namespace; null for the node's own, and if it cannot be read.
    pub netns: Option<String>,
}
