// SPDX-License-Identifier: Apache-2.0
//! The names of the schemas.

use serde::{Deserialize, Serialize};

macro_rules! schemas {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// The name and the version of a document's schema.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Schema {
            $($(#[doc = $doc])* #[serde(rename = $name)] $variant,)*
        }

        // The derive macro does not see names that come from this macro.
        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for Schema {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                crate::openapi::words("The name and the version of a document's schema.", &[$($name,)*])
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for Schema {}

        impl Schema {
            /// The name, for example `vipwatch.status/2`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

schemas! {
    /// `GET /v1/status`
    Status = "vipwatch.status/2",
    /// `GET /v1/instances`
    Instances = "vipwatch.instances/1",
    /// `GET /v1/instances/{id}`
    Instance = "vipwatch.instance/2",
    /// `GET /v1/history`
    History = "vipwatch.history/2",
    /// `GET /v1/findings` and `POST /v1/audit`
    Findings = "vipwatch.findings/1",
    /// `GET /v1/targets`
    Targets = "vipwatch.targets/1",
    /// `GET /v1/reports`
    Reports = "vipwatch.reports/1",
    /// `GET /v1/silences`
    Silences = "vipwatch.silences/1",
    /// `GET /v1/config`
    Config = "vipwatch.config/2",
    /// `vipwatch config check`
    ConfigCheck = "vipwatch.config-check/1",
    /// `vipwatch announce`
    Announce = "vipwatch.announce/1",
    /// `vipwatch drain-check`
    DrainCheck = "vipwatch.drain-check/1",
    /// `GET /v1/version`
    Version = "vipwatch.version/1",
    /// `POST /v1/reload`
    Reload = "vipwatch.reload/1",
    /// `GET /healthz` and `GET /readyz`
    Health = "vipwatch.health/1",
    /// `GET /v1/cluster`
    Cluster = "vipwatch.cluster/1",
    /// `GET /v1/cluster/groups`
    ClusterGroups = "vipwatch.cluster-groups/1",
    /// `GET /v1/cluster/nodes`
    ClusterNodes = "vipwatch.cluster-nodes/1",
    /// `GET /v1/cluster/findings`
    ClusterFindings = "vipwatch.cluster-findings/1",
    /// `GET /v1/cluster/history`
    ClusterHistory = "vipwatch.cluster-history/1",
    /// `GET /v1/cluster/changes`
    ClusterChanges = "vipwatch.cluster-changes/1",
    /// A line of `vipwatch cluster watch`
    ClusterChange = "vipwatch.cluster-change/1",
    /// `vipwatch cluster balance`
    ClusterBalance = "vipwatch.cluster-balance/1",
    /// Event `transition`; also the body of a notification.
    Transition = "vipwatch.transition/2",
    /// Event `removed`; also the body of a notification.
    Removed = "vipwatch.removed/1",
    /// Event `cause`
    Cause = "vipwatch.cause/1",
    /// Event `delivery`
    Delivery = "vipwatch.delivery/1",
    /// Event `finding`; also the body of a notification.
    Finding = "vipwatch.finding/1",
    /// A settled report: the body of a notification.
    Report = "vipwatch.report/2",
    /// Many notifications: the body of a request to a webhook.
    Batch = "vipwatch.batch/1",
    /// The states of many routers: the body of a request to the upstream.
    States = "vipwatch.states/1",
    /// Event `reset`
    Reset = "vipwatch.reset/1",
    /// Event `dropped`
    Dropped = "vipwatch.dropped/1",
}
