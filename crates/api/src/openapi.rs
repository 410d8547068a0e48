// SPDX-License-Identifier: Apache-2.0
//! The OpenAPI document of the routes. `cargo xtask openapi` writes it to `docs/reference/openapi.json`.
//!
//! The functions below are never called: each carries the description of one route. A test of `web` compares them with
//! the routes of the server.

#![allow(dead_code, reason = "the attributes of these functions are the document")]

use utoipa::openapi::schema::Type;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ObjectBuilder, OpenApi, RefOr, Schema};

use crate::{
    ClusterChangeCount, ClusterFindingList, ClusterGroupList, ClusterHistory, ClusterNodeList,
    ClusterStatus, ConfigDocument, FindingList, GroupState, HealthDocument, HistoryDocument,
    InstanceDetail, InstanceList, NodeStatus, ProblemDocument, ReloadDocument, ReportList,
    RoleKind, SilenceItem, SilenceList, SilenceRequest, TargetList, VersionDocument,
};

/// The document.
pub fn document() -> OpenApi {
    <ApiDocument as utoipa::OpenApi>::openapi()
}

/// The document as JSON, in the form in which it is committed.
pub fn json() -> serde_json::Result<String> {
    document().to_pretty_json().map(|text| text + "\n")
}

/// The schema of a string that is one of `values`.
pub(crate) fn words(description: &str, values: &[&str]) -> RefOr<Schema> {
    let schema = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    schema.enum_values(Some(values.iter().copied())).into()
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "vipwatch",
        description = "The HTTP API of a vipwatch node or receiver on its unix socket, and of a node over TCP, read-only. docs/reference/api.md explains it.",
        version = "1",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        status,
        instances,
        instance,
        history,
        findings,
        events,
        cluster,
        cluster_changes,
        cluster_groups,
        cluster_nodes,
        cluster_findings,
        cluster_history,
        targets,
        reports,
        config,
        audit,
        reload,
        version,
        silences,
        create_silence,
        end_silence,
        healthz,
        readyz,
        metrics,
        keepalived_metrics
    ),
    components(schemas(crate::NodeEvent)),
    modifiers(&TcpTokens)
)]
struct ApiDocument;

/// Describes the tokens of clients on TCP. No route requires one, because the unix socket needs none.
struct TcpTokens;

impl utoipa::Modify for TcpTokens {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "A token of `web.token_file`. Over TCP every route needs one if that is configured; the unix socket never does.",
        ));
        if let Some(components) = &mut document.components {
            components.add_security_scheme("token", SecurityScheme::Http(scheme.build()));
        }
    }
}

macro_rules! describe {
    ($(#[$attribute:meta])* fn $name:ident) => {
        $(#[$attribute])*
        fn $name() {}
    };
}

/// The errors of every route.
#[derive(utoipa::IntoResponses)]
enum CommonErrors {
    /// A parameter, a header or the body is not valid.
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(ProblemDocument),
    /// Over TCP, the request has no valid token.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(ProblemDocument),
    /// The user of the client may not use the socket.
    #[response(status = 403, content_type = "application/problem+json")]
    NotPermitted(ProblemDocument),
    /// Nothing in `Accept` fits.
    #[response(status = 406, content_type = "application/problem+json")]
    NotAcceptable(ProblemDocument),
    /// The client took too long to send the request.
    #[response(status = 408, content_type = "application/problem+json")]
    Timeout(ProblemDocument),
    /// The request is too large.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(ProblemDocument),
    /// A handler of the server failed.
    #[response(status = 500, content_type = "application/problem+json")]
    Internal(ProblemDocument),
    /// Too many connections, a node that is not ready, or a history that cannot be read.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemDocument),
}

describe! {
    /// The node itself: counts, problems, silences, counters.
    #[utoipa::path(get, path = "/v1/status", responses(CommonErrors, (status = 200, body = NodeStatus)))]
    fn status
}

describe! {
    /// The instances, in the order of their ids. The answer is sent in parts.
    #[utoipa::path(get, path = "/v1/instances",
        params(
            ("id" = Option<Vec<String>>, Query, description = "an id, the beginning of ids, or an address; an exact id has precedence"),
            ("address" = Option<Vec<String>>, Query, description = "an address of the instance, floating ones too"),
            ("role" = Option<Vec<RoleKind>>, Query, description = "a role"),
            ("netns" = Option<Vec<String>>, Query, description = "a network namespace; empty for the node's own"),
            ("origin" = Option<Vec<String>>, Query, description = "`neutron`, `keepalived`, `container` or `vipwatch`"),
        ),
        responses(CommonErrors,
            (status = 200, body = InstanceList),
            (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "no instance has such an id or address")))]
    fn instances
}

