// SPDX-License-Identifier: Apache-2.0
//! The findings about several nodes: their names, severities and hints.

use std::time::Duration;

use vipwatch_api::FindingSeverity;

use super::EvaluatorSettings;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal, $severity:ident, $hint:literal;)*) => {
        /// The findings about several nodes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ClusterFindingKind {
            $($(#[doc = $doc])* $variant,)*
        }

        impl ClusterFindingKind {
            /// All kinds, the most serious first.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The stable name, for example `cluster-two-primaries`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// How serious it is.
            pub fn severity(self) -> FindingSeverity {
                match self { $(Self::$variant => FindingSeverity::$severity,)* }
            }

            /// What an operator should do.
            pub fn hint(self) -> &'static str {
                match self { $(Self::$variant => $hint,)* }
            }
        }
    };
}

kinds! {
    /// Two live nodes hold an address of a group, and both have confirmed it.
    TwoPrimaries = "cluster-two-primaries", Broken,
        "check the network between the nodes, and keepalived on each of them: `vipwatch doctor` on both nodes";
    /// No node of a group holds an address.
    NoPrimary = "cluster-no-primary", Broken,
        "check keepalived and the links on the nodes of the group: `vipwatch doctor` on each of them";
    /// The lease of a node has ended, and the node was not stopped.
    NodeLost = "cluster-node-lost", Broken,
        "check whether the machine runs, whether vipwatch runs on it, and whether it reaches etcd";
    /// A group has a primary and too few backups: the next failover has no target.
    TooFewBackups = "cluster-too-few-backups", Wrong,
        "start keepalived on the other nodes of the group, or check their links; `min_backups = 0` turns this finding off";
    /// The primary of a group changes again and again.
    Flapping = "cluster-flapping", Wrong,
        "see the causes in `vipwatch cluster history`, and check the links and the load of the nodes";
    /// The kernel of a node differs from the state file, the agent or the reports of the monitor.
    Disagreement = "cluster-disagreement", Wrong,
        "the kernel is right: run `vipwatch doctor` on the named node";
    /// Neutron's `ha_state` names another primary than the kernels of the nodes.
    NeutronDiffers = "cluster-neutron-differs", Wrong,
        "the kernel is right: check the L3 agent on the primary and its connection to the message bus; a restart of the agent reports its states again";
    /// The nodes of a group have different settings.
    DifferentConfiguration = "cluster-different-configuration", Wrong,
        "make the configuration of keepalived equal on all nodes of the group, and reload it";
    /// It is not clear which instances belong together.
    AmbiguousGroup = "cluster-ambiguous-group", Wrong,
        "give the instances that belong together the same `group` in the configuration of vipwatch on every node";
}

impl ClusterFindingKind {
    /// The kind with this name; `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The name in an id: without the part that all names have.
    pub(super) fn short_name(self) -> &'static str {
        self.name().trim_start_matches("cluster-")
    }

    /// How long the condition must hold before the finding is opened. `advert` is the time between two adverts.
    pub fn settle(self, settings: &EvaluatorSettings, advert: Duration) -> Duration {
        match self {
            Self::TwoPrimaries => settings.settle + advert,
            // VRRP waits for three adverts and the skew, which is less than one advert (RFC 9568, 6.1).
            Self::NoPrimary => settings.settle + 4 * advert,
            Self::NodeLost | Self::AmbiguousGroup => settings.settle,
            Self::TooFewBackups | Self::Disagreement | Self::DifferentConfiguration => {
                settings.slow_settle
            }
            Self::NeutronDiffers => settings.neutron_settle.unwrap_or_default(),
            Self::Flapping => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_found_and_the_most_serious_come_first() {
        for kind in ClusterFindingKind::ALL {
            assert_eq!(ClusterFindingKind::from_name(kind.name()), Some(*kind));
            assert!(kind.name().starts_with("cluster-"));
        }
        assert_eq!(ClusterFindingKind::from_name("two-primaries"), None);
        assert!(ClusterFindingKind::ALL.is_sorted_by_key(|kind| kind.severity()));
    }
}
