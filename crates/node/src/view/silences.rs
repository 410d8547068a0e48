// SPDX-License-Identifier: Apache-2.0
//! Silences as documents.

use std::time::{Duration, SystemTime};

use vipwatch_api::{
    ErrorCode, ProblemDocument, Schema, SilenceItem, SilenceList, SilenceRequest, Timestamp,
    timestamp_from_millis,
};
use vipwatch_history::SilenceRow;

use super::instances::find;
use super::{ApiContext, timestamp};
use crate::silence::Silences;

/// The silences in force: those of this node, and those that were added for it in the cluster.
pub fn silences(context: &ApiContext) -> SilenceList {
    let mut items = Vec::new();
    if let Some(silences) = &context.silences {
        items.extend(silences.in_force(SystemTime::now()).into_iter().map(item));
        let of_cluster = silences.of_cluster().into_iter();
        items.extend(
            of_cluster.map(|((id, _), row)| SilenceItem { cluster_id: Some(id), ..item(row) }),
        );
    }
    SilenceList { schema: Schema::Silences, node: context.node.to_string(), items }
}

/// Creates a silence for the user `created_by`.
pub fn create_silence(
    context: &ApiContext,
    request: &SilenceRequest,
    created_by: &str,
) -> Result<SilenceItem, ProblemDocument> {
    let silences = of_node(context)?;
    let id = match &request.id {
        Some(text) => Some(find(&context.store.view(), text)?),
        None => None,
    };
    let length = Duration::from_secs(request.seconds);
    let added = silences.add(id.as_ref(), length, &request.reason, created_by);
    let row = added
        .map_err(|error| ProblemDocument::new(ErrorCode::InvalidRequest, error.to_string()))?;
    tracing::info!(
        silence = row.number,
        instance = request.id.as_deref().unwrap_or("all"),
        seconds = request.seconds,
        reason = row.reason,
        user = created_by,
        "silence created"
    );
    Ok(item(row))
}

/// Ends a silence for the user `ended_by`, and returns it.
pub fn end_silence(
    context: &ApiContext,
    number: i64,
    ended_by: &str,
) -> Result<SilenceItem, ProblemDocument> {
    let silences = of_node(context)?;
    let row = silences.in_force(SystemTime::now()).into_iter().find(|row| row.number == number);
    let ended = row.filter(|_| silences.remove(number, ended_by));
    let row = ended.ok_or_else(|| {
        ProblemDocument::new(ErrorCode::UnknownSilence, format!("there is no silence {number}"))
    })?;
    tracing::info!(
        silence = number,
        instance = row.instance.as_deref().unwrap_or("all"),
        created_by = row.created_by,
        user = ended_by,
        "silence ended"
    );
    Ok(item(row))
}

/// The end of the silence that covers an instance, or the node if `id` is `None`; `None` if there is none.
pub(crate) fn silenced_until(context: &ApiContext, id: Option<&str>) -> Option<Timestamp> {
    let id = match id {
        Some(id) => Some(id.parse().ok()?),
        None => None,
    };
    let until = context.silences.as_ref()?.until(id.as_ref(), SystemTime::now());
    until.map(timestamp)
}

fn of_node(context: &ApiContext) -> Result<&Silences, ProblemDocument> {
    let missing = || ProblemDocument::new(ErrorCode::NotReady, "silences need a running node");
    context.silences.as_deref().ok_or_else(missing)
}

fn item(row: SilenceRow) -> SilenceItem {
    SilenceItem {
        number: row.number,
        id: row.instance,
        created_at: timestamp_from_millis(row.created_at),
        until: timestamp_from_millis(row.until),
        reason: row.reason,
        created_by: row.created_by,
        cluster_id: None,
    }
}