describe! {
    /// One instance with its findings and its last transitions.
    #[utoipa::path(get, path = "/v1/instances/{id}",
        params(("id" = String, Path, description = "an id, the beginning of one id, or an address")),
        responses(CommonErrors,
            (status = 200, body = InstanceDetail),
            (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "no instance has such an id or address"),
            (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "the text matches several instances")))]
    fn instance
}

describe! {
    /// Transitions and gaps, oldest first. The answer is sent in parts.
    #[utoipa::path(get, path = "/v1/history",
        params(
            ("since" = Option<String>, Query, format = DateTime, description = "the earliest time"),
            ("until" = Option<String>, Query, format = DateTime, description = "the latest time"),
            ("after" = Option<String>, Query, description = "only entries after this event id; with `limit`, the oldest of them"),
            ("id" = Option<String>, Query, description = "an id, the beginning of ids, or an address"),
            ("limit" = Option<u64>, Query, description = "the maximum number of transitions; without `after`, the newest"),
        ),
        responses(CommonErrors,
            (status = 200, body = HistoryDocument),
            (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "there is no history")))]
    fn history
}

describe! {
    /// Everything that is known to be wrong, the most serious first.
    #[utoipa::path(get, path = "/v1/findings", responses(CommonErrors, (status = 200, body = FindingList)))]
    fn findings
}

describe! {
    /// Transitions, deliveries, findings and removals as server-sent events. The data of each event is an `Event`.
    #[utoipa::path(get, path = "/v1/events",
        params(
            ("id" = Option<Vec<String>>, Query, description = "an id, the beginning of ids, or an address"),
            ("after" = Option<String>, Query, description = "continue after this event id"),
            ("Last-Event-ID" = Option<String>, Header, description = "continue after this event id; it has precedence over `after`"),
        ),
        responses(CommonErrors, (status = 200, body = String, content_type = "text/event-stream")))]
    fn events
}

describe! {
    /// The cluster in numbers, and what the node cannot know about it.
    #[utoipa::path(get, path = "/v1/cluster", responses(CommonErrors, (status = 200, body = ClusterStatus)))]
    fn cluster
}

describe! {
    /// Waits up to 15 s until the number of changes of the cluster view differs from `after`.
    #[utoipa::path(get, path = "/v1/cluster/changes",
        params(("after" = Option<u64>, Query, description = "the number of the last answer; 0 or none: answer at once")),
        responses(CommonErrors, (status = 200, body = ClusterChangeCount)))]
    fn cluster_changes
}

describe! {
    /// The groups of instances that share virtual addresses on several nodes, the most serious first.
    #[utoipa::path(get, path = "/v1/cluster/groups",
        params(
            ("state" = Option<Vec<GroupState>>, Query, description = "a state of groups"),
            ("node" = Option<Vec<String>>, Query, description = "a node with an instance in the group"),
            ("group" = Option<Vec<String>>, Query, description = "an id of a group, or its beginning"),
            ("address" = Option<Vec<String>>, Query, description = "a virtual address"),
        ),
        responses(CommonErrors, (status = 200, body = ClusterGroupList)))]
    fn cluster_groups
}

describe! {
    /// The nodes of the cluster, in the order of their names.
    #[utoipa::path(get, path = "/v1/cluster/nodes", responses(CommonErrors, (status = 200, body = ClusterNodeList)))]
    fn cluster_nodes
}

describe! {
    /// The open findings about several nodes, the most serious first.
    #[utoipa::path(get, path = "/v1/cluster/findings", responses(CommonErrors, (status = 200, body = ClusterFindingList)))]
    fn cluster_findings
}

describe! {
    /// The last transitions of all instances and the findings of the cluster, oldest first.
    #[utoipa::path(get, path = "/v1/cluster/history", responses(CommonErrors, (status = 200, body = ClusterHistory)))]
    fn cluster_history
}

describe! {
    /// The targets and their deliveries.
    #[utoipa::path(get, path = "/v1/targets", responses(CommonErrors, (status = 200, body = TargetList)))]
    fn targets
}

describe! {
    /// The states that monitors have reported to the receiver of this process.
    #[utoipa::path(get, path = "/v1/reports",
        responses(CommonErrors,
            (status = 200, body = ReportList),
            (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "this process runs no receiver")))]
    fn reports
}

describe! {
    /// The settings in force, without secrets.
    #[utoipa::path(get, path = "/v1/config", responses(CommonErrors, (status = 200, body = ConfigDocument)))]
    fn config
}

describe! {
    /// Audits all instances now, and returns everything that is wrong.
    #[utoipa::path(post, path = "/v1/audit",
        responses(CommonErrors,
            (status = 200, body = FindingList),
            (status = 504, body = ProblemDocument, content_type = "application/problem+json", description = "the audit did not end in time")))]
    fn audit
}

describe! {
    /// Has the process read its configuration again, and waits for the result. A rejected configuration is an answer with
    /// status 200 and an error in it. Only root and the user of the process may call it, on the unix socket.
    #[utoipa::path(post, path = "/v1/reload",
        responses(CommonErrors,
            (status = 200, body = ReloadDocument),
            (status = 504, body = ProblemDocument, content_type = "application/problem+json", description = "the reload did not end in time")))]
    fn reload
}

describe! {
    /// The program, its process and its last reload.
    #[utoipa::path(get, path = "/v1/version", responses(CommonErrors, (status = 200, body = VersionDocument)))]
    fn version
}

describe! {
    /// The silences in force.
    #[utoipa::path(get, path = "/v1/silences", responses(CommonErrors, (status = 200, body = SilenceList)))]
    fn silences
}

describe! {
    /// Creates a silence.
    #[utoipa::path(post, path = "/v1/silences", request_body = SilenceRequest,
        responses(CommonErrors,
            (status = 201, body = SilenceItem),
            (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "no instance has such an id"),
            (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "the text matches several instances"),
            (status = 415, body = ProblemDocument, content_type = "application/problem+json", description = "the body is not JSON")))]
    fn create_silence
}

describe! {
    /// Ends a silence, and returns it.
    #[utoipa::path(delete, path = "/v1/silences/{number}",
        params(("number" = i64, Path, description = "the number of the silence")),
        responses(CommonErrors,
            (status = 200, body = SilenceItem),
            (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "no silence has this number")))]
    fn end_silence
}

describe! {
    /// Whether the process works.
    #[utoipa::path(get, path = "/healthz", responses(CommonErrors, (status = 200, body = HealthDocument)))]
    fn healthz
}

describe! {
    /// Whether the process has published the role of every instance.
    #[utoipa::path(get, path = "/readyz", responses(CommonErrors, (status = 200, body = HealthDocument)))]
    fn readyz
}

describe! {
    /// The metrics for Prometheus: OpenMetrics, or the older text format if `Accept` names only `text/plain`.
    #[utoipa::path(get, path = "/metrics",
        responses(CommonErrors,
            (status = 200, description = "the metrics", content(
                (String = "application/openmetrics-text"),
                (String = "text/plain"),
            ))))]
    fn metrics
}

describe! {
    /// Metrics with the names of the exporters for keepalived.
    #[utoipa::path(get, path = "/metrics/keepalived",
        responses(CommonErrors,
            (status = 200, description = "the metrics", content(
                (String = "application/openmetrics-text"),
                (String = "text/plain"),
            ))))]
    fn keepalived_metrics
}
